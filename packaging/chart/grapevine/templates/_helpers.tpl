{{/* Names, labels and checks that several templates use. */}}
{{/* 50: a hook's Job is called NAME-certificates, and that is a label of its pod. */}}
{{- define "grapevine.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "grapevine.selector" -}}
app.kubernetes.io/name: grapevine
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "grapevine.labels" -}}
{{ include "grapevine.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "grapevine.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}

{{- define "grapevine.secret" -}}
{{- $existing := eq .Values.certificates.mode "existing" | ternary .Values.certificates.existing.secretName "" -}}
{{- default (printf "%s-certificates" (include "grapevine.fullname" .)) $existing -}}
{{- end -}}

{{/* Namespaces whose pods are watched, each with a Role; none where all are, by a ClusterRole. */}}
{{- define "grapevine.workerNamespaces" -}}
{{- $named := .Values.discovery.kubernetes.namespaces -}}
{{- has "*" $named | ternary list (default (list .Release.Namespace) $named | uniq) | toJson -}}
{{- end -}}

{{- define "grapevine.readPods" -}}
# To see which pods are workers. Nothing is ever written.
rules:
  - apiGroups: [""]
    resources: [pods]
    verbs: [get, list, watch]
{{- end -}}

{{/* What no schema can say. */}}
{{- define "grapevine.check" -}}
{{- $most := .Values.replicas -}}
{{- if .Values.autoscaling.enabled -}}{{- $most = .Values.autoscaling.maxReplicas -}}{{- end -}}
{{- if eq .Values.certificates.mode "job" -}}
{{- if not .Values.certificates.job.kubectlImage -}}
{{- fail "certificates.job.kubectlImage: name an image whose entry point is kubectl, or choose another certificates.mode" -}}
{{- end -}}
{{- if gt (int $most) (int .Values.certificates.job.maxReplicas) -}}
{{- fail "certificates.job.maxReplicas: fewer certificates than replicas; raise it" -}}
{{- end -}}
{{- end -}}
{{- if and (eq .Values.certificates.mode "certManager") (not .Values.certificates.certManager.issuerName) -}}
{{- fail "certificates.certManager.issuerName: name the issuer of this cluster's own authority" -}}
{{- end -}}
{{- with .Values.certificates.certManager.bundle -}}
{{- if and .configMap .secret -}}
{{- fail "certificates.certManager.bundle: name a configMap or a secret, not both" -}}
{{- end -}}
{{- end -}}
{{- with .Values.discovery.kubernetes -}}
{{- if and .enabled (not (or .selector .prefillSelector .decodeSelector)) -}}
{{- fail "discovery.kubernetes.selector: name the labels of workers' pods, or set prefillSelector and decodeSelector" -}}
{{- end -}}
{{- end -}}
{{- $config := regexReplaceAll "(?m)#.*$" (default "" .Values.config) "" -}}
{{- /* Within a line, too, as in tls = {...}. */ -}}
{{- $asksClients := regexMatch "\\bclient_ca\\s*=" $config -}}
{{- $mayShowNone := regexMatch "\\bclient_cert_required\\s*=\\s*false" $config -}}
{{- /* In the section or in one line; [tls] without `cert` is plain HTTP. */ -}}
{{- $servesTls := regexMatch "(?m)^\\s*(\\[\\s*tls\\s*\\](\\s*\\n\\s*[^\\s\\[][^\\n]*)*\\s*\\n\\s*cert|tls\\s*=.*\\bcert)\\s*=" $config -}}
{{- range .Values.env -}}
{{- if eq .name "GRAPEVINE_TLS__CERT" -}}{{- $servesTls = true -}}{{- end -}}
{{- if eq .name "GRAPEVINE_TLS__CLIENT_CA" -}}{{- $asksClients = true -}}{{- end -}}
{{- if eq .name "GRAPEVINE_TLS__CLIENT_CERT_REQUIRED" -}}{{- $mayShowNone = eq (default "" .value | toString) "false" -}}{{- end -}}
{{- end -}}
{{- if and $asksClients (not $mayShowNone) (ne .Values.probeScheme "EXEC") -}}
{{- fail "probeScheme: the kubelet has no certificate to show, and clients need one (tls.client_ca); set EXEC" -}}
{{- end -}}
{{- if and $servesTls (eq .Values.probeScheme "HTTP") -}}
{{- fail "probeScheme: the data port speaks TLS (tls.cert), and probes in plain HTTP would fail; set HTTPS, or EXEC" -}}
{{- end -}}
{{- end -}}

{{/* With autoscaling as many as run now: where the number is left out, Kubernetes takes 1. */}}
{{- define "grapevine.replicas" -}}
{{- if .Values.autoscaling.enabled -}}
{{- $running := lookup "apps/v1" "StatefulSet" .Release.Namespace (include "grapevine.fullname" .) -}}
{{- max (dig "spec" "replicas" 0 $running | int) (int .Values.autoscaling.minReplicas) -}}
{{- else -}}
{{- .Values.replicas -}}
{{- end -}}
{{- end -}}

{{- define "grapevine.graceSeconds" -}}
{{- add .Values.timeouts.settleSeconds .Values.timeouts.drainSeconds 10 -}}
{{- end -}}

{{/* Of a duration such as 2160h or 1h30m. */}}
{{- define "grapevine.seconds" -}}
{{- $sum := 0 -}}
{{- range regexFindAll "[0-9]+[hms]" . -1 -}}
{{- $sum = add $sum (mul (regexFind "[0-9]+" . | atoi) (get (dict "h" 3600 "m" 60 "s" 1) (regexFind "[hms]" .))) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{/* The ConfigMap or Secret with the authorities, where it is not the one of the pod's own certificate. */}}
{{- define "grapevine.bundle" -}}
{{- if eq .Values.certificates.mode "certManager" -}}
{{- with .Values.certificates.certManager.bundle -}}{{ default .secret .configMap }}{{- end -}}
{{- end -}}
{{- end -}}

{{/* What the kubelet asks: the root, a path of the data port, and the same of the admin port. */}}
{{- define "grapevine.probe" -}}
{{- $ := index . 0 -}}
{{- if eq $.Values.probeScheme "EXEC" -}}
{{- $loopback := and (not (empty $.Values.admin.tokenSecret)) (eq $.Values.ipFamily "IPv6") | ternary "[::1]" "127.0.0.1" -}}
exec: {command: [/grapevine, probe, {{ printf "http://%s:30001/%s" $loopback (index . 2) | quote }}]}
{{- else -}}
httpGet: {path: /{{ index . 1 }}, port: http, scheme: {{ $.Values.probeScheme }}}
{{- end -}}
{{- end -}}

{{/* Where pods may run, and what they may pull; of a hook's pods as of the replicas. */}}
{{- define "grapevine.nodes" -}}
{{- with .Values.imagePullSecrets }}imagePullSecrets: {{- toYaml . | nindent 2 }}
{{ end }}
{{- with .Values.priorityClassName }}priorityClassName: {{ . }}
{{ end }}
{{- with .Values.nodeSelector }}nodeSelector: {{- toYaml . | nindent 2 }}
{{ end }}
{{- with .Values.tolerations }}tolerations: {{- toYaml . | nindent 2 }}
{{ end }}
{{- end -}}

{{- define "grapevine.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "grapevine.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}
