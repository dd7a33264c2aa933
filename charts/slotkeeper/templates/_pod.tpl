{{/* The pod of this chart's own workload. */}}

{{- define "slotkeeper.podTemplate" -}}
metadata:
  labels:
    {{- include "slotkeeper.selectorLabels" . | nindent 4 }}
    app.kubernetes.io/component: workload
    {{- with .Values.workload.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    {{- include "slotkeeper.podAnnotations" . | nindent 4 }}
    {{- with .Values.workload.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- include "slotkeeper.podSpec" . | nindent 2 }}
{{- end -}}

{{- define "slotkeeper.podAnnotations" -}}
checksum/slotkeeper: {{ include "slotkeeper.config" . | sha256sum | quote }}
{{- end -}}

{{/* Whether the sidecar is to see the processes of the other containers. */}}
{{- define "slotkeeper.shareProcessNamespace" -}}
{{- and (eq .Values.mode "sidecar") .Values.processes.shared -}}
{{- end -}}

{{/* Never: a container that was killed for its lost slot must not begin again without one. */}}
{{- define "slotkeeper.podSpec" -}}
{{- $pod := deepCopy .Values.workload.pod -}}
{{- $container := deepCopy .Values.workload.container -}}
{{- if not $container.image -}}
{{- /* Not among the values, where an image of one's own would get the example's command. */ -}}
{{- $container = merge $container (dict "image" "busybox:1.37" "command" (list "sh" "-c" "echo working; sleep 30; echo done")) -}}
{{- end -}}
{{- $container = include "slotkeeper.container" (dict "slotkeeper" . "container" $container) | fromYaml -}}
{{- $own := dict "restartPolicy" "Never" "serviceAccountName" (include "slotkeeper.serviceAccountName" .) -}}
{{- $_ := set $own "terminationGracePeriodSeconds" (include "slotkeeper.terminationGracePeriodSeconds" . | int64) -}}
{{- $initContainers := default list $pod.initContainers -}}
{{- if eq (include "slotkeeper.shareProcessNamespace" .) "true" -}}
{{- $_ := set $own "shareProcessNamespace" true -}}
{{- range $initContainers -}}
{{- include "slotkeeper.seen" . -}}
{{- end -}}
{{- end -}}
{{- $_ := set $own "initContainers" (concat (include "slotkeeper.initContainers" . | fromYamlArray) $initContainers) -}}
{{- $_ := set $own "containers" (list $container) -}}
{{- $_ := set $own "volumes" (concat (include "slotkeeper.volumes" . | fromYamlArray) (default list $pod.volumes)) -}}
{{- toYaml (merge $own $pod) -}}
{{- end -}}

{{/*
Init containers run on the slot too, and are seen by the same volume. A native sidecar among them is not the workload. Changes the
container that it takes.
*/}}
{{- define "slotkeeper.seen" -}}
{{- $mounts := default list .volumeMounts -}}
{{- $there := false -}}
{{- range $mounts -}}
{{- $there = or $there (eq .name "slotkeeper-run") -}}
{{- end -}}
{{- if not (or $there (eq (default "" .restartPolicy) "Always")) -}}
{{- $_ := set . "volumeMounts" (prepend $mounts (dict "name" "slotkeeper-run" "mountPath" "/run/slotkeeper" "readOnly" true)) -}}
{{- end -}}
{{- end -}}

{{/* A Job's template cannot be changed: another one is another Job. */}}
{{- define "slotkeeper.workloadName" -}}
{{- include "slotkeeper.fullname" . -}}
{{- if eq .Values.workload.kind "Job" -}}
{{- printf "-%s" (include "slotkeeper.jobSpec" . | sha256sum | trunc 8) -}}
{{- end -}}
{{- end -}}

{{- define "slotkeeper.jobSpec" -}}
{{- $given := dict "slotkeeper" . "container" .Values.workload.container -}}
{{- $own := dict "podFailurePolicy" (include "slotkeeper.podFailurePolicy" $given | fromYaml) -}}
{{- toYaml (mergeOverwrite $own (deepCopy .Values.workload.job)) }}
template:
  {{- include "slotkeeper.podTemplate" . | nindent 2 }}
{{- end -}}

{{/*
A pod that was disrupted, or that lost its slot, is no failure of the workload; a configuration that is wrong stays so. Takes the
same dict as `slotkeeper.container`.
*/}}
{{- define "slotkeeper.podFailurePolicy" -}}
rules:
  - action: Ignore
    onPodConditions: [{type: DisruptionTarget, status: "True"}]
{{- if eq .slotkeeper.Values.mode "wrapper" }}
  - action: Ignore
    onExitCodes: {containerName: {{ .container.name | quote }}, operator: In, values: [80]}
  - action: FailJob
    onExitCodes: {containerName: {{ .container.name | quote }}, operator: In, values: [78]}
{{- end }}
{{- end -}}
