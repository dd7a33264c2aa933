{{/*
The workload's own container, adapted to the mode. These templates take a dict: `slotkeeper` is this chart's context, `container` the
container without slotkeeper. They return the whole container.
*/}}

{{- define "slotkeeper.container" -}}
{{- include "slotkeeper.refuseReserved" . -}}
{{- if eq .slotkeeper.Values.mode "wrapper" -}}
{{ include "slotkeeper.wrapper" . }}
{{- else -}}
{{ include "slotkeeper.beside" . }}
{{- end -}}
{{- end -}}

{{/* Under `slotkeeper run`, as the container's first process. */}}
{{- define "slotkeeper.wrapper" -}}
{{- $ := .slotkeeper -}}
{{- $container := deepCopy .container -}}
{{- if not $container.command -}}
{{- fail (printf "the container %s needs its `command`: in the mode wrapper slotkeeper runs it, and the chart cannot read the image's entrypoint" $container.name) -}}
{{- end -}}
{{- $_ := set $container "args" (concat $container.command (default list $container.args)) -}}
{{- /* The command's share of the pod's grace; the rest is for the release of the slot. */ -}}
{{- $stopAfter := printf "%ds" (max (int64 $.Values.workload.terminationGracePeriodSeconds) (include "slotkeeper.seconds" $.Values.killAfter | int64)) -}}
{{- $_ := set $container "command" (list "/opt/slotkeeper/slotkeeper" "run" "--config" "/etc/slotkeeper/slotkeeper.yaml" "--kill-after" $.Values.killAfter "--stop-after" $stopAfter "--") -}}
{{- $given := list -}}
{{- range $container.env -}}
{{- $given = append $given .name -}}
{{- end -}}
{{- $env := list -}}
{{- range include "slotkeeper.agentEnvironment" $ | fromYamlArray -}}
{{- if and (eq .name "SLOTKEEPER_TERMINATION_MESSAGE") $container.terminationMessagePath -}}
{{- $_ := set . "value" $container.terminationMessagePath -}}
{{- end -}}
{{- if not (has .name $given) -}}
{{- $env = append $env . -}}
{{- end -}}
{{- end -}}
{{- /* The container's variables come first: a variable can refer to those before it. */ -}}
{{- $_ := set $container "env" (concat (default list $container.env) $env) -}}
{{- $_ := set $container "ports" (append (default list $container.ports) (dict "name" "slotkeeper" "containerPort" $.Values.port)) -}}
{{- $mounts := include "slotkeeper.agentMounts" $ | fromYamlArray -}}
{{- $mounts = append $mounts (dict "name" "slotkeeper-bin" "mountPath" "/opt/slotkeeper" "readOnly" true) -}}
{{- $_ := set $container "volumeMounts" (concat $mounts (default list $container.volumeMounts)) -}}
{{- /* Without it a slotkeeper that hangs would keep the pod forever; its guard has ended the command by then. The period is long, since a
   probe between slotkeeper's end and the container's end is an event of a failure. */ -}}
{{- $live := dict "httpGet" (dict "path" "/livez" "port" "slotkeeper") "initialDelaySeconds" 10 "periodSeconds" 20 "timeoutSeconds" 5 "failureThreshold" 3 -}}
{{- $ready := dict "httpGet" (dict "path" "/readyz" "port" "slotkeeper") "initialDelaySeconds" 1 "periodSeconds" 5 -}}
{{- /* Not merged: a probe merged with the container's own would have two handlers. */ -}}
{{- range $name, $value := dict "livenessProbe" $live "readinessProbe" $ready "terminationMessagePolicy" "FallbackToLogsOnError" -}}
{{- if not (hasKey $container $name) -}}
{{- $_ := set $container $name $value -}}
{{- end -}}
{{- end -}}
{{- toYaml $container -}}
{{- end -}}

{{/* Beside the sidecar: mounts the volume with its files and its socket, which also identifies its processes, and gets the fence. */}}
{{- define "slotkeeper.beside" -}}
{{- $ := .slotkeeper -}}
{{- $container := deepCopy .container -}}
{{- $mount := dict "name" "slotkeeper-run" "mountPath" "/run/slotkeeper" "readOnly" true -}}
{{- $_ := set $container "volumeMounts" (prepend (default list $container.volumeMounts) $mount) -}}
{{- if eq $.Values.mode "sidecar" -}}
{{- include "slotkeeper.refuseUnfenced" . -}}
{{- if and $.Values.fence.enabled (not $container.livenessProbe) -}}
{{- /* By number: a port's name is only known in its own container. */ -}}
{{- $fence := omit $.Values.fence "enabled" -}}
{{- $_ := set $fence "httpGet" (dict "path" (printf "/readyz?lease_left=%s" (include "slotkeeper.fenceLease" $)) "port" $.Values.port) -}}
{{- $_ := set $container "livenessProbe" $fence -}}
{{- end -}}
{{- end -}}
{{- toYaml $container -}}
{{- end -}}

{{/* Refuses a container of another user than the sidecar, which could not end it. */}}
{{- define "slotkeeper.refuseUser" -}}
{{- $ := .slotkeeper -}}
{{- $name := .container.name -}}
{{- $pod := ternary $.Values.workload.pod.securityContext dict $.Chart.IsRoot -}}
{{- $given := include "slotkeeper.userOf" (list $pod .container.securityContext) | fromYaml -}}
{{- if not $given.runAsUser -}}
{{- fail (printf "processes.stop: the sidecar has to run as the user of the container %s, and not as root; write the number of that user as its securityContext.runAsUser" $name) -}}
{{- end -}}
{{- $sidecar := include "slotkeeper.user" $ | fromYaml -}}
{{- if ne (int64 $given.runAsUser) (int64 $sidecar.runAsUser) -}}
{{- fail (printf "processes.stop: the container %s runs as %d and the sidecar as %d, which could not end it; write the same user as `securityContext.runAsUser` of the chart slotkeeper" $name (int64 $given.runAsUser) (int64 $sidecar.runAsUser)) -}}
{{- end -}}
{{- end -}}

{{/* Refuses settings with which a container would run without its slot. */}}
{{- define "slotkeeper.refuseUnfenced" -}}
{{- $ := .slotkeeper -}}
{{- $container := .container -}}
{{- $name := $container.name -}}
{{- if ne (default "Never" $container.restartPolicy) "Never" -}}
{{- fail (printf "the container %s has its own restartPolicy, by which the kubelet would restart it at once after it was ended for its lost slot; remove it, or use `mode: wrapper`" $name) -}}
{{- end -}}
{{- range $container.restartPolicyRules -}}
{{- if eq (default "" .action) "Restart" -}}
{{- fail (printf "the container %s has a rule in restartPolicyRules by which the kubelet would restart it without its slot; remove it, write the action RestartAllContainers, or use `mode: wrapper`" $name) -}}
{{- end -}}
{{- end -}}
{{- if include "slotkeeper.stops" $ -}}
{{- include "slotkeeper.refuseUser" . -}}
{{- else if $.Values.fence.enabled -}}
{{- $fix := "remove it, let the sidecar end the workload (`processes.stop`), or set `fence.enabled: false`" -}}
{{- if $container.livenessProbe -}}
{{- fail (printf "the container %s has a livenessProbe, which the fence needs; %s" $name $fix) -}}
{{- end -}}
{{- if $container.startupProbe -}}
{{- fail (printf "the container %s has a startupProbe, before whose success the kubelet runs no livenessProbe, which is the fence; %s" $name $fix) -}}
{{- end -}}
{{- if (default dict $container.lifecycle).postStart -}}
{{- fail (printf "the container %s has a postStart hook, during which the kubelet runs no livenessProbe, which is the fence; %s" $name $fix) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Refuses ports and mounts that are reserved for slotkeeper. */}}
{{- define "slotkeeper.refuseReserved" -}}
{{- $port := int .slotkeeper.Values.port -}}
{{- $name := .container.name -}}
{{- range .container.ports -}}
{{- if or (eq (default "" .name) "slotkeeper") (eq (int .containerPort) $port) -}}
{{- fail (printf "the container %s has a port slotkeeper or %d, which is reserved for slotkeeper; give it another name or number, or slotkeeper another `port`" $name $port) -}}
{{- end -}}
{{- end -}}
{{- range .container.volumeMounts -}}
{{- if has (trimSuffix "/" .mountPath) (list "/opt/slotkeeper" "/etc/slotkeeper" "/run/slotkeeper") -}}
{{- fail (printf "the container %s mounts a volume at %s, which is reserved for slotkeeper; mount it elsewhere" $name .mountPath) -}}
{{- end -}}
{{- end -}}
{{- end -}}
