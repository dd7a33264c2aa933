{{/* Names, labels, image. Every template takes this chart's own context: `.`, or `.Subcharts.slotkeeper` in a parent chart. */}}

{{/* As a dependency with an alias, the chart is named after the alias, so that two of them in one chart differ. */}}
{{- define "slotkeeper.name" -}}
{{- default (kebabcase .Chart.Name) .Values.nameOverride | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{/* A CronJob's name has at most 52 characters. */}}
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

{{/* Labels of the pods, by which the PodMonitor selects them. */}}
{{- define "slotkeeper.selectorLabels" -}}
app.kubernetes.io/name: {{ include "slotkeeper.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* A further label of this chart's workload and its pods. */}}
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
{{- fail "image.repository: no public registry has the image; build it (`scripts/image`), push it to the registry of the nodes, and set its name here; or `slotkeeper`, if it was loaded into the nodes" -}}
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
