"""Marts of a table with gaps: predictions that are wrong turn the order of policies round, and the marts do
not follow them."""

from dataclasses import replace

import numpy as np
import pytest
from built_marts import build_all, read_model, run_tests
from fake_replays import fake_pool, fake_problem, fake_result

from cabs_core.algorithms.problem.gaps import real_values
from cabs_core.base.catalog.policies import asset_name
from cabs_core.evaluation.replay.storage import save_replay_result

RHOS = (0.0, 300.0, 500.0, 900.0)
POLICIES = ("hier_mix", "lin_ucb", "oracle_best", "random")
#: the model that a policy always plays: the best one, the worst one
ALWAYS = {"hier_mix": 4, "lin_ucb": 0}


class Worlds:
    """The same replays of two pools: `full`, and `gaps`, whose missing answers (at random) are predicted the
    wrong way."""

    def __init__(self, artifacts):
        self.artifacts = artifacts
        full = fake_problem(n=400, seed=3)
        real = np.random.default_rng(1).random(full.scores.shape) < 0.5
        guess = np.tile(np.linspace(0.9, 0.1, 5), (400, 1))  # the worst model is said to be the best
        scores = np.where(real, full.scores, guess)
        self.gaps = replace(full, observed=real, predicted_scores=guess, scores=scores)
        self.at_zero = {}
        for name, problem in (("full", full), ("gaps", self.gaps)):
            for rho in RHOS:
                for policy in POLICIES:
                    result = fake_result(problem, policy, rho, pool=name)
                    if policy in ALWAYS:
                        actions = np.full(result.actions.shape, ALWAYS[policy])
                        value = np.clip(problem.scores - rho * problem.costs, 0, 1)
                        result = replace(result, actions=actions, rewards=value[result.order, actions])
                    if rho == 0.0:
                        self.at_zero[name, policy] = result
                    folder = artifacts / f"replay/{name}/{int(rho):04d}/{asset_name(policy)}"
                    save_replay_result(result, problem, folder, pool=fake_pool(name))
        build_all(artifacts, database=False)

    def mart(self, pool, name, where="true"):
        return read_model(name, self.artifacts, f"pool = '{pool}' AND {where}").set_index("policy")


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    return Worlds(tmp_path_factory.mktemp("gaps"))


@pytest.mark.slow
def test_the_order_is_that_of_the_real_answers(worlds):
    full, gaps = (worlds.mart(pool, "mart_utility_by_rho", "rho = 0")["utility"] for pool in ("full", "gaps"))
    played = {policy: worlds.at_zero["gaps", policy].rewards.mean() for policy in ALWAYS}
    assert played["hier_mix"] < played["lin_ucb"]  # what predictions that count would say
    for utility in (full, gaps):
        assert utility["hier_mix"] > utility["lin_ucb"] + 0.2
    for policy in ALWAYS:
        assert gaps[policy] == pytest.approx(full[policy], abs=0.1)
    values = real_values(worlds.gaps, 0.0).utility
    result = worlds.at_zero["gaps", "random"]
    assert gaps["random"] == pytest.approx(values[result.order, result.actions].mean())
    low = "regime = 'low' AND policy = 'hier_mix' AND baseline = 'lin_ucb'"
    (pair,) = worlds.mart("gaps", "mart_pairwise_differences", low).itertuples()
    assert pair.low > 0 and pair.significant


@pytest.mark.slow
def test_the_share_observed_stands_beside_the_figures_and_intervals_are_wider(worlds):
    share = worlds.gaps.observed[:, ALWAYS["hier_mix"]].mean()
    for name in (
        "mart_policy_leaderboard",
        "mart_utility_by_regime",
        "mart_utility_by_rho",
        "mart_pareto_frontier",
        "mart_arm_shares",
    ):
        assert (worlds.mart("full", name)["observed"].dropna() == 1).all(), name
        observed = worlds.mart("gaps", name).loc[["hier_mix"], "observed"].dropna()
        assert len(observed) and observed.to_numpy() == pytest.approx(share), name
    full, gaps = (
        worlds.mart(pool, "mart_utility_by_regime", "regime = 'overall'")["utility_se_queries"]
        for pool in ("full", "gaps")
    )
    assert gaps["hier_mix"] > 1.2 * full["hier_mix"]


def test_the_policy_that_sees_outcomes_stays_the_upper_bound_as_it_was_played(worlds):
    rows = worlds.mart("gaps", "mart_utility_by_rho").loc[["oracle_best"]]
    assert rows["regret"].abs().max() < 1e-9 and (rows["observed"] < 1).all()


@pytest.mark.parametrize(
    "name", ["stg_replay_summary", "mart_utility_by_regime", "mart_pareto_frontier", "mart_arm_shares"]
)
def test_the_checks_of_the_marts_hold(worlds, name):
    assert [result for result in run_tests(name, worlds.artifacts) if not result.passed] == []
