{{/*
rota.sidecar: one item of a pod's initContainers. It starts before the program and gets SIGTERM after the program has
ended, so that work stops before the member leaves.

  spec:
    initContainers:
      {{- include "rota.sidecar" $sidecar | nindent 6 }}
    containers:
      - name: billing
        env: {{- include "rota.sidecar.env" $sidecar | nindent 10 }}
        volumeMounts: {{- include "rota.sidecar.volumeMounts" $sidecar | nindent 10 }}
    volumes: {{- include "rota.sidecar.volumes" $sidecar | nindent 6 }}

$sidecar is a dictionary such as `merge (dict "context" $) .Values.sidecar`. Keys, all but `context`, `image`, `url` and one of `lead` and `work` optional:

  namespace          whose groups
  lead               be a candidate in this election; or
  work, topics       be a worker of this group, for partitions of these topics; instead of them
  topicRegex         for those of all topics whose whole name this expression of RE2 matches
  topicsExcept       less these, audit-* for several
  topicsDebounceMs   let changes of topics collect for so long before the group is assigned anew
  strategy           how partitions are dealt
  sessionTimeoutMs   silence after which others take over
  progressTimeoutMs  give up without POST /progress for so long
  revokeTimeoutMs    how long hooks may take to stop work in order
  audience           show Rota a token of the pod's service account, made out to this audience
  ca                 a config map with ca.crt, which signs Rota's certificates
  certificate        a secret with tls.crt and tls.key, to show to a Rota that asks for certificates
  file               keep the status in /var/run/rota/<file>, for the program to read
  webhook            POST every change there
  podLabel           keep this label of the pod at the state; needs rota.sidecar.rbac
  waits              whether the program starts only once the sidecar has reached Rota (default true)
  ready              whether the pod is unready while the sidecar is; otherwise Rota's absence is the program's to handle
  extraArgs, env, resources, securityContext, imagePullPolicy
*/}}
{{- define "rota.sidecar" -}}
{{- $context := required "rota.sidecar: pass context ($)" .context }}
{{- if not (semverCompare ">=1.29.0-0" $context.Capabilities.KubeVersion.Version) }}
{{- fail "rota.sidecar: native sidecars need Kubernetes 1.29" }}
{{- end }}
{{- if eq (not .lead) (not .work) }}
{{- fail "rota.sidecar: set one of lead and work" }}
{{- end }}
{{- if ne (not .work) (not (or .topics .topicRegex)) }}
{{- fail "rota.sidecar: work and topics belong together" }}
{{- end }}
{{- if and .topics .topicRegex }}
{{- fail "rota.sidecar: set one of topics and topicRegex" }}
{{- end }}
{{- if and .topicsExcept (not .topicRegex) }}
{{- fail "rota.sidecar: topicsExcept requires topicRegex" }}
{{- end }}
- name: rota-sidecar
  image: {{ required "rota.sidecar: pass image" .image }}
  {{- with .imagePullPolicy }}
  imagePullPolicy: {{ . }}
  {{- end }}
  restartPolicy: Always
  args:
    - sidecar
    - {{ printf "--url=%v" (required "rota.sidecar: pass url" .url) | quote }}
    {{- with .namespace }}
    - {{ printf "--namespace=%v" . | quote }}
    {{- end }}
    {{- with .lead }}
    - {{ printf "--lead=%v" . | quote }}
    {{- end }}
    {{- with .work }}
    - {{ printf "--work=%v" . | quote }}
    {{- end }}
    {{- range .topics }}
    - {{ printf "--topic=%v" . | quote }}
    {{- end }}
    {{- with .topicRegex }}
    - {{ printf "--topic-regex=%v" . | quote }}
    {{- end }}
    {{- range .topicsExcept }}
    - {{ printf "--except=%v" . | quote }}
    {{- end }}
    {{- with .topicsDebounceMs }}
    - --topics-debounce-ms={{ int . }}
    {{- end }}
    {{- with .strategy }}
    - {{ printf "--strategy=%v" . | quote }}
    {{- end }}
    {{- with .sessionTimeoutMs }}
    - --session-timeout-ms={{ int . }}
    {{- end }}
    {{- with .progressTimeoutMs }}
    - --progress-timeout-ms={{ int . }}
    {{- end }}
    {{- with .revokeTimeoutMs }}
    - --revoke-timeout-ms={{ int . }}
    {{- end }}
    {{- with .file }}
    - {{ printf "--file=/var/run/rota/%v" . | quote }}
    {{- end }}
    {{- with .webhook }}
    - {{ printf "--webhook=%v" . | quote }}
    {{- end }}
    {{- with .podLabel }}
    - {{ printf "--pod-label=%v" . | quote }}
    {{- end }}
    {{- with .extraArgs }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  env:
    # Its static id: a restarted container gets its own share again.
    - name: POD_NAME
      valueFrom: {fieldRef: {fieldPath: metadata.name}}
    - name: POD_NAMESPACE
      valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
    {{- if .audience }}
    - {name: ROTA_TOKEN_FILE, value: /var/run/secrets/rota/token/token}
    {{- end }}
    {{- if .ca }}
    - {name: ROTA_CA_FILE, value: /var/run/secrets/rota/ca/ca.crt}
    {{- end }}
    {{- if .certificate }}
    - {name: ROTA_CERT_FILE, value: /var/run/secrets/rota/certificate/tls.crt}
    - {name: ROTA_KEY_FILE, value: /var/run/secrets/rota/certificate/tls.key}
    {{- end }}
    {{- with .env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  ports:
    # The program asks on loopback, port 4040; only the kubelet comes from outside.
    - {name: rota-probes, containerPort: 4041}
  {{- if ne (toString .waits) "false" }}
  startupProbe:
    httpGet: {path: /startupz, port: rota-probes}
    periodSeconds: 1
    failureThreshold: 120
  {{- end }}
  livenessProbe:
    httpGet: {path: /healthz, port: rota-probes}
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 6
  {{- if .ready }}
  readinessProbe:
    httpGet: {path: /readyz, port: rota-probes}
    periodSeconds: 5
  {{- end }}
  {{- if or .file .audience .ca .certificate }}
  volumeMounts:
    {{- include "rota.sidecar.volumeMounts" . | nindent 4 }}
    {{- range $name := list "token" "ca" "certificate" }}
    {{- if get $ (ternary "audience" $name (eq $name "token")) }}
    - {name: rota-{{ $name }}, mountPath: /var/run/secrets/rota/{{ $name }}, readOnly: true}
    {{- end }}
    {{- end }}
  {{- end }}
  securityContext:
    {{- if .securityContext }}
    {{- toYaml .securityContext | nindent 4 }}
    {{- else }}
    runAsNonRoot: true
    runAsUser: 65532
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities: {drop: [ALL]}
    seccompProfile: {type: RuntimeDefault}
    {{- end }}
  resources:
    {{- if .resources }}
    {{- toYaml .resources | nindent 4 }}
    {{- else }}
    requests: {cpu: 20m, memory: 64Mi}
    limits: {memory: 192Mi}
    {{- end }}
{{- end }}

{{/* rota.sidecar.env: the sidecar's URLs for the program, also under the names of nais' elector. */}}
{{- define "rota.sidecar.env" -}}
- {name: ROTA_SIDECAR_URL, value: "http://127.0.0.1:4040"}
- {name: ROTA_EVENTS_URL, value: "http://127.0.0.1:4040/events"}
- {name: ELECTOR_GET_URL, value: "http://127.0.0.1:4040/"}
{{- end }}

{{/* rota.sidecar.volumes: the volumes for `file`, `audience`, `ca` and `certificate`. */}}
{{- define "rota.sidecar.volumes" -}}
{{- if .file -}}
- {name: rota-sidecar, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
{{ end }}
{{- with .audience -}}
- name: rota-token
  # The kubelet renews it.
  projected: {sources: [{serviceAccountToken: {audience: {{ . | quote }}, expirationSeconds: 3600, path: token}}]}
{{ end }}
{{- with .ca -}}
- {name: rota-ca, configMap: {name: {{ . }}}}
{{ end }}
{{- with .certificate -}}
- {name: rota-certificate, secret: {secretName: {{ . }}, defaultMode: 0444}}
{{ end }}
{{- end }}

{{/* rota.sidecar.volumeMounts: the mounts of the program's container for `file`. */}}
{{- define "rota.sidecar.volumeMounts" -}}
{{- if .file -}}
- {name: rota-sidecar, mountPath: /var/run/rota}
{{- end }}
{{- end }}

{{/*
rota.sidecar.rbac: the right to patch pods of the namespace, for `podLabel`. Call it with context, name and
serviceAccount; the pod needs that account and automountServiceAccountToken.
*/}}
{{- define "rota.sidecar.rbac" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ required "rota.sidecar.rbac: pass name" .name }}
  namespace: {{ .context.Release.Namespace }}
rules:
  - {apiGroups: [""], resources: [pods], verbs: [patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ .name }}
  namespace: {{ .context.Release.Namespace }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: {{ .name }}}
subjects:
  - {kind: ServiceAccount, name: {{ required "rota.sidecar.rbac: pass serviceAccount" .serviceAccount }}, namespace: {{ .context.Release.Namespace }}}
{{- end }}
