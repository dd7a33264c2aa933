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
{{- $drain := dig "drain" "timeout" "25s" .Values.config -}}
{{- $workload := .Values.workload.terminationGracePeriodSeconds | int64 -}}
{{- if eq .Values.mode "wrapper" -}}
{{- $workload = max $workload (include "slotkeeper.seconds" .Values.killAfter) -}}
{{- end -}}
{{- add $workload (include "slotkeeper.seconds" $drain) (include "slotkeeper.hold" . | include "slotkeeper.seconds") 5 -}}
{{- end -}}

{{/*
How long a sidecar that sees nothing of the workload goes on holding once it is told to end. A kubelet whose grace is used up tells both
at once, and kills both 2 s later: what has not been given back by then is not, and what ends later has ended after the workload.
*/}}
{{- define "slotkeeper.hold" -}}
{{- $drain := default dict .Values.config.drain -}}
{{- $sees := or (ne .Values.mode "sidecar") .Values.processes.shared -}}
{{- default (ternary "0s" "5s" (or $sees (eq (default "at_once" $drain.release) "after_workload"))) $drain.hold -}}
{{- end -}}

{{/* The TTL that slotkeeper has where none is written. */}}
{{- define "slotkeeper.ttl" -}}
{{- dig "session" "ttl" "45s" .Values.config -}}
{{- end -}}

{{/*
The longest, in nanoseconds, that a wrapped command may have for stopping, by the arithmetic of `slotkeeper run`, which would refuse more
(fence::longest_kill_after): what is left of a lease after a holder's interval between renewals, an attempt that failed by time-out, the
wait for the next attempt, its answer, and half a second for the kernel. Takes the TTL in nanoseconds.
*/}}
{{- define "slotkeeper.longestKillAfter" -}}
{{- $every := min (div . 3) (max (div . 6) 7500000000) -}}
{{- $timeout := min (div . 6) 5000000000 -}}
{{- $retry := min (div . 30) 1000000000 -}}
{{- $lease := sub . (div . 10) -}}
{{- sub $lease (add $every $timeout $retry 300000000 500000000) -}}
{{- end -}}

{{/* The shortest TTL, in whole seconds, under which that is as much as is given, in nanoseconds, by halving: a longer TTL leaves more. */}}
{{- define "slotkeeper.shortestTtl" -}}
{{- $killAfter := int64 . -}}
{{- $low := 10 -}}
{{- $high := 86401 -}}
{{- range until 17 -}}
{{- $middle := div (add $low $high) 2 -}}
{{- if ge (include "slotkeeper.longestKillAfter" (mul 1000000000 $middle) | int64) $killAfter -}}
{{- $high = $middle -}}
{{- else -}}
{{- $low = min $high (add $middle 1) -}}
{{- end -}}
{{- end -}}
{{- $high -}}
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
latest, 0.73 of the TTL is left, or at least 0.56 of a TTL below 45 s. At most 0.5 are asked for, so that renewals may fail for a while.
*/}}
{{- define "slotkeeper.fenceLease" -}}
{{- $needs := include "slotkeeper.fenceSeconds" . | int64 -}}
{{- $grace := include "slotkeeper.terminationGracePeriodSeconds" . | int64 -}}
{{- $ttl := dig "session" "ttl" (include "slotkeeper.sidecarTtl" .) .Values.config -}}
{{- $milliseconds := include "slotkeeper.milliseconds" $ttl | int64 -}}
{{- if gt (mul $needs 5000) (mul $milliseconds 3) -}}
{{- fail (printf "fence: it needs up to %d s to end the workload, %d s of them the pod's grace; that may be three fifths of config.session.ttl (%s) at most. Write a TTL of at least %ds, or a shorter workload.terminationGracePeriodSeconds" $needs $grace $ttl (div (add (mul $needs 5) 2) 3)) -}}
{{- end -}}
{{- $left := max 0 (sub (mul $needs 1000) (div $milliseconds 10)) -}}
{{- if mod $left 1000 }}{{ $left }}ms{{ else }}{{ div $left 1000 }}s{{ end -}}
{{- end -}}
