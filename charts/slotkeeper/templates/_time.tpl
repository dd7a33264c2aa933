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

{{/*
The longest, in nanoseconds, that a wrapped command may have for stopping, by the arithmetic of `slotkeeper run`, which would refuse more
(fence::longest_kill_after): what is left of a lease after a late renewal that failed by time-out, and a second that did not.
*/}}
{{- define "slotkeeper.longestKillAfter" -}}
{{- $ttl := mul 1000000 (dig "session" "ttl" "30s" .Values.config | include "slotkeeper.milliseconds" | int64) -}}
{{- $lease := sub $ttl (div $ttl 10) -}}
{{- $every := div $ttl 3 -}}
{{- $timeout := min (div $ttl 6) 5000000000 -}}
{{- sub $lease (add $every (div $every 10) $timeout (div $timeout 3) 500000000) -}}
{{- end -}}

{{/* The shortest TTL, in seconds, under which that is as much as `killAfter`: its inverse, of which the time-out makes two pieces. */}}
{{- define "slotkeeper.shortestTtl" -}}
{{- $killAfter := include "slotkeeper.milliseconds" .Values.killAfter | int64 -}}
{{- $short := div (add (mul (add $killAfter 500) 45) 13999) 14000 -}}
{{- $long := div (add (mul (add (mul $killAfter 6) 43000) 15) 47999) 48000 -}}
{{- max 10 (min $short $long) -}}
{{- end -}}

{{/* The TTL in the mode sidecar, unless the configuration says otherwise: the fence with the default grace fits into it. */}}
{{- define "slotkeeper.sidecarTtl" -}}2m{{- end -}}

{{/*
The longest, in seconds, from when the agent says no to when the workload is dead. A probe that was answered just before may have
begun as long ago as it lasts, or as its period; as many as `failureThreshold` follow, and the last may take all its time-out. Then the kubelet ends the pod, since with restartPolicy Never there is nothing to
start again: so the pod's grace counts, and one of the probe's own would not.
*/}}
{{- define "slotkeeper.fenceSeconds" -}}
{{- $fence := .Values.fence -}}
{{- $probes := mul $fence.failureThreshold (max $fence.periodSeconds $fence.timeoutSeconds) -}}
{{- add $probes $fence.timeoutSeconds (include "slotkeeper.terminationGracePeriodSeconds" . | int64) -}}
{{- end -}}

{{/*
What must be left of the lease, or the fence acts. From the lease's end to the session's earliest end it is a tenth of the TTL;
the workload has to be dead by then. And a lease that is renewed as usual must not come near: when a renewal is due at the
latest, 0.53 of the TTL is left. At most 0.4 are asked for, so that renewals may fail for a while.
*/}}
{{- define "slotkeeper.fenceLease" -}}
{{- $needs := include "slotkeeper.fenceSeconds" . | int64 -}}
{{- $grace := include "slotkeeper.terminationGracePeriodSeconds" . | int64 -}}
{{- $ttl := dig "session" "ttl" (include "slotkeeper.sidecarTtl" .) .Values.config -}}
{{- $milliseconds := include "slotkeeper.milliseconds" $ttl | int64 -}}
{{- if gt (mul $needs 2000) $milliseconds -}}
{{- fail (printf "fence: it needs up to %d s to end the workload, %d s of them the pod's grace; that may be half of config.session.ttl (%s) at most. Write a TTL of at least %ds, or a shorter workload.terminationGracePeriodSeconds" $needs $grace $ttl (mul $needs 2)) -}}
{{- end -}}
{{- $left := max 0 (sub (mul $needs 1000) (div $milliseconds 10)) -}}
{{- if mod $left 1000 }}{{ $left }}ms{{ else }}{{ div $left 1000 }}s{{ end -}}
{{- end -}}
