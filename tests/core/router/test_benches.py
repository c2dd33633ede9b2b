"""The measurements of a deployed router run and say what they measured."""

from __future__ import annotations

import json

import pytest

from benchmarks.deployment import simulate
from cabs_core.problem import ReplayProblem


@pytest.fixture(scope="module")
def problem(artifacts):
    return ReplayProblem.load(artifacts["replay_problem"] / "test")


def test_without_trouble_the_deployment_is_the_replay(make_bundle, problem, test_prompts):
    # at rho 0, where the factors of costs, which a replay does not learn, count for nothing
    bundle = make_bundle("carrot", epsilon=0.0, rho=0.0)
    found = simulate(bundle, problem, test_prompts, delay=1, never=0.0, outage=0.0)
    assert found["difference"] == pytest.approx(0.0, abs=1e-12) and found["regret"] > 0
    assert found["regret of a replay with late rewards"] == pytest.approx(found["regret"])  # it never learns


def test_a_budget_is_played_by_pacer_and_rival(problem, monkeypatch, capsys, tmp_path):
    """Targets lie between the cheapest and the dearest model; every figure of the table is one of the row."""
    from benchmarks import budgets

    monkeypatch.setattr(budgets, "problem", lambda *args: problem)
    budgets.main(
        ["--pool", "tiny", "--policies", "knn", "--trials", "2", "--json", str(tmp_path / "found.json")]
    )
    rows = json.loads((tmp_path / "found.json").read_text())
    means = problem.offline_costs.mean(axis=0)
    assert len(rows) == 3 and all(means.min() < row["target"] < means.max() for row in rows)
    printed = capsys.readouterr().out.splitlines()[2:]
    assert [
        f"{row['off port']:+.1%}" in line and f"{row['score']:.3f} ±" in line
        for row, line in zip(rows, printed, strict=True)
    ] == [True] * 3
    budgets.main(["--pool", "tiny", "--policies", "knn", "--trials", "1", "--targets", "0.001"])
    assert "| 0.001 |" in capsys.readouterr().out
