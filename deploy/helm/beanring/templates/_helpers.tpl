{{- define "beanring.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "beanring.selector" -}}
app.kubernetes.io/name: beanring
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "beanring.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "beanring.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
{{- end }}

{{- define "beanring.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- /* The bytes of a size, which is a number with one of the units; 0 if it is none. */}}
{{- define "beanring.bytes" -}}
{{- $number := regexFind "^[0-9.]+" .size -}}
{{- $factor := get .units (trimPrefix $number .size) -}}
{{- if and $number $factor }}{{ mulf (float64 $number) $factor | int64 }}{{ else }}0{{ end }}
{{- end }}

{{- /* Refuses a memory limit of the server above that of its container: the kernel would kill it. */}}
{{- define "beanring.checkMemory" -}}
{{- $limit := dig "limits" "memory" "" .Values.resources | toString -}}
{{- $decimal := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 -}}
{{- $binary := dict "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- $container := include "beanring.bytes" (dict "size" $limit "units" (merge $decimal $binary)) | int64 -}}
{{- $own := dict "" 1 "k" 1024 "m" 1048576 "g" 1073741824 "kib" 1024 "mib" 1048576 "gib" 1073741824 -}}
{{- $max := include "beanring.bytes" (dict "size" (lower .Values.maxMemory) "units" $own) | int64 -}}
{{- if and (gt $container 0) (gt $max $container) -}}
{{- fail (printf "maxMemory %s is more than resources.limits.memory %s: set it to three quarters of that" .Values.maxMemory $limit) -}}
{{- end -}}
{{- end }}

{{- define "beanring.labels" -}}
{{ include "beanring.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
