"""A researcher: tables as CSV and LaTeX that agree with the raw traces, every figure traced back to code and seeds."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pandas as pd
import pytest
from e2e_support import cabs

from cabs_core.artifacts import ArtifactStore, Chain
from cabs_core.pools import load_pool_file
from cabs_core.problem.replay_problem import ReplayProblem
from cabs_core.replay.engine import replay

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

RHOS = (0.0, 777.0)


@pytest.fixture
def rounds(finished_once: Path) -> pd.DataFrame:
    """Every round that was replayed."""
    paths = sorted((finished_once / "artifacts" / "replay" / "chaos").glob("*/*/rounds.parquet"))
    return pd.concat([pd.read_parquet(path) for path in paths])


def test_tables_agree_with_the_raw_rounds(finished_once: Path, rounds: pd.DataFrame) -> None:
    folder = finished_once / "artifacts" / "reports" / "chaos"
    means = rounds.groupby(["policy", "rho"])["reward"].mean().unstack()
    with duckdb.connect(str(finished_once / "artifacts" / "marts" / "cabs.duckdb"), read_only=True) as marts:
        mart = marts.sql("SELECT policy, rho, utility FROM mart_utility_by_rho WHERE pool = 'chaos'").df()
    for row in mart.itertuples():
        assert row.utility == pytest.approx(means.loc[row.policy, row.rho], abs=1e-6)
    table = folder / "tables" / "utility.csv"
    overall = pd.read_csv(table).set_index("Policy")["utility: Overall"]
    latex = table.with_suffix(".tex").read_text(encoding="utf-8")
    assert r"\begin{tabular}" in latex and r"\end{tabular}" in latex and r"\bottomrule" in latex
    for policy, name in (("random", "Random"), ("best_single", "Best single model"), ("lin_ucb", "LinUCB")):
        value = means.loc[policy].mean()  # one rho a regime, so the mean of the regimes is that of the rhos
        assert overall[name] == pytest.approx(value, abs=1e-6) and f"{value:.3f}" in latex


def test_every_artifact_says_where_it_came_from(finished_once: Path, monkeypatch) -> None:
    monkeypatch.setenv("CABS_HOME", str(finished_once))
    chain = Chain(ArtifactStore(), load_pool_file(finished_once / "pools" / "chaos.yaml"))
    for status in chain.overview():
        assert status.state == "fresh", status
        record = status.record
        assert record is not None and record.code_version and record.packages["numpy"] and record.created
        assert set(record.inputs) >= {source.stage for source in status.target.inputs}
    report = chain.store.record(("reports", "chaos"))
    assert report is not None and any(name.startswith("mart_") for name in report.inputs)
    page = (finished_once / "artifacts" / "reports" / "chaos" / "index.html").read_text(encoding="utf-8")
    problem = chain.status(chain.stage("replay_problem")).record
    assert problem is not None
    run = next((finished_once / "artifacts" / "replay" / "chaos").rglob("run.parquet"))
    assert str(pd.read_parquet(run)["problem_hash"].iloc[0])[:12] in page, (
        "the page names the problem it shows"
    )


def test_a_replay_is_repeated_from_the_library_bit_for_bit(finished_once: Path, rounds: pd.DataFrame) -> None:
    problem = ReplayProblem.load(finished_once / "artifacts" / "replay_problem" / "chaos" / "test")
    for rho in RHOS:
        again = replay(problem, "lin_ucb", rho=rho, trials=2)
        kept = rounds[(rounds["policy"] == "lin_ucb") & (rounds["rho"] == rho)].sort_values(
            ["trial", "round"]
        )
        assert (kept["action"].to_numpy() == again.actions.ravel()).all()
        assert (kept["reward"].to_numpy() == again.rewards.ravel().astype("float32")).all()


def test_plan_and_check_speak_json_to_a_notebook(finished_once: Path) -> None:
    states = json.loads(cabs(finished_once, "plan", "chaos", "--json"))
    assert {row["state"] for row in states} == {"fresh"} and len(states) == 7 + 2 * 3
