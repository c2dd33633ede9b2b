"""From a log to a pool: names that are merged, the receipt in the record, prompts to collect."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from cabs_core.base.errors import DataError, PoolError
from cabs_core.data.collect.prompts import read_prompts
from cabs_core.data.logs.read import read_log
from cabs_core.data.logs.receipt import Receipt, merging
from cabs_core.data.outcomes import from_logs, load_outcomes
from cabs_core.data.pool_files import read_pool_file
from cabs_core.data.pool_files.prices import CallPrice
from cabs_core.data.validation.overview import overview
from cabs_dagster.cli.main import main

NAMES = ["gpt-x", "openai/gpt-x", "gpt-x-2026-03-05", "small", "azure/small"]
GPT = "gpt-x: [gpt-x, openai/gpt-x, gpt-x-2026-03-05, gpt-x-2027-01-01]"
MERGED = f"models: {{{GPT}, small: [small, azure/small]}}\n"
SPLIT = "split: {fractions: [0.4, 0.3, 0.3]}\naccept: [split_sizes]\n"


def pool(folder: Path, models: str, **changes: dict) -> Path:
    """A pool of 100 calls of LiteLLM under five names, every fourth without a score."""
    calls = [
        {
            "call_type": "completion",
            "model": NAMES[i % 5],
            "messages": [{"role": "user", "content": f"question {i} of {i % 7}"}],
            "response_cost": 0.01 if i % 5 < 3 else 0.001,
            "status": "failure" if i % 20 == 19 else "success",
            "metadata": {"stars": None if i % 4 == 0 else 1 + i % 5},
        }
        for i in range(100)
    ]
    (folder / "log.jsonl").write_text("\n".join(map(json.dumps, calls)))
    path = folder / "mine.yaml"
    path.write_text(
        "source: {kind: logs, format: litellm, path: log.jsonl}\nscore_range: [1, 5]\n"
        f"encoder: {{name: tfidf-svd}}\n{models}"
    )
    return path


def test_names_of_one_model_are_merged(tmp_path: Path, cabs_home: Path) -> None:
    outcomes = load_outcomes(read_pool_file(pool(tmp_path, MERGED)))
    assert outcomes.arms == ["gpt-x", "small"] and len(outcomes) == 75 - 5
    assert outcomes.answered.sum(axis=0).tolist() == [45, 25]
    played = outcomes.answered == 1
    assert set(outcomes.costs[played[:, 0], 0]) == {0.01} and set(outcomes.costs[played[:, 1], 1]) == {0.001}
    receipt = Receipt(**outcomes.report["receipt"])
    assert (receipt.records, receipt.kept, receipt.scored, receipt.left_out) == (100, 95, 70, {"failed": 5})
    assert [sum(group.values()) for group in receipt.same_model] == [60, 35]
    exchanged = "models: {a: [openai/gpt-x, gpt-x], gpt-x: [small]}\n"
    assert load_outcomes(read_pool_file(pool(tmp_path, exchanged))).arms == ["a", "gpt-x"]


def test_a_cost_of_0_is_a_price_that_nobody_knew(tmp_path: Path, cabs_home: Path) -> None:
    """LiteLLM writes 0.0 for a model without a price; whoever has a free one says so."""
    path = pool(tmp_path, MERGED + SPLIT)
    log = tmp_path / "log.jsonl"
    log.write_text(log.read_text().replace('"response_cost": 0.001', '"response_cost": 0.0'))
    with pytest.raises(DataError, match="small"):
        load_outcomes(read_pool_file(path))
    path.write_text(path.read_text() + "missing: price\ncost_per_call: {small: 0}\n")
    outcomes = load_outcomes(read_pool_file(path))
    played = outcomes.answered[:, 1] == 1
    assert played.sum() == 25 and set(outcomes.costs[played, 1]) == {0.0}
    assert "35 calls" in str(Receipt(**outcomes.report["receipt"]))
    log.write_text(log.read_text().replace('"call_type"', '"total_tokens": 0, "call_type"'))
    assert "no price" not in overview(read_pool_file(path)).text, "nothing was asked, nothing is charged"


def test_the_receipt_is_printed_with_the_pool(tmp_path: Path, cabs_home: Path) -> None:
    words = overview(read_pool_file(pool(tmp_path, MERGED + SPLIT))).text
    assert {"litellm", "100", "95", "70", "5"} <= set(re.findall(r"\w+", words)) and "5 failed" in words
    assert "gpt-x, openai/gpt-x, gpt-x-2026-03-05" in words and "look like one model" not in words
    two = overview(read_pool_file(pool(tmp_path, "models: [gpt-x, openai/gpt-x]\n" + SPLIT))).text
    assert "'small' 20, 'azure/small' 15" in two
    assert "models: {small: [small, azure/small]}" in two
    with pytest.raises(DataError, match=r"split_sizes.*95 calls.* 70 .*5 failed"):
        overview(read_pool_file(pool(tmp_path, MERGED)))


def test_a_log_that_is_too_small_for_a_pool_still_says_what_was_read_and_left_out(tmp_path, cabs_home):
    path = tmp_path / "one.yaml"
    path.write_text("source: {kind: logs, path: log.jsonl}\n")
    row = {"prompt": "hello", "model": "m", "score": 1, "cost": 0.001, "status": 200, "shoe_size": 43}
    failed = row | {"status": 500}
    (tmp_path / "log.jsonl").write_text(f"{json.dumps(row)}\n{json.dumps(failed)}\n")
    found = CliRunner().invoke(main, ["pool", "add", str(path)])
    assert found.exit_code == 2 and "holds one model, 'm'" in found.output
    lines = found.output.splitlines()
    assert "2 records" in lines[0] and "1 call kept" in lines[0]
    assert any(line.startswith("left out: 1 failed") for line in lines)
    assert any(line.startswith("not read:") and "shoe_size" in line for line in lines)


@pytest.mark.parametrize(
    ("models", "error", "words"),
    [
        (
            "models: {gpt-x: [openai/gpt-x, gpt-x-2026-03-05], small: [small]}\n",
            DataError,
            "is a model of the table too",
        ),
        (
            "models: {a: [gpt-y, gpt-z], small: [small]}\n",
            DataError,
            "stands for gpt-y, gpt-z, and none of these is in the table",
        ),
        ("models: {a: [gpt-x, small], b: [small]}\n", PoolError, "two names to one model"),
        ("models: {a: [], b: [small]}\n", PoolError, "at least 1 item"),
    ],
)
def test_merges_that_cannot_be(tmp_path: Path, cabs_home: Path, models: str, error, words) -> None:
    with pytest.raises(error, match=words):
        load_outcomes(read_pool_file(pool(tmp_path, models)))


def test_a_table_that_asks_one_model_twice_under_two_names_is_an_error(
    tmp_path: Path, cabs_home: Path
) -> None:
    rows = ["prompt,model,score,cost"]
    rows += [f"question {i},{name},1,.1" for i in range(30) for name in ("a", "b")]
    (tmp_path / "t.csv").write_text("\n".join([*rows, "question 3,x/a,0,.1", "question 99,x/a,0,.1"]))
    (tmp_path / "p.yaml").write_text("source: {kind: file, path: t.csv}\nmodels: {a: [a, x/a], b: b}\n")
    with pytest.raises(DataError, match=r"a, x/a, .*models.*'a' \(1 "):
        load_outcomes(read_pool_file(tmp_path / "p.yaml"))


def test_prompts_to_collect_need_no_score_to_be_named(tmp_path: Path, cabs_home: Path) -> None:
    path = pool(tmp_path, "models: [a, b]\n")
    calls = [
        json.loads(line) | {"scores": {"x": 1, "y": 0}}
        for line in (tmp_path / "log.jsonl").read_text().splitlines()
    ]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, calls)))
    with pytest.raises(DataError, match="holds several scores"):
        load_outcomes(read_pool_file(path))
    path.write_text(
        "source: {kind: collect, format: litellm, path: log.jsonl}\nmodels: [a, b]\n"
        "collect: {upstreams: u.yaml, max_usd: 1, scores: [{kind: labels, path: l.csv}]}\n"
    )
    assert len(read_prompts(read_pool_file(path))) == 95


def test_scores_in_a_file_of_their_own_belong_to_the_source(tmp_path: Path, cabs_home: Path) -> None:
    call, mark = {"type": "GENERATION", "total_cost": 0.1}, {"name": "ok", "data_type": "BOOLEAN"}
    calls = [
        call | {"id": f"o{i}", "trace_id": f"t{i}", "model": "ab"[i % 2], "input": f"question {i}"}
        for i in range(60)
    ]
    marks = [mark | {"trace_id": f"t{i}", "value": i % 3 == 0} for i in range(50)]
    for name, rows in (("observations.jsonl", calls), ("scores/1.jsonl", marks)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
    source = (
        "source: {kind: logs, format: langfuse, path: observations.jsonl, scores: scores}\nmodels: [a, b]\n"
    )
    (tmp_path / "p.yaml").write_text(source)
    pool_file = read_pool_file(tmp_path / "p.yaml")
    outcomes = load_outcomes(pool_file)
    assert len(outcomes) == 50 and outcomes.scores[outcomes.answered == 1].sum() == 17
    before = pool_file.external_files()
    (tmp_path / "scores" / "1.jsonl").write_text(json.dumps(marks[0]))
    assert set(before) == {"table", "scores/1.jsonl"} and pool_file.external_files() != before
    (tmp_path / "p.yaml").write_text(source.replace("scores: scores", "scores: nowhere"))
    with pytest.raises(PoolError, match=r"source\.scores 'nowhere'"):
        load_outcomes(read_pool_file(tmp_path / "p.yaml"))


def test_where_the_log_of_a_router_lies_and_how_it_is_written(tmp_path: Path, cabs_home: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        "source: {kind: synthetic}\nrouter: {log: {path: a.jsonl, format: langfuse, scores: s.jsonl}}\n"
    )
    log = read_pool_file(tmp_path / "p.yaml").log_file
    assert (log.path, log.scores, log.format) == (
        str(tmp_path / "a.jsonl"),
        str(tmp_path / "s.jsonl"),
        "langfuse",
    )
    (tmp_path / "p.yaml").write_text("source: {kind: synthetic}\nrouter: {log: a.sqlite}\n")
    assert read_pool_file(tmp_path / "p.yaml").log_path == tmp_path / "a.sqlite"


def test_costs_far_above_tokens_by_price_are_a_note_of_the_receipt(tmp_path):
    row = {
        "prompt": "hello",
        "model": "m",
        "score": 1,
        "cost": 0.5,
        "n_input_tokens": 100,
        "n_output_tokens": 10,
    }
    log = read_log_of(tmp_path, row)
    assert from_logs.notes_on_unit(log, from_logs.costs_by_price(log, {})) == []
    by_price = from_logs.costs_by_price(log, {"m": CallPrice(input=10.0, output=30.0)})
    [note] = from_logs.notes_on_unit(log, by_price)
    assert "385 times" in note and "unit: cents" in note


def read_log_of(folder, row):
    (folder / "log.jsonl").write_text(json.dumps(row))
    return read_log(folder / "log.jsonl")


@pytest.mark.parametrize(
    "names", [("@cf/meta/llama", "meta/llama"), ("gpt: 4", "gpt:  4"), ("4", "4 "), ("no", "No")]
)
def test_the_line_that_merges_names_can_be_put_into_a_pool_file(names: tuple[str, str]) -> None:
    line = merging(dict.fromkeys(names, 1)).partition("merge them: ")[2]
    ((model, merged),) = yaml.safe_load(line)["models"].items()
    assert isinstance(model, str) and merged == list(names)
