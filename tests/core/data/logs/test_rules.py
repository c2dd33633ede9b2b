"""The rules of logs, on members of each kind that the cases stand for."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cabs_core import read_log
from cabs_core.base.errors import DataError
from cabs_core.data.logs.calls import moment
from cabs_core.data.logs.formats import FORMATS
from cabs_core.data.logs.names import alike, base_of
from cabs_core.data.logs.read import Log

CHAT = [{"role": "user", "content": "hello"}]


def attributes(**values: Any) -> list[dict]:
    def any_value(value: Any) -> dict:
        if isinstance(value, bool):
            return {"boolValue": value}
        if isinstance(value, int):
            return {"intValue": str(value)}
        return {"doubleValue": value} if isinstance(value, float) else {"stringValue": str(value)}

    return [{"key": key.replace("__", "."), "value": any_value(value)} for key, value in values.items()]


def span(number: int, parent: int | None = None, **values: Any) -> dict:
    given = {"gen_ai__request__model": "m", "gen_ai__input__messages": json.dumps(CHAT)} | values
    given = {key: value for key, value in given.items() if value is not None}
    ids = {"traceId": "t", "spanId": f"s{number}"} | (
        {} if parent is None else {"parentSpanId": f"s{parent}"}
    )
    return {
        **ids,
        "startTimeUnixNano": str(1_785_578_400_000_000_000 + number),
        "attributes": attributes(**given),
    }


def spans(*records: dict) -> dict:
    return {
        "resourceSpans": [
            {"resource": {"attributes": attributes(service="x")}, "scopeSpans": [{"spans": list(records)}]}
        ]
    }


#: a call that a model answered, as each writer writes it
ANSWERED: dict[str, dict] = {
    "litellm": {
        "call_type": "acompletion",
        "model": "m",
        "messages": CHAT,
        "status": "success",
        "cache_hit": "None",
    },
    "langfuse": {
        "id": "o",
        "traceId": "t",
        "type": "GENERATION",
        "model": "m",
        "input": CHAT,
        "level": "DEFAULT",
    },
    "openai": {
        "request": {"body": {"model": "m", "messages": CHAT}},
        "response": {"status_code": 200, "body": {"model": "m"}},
        "error": None,
    },
    "otel": span(1, gen_ai__operation__name="chat"),
    "openinference": {
        "context": {"span_id": "1", "trace_id": "t"},
        "span_kind": "LLM",
        "status_code": "OK",
        "attributes": {
            "llm.model_name": "m",
            "llm.input_messages": [{"message.role": "user", "message.content": "hello"}],
        },
    },
    "vllm_sr": {
        "selected_model": "m",
        "request_body": json.dumps({"model": "auto", "messages": CHAT}),
        "response_status": 200,
        "lifecycle_state": "completed",
    },
    "helicone": {
        "request_body": {"model": "m", "messages": CHAT},
        "response_status": 200,
        "cache_reference_id": "00000000-0000-0000-0000-000000000000",
        "cache_enabled": True,
    },
}
#: (format, what is otherwise, why it is left out)
LEFT_OUT = [
    (case["format"], case["otherwise"], case["why"])
    for case in map(json.loads, Path(__file__).with_name("left_out.jsonl").read_text().splitlines())
]


def read(tmp_path: Path, form: str, *records: dict, **given: Any) -> Log:
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, records)))
    return read_log(path, form, **given)


def scores(log: Log) -> list[float | None]:
    return [None if np.isnan(v) else float(v) for v in log.frame["score"]]


@pytest.mark.parametrize("form", FORMATS)
def test_every_writer_has_a_call_that_is_kept(tmp_path: Path, form: str) -> None:
    assert form in ANSWERED, f"add to ANSWERED a call, as {form} writes it, that model m answers to hello"
    log = read(tmp_path, form, ANSWERED[form])
    assert log.frame[["prompt", "model"]].to_numpy().tolist() == [["hello", "m"]] and not log.receipt.left_out
    assert log.frame[["score", "cost", "propensity", "task", "tokens"]].isna().all().all()


@pytest.mark.parametrize(("form", "change", "why"), LEFT_OUT)
def test_what_is_no_answer_of_a_model_is_left_out(tmp_path: Path, form: str, change: dict, why: str) -> None:
    other = {"id": "other", "spanId": "other"}
    if form == "openinference":
        other = {"context": {"span_id": "other", "trace_id": "t"}}
    log = read(tmp_path, form, ANSWERED[form], {**ANSWERED[form], **change, **other})
    assert log.receipt.left_out == {why: 1} and len(log) == 1 and log.receipt.records == 2
    assert f"1 {why}" in str(log.receipt)
    with pytest.raises(DataError, match="no calls were found"):
        read(tmp_path, form, {**ANSWERED[form], **change})


NAN = float("nan")


@pytest.mark.parametrize(
    ("form", "empty"),
    [
        ("litellm", {"cache_hit": NAN}),
        ("openai", {"error": {"code": NAN}}),
        ("openai", {"cached": NAN}),
    ],
)
def test_a_nan_in_json_is_an_empty_value(tmp_path: Path, form: str, empty: dict) -> None:
    assert len(read(tmp_path, form, {**ANSWERED[form], **empty})) == 1


@pytest.mark.parametrize("error", [NAN, {"code": NAN}, json.dumps({"code": NAN})])
def test_a_nan_in_the_errors_of_a_table_is_an_empty_value(tmp_path: Path, error: object) -> None:
    row = {"prompt": "p", "model": "m", "score": 1.0}
    assert len(read(tmp_path, "table", row, {**row, "error": error})) == 2


def outcome(**about: Any) -> dict:
    return {"source": "user", "target": "model", **about}


@pytest.mark.parametrize(
    ("outcomes", "score"),
    [
        ([outcome(verdict="good_fit")], 1.0),
        ([outcome(verdict="underpowered")], 0.0),
        ([{"target": "MODEL", "verdict": "Underpowered"}], 0.0),
        ([outcome(verdict="overprovisioned")], 1.0),
        ([outcome(verdict="failed", score=0.25)], 0.25),
        ([outcome(verdict="failed", score=None)], 0.0),
        ([outcome(verdict="failed", target="route")], None),
        ([outcome(verdict="failed", target="provider"), outcome(verdict="good_fit")], 1.0),
        ([], None),
        ([outcome(verdict="failed", target_ref="another")], None),
        ([outcome(verdict="good_fit", target_ref="m")], 1.0),
        ([outcome(verdict="good_fit"), outcome(verdict="failed", source="eval")], 0.5),
    ],
)
def test_the_models_own_outcome_counts(tmp_path: Path, outcomes: list, score: float | None) -> None:
    assert scores(read(tmp_path, "vllm_sr", ANSWERED["vllm_sr"] | {"outcomes": outcomes})) == [score]


def test_a_body_that_is_whole_comes_before_a_prompt_that_was_cut(tmp_path: Path) -> None:
    whole = ANSWERED["vllm_sr"] | {
        "prompt": "hel",
        "prompt_truncated": True,
        "actual_cost": 2.0,
        "currency": "EUR",
    }
    log = read(tmp_path, "vllm_sr", whole, whole | {"request_body": None})
    assert log.frame["prompt"].tolist() == ["hello", "hel"] and log.frame["cost"].isna().all()
    assert "no price in USD" in str(log.receipt) and "the writer had cut" in str(log.receipt)


def test_words_thumbs_and_booleans_go_to_the_ends_of_any_range(tmp_path: Path) -> None:
    values = [True, False, "up", "thumbs_down", "yes", 1, 5, 3, "80%", "", None]
    log = read(
        tmp_path,
        "litellm",
        *({**ANSWERED["litellm"], "metadata": {"rating": v}} for v in values),
        score_range=(1, 5),
    )
    assert scores(log) == [1, 0, 1, 0, 1, 0, 1, 0.5, 0.8, None, None]
    boolean = {"name": "ok", "value": 1, "dataType": "BOOLEAN"}
    assert scores(
        read(tmp_path, "langfuse", ANSWERED["langfuse"] | {"scores": [boolean]}, score_range=(1, 5))
    ) == [1]
    assert scores(
        read(tmp_path, "helicone", ANSWERED["helicone"] | {"feedback_rating": True}, score_range=(-1, 1))
    ) == [1]


def test_minus_one_and_one_alone_are_thumbs_and_said_to_be(tmp_path: Path) -> None:
    calls = [{**ANSWERED["litellm"], "score": v} for v in (1, -1, -1)]
    log = read(tmp_path, "litellm", *calls)
    assert scores(log) == [1, 0, 0] and "-1 and 1" in str(log.receipt)
    with pytest.raises(DataError, match=r"row 2: score is -1; .* set score_range: \[-1, 1\]"):
        read(tmp_path, "litellm", *calls, {**ANSWERED["litellm"], "score": 0.5})


def test_helicone_writes_a_thumb_twice_and_booleans_by_their_names(tmp_path: Path) -> None:
    twice = ANSWERED["helicone"] | {
        "feedback_rating": False,
        "scores": {"helicone-score-feedback": {"value": 0}},
    }
    assert scores(read(tmp_path, "helicone", twice)) == [0]
    named = ANSWERED["helicone"] | {"scores": {"ok-hcone-bool": 1, "taste": 4}}
    assert scores(read(tmp_path, "helicone", named, columns={"score": "ok"}, score_range=(0, 10))) == [1]


def observation(name: str, time: str, **about: Any) -> dict:
    return {
        "id": name,
        "trace_id": "t",
        "type": "GENERATION",
        "start_time": time,
        "provided_model_name": name,
        "session_id": "c",
        "input": json.dumps({"messages": CHAT}),
        "usage_details": {"input": 3, "output": 2},
        "cost_details": {"input": 0.1},
        "total_cost": 0.3,
        **about,
    }


def mark(number: int, trace: str, value: int, **about: Any) -> dict:
    """A score in a file of its own."""
    given = {"name": "thumb", "data_type": "NUMERIC", "source": "API", **about}
    return {"id": str(number), "trace_id": trace, "value": value, **given}


BLOB_SCORES = [
    mark(1, "t", 1, observation_id=None),
    mark(2, "t", 0, observation_id="a"),
    mark(3, "t", 1, observation_id="a", source="EVAL"),
    mark(4, "gone", 1, observation_id=None),
    mark(5, "t", 0, name="remark", data_type="TEXT", string_value="nice"),
]


@pytest.mark.parametrize("place", ["file", "folder", "parquet"])
def test_langfuse_writes_scores_apart(tmp_path: Path, place: str) -> None:
    """A trace's thumb is that of its last call by time, whatever the order of the file; of a failed one it is
    none."""
    calls = [
        observation("late", "2026-08-01 10:00:09.000000"),
        observation("a", "2026-08-01 10:00:01.000000"),
        observation("dead", "2026-08-01 10:00:10.000000", level="ERROR"),
        observation("free", "2026-08-01 10:00:00.000000", cost_details={}, total_cost=0),
    ]
    folder = tmp_path / "export"
    for name, rows in (("observations_v2", calls), ("scores", BLOB_SCORES)):
        (folder / name).mkdir(parents=True)
        (folder / name / "0.jsonl").write_text("\n".join(map(json.dumps, rows)))
    given: dict[str, Any] = {"scores": folder / "scores"}
    path = folder / "observations_v2"
    if place == "folder":
        path, given = folder, {}
    if place == "parquet":
        pd.DataFrame(calls).to_parquet(folder / "calls.parquet")
        path = folder / "calls.parquet"
    log = read_log(path, "langfuse", **given)
    assert log.frame["model"].tolist() == ["late", "a", "free"] and scores(log) == [1, 0.5, None]
    assert log.frame["cost"].tolist()[:2] == [0.3, 0.3] and np.isnan(log.frame["cost"][2])
    assert log.frame["session"].tolist() == ["c"] * 3 and log.frame["tokens"].tolist() == [5, 5, 5]
    assert log.receipt.left_out == {"failed": 1} and re.search(r"\b1 score\b", str(log.receipt))


def test_langfuse_exports_from_its_pages_have_a_column_for_each_score(tmp_path: Path) -> None:
    row = ANSWERED["langfuse"] | {
        "traceName": "chat",
        "traceTags": ["x"],
        "inputUsage": 3,
        "outputUsage": 2,
        "totalCost": 0.1,
    }
    log = read(
        tmp_path,
        "langfuse",
        row | {"taste": ["good", "bad"]},
        row | {"taste": None, "id": "o2"},
        row | {"taste": ["good"], "id": "o3"},
    )
    assert scores(log) == [0.5, None, 1] and log.frame["cost"].tolist() == [0.1] * 3
    frame = pd.DataFrame(
        [row | {"input": json.dumps(CHAT), "traceTags": '["x"]', "taste": "[1]", "note": "5"}]
    )
    frame.to_csv(tmp_path / "rows.csv", index=False)
    assert scores(read_log(tmp_path / "rows.csv", "langfuse")) == [1]
    assert scores(read_log(tmp_path / "rows.csv", "langfuse", {"score": "note"}, (0, 10))) == [0.5]


def test_an_observation_in_two_files_of_langfuse_is_one_call(tmp_path: Path) -> None:
    short = observation("a", "2026-08-01 10:00:01.000000", session_id=None, taste=[0.5])
    other = observation("b", "2026-08-01 10:00:02.000000")
    folder = tmp_path / "export"
    files = {
        "observations": [short, other],
        "observations_v2": [{**short, "taste": None, "session_id": "c", "level": "DEFAULT"}, other],
        "scores": [mark(1, "t", 1, observation_id="b")],
        "scores_of_last_week": [mark(1, "t", 1, observation_id="b"), mark(2, "t", 0, observation_id="b")],
    }
    for name, rows in files.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "0.jsonl").write_text("\n".join(map(json.dumps, rows)))
    log = read_log(folder, "langfuse", {"score": "thumb"})
    assert (log.frame["model"].tolist(), log.frame["session"].tolist()) == (["a", "b"], ["c", "c"])
    assert scores(log) == [None, 0.5] and log.receipt.left_out == {"the same call again": 2}
    assert log.receipt.records == 4
    assert scores(read_log(folder, "langfuse", {"score": "taste"})) == [0.5, None]


def test_a_span_that_was_delivered_twice_is_one_call(tmp_path: Path) -> None:
    evaluation = attributes(gen_ai__evaluation__name="taste", gen_ai__evaluation__score__value=0.5)
    events = {"events": [{"name": "gen_ai.evaluation.result", "attributes": evaluation}]}
    first = span(1, gen_ai__operation__name="chat") | events
    fuller = span(1, gen_ai__operation__name="chat", gen_ai__usage__input_tokens=7) | events
    elsewhere = first | {"traceId": "u", "events": []}
    nameless = {name: value for name, value in elsewhere.items() if name != "traceId"}
    log = read(tmp_path, "otel", spans(first), spans(fuller, elsewhere), nameless, nameless)
    assert log.receipt.left_out == {"the same call again": 1}
    assert log.details["input_tokens"].fillna(-1).tolist() == [7, -1, -1, -1]
    assert not any("several scores" in note for note in log.receipt.notes)


@pytest.mark.parametrize(
    ("form", "name", "is_one"),
    [
        ("helicone", "request_id", True),
        ("vllm_sr", "id", True),
        ("litellm", "id", False),  # an answer's id, which some servers give to many answers
        ("openai", "id", False),
    ],
)
def test_a_record_with_the_id_of_another_is_the_same_call_if_the_id_is_the_calls_own(
    tmp_path: Path, form: str, name: str, is_one: bool
) -> None:
    call = ANSWERED[form] | {name: "x"}
    log = read(tmp_path, form, call, call | {"feedback": True}, call | {name: "y"})
    assert log.receipt.left_out == ({"the same call again": 1} if is_one else {})


def test_an_evaluation_of_an_agent_is_of_its_last_call(tmp_path: Path) -> None:
    agent = span(0, gen_ai__operation__name="invoke_agent", gen_ai__response__id="r")
    result = {
        "timeUnixNano": "1",
        "eventName": "gen_ai.evaluation.result",
        "traceId": "t",
        "spanId": "s0",
        "attributes": attributes(
            **{"gen_ai.evaluation.name": "quality", "gen_ai.evaluation.score.value": 0.75}
        ),
    }
    tool = span(5, 0, gen_ai__operation__name="execute_tool")
    log = read(
        tmp_path,
        "otel",
        spans(agent, span(2, 0), span(9, 5), tool, span(3, 0)),
        {"resourceLogs": [{"scopeLogs": [{"logRecords": [result]}]}]},
    )
    assert scores(log) == [None, 0.75, None] and log.receipt.left_out == {
        "not a chat call (invoke_agent)": 1,
        "not a chat call (execute_tool)": 1,
    }


def test_a_span_around_the_span_of_the_same_call_is_no_second_call(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        "otel",
        spans(
            span(1, gen_ai__operation__name="chat", cost=0.1),
            span(2, 1, gen_ai__operation__name="chat", cost=0.1),
        ),
    )
    assert len(log) == 1 and log.frame["cost"].tolist() == [0.1] and sum(log.receipt.left_out.values()) == 1


@pytest.mark.parametrize(
    "given",
    [
        {
            "llm.input_messages.0.message.role": "system",
            "llm.input_messages.0.message.content": "s",
            "llm.input_messages.1.message.role": "user",
            "llm.input_messages.1.message.contents.0.message_content.type": "text",
            "llm.input_messages.1.message.contents.0.message_content.text": "hello",
        },
        {"llm": {"input_messages": [{"message": {"role": "user", "content": "hello"}}]}},
        {"llm.input_messages": json.dumps([{"message.role": "user", "message.content": "hello"}])},
        {"llm.prompts.0.prompt.text": "hello"},
        {"input.value": "hello"},
        {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "hello"},
    ],
)
def test_messages_in_attributes(tmp_path: Path, given: dict) -> None:
    about = {
        "openinference.span.kind": "LLM",
        "llm.model_name": "m",
        "evaluations.0.evaluation.name": "q",
        "evaluations.0.evaluation.score": 0.5,
    }
    log = read(tmp_path, "openinference", {"name": "llm", "attributes": about | given})
    assert log.frame["prompt"].tolist() == ["hello"] and scores(log) == [0.5]
    columns = {
        f"attributes.{key}": json.dumps(v) if isinstance(v, dict) else v for key, v in (about | given).items()
    }
    assert read(tmp_path, "openinference", columns).frame["prompt"].tolist() == ["hello"]  # a table of spans


def test_a_batch_is_joined_with_its_requests(tmp_path: Path) -> None:
    asked = [
        {
            "custom_id": f"b{i}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": "auto",
                "messages": [{"role": "user", "content": f"q{i}"}],
                "metadata": {"score": "1"},
            },
        }
        for i in range(3)
    ]
    answers = [
        {
            "custom_id": f"b{i}",
            "response": {"status_code": 200, "body": {"model": "m", "usage": {"total_tokens": 7}}},
        }
        for i in (2, 0)
    ]
    (tmp_path / "batch").mkdir()
    for name, rows in (("in", asked), ("out", answers)):
        (tmp_path / "batch" / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    log = read_log(tmp_path / "batch", "openai")
    assert sorted(zip(log.frame["prompt"], log.frame["model"], strict=True)) == [("q0", "m"), ("q2", "m")]
    assert log.receipt.left_out == {"not finished": 1} and scores(log) == [1, 1]


@pytest.mark.parametrize("form", ["table", "otel"])
@pytest.mark.parametrize("what", ["prompt", "propensity", "time", "tokens"])
def test_a_path_that_stands_in_no_record_is_named(tmp_path: Path, form: str, what: str) -> None:
    record = {"prompt": "p", "model": "m", "score": 1} if form == "table" else ANSWERED[form]
    with pytest.raises(DataError, match=r"'nowhere\.at_all'"):
        read(tmp_path, form, record, columns={what: "nowhere.at_all"})


def test_a_named_path_is_the_only_place_that_is_read(tmp_path: Path) -> None:
    calls = [
        ANSWERED["litellm"] | {"model_group": "auto", "response_cost": 1.0, "usd": 0.1},
        ANSWERED["litellm"] | {"response_cost": 1.0},
    ]
    log = read(tmp_path, "litellm", *calls, columns={"cost": "usd", "session": None})
    assert log.frame["cost"].fillna(-1).tolist() == [0.1, -1] and log.frame["session"].isna().all()
    assert read(tmp_path, "litellm", *calls, columns={"model": "model_group"}).receipt.left_out == {
        "no model": 1
    }
    with pytest.raises(DataError, match=r"columns.*'costs'.*prompt, model"):
        read(tmp_path, "litellm", *calls, columns={"costs": "usd"})


def test_outcomes_of_a_router_count_if_they_are_about_the_model(tmp_path: Path) -> None:
    call = ANSWERED["vllm_sr"]
    good = {"verdict": "good", "score": 0.5}
    for outcomes in (
        [good],
        ["text", good],
        [{**good, "target": "Model"}],
        [{"score": 0.25, "target": "route"}, good],
    ):
        assert scores(read(tmp_path, "vllm_sr", call | {"outcomes": outcomes})) == [0.5]
    assert scores(read(tmp_path, "vllm_sr", call | {"outcome": good})) == [0.5]
    named = read(tmp_path, "vllm_sr", call | {"outcomes": [{**good, "name": "taste"}]})
    assert named.receipt.notes[0] == "read: the fields of vllm_sr, score from taste"
    nameless = read(tmp_path, "vllm_sr", call | {"outcomes": [good]})
    assert nameless.receipt.notes[0] == "read: the fields of vllm_sr, score from outcome"


def test_a_cost_of_a_router_in_another_currency_is_not_known(tmp_path: Path) -> None:
    call = ANSWERED["vllm_sr"] | {"actual_cost": 0.25}
    log = read(tmp_path, "vllm_sr", call, call | {"currency": "usd"}, call | {"currency": "EUR"})
    assert log.frame["cost"].fillna(-1).tolist() == [0.25, 0.25, -1]


def test_the_address_of_a_request_says_that_it_is_no_chat(tmp_path: Path) -> None:
    call = ANSWERED["openai"]
    chat = {"url": "/v1/chat/completions", "method": "POST"}
    other = {**call["request"], "url": "/v1/embeddings"}
    log = read(tmp_path, "openai", call | chat, call | {"request": other}, call | {"url": "/v1/embeddings"})
    assert len(log) == 1
    assert sum(log.receipt.left_out.values()) == 2


@pytest.mark.parametrize(
    "url",
    [
        "/v1/chat/completions",
        "/chat/completions",
        "/v1/messages/",
        "/openai/v1/responses",
        "v1/completions",
        "https://api.openai.com/v1/chat/completions",
        "HTTPS://a.example:8443/openai/deployments/X/chat/completions?api-version=2024-10-21#top",
        "https://bedrock-runtime.us-east-1.amazonaws.com/model/m/converse-stream",
        "https://a.example/v1beta/models/m:generateContent",
    ],
)
def test_the_address_of_a_chat_may_have_a_host_a_deployment_and_a_query(tmp_path: Path, url: str) -> None:
    asked = {"custom_id": "b", "method": "POST", "url": url, "body": {"model": "auto", "messages": CHAT}}
    answered = {"custom_id": "b", "response": {"status_code": 200, "body": {"model": "m"}}, "error": None}
    pair = {"request": {"url": url, "body": {"messages": CHAT}}, "response": {"body": {"model": "m"}}}
    log = read(tmp_path, "openai", asked, answered, pair)
    assert log.frame["prompt"].tolist() == ["hello", "hello"] and not log.receipt.left_out


@pytest.mark.parametrize(
    ("url", "path"),
    [
        (
            "https://a.example/openai/deployments/X/embeddings?api-version=1",
            "/openai/deployments/x/embeddings",
        ),
        ("/v1/messages/count_tokens", "/v1/messages/count_tokens"),
        ("/v1/mycompletions", "/v1/mycompletions"),
    ],
)
def test_another_address_of_a_host_is_no_chat(tmp_path: Path, url: str, path: str) -> None:
    log = read(tmp_path, "openai", ANSWERED["openai"], ANSWERED["openai"] | {"url": url})
    assert log.receipt.left_out == {f"not a chat call ({path})": 1}


def test_the_status_of_a_response_comes_before_the_one_beside_it(tmp_path: Path) -> None:
    call = ANSWERED["openai"]
    body = call["response"]["body"]
    log = read(
        tmp_path,
        "openai",
        call | {"status_code": 500},
        call | {"response": {"body": body}, "status_code": 500},
        call | {"response": {"body": body}, "status_code": 200},
        call | {"response": {"body": body, "status_code": 500}, "status_code": 200},
    )
    assert log.details.index.tolist() == [0, 1]
    assert log.receipt.left_out == {"failed": 2}


def test_an_empty_object_is_passed_over_for_the_next_place_of_a_request(tmp_path: Path) -> None:
    call = ANSWERED["openai"]
    log = read(tmp_path, "openai", call | {"request": {}, "body": call["request"]["body"]})
    assert log.frame["prompt"].tolist() == ["hello"]


def test_a_thumb_of_helicone_comes_before_its_copy_and_numbers_stay_numbers(tmp_path: Path) -> None:
    call = ANSWERED["helicone"]
    thumb = {"scores": {"helicone-score-feedback": {"value": 0}}}
    up = {"scores": {"helicone-score-feedback": {"value": 1}}}
    assert scores(read(tmp_path, "helicone", call | thumb | {"feedback_rating": True})) == [1]
    assert scores(read(tmp_path, "helicone", call | up, call | thumb)) == [1, 0]
    named = call | {"scores": {"ok-hcone-bool": 3, "taste": 4, "word-hcone-bool": "false"}}
    for name, value in (("ok", 1.0), ("taste", 0.4), ("word", 0.0)):
        log = read(tmp_path, "helicone", named, columns={"score": name}, score_range=(0, 10))
        assert scores(log) == [value]


def test_a_request_of_helicone_to_another_address_is_no_chat(tmp_path: Path) -> None:
    call = ANSWERED["helicone"]
    for field in ("request_path", "target_url"):
        log = read(tmp_path, "helicone", call, call | {field: "https://a.example/v1/embeddings/"})
        assert log.receipt.left_out == {"not a chat call (embeddings)": 1}
    chat = call | {"request_path": "https://a.example/v1/chat/completions"}
    assert read(tmp_path, "helicone", chat).frame["prompt"].tolist() == ["hello"]


def test_scores_of_spans_keep_their_names(tmp_path: Path) -> None:
    named = span(1, annotations__0__annotation__name="taste", annotations__0__annotation__score=0.5)
    log = read(tmp_path, "otel", spans(named))
    assert (scores(log), log.receipt.notes[0]) == ([0.5], "read: the fields of otel, score from taste")
    nameless = span(1, annotations__0__annotation__score=0.5)
    assert read(tmp_path, "otel", spans(nameless)).receipt.notes[0].endswith("score")
    evaluation = attributes(gen_ai__evaluation__name="taste", gen_ai__evaluation__score__value=0.5)
    event = {"name": "gen_ai.evaluation.result", "attributes": evaluation}
    log = read(tmp_path, "otel", spans(span(1) | {"events": [event]}))
    assert (scores(log), log.receipt.notes[0]) == ([0.5], "read: the fields of otel, score from taste")


def test_messages_of_events_are_those_of_gen_ai_alone(tmp_path: Path) -> None:
    def event(name: str, text: str) -> dict:
        return {"name": name, "attributes": attributes(content=text)}

    others = [event("app.user.message", "no"), event("gen_ai.choice", "no")]
    events = [event("gen_ai.user.message", "yes"), *others]
    log = read(tmp_path, "otel", spans(span(1, gen_ai__input__messages=None) | {"events": events}))
    assert log.frame["prompt"].tolist() == ["yes"]
    assert log.frame["session"].tolist() == ["t"]  # no conversation is named, so the trace is one


def test_a_span_of_jaeger_follows_another_one_and_is_the_child_of_a_third(tmp_path: Path) -> None:
    def jaeger(name: str, *references: tuple[str, str]) -> dict:
        given = {"gen_ai.operation.name": "chat", "gen_ai.request.model": name, "gen_ai.prompt": name}
        return {
            "traceID": "t",
            "spanID": name,
            "references": [{"refType": kind, "traceID": "t", "spanID": other} for kind, other in references],
            "tags": [{"key": key, "type": "string", "value": value} for key, value in given.items()],
        }

    child = jaeger("c", ("FOLLOWS_FROM", "a"), ("CHILD_OF", "b"))
    log = read(tmp_path, "otel", jaeger("a"), jaeger("b"), child)
    assert log.frame["prompt"].tolist() == ["a", "c"]  # `b` holds the span of the call itself


def test_langfuse_reads_either_spelling_and_knows_its_own_judges(tmp_path: Path) -> None:
    call = ANSWERED["langfuse"]
    counts = {"input": 3, "input_cached_tokens": 2, "output": 4, "output_reasoning": None}
    for name in ("usageDetails", "usage_details"):
        log = read(tmp_path, "langfuse", call | {name: counts})
        assert log.details[["input_tokens", "output_tokens"]].to_numpy().tolist() == [[5, 4]]
    judge = call | {"environment": "langfuse-llm-as-a-judge"}
    own = call | {"environment": "production", "id": "o2"}
    log = read(tmp_path, "langfuse", own, judge)
    assert (len(log), log.receipt.left_out) == (1, {"not a chat call (evaluator)": 1})


def test_langfuse_knows_no_price_where_the_details_of_a_cost_of_0_are_empty(tmp_path: Path) -> None:
    call = ANSWERED["langfuse"]
    log = read(
        tmp_path,
        "langfuse",
        call | {"costDetails": {}, "totalCost": 0},
        call | {"id": "o2", "costDetails": {"input": 0}, "totalCost": 0},
        call | {"id": "o3", "costDetails": {}, "totalCost": 0.5},
        call | {"id": "o4", "totalCost": 0},
    )
    assert log.frame["cost"].fillna(-1).tolist() == [-1, 0, 0.5, 0]


@pytest.mark.parametrize("is_nested", [True, False])
@pytest.mark.parametrize(
    "unpriced", [{"calculatedTotalCost": None, "costDetails": {}}, {"costDetails": "{}"}]
)
def test_a_trace_of_langfuse_lends_no_sums_to_its_generations(
    tmp_path: Path, unpriced: dict, is_nested: bool
) -> None:
    sums = {"totalCost": 0.5, "totalTokens": 99, "usage": {"promptTokens": 90, "completionTokens": 9}}
    trace = {"id": "t", "sessionId": "s", "latency": 3.5, **sums}
    calls = [
        ANSWERED["langfuse"] | {"id": "a", "costDetails": {"total": 0.01}},
        ANSWERED["langfuse"] | {"id": "b", **unpriced},
    ]
    records = [trace | {"observations": calls}] if is_nested else [trace, *calls]
    log = read(tmp_path, "langfuse", *records)
    assert log.frame["cost"].fillna(-1).tolist() == [0.01, -1]
    assert log.frame["session"].tolist() == ["s", "s"] and log.frame["tokens"].isna().all()
    assert "1 call whose writer knew no price in USD" in str(log.receipt)
    with pytest.raises(DataError, match="no record has 'latency'"):
        read(tmp_path, "langfuse", *records, columns={"task": "latency"})


def test_a_row_of_langfuse_with_a_value_or_a_type_of_data_is_a_score_and_no_call(tmp_path: Path) -> None:
    call = ANSWERED["langfuse"]
    plain = {"id": "s", "name": "taste", "traceId": "t", "value": 0.5}
    for kind in ("dataType", "data_type"):
        comment = {"id": "c", "name": "remark", "traceId": "t", kind: "TEXT", "comment": "nice"}
        log = read(tmp_path, "langfuse", call, plain, comment)
        assert scores(log) == [0.5]
        assert (log.receipt.records, log.receipt.left_out) == (1, {})
        assert log.receipt.notes[0] == "read: the fields of langfuse, score from taste"


def test_a_score_of_langfuse_reaches_the_calls_within_the_observation_that_it_names(tmp_path: Path) -> None:
    call = ANSWERED["langfuse"]
    agent = {"id": "agent", "traceId": "t", "type": "AGENT"}
    other = call | {"id": "p", "startTime": "2026-08-02T00:00:00Z"}
    for parent in ("parentObservationId", "parent_observation_id"):
        inner = call | {parent: "agent", "startTime": "2026-08-01T00:00:00Z"}
        for kind in ("dataType", "data_type"):
            score = {"id": "s", "name": "taste", kind: "NUMERIC", "value": 0.5}
            of_agent = score | {"observationId": "agent", "traceId": "t"}
            assert scores(read(tmp_path, "langfuse", agent, inner, other, of_agent)) == [0.5, None]


def test_a_score_of_langfuse_for_an_observation_that_is_not_there_is_no_score_of_its_trace(
    tmp_path: Path,
) -> None:
    score = {"id": "s", "name": "taste", "dataType": "NUMERIC", "value": 0.5}
    log = read(tmp_path, "langfuse", ANSWERED["langfuse"], score | {"observationId": "gone", "traceId": "t"})
    assert scores(log) == [None] and re.search(r"\b1 score\b", str(log.receipt))


def test_a_line_may_hold_the_spans_or_the_logs_of_one_resource(tmp_path: Path) -> None:
    evaluation = attributes(gen_ai__evaluation__name="taste", gen_ai__evaluation__score__value=0.5)
    record = {"eventName": "gen_ai.evaluation.result", "spanId": "s1", "attributes": evaluation}
    (of_spans,) = spans(span(1))["resourceSpans"]
    log = read(tmp_path, "otel", of_spans, {"scopeLogs": [{"logRecords": [record]}]})
    assert log.frame["prompt"].tolist() == ["hello"] and scores(log) == [0.5]


def test_a_prompt_of_digits_stays_a_text_and_a_count_in_a_text_is_a_number(tmp_path: Path) -> None:
    given = span(1, gen_ai__input__messages=None, gen_ai__prompt="42", gen_ai__usage__input_tokens=7)
    log = read(tmp_path, "otel", spans(given))
    assert log.frame["prompt"].tolist() == ["42"] and log.details["input_tokens"].tolist() == [7.0]


def test_an_attribute_that_only_looks_like_a_numbered_message_is_no_message(tmp_path: Path) -> None:
    numbered = {"gen_ai__prompt__0__role": "user", "gen_ai__prompt__0__content": "hello"}
    others = {"gen_ai__prompt__template": "no", "1__content": "no"}
    log = read(tmp_path, "otel", spans(span(1, gen_ai__input__messages=None, **numbered, **others)))
    assert log.frame["prompt"].tolist() == ["hello"]


def test_counts_of_tokens_may_stand_in_nested_attributes(tmp_path: Path) -> None:
    nested = {"request": {"model": "m"}, "prompt": "hello", "usage": {"input_tokens": 9, "output_tokens": 3}}
    log = read(tmp_path, "otel", {"span_id": "s", "trace_id": "t", "attributes": {"gen_ai": nested}})
    assert log.details[["input_tokens", "output_tokens"]].to_numpy().tolist() == [[9.0, 3.0]]


def test_a_span_whose_id_is_that_of_its_trace_is_a_call(tmp_path: Path) -> None:
    log = read(tmp_path, "otel", spans(span(1, gen_ai__operation__name="chat") | {"spanId": "t"}))
    assert log.frame["prompt"].tolist() == ["hello"] and not log.receipt.left_out


def test_spans_of_jaeger_stand_in_their_trace_or_beside_the_processes(tmp_path: Path) -> None:
    given = {"gen_ai.request.model": "m", "gen_ai.prompt": "hello"}
    tags = [{"key": key, "type": "string", "value": value} for key, value in given.items()]
    for about in ({"traceID": "t"}, {"processes": {}}):
        record = about | {"spans": [{"traceID": "t", "spanID": "s", "tags": tags}]}
        assert read(tmp_path, "otel", record).frame["prompt"].tolist() == ["hello"]


def test_messages_may_be_a_list_of_structured_values(tmp_path: Path) -> None:
    fields = attributes(role="user", content="hello")
    messages = {"arrayValue": {"values": [{"kvlistValue": {"values": fields}}]}}
    given = span(1, gen_ai__input__messages=None)
    given["attributes"].append({"key": "gen_ai.input.messages", "value": messages})
    assert read(tmp_path, "otel", spans(given)).frame["prompt"].tolist() == ["hello"]


def test_a_score_at_a_span_around_the_span_of_the_same_call_is_that_of_the_call(tmp_path: Path) -> None:
    outer = span(1, gen_ai__operation__name="chat", app__grade=0.5)
    inner = span(2, 1, gen_ai__operation__name="chat")
    log = read(tmp_path, "otel", spans(outer, inner), columns={"score": "app.grade"})
    assert scores(log) == [0.5]


def test_columns_are_those_of_all_records_and_what_is_not_read_is_named(tmp_path: Path) -> None:
    rows = [
        {"prompt": "p", "model": "m"},
        {"prompt": [{"role": "user", "content": "q"}], "model": "m", "session": "s", "score": "87%"},
        {"prompt": " ", "model": "m", "extra": {"deep": 2}},
        {"prompt": "r", "model": None, "time": "2026-08-01T10:00:00+02:00"},
        {"prompt": "t", "model": 7, "time": 1785578400, "score": 1 + 1e-15, "extra": {"deep": 0.5}},
    ]
    log = read(tmp_path, "table", *rows, columns={"propensity": "extra.deep"})
    assert log.frame["prompt"].tolist() == ["p", "q", "t"] and log.frame["model"].tolist() == ["m", "m", "7"]
    assert log.frame["session"].tolist() == [None, "s", None] and scores(log) == [None, 0.87, 1.0]
    assert log.receipt.left_out == {"no prompt": 1, "no model": 1} and log.receipt.scored == 2
    assert (
        log.frame["time"].isna().tolist() == [True, True, False]
        and str(log.frame["time"][2]) == "2026-08-01 10:00:00+00:00"
    )
    receipt = str(read(tmp_path, "table", rows[0] | {"time": "soon"}).receipt)
    assert "1 time" in receipt and "'soon'" in receipt
    assert "not read: other" in str(read(tmp_path, "table", rows[0] | {"other": 1}).receipt)
    with pytest.raises(DataError, match=r"row 3: propensity .* is 2"):
        read(tmp_path, "table", *rows[:2], rows[2] | {"prompt": "p"}, columns={"propensity": "extra.deep"})


@pytest.mark.parametrize(
    ("value", "time"),
    [
        ("03/04/2026 10:00", None),
        ("13/04/2026 10:00", None),
        ("04-03-2026", None),
        ("2026-13-04", None),
        ("20261301", None),
        ("now", None),
        ("Apr 3, 2026", None),
        ("20260401", "2026-04-01 00:00:00"),
        (20260401, "2026-04-01 00:00:00"),
        (20260401.0, "2026-04-01 00:00:00"),
        ("20260401T1000", "2026-04-01 10:00:00"),
        ("20260401T100000.5+0200", "2026-04-01 08:00:00.500000"),
        ("2026-04-03 10:00:09.25", "2026-04-03 10:00:09.250000"),
        ("2026/04/03 10:00", "2026-04-03 10:00:00"),
        ("2026-04-03T10:00:00-02:00", "2026-04-03 12:00:00"),
        (" 2026-04-03T10:00Z ", "2026-04-03 10:00:00"),
        ("1785578400", "2026-08-01 10:00:00"),
        (1785578400000, "2026-08-01 10:00:00"),
        (10**400, None),
    ],
)
def test_a_text_is_a_time_if_it_can_be_read_in_one_way(value: Any, time: str | None) -> None:
    found = moment(value)
    assert (None if found is None else str(found.tz_localize(None))) == time


def test_times_that_begin_with_a_day_or_a_month_are_counted_with_an_example(tmp_path: Path) -> None:
    times = ["2026-04-03", "03/04/2026 10:00", "13/04/2026 10:00"]
    log = read(tmp_path, "table", *({"prompt": "p", "model": "m", "time": time} for time in times))
    assert log.frame["time"].isna().tolist() == [False, True, True]
    assert "2 times that could not be read, such as '03/04/2026 10:00'" in str(log.receipt)


@pytest.mark.parametrize(
    ("names", "one"),
    [
        (["gpt-x", "openai/gpt-x", "GPT-X", " gpt-x "], True),
        (["gpt-x", "gpt-x-2026-03-05", "azure/gpt-x@20260305", "gpt-x-latest"], True),
        (["claude-3-5-sonnet", "us.anthropic.claude-3-5-sonnet-20240620-v1:0"], True),
        (["gpt-4-0613", "gpt-4-1106"], True),
        (["openrouter/meta-llama/llama-3-8b:free", "llama-3-8b"], True),
        (["gpt x", "gpt-x", "gpt_x"], True),
        (["gpt-4o", "gpt-4o-mini"], False),
        (["llama-3-8b", "llama-3-70b"], False),
        (["qwen-2.5", "qwen-3"], False),
        (["m-1000", "m"], False),
    ],
)
def test_names_that_look_like_one_model(names: Sequence[str], one: bool) -> None:
    assert (len({base_of(name) for name in names}) == 1) is one
    assert bool(alike(dict.fromkeys(names, 1))) is one


ANTHROPIC = {"input_tokens": 10, "cache_read_input_tokens": 90, "output_tokens": 5}
GEMINI = {"promptTokenCount": 100, "candidatesTokenCount": 2, "thoughtsTokenCount": 3}


@pytest.mark.parametrize(
    ("format", "entry"),
    [
        ("openai", {"response": {"model": "m", "usage": ANTHROPIC}}),
        ("openai", {"response": {"model": "m"}, "usage": GEMINI}),
        ("litellm", {"prompt_tokens": 100, "completion_tokens": 2, "total_tokens": 105}),
        ("litellm", {"prompt_tokens": 100, "metadata": {"usage_object": json.dumps(GEMINI)}}),
        ("helicone", {"response_body": {"model": "m", "usage": ANTHROPIC}}),
        ("helicone", {"response_body": {"model": "m", "usageMetadata": GEMINI}}),
        ("vllm_sr", {"usage": GEMINI}),
        ("langfuse", {"usageDetails": {"input": 10, "input_cached_tokens": 90, "output": 5, "total": 105}}),
        ("langfuse", {"usage": {"promptTokens": 100, "completionTokens": 5}}),
        ("otel", span(1, gen_ai__usage__input_tokens=100, gen_ai__usage__output_tokens=5)),
    ],
)
def test_tokens_of_a_log_are_counted_as_those_of_a_reply(tmp_path, format, entry):
    log = read(tmp_path, format, ANSWERED[format] | entry)
    assert log.details[["input_tokens", "output_tokens"]].values.tolist() == [[100, 5]]


CACHE = {"cache_read_input_tokens": 9000, "cache_creation_input_tokens": 500}
CONVENTION = {"cache_read.input_tokens": 9000, "cache_creation.input_tokens": 500}


@pytest.mark.parametrize(
    ("reported", "total", "counted"),
    [
        ({"input_tokens": 10000, **CACHE}, {"llm.usage.total_tokens": 10020}, 10000),
        ({"input_tokens": 10000, **CACHE}, {}, 10000),
        ({"input_tokens": 10000, **CONVENTION}, {}, 10000),
        ({"prompt_tokens": 10000, **CACHE}, {}, 10000),
        ({"input_tokens": 500, **CACHE}, {}, 10000),
        ({"input_tokens": 500, **CONVENTION}, {"llm.usage.total_tokens": 520}, 10000),
        ({"input_tokens": 10000, **CACHE}, {"gen_ai.usage.total_tokens": 19520}, 19500),
        ({"input_tokens": 10000, **CACHE}, {"llm.token_count.prompt": 19500}, 10000),
    ],
)
def test_the_cache_is_part_of_the_input_of_a_span_unless_the_counts_say_otherwise(
    tmp_path: Path, reported: dict, total: dict, counted: int
) -> None:
    attributes = {"gen_ai.request.model": "m", "gen_ai.prompt": "hello", "gen_ai.usage.output_tokens": 20}
    attributes |= {f"gen_ai.usage.{name}": count for name, count in reported.items()} | total
    log = read(tmp_path, "otel", {"span_id": "s", "trace_id": "t", "attributes": attributes})
    assert log.details[["input_tokens", "output_tokens"]].to_numpy().tolist() == [[counted, 20]]
    assert log.frame["tokens"].tolist() == [counted + 20]
    counts = log.details["counts"][0]
    assert (counts.cached, counts.cache_write) == (9000, 500)


def test_a_stored_request_may_have_its_messages_in_a_body(tmp_path: Path) -> None:
    stored = {"messages": {}, "proxy_server_request": {"body": {"messages": CHAT}}}
    assert read(tmp_path, "litellm", ANSWERED["litellm"] | stored).frame["prompt"].tolist() == ["hello"]


def test_a_column_may_be_an_attribute_of_a_span(tmp_path: Path) -> None:
    log = read(tmp_path, "otel", span(1, app__route="tiny"), columns={"model": "attributes.app.route"})
    assert log.frame["model"].tolist() == ["tiny"]


def test_a_verdict_that_nobody_knows_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'meh'"):
        read(tmp_path, "vllm_sr", ANSWERED["vllm_sr"] | {"outcomes": [outcome(verdict="meh")]})


def test_an_attribute_that_nobody_reads_is_named(tmp_path: Path) -> None:
    log = read(tmp_path, "otel", spans(span(1, gen_ai__operation__name="chat")))
    assert log.receipt.columns_unused == ["service"]


def test_providers_before_a_colon_are_no_model() -> None:
    assert base_of("openai:chat:gpt-x") == base_of("openai:gpt-x") == base_of("gpt-x")
    assert alike({"openai:a": 2, "openai:b": 2}) == []
