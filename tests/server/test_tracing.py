"""Spans over OTLP: what an attempt was, and the client's trace goes on; nothing of prompts or answers is in
them."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from server_support import ASK, MODELS, client

TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def collector(monkeypatch):
    """Bodies that were posted to a collector on this machine."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra [otel]")
    bodies: list[bytes] = []

    class Collect(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Collect)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield bodies
    server.shutdown()
    thread.join()
    server.server_close()


def test_every_attempt_is_a_span_of_the_clients_trace(place, write_upstreams, collector):
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    write_upstreams({m: {"model": "broken"} for m in MODELS[1:]})
    with client(place, otel=True) as c:
        for _ in range(8):
            headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
            assert c.post("/v1/chat/completions", json=ASK, headers=headers).status_code == 200
    posted = [ExportTraceServiceRequest.FromString(body) for body in collector]
    spans = [
        s
        for p in posted
        for resource in p.resource_spans
        for scope in resource.scope_spans
        for s in scope.spans
    ]
    assert len(spans) >= 8 and {s.trace_id.hex() for s in spans} == {TRACE}
    seen = [{a.key: a.value for a in s.attributes} for s in spans]
    answered = [a for a in seen if a["cabs.status"].string_value == "answered"]
    assert {a["gen_ai.request.model"].string_value for a in answered} == {MODELS[0]} and len(answered) == 8
    assert all(a["gen_ai.usage.output_tokens"].int_value > 0 for a in answered)
    failed = [s for s, a in zip(spans, seen, strict=True) if a["cabs.status"].string_value == "error"]
    assert all(s.status.code == 2 for s in failed)
    assert all(b"two plus two" not in body for body in collector)


def test_without_the_option_nothing_is_sent(place, collector):
    with client(place) as c:
        assert c.post("/v1/chat/completions", json=ASK).status_code == 200
    assert collector == []
