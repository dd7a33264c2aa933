{{/* The pod's volumes, and where each is mounted. */}}

{{/*
One volume for all files that slotkeeper reads. It has no subPath, so the kubelet keeps it current. Takes a dict: `slotkeeper` is this chart's
context, `configMap` the name of the configuration's ConfigMap.
*/}}
{{- define "slotkeeper.configVolume" -}}
- name: slotkeeper-config
  projected:
    defaultMode: 0444
    sources:
      - configMap:
          name: {{ .configMap | quote }}
          items: [{key: slotkeeper.yaml, path: slotkeeper.yaml}]
      {{- with .slotkeeper.Values.consul.token }}
      {{- if .secretName }}
      - secret:
          name: {{ .secretName | quote }}
          items: [{key: {{ .key | quote }}, path: token}]
      {{- end }}
      {{- end }}
      {{- with .slotkeeper.Values.consul.ca }}
      {{- if .configMapName }}
      - configMap:
          name: {{ .configMapName | quote }}
          items: [{key: {{ .key | quote }}, path: ca.pem}]
      {{- else if .secretName }}
      - secret:
          name: {{ .secretName | quote }}
          items: [{key: {{ .key | quote }}, path: ca.pem}]
      {{- end }}
      {{- end }}
      {{- with .slotkeeper.Values.consul.clientCertificate.secretName }}
      - secret:
          name: {{ . | quote }}
          items: [{key: tls.crt, path: client.pem}, {key: tls.key, path: client-key.pem}]
      {{- end }}
      {{- with .slotkeeper.Values.consul.login }}
      {{- if .authMethod }}
      - serviceAccountToken:
          path: serviceaccount-token
          expirationSeconds: {{ .expirationSeconds }}
          {{- with .audience }}
          audience: {{ . | quote }}
          {{- end }}
      {{- end }}
      {{- end }}
{{- end -}}

{{- define "slotkeeper.volumes" -}}
{{ include "slotkeeper.configVolume" (dict "slotkeeper" . "configMap" (include "slotkeeper.fullname" .)) }}
{{- if eq .Values.mode "wrapper" }}
- name: slotkeeper-bin
  {{- if eq .Values.wrapper.binary "image" }}
  image: {reference: {{ include "slotkeeper.image" . | quote }}, pullPolicy: {{ .Values.image.pullPolicy }}}
  {{- else }}
  emptyDir: {sizeLimit: 64Mi}
  {{- end }}
{{- end }}
{{- if include "slotkeeper.hasRunVolume" . }}
- name: slotkeeper-run
  emptyDir: {sizeLimit: 16Mi}
{{- end }}
{{- end -}}

{{/* Names of the volumes above that are emptyDirs. */}}
{{- define "slotkeeper.emptyDirs" -}}
{{- $names := list -}}
{{- range include "slotkeeper.volumes" . | fromYamlArray -}}
{{- if .emptyDir -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- end -}}
{{- join "," $names -}}
{{- end -}}

{{- define "slotkeeper.hasRunVolume" -}}
{{- if or (ne .Values.mode "wrapper") (include "slotkeeper.hasControl" .) -}}true{{- end -}}
{{- end -}}

{{/* Mounts of the agent's container. */}}
{{- define "slotkeeper.agentMounts" -}}
- {name: slotkeeper-config, mountPath: /etc/slotkeeper, readOnly: true}
{{- if include "slotkeeper.hasRunVolume" . }}
- {name: slotkeeper-run, mountPath: /run/slotkeeper}
{{- end }}
{{- end -}}
