{{/* What each container that runs slotkeeper finds in its environment. */}}

{{/*
An IPv6 address needs the brackets; slotkeeper takes them around an IPv4 one too. `wait` and `probe` find the agent by the
variable by which it listens. All names are our own: a wrapped workload may have a POD_IP for itself.
*/}}
{{- define "slotkeeper.environment" -}}
- name: SLOTKEEPER_POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: SLOTKEEPER_HTTP_LISTEN
  value: "[$(SLOTKEEPER_POD_IP)]:{{ .Values.port }}"
- name: SLOTKEEPER_TERMINATION_MESSAGE
  value: /dev/termination-log
{{- end -}}

{{/*
The same for the agent, which beside that has to know who it is and where its Consul is. Operators' commands that are run in its
container find the configuration there too, and by it Consul, as the agent does.
*/}}
{{- define "slotkeeper.agentEnvironment" -}}
{{ include "slotkeeper.environment" . }}
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
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}
