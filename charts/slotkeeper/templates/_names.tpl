{{/* Names, labels, image. Every template takes this chart's own context: `.`, or `.Subcharts.slotkeeper` in another. */}}

{{/* As a dependency under an alias, the chart is called as its alias: two of them in one chart have two names. */}}
{{- define "slotkeeper.name" -}}
{{- default (kebabcase .Chart.Name) .Values.nameOverride | trunc 52 | trimSuffix "-" -}}
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

{{/* Of the pods; the PodMonitor finds them by these. */}}
{{- define "slotkeeper.selectorLabels" -}}
app.kubernetes.io/name: {{ include "slotkeeper.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* Of our own workload and its pods, beside those. */}}
{{- define "slotkeeper.componentLabel" -}}
app.kubernetes.io/component: {{ default "workload" .Values.workload.name | quote }}
{{- end -}}

{{- define "slotkeeper.podLabels" -}}
{{ include "slotkeeper.selectorLabels" . }}
{{ include "slotkeeper.componentLabel" . }}
{{- end -}}

{{- define "slotkeeper.labels" -}}
{{ include "slotkeeper.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{- end -}}

{{- define "slotkeeper.image" -}}
{{- if not .Values.image.repository -}}
{{- fail "image.repository: no public registry has the image; build it (`scripts/image`), push it to where the nodes pull from, and name that here; or `slotkeeper`, where it was loaded into the nodes themselves" -}}
{{- end -}}
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
