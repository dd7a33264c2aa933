{{/* Names, labels, image. Every template takes this chart's own context: `.`, or `.Subcharts.slotkeeper` in another. */}}

{{- define "slotkeeper.name" -}}
{{- default "slotkeeper" .Values.nameOverride | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{/* A CronJob's name has 52 characters at most. */}}
{{- define "slotkeeper.fullname" -}}
{{- $name := include "slotkeeper.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "slotkeeper.selectorLabels" -}}
app.kubernetes.io/name: {{ include "slotkeeper.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "slotkeeper.labels" -}}
{{ include "slotkeeper.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "slotkeeper.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "slotkeeper.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "slotkeeper.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}
