{{/*
rota.sidecar: one item of a pod's initContainers. It starts before the program and gets SIGTERM after the program has
ended: work stops first, then the place is given up.

  spec:
    initContainers:
      {{- include "rota.sidecar" (dict "context" $ "image" "rota:0.1.0" "url" "http://rota:8080" "lead" "billing") | nindent 6 }}
    containers:
      - name: billing
        env: {{- include "rota.sidecar.env" (dict) | nindent 10 }}

Keys, all but `context`, `image`, `url` and one of `lead` and `work` optional:

  namespace          whose groups
  lead               be a candidate in this election; or
  work, topics       be a worker of this group, for partitions of these topics
  strategy           how partitions are dealt
  sessionTimeoutMs   silence after which others take over
  progressTimeoutMs  give up without POST /progress for so long
  revokeTimeoutMs    how long hooks may take to stop work in order
  file               keep the status in /var/run/rota/<file>; needs rota.sidecar.volumes and .volumeMounts
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
{{- if ne (not .work) (not .topics) }}
{{- fail "rota.sidecar: work and topics belong together" }}
{{- end }}
- name: rota-sidecar
  image: {{ required "rota.sidecar: pass image" .image }}
  {{- with .imagePullPolicy }}
  imagePullPolicy: {{ . }}
  {{- end }}
  restartPolicy: Always
  args:
    - sidecar
    - --url={{ required "rota.sidecar: pass url" .url }}
    {{- with .namespace }}
    - --namespace={{ . }}
    {{- end }}
    {{- with .lead }}
    - --lead={{ . }}
    {{- end }}
    {{- with .work }}
    - --work={{ . }}
    {{- end }}
    {{- range .topics }}
    - --topic={{ . }}
    {{- end }}
    {{- with .strategy }}
    - --strategy={{ . }}
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
    - --file=/var/run/rota/{{ . }}
    {{- end }}
    {{- with .webhook }}
    - --webhook={{ . }}
    {{- end }}
    {{- with .podLabel }}
    - --pod-label={{ . }}
    {{- end }}
    {{- with .extraArgs }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  env:
    # Its static id: a container that restarts comes back to its own place.
    - name: POD_NAME
      valueFrom: {fieldRef: {fieldPath: metadata.name}}
    - name: POD_NAMESPACE
      valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
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
  {{- if .file }}
  volumeMounts: {{- include "rota.sidecar.volumeMounts" . | nindent 4 }}
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

{{/* rota.sidecar.env: where the program finds its sidecar, with the names that users of nais' elector know, too. */}}
{{- define "rota.sidecar.env" -}}
- {name: ROTA_SIDECAR_URL, value: "http://127.0.0.1:4040"}
- {name: ROTA_EVENTS_URL, value: "http://127.0.0.1:4040/events"}
- {name: ELECTOR_GET_URL, value: "http://127.0.0.1:4040/"}
{{- end }}

{{/* rota.sidecar.volumes and .volumeMounts: what `file` needs; the mount in the program's container, too. */}}
{{- define "rota.sidecar.volumes" -}}
- {name: rota-sidecar, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
{{- end }}

{{- define "rota.sidecar.volumeMounts" -}}
- {name: rota-sidecar, mountPath: /var/run/rota}
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
