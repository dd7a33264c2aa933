{{/* Our own containers, each an element of `initContainers`. */}}

{{/* Those that the mode needs, in their order. Whatever is to run on the slot, other init containers too, comes after. */}}
{{- define "slotkeeper.initContainers" -}}
{{- if eq .Values.mode "wrapper" -}}
{{- if eq .Values.wrapper.binary "init" -}}
{{ include "slotkeeper.install" . }}
{{- end -}}
{{- else -}}
{{ include "slotkeeper.sidecar" . }}
{{- if include "slotkeeper.hasWaiter" . }}
{{ include "slotkeeper.waiter" . }}
{{- end }}
{{- end -}}
{{- end -}}

{{- define "slotkeeper.ownContainer" -}}
image: {{ include "slotkeeper.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
terminationMessagePolicy: FallbackToLogsOnError
securityContext: {{- toYaml .Values.securityContext | nindent 2 }}
resources: {{- toYaml .Values.resources | nindent 2 }}
{{- end -}}

{{/* Copies the static binary to where the workload's container finds it. */}}
{{- define "slotkeeper.install" -}}
- name: slotkeeper-install
  {{- include "slotkeeper.ownContainer" . | nindent 2 }}
  args: [install, /opt/slotkeeper]
  volumeMounts:
    - {name: slotkeeper-bin, mountPath: /opt/slotkeeper}
{{- end -}}

{{/*
A native sidecar: it begins before all that comes after it, and is told to end when they have. There is no liveness probe on it:
where one fails, the sidecar gets SIGTERM and gives the slot back under a workload that goes on.
*/}}
{{- define "slotkeeper.sidecar" -}}
- name: slotkeeper
  restartPolicy: Always
  {{- include "slotkeeper.ownContainer" . | nindent 2 }}
  args: [agent]
  env: {{- include "slotkeeper.agentEnvironment" . | nindent 4 }}
  ports:
    - {name: slotkeeper, containerPort: {{ .Values.port }}}
  {{- if and (eq .Values.mode "sidecar") (eq .Values.gate "startupProbe") }}
  startupProbe:
    httpGet: {path: /startupz, port: slotkeeper}
    periodSeconds: 2
    failureThreshold: {{ if .Values.wait }}{{ max 1 (div (add (include "slotkeeper.seconds" .Values.wait | int64) 1) 2) }}{{ else }}2147483647{{ end }}
  {{- end }}
  readinessProbe:
    httpGet: {path: /readyz, port: slotkeeper}
    {{- /* Each answer that is no is an event of the pod's. The gate asks by itself, and more often. */}}
    initialDelaySeconds: 1
    periodSeconds: 10
  volumeMounts: {{- include "slotkeeper.agentMounts" . | nindent 4 }}
{{- end -}}

{{- define "slotkeeper.hasWaiter" -}}
{{- if or (eq .Values.mode "on_demand") (and (eq .Values.mode "sidecar") (eq .Values.gate "waiter")) -}}true{{- end -}}
{{- end -}}

{{/* Ends when every required slot is held. Where it fails, with restartPolicy Never, so does the pod. */}}
{{- define "slotkeeper.waiter" -}}
- name: slotkeeper-wait
  {{- include "slotkeeper.ownContainer" . | nindent 2 }}
  {{- if .Values.wait }}
  args: [wait, --timeout, {{ .Values.wait | quote }}]
  {{- else }}
  args: [wait]
  {{- end }}
  env: {{- include "slotkeeper.environment" . | nindent 4 }}
{{- end -}}
