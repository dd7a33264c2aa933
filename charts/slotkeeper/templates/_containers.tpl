{{/* slotkeeper's own containers, each an element of `initContainers`. */}}

{{/* The init containers of the mode, in their order. Containers that run on the slot, other init containers too, come after them. */}}
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
A sidecar that ends the workload needs the same user, or the kernel refuses its signals. In a parent chart the container is not known here:
the user comes from `securityContext`, and `slotkeeper.beside` compares.
*/}}
{{- define "slotkeeper.user" -}}
{{- if and (include "slotkeeper.stops" .) .Chart.IsRoot -}}
{{ include "slotkeeper.userOf" (list .Values.workload.pod.securityContext .Values.workload.container.securityContext) }}
{{- else -}}
{{ include "slotkeeper.userOf" (list .Values.securityContext) }}
{{- end -}}
{{- end -}}

{{/* User and group of security contexts; a later context overrides an earlier one. Not by `merge`, which treats 0 as unset. */}}
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

{{/* Copies the static binary into the volume of the workload's container. */}}
{{- define "slotkeeper.install" -}}
- name: slotkeeper-install
  {{- include "slotkeeper.ownContainer" . | nindent 2 }}
  args: [install, /opt/slotkeeper]
  volumeMounts:
    - {name: slotkeeper-bin, mountPath: /opt/slotkeeper}
{{- end -}}

{{/*
A native sidecar: it starts before all containers after it, and gets SIGTERM when they have ended, or at the end of the pod's grace. It has
no liveness probe: when one fails, the sidecar gets SIGTERM while its workload continues. It has no startup probe: a kubelet that
restarts treats it as passed.
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
    {{- /* Each failure is an event of the pod. The gate polls by itself, and more often. */}}
    initialDelaySeconds: 1
    periodSeconds: 10
  volumeMounts: {{- include "slotkeeper.agentMounts" . | nindent 4 }}
{{- end -}}

{{- define "slotkeeper.hasWaiter" -}}
{{- if ne .Values.mode "wrapper" -}}true{{- end -}}
{{- end -}}

{{/* Ends when every required slot is held. If it fails, the pod fails, by restartPolicy Never. */}}
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
