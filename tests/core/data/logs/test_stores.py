"""Spans in other stores' columns, spans of other libraries, and batches of other providers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from cabs_core import read_log

CHAT = [{"role": "user", "content": "hello"}]
MESSAGES = json.dumps([{"role": "user", "parts": [{"type": "text", "content": "hello"}]}])
GEN_AI = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "m",
    "gen_ai.input.messages": MESSAGES,
    "gen_ai.usage.input_tokens": 9,
    "gen_ai.usage.output_tokens": 3,
}
CLICKHOUSE = {"TraceId": "t", "SpanId": "s", "ParentSpanId": "", "Timestamp": "2026-08-01 10:00:00"}
INSIGHTS = {"timestamp": "2026-08-01T10:00:00Z", "id": "s", "operation_Id": "t", "success": "True"}
WORKSPACE = {"TimeGenerated": "2026-08-01T10:00:00Z", "Id": "s", "OperationId": "t", "Success": True}
NESTED = {
    "gen_ai": {"operation": {"name": "chat"}, "request": {"model": "m"}, "input": {"messages": MESSAGES}}
}
LOGFIRE = {
    "request_data": {"model": "m", "messages": CHAT},
    "response_data": {"usage": {"prompt_tokens": 9, "completion_tokens": 3}},
    "gen_ai.request.model": "m",
    "operation.cost": 0.002,
}
VERCEL = {
    "ai.operationId": "ai.streamText.doStream",
    "ai.model.id": "m",
    "ai.prompt.messages": json.dumps(CHAT),
    "ai.usage.promptTokens": 9,
    "ai.usage.completionTokens": 3,
}


def jaeger(values: dict[str, Any], **more: Any) -> dict:
    tags = [{"key": key, "value": value} for key, value in (values | more).items()]
    parents = [{"refType": "CHILD_OF", "traceID": "t", "spanID": "r"}]
    return {"traceID": "t", "spanID": "s", "references": parents, "tags": tags, "startTime": 1785578400000000}


#: (store, a span of a call, the span of one that failed)
SPANS = [
    ("clickhouse", CLICKHOUSE | {"SpanAttributes": GEN_AI, "StatusCode": "Ok"}, {"StatusCode": "Error"}),
    (
        "clickhouse-json",
        CLICKHOUSE | {"SpanAttributes": json.dumps(GEN_AI)},
        {"StatusCode": "STATUS_CODE_ERROR"},
    ),
    ("insights", INSIGHTS | {"customDimensions": json.dumps(GEN_AI)}, {"success": "False"}),
    ("workspace", WORKSPACE | {"Properties": GEN_AI}, {"Success": False}),
    ("nested", {"span_id": "s", "trace_id": "t", "attributes": NESTED}, {"status": {"code": 2}}),
    ("logfire", {"span_id": "s", "trace_id": "t", "attributes": LOGFIRE}, {"is_exception": True}),
    ("vercel", {"span_id": "s", "trace_id": "t", "attributes": VERCEL}, {"status_code": "ERROR"}),
]


@pytest.mark.parametrize(("store", "span", "failed"), SPANS)
def test_spans_in_the_columns_of_a_store(tmp_path: Path, store: str, span: dict, failed: dict) -> None:
    path = tmp_path / "spans.jsonl"
    other = {name: "other" for name in ("SpanId", "span_id", "id", "Id") if name in span}
    path.write_text("\n".join(map(json.dumps, (span, span | failed | other))))
    log = read_log(path, "otel")
    assert log.frame[["prompt", "model"]].to_numpy().tolist() == [["hello", "m"]]
    assert log.receipt.left_out == {"failed": 1}
    if store != "nested":
        assert log.details[["input_tokens", "output_tokens"]].to_numpy().tolist() == [[9.0, 3.0]]


def test_a_span_of_clickhouse_in_parquet(tmp_path: Path) -> None:
    rows = [CLICKHOUSE | {"SpanAttributes": list({k: str(v) for k, v in GEN_AI.items()}.items())}]
    pd.DataFrame(rows).to_parquet(tmp_path / "spans.parquet")
    log = read_log(tmp_path / "spans.parquet", "otel")
    assert log.frame["prompt"].tolist() == ["hello"] and log.details["input_tokens"].tolist() == [9.0]


def test_spans_of_jaeger(tmp_path: Path) -> None:
    failed = jaeger(GEN_AI, **{"otel.status_code": "ERROR"}) | {"spanID": "other"}
    spans = [jaeger(GEN_AI, cost=0.002), failed]
    path = tmp_path / "spans.json"
    path.write_text(json.dumps({"data": [{"traceID": "t", "spans": spans, "processes": {}}]}))
    log = read_log(path, "otel")
    assert log.frame["cost"].tolist() == [0.002] and log.receipt.left_out == {"failed": 1}


def test_the_call_within_vercels_span_is_the_only_one(tmp_path: Path) -> None:
    outer = {
        "ai.operationId": "ai.streamText",
        "ai.model.id": "m",
        "ai.prompt": json.dumps({"messages": CHAT}),
    }
    spans = [
        {"span_id": "o", "trace_id": "t", "attributes": outer},
        {"span_id": "s", "parent_span_id": "o", "trace_id": "t", "attributes": VERCEL},
        {
            "span_id": "e",
            "parent_span_id": "o",
            "trace_id": "t",
            "attributes": {"ai.operationId": "ai.embed"},
        },
    ]
    path = tmp_path / "spans.jsonl"
    path.write_text("\n".join(map(json.dumps, spans)))
    assert len(read_log(path, "otel")) == 1
    path.write_text(json.dumps(spans[0]))
    assert read_log(path, "otel").frame["prompt"].tolist() == ["hello"]


def test_a_span_whose_prompt_and_model_are_named_is_a_call(tmp_path: Path) -> None:
    span = {"span_id": "s", "trace_id": "t", "attributes": {"app.question": "hello", "app.llm": "m"}}
    path = tmp_path / "spans.jsonl"
    path.write_text(json.dumps(span))
    log = read_log(path, "otel", {"prompt": "app.question", "model": "app.llm"})
    assert log.frame[["prompt", "model"]].to_numpy().tolist() == [["hello", "m"]]


USAGE = {"prompt_tokens": 9, "completion_tokens": 3}
GEMINI = {"modelVersion": "m", "usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 3}}
CONTENTS = {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}
ANSWER = {"model": "m", "usage": {"input_tokens": 9, "output_tokens": 3}}
BATCHES = [
    {
        "custom_id": "a",
        "request": {"body": {"messages": CHAT}},
        "response": {"body": {"model": "m", "usage": USAGE}},
    },
    {"key": "a", "request": CONTENTS, "response": GEMINI},
    {"custom_id": "a", "params": {"messages": CHAT}, "result": {"type": "succeeded", "message": ANSWER}},
    {"recordId": "a", "modelInput": {"messages": CHAT}, "modelOutput": ANSWER},
    {"request": json.dumps({"messages": CHAT}), "response": json.dumps({"model": "m", "usage": USAGE})},
]
FAILED = [
    {"custom_id": "b", "request": {"body": {"messages": CHAT}}, "response": {"status_code": 500, "body": {}}},
    {"key": "b", "request": CONTENTS, "error": {"code": 3, "message": "bad"}},
    {"custom_id": "b", "params": {"messages": CHAT}, "result": {"type": "errored", "error": {"type": "e"}}},
    {"recordId": "b", "modelInput": {"messages": CHAT}, "error": {"errorCode": 400, "errorMessage": "bad"}},
    {"status": "Bad Request: x", "request": CONTENTS, "response": {}},
]


@pytest.mark.parametrize(("answered", "failed"), list(zip(BATCHES, FAILED, strict=True)))
def test_batches_of_every_provider(tmp_path: Path, answered: dict, failed: dict) -> None:
    path = tmp_path / "batch.jsonl"
    path.write_text("\n".join(map(json.dumps, (answered, failed))))
    log = read_log(path, "openai")
    assert log.frame[["prompt", "model"]].to_numpy().tolist() == [["hello", "m"]]
    assert log.details[["input_tokens", "output_tokens"]].to_numpy().tolist() == [[9.0, 3.0]]
    assert log.receipt.left_out == {"failed": 1}
