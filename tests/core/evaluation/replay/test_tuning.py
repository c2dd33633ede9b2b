"""Tuning: equal budget, seeded, on the problem it is given, stored and read back."""

import time
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from cabs_core.algorithms.policies.registry import policy_class
from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.base.catalog.policies import policies
from cabs_core.base.catalog.policy_record import FIXED_PRESETS
from cabs_core.base.errors import PolicyError
from cabs_core.base.statistics.uncertainty import mean_error
from cabs_core.data.pool_files.pool import Pool
from cabs_core.evaluation.replay import replay
from cabs_core.evaluation.replay.tuning import (
    configurations,
    search_rhos,
    trials_for,
    tunable,
    tune,
    tune_policies,
)


@pytest.fixture(scope="module")
def problem():
    return synthetic_problem(n=200, K=4, d=4, seed=5, name="validation")


def test_every_method_gets_the_same_budget(problem):
    result = tune(problem, ["lin_ucb", "lin_ts", "carrot", "cabs_c_linear@literal"], (300.0,), 4, trials=2)
    assert set(result.chosen) == {"lin_ucb", "lin_ts"}
    assert all(entry["configurations"] == 4 for entry in result.chosen.values())
    assert len(result.tried) == 8
    for policy, entry in result.chosen.items():
        mine = [r for r in result.tried if r["policy"] == policy]
        assert mine[0]["options"] == {} and len({str(r["options"]) for r in mine}) == 4
        assert entry["best_utility"] == max(r["utility"] for r in mine)
        if entry["options"]:
            assert entry["lead"] > entry["lead_se"]
        else:
            assert entry["utility"] == entry["preset_utility"]


def test_a_clear_winner_is_chosen(problem):
    result = tune(
        problem,
        ["epsilon_greedy"],
        (0.0,),
        2,
        trials=4,
        fixed={"epsilon_greedy": {"eps0": 1.0, "eps_min": 1.0}},
        grids={"epsilon_greedy": {"eps0": (0.05,), "eps_min": (0.0,)}},
    )
    assert result.chosen["epsilon_greedy"]["options"] == {"eps0": 0.05, "eps_min": 0.0}


def test_small_splits_get_more_orders(problem):
    """A policy that starts cold earns so differently by order that three are no evidence."""
    assert [trials_for(n) for n in (1, 200, 2_000, 4_000, 7_000, 100_000)] == [10, 10, 10, 5, 3, 3]
    by_default, with_ten, with_three = (
        tune(problem, ["lin_ucb"], (300.0,), 2, **trials).chosen["lin_ucb"]
        for trials in ({}, {"trials": 10}, {"trials": 3})
    )
    assert by_default["lead_se"] == with_ten["lead_se"] != with_three["lead_se"]


def test_configurations_are_seeded_and_valid():
    tuned = [base for base, record in policies().items() if record.tuning]
    assert {"lin_ts", "hier_mix", "neural_ucb"} < set(tuned)
    for base in tuned:
        assert configurations(base, 6, 1) == configurations(base, 6, 1)
        if base.startswith("neural"):
            continue
        for options in configurations(base, 8, 0):
            policy_class(base).parse(base, options)
    assert configurations("lin_ucb", 6, 1) != configurations("lin_ucb", 6, 2)
    assert not tunable("random") and not tunable("cabs_d_linear@literal") and tunable("cabs_d_linear@tuned")


def test_every_grid_fills_the_default_budget_and_repeats_nothing():
    """Twelve different configurations for every method that is tuned at all, upper bounds and neural ones
    included."""
    budget = Pool.model_fields["tuning_budget"].default
    for base, record in policies().items():
        for preset in record.presets:
            name = f"{base}@{preset}"
            tried = configurations(name, budget, 0)
            if not tunable(name):
                assert tried == [{}] and (record.family == "static" or preset in FIXED_PRESETS), name
                continue
            settings = [policy_class(base).parse(name, options) for options in tried]
            # the preset and the grid's points, all of them where they are few
            grid = [
                dict(zip(record.tuning, point, strict=True)) for point in product(*record.tuning.values())
            ]
            points = {repr(policy_class(base).parse(name, options)) for options in [{}, *grid]}
            assert len(tried) == min(budget, len(points)), name
            assert not any(s in settings[:i] for i, s in enumerate(settings)), name
            if "target" in record.tuning:
                mine, theirs = settings[:2]
                assert {mine.target, theirs.target} == {"utility", "score"}
                assert theirs.model_copy(update={"target": mine.target}) == mine


def test_pool_hook(problem):
    pool = SimpleNamespace(
        tuning_budget=2,
        policies=("lin_ucb", "random"),
        replay=SimpleNamespace(rhos=(0.0, 400.0), order_seed=0),
    )
    chosen = tune_policies(problem, pool)
    assert set(chosen) == {"lin_ucb"} and chosen["lin_ucb"]["configurations"] == 2
    pool.tuning_budget = 0
    assert tune_policies(problem, pool) == {}


def test_a_policy_that_is_never_tuned_is_named_with_the_reason():
    problem = synthetic_problem(n=60, K=3, d=4)
    with pytest.raises(PolicyError, match=r"cabs_c_linear@literal.*paper"):
        tune(problem, "cabs_c_linear@literal")
    with pytest.raises(PolicyError, match=r"ridge: .*no settings"):
        tune(problem, ["ridge", "random"])
    tuned = tune(problem, ["lin_ucb", "random"], (300.0,), 2, trials=2)
    assert list(tuned.chosen) == ["lin_ucb"] and list(tuned.untuned) == ["random"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rhos": []}, "rhos is empty"),
        ({"rhos": ["a"]}, "rhos is 'a'"),
        ({"rhos": None}, "rhos is None"),
        ({"seed": "a"}, "seed is 'a'"),
        ({"fixed": {"lin_ucb": 3}}, r"fixed\['lin_ucb'\] is 3"),
        ({"grids": 3}, "grids is 3"),
        ({"grids": {"lin_ucb": 3}}, r"grids\['lin_ucb'\] is 3"),
        ({"grids": {"lin_ucb": {"alpha": 1.0}}}, r"grids\['lin_ucb'\]\['alpha'\] is 1.0"),
        ({"grids": {"lin_ucb": {"target": "score"}}}, r"grids\['lin_ucb'\]\['target'\] is 'score'"),
    ],
)
def test_what_cannot_be_tuned_is_named(problem, settings, message):
    with pytest.raises(PolicyError, match=message):
        tune(problem, ["lin_ucb"], **{"trials": 1, "budget": 2} | settings)


def test_one_rho_is_a_list_of_one(problem):
    one, listed = (tune(problem, "lin_ucb", rhos, 2, trials=1).tried for rhos in (300.0, [300.0]))
    assert one == listed
    with pytest.raises(PolicyError, match="takes a ReplayProblem"):
        tune(3, "lin_ucb")


def test_the_search_uses_one_rho_of_each_regime():
    assert search_rhos(range(1000, -1, -50)) == [150, 550, 900]
    assert search_rhos([6, 5, 4, 3, 2, 1]) == [2, 4, 6]


def test_twelve_configurations_at_three_rhos_are_tried_unless_a_caller_says_otherwise():
    problem = synthetic_problem(n=20, K=3, d=2)
    begin = time.perf_counter()
    found = tune(problem, ["lin_ucb"], trials=1)
    assert len(found.tried) == 12 and all(len(entry["by_rho"]) == 3 for entry in found.tried)
    assert 0 < found.chosen["lin_ucb"]["seconds"] <= time.perf_counter() - begin


def test_progress_counts_configurations_and_ends_at_one():
    told = []
    problem = synthetic_problem(n=20, K=3, d=2)
    tune(problem, ["lin_ucb", "lin_ts"], (300.0,), 2, trials=1, progress=lambda *args: told.append(args))
    assert [share for share, _ in told] == [0.25, 0.5, 0.75, 1.0]
    assert [text for _, text in told] == [
        "tuning lin_ucb: 1 of 2",
        "tuning lin_ucb: 2 of 2",
        "tuning lin_ts: 1 of 2",
        "tuning lin_ts: 2 of 2",
    ]


def test_the_lead_is_paired_over_trials_and_queries(problem):
    poor, good = {"eps0": 1.0, "eps_min": 1.0}, {"eps0": 0.05, "eps_min": 0.0}
    found = tune(
        problem,
        ["epsilon_greedy"],
        (0.0,),
        2,
        trials=2,
        fixed={"epsilon_greedy": poor},
        grids={"epsilon_greedy": {name: (value,) for name, value in good.items()}},
    ).chosen["epsilon_greedy"]
    by_trial, by_query = [], []
    for options in (poor, good):
        run = replay(problem, "epsilon_greedy", rho=0.0, trials=2, seed=0, options=options)
        by_trial.append(run.rewards.mean(axis=1))
        rewards = [[] for _ in range(problem.n)]
        for query, reward in zip(run.order.ravel(), run.rewards.ravel(), strict=True):
            rewards[query].append(reward)
        by_query.append(np.array([np.mean(values) for values in rewards]))
    gain_by_trial = by_trial[1] - by_trial[0]
    error = mean_error(by_query[1] - by_query[0], clusters=problem.clusters, trials=gain_by_trial).value
    assert found["lead"] == pytest.approx(gain_by_trial.mean())
    assert found["lead_se"] == pytest.approx(error)
    assert found["lead"] == pytest.approx(found["best_utility"] - found["preset_utility"])
