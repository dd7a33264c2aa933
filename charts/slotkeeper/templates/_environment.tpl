{{/* The environment of each container that runs slotkeeper. */}}

{{/*
All addresses of both families, since probes use the pod's address and `kubectl port-forward` its loopback; if IPv6 is off,
slotkeeper treats `[::]` as 0.0.0.0. On the node's network the agent listens only at the node's address. `wait` and `probe` find the agent by
the same variable. All names begin with SLOTKEEPER: a wrapped workload may have its own POD_IP.
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
The same for the agent, with its identity and the address of Consul. Operators' commands in its container find the configuration, and so
Consul, by the same variables.
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
The chart's variables and `extraEnv`, which takes precedence. A variable can refer to those before it: `extraEnv` can refer to the fields of
the pod, and the other variables of the chart can refer to `extraEnv`.
*/}}
{{- define "slotkeeper.withExtraEnv" -}}
{{- $given := list -}}
{{- range .extra -}}
{{- $given = append $given .name -}}
{{- end -}}
{{- $fields := list -}}
{{- $derived := list -}}
{{- range .own -}}
{{- if has .name $given -}}
{{- else if .valueFrom -}}
{{- $fields = append $fields . -}}
{{- else -}}
{{- $derived = append $derived . -}}
{{- end -}}
{{- end -}}
{{- toYaml (concat $fields .extra $derived) -}}
{{- end -}}
