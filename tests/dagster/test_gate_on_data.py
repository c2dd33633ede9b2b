"""Checks on data as a gate: an ERROR keeps oracles from being trained and fails `cabs check`; a warning does
neither."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from tests_support import chain_of

from cabs_dagster.cli import main

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

POOL = """\
name: mine
source: {kind: file, path: table.csv}
split: {fractions: [0.5, 0.2, 0.3]}
encoder: {name: tfidf-svd}
oracle: {kind: ridge}
features: {kind: pca, dim: 4}
replay: {trials: 2, rhos: [0]}
tuning_budget: 0
reference_policy: random
policies: [random, best_single]
"""


def table(queries: int = 120) -> pd.DataFrame:
    """Two models; the second answers for nothing, which is a warning (costs_positive), as is the small
    number."""
    rng = np.random.default_rng(0)
    words = np.array(["river", "stone", "cloud", "engine", "proof", "market", "violin", "enzyme"])
    prompts = [f"{i} " + " ".join(rng.choice(words, 6)) for i in range(queries)]
    rows = [
        {"prompt": p, "model": m, "score": float(rng.random() < level), "cost": cost}
        for p in prompts
        for m, level, cost in (("large", 0.8, 1e-3), ("small", 0.4, 0.0))
    ]
    return pd.DataFrame(rows)


def write(home: Path, frame: pd.DataFrame) -> None:
    (home / "pools").mkdir(exist_ok=True)
    (home / "pools" / "mine.yaml").write_text(POOL, encoding="utf-8")
    frame.to_csv(home / "pools" / "table.csv", index=False)


def test_warnings_neither_block_nor_fail(cabs_home: Path) -> None:
    write(cabs_home, table())
    ran = CliRunner().invoke(main, ["run", "--pool", "mine", "--no-report"])
    assert ran.exit_code == 0, ran.output
    chain = chain_of("mine")
    assert {status.state for status in chain.overview()} == {"fresh"}
    checked = CliRunner().invoke(main, ["check", "--pool", "mine", "--markdown", str(cabs_home / "c.md")])
    text = (cabs_home / "c.md").read_text(encoding="utf-8")
    assert "costs_positive" in text and "enough_queries" in text
    assert checked.exit_code == 0, checked.output
    strict = CliRunner().invoke(main, ["check", "--pool", "mine", "--warnings-as-errors"])
    assert strict.exit_code == 1
    path = cabs_home / "pools" / "mine.yaml"
    path.write_text(POOL.replace("trials: 2", "trials: 3"), encoding="utf-8")
    old = CliRunner().invoke(main, ["check", "--pool", "mine"])
    assert old.exit_code == 1
    assert "best_single: out of date (setting replay.trials: 2 -> 3)" in old.output, old.output


def test_an_error_blocks_training_and_fails_the_gate(cabs_home: Path) -> None:
    frame = table()
    hole = (frame["model"] == "small") & (frame.index < 80)  # a third of the queries lack one model's answer
    write(cabs_home, frame[~hole])
    ran = CliRunner().invoke(main, ["run", "--pool", "mine", "--no-report"])
    assert ran.exit_code != 0 and "queries_kept" in ran.output, ran.output
    chain = chain_of("mine")
    assert chain.status(chain.stage("oracles")).state != "fresh"
    assert not (cabs_home / "artifacts" / "oracles").exists()
    assert CliRunner().invoke(main, ["check", "--pool", "mine"]).exit_code == 1
    plan = {e["target"]: e for e in json.loads(CliRunner().invoke(main, ["plan", "mine", "--json"]).output)}
    assert plan["report"]["state"] == "blocked" and "queries_kept" in plan["report"]["reasons"][0]


def test_without_a_pool_the_gate_takes_those_that_were_run_and_a_broken_one_hides_no_other(
    cabs_home: Path,
) -> None:
    def check() -> tuple[int, str]:
        done = CliRunner().invoke(main, ["check", "--junit", str(cabs_home / "checks.xml")])
        return done.exit_code, done.output

    code, output = check()  # shipped pools that nobody ran lack tables here, and are not looked at
    assert code == 1 and "there was nothing to check" in output, output
    write(cabs_home, table())
    path = cabs_home / "pools" / "mine.yaml"
    assert CliRunner().invoke(main, ["run", "--pool", "mine", "--no-report"]).exit_code == 0
    path.with_name("twin.yaml").write_text(POOL.replace("mine", "twin").replace("dim: 4", "dims: 4"))
    code, output = check()
    assert code == 1 and "broken   pool_file [twin]: valid" in output and "1 error" in output, output
    assert " 0 checks passed" not in output and 'classname="outcomes [mine]"' in (
        cabs_home / "checks.xml"
    ).read_text(encoding="utf-8")
    path.with_name("twin.yaml").unlink()
    (cabs_home / "pools" / "table.csv").rename(cabs_home / "moved.csv")
    code, output = check()
    assert code == 1 and "broken   pool_file [mine]: valid" in output and "table.csv" in output, output


def test_data_that_failed_a_check_or_changed_yield_no_verdict(cabs_home: Path) -> None:
    """Page, leaderboard, verdict.json, goal and export follow the planner; what a check stopped is said to be
    stopped."""

    def call(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, list(words))
        return done.exit_code, done.output

    def verdict() -> dict:
        return json.loads((reports / "mine" / "verdict.json").read_text(encoding="utf-8"))

    reports, good = cabs_home / "artifacts" / "reports", table().replace({"cost": {0.0: 1e-4}})
    write(cabs_home, good)
    path = cabs_home / "pools" / "mine.yaml"
    path.write_text(POOL.replace("best_single]", "best_single, lin_ucb]"), encoding="utf-8")
    assert call("run", "mine")[0] == 0
    before = verdict()
    assert before["older_data"] is None and before["overall"] and before["export_command"]
    export = ("export", "mine", "--out", str(cabs_home / "router"))
    assert call(*export)[0] == 0

    write_table = good.copy()
    write_table.loc[0, "cost"] = 5000.0
    write_table.to_csv(cabs_home / "pools" / "table.csv", index=False)
    code, output = call(*export)  # the table changed; nothing was run
    assert (
        code == 2
        and "outcomes of pool mine is out of date (table changed)" in output
        and "--anyway" in output
    )
    code, output = call("check", "mine")  # the fault is told once, with what waits for it
    errors = [line for line in output.splitlines() if line.startswith("error")]
    assert code == 1 and len(errors) == 1 and "table changed" in errors[0], output
    assert re.search(r"; \d+ checks of what is made from it wait", errors[0])
    code, output = call("run", "mine")
    assert code and "costs_in_range" in output
    found, page = verdict(), (reports / "mine" / "index.html").read_text(encoding="utf-8")
    assert (
        "outcomes failed a check (costs_in_range" in found["older_data"] and "since 20" in found["older_data"]
    )
    assert found["headline"] == "No verdict" and found["overall"] is None and found["export_command"] is None
    assert 'id="verdict"' not in page and "The figures are of older data" in page
    assert "costs_in_range, stops a run" in page and "does not stop a run)" in page
    board = (reports / "index.html").read_text(encoding="utf-8")
    assert "No verdict: its figures are of older data" in board and before["headline"] not in board
    code, output = call("report", "mine", "--goal", "value_per_right_answer: 0.01")
    assert code == 2 and "older data" in output
    assert call(*export)[0] == 2 and call(*export, "--anyway")[0] == 0

    good.to_csv(cabs_home / "pools" / "table.csv", index=False)
    assert call("run", "mine")[0] == 0
    assert {**verdict(), "previous": None} == {**before, "previous": None}
