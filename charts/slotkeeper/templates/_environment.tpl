{{/* What each container that runs slotkeeper finds in its environment. */}}

{{/*
All addresses of both families, since probes ask at the pod's address and `kubectl port-forward` at its loopback; where IPv6 is off,
slotkeeper takes `[::]` for 0.0.0.0. On the node's own network it is the node's address alone. `wait` and `probe` find the agent by the
variable by which it listens. All names are our own: a wrapped workload may have a POD_IP for itself.
*/}}
{{- define "slotkeeper.ownEnvironment" -}}
{{- if .Values.workload.pod.hostNetwork }}
- name: SLOTKEEPER_POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: SLOTKEEPER_HTTP_LISTEN
  value: "[$(SLOTKEEPER_POD_IP)]:{{ .Values.port }}"
{{- else }}
- name: SLOTKEEPER_HTTP_LISTEN
  value: "[::]:{{ .Values.port }}"
{{- end }}
- name: SLOTKEEPER_TERMINATION_MESSAGE
  value: /dev/termination-log
{{- end -}}

{{/*
The same for the agent, which beside that has to know who it is and where its Consul is. Operators' commands that are run in its
container find the configuration there too, and by it Consul, as the agent does.
*/}}
{{- define "slotkeeper.ownAgentEnvironment" -}}
{{ include "slotkeeper.ownEnvironment" . }}
- name: SLOTKEEPER_CONFIG
  value: /etc/slotkeeper/slotkeeper.yaml
- name: SLOTKEEPER_POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: SLOTKEEPER_POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: SLOTKEEPER_NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
{{- if .Values.consul.login.authMethod }}
- name: SLOTKEEPER_CONSUL_LOGIN_META
  value: pod=$(SLOTKEEPER_POD_NAMESPACE)/$(SLOTKEEPER_POD_NAME)
{{- end }}
{{- with .Values.consul.nodeAgent }}
{{- if .enabled }}
- name: SLOTKEEPER_HOST_IP
  valueFrom: {fieldRef: {fieldPath: status.hostIP}}
- name: CONSUL_HTTP_ADDR
  value: "{{ .scheme }}://[$(SLOTKEEPER_HOST_IP)]:{{ .port }}"
{{- end }}
{{- end }}
{{- end -}}

{{- define "slotkeeper.environment" -}}
{{- include "slotkeeper.withExtraEnv" (dict "extra" .Values.extraEnv "own" (include "slotkeeper.ownEnvironment" . | fromYamlArray)) -}}
{{- end -}}

{{- define "slotkeeper.agentEnvironment" -}}
{{- include "slotkeeper.withExtraEnv" (dict "extra" .Values.extraEnv "own" (include "slotkeeper.ownAgentEnvironment" . | fromYamlArray)) -}}
{{- end -}}

{{/*
Ours and `extraEnv`, which wins. A variable can name those before it: theirs can name what ours take from the pod, and ours can name
theirs.
*/}}
{{- define "slotkeeper.withExtraEnv" -}}
{{- $theirs := list -}}
{{- range .extra -}}
{{- $theirs = append $theirs .name -}}
{{- end -}}
{{- $facts := list -}}
{{- $made := list -}}
{{- range .own -}}
{{- if has .name $theirs -}}
{{- else if .valueFrom -}}
{{- $facts = append $facts . -}}
{{- else -}}
{{- $made = append $made . -}}
{{- end -}}
{{- end -}}
{{- toYaml (concat $facts .extra $made) -}}
{{- end -}}
