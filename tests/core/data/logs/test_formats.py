"""Logs of other tools: small samples written from their documentation, and what is said of a shape that is
unknown."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabs_core import read_log
from cabs_core.base.errors import DataError, PoolError
from cabs_core.data.logs.calls import RULES, joined, prompt_in, prompt_of
from cabs_core.data.logs.formats import FORMATS
from cabs_core.data.logs.read import Log
from cabs_core.data.outcomes.from_logs import read_logged
from cabs_core.data.pool_files import read_pool_file

SAMPLES = Path(__file__).with_name("samples")
SUFFIX = {"langfuse": ".json", "otel": ".json"}


def read(form: str, score_range: tuple[float, float] | None = None, **columns: str) -> Log:
    return read_log(SAMPLES / f"{form}{SUFFIX.get(form, '.jsonl')}", form, columns, score_range)


def rows(log: Log) -> list[tuple]:
    return [(r.prompt, r.model, None if np.isnan(r.score) else r.score) for r in log.frame.itertuples()]


def write(path: Path, *records: dict) -> Path:
    path.write_text("\n".join(map(json.dumps, records)))
    return path


#: sample, columns of the pool file -> (prompt, model, score) of every call, and columns of the first calls
TRACES = {
    "litellm": (
        {},
        [
            ("Order 1234, please.", "gpt-4o-mini-2024-07-18", 1.0),
            ("Compare these two phones.", "gpt-4o", 0.0),
            ("Do you ship to Norway?", "gpt-4o-mini", None),
        ],
        {"cost": [0.00021, 0.0042, 0.0001], "tokens": [61, 115, 12], "session": ["t-1", "t-2"]},
    ),
    "langfuse": (
        {"score": "user-thumb"},
        [  # a trace's score is its last generation's
            ("Where is my parcel?", "claude-3-haiku", 0.0),
            ("Where is my parcel?", "claude-3-5-sonnet", 1.0),
            ("Thanks!", "claude-3-haiku", None),
        ],
        {"cost": [0.0005, 0.0006, 0.00001], "session": ["s-1", "s-1", "s-1"]},
    ),
    "openai": (
        {"score_range": (0.0, 5.0)},
        [  # batches and stored completions are paired
            ("Is it waterproof?", "gpt-4o-mini-2024-07-18", 1.0),
            ("Write a long review.", "gpt-4o-2024-08-06", 0.4),
            ("Refund?", "gpt-4o-mini", None),
        ],
        {"tokens": [22, 412, 15]},
    ),
    "otel": (
        {},
        [  # evaluations come as events and as logs
            ("How do I return shoes?", "gpt-4o-mini-2024-07-18", 0.9),
            ("Which size fits me?", "gpt-4o", 0.2),
            ("Any discount?", "gpt-4o", None),
        ],
        {"tokens": [38, 14], "session": ["conv-1"]},
    ),
    "vllm_sr": (
        {},
        [("Add 17 and 25.", "qwen3-32b", 1.0), ("Hello!", "qwen3-4b", None)],
        {"task": ["math", "other"], "tokens": [112]},
    ),
    "helicone": (
        {},
        [
            ("Where is the invoice?", "gpt-4o-mini-2024-07-18", 1.0),
            ("Cancel it.", "gpt-4o", 0.0),
            ("And now?", "gpt-4o", None),
        ],
        {"cost": [0.0000104, 0.001]},
    ),
}


def test_every_format_has_a_sample() -> None:
    """A format is a module of `cabs_core/data/logs/formats`. OpenInference is read by the code of otel."""
    without = {*FORMATS} - {*TRACES} - {"openinference"}
    assert not without, f"add the sample samples/<format>.jsonl and an entry of TRACES for {sorted(without)}"


def test_a_pool_file_names_a_format_that_exists(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    for form in ("table", *FORMATS):
        path.write_text(f"source: {{kind: logs, format: {form}, path: log.jsonl}}\n")
        assert read_pool_file(path).pool.source.format == form
    path.write_text("source: {kind: logs, format: helicon, path: log.jsonl}\n")
    with pytest.raises(
        PoolError, match=r"source\.format: 'helicon' is no format .* one of table, helicone, "
    ):
        read_pool_file(path)


@pytest.mark.parametrize("form", TRACES)
def test_calls_of_other_tools(form: str) -> None:
    columns, calls, others = TRACES[form]
    log = read(form, **columns)
    assert rows(log) == calls
    for name, values in others.items():
        assert log.frame[name].tolist()[: len(values)] == values, name


def test_probabilities_of_a_tools_record_are_read_from_the_path_that_is_given(tmp_path: Path) -> None:
    record = {"q": "hi", "m": "a", "metadata": {"p": {"a": 0.75, "b": 0.25}}}
    columns = {"prompt": "q", "model": "m", "pmf": "metadata.p"}
    log = read_log(write(tmp_path / "calls.jsonl", record), "openai", columns)
    assert log.details["pmf"].tolist() == [{"a": 0.75, "b": 0.25}]


def test_a_score_is_chosen_by_its_name() -> None:
    with pytest.raises(DataError, match=r"several scores: user-thumb \(2\), helpfulness \(1\)"):
        read("langfuse")
    assert rows(read("langfuse", score="helpfulness"))[1][2] == 0.75


def test_an_unknown_shape_is_shown_with_the_mapping_that_is_missing(tmp_path: Path) -> None:
    path = write(
        tmp_path / "odd.jsonl", {"q": {"text": "hi"}, "calls": [{"llm": "a", "good": "yes"}], "usd": 0.1}
    )
    for form in FORMATS:
        with pytest.raises(
            DataError, match=r"The first record has \{q \{text\}, calls \[\{llm, good\}\], usd\}"
        ):
            read_log(path, form)
    mapped = {"prompt": "q.text", "model": "calls.0.llm", "score": "calls.0.good", "cost": "usd"}
    log = read_log(path, "openai", mapped)
    assert rows(log) == [("hi", "a", 1.0)] and log.frame["cost"].tolist() == [0.1]
    with pytest.raises(DataError, match="score 'stars'"):
        read_log(path, "openai", {"prompt": "q.text", "model": "calls.0.llm", "score": "stars"})


@pytest.mark.parametrize(
    ("text", "why"),
    [("", "empty"), ("[1]", "found int"), ("{", "not JSON"), ("[" * 100_000, "not JSON|nested")],
)
def test_files_that_are_no_logs(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "log.jsonl").write_text(text)
    with pytest.raises(DataError, match=why):
        read_log(tmp_path / "log.jsonl", "openai")


def test_scores_that_are_no_numbers_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", {"model": "a", "messages": "hi", "score": "purple"})
    with pytest.raises(DataError, match="row 1: score is 'purple'"):
        read_log(path, "openai")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ('[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]', "a"),
        ([{"role": "system", "content": "s"}], None),
        ("  ", None),
        (None, None),
        (7, None),
        (["one", "two"], "two"),
        ({}, None),
        ("{}", None),
        ([], None),
        ('{"question": "q?"}', "q?"),
        ("redacted-by-litellm", None),
        ('{"messages": [{"role": "user", "content": "redacted-by-litellm"}]}', None),
        ("{not JSON", "{not JSON"),
    ],
)
def test_the_prompt_is_the_text_that_the_server_routes_by(value, text) -> None:
    assert prompt_of(value) == text


def test_a_request_whose_prompt_the_tool_withheld_has_no_prompt() -> None:
    request = '{"messages": [{"role": "user", "content": "%s"}]}'
    assert prompt_of(request % "[redacted]", body=True) is None
    assert prompt_of(request % "hello", body=True) == "hello"


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                sorted(
                    {k.partition(".")[0] for f in FORMATS.values() for k in f.paths()}
                    | {
                        "scores",
                        "attributes",
                        "events",
                        "observations",
                        "type",
                        "x",
                        "resourceSpans",
                        "scopeSpans",
                        "spans",
                        "outcomes",
                        "custom_id",
                        "body",
                        "parentSpanId",
                    }
                )
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)


@given(
    st.sampled_from(sorted(FORMATS)),
    st.lists(
        st.dictionaries(st.text(max_size=8), JSON, max_size=5) | JSON.filter(lambda v: isinstance(v, dict)),
        min_size=1,
        max_size=4,
    ),
)
def test_no_shape_breaks_a_reader(form: str, records: list[dict]) -> None:
    known = FORMATS[form]
    calls, loose = known.split(list(enumerate(records, 1)))
    for call in calls:
        assert all(isinstance(rule(call, known), str) for rule in RULES)
        prompt_in(call, known)
    joined(calls, loose, known)


def test_a_pool_of_a_foreign_log(tmp_path) -> None:
    """Stars become scores, and tokens with prices become costs where the log has none."""
    lines = [
        {
            "model": ("a", "b")[i % 2],
            "messages": [{"role": "user", "content": f"question {i}"}],
            "metadata": {"stars": 1 + i % 5},
            "usage": {"prompt_tokens": 1000, "completion_tokens": 100},
        }
        for i in range(40)
    ]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, lines)))
    pool = "source: {kind: logs, format: openai, path: log.jsonl}\nmodels: [a, b]\nscore_range: [0, 5]\n"
    (tmp_path / "foreign.yaml").write_text(
        pool + "prices: {a: {input: 1, output: 10}, b: {input: 2, output: 20}}\n"
    )
    raw = read_logged(read_pool_file(tmp_path / "foreign.yaml"))
    assert raw.arms == ["a", "b"] and len(raw.prompts) == 40 and raw.report["receipt"]["format"] == "openai"
    assert np.nanmax(raw.scores) == 1 and np.nanmin(raw.scores) == 0.2 and raw.input_tokens is not None
    (tmp_path / "foreign.yaml").write_text("source: {kind: file, format: openai, path: log.jsonl}\n")
    with pytest.raises(PoolError, match=r"source\.format: .*logs or collect"):
        read_pool_file(tmp_path / "foreign.yaml")
