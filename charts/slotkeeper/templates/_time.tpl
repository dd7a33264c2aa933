{{/* Durations and what follows from them. */}}

{{/* A duration such as 1m30s in milliseconds. */}}
{{- define "slotkeeper.milliseconds" -}}
{{- $unit := dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000 "d" 86400000 -}}
{{- $total := 0 -}}
{{- range regexFindAll "[0-9]+(ms|s|m|h|d)" . -1 -}}
{{- $total = add $total (mul (regexFind "[0-9]+" . | atoi) (get $unit (regexFind "[a-z]+" .))) -}}
{{- end -}}
{{- $total -}}
{{- end -}}

{{/* The same in whole seconds, rounded up. */}}
{{- define "slotkeeper.seconds" -}}
{{- div (add (include "slotkeeper.milliseconds" . | int64) 999) 1000 -}}
{{- end -}}

{{/*
The pod's grace: the workload's own, then the drain's, and some seconds for the kubelet between the two. A native sidecar is
told to end when the workload has; `slotkeeper run` gives the slot back when it has.
*/}}
{{- define "slotkeeper.terminationGracePeriodSeconds" -}}
{{- $drain := dig "drain" "timeout" "10s" .Values.config -}}
{{- $workload := .Values.workload.terminationGracePeriodSeconds | int64 -}}
{{- if eq .Values.mode "wrapper" -}}
{{- $workload = max $workload (include "slotkeeper.seconds" .Values.killAfter) -}}
{{- end -}}
{{- add $workload (include "slotkeeper.seconds" $drain) 5 -}}
{{- end -}}

{{/* Between the end of the lease, by which the agent is not ready any more, and the earliest end of the session lies a tenth of its TTL. */}}
{{- define "slotkeeper.fenceIsInTime" -}}
{{- $fence := .Values.fence -}}
{{- $needs := add (mul $fence.periodSeconds $fence.failureThreshold) $fence.timeoutSeconds $fence.terminationGracePeriodSeconds -}}
{{- $ttl := dig "session" "ttl" "60s" .Values.config -}}
{{- if gt (mul $needs 10000) (include "slotkeeper.milliseconds" $ttl | int64) -}}
{{- fail (printf "fence: it needs up to %d s to end the workload (periodSeconds × failureThreshold + timeoutSeconds + terminationGracePeriodSeconds), which must be within a tenth of config.session.ttl (%s); write a TTL of at least %ds, or shorter times" $needs $ttl (mul $needs 10)) -}}
{{- end -}}
{{- end -}}
