{{/* The pod of this chart's own workload. */}}

{{- define "slotkeeper.podTemplate" -}}
metadata:
  labels: {{- merge (deepCopy .Values.workload.podLabels) (include "slotkeeper.podLabels" . | fromYaml) | toYaml | nindent 4 }}
  annotations: {{- include "slotkeeper.workloadAnnotations" . | nindent 4 }}
spec:
  {{- include "slotkeeper.podSpec" . | nindent 2 }}
{{- end -}}

{{/* An emptyDir stops the cluster autoscaler from removing a node; slotkeeper's hold no data worth keeping. */}}
{{- define "slotkeeper.podAnnotations" -}}
checksum/slotkeeper: {{ include "slotkeeper.config" . | sha256sum | quote }}
{{- with include "slotkeeper.emptyDirs" . }}
cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes: {{ . | quote }}
{{- end }}
{{- end -}}

{{/* slotkeeper's and the workload's annotations. The names of the workload's volumes are appended to slotkeeper's. */}}
{{- define "slotkeeper.workloadAnnotations" -}}
{{- $own := include "slotkeeper.podAnnotations" . | fromYaml -}}
{{- $given := deepCopy .Values.workload.podAnnotations -}}
{{- $volumes := "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes" -}}
{{- if and (hasKey $own $volumes) (hasKey $given $volumes) -}}
{{- $_ := set $given $volumes (printf "%s,%s" (get $own $volumes) (get $given $volumes)) -}}
{{- end -}}
{{- toYaml (merge $given $own) -}}
{{- end -}}

{{/* Whether the sidecar sees the processes of the other containers. */}}
{{- define "slotkeeper.shareProcessNamespace" -}}
{{- and (eq .Values.mode "sidecar") .Values.processes.shared -}}
{{- end -}}

{{/* restartPolicy Never: a container that was killed because its slot was lost must not restart without one. */}}
{{- define "slotkeeper.podSpec" -}}
{{- $pod := deepCopy .Values.workload.pod -}}
{{- $container := deepCopy .Values.workload.container -}}
{{- if not $container.image -}}
{{- /* Not in the values: there the user's image would get the example's command. */ -}}
{{- $container = merge $container (dict "image" "busybox:1.37" "command" (list "sh" "-c" "echo working; sleep 30; echo done")) -}}
{{- end -}}
{{- $container = include "slotkeeper.container" (dict "slotkeeper" . "container" $container) | fromYaml -}}
{{- $own := dict "restartPolicy" "Never" "serviceAccountName" (include "slotkeeper.serviceAccountName" .) -}}
{{- $_ := set $own "terminationGracePeriodSeconds" (include "slotkeeper.terminationGracePeriodSeconds" . | int64) -}}
{{- $initContainers := default list $pod.initContainers -}}
{{- if eq (include "slotkeeper.shareProcessNamespace" .) "true" -}}
{{- $_ := set $own "shareProcessNamespace" true -}}
{{- $context := . -}}
{{- range $initContainers -}}
{{- include "slotkeeper.seen" . -}}
{{- if and (include "slotkeeper.stops" $context) (ne (default "" .restartPolicy) "Always") -}}
{{- include "slotkeeper.refuseUser" (dict "slotkeeper" $context "container" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with concat (include "slotkeeper.initContainers" . | fromYamlArray) $initContainers -}}
{{- $_ := set $own "initContainers" . -}}
{{- end -}}
{{- $_ := set $own "containers" (list $container) -}}
{{- $_ := set $own "volumes" (concat (include "slotkeeper.volumes" . | fromYamlArray) (default list $pod.volumes)) -}}
{{- toYaml (merge $own $pod) -}}
{{- end -}}

{{/*
Init containers run on the slot too, and the same volume identifies them. A native sidecar among them is not part of the workload. Changes
the container that is passed.
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

{{/* A Job's template cannot be changed: a new template needs a new Job. */}}
{{- define "slotkeeper.workloadName" -}}
{{- if not .Values.workload.name -}}
{{- include "slotkeeper.fullname" . -}}
{{- else if contains .Values.workload.name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Values.workload.name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
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
Not failures of the workload: a pod that was disrupted or lost its slot, and a waiter that was killed by SIGKILL, by SIGTERM, or with its
node, which leaves 255 and no DisruptionTarget. A wrong configuration fails the Job at once, since a retry cannot succeed. Takes the same
dict as `slotkeeper.container`.
*/}}
{{- define "slotkeeper.podFailurePolicy" -}}
rules:
  - action: Ignore
    onPodConditions: [{type: DisruptionTarget, status: "True"}]
{{- if eq .slotkeeper.Values.mode "wrapper" }}
  - action: Ignore
    onExitCodes: {containerName: {{ .container.name | quote }}, operator: In, values: [80]}
  - action: FailJob
    onExitCodes: {containerName: {{ .container.name | quote }}, operator: In, values: [64, 78]}
{{- else if include "slotkeeper.hasWaiter" .slotkeeper }}
  - action: Ignore
    onExitCodes: {containerName: slotkeeper-wait, operator: In, values: [137, 143, 255]}
{{- end }}
{{- end -}}
