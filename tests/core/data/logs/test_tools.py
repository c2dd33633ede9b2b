"""Files of other tools, read as a table: how calls ended, traces, units, rows, usage, and what is refused."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cabs_core import read_log
from cabs_core.base.errors import DataError
from cabs_core.data.logs.read import Log
from cabs_core.data.outcomes.from_logs import costs_by_price
from cabs_core.data.pool_files.prices import CallPrice

CASES = Path(__file__).parents[5] / "shared" / "cases" / "logs"
PLAIN = {"prompt": "hello", "model": "m", "score": 1, "cost": 0.01}
UNPRICED = {"prompt": "hello", "model": "m", "score": 1}
FRAME = {
    "prompts": "prompt",
    "models": "model",
    "scores": "score",
    "costs": "cost",
    "propensities": "propensity",
    "sessions": "session",
}


def write(folder: Path, rows: list[dict], kind: str = "jsonl") -> Path:
    path = folder / f"log.{kind}"
    if kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    elif kind == "jsonl.gz":
        path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    elif kind == "json":
        path.write_text(json.dumps(rows, indent=1))
    elif kind == "parquet":
        pd.DataFrame(rows).to_parquet(path)
    else:
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return path


def read(folder: Path, rows: list[dict], kind: str = "jsonl", **given: Any) -> Log:
    return read_log(write(folder, rows, kind), "table", **given)


def prompts(log: Log) -> list[str]:
    return log.frame["prompt"].tolist()


def scores(log: Log) -> list[float | None]:
    return [None if np.isnan(v) else float(v) for v in log.frame["score"]]


@pytest.mark.skipif(not CASES.exists(), reason="the shared cases are not here")
def test_every_public_situation_is_right_or_refused_in_words() -> None:
    wrong = []
    for case in json.loads((CASES / "cases.json").read_text()):
        expect = case["expect"]
        given = {k: case[k] for k in ("columns", "score_range", "rows", "score_words") if k in case}
        if "scores" in case:
            given["scores"] = CASES / case["scores"]
        try:
            log = read_log(CASES / case["file"], case["format"], **given)
        except DataError as error:
            if expect.get("error_names", "\0") not in str(error):
                wrong.append((case["file"], str(error)))
            continue
        found = {name: log.frame[column] for name, column in FRAME.items()}
        found |= {name: log.details[name] for name in ("input_tokens", "output_tokens")}
        right = "error_names" not in expect and len(log) == expect.get("kept", len(log))
        for name, column in found.items():
            values = column.astype(object).where(column.notna(), None).tolist()
            right = right and values == pytest.approx(expect.get(name, values))
        if not right or expect.get("receipt_says", "") not in str(log.receipt):
            wrong.append((case["file"], str(log.receipt)))
    assert not wrong


#: (fields of a call that a model answered, the same fields of one that is left out, why)
ENDINGS = [
    ({"status": "success"}, {"status": "error"}, "failed"),
    ({"Status": "completed"}, {"Status": "FAILED"}, "failed"),
    ({"statusCode": 200}, {"statusCode": 429}, "failed"),
    ({"response": {"status_code": 200}}, {"response": {"status_code": 500}}, "failed"),
    ({"http_status": "200"}, {"http_status": "503"}, "failed"),
    ({"error": None}, {"error": "rate limit"}, "failed"),
    ({"errorMessage": ""}, {"errorMessage": "rate limit"}, "failed"),
    ({"exception": None}, {"exception": "Timeout"}, "failed"),
    ({"errorCode": None}, {"errorCode": "ThrottlingException"}, "failed"),
    ({"success": True}, {"success": False}, "failed"),
    ({"isSuccess": 1}, {"isSuccess": 0}, "failed"),
    ({"is_success": "true"}, {"is_success": "false"}, "failed"),
    ({"info": {"state": "OK"}}, {"info": {"state": "ERROR"}}, "failed"),
    ({"summary": {"weave": {"status": "success"}}}, {"summary": {"weave": {"status": "error"}}}, "failed"),
    ({"status": {"code": "STATUS_CODE_OK"}}, {"status": {"code": "STATUS_CODE_ERROR"}}, "failed"),
    ({"state": "done"}, {"state": "cancelled"}, "failed"),
    ({"cached": False}, {"cached": True}, "answered from a cache"),
    ({"cacheHit": "False"}, {"cacheHit": "True"}, "answered from a cache"),
    ({"cache_status": "MISS"}, {"cache_status": "HIT"}, "answered from a cache"),
    ({"cacheStatus": "DISABLED"}, {"cacheStatus": "SEMANTIC HIT"}, "answered from a cache"),
    ({"metrics": {"cached": 0}}, {"metrics": {"cached": 1}}, "answered from a cache"),
    ({"from_cache": "no"}, {"from_cache": "yes"}, "answered from a cache"),
    ({"run_type": "llm"}, {"run_type": "embedding"}, "not a chat call"),
    ({"runType": "chat_model"}, {"runType": "tool"}, "not a chat call"),
    ({"span_attributes": {"type": "llm"}}, {"span_attributes": {"type": "function"}}, "not a chat call"),
    (
        {"attributes": {"mlflow.spanType": '"CHAT_MODEL"'}},
        {"attributes": {"mlflow.spanType": '"RETRIEVER"'}},
        "not a chat call",
    ),
    ({"type": "llm"}, {"type": "embedding"}, "not a chat call"),
    ({"request_type": "chat"}, {"request_type": "moderation"}, "not a chat call"),
    (
        {"op_name": "weave:///e/p/op/openai.chat.completions.create:a"},
        {"op_name": "weave:///e/p/op/openai.embeddings.create:a"},
        "not a chat call",
    ),
]


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet", "jsonl.gz"])
@pytest.mark.parametrize(("answered", "other", "why"), ENDINGS)
def test_what_no_model_answered_is_left_out_and_counted(
    tmp_path: Path, answered: dict, other: dict, why: str, kind: str
) -> None:
    log = read(tmp_path, [PLAIN | answered, PLAIN | other | {"prompt": "not answered"}], kind)
    assert prompts(log) == ["hello"]
    [(reason, count)] = log.receipt.left_out.items()
    assert reason.startswith(why) and count == 1


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("status", "200", "500"),
        ("success", "True", "False"),
        ("error", "", "boom"),
        ("cached", "false", "true"),
        ("exception", "", "boom"),
        ("response", '{"status_code": 200}', '{"status_code": 500}'),
    ],
)
def test_cells_of_a_csv_say_it_too(tmp_path: Path, name: str, right: str, wrong: str) -> None:
    rows = [PLAIN | {name: right}, PLAIN | {name: wrong, "prompt": "not answered"}]
    assert prompts(read(tmp_path, rows, "csv")) == ["hello"]


@pytest.mark.parametrize(
    "field",
    [
        {"type": "math"},
        {"status": "pass"},
        {"state": "Texas"},
        {"error": 0.12},
        {"cached": 640},
        {"kind": "question"},
        {"object": "lamp"},
        {"operation": "addition"},
    ],
)
def test_a_name_alone_says_nothing(tmp_path: Path, field: dict) -> None:
    log = read(tmp_path, [PLAIN | field, PLAIN | field])
    assert len(log) == 2 and not log.receipt.left_out


def test_the_success_of_a_test_harness_is_about_the_answer(tmp_path: Path) -> None:
    row = {"gradingResult": {"pass": False}, "success": False, "error": "expected 4"}
    log = read(tmp_path, [PLAIN | row])
    assert len(log) == 1
    [note] = [line for line in log.receipt.notes if "how a call ended" in line]
    assert "success" in note and "error" in note


def test_a_rule_is_named_or_switched_off(tmp_path: Path) -> None:
    rows = [PLAIN | {"outcome": "failed", "cached": True}, PLAIN | {"outcome": "ok", "cached": True}]
    log = read(tmp_path, rows, columns={"status": "outcome", "cached": None})
    assert len(log) == 1 and log.receipt.left_out == {"failed": 1}
    assert any("cached" in note for note in log.receipt.notes)


CALL = {"model": "m", "trace_id": "t", "score": None, "cost": 0.01}


@pytest.mark.parametrize(
    ("parent", "identity"), [("parent_id", "id"), ("parentSpanId", "spanId"), ("parent_run_id", "run_id")]
)
def test_the_score_of_a_root_reaches_the_last_call_of_its_trace(
    tmp_path: Path, parent: str, identity: str
) -> None:
    root = {"prompt": "all", "model": None, "trace_id": "t", identity: "r", "score": 0.25}
    last = {**CALL, "prompt": "last", identity: "b", parent: "r", "start_time": "2026-08-03"}
    early = {**CALL, "prompt": "first", identity: "a", parent: "r", "start_time": "2026-08-02"}
    log = read(tmp_path, [root, last, early])
    assert dict(zip(prompts(log), scores(log), strict=True)) == {"last": 0.25, "first": None}
    assert scores(read(tmp_path, [root, {**last, "score": 1}, early])) == [1.0, None]


def test_the_score_of_an_agents_span_reaches_the_call_within_it(tmp_path: Path) -> None:
    agent = {"gen_ai.operation.name": "invoke_agent", "annotations.0.annotation.name": "q"}
    agent["annotations.0.annotation.score"] = 1.0
    chat = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.prompt": "hello"}
    spans = [
        {"span_id": "a", "trace_id": "t", "attributes": agent},
        {"span_id": "b", "trace_id": "t", "parent_span_id": "a", "attributes": chat},
    ]
    assert scores(read_log(write(tmp_path, spans), "otel")) == [1.0]


@pytest.mark.parametrize(
    "feedback",
    [
        {"run_id": "a", "key": "thumb", "score": 1},
        {"span_id": "a", "annotation_name": "thumb", "result": {"score": 1, "label": "up"}},
        {"trace_id": "t", "name": "thumb", "value": True},
        {"weave_ref": "weave:///e/p/call/a", "feedback_type": "reaction", "payload": {"emoji": "👍"}},
    ],
)
def test_feedback_in_a_file_of_its_own_is_joined_by_id(tmp_path: Path, feedback: dict) -> None:
    path = tmp_path / "feedback.jsonl"
    path.write_text(json.dumps(feedback))
    row = {**CALL, "prompt": "hello", "id": "a"}
    assert scores(read(tmp_path, [row], scores=path)) == [1.0]
    attributes = {"gen_ai.request.model": "m", "gen_ai.prompt": "hello"}
    span = {"span_id": "a", "trace_id": "t", "attributes": attributes}
    assert scores(read_log(write(tmp_path, [span]), "otel", scores=path)) == [1.0]


def test_feedback_that_is_about_nothing_here_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "feedback.jsonl"
    for feedback in ({"comment": "nice", "score": 1}, {"run_id": "elsewhere", "key": "k", "score": 1}):
        path.write_text(json.dumps(feedback))
        with pytest.raises(DataError) as error:
            read(tmp_path, [{**CALL, "prompt": "hello", "id": "a"}], scores=path)
        assert "feedback.jsonl" in str(error.value)


def test_of_several_scores_in_a_file_one_is_chosen_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "feedback.jsonl"
    feedback = [{"run_id": "a", "key": "thumb", "score": 1}, {"run_id": "a", "key": "stars", "score": 0.5}]
    path.write_text("\n".join(map(json.dumps, feedback)))
    row = {**CALL, "prompt": "hello", "id": "a"}
    with pytest.raises(DataError, match=r"several scores: thumb \(1\), stars \(1\)"):
        read(tmp_path, [row], scores=path)
    assert scores(read(tmp_path, [row], scores=path, columns={"score": "stars"})) == [0.5]
    with pytest.raises(DataError, match=r"no column 'moons', which source\.columns\.score names"):
        read(tmp_path, [row], scores=path, columns={"score": "moons"})
    # a score column of the table is not the chosen score
    other = {**row, "id": "b", "score": 1}
    assert scores(read(tmp_path, [row, other], scores=path, columns={"score": "stars"})) == [0.5, None]


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ({"id": "a"}, "the first call has a. Name"),
        ({"trace_id": "t"}, "the first call has t. Name"),
        ({}, "the calls have no ids. Name"),
    ],
)
def test_feedback_about_other_calls_is_answered_with_the_ids_of_the_first_call(
    tmp_path: Path, ids: dict, words: str
) -> None:
    path = tmp_path / "feedback.jsonl"
    path.write_text(json.dumps({"run_id": "elsewhere", "key": "thumb", "score": 1}))
    with pytest.raises(DataError, match=words):
        read(tmp_path, [PLAIN | ids], scores=path)


def test_scores_of_a_failed_call_and_of_a_row_without_ids_reach_no_other_call(tmp_path: Path) -> None:
    kept = {**CALL, "prompt": "hello", "id": "a", "parent_id": "r", "status": "success"}
    failed = {**CALL, "prompt": "all", "id": "r", "status": "error", "score": 0.25}
    log = read(tmp_path, [failed, kept])
    assert (scores(log), log.receipt.left_out) == ([None], {"failed": 1})
    nameless = read(tmp_path, [PLAIN | {"prompt": None}, PLAIN | {"score": None}])
    assert scores(nameless) == [None]
    assert not any("about no call" in note for note in nameless.receipt.notes)


def test_a_chosen_score_of_a_span_that_failed_reaches_no_call_of_its_trace(tmp_path: Path) -> None:
    chat = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.prompt": "hello"}
    failed = chat | {"quality": 0.25, "error.type": "timeout"}
    spans = [
        {"span_id": "a", "trace_id": "t", "attributes": failed},
        {"span_id": "b", "trace_id": "t", "attributes": chat},
        {"span_id": "c", "trace_id": "u", "attributes": chat | {"quality": 1.0}},
    ]
    log = read_log(write(tmp_path, spans), "otel", {"score": "attributes.quality"})
    assert (scores(log), log.receipt.left_out) == ([None, 1.0], {"failed": 1})


def test_a_chosen_score_of_an_agents_span_reaches_the_call_within_it(tmp_path: Path) -> None:
    agent = {"gen_ai.operation.name": "invoke_agent", "quality": 0.25}
    chat = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.prompt": "hello"}
    spans = [
        {"span_id": "a", "trace_id": "t", "attributes": agent},
        {"span_id": "b", "trace_id": "t", "parent_span_id": "a", "attributes": chat},
        {"span_id": "c", "trace_id": "u", "attributes": agent | {"quality": None}},
        {"span_id": "d", "trace_id": "u", "parent_span_id": "c", "attributes": chat},
    ]
    columns = {"score": "attributes.quality", "session": None, "task": "trace_id"}
    log = read_log(write(tmp_path, spans), "otel", columns)
    assert scores(log) == [0.25, None]
    assert not any("about no call" in note for note in log.receipt.notes)
    assert log.receipt.notes[0] == (
        "read: the fields of otel, score from attributes.quality, task from trace_id"
    )


def test_columns_of_rules_and_ids_are_read_and_others_are_named(tmp_path: Path) -> None:
    row = PLAIN | {"id": "a", "trace_id": "t", "status": "success", "colour": "red"}
    receipt = read(tmp_path, [row]).receipt
    assert receipt.columns_unused == ["colour"]
    assert receipt.notes == ["read: prompt, model, score, cost; by rules: status, trace_id, id"]


def test_costs_in_another_currency_are_counted_once_each(tmp_path: Path) -> None:
    rows = [
        PLAIN | {"cost_currency": None, "currency": "CNY"},
        PLAIN | {"cost_currency": "USD", "currency": "CNY"},
        PLAIN | {"cost_currency": "CNY", "cost": None},
        PLAIN | {"cost_currency": "CNY"},
    ]
    log = read(tmp_path, rows)
    assert log.frame["cost"].fillna(-1).tolist() == [-1, 0.01, -1, -1]
    assert log.receipt.notes[1:] == ["2 costs in another currency than USD: not known"]


def test_a_named_usage_block_without_counts_is_counted(tmp_path: Path) -> None:
    rows = [PLAIN | {"counts": block} for block in ({"x": 1}, None, "")]
    log = read(tmp_path, rows, columns={"usage": "counts"})
    assert log.receipt.notes[1:] == ["1 usage block in which no provider's counts were found"]
    assert read(tmp_path, [PLAIN | {"usage": {"x": 1}}]).receipt.notes[1:] == []


def test_tokens_of_a_usage_block_fill_in_only_where_no_column_has_any(tmp_path: Path) -> None:
    usage = {"usage": {"prompt_tokens": 9, "completion_tokens": 3}}
    rows = [
        PLAIN | usage | {"n_input_tokens": 5, "n_output_tokens": None},
        PLAIN | usage | {"n_input_tokens": None, "n_output_tokens": 5},
        PLAIN | usage,
    ]
    found = read(tmp_path, rows).details[["input_tokens", "output_tokens"]].fillna(-1)
    assert found.to_numpy().tolist() == [[5, -1], [-1, 5], [9, 3]]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_counts_with_a_column_each_are_a_usage_block(tmp_path: Path, kind: str) -> None:
    counts = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
    row = PLAIN | {"response": "hi there"}
    log = read(tmp_path, [row | counts, row | dict.fromkeys(counts)], kind)
    assert log.details[["input_tokens", "output_tokens"]].fillna(-1).to_numpy().tolist() == [[9, 3], [-1, -1]]
    assert log.receipt.columns_unused == ["response"]
    assert "by rules: prompt_tokens, completion_tokens, total_tokens" in log.receipt.notes[0]


@pytest.mark.parametrize(
    ("columns", "tokens", "usd"),
    [
        ({"input_tokens": "billed_in", "output_tokens": "billed_out"}, [1000, 10], 0.00101),
        ({"input_tokens": "billed_in"}, [1000, 5], 0.001005),
        ({"input_tokens": "billed_in", "output_tokens": None}, [1000, -1], None),
        ({"input_tokens": "nothing", "output_tokens": "billed_out"}, [-1, 10], None),
        ({}, [5, 5], 0.00001),
    ],
)
@pytest.mark.parametrize("holder", [None, "usage"])
def test_tokens_that_columns_name_are_read_from_there_alone(
    tmp_path: Path, holder: str | None, columns: dict, tokens: list, usd: float | None
) -> None:
    counts = {"prompt_tokens": 5, "completion_tokens": 5}
    row = UNPRICED | {"billed_in": 1000, "billed_out": 10, "nothing": None}
    log = read(tmp_path, [row | (counts if holder is None else {holder: counts})], columns=columns)
    found = log.details[["input_tokens", "output_tokens"]].fillna(-1)
    assert found.to_numpy().tolist() == [tokens]
    cost = costs_by_price(log, {"m": CallPrice(input=1.0, output=1.0)})
    assert cost == pytest.approx([np.nan if usd is None else usd], nan_ok=True)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_path_that_no_row_has_is_not_said_to_be_read(tmp_path: Path, kind: str) -> None:
    receipt = read(tmp_path, [PLAIN | {"response": json.dumps({"x": 1})}], kind).receipt
    assert receipt.notes == ["read: prompt, model, score, cost"]
    assert receipt.columns_unused == ["response"]


def test_a_list_of_texts_in_json_is_a_prompt_as_it_stands(tmp_path: Path) -> None:
    for text in ('["hello", "you"]', '{"a": 1}', "[{x: 1}] is a set"):
        assert prompts(read(tmp_path, [PLAIN | {"prompt": text}], "csv")) == [text]
    chat = json.dumps([{"role": "user", "content": "hello"}])
    assert prompts(read(tmp_path, [PLAIN | {"prompt": f" {chat}"}], "csv")) == ["hello"]


def test_a_page_of_an_api_is_its_records_and_a_call_with_data_is_a_call(tmp_path: Path) -> None:
    span = {"span_id": "a", "trace_id": "t"}
    chat = {"gen_ai.request.model": "m", "gen_ai.prompt": "hello"}
    call = {**span, "attributes": chat}
    every = "meta object error has_more first_id last_id next limit offset total count data records traces"
    page = dict.fromkeys(every.split()) | {"data": [call, {**call, "span_id": "b"}]}
    for pages in ([page], [{"data": [call]}, {"data": [{**call, "span_id": "b"}], "has_more": False}]):
        path = write(tmp_path, pages)
        assert prompts(read_log(path, "otel")) == ["hello", "hello"]
    assert prompts(read_log(write(tmp_path, [{**call, "data": []}]), "otel")) == ["hello"]


def test_a_path_chooses_by_value(tmp_path: Path) -> None:
    spans = [
        {"type": "tool", "name": "search"},
        {"type": "llm", "in": {"messages": [{"role": "user", "content": "hello"}], "model": "m"}},
    ]
    rows = [{"spans": spans, "notes": [{"key": "style", "value": 0}, {"key": "right", "value": 1}]}]
    columns = {
        "prompt": "spans[type=llm].in.messages",
        "model": "spans[type=llm].in.model",
        "score": "notes[key=right].value",
    }
    for kind in ("jsonl", "parquet"):
        log = read(tmp_path, rows, kind, columns=columns)
        assert prompts(log) == ["hello"] and scores(log) == [1.0]
    with pytest.raises(DataError):
        read(tmp_path, rows, columns=columns | {"model": "spans[type=llm].out"})


@pytest.mark.parametrize(
    ("cost", "columns", "usd"),
    [
        ({"spend": 1.5}, {"cost": {"path": "spend", "unit": "cents"}}, 0.015),
        ({"spend": 1500}, {"cost": {"path": "spend", "unit": "micros"}}, 0.0015),
        ({"spend": 1500}, {"cost": {"path": "spend", "unit": "nano"}}, 1.5e-6),
        ({"spend": "1.5"}, {"cost": {"path": "spend", "unit": "cents"}}, 0.015),
        ({"spend": "$0.015"}, {"cost": {"path": "spend", "unit": "cents"}}, 0.015),
        ({"costInCents": 1.5}, {"cost": "costInCents"}, 0.015),
        ({"costMicroUsd": 1500}, {"cost": "costMicroUsd"}, 0.0015),
        ({"cost": "1.5 cents"}, {}, 0.015),
        ({"cost": "$0.015"}, {}, 0.015),
        ({"cost": "0.015 USD"}, {}, 0.015),
        ({"cost": 1.5, "ai_model": "m", "req_units": 9}, {}, 0.015),
        ({"cost": 0.015, "usage": {"prompt_tokens": 1, "completion_tokens": 1, "cost": 9}}, {}, 0.015),
    ],
)
def test_a_cost_is_read_in_its_unit(tmp_path: Path, cost: dict, columns: dict, usd: float) -> None:
    log = read(tmp_path, [UNPRICED | cost], columns=columns)
    assert log.frame["cost"].tolist() == [pytest.approx(usd)]


def test_another_currency_is_never_read_as_dollars(tmp_path: Path) -> None:
    for unit in ("EUR", "credits"):
        with pytest.raises(DataError, match=unit):
            read(tmp_path, [PLAIN], columns={"cost": {"path": "cost", "unit": unit}})
    with pytest.raises(DataError, match="EUR"):
        read(tmp_path, [PLAIN | {"cost": "0.02 EUR"}])
    log = read(tmp_path, [PLAIN | {"currency": "CNY"}])
    assert np.isnan(log.frame["cost"][0]) and any("currency" in note for note in log.receipt.notes)


def test_rows_stand_where_the_file_says(tmp_path: Path) -> None:
    items = [{"prompt": "hello", "score": 1}, {"prompt": "bye"}]
    path = tmp_path / "log.json"
    path.write_text(json.dumps({"about": {"model": "m"}, "out": {"items": items}}))
    log = read_log(path, "table", {"model": "about.model"}, rows="out.items")
    assert prompts(log) == ["hello", "bye"] and log.frame["model"].tolist() == ["m", "m"]
    with pytest.raises(DataError, match="items"):
        read_log(path, "table", rows="out")
    path.write_text(json.dumps({"q1": PLAIN, "q2": PLAIN | {"prompt": "bye"}}))
    assert prompts(read_log(path)) == ["hello", "bye"]


@pytest.mark.parametrize(
    ("rows", "document"),
    [
        ("results.results", {"evalId": "e", "results": {"results": [PLAIN]}}),
        ("samples", {"eval": {}, "samples": [PLAIN]}),
    ],
)
def test_rows_of_a_known_tool_may_be_named(tmp_path: Path, rows: str, document: dict) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps(document))
    assert prompts(read_log(path, "table", rows=rows)) == prompts(read_log(path, "table")) == ["hello"]


def test_a_cell_holds_the_scores_of_several_judges(tmp_path: Path) -> None:
    rows = [PLAIN | {"score": "[1, 0]"}, PLAIN | {"score": "0.25"}, PLAIN | {"score": ""}]
    assert scores(read(tmp_path, rows, "csv")) == [0.5, 0.25, None]


def test_words_stand_for_scores(tmp_path: Path) -> None:
    def words(*values: str, **given: Any) -> list[float | None]:
        return scores(read(tmp_path, [PLAIN | {"score": value} for value in values], **given))

    assert words("C", "I", "P", "N") == [1.0, 0.0, 0.5, 0.0]
    assert words("CORRECT", "INCORRECT", "NOT_ATTEMPTED") == [1.0, 0.0, 0.0]
    grades = {"A": 5, "b": 3, "C": 1}
    assert words("A", "B", "C", score_words=grades, score_range=(1, 5)) == [1.0, 0.5, 0.0]
    with pytest.raises(DataError, match="'D'"):
        words("A", "D", score_words=grades, score_range=(1, 5))


@pytest.mark.parametrize(
    "block",
    [
        {"prompt_tokens": 9, "completion_tokens": 3},
        {"prompt_tokens": "9", "completion_tokens": "3"},
        {"inputTokens": 4, "outputTokens": 3, "cacheReadInputTokens": 5, "totalTokens": 12},
        {"promptTokenCount": 9, "candidatesTokenCount": 3},
    ],
)
@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_a_providers_usage_block_is_one_column(tmp_path: Path, block: dict, kind: str) -> None:
    row = PLAIN | {"counts": json.dumps(block) if kind == "csv" else block}
    log = read(tmp_path, [row], kind, columns={"usage": "counts"})
    assert log.details[["input_tokens", "output_tokens"]].to_numpy().tolist() == [[9.0, 3.0]]


def test_the_providers_own_cost_stands_where_there_is_no_other(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "cost": "0.004"}
    assert read(tmp_path, [UNPRICED | {"usage": usage}]).frame["cost"].tolist() == [0.004]
    foreign = read(tmp_path, [UNPRICED | {"usage": usage | {"currency": "CNY"}}])
    assert np.isnan(foreign.frame["cost"][0]) and any("currency" in note for note in foreign.receipt.notes)


def test_the_currency_of_a_usage_block_says_nothing_about_a_cost_of_the_log(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "cost": "0.004"}
    log = read(tmp_path, [PLAIN | {"usage": usage | {"currency": "CNY"}}])
    assert log.frame["cost"].tolist() == [0.01] and len(log.receipt.notes) == 1
    assert len(read(tmp_path, [UNPRICED | {"usage": usage}]).receipt.notes) == 1


def test_unread_fields_that_say_how_a_call_ended_are_named_up_to_200_characters(tmp_path: Path) -> None:
    parts = {f"step{i:02}": {"error": "none"} for i in range(30)}
    note = read(tmp_path, [PLAIN | parts]).receipt.notes[1]
    assert note.startswith("not read, though their names say how a call ended: step00.error, step01.error")
    assert note.endswith("step13.error and 16 others")


def test_rounded_probabilities_are_divided_by_their_sum(tmp_path: Path) -> None:
    rows = [PLAIN | {"pmf": {"m": 0.333, "n": 0.333, "o": 0.333}}, PLAIN | {"pmf": {"m": 0.5, "n": 0.4}}]
    log = read(tmp_path, rows)
    assert sum(log.details["pmf"][0].values()) == pytest.approx(1.0, abs=1e-12)
    assert log.details["pmf"][1] == {"m": 0.5, "n": 0.4}
    assert any("rounded" in note for note in log.receipt.notes)


@pytest.mark.parametrize("form", ["table", "otel"])
def test_large_ids_of_parquet_stay_apart_where_some_are_missing(tmp_path: Path, form: str) -> None:
    first = 2**60 + 1
    ids = [first, first + 1, None, first + 2]
    frame = pd.DataFrame({"trace_id": pd.array(ids, dtype="Int64"), "id": pd.array(ids, dtype="Int64")})
    frame["prompt" if form == "table" else "gen_ai.prompt"] = ["p", "q", "r", "s"]
    frame["model" if form == "table" else "gen_ai.request.model"] = "m"
    frame.to_parquet(tmp_path / "calls.parquet")
    marks = pd.DataFrame({"run_id": pd.array([first + 1, None], dtype="Int64"), "trace_id": [None, "x"]})
    marks.assign(name="thumb", value=1).to_parquet(tmp_path / "marks.parquet")
    columns = {"session": "trace_id"}
    log = read_log(tmp_path / "calls.parquet", form, columns, scores=tmp_path / "marks.parquet")
    assert log.frame["session"].tolist() == [None if name is None else str(name) for name in ids]
    assert scores(log) == [None, 1.0, None, None]


@pytest.mark.parametrize("pair", [("model_a", "model_b"), ("modelA", "modelB"), ("model_1", "model_2")])
def test_battles_are_refused_with_a_word_about_pairs(tmp_path: Path, pair: tuple[str, str]) -> None:
    row = {"prompt": "hello", pair[0]: "x", pair[1]: "y", "winner": pair[0]}
    with pytest.raises(DataError, match="pair"):
        read(tmp_path, [row], columns={"model": pair[0], "score": "winner"})


def test_lists_that_python_printed_are_read_or_refused(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "it's 'hello'"}]
    by_numpy = f"[{{'role': 'system', 'content': 'x'}}\n {str(chat)[1:]}"
    for printed in (str(chat), by_numpy):
        assert prompts(read(tmp_path, [PLAIN | {"prompt": printed}], "csv")) == ["it's 'hello'"]
    with pytest.raises(DataError, match=r"row 2.*Python"):
        read(tmp_path, [PLAIN | {"prompt": "[{'role': 'user', 'content': Message(1)}]"}], "csv")


def test_an_unknown_format_is_answered_with_the_lines_that_read_it(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        read_log(write(tmp_path, [PLAIN]), "datadog")
    assert "format: table" in str(error.value) and "columns: {prompt:" in str(error.value)


def test_a_receipt_names_what_was_read_left_out_and_not_read(tmp_path: Path) -> None:
    rows = [PLAIN | {"question": "hello", "run_type": "llm", "latency": 3, "exception_": None}]
    log = read(tmp_path, [*rows, rows[0] | {"run_type": "tool"}], columns={"prompt": "question"})
    text = str(log.receipt)
    assert "prompt from question" in text and "by rules: run_type" in text
    assert "1 not a chat call (tool)" in text and "not read: " in text and "latency" in text
