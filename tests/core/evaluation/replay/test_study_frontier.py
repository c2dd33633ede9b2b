"""Gain at equal cost, cost saved at equal quality and AIQ of a study's cells, with bootstrap intervals."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.study import run
from benchmarks.study_frontier import REPLICATES, FixedModels, combined, lines, sweep
from benchmarks.study_plan import Plan
from benchmarks.study_tables import show, table
from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.evaluation.metrics.frontier import aiq, cost_saved


@pytest.fixture(scope="module")
def test_problem():
    return synthetic_problem(n=200, K=4, d=4, pool="toy")


def points(problem, arms):
    """Per-query costs and scores [len(arms), n] of the policies that always play one arm."""
    return problem.costs[:, arms].T, problem.scores[:, arms].T


def test_the_fixed_model_gains_nothing_over_itself(test_problem):
    fixed = FixedModels.of(test_problem, 3)
    assert fixed.best == int(np.argmax(test_problem.offline_scores.mean(axis=0)))
    figures = sweep(*points(test_problem, [fixed.best]), fixed, 3)
    np.testing.assert_allclose(figures["gain"], 0.0, atol=1e-6)
    np.testing.assert_allclose(figures["saved"], 0.0, atol=1e-5)
    assert all(len(v) == 1 + REPLICATES for v in figures.values())


def test_figures_are_those_of_the_metrics(test_problem):
    fixed = FixedModels.of(test_problem, 0)
    costs, scores = points(test_problem, [0, 1, 2, 3])
    figures = sweep(costs, scores, fixed, 0)
    x, y = costs.mean(axis=1), scores.mean(axis=1)
    at, level = x[fixed.best], y[fixed.best]
    assert figures["gain"][0] == pytest.approx(aiq(x, y, at, at) - level)
    assert figures["saved"][0] == pytest.approx(cost_saved(x, y, at, level), abs=1e-4)
    assert figures["aiq"][0] == pytest.approx(aiq(x, y, x.min(), x.max()))
    # a replicate: the same queries for the policy and for the arms
    assert figures["saved"][1:].std() > 0 and np.isfinite(figures["gain"]).all()


def test_a_quality_that_is_never_reached_is_said_so(test_problem):
    fixed = FixedModels.of(test_problem, 0)
    costs, scores = points(test_problem, [fixed.best])
    figures = combined({0: sweep(costs, scores - 0.5 * scores, fixed, 0)})
    assert np.isnan(figures["saved"]["value"]) and figures["saved"]["reached"] == 0.0
    assert figures["gain"]["value"] < 0
    text = "\n".join(lines({"toy": {"clean": {"half": figures}}}))
    assert "| half |" in text and "not reached" in text and "| 0 % |" in text


def test_the_study_shows_them(tmp_path):
    for seed in (0, 1):
        problem = synthetic_problem(n=80, K=4, d=4, seed=seed, pool="toy")
        problem.save(tmp_path / "problems" / "toy" / "clean" / f"seed{seed}" / "test")
    plan = Plan(("toy",), ("clean",), (0, 1), ("random", "ridge"), "short")
    run(plan, tmp_path, threads=1)
    figures = table(plan, tmp_path)
    rows = figures["fixed"]["toy"]["clean"]
    assert set(rows) == {"random", "ridge"}
    assert rows["ridge"]["aiq"]["value"] > rows["random"]["aiq"]["value"]
    assert "95 % intervals" in "\n".join(show(figures))
