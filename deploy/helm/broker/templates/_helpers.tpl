{{- define "broker.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 53 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}{{- .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- else -}}{{- printf "%s-%s" .Release.Name $name | trunc 53 | trimSuffix "-" -}}{{- end -}}
{{- end -}}
{{- end -}}

{{- define "broker.selector" -}}
app.kubernetes.io/name: broker
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: {{ .Values.mode }}
{{- end -}}

{{- define "broker.labels" -}}
{{ include "broker.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "broker.image" -}}
{{- $image := .Values.image -}}
{{- $name := ternary $image.repository (printf "%s/%s" $image.registry $image.repository) (empty $image.registry) -}}
{{- if $image.digest -}}{{- printf "%s@%s" $name $image.digest -}}
{{- else -}}{{- printf "%s:%s" $name (default .Chart.AppVersion $image.tag) -}}{{- end -}}
{{- end -}}

{{- define "broker.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}{{- default (include "broker.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}{{- default "default" .Values.serviceAccount.name -}}{{- end -}}
{{- end -}}

{{/* Memory that an instance may take, in MiB: docs/deploying.md has the sum. */}}
{{- define "broker.memory" -}}
{{- $endpoint := .Values.endpoint -}}
{{- $links := div (add (mul (int $endpoint.links) 17) 15) 16 -}}
{{- div (add (mul 5 (add 112 (int $endpoint.messageForwardSizeMiB) $links)) 3) 4 -}}
{{- end -}}

{{/* What a schema cannot say. */}}
{{- define "broker.validate" -}}
{{- $grace := int .Values.terminationGracePeriodSeconds -}}
{{- $timeout := int .Values.drain.timeoutSeconds -}}
{{- $announce := int .Values.drain.announceSeconds -}}
{{- $period := int .Values.readinessProbe.periodSeconds -}}
{{- if le $grace $timeout -}}
{{- fail (printf "terminationGracePeriodSeconds (%d) must be above drain.timeoutSeconds (%d): Kubernetes would kill an instance that still drains" $grace $timeout) -}}
{{- end -}}
{{- if le $timeout $announce -}}
{{- fail (printf "drain.timeoutSeconds (%d) must be above drain.announceSeconds (%d), which it includes" $timeout $announce) -}}
{{- end -}}
{{- if le $announce $period -}}
{{- fail (printf "drain.announceSeconds (%d) must be above readinessProbe.periodSeconds (%d): nobody would have seen that the instance leaves" $announce $period) -}}
{{- end -}}
{{- if and .Values.tls.secretName .Values.tls.insecure -}}
{{- fail "tls.secretName and tls.insecure exclude each other" -}}
{{- end -}}
{{- if not (or .Values.tls.secretName .Values.tls.insecure) -}}
{{- fail "name the Secret of the certificate in tls.secretName, or spell plain text out: tls.insecure=true" -}}
{{- end -}}
{{- if and (eq .Values.mode "endpoint") (not .Values.database.name) -}}
{{- fail "an endpoint hosts a database: name it in database.name" -}}
{{- end -}}
{{- range list "instance" "endpoint" "routes" "drain" "observe" -}}
{{- if regexMatch (printf "(?m)^\\s*\\[\\s*%s\\s*\\]" .) $.Values.configuration -}}
{{- fail (printf "configuration: the chart writes the section [%s] itself" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "broker.configuration" -}}
# Written by the chart; values: see helm get values {{ .Release.Name }}.

[instance]
state_dir = "/var/lib/broker"

[endpoint]
listen = ["0.0.0.0:4022"]
{{- with .Values.endpoint.advertise }}
advertise = {{ toJson . }}
{{- end }}
{{- if .Values.tls.secretName }}
encryption = "required"
authentication = "certificate"
certificate = "tls/tls.crt"
private_key = "tls/tls.key"
trust = ["tls/ca.crt"]
{{- else }}
encryption = "disabled"
{{- end }}
message_forwarding = {{ eq .Values.mode "gateway" }}
message_forward_size = "{{ int .Values.endpoint.messageForwardSizeMiB }}MiB"
{{- if eq .Values.mode "gateway" }}
{{- if .Values.scripts }}

[routes]
files = ["scripts.d/*.sql"]
{{- end }}
{{- else }}

[databases.{{ .Values.database.name }}]
path = "{{ .Values.database.name }}.db"
{{- with .Values.database.brokerInstance }}
broker_instance = "{{ . }}"
{{- end }}
{{- if .Values.scripts }}
scripts = ["scripts.d/*.sql"]
{{- end }}
{{- end }}

[drain]
announce = "{{ int .Values.drain.announceSeconds }}s"
timeout = "{{ int .Values.drain.timeoutSeconds }}s"

[observe]
listen = "0.0.0.0:9423"
log_format = "json"
log_level = "{{ .Values.logLevel }}"
{{- with .Values.configuration }}

{{ . }}
{{- end }}
{{- end -}}

{{- define "broker.pod" -}}
metadata:
  labels:
    {{- include "broker.labels" . | nindent 4 }}
    {{- with .Values.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  annotations:
    checksum/configuration: {{ include "broker.configuration" . | sha256sum }}
    checksum/scripts: {{ toJson .Values.scripts | sha256sum }}
    {{- with .Values.podAnnotations }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  serviceAccountName: {{ include "broker.serviceAccount" . }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ int .Values.terminationGracePeriodSeconds }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    fsGroup: 65532
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: {type: RuntimeDefault}
  {{- if eq .Values.mode "gateway" }}
  topologySpreadConstraints:
    {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
    - maxSkew: 1
      topologyKey: {{ . }}
      whenUnsatisfiable: {{ $.Values.topologySpread.whenUnsatisfiable }}
      labelSelector:
        matchLabels: {{- include "broker.selector" $ | nindent 10 }}
      matchLabelKeys: [pod-template-hash]
    {{- end }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity: {{ toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: broker
      image: {{ include "broker.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: [serve]
      {{- with .Values.env }}
      env: {{ toYaml . | nindent 8 }}
      {{- end }}
      ports:
        - {name: broker, containerPort: 4022}
        - {name: observe, containerPort: 9423}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      startupProbe:
        httpGet: {path: /startupz, port: observe}
        {{- toYaml .Values.startupProbe | nindent 8 }}
      livenessProbe:
        httpGet: {path: /livez, port: observe}
        {{- toYaml .Values.livenessProbe | nindent 8 }}
      readinessProbe:
        httpGet: {path: /readyz, port: observe}
        {{- toYaml .Values.readinessProbe | nindent 8 }}
      resources:
        {{- if .Values.resources }}
        {{- toYaml .Values.resources | nindent 8 }}
        {{- else }}
        requests: {cpu: 250m, memory: {{ include "broker.memory" . }}Mi}
        limits: {memory: {{ include "broker.memory" . }}Mi}
        {{- end }}
      volumeMounts:
        - {name: configuration, mountPath: /etc/broker, readOnly: true}
        - {name: state, mountPath: /var/lib/broker}
        - {name: tmp, mountPath: /tmp}
        {{- with .Values.extraVolumeMounts }}{{ toYaml . | nindent 8 }}{{ end }}
    {{- with .Values.extraContainers }}{{ toYaml . | nindent 4 }}{{ end }}
  volumes:
    - name: configuration
      projected:
        defaultMode: 0440
        sources:
          - configMap:
              name: {{ include "broker.fullname" . }}
              items:
                - {key: broker.toml, path: broker.toml}
                {{- range $name, $text := .Values.scripts }}
                - {key: {{ $name }}, path: scripts.d/{{ $name }}}
                {{- end }}
          {{- with .Values.tls.secretName }}
          - secret:
              name: {{ . }}
              items:
                - {key: tls.crt, path: tls/tls.crt}
                - {key: tls.key, path: tls/tls.key}
                - {key: ca.crt, path: tls/ca.crt}
          {{- end }}
    {{- if eq .Values.mode "gateway" }}
    - name: state
      emptyDir: {sizeLimit: 64Mi}
    {{- end }}
    - name: tmp
      emptyDir: {medium: Memory, sizeLimit: 16Mi}
    {{- with .Values.extraVolumes }}{{ toYaml . | nindent 4 }}{{ end }}
{{- end -}}
