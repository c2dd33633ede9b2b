"""Checks on data as a gate: an ERROR keeps oracles from being trained and fails `cabs check`; a warning does
neither."""

from __future__ import annotations

import html
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests_support import cabs, chain_of, output_of

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


def test_warnings_neither_block_nor_fail_and_a_broken_pool_hides_no_other(cabs_home: Path) -> None:
    # shipped pools that nobody ran lack tables here, and are not looked at
    output_of("check", code=1)
    assert "--rho needs --pool" in output_of("check", "--rho", "0", code=2)
    write(cabs_home, table())
    output_of("run", "mine", "--no-report")
    assert {status.state for status in chain_of("mine").overview()} == {"fresh"}
    junit, markdown = cabs_home / "checks.xml", cabs_home / "checks.md"
    output_of("check", "mine", "--markdown", str(markdown), "--junit", str(junit))
    text = markdown.read_text(encoding="utf-8")
    assert "passed" in text.splitlines()[0] and "costs_positive" in text and "enough_queries" in text
    cases = ElementTree.parse(junit).getroot().findall(".//testcase")
    assert {(case.get("classname"), case.get("name")) for case in cases} >= {
        ("replay [mine|0000]", "trace"),
        ("replay_audit [mine]", "reproducible"),
        ("outcomes [mine]", "valid"),
    }
    output_of("check", "mine", "--quick", "--warnings-as-errors", code=1)

    path = cabs_home / "pools" / "mine.yaml"
    path.with_name("twin.yaml").write_text(POOL.replace("mine", "twin").replace("dim: 4", "dims: 4"))
    output = output_of("check", "--quick", "--junit", str(junit), code=1)
    assert "broken   pool_file [twin]: valid" in output and "1 error" in output, output
    assert " 0 checks passed" not in output
    assert 'classname="outcomes [mine]"' in junit.read_text(encoding="utf-8")
    path.with_name("twin.yaml").unlink()

    path.write_text(POOL.replace("trials: 2", "trials: 3"), encoding="utf-8")
    output = output_of("check", "mine", "--quick", code=1)
    assert re.search(r"best_single: .*replay\.trials: 2 -> 3", output), output
    (cabs_home / "pools" / "table.csv").rename(cabs_home / "moved.csv")
    output = output_of("check", "--quick", code=1)
    assert "broken   pool_file [mine]: valid" in output and "table.csv" in output, output


def test_an_error_blocks_training_and_fails_the_gate(cabs_home: Path) -> None:
    frame = table()
    hole = (frame["model"] == "small") & (frame.index < 80)  # a third of the queries lack one model's answer
    write(cabs_home, frame[~hole])
    run = cabs("run", "mine", "--no-report")
    assert run.exit_code != 0 and "queries_kept" in run.output, run.output
    assert not (cabs_home / "artifacts" / "oracles").exists()
    output_of("check", "mine", code=1)
    plan = {entry["target"]: entry for entry in json.loads(output_of("plan", "mine", "--json"))}
    assert plan["report"]["state"] == "blocked" and "queries_kept" in plan["report"]["reasons"][0]


def test_data_that_failed_a_check_or_changed_yield_no_verdict(cabs_home: Path) -> None:
    """Page, leaderboard, verdict.json, goal and export follow the planner; what a check stopped is said to be
    stopped."""

    def verdict() -> dict:
        return json.loads((reports / "mine" / "verdict.json").read_text(encoding="utf-8"))

    def board() -> str:
        return html.unescape((reports / "index.html").read_text(encoding="utf-8"))

    reports, good = cabs_home / "artifacts" / "reports", table().replace({"cost": {0.0: 1e-4}})
    write(cabs_home, good)
    path = cabs_home / "pools" / "mine.yaml"
    path.write_text(POOL.replace("best_single]", "best_single, lin_ucb]"), encoding="utf-8")
    output_of("run", "mine")
    before = verdict()
    assert before["older_data"] is None and before["answer"] and before["export_command"]
    export = ("export", "mine", "--rung", "router", "--out", str(cabs_home / "router"))
    output_of(*export)

    one_absurd_cost = good.copy()
    one_absurd_cost.loc[0, "cost"] = 5000.0
    one_absurd_cost.to_csv(cabs_home / "pools" / "table.csv", index=False)
    output = output_of(*export, code=2)  # the table changed; nothing was run
    assert re.search(r"outcomes of pool mine .*table changed", output) and "--anyway" in output
    output = output_of("check", "mine", code=1)  # the fault is told once, with what waits for it
    errors = [line for line in output.splitlines() if line.startswith("error")]
    assert len(errors) == 1 and "table changed" in errors[0], output
    assert re.search(r"\d+ checks", errors[0])
    run = cabs("run", "mine")
    assert run.exit_code and "costs_in_range" in run.output
    after, page = verdict(), (reports / "mine" / "index.html").read_text(encoding="utf-8")
    assert re.search(r"outcomes .*costs_in_range", after["older_data"])
    assert "since 20" in after["older_data"]
    assert after["headline"] != before["headline"]
    assert after["answer"] is None and after["export_command"] is None
    assert 'id="verdict"' not in page
    assert after["older_data"].replace("`", "") in html.unescape(page).replace("\u00a0", " ")
    assert "costs_in_range, stops a run" in page
    assert after["older_data"] in board() and before["headline"] not in board()
    assert "older data" in output_of("report", "mine", "--goal", "value_per_right_answer: 0.01", code=2)
    output_of(*export, code=2)
    output_of(*export, "--anyway")

    good.to_csv(cabs_home / "pools" / "table.csv", index=False)
    output_of("run", "mine")
    assert {**verdict(), "previous": None} == {**before, "previous": None}

    (cabs_home / "pools" / "table.csv").unlink()
    assert cabs("run", "mine").exit_code
    gone = verdict()["older_data"]
    assert "table.csv" in gone and gone in board()
    output_of("pool", "retire", "mine", "--delete")
    boards = pd.read_parquet(cabs_home / "artifacts" / "marts" / "mart_policy_leaderboard.parquet")
    assert boards.empty and "mine" not in board()
