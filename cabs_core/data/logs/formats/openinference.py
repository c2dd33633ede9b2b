"""OpenInference: spans of OpenTelemetry whose attributes begin with `llm.`."""

from cabs_core.data.logs.formats import otel

#: the format of OpenTelemetry, which reads both kinds of attributes
FORMAT = otel.FORMAT
