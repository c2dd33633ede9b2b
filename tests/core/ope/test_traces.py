"""Logs of other tools: small samples written from their documentation, and what is said of a shape that is unknown."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabs_core.errors import DataError, PoolError
from cabs_core.ope.source import read_logged
from cabs_core.ope.traces import FORMATS, at, read_traces, routed_text, shape
from cabs_core.pool_files import read_pool_file
from cabs_core.pool_files.config import Columns

SAMPLES = Path(__file__).with_name("traces")
SUFFIX = {"langfuse": ".json", "otel": ".json"}


def read(form: str, **columns: str):
    return read_traces(SAMPLES / f"{form}{SUFFIX.get(form, '.jsonl')}", form, Columns(**columns))


def rows(frame) -> list[tuple]:
    return [
        (r.prompt, r.model, None if np.isnan(r.score) else r.score)
        for r in frame.assign(score=frame["score"].astype(float)).itertuples()
    ]


#: sample, columns of the pool file -> (prompt, model, score) of every call, and columns of the first calls
TRACES = {
    "litellm": ({}, [
        ("Order 1234, please.", "small", 1.0), ("Compare these two phones.", "large", 0.0), ("Do you ship to Norway?", "small", None),
    ], {"cost": [0.00021, 0.0042, 0.0001], "n_output_tokens": [20, 80, 3], "session": ["t-1", "t-2"]}),
    "langfuse": ({"score": "user-thumb"}, [  # a trace's score is its last generation's
        ("Where is my parcel?", "claude-3-haiku", 0.0), ("Where is my parcel?", "claude-3-5-sonnet", 1.0),
        ("Thanks!", "claude-3-haiku", None),
    ], {"cost": [0.0005, 0.0006, 0.00001], "session": ["s-1", "s-1", "s-1"]}),
    "openai": ({}, [  # batches and stored completions are paired
        ("Is it waterproof?", "gpt-4o-mini-2024-07-18", 5.0), ("Write a long review.", "gpt-4o-2024-08-06", 2.0),
        ("Refund?", "gpt-4o-mini", None),
    ], {"n_output_tokens": [2, 400, 5]}),
    "otel": ({}, [  # evaluations come as events and as logs
        ("How do I return shoes?", "gpt-4o-mini-2024-07-18", 0.9), ("Which size fits me?", "gpt-4o", 0.2),
        ("Any discount?", "gpt-4o", None),
    ], {"n_input_tokens": ["31", "5"], "session": ["conv-1"]}),
    "vllm_sr": ({}, [("Add 17 and 25.", "qwen3-32b", 1.0), ("Hello!", "qwen3-4b", None)], {"task": ["math", "other"], "n_output_tokens": [90]}),
    "helicone": ({}, [
        ("Where is the invoice?", "gpt-4o-mini-2024-07-18", 1.0), ("Cancel it.", "gpt-4o", 0.0), ("And now?", "gpt-4o", None),
    ], {"cost": [0.0000104, 0.001]}),
}  # fmt: skip


@pytest.mark.parametrize("form", TRACES)
def test_calls_of_other_tools(form: str) -> None:
    columns, calls, others = TRACES[form]
    frame, left_out = read(form, **columns)
    assert rows(frame) == calls and left_out == {}
    for name, values in others.items():
        assert frame[name].tolist()[: len(values)] == values, name


def test_a_score_is_chosen_by_its_name() -> None:
    with pytest.raises(DataError, match=r"several scores: user-thumb \(2\), helpfulness \(1\)"):
        read("langfuse")
    assert rows(read("langfuse", score="helpfulness")[0])[1][2] == 0.75


def test_an_unknown_shape_is_shown_with_the_mapping_that_is_missing(tmp_path) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_text(json.dumps({"q": {"text": "hi"}, "calls": [{"llm": "a", "good": "yes"}], "usd": 0.1}))
    for form in FORMATS:
        with pytest.raises(
            DataError, match=r"The first record has \{q \{text\}, calls \[\{llm, good\}\], usd\}|no calls"
        ):
            read_traces(path, form, Columns())
    mapped = Columns(prompt="q.text", model="calls.0.llm", score="calls.0.good", cost="usd")
    frame, _ = read_traces(path, "openai", mapped)
    assert rows(frame) == [("hi", "a", 1.0)] and frame["cost"].tolist() == [0.1]
    with pytest.raises(DataError, match="no record has a score 'stars'"):
        read_traces(path, "openai", Columns(prompt="q.text", model="calls.0.llm", score="stars"))


@pytest.mark.parametrize(
    ("text", "why"),
    [("", "no records"), ("[1]", "record 1 is int"), ("{", "not JSON"), ("[" * 100_000, "not JSON|nested")],
)
def test_files_that_are_no_logs(tmp_path, text: str, why: str) -> None:
    (tmp_path / "log.jsonl").write_text(text)
    with pytest.raises(DataError, match=why):
        read_traces(tmp_path / "log.jsonl", "openai", Columns())


def test_scores_that_are_no_numbers_are_named(tmp_path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps({"model": "a", "messages": "hi", "score": "purple"}))
    with pytest.raises(DataError, match="record 1: score 'score' is 'purple'"):
        read_traces(path, "openai", Columns())


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ("hello", "hello"), ('[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]', "a"),
        ({"messages": [{"role": "human", "content": "x"}]}, "x"), ([{"role": "system", "content": "s"}], None), ("  ", None),
        ([{"role": "user", "parts": [{"type": "text", "content": "p"}]}], "p"), (None, None), (7, None), (["one", "two"], "two"),
        ({"role": "user", "content": "m"}, "m"),
    ],
)  # fmt: skip
def test_the_text_is_the_one_that_the_server_routes_by(messages, text) -> None:
    assert routed_text(messages) == text


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["messages", "model", "input", "scores", "attributes", "events", "observations", "type", "x", "resourceSpans", "scopeSpans", "spans", "request", "response"]), inner, max_size=4)),
    max_leaves=12,
)  # fmt: skip


@given(
    st.sampled_from(sorted(FORMATS)),
    st.lists(st.dictionaries(st.text(max_size=8), JSON, max_size=5), min_size=1, max_size=3),
)
def test_no_shape_breaks_a_reader(form: str, records: list[dict]) -> None:
    for call in FORMATS[form](records):
        routed_text(call.messages)
    assert shape(records[0]).startswith("{")


@given(JSON, st.text(max_size=10))
def test_paths_never_break(record, path: str) -> None:
    at(record, path)


def test_a_pool_of_a_foreign_log(tmp_path) -> None:
    """Stars become scores, and tokens with prices become costs where the log has none."""
    lines = [
        {"model": ("a", "b")[i % 2], "messages": [{"role": "user", "content": f"question {i}"}], "metadata": {"stars": 1 + i % 5},
         "usage": {"prompt_tokens": 1000, "completion_tokens": 100}}
        for i in range(40)
    ]  # fmt: skip
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, lines)))
    pool = "source: {kind: logs, format: openai, path: log.jsonl}\nmodels: [a, b]\nscore_range: [0, 5]\n"
    (tmp_path / "foreign.yaml").write_text(
        pool + "prices: {a: {input: 1, output: 10}, b: {input: 2, output: 20}}\n"
    )
    raw = read_logged(read_pool_file(tmp_path / "foreign.yaml"))
    assert raw.arms == ["a", "b"] and len(raw.prompts) == 40 and raw.report["format"] == "openai"
    assert np.nanmax(raw.scores) == 1 and np.nanmin(raw.scores) == 0.2 and raw.input_tokens is not None
    (tmp_path / "foreign.yaml").write_text("source: {kind: file, format: openai, path: log.jsonl}\n")
    with pytest.raises(PoolError, match="source kinds logs and collect"):
        read_pool_file(tmp_path / "foreign.yaml")
