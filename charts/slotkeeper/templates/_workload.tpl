{{/*
The workload's own container, as the mode needs it. These take a dict: `slotkeeper` is this chart's context, `container` the
container as it would be without us; they give the whole container.
*/}}

{{- define "slotkeeper.container" -}}
{{- include "slotkeeper.refuseOurs" . -}}
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
{{- fail (printf "the container %s needs its `command`: in the mode wrapper slotkeeper runs it, and what the image would run is not known here" $container.name) -}}
{{- end -}}
{{- $_ := set $container "args" (concat $container.command (default list $container.args)) -}}
{{- /* Its own time, of the pod's grace: what is left of that is for giving the slot back. */ -}}
{{- $stopAfter := printf "%ds" (max (int64 $.Values.workload.terminationGracePeriodSeconds) (include "slotkeeper.seconds" $.Values.killAfter | int64)) -}}
{{- $_ := set $container "command" (list "/opt/slotkeeper/slotkeeper" "run" "--config" "/etc/slotkeeper/slotkeeper.yaml" "--kill-after" $.Values.killAfter "--stop-after" $stopAfter "--") -}}
{{- $theirs := list -}}
{{- range $container.env -}}
{{- $theirs = append $theirs .name -}}
{{- end -}}
{{- $env := list -}}
{{- range include "slotkeeper.agentEnvironment" $ | fromYamlArray -}}
{{- if and (eq .name "SLOTKEEPER_TERMINATION_MESSAGE") $container.terminationMessagePath -}}
{{- $_ := set . "value" $container.terminationMessagePath -}}
{{- end -}}
{{- if not (has .name $theirs) -}}
{{- $env = append $env . -}}
{{- end -}}
{{- end -}}
{{- /* Theirs first: a variable can name those before it, and ours may name one of theirs. */ -}}
{{- $_ := set $container "env" (concat (default list $container.env) $env) -}}
{{- $_ := set $container "ports" (append (default list $container.ports) (dict "name" "slotkeeper" "containerPort" $.Values.port)) -}}
{{- $mounts := include "slotkeeper.agentMounts" $ | fromYamlArray -}}
{{- $mounts = append $mounts (dict "name" "slotkeeper-bin" "mountPath" "/opt/slotkeeper" "readOnly" true) -}}
{{- $_ := set $container "volumeMounts" (concat $mounts (default list $container.volumeMounts)) -}}
{{- /* One that stands still would keep the pod for ever; its guard has ended the command by then. Asked seldom, since each that comes
   between slotkeeper's end and the container's is an event of a failure. */ -}}
{{- $live := dict "httpGet" (dict "path" "/livez" "port" "slotkeeper") "initialDelaySeconds" 10 "periodSeconds" 20 "timeoutSeconds" 5 "failureThreshold" 3 -}}
{{- $ready := dict "httpGet" (dict "path" "/readyz" "port" "slotkeeper") "initialDelaySeconds" 1 "periodSeconds" 5 -}}
{{- /* Whole or not at all: merged with one of theirs, a probe would have two handlers. */ -}}
{{- range $name, $value := dict "livenessProbe" $live "readinessProbe" $ready "terminationMessagePolicy" "FallbackToLogsOnError" -}}
{{- if not (hasKey $container $name) -}}
{{- $_ := set $container $name $value -}}
{{- end -}}
{{- end -}}
{{- toYaml $container -}}
{{- end -}}

{{/* Beside the sidecar: sees its files and its socket, is seen by the volume that it has mounted, and is killed by the fence. */}}
{{- define "slotkeeper.beside" -}}
{{- $ := .slotkeeper -}}
{{- $container := deepCopy .container -}}
{{- $mount := dict "name" "slotkeeper-run" "mountPath" "/run/slotkeeper" "readOnly" true -}}
{{- $_ := set $container "volumeMounts" (prepend (default list $container.volumeMounts) $mount) -}}
{{- if eq $.Values.mode "sidecar" -}}
{{- include "slotkeeper.refuseUnfenced" . -}}
{{- if and $.Values.fence.enabled (not $container.livenessProbe) -}}
{{- /* By number: a port's name is known in its own container only. */ -}}
{{- $fence := omit $.Values.fence "enabled" -}}
{{- $_ := set $fence "httpGet" (dict "path" (printf "/readyz?lease_left=%s" (include "slotkeeper.fenceLease" $)) "port" $.Values.port) -}}
{{- $_ := set $container "livenessProbe" $fence -}}
{{- end -}}
{{- end -}}
{{- toYaml $container -}}
{{- end -}}

{{/* A container of another user than the sidecar, which is to end it. */}}
{{- define "slotkeeper.refuseUser" -}}
{{- $ := .slotkeeper -}}
{{- $name := .container.name -}}
{{- $pod := ternary $.Values.workload.pod.securityContext dict $.Chart.IsRoot -}}
{{- $theirs := include "slotkeeper.userOf" (list $pod .container.securityContext) | fromYaml -}}
{{- if not $theirs.runAsUser -}}
{{- fail (printf "processes.stop: the sidecar has to run as the user of the container %s, and not as root; write that user's number as its securityContext.runAsUser" $name) -}}
{{- end -}}
{{- $ours := include "slotkeeper.user" $ | fromYaml -}}
{{- if ne (int64 $theirs.runAsUser) (int64 $ours.runAsUser) -}}
{{- fail (printf "processes.stop: the container %s runs as %d and the sidecar as %d, which could not end it; write the same user as `securityContext.runAsUser` of the chart slotkeeper" $name (int64 $theirs.runAsUser) (int64 $ours.runAsUser)) -}}
{{- end -}}
{{- end -}}

{{/* With what a container would run without its slot. */}}
{{- define "slotkeeper.refuseUnfenced" -}}
{{- $ := .slotkeeper -}}
{{- $container := .container -}}
{{- $name := $container.name -}}
{{- if ne (default "Never" $container.restartPolicy) "Never" -}}
{{- fail (printf "the container %s has a restartPolicy of its own, by which the kubelet would start it again at once where it was ended for its lost slot; remove it, or take `mode: wrapper`" $name) -}}
{{- end -}}
{{- range $container.restartPolicyRules -}}
{{- if eq (default "" .action) "Restart" -}}
{{- fail (printf "the container %s has a rule in restartPolicyRules by which the kubelet would start it again without its slot; remove it, write the action RestartAllContainers, or take `mode: wrapper`" $name) -}}
{{- end -}}
{{- end -}}
{{- if include "slotkeeper.stops" $ -}}
{{- include "slotkeeper.refuseUser" . -}}
{{- else if $.Values.fence.enabled -}}
{{- $mend := "remove it, let the sidecar end the workload (`processes.stop`), or set `fence.enabled: false`" -}}
{{- if $container.livenessProbe -}}
{{- fail (printf "the container %s has a livenessProbe, where the fence has its place; %s" $name $mend) -}}
{{- end -}}
{{- if $container.startupProbe -}}
{{- fail (printf "the container %s has a startupProbe, before whose success the kubelet asks no livenessProbe, which is the fence; %s" $name $mend) -}}
{{- end -}}
{{- if (default dict $container.lifecycle).postStart -}}
{{- fail (printf "the container %s has a postStart hook, during which the kubelet asks no livenessProbe, which is the fence; %s" $name $mend) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What the container must leave to us. */}}
{{- define "slotkeeper.refuseOurs" -}}
{{- $port := int .slotkeeper.Values.port -}}
{{- $name := .container.name -}}
{{- range .container.ports -}}
{{- if or (eq (default "" .name) "slotkeeper") (eq (int .containerPort) $port) -}}
{{- fail (printf "the container %s has a port slotkeeper or %d, which is slotkeeper's own; give it another name or number, or slotkeeper another `port`" $name $port) -}}
{{- end -}}
{{- end -}}
{{- range .container.volumeMounts -}}
{{- if has (trimSuffix "/" .mountPath) (list "/opt/slotkeeper" "/etc/slotkeeper" "/run/slotkeeper") -}}
{{- fail (printf "the container %s mounts a volume at %s, which is slotkeeper's own; mount it elsewhere" $name .mountPath) -}}
{{- end -}}
{{- end -}}
{{- end -}}
