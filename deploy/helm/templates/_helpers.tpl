{{- define "rolloutpool.name" -}}
{{- if contains "rolloutpool" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-rolloutpool" (.Release.Name | trunc 38 | trimSuffix "-") }}{{ end }}
{{- end }}

{{- define "rolloutpool.selector" -}}
app.kubernetes.io/name: rolloutpool
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end }}

{{- define "rolloutpool.labels" -}}
{{ include "rolloutpool.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "rolloutpool.image" -}}
{{ with .root.Values.image.registry }}{{ . }}/{{ end }}rolloutpool-{{ .image }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{- /* Variables: where Redis is, then the settings of all roles, then those of one. A later one wins. */}}
{{- define "rolloutpool.env" -}}
- name: ROLLOUTPOOL_REDIS_URL
  valueFrom: {secretKeyRef: {name: {{ .root.Values.secret }}, key: redis-url}}
{{- if .root.Values.separateBroker }}
- name: ROLLOUTPOOL_BROKER_URL
  valueFrom: {secretKeyRef: {name: {{ .root.Values.secret }}, key: broker-url}}
{{- end }}
{{- if .root.Values.redisCa }}
- {name: ROLLOUTPOOL_REDIS_CA, value: /run/secrets/rolloutpool/redis-ca.pem}
{{- end }}
{{- range $name, $value := merge (dict) .settings .root.Values.settings }}
- name: {{ $name }}
  {{- /* As JSON a large number has no exponent. */}}
  value: {{ kindIs "float64" $value | ternary (toJson $value) (toString $value) | quote }}
{{- end }}
{{- end }}

{{- define "rolloutpool.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  # The secrets file is read by this group, and by nobody else.
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{ include "rolloutpool.selector" . | nindent 8 }}
{{- end }}

{{- define "rolloutpool.container" -}}
name: {{ .role }}
image: {{ include "rolloutpool.image" . }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "rolloutpool.secrets" -}}
- name: secrets
  secret:
    secretName: {{ .root.Values.secret }}
    defaultMode: 0440
    items:
      - {key: secrets.keys, path: secrets.keys}
      {{- if eq .role "api" }}
      - {key: api-keys, path: api-keys}
      {{- end }}
      {{- if and (eq .role "worker") .root.Values.worker.environments }}
      - {key: environments.toml, path: environments.toml}
      {{- end }}
      {{- if .root.Values.redisCa }}
      - {key: redis-ca.pem, path: redis-ca.pem}
      {{- end }}
{{- end }}

{{- /* Rollouts that need a slot: each API process shows the whole pool, so `max` comes first. */}}
{{- define "rolloutpool.canRun" -}}
{{- $job := printf "job=%q" .Values.worker.keda.job -}}
sum(max without (instance) (rolloutpool_rollouts_queued{ {{- $job -}} })) + max(rolloutpool_rollouts_running{ {{- $job -}} }) - (max(rolloutpool_turns_in_flight{ {{- $job }},phase="pause"}) or vector(0))
{{- end }}

{{- define "rolloutpool.blocked" -}}
{{- $found := list }}
{{- range .list }}{{ if eq (contains ":" .) $.six }}{{ $found = append $found . }}{{ end }}{{ end }}
{{- toJson $found }}
{{- end }}
