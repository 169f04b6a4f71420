{{- define "launcherkit-plugin.image" -}}
{{ .Values.image.repository }}
{{- if .Values.image.digest }}@{{ .Values.image.digest }}
{{- else }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- end }}

{{- define "launcherkit-plugin.serviceAccountName" -}}
{{- if not (or .Values.serviceAccount.create .Values.serviceAccount.name) }}
{{- fail "serviceAccount.create is false, so serviceAccount.name must be an account that exists" }}
{{- end }}
{{- .Values.serviceAccount.name | default "launcherkit-plugin" }}
{{- end }}

{{- define "launcherkit-plugin.labels" -}}
app.kubernetes.io/name: launcherkit-plugin
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}
