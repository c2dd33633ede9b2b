"""Marts of a table with gaps: predictions that are wrong turn the order of policies round, and the marts do
not follow them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from built_marts import build_all, read_model
from fake_replays import fake_pool, fake_problem, fake_result

from cabs_core.algorithms.problem.gaps import real_values
from cabs_core.base.catalog.policies import asset_name
from cabs_core.evaluation.replay.storage import save_replay_result
from dbt_like_sql.execute import run_tests

RHOS = (0.0, 300.0, 500.0, 900.0)
POLICIES = ("hier_mix", "lin_ucb", "oracle_best", "random")
GOOD, BAD = 4, 0


class Worlds:
    """The same replays on a full table, and on one whose missing answers (at random) are predicted the wrong
    way."""

    def __init__(self, folder: Path) -> None:
        self.full = fake_problem(n=400, seed=3)
        rng = np.random.default_rng(1)
        real = rng.random(self.full.scores.shape) < 0.5
        guess = np.tile(np.linspace(0.9, 0.1, 5), (400, 1))  # the worst model is said to be the best
        self.gaps = replace(
            self.full, observed=real, predicted_scores=guess, scores=np.where(real, self.full.scores, guess)
        )
        self.folders = {}
        self.results = {}
        for name, problem in (("full", self.full), ("gaps", self.gaps)):
            pool = fake_pool("one")
            self.folders[name] = folder / name
            for rho in RHOS:
                for policy in POLICIES:
                    result = fake_result(problem, policy, rho, pool="one")
                    if policy in ("hier_mix", "lin_ucb"):  # always the best model, always the worst one
                        arm = GOOD if policy == "hier_mix" else BAD
                        actions = np.full(result.actions.shape, arm)
                        value = np.clip(problem.scores - rho * problem.costs, 0, 1)
                        result = replace(result, actions=actions, rewards=value[result.order, actions])
                    self.results[name, policy, rho] = result
                    save_replay_result(
                        result,
                        problem,
                        folder / name / f"replay/one/{int(rho):04d}/{asset_name(policy)}",
                        pool=pool,
                    )
            build_all(folder / name)

    def mart(self, world: str, name: str, where: str = "pool = 'one'") -> pd.DataFrame:
        return read_model(name, self.folders[world], where)


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    return Worlds(tmp_path_factory.mktemp("gaps"))


@pytest.mark.slow
def test_the_order_is_that_of_the_real_answers(worlds: Worlds) -> None:
    at_zero = "pool = 'one' AND rho = 0"
    full, gaps = (
        worlds.mart(w, "mart_utility_by_rho", at_zero).set_index("policy") for w in ("full", "gaps")
    )
    played = {p: worlds.results["gaps", p, 0.0].rewards.mean() for p in ("hier_mix", "lin_ucb")}
    assert played["hier_mix"] < played["lin_ucb"]  # what predictions that count would say
    assert full.loc["hier_mix", "utility"] > full.loc["lin_ucb", "utility"] + 0.2
    assert gaps.loc["hier_mix", "utility"] > gaps.loc["lin_ucb", "utility"] + 0.2
    for policy in ("hier_mix", "lin_ucb"):
        assert gaps.loc[policy, "utility"] == pytest.approx(full.loc[policy, "utility"], abs=0.1)
    values = real_values(worlds.gaps, 0.0).utility
    result = worlds.results["gaps", "random", 0.0]
    assert gaps.loc["random", "utility"] == pytest.approx(values[result.order, result.actions].mean())
    (pair,) = worlds.mart(
        "gaps",
        "mart_pairwise_differences",
        "pool = 'one' AND regime = 'low' AND policy = 'hier_mix' AND baseline = 'lin_ucb'",
    ).itertuples()
    assert pair.low > 0 and pair.significant


@pytest.mark.slow
def test_the_share_observed_stands_beside_the_figures_and_intervals_are_wider(worlds: Worlds) -> None:
    for name in (
        "mart_policy_leaderboard",
        "mart_utility_by_regime",
        "mart_utility_by_rho",
        "mart_pareto_frontier",
        "mart_arm_shares",
    ):
        assert (worlds.mart("full", name)["observed"].dropna() == 1).all(), name
        found = worlds.mart("gaps", name)
        shown = found[found["policy"] == "hier_mix"]["observed"].dropna()
        assert len(shown) and shown.to_numpy() == pytest.approx(worlds.gaps.observed[:, GOOD].mean()), name
    full, gaps = (
        worlds.mart(w, "mart_utility_by_regime", "regime = 'overall'").set_index("policy")
        for w in ("full", "gaps")
    )
    assert gaps.loc["hier_mix", "utility_se_queries"] > 1.2 * full.loc["hier_mix", "utility_se_queries"]


def test_the_policy_that_sees_outcomes_stays_the_upper_bound_as_it_was_played(worlds: Worlds) -> None:
    found = worlds.mart("gaps", "mart_utility_by_rho", "policy = 'oracle_best'")
    assert found["regret"].abs().max() < 1e-9 and (found["observed"] < 1).all()


def test_the_checks_of_the_marts_hold(worlds: Worlds) -> None:
    failed = [
        r
        for name in (
            "stg_replay_summary",
            "mart_utility_by_regime",
            "mart_pareto_frontier",
            "mart_arm_shares",
        )
        for r in run_tests(name, worlds.folders["gaps"])
        if not r.passed
    ]
    assert not failed
