{{/* Names. */}}
{{- define "rota.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* 43, because a CronJob's name may have 52, and ours end with -pipeline. Releases may have dots, and services may not. */}}
{{- define "rota.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | replace "." "-" | trunc 43 | trimSuffix "-" }}
{{- else }}
{{- $name := include "rota.name" . }}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | replace "." "-" | trunc 43 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "rota.serviceAccountName" -}}
{{- ternary (default (include "rota.fullname" .) .Values.serviceAccount.name) (default "default" .Values.serviceAccount.name) .Values.serviceAccount.create }}
{{- end }}

{{/* Labels: `component` tells servers, migrations and the pipeline apart. */}}
{{- define "rota.selectorLabels" -}}
app.kubernetes.io/name: {{ include "rota.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "rota.serverLabels" -}}
{{ include "rota.selectorLabels" . }}
app.kubernetes.io/component: server
{{- end }}

{{- define "rota.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "rota.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Labels of pods: neither the chart's version nor the release's, so that a patch of the chart replaces no pod. */}}
{{- define "rota.podLabels" -}}
{{ include "rota.selectorLabels" . }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The image. */}}
{{- define "rota.image" -}}
{{- $image := .Values.image.repository }}
{{- with .Values.global.imageRegistry }}{{- $image = printf "%s/%s" . $image }}{{- end }}
{{- if .Values.image.digest }}
{{- printf "%s@%s" $image .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" $image (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{- define "rota.imagePullSecrets" -}}
{{- $names := concat (default (list) .Values.global.imagePullSecrets) .Values.imagePullSecrets }}
{{- range $names }}
- name: {{ if kindIs "map" . }}{{ .name }}{{ else }}{{ . }}{{ end }}
{{- end }}
{{- end }}

{{/* Which secrets hold what: existing ones, or the release's own. */}}
{{- define "rota.secretName" -}}
{{ include "rota.fullname" . }}-secrets
{{- end }}

{{- define "rota.storeEnv" -}}
- name: ROTA_STORE
  valueFrom:
    secretKeyRef:
      name: {{ default (include "rota.secretName" .) .Values.store.existingSecret }}
      key: {{ ternary .Values.store.existingSecretKey "store-url" (ne .Values.store.existingSecret "") }}
{{- end }}

{{/* A container that runs one command of `rota`, with the store and nothing else. */}}
{{- define "rota.commandContainer" -}}
name: {{ .name }}
image: {{ include "rota.image" .root }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
args: {{ toJson .args }}
env:
  {{- include "rota.storeEnv" .root | nindent 2 }}
securityContext: {{- toYaml .root.Values.securityContext | nindent 2 }}
resources: {{- toYaml .root.Values.resources | nindent 2 }}
{{- with .root.Values.extraVolumeMounts }}
volumeMounts: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The secret with the certificate that servers show each other; empty without one. */}}
{{- define "rota.peerTls" -}}
{{- with .Values.peer.tls }}
{{- .existingSecret | default (ternary (printf "%s-peer-tls" (include "rota.fullname" $)) "" .certManager) }}
{{- end }}
{{- end }}

{{/* What the servers have as files, each in a folder of its own below /etc/rota: a list, for volumes and for mounts. */}}
{{- define "rota.files" -}}
{{- with .Values }}
{{- if or .peer.secret .peer.existingSecret }}
- name: peer-secret
  secret:
    secretName: {{ default (include "rota.secretName" $) .peer.existingSecret }}
    defaultMode: 0440
    items:
      - {key: {{ ternary .peer.existingSecretKey "peer-secret" (ne .peer.existingSecret "") }}, path: secret}
{{- end }}
{{- with include "rota.peerTls" $ }}
- name: peer-tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- if or .access.rules .access.existingConfigMap }}
- name: access
  configMap:
    name: {{ default (printf "%s-access" (include "rota.fullname" $)) .access.existingConfigMap }}
    items:
      - {key: {{ ternary .access.existingConfigMapKey "access.toml" (ne .access.existingConfigMap "") }}, path: access.toml}
{{- end }}
{{- with .access.tokens }}
{{- if .existingSecret }}
- name: tokens
  secret:
    secretName: {{ .existingSecret }}
    defaultMode: 0440
    items:
      - {key: {{ .existingSecretKey }}, path: tokens.json}
{{- end }}
{{- end }}
{{- with .tls.existingSecret }}
- name: tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with .fencing }}
{{- if .existingSecret }}
- name: fencing
  secret: {secretName: {{ .existingSecret }}, defaultMode: 0440}
{{- end }}
{{- end }}
{{- with .tls.clientCa }}
{{- if .existingSecret }}
- name: client-ca
  secret:
    secretName: {{ .existingSecret }}
    items:
      - {key: {{ .existingSecretKey }}, path: ca.crt}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* And what tells the servers where those are. */}}
{{- define "rota.accessEnv" -}}
{{- $name := include "rota.fullname" . }}
{{- $namespace := .Release.Namespace }}
{{- with .Values }}
{{- if or .peer.secret .peer.existingSecret }}
- {name: ROTA_PEER_SECRET_FILE, value: /etc/rota/peer-secret/secret}
{{- end }}
{{- if include "rota.peerTls" $ }}
- {name: ROTA_PEER_TLS_CERT_FILE, value: /etc/rota/peer-tls/tls.crt}
- {name: ROTA_PEER_TLS_KEY_FILE, value: /etc/rota/peer-tls/tls.key}
- {name: ROTA_PEER_TLS_CA_FILE, value: /etc/rota/peer-tls/ca.crt}
{{- end }}
{{- if .access.allowAnonymous }}
- {name: ROTA_ALLOW_ANONYMOUS, value: "true"}
- {name: ROTA_ALLOW_HOST, value: "{{ $name }}.{{ $namespace }},{{ $name }}-headless.{{ $namespace }}"}
{{- end }}
{{- if or .access.rules .access.existingConfigMap }}
- {name: ROTA_ACCESS_FILE, value: /etc/rota/access/access.toml}
{{- end }}
{{- if .access.tokens.existingSecret }}
- {name: ROTA_ACCESS_TOKENS_FILE, value: /etc/rota/tokens/tokens.json}
{{- end }}
{{- if .tls.existingSecret }}
- {name: ROTA_TLS_CERT_FILE, value: /etc/rota/tls/tls.crt}
- {name: ROTA_TLS_KEY_FILE, value: /etc/rota/tls/tls.key}
{{- end }}
{{- with .fencing }}
{{- if .existingSecret }}
{{- $keys := list }}
{{- range .keys }}{{- $keys = append $keys (printf "/etc/rota/fencing/%s" .) }}{{- end }}
- {name: ROTA_FENCE_KEYS, value: {{ join "," $keys | quote }}}
- {name: ROTA_FENCE_TOKEN_TTL_MS, value: {{ .tokenTtlMs | int | quote }}}
{{- end }}
{{- end }}
{{- if .tls.clientCa.existingSecret }}
- {name: ROTA_TLS_CLIENT_CA_FILE, value: /etc/rota/client-ca/ca.crt}
- {name: ROTA_TLS_CLIENT_OPTIONAL, value: {{ .tls.clientCa.optional | quote }}}
{{- end }}
{{- end }}
{{- end }}

{{/* Whether Helm's test has anything to show that lets it in: empty if not. */}}
{{- define "rota.testable" -}}
{{- with .Values }}
{{- if and .tests.enabled (or .access.allowAnonymous .tests.token.existingSecret .tests.certificateExistingSecret) }}yes{{ end }}
{{- end }}
{{- end }}

{{- define "rota.scheme" -}}
{{ ternary "https" "http" (ne .Values.tls.existingSecret "") }}
{{- end }}

{{/* Whether clients must show certificates: empty if not. */}}
{{- define "rota.strict" -}}
{{- with .Values.tls.clientCa }}{{ if and .existingSecret (not .optional) }}yes{{ end }}{{ end }}
{{- end }}

{{/* Whether probes have a port of their own: empty if not. */}}
{{- define "rota.ownProbes" -}}
{{- if or (eq .Values.server.probes "own") (and (eq .Values.server.probes "auto") (include "rota.strict" .)) }}yes{{ end }}
{{- end }}

{{/* What a kubelet asks a server. It shows no certificate: where it has to, it can see no more than an open port. */}}
{{- define "rota.probe" -}}
{{- with .root.Values.tls }}
{{- if include "rota.ownProbes" $.root -}}
httpGet: {path: {{ $.path }}, port: probes}
{{- else if include "rota.strict" $.root -}}
tcpSocket: {port: http}
{{- else -}}
httpGet: {path: {{ $.path }}, port: http{{ if .existingSecret }}, scheme: HTTPS{{ end }}}
{{- end }}
{{- end }}
{{- end }}

{{- define "rota.podSpecCommon" -}}
{{- with (include "rota.imagePullSecrets" .) }}
imagePullSecrets: {{- . | trim | nindent 2 }}
{{- end }}
# A service named rota would otherwise put ROTA_… variables into every pod.
enableServiceLinks: false
securityContext: {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
