{{/* Our own containers, each an element of `initContainers`. */}}

{{/* Those that the mode needs, in their order. Whatever is to run on the slot, other init containers too, comes after. */}}
{{- define "slotkeeper.initContainers" -}}
{{- if eq .Values.mode "wrapper" -}}
{{- if eq .Values.wrapper.binary "init" -}}
{{ include "slotkeeper.install" . }}
{{- end -}}
{{- else -}}
{{ include "slotkeeper.sidecar" . }}
{{ include "slotkeeper.waiter" . }}
{{- end -}}
{{- end -}}

{{/*
Where the sidecar is to end the workload it runs as the same user, or it may not. In another chart, where the container is not known here,
that user is written as `securityContext`, and `slotkeeper.beside` compares.
*/}}
{{- define "slotkeeper.user" -}}
{{- if and (include "slotkeeper.stops" .) .Chart.IsRoot -}}
{{ include "slotkeeper.userOf" (list .Values.workload.pod.securityContext .Values.workload.container.securityContext) }}
{{- else -}}
{{ include "slotkeeper.userOf" (list .Values.securityContext) }}
{{- end -}}
{{- end -}}

{{/* User and group of security contexts, of which a later one's word goes before an earlier one's. Not by `merge`, to which 0 is nothing. */}}
{{- define "slotkeeper.userOf" -}}
{{- $user := dict -}}
{{- range $context := . -}}
{{- range $key := list "runAsUser" "runAsGroup" -}}
{{- with $context -}}
{{- if and (hasKey . $key) (not (kindIs "invalid" (get . $key))) -}}
{{- $_ := set $user $key (int64 (get . $key)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $user -}}
{{- end -}}

{{- define "slotkeeper.stops" -}}
{{- if and (eq .Values.mode "sidecar") .Values.processes.shared .Values.processes.stop -}}true{{- end -}}
{{- end -}}

{{- define "slotkeeper.ownContainer" -}}
image: {{ include "slotkeeper.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
terminationMessagePolicy: FallbackToLogsOnError
securityContext: {{- merge (include "slotkeeper.user" . | fromYaml) .Values.securityContext | toYaml | nindent 2 }}
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
A native sidecar: it begins before all that comes after it, and is told to end when they have, or when the pod's grace is used up. There is
no liveness probe on it: where one fails, the sidecar gets SIGTERM although its workload goes on; and no startup probe, which a kubelet that
restarts takes for passed.
*/}}
{{- define "slotkeeper.sidecar" -}}
- name: slotkeeper
  restartPolicy: Always
  {{- include "slotkeeper.ownContainer" . | nindent 2 }}
  args: [agent]
  env: {{- include "slotkeeper.agentEnvironment" . | nindent 4 }}
  ports:
    - {name: slotkeeper, containerPort: {{ .Values.port }}}
  readinessProbe:
    httpGet: {path: /readyz, port: slotkeeper}
    {{- /* Each answer that is no is an event of the pod's. The gate asks by itself, and more often. */}}
    initialDelaySeconds: 1
    periodSeconds: 10
  volumeMounts: {{- include "slotkeeper.agentMounts" . | nindent 4 }}
{{- end -}}

{{- define "slotkeeper.hasWaiter" -}}
{{- if ne .Values.mode "wrapper" -}}true{{- end -}}
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
