{{/* slotkeeper.yaml: the values that this chart derives, overridden by `config`. */}}

{{- define "slotkeeper.config" -}}
{{- include "slotkeeper.refuse" . -}}
{{- $consul := dict -}}
{{- if not .Values.consul.nodeAgent.enabled -}}
{{- $_ := set $consul "address" .Values.consul.address -}}
{{- end -}}
{{- if .Values.consul.token.secretName -}}
{{- $_ := set $consul "token_file" "/etc/slotkeeper/token" -}}
{{- end -}}
{{- $tls := dict -}}
{{- if or .Values.consul.ca.configMapName .Values.consul.ca.secretName -}}
{{- $_ := set $tls "ca_file" "/etc/slotkeeper/ca.pem" -}}
{{- end -}}
{{- if .Values.consul.clientCertificate.secretName -}}
{{- $_ := set $tls "cert_file" "/etc/slotkeeper/client.pem" -}}
{{- $_ := set $tls "key_file" "/etc/slotkeeper/client-key.pem" -}}
{{- end -}}
{{- if $tls -}}
{{- $_ := set $consul "tls" $tls -}}
{{- end -}}
{{- with .Values.consul.login -}}
{{- if .authMethod -}}
{{- $_ := set $consul "login" (dict "auth_method" .authMethod "bearer_token_file" "/etc/slotkeeper/serviceaccount-token" "meta" .meta) -}}
{{- end -}}
{{- end -}}
{{- $own := dict "consul" $consul -}}
{{- if ne .Values.mode "wrapper" -}}
{{- $_ := set $own "readiness" (dict "file" "/run/slotkeeper/ready") -}}
{{- end -}}
{{- if eq .Values.mode "sidecar" -}}
{{- $_ := set $own "session" (dict "ttl" (include "slotkeeper.sidecarTtl" .) "state_file" "/run/slotkeeper/session.json") -}}
{{- if .Values.processes.shared -}}
{{- $workload := dict "volume" "/run/slotkeeper" -}}
{{- if .Values.processes.stop -}}
{{- $_ := set $workload "stop" true -}}
{{- $_ := set $workload "kill_after" (printf "%ds" (int64 .Values.workload.terminationGracePeriodSeconds)) -}}
{{- end -}}
{{- $_ := set $own "workload" $workload -}}
{{- else if ne (include "slotkeeper.hold" .) "0s" -}}
{{- $_ := set $own "drain" (dict "hold" (include "slotkeeper.hold" .)) -}}
{{- end -}}
{{- end -}}
{{- if include "slotkeeper.hasControl" . -}}
{{- $_ := set $own "control" (dict "listen" "unix:/run/slotkeeper/control.sock") -}}
{{- end -}}
{{- if not (include "slotkeeper.namesSlots" .) -}}
{{- if not (include "slotkeeper.runsExample" .) -}}
{{- fail "config: write semaphores or locks, of which the pods hold slots; without them nothing limits the pods" -}}
{{- end -}}
{{- $_ := set $own "semaphores" (list (dict "name" "example" "prefix" "service/example" "limit" 1)) -}}
{{- end -}}
{{- $config := mustMergeOverwrite $own (deepCopy .Values.config) -}}
{{- range concat (default list $config.semaphores) (default list $config.locks) -}}
{{- if and (eq $.Values.mode "on_demand") (not .mode) -}}
{{- $_ := set . "mode" "on_demand" -}}
{{- else if and (eq $.Values.mode "wrapper") $.Values.wait (ne (default "hold" .mode) "on_demand") (ne .required false) (not .wait) -}}
{{- $_ := set . "wait" $.Values.wait -}}
{{- end -}}
{{- end -}}
{{- include "slotkeeper.refuseConfig" $config -}}
{{- toYaml $config -}}
{{- end -}}

{{/* The same Consul and session, with the semaphore of `helm test`: one slot, and a wait of at most a minute. */}}
{{- define "slotkeeper.testConfig" -}}
{{- $config := include "slotkeeper.config" . | fromYaml -}}
{{- $own := pick $config "consul" "log" -}}
{{- with omit (default dict $config.session) "state_file" -}}
{{- $_ := set $own "session" . -}}
{{- end -}}
{{- $prefix := default (printf "%s-test" (include "slotkeeper.firstKey" . | trimSuffix "/")) .Values.test.prefix -}}
{{- range concat (default list $config.semaphores) (default list $config.locks) -}}
{{- $key := default .key .prefix | trimAll "/" -}}
{{- if or (eq $key $prefix) (hasPrefix (printf "%s/" $key) $prefix) (hasPrefix (printf "%s/" $prefix) $key) -}}
{{- fail (printf "test.prefix: `%s` overlaps with %s, at `%s`; write a prefix beside it" $prefix .name $key) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $own "semaphores" (list (dict "name" "test" "prefix" $prefix "limit" 1 "wait" "1m")) -}}
{{- toYaml $own -}}
{{- end -}}

{{/* The ports of Consul: of each address, or the default of its scheme. A unix socket has none. */}}
{{- define "slotkeeper.consulPorts" -}}
{{- $ports := list -}}
{{- if .Values.consul.nodeAgent.enabled -}}
{{- $ports = list (int .Values.consul.nodeAgent.port) -}}
{{- else -}}
{{- $address := (include "slotkeeper.config" . | fromYaml).consul.address -}}
{{- range ternary (splitList "," (toString $address)) $address (kindIs "string" $address) -}}
{{- $one := trim . -}}
{{- if not (hasPrefix "unix:" $one) -}}
{{- $authority := regexReplaceAll "^https?://" $one "" | splitList "/" | first -}}
{{- $written := regexFind ":[0-9]+$" $authority | trimPrefix ":" -}}
{{- $ports = append $ports (int (default (ternary "443" "80" (hasPrefix "https://" $one)) $written)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- uniq $ports | toYaml -}}
{{- end -}}

{{/* Refuses what slotkeeper itself would refuse, by the rules of src/config/sections. Takes the configuration. */}}
{{- define "slotkeeper.refuseConfig" -}}
{{- if hasKey .consul "address" -}}
{{- if not .consul.address -}}
{{- fail "consul.address: empty; write http://host:port, https://host:port or unix:///path" -}}
{{- end -}}
{{- $addresses := ternary (splitList "," (toString .consul.address)) .consul.address (kindIs "string" .consul.address) -}}
{{- if gt (len $addresses) 16 -}}
{{- fail (printf "consul.address: has %d addresses; at most 16 can be used" (len $addresses)) -}}
{{- end -}}
{{- range $address := $addresses -}}
{{- $one := ternary (trim $address) $address (and (kindIs "string" $.consul.address) (gt (len $addresses) 1)) -}}
{{- if not (regexMatch "^((https?://)?(\\[[0-9A-Fa-f:.]+\\]|[^][:/@?#,\\s]+)(:[0-9]{1,5})?(/[A-Za-z0-9/._~%-]*)?|unix:///[^,]*[^/,])$" $one) -}}
{{- fail "consul.address: not an address; write http://host:port, https://host:port or unix:///path, without a user, a query or a fragment" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $field, $bounds := dict "session.ttl" (list "10s" "24h") "session.lock_delay" (list "0s" "60s") "consul.max_wait" (list "2s" "10m") -}}
{{- $path := splitList "." $field -}}
{{- with get (default dict (get $ (first $path))) (last $path) -}}
{{- $milliseconds := include "slotkeeper.milliseconds" . | int64 -}}
{{- if or (lt $milliseconds (include "slotkeeper.milliseconds" (first $bounds) | int64)) (gt $milliseconds (include "slotkeeper.milliseconds" (last $bounds) | int64)) -}}
{{- fail (printf "config.%s: %s is out of bounds; write %s to %s" $field . (first $bounds) (last $bounds)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- include "slotkeeper.refuseEntries" . -}}
{{- end -}}

{{/* Refuses names and keys that conflict with each other. Takes the configuration. */}}
{{- define "slotkeeper.refuseEntries" -}}
{{- $names := dict -}}
{{- $keys := dict -}}
{{- $prefixes := dict -}}
{{- range $list := list "semaphores" "locks" -}}
{{- range $index, $entry := default list (get $ $list) -}}
{{- $at := printf "config.%s[%d]" $list $index -}}
{{- $variable := $entry.name | upper | replace "-" "_" | replace "." "_" -}}
{{- if hasKey $names $variable -}}
{{- fail (printf "%s.name: `%s` is the name of %s, or differs from it only in dashes and dots; write another name" $at $entry.name (get $names $variable)) -}}
{{- end -}}
{{- $_ := set $names $variable $at -}}
{{- $field := ternary "prefix" "key" (eq $list "semaphores") -}}
{{- $written := get $entry $field -}}
{{- $key := trimAll "/" $written -}}
{{- if hasPrefix "/" $written -}}
{{- fail (printf "%s.%s: `%s` begins with a slash; remove it" $at $field $written) -}}
{{- end -}}
{{- if regexMatch "(^|/)[.]{0,2}(/|$)" $key -}}
{{- fail (printf "%s.%s: `%s` has an empty, `.` or `..` segment; write a plain path" $at $field $written) -}}
{{- end -}}
{{- if and (eq $field "prefix") (eq (base $key) ".lock") -}}
{{- fail (printf "%s.prefix: `%s` ends in `.lock`, the key that a semaphore has below its prefix; write only the prefix" $at $written) -}}
{{- end -}}
{{- if hasKey $keys $key -}}
{{- fail (printf "%s.%s: `%s` is already used by %s; write another" $at $field $written (get $keys $key)) -}}
{{- end -}}
{{- $_ := set $keys $key $at -}}
{{- if eq $field "prefix" -}}
{{- $_ := set $prefixes $key $at -}}
{{- end -}}
{{- if and (eq $field "prefix") (gt (default 1 $entry.slots | int64) (int64 $entry.limit)) -}}
{{- fail (printf "%s.slots: %d is more than the limit, %d; write at most that" $at (int64 $entry.slots) (int64 $entry.limit)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $key, $at := $keys -}}
{{- $above := "" -}}
{{- range $segment := initial (splitList "/" $key) -}}
{{- $above = ternary (printf "%s/%s" $above $segment) $segment (ne $above "") -}}
{{- if hasKey $prefixes $above -}}
{{- fail (printf "%s: `%s` lies below `%s`, the prefix of %s, and would count as its contender; write a path beside it" $at $key $above (get $prefixes $above)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The prefix of the first semaphore, or without one the key of the first lock. */}}
{{- define "slotkeeper.firstKey" -}}
{{- $config := include "slotkeeper.config" . | fromYaml -}}
{{- $entry := first (concat (default list $config.semaphores) (default list $config.locks)) -}}
{{- default $entry.key $entry.prefix -}}
{{- end -}}

{{- define "slotkeeper.namesSlots" -}}
{{- if or .Values.config.semaphores .Values.config.locks -}}true{{- end -}}
{{- end -}}

{{/* Whether a configuration is needed: monitoring alone needs none. */}}
{{- define "slotkeeper.hasConfig" -}}
{{- if or .Values.workload.enabled (include "slotkeeper.namesSlots" .) -}}true{{- end -}}
{{- end -}}

{{/* Whether the example runs: the user has set no workload, so its slots need no configuration. */}}
{{- define "slotkeeper.runsExample" -}}
{{- if and .Chart.IsRoot .Values.workload.enabled (not .Values.workload.container.image) -}}true{{- end -}}
{{- end -}}

{{- define "slotkeeper.hasControl" -}}
{{- if or .Values.control.enabled (eq .Values.mode "on_demand") -}}true{{- end -}}
{{- end -}}

{{/*
Refuses a time to stop that does not fit into the lease. Takes a dict: the root, the field, what stops, the time, the TTL. A TTL
below the minimum is refused elsewhere, and no TTL is named above the maximum.
*/}}
{{- define "slotkeeper.refuseKillAfter" -}}
{{- $pieces := .root.Files.Get "files/timing.yaml" | fromYamlArray -}}
{{- $time := include "slotkeeper.milliseconds" .time | int64 -}}
{{- $ttl := include "slotkeeper.milliseconds" .ttl | int64 -}}
{{- $longest := include "slotkeeper.longestKillAfter" (dict "pieces" $pieces "ttl" $ttl) | int64 -}}
{{- if and (gt $time $longest) (ge $ttl (int64 (first $pieces).from)) -}}
{{- $shortest := include "slotkeeper.shortestTtl" (dict "pieces" $pieces "time" $time) | int64 -}}
{{- $or := ternary (printf ", or config.session.ttl of at least %ds" $shortest) "" (le $shortest 86400) -}}
{{- fail (printf "%s: with a TTL of %s, %s cannot have %s to stop and be certain to end before the slot is lost; write at most %dms%s" .field .ttl .what .time $longest $or) -}}
{{- end -}}
{{- end -}}

{{/* Refuses values with which the sidecar could not see, or end, the workload. */}}
{{- define "slotkeeper.refuseProcesses" -}}
{{- $drain := default dict .Values.config.drain -}}
{{- $pod := .Values.workload.pod -}}
{{- if .Values.processes.shared -}}
{{- if or (eq (default "at_once" $drain.release) "after_workload") (gt (include "slotkeeper.milliseconds" (default "0s" $drain.hold) | int64) 0) -}}
{{- fail "config.drain: with `processes.shared` the sidecar detects the end of the workload; remove `release: after_workload` and `hold`, or write `processes.shared: false`" -}}
{{- end -}}
{{- if $pod.hostPID -}}
{{- fail "workload.pod.hostPID: cannot be combined with a process namespace of the pod; remove it, or write `processes.shared: false`" -}}
{{- end -}}
{{- if .Values.processes.stop -}}
{{- include "slotkeeper.refuseKillAfter" (dict "root" . "field" "workload.terminationGracePeriodSeconds" "what" "the workload" "time" (printf "%ds" (int64 .Values.workload.terminationGracePeriodSeconds)) "ttl" (dig "session" "ttl" (include "slotkeeper.sidecarTtl" .) .Values.config)) -}}
{{- end -}}
{{- else if .Values.processes.stop -}}
{{- fail "processes.stop: the sidecar can only end processes that it sees; write `processes.shared: true`" -}}
{{- end -}}
{{- if and (hasKey $pod "shareProcessNamespace") (ne $pod.shareProcessNamespace .Values.processes.shared) -}}
{{- fail "workload.pod.shareProcessNamespace: `processes.shared` sets it; remove it" -}}
{{- end -}}
{{- end -}}

{{/* Refuses values that would have no effect, or another effect than they say. */}}
{{- define "slotkeeper.refuse" -}}
{{- $config := .Values.config -}}
{{- if hasKey $config "http" -}}
{{- fail "config.http: the endpoints listen at the pod's addresses, for the probes; write the port as `port`" -}}
{{- end -}}
{{- if hasKey (default dict $config.readiness) "file" -}}
{{- fail "config.readiness.file: the chart sets /run/slotkeeper/ready, in the volume slotkeeper-run; remove it" -}}
{{- end -}}
{{- if hasKey (default dict $config.session) "state_file" -}}
{{- fail "config.session.state_file: the mode sidecar sets /run/slotkeeper/session.json, and the other modes cannot use one; remove it" -}}
{{- end -}}
{{- if hasKey (default dict $config.control) "listen" -}}
{{- fail "config.control.listen: the chart sets unix:/run/slotkeeper/control.sock; write `control.enabled: true`" -}}
{{- end -}}
{{- if hasKey $config "workload" -}}
{{- fail "config.workload: the chart sets it, and mounts the volume slotkeeper-run at /run/slotkeeper; write `processes` (mode sidecar)" -}}
{{- end -}}
{{- if hasKey .Values "gate" -}}
{{- fail "gate: the init container slotkeeper-wait is the only gate; remove it. A startupProbe of the sidecar does not delay the workload reliably: a kubelet that restarts treats the sidecar as started, and every waiting workload starts without a slot" -}}
{{- end -}}
{{- if eq .Values.mode "sidecar" -}}
{{- include "slotkeeper.refuseProcesses" . -}}
{{- end -}}
{{- if eq .Values.mode "wrapper" -}}
{{- if and (eq .Values.wrapper.binary "image") (semverCompare "<1.35-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "wrapper.binary: Kubernetes %s has no image volumes, which are enabled by default from 1.35; write `init`, with which an init container copies the binary" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- include "slotkeeper.refuseKillAfter" (dict "root" . "field" "killAfter" "what" "the command" "time" .Values.killAfter "ttl" (include "slotkeeper.ttl" .)) -}}
{{- else -}}
{{- if and .Values.wait (lt (include "slotkeeper.milliseconds" .Values.wait | int64) 5000) -}}
{{- fail (printf "wait: within %s the sidecar may not have started; write at least 5s, or `mode: wrapper`, where 0s tries once" .Values.wait) -}}
{{- end -}}
{{- range concat (default list $config.semaphores) (default list $config.locks) -}}
{{- if and (ne (default "hold" .mode) "on_demand") (ne .required false) -}}
{{- if and .wait (ne .wait "forever") -}}
{{- fail (printf "config: `wait` of %s would end the sidecar, which the kubelet restarts forever; write the chart's own `wait`, after which the pod fails" .name) -}}
{{- end -}}
{{- if eq (default "reacquire" .on_lost) "exit" -}}
{{- fail (printf "config: `on_lost: exit` of %s would end the sidecar, which the kubelet restarts; remove it: the fence acts on a lost slot" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .Values.workload -}}
{{- if hasKey .pod "terminationGracePeriodSeconds" -}}
{{- fail "workload.pod.terminationGracePeriodSeconds: the chart computes it, and the fence depends on it; write the time that the workload itself needs as `workload.terminationGracePeriodSeconds`" -}}
{{- end -}}
{{- range $label := list "app.kubernetes.io/name" "app.kubernetes.io/instance" -}}
{{- if hasKey $.Values.workload.podLabels $label -}}
{{- fail (printf "workload.podLabels: the PodMonitor and the NetworkPolicy select the pods by %s; remove it, and name the workload by `workload.name`, or all objects of this chart by `nameOverride`" $label) -}}
{{- end -}}
{{- end -}}
{{- if hasKey .pod "serviceAccountName" -}}
{{- fail (printf "workload.pod.serviceAccountName: the chart sets it; write `serviceAccount.name: %s`, with `serviceAccount.create: false` if that account exists already" (toString .pod.serviceAccountName)) -}}
{{- end -}}
{{- if and .enabled (not .container.image) (or .container.command .container.args) -}}
{{- fail "workload.container.image: missing, so the example's image would run your command; write the image of your command" -}}
{{- end -}}
{{- if and (eq .kind "CronJob") (not .cronJob.schedule) -}}
{{- fail "workload.cronJob.schedule: a CronJob needs one, such as \"0 3 * * *\"" -}}
{{- end -}}
{{- if and (eq .kind "Job") (omit .cronJob "concurrencyPolicy") -}}
{{- fail (printf "workload.cronJob.%s: has no effect on a Job, which runs once; write `workload.kind: CronJob` too" (omit .cronJob "concurrencyPolicy" | keys | sortAlpha | first)) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.consul.token.secretName .Values.consul.login.authMethod -}}
{{- fail "consul: token and login exclude each other; remove one" -}}
{{- end -}}
{{- if and .Values.consul.ca.configMapName .Values.consul.ca.secretName -}}
{{- fail "consul.ca: configMapName and secretName exclude each other; remove one" -}}
{{- end -}}
{{- end -}}
