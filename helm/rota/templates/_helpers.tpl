{{/* Names. */}}
{{- define "rota.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "rota.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- $name := include "rota.name" . }}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 50 | trimSuffix "-" }}
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
{{- end }}

{{- define "rota.podSpecCommon" -}}
{{- with (include "rota.imagePullSecrets" .) }}
imagePullSecrets: {{- . | nindent 2 }}
{{- end }}
automountServiceAccountToken: false
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
