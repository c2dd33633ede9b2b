"""A policy's replay under a budget: the replay where the budget does not bind, the target where it does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.base.errors import RouterError
from cabs_core.evaluation.replay import replay
from cabs_core.router.budget import (
    BudgetReplay,
    port_price,
    replay_budget,
    replay_budgets,
    replay_port,
    spending,
)
from cabs_core.router.pacer import first_rho


@pytest.fixture(scope="module")
def problem() -> ReplayProblem:
    return synthetic_problem(n=1200, K=5, d=6, seed=3, offline=300)


@pytest.mark.parametrize("policy", ["hier_mix", "carrot", "pareto_bandit"])
def test_a_budget_that_does_not_bind_changes_nothing(problem, policy):
    most = float(problem.costs.max())
    free = replay_budget(problem, policy, 10 * most, BudgetReplay(rhos=(0.0, 1000.0), trials=2, seed=4))
    plain = replay(problem, policy, 0.0, 2, 4)
    assert np.array_equal(free.order, plain.order) and np.array_equal(free.actions, plain.actions)
    assert (free.rhos == 0.0).all()


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["hier_mix", "carrot"])
def test_a_budget_within_reach_is_met(problem, policy):
    spent = [
        replay_budget(problem, policy, 1e9, BudgetReplay(rhos=(rho, rho + 1e-9), trials=2)).row()["spent"]
        for rho in (0, 2000)
    ]
    target = (spent[0] + spent[1]) / 2
    result = replay_budget(problem, policy, target, BudgetReplay(rhos=(0.0, 2000.0), trials=2))
    assert result.row()["spent"] == pytest.approx(target, rel=0.02)
    assert result.costs.mean() == pytest.approx(problem.costs[result.order, result.actions].mean())


def test_it_starts_where_validation_spent_the_target(problem):
    """Streams of 300 requests, which are too short to pay back what a bad start costs."""
    validation, short = synthetic_problem(n=600, K=5, d=6, seed=3, offline=300), problem.rows(np.arange(300))
    curve = spending(validation, "carrot", (0.0, 2000.0), pool="v")
    assert curve["rhos"][0] == 0.0 and curve["rhos"][-1] == 2000.0 and curve["usd"][0] > 2 * curve["usd"][-1]
    target = (curve["usd"][0] + curve["usd"][-1]) / 2
    ends = BudgetReplay(rhos=(0.0, 2000.0), trials=4)
    (far,) = replay_budgets(short, "carrot", [target], replace(ends, start=2000.0))
    (near,) = replay_budgets(short, "carrot", [target], ends, curve=curve)
    assert abs(near["off"]) < abs(far["off"])


def test_the_first_rho_is_read_off_the_curve():
    curve = {
        "rhos": [0.0, 10.0, 20.0, 30.0],
        "usd": [4.0, 2.0, 2.5, 1.0],
    }  # noise lets it rise between 10 and 20
    assert [first_rho(t, curve) for t in (9.0, 3.0, 1.5, 0.1)] == [0.0, 5.0, 25.0, 30.0]
    rhos = [first_rho(t, curve) for t in np.linspace(0.5, 5.0, 50)]
    assert np.all(np.diff(rhos) <= 0)


def test_rows_name_the_model_that_fits(problem):
    means = problem.offline_costs.mean(axis=0)
    rows = replay_budgets(
        problem,
        "carrot",
        [float(means.min()) / 2, float(means.max())],
        BudgetReplay(rhos=(0.0, 2000.0), trials=1),
    )
    assert rows[0]["alone"] == "none fits" and rows[0]["score alone"] is None
    best = int(problem.offline_scores.mean(axis=0).argmax())
    assert rows[1]["alone"] == problem.arms[best]
    assert rows[1]["score alone"] == pytest.approx(problem.scores[:, best].mean())


@pytest.mark.parametrize("policy", ["lin_ucb", "oracle_best"])
def test_a_policy_of_one_rho_is_refused(problem, policy):
    with pytest.raises(RouterError, match="serves one rho"):
        replay_budget(problem, policy, 1e-3, BudgetReplay(rhos=(0.0, 100.0)))


def test_impossible_budgets_are_refused(problem):
    with pytest.raises(RouterError, match="budget"):
        replay_budget(problem, "carrot", 0.0, BudgetReplay(rhos=(0.0, 100.0)))
    for trials in (0, -1, 2.0):
        with pytest.raises(RouterError, match=f"trials is {trials}, expected"):
            BudgetReplay(trials=trials)
    with pytest.raises(RouterError, match="low < high"):
        replay_budget(problem, "carrot", 1.0, BudgetReplay(rhos=(100.0, 100.0)))


def test_ports_price_is_the_minimum_of_the_dual():
    rng = np.random.default_rng(5)
    scores, costs = rng.random((40, 4)), rng.random((40, 4)) * [1e-4, 3e-4, 1e-3, 3e-3]
    for target in (2e-4, 5e-4, 1e-3):
        grid = np.linspace(0.0, 20_000.0, 20_001)
        dual = [target * rho + (scores - rho * costs).max(axis=1).mean() for rho in grid]
        price = port_price(scores, costs, target, 20_000.0)
        assert price == pytest.approx(grid[int(np.argmin(dual))], abs=2.0)
    assert port_price(scores, costs, 1.0, 20_000.0) == 0.0  # the budget does not bind
    assert port_price(scores, costs, 1e-9, 20_000.0) == 20_000.0  # no price meets it


def test_port_learns_its_price_once_and_plays_by_it(problem):
    spent = problem.costs.mean(axis=0)
    target = float(0.5 * (spent.min() + spent.max()))
    result = replay_port(problem, target, BudgetReplay(trials=2, seed=4), limit=1e6)
    first = int(np.ceil(0.025 * problem.n))
    scores, costs = problem.static_scores["knn"], problem.predicted_costs
    for order, actions, prices in zip(result.order, result.actions, result.rhos, strict=True):
        seen = order[:first]
        price = port_price(scores[seen], costs[seen], target, 1e6)
        assert not prices[:first].any() and (prices[first:] == price).all()
        for row, arm in zip(order[first : first + 200], actions[first : first + 200], strict=True):
            assert arm == max(range(problem.K), key=lambda j: scores[row, j] - price * costs[row, j])
    np.testing.assert_array_equal(
        result.order,
        replay_budget(problem, "knn", target, BudgetReplay(rhos=(0, 1000), trials=2, seed=4)).order,
    )
    assert len(np.unique(result.actions[:, :first])) > 1
    (row,) = replay_budgets(problem, "knn", [target], BudgetReplay(rhos=(0.0, 2000.0), trials=2, seed=4))
    port = replay_port(
        problem, target, BudgetReplay(trials=2, seed=4), limit=100.0 / problem.offline_costs.mean()
    ).row()
    assert (row["score port"], row["off port"]) == (port["score"], port["off"])
