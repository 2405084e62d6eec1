{{- define "pgsluice.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "pgsluice.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "pgsluice.labels" -}}
{{ include "pgsluice.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* The configuration of one pod: what the values say, the chart's own keys below [general], and its peers. */ -}}
{{- define "pgsluice.config" -}}
{{- $root := .root }}
{{- $name := include "pgsluice.name" $root }}
{{- $general := "(?m)^[ \\t]*\\[[ \\t]*general[ \\t]*\\][ \\t]*(#.*)?$" }}
{{- $text := $root.Values.config }}
{{- if not (regexMatch $general $text) }}{{ fail "config has no line [general]" }}{{ end }}
{{- $own := printf "[general]\n# The chart's own.\nlisten_addr = \"*\"\nlisten_port = 6432\nhttp_addr = \"0.0.0.0:9127\"\npeer_id = %d\nshutdown_grace = %d\nshutdown_timeout = %d\n# The values' own." (add1 .ordinal) (int $root.Values.shutdown.grace) (int $root.Values.shutdown.timeout) }}
{{- regexReplaceAllLiteral $general $text $own }}
{{- range $i := until (int $root.Values.replicas) }}

[peers.{{ add1 $i }}]
host = "{{ $name }}-{{ $i }}.{{ $name }}-peers.{{ $root.Release.Namespace }}.svc"
{{- end }}
{{- end }}
