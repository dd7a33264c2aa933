{{/* Durations, and values computed from them. */}}

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
The pod's grace: the workload's own, then the drain's, and some seconds for the kubelet between the two. A native sidecar gets SIGTERM
when the workload has ended; `slotkeeper run` releases the slot then.
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
How long a sidecar that cannot see the workload holds after SIGTERM. A kubelet whose grace is used up sends SIGTERM to both at once and
kills both 2 s later: a slot that is not released by then stays held, and a release after that comes after the workload's end.
*/}}
{{- define "slotkeeper.hold" -}}
{{- $drain := default dict .Values.config.drain -}}
{{- $sees := or (ne .Values.mode "sidecar") .Values.processes.shared -}}
{{- default (ternary "0s" "5s" (or $sees (eq (default "at_once" $drain.release) "after_workload"))) $drain.hold -}}
{{- end -}}

{{/* slotkeeper's TTL, or its default. */}}
{{- define "slotkeeper.ttl" -}}
{{- dig "session" "ttl" "45s" .Values.config -}}
{{- end -}}

{{/*
The maximum time, in milliseconds, that a workload may have to stop under a TTL, which `slotkeeper run` refuses to exceed. The chart's
`files/timing.yaml` has it in pieces, made by slotkeeper's own arithmetic. Takes a dict: the pieces, the TTL in milliseconds.
*/}}
{{- define "slotkeeper.longestKillAfter" -}}
{{- $longest := 0 -}}
{{- range .pieces -}}
{{- if ge $.ttl (int64 .from) -}}
{{- $longest = sub (div (mul $.ttl .slope) 30) .less -}}
{{- end -}}
{{- end -}}
{{- $longest -}}
{{- end -}}

{{/* The inverse: the shortest TTL, in whole seconds, that leaves this time. Takes a dict: the pieces, the time in milliseconds. */}}
{{- define "slotkeeper.shortestTtl" -}}
{{- $shortest := 0 -}}
{{- range .pieces -}}
{{- $ttl := div (add (mul 30 (add $.time .less)) .slope -1) .slope -}}
{{- $shortest = ternary $ttl $shortest (ge $ttl (int64 .from)) -}}
{{- end -}}
{{- div (add $shortest 999) 1000 -}}
{{- end -}}

{{/* The default TTL of the mode sidecar: the fence with the default grace fits into it. */}}
{{- define "slotkeeper.sidecarTtl" -}}2m{{- end -}}

{{/*
The maximum time, in seconds, from the agent's negative answer to the end of the workload. A probe that was answered just before may have
begun a time-out, or a period, earlier; `failureThreshold` probes follow, and the last may take all its time-out. Then the kubelet ends the
pod, since restartPolicy Never leaves nothing to restart: so the pod's grace counts, and a grace of the probe's own would not.
*/}}
{{- define "slotkeeper.fenceSeconds" -}}
{{- $fence := .Values.fence -}}
{{- $probes := mul $fence.failureThreshold (max $fence.periodSeconds $fence.timeoutSeconds) -}}
{{- add $probes $fence.timeoutSeconds (include "slotkeeper.terminationGracePeriodSeconds" . | int64) -}}
{{- end -}}

{{/*
The rest of the lease below which the fence acts. The session ends at the earliest a tenth of the TTL after the lease; the workload
must be dead by then. A lease that is renewed as usual must not come near this value: when a renewal is due at the
latest, 0.73 of the TTL is left, or at least 0.56 of a TTL below 45 s. The value is at most 0.5, so that renewals may fail for a while.
*/}}
{{- define "slotkeeper.fenceLease" -}}
{{- $needs := include "slotkeeper.fenceSeconds" . | int64 -}}
{{- $grace := include "slotkeeper.terminationGracePeriodSeconds" . | int64 -}}
{{- $ttl := dig "session" "ttl" (include "slotkeeper.sidecarTtl" .) .Values.config -}}
{{- $milliseconds := include "slotkeeper.milliseconds" $ttl | int64 -}}
{{- if gt (mul $needs 5000) (mul $milliseconds 3) -}}
{{- fail (printf "fence: it needs up to %d s to end the workload, %d s of them the pod's grace; the maximum is three fifths of config.session.ttl (%s). Write a TTL of at least %ds, or a shorter workload.terminationGracePeriodSeconds" $needs $grace $ttl (div (add (mul $needs 5) 2) 3)) -}}
{{- end -}}
{{- $left := max 0 (sub (mul $needs 1000) (div $milliseconds 10)) -}}
{{- if mod $left 1000 }}{{ $left }}ms{{ else }}{{ div $left 1000 }}s{{ end -}}
{{- end -}}
