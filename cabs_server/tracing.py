"""Spans of calls by OpenTelemetry's `gen_ai` conventions (extra [otel], `cabs serve --otel`).

OpenTelemetry's own variables (OTEL_EXPORTER_OTLP_ENDPOINT, ...) say where spans are sent. No prompt or answer
is in a span. Without the option nothing is imported and nothing is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cabs_core.base.errors import RouterError
from cabs_core.data.endpoints.usage import Bill
from cabs_core.data.events.rows import FAILED
from cabs_server.bodies import value_of

_OPERATIONS = {
    "chat": "chat",
    "messages": "chat",
    "responses": "chat",
    "completions": "text_completion",
    "embeddings": "embeddings",
}


class Span:
    """The span of one attempt, which records nothing in this class."""

    def headers(self) -> dict[str, str]:
        """Return the headers by which the provider continues the trace."""
        return {}

    def end(self, status: str, reason: str, bill: Bill, response_id: Any) -> None:
        """End the span of an attempt.

        Args:
            status: how the attempt ended, as in the log. reason: why the attempt failed, in words.
            bill: cost and token counts of the attempt.
            response_id: id of the provider's answer, if there is one.
        """


class _Recorded(Span):
    """A span that OpenTelemetry records."""

    def __init__(self, span: Any):
        self.span = span

    def headers(self) -> dict[str, str]:
        from opentelemetry.trace import set_span_in_context  # noqa: PLC0415  (of the extra otel)
        from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415  (of the extra otel)
            TraceContextTextMapPropagator,
        )

        headers: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(headers, set_span_in_context(self.span))
        return headers

    def end(self, status: str, reason: str, bill: Bill, response_id: Any) -> None:
        """End the span with status, cost, token counts and response id as attributes, as far as known.

        The span of a failed attempt (`error` or `timeout`) has the status ERROR, described by `reason`.
        """
        from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415  (of the extra otel)

        facts: dict[str, Any] = {"cabs.status": status, "cabs.cost_usd": bill.cost}
        if bill.tokens is not None:
            facts |= {
                "gen_ai.usage.input_tokens": int(bill.tokens.input),
                "gen_ai.usage.output_tokens": int(bill.tokens.output),
            }
        if isinstance(response_id, str):
            facts["gen_ai.response.id"] = response_id
        if status in FAILED:
            facts["error.type"] = status
            self.span.set_status(Status(StatusCode.ERROR, reason))
        self.span.set_attributes({k: v for k, v in facts.items() if v is not None})
        self.span.end()


class Tracer:
    """A maker of the spans of attempts.

    Args:
        provider: OpenTelemetry's TracerProvider. None makes spans that record nothing.
    """

    def __init__(self, provider: Any = None):
        self.provider = provider
        if provider is None:
            self._tracer = None
        else:
            self._tracer = provider.get_tracer("cabs")

    @classmethod
    def exporting(cls) -> Tracer:
        """Return a tracer that sends spans over OTLP. Raises RouterError if the extra is not installed."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415  (extra otel)
                OTLPSpanExporter,
            )
            from opentelemetry.sdk.resources import Resource  # noqa: PLC0415  (of the extra otel)
            from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415  (of the extra otel)
            from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415  (extra otel)
        except ImportError:
            raise RouterError("--otel needs the extra: pip install 'cabs-routing[otel]'") from None
        provider = TracerProvider(resource=Resource.create({"service.name": "cabs"}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return cls(provider)

    def start(self, model: str, dialect: str, fields: Mapping[str, Any], headers: Mapping[str, str]) -> Span:
        """Start the span of an attempt, as a child of the trace that the client's `traceparent` names.

        Args:
            fields: fields of the request, as bytes (`bodies.top_fields`).
            headers: headers of the client's request.
        """
        if self._tracer is None:
            return Span()
        from opentelemetry.trace import SpanKind  # noqa: PLC0415  (of the extra otel)
        from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415  (of the extra otel)
            TraceContextTextMapPropagator,
        )

        operation = _OPERATIONS[dialect]
        facts: dict[str, Any] = {
            "gen_ai.operation.name": operation,
            "gen_ai.request.model": model,
            "gen_ai.provider.name": "cabs",
        }
        for name in ("temperature", "top_p", "max_tokens"):
            value = value_of(fields.get(name))
            if isinstance(value, int | float):
                facts[f"gen_ai.request.{name}"] = value
        context = TraceContextTextMapPropagator().extract(dict(headers))
        return _Recorded(
            self._tracer.start_span(
                f"{operation} {model}", context=context, kind=SpanKind.CLIENT, attributes=facts
            )
        )

    def close(self) -> None:
        """Send the spans that wait, and shut the provider down."""
        if self.provider is not None:
            self.provider.shutdown()
