"""Checks on data as a gate: an ERROR keeps oracles from being trained and fails `cabs check`; a warning does neither."""

from __future__ import annotations

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
    """Two models; the second answers for nothing, which is a warning (costs_positive), as is the small number."""
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
