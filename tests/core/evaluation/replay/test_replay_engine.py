"""The replay engine: orders, traces, invariants, progress and cancellation, conditions."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.base.compiled.rng import query_order
from cabs_core.base.errors import DataError
from cabs_core.base.utility import clipped_utility
from cabs_core.data.outcomes.conditions import noisy_scores, shifted_splits
from cabs_core.evaluation.replay.conditions import delayed_arrivals, drift_order
from cabs_core.evaluation.replay.engine import ReplayCancelled, replay

FAST = "random best_single carrot epsilon_greedy square_cb lin_ucb lin_ts cabs_c_linear".split()


@pytest.fixture(scope="module")
def problem():
    return synthetic_problem(n=150, K=4, d=4, seed=7)


@given(
    policy=st.sampled_from(FAST),
    rho=st.sampled_from([0.0, 150.0, 1000.0]),
    seed=st.integers(0, 3),
    condition=st.sampled_from(["none", "drift", "arms_arrive", "arms_disappear", "delayed_rewards"]),
)
@settings(max_examples=40, deadline=None)
def test_invariants(problem, policy, rho, seed, condition):
    result = replay(problem, policy, rho=rho, trials=2, seed=seed, condition=condition)
    utilities = clipped_utility(problem.scores, problem.costs, rho)
    for lane in range(2):
        assert sorted(result.order[lane]) == list(range(problem.n))
    np.testing.assert_array_equal(result.rewards, utilities[result.order, result.actions])
    assert (result.best_rewards >= result.rewards).all() and result.rewards.min() >= 0
    assert (result.propensities >= 0).all() and (result.propensities <= 1 + 1e-6).all()
    regret = result.per_round("regret").mean()
    assert result.utility + regret == pytest.approx(result.best_rewards.mean())
    if result.gaps is not None:
        assert np.nanmin(result.gaps) >= 0
        assert result.uncertified.sum() == (result.gaps > 1e-6).sum()


def test_order_depends_on_seed_pool_and_trial_only(problem):
    a = replay(problem, "random", rho=0.0, trials=3, seed=1)
    b = replay(problem, "lin_ucb", rho=900.0, trials=[2], seed=1)
    assert np.array_equal(a.order[2], b.order[0])
    assert np.array_equal(a.order[1], query_order(1, problem.pool, 1, problem.n))
    elsewhere = replay(problem, "random", rho=0.0, trials=3, seed=1, pool="another")
    assert not np.array_equal(a.order, elsewhere.order)


def test_static_policies_do_what_they_say(problem):
    rho = 300.0
    utilities = clipped_utility(problem.scores, problem.costs, rho)
    best = replay(problem, "oracle_best", rho=rho, trials=1)
    assert best.per_round("regret").mean() == 0
    carrot = replay(problem, "carrot", rho=rho, trials=1)
    margin = np.clip(1 - rho * problem.predicted_costs, 0, 1)
    expected = (np.clip(problem.predicted_scores, 0, 1) * margin).argmax(axis=1)
    assert np.array_equal(carrot.actions[0], expected[carrot.order[0]])
    random = replay(problem, "random", rho=rho, trials=40)
    assert random.rewards.mean() == pytest.approx(utilities.mean(), abs=0.02)


def test_static_predictions_fall_back_on_the_train_split(problem):
    bare = replace(problem, static_scores={}, static_costs=None)
    result = replay(bare, "ridge", rho=300.0, trials=1)
    assert result.rewards.mean() > replay(bare, "random", rho=300.0, trials=5).rewards.mean()


def test_surrogates_help_when_they_are_good_and_warm_starts_help():
    problem = synthetic_problem(n=1200, K=8, d=8, seed=0, offline=800)
    mean = {}
    for name in "random lin_ucb lin_ucb@warm lin_ucb_full cabs_c_linear@tuned oracle_best".split():
        results = [replay(problem, name, rho=rho, trials=3) for rho in (0.0, 300.0)]
        mean[name] = np.mean([result.rewards.mean() for result in results])
    assert mean["random"] < mean["lin_ucb"] < mean["lin_ucb@warm"] < mean["oracle_best"]
    assert mean["lin_ucb"] + 0.01 < mean["cabs_c_linear@tuned"]
    assert mean["lin_ucb"] < mean["lin_ucb_full"]


def test_progress_and_cancellation(problem):
    seen = []
    replay(problem, "random", trials=1, progress=lambda share, text: seen.append((share, text)))
    assert seen[-1][0] == 1.0 and "150 of 150" in seen[-1][1]
    with pytest.raises(ReplayCancelled, match="cancelled after 0 rounds"):
        replay(problem, "random", trials=1, cancel=lambda: True)


def test_rounds_and_given_orders(problem):
    short = replay(problem, "lin_ucb", rho=300.0, trials=2, rounds=40)
    whole = replay(problem, "lin_ucb", rho=300.0, trials=2)
    assert short.actions.shape == (2, 40)
    assert np.array_equal(short.actions, whole.actions[:, :40])
    order = np.array([[5, 5, 7, 9]])
    assert np.array_equal(replay(problem, "lin_ucb", trials=1, order=order).order, order)


def test_drift_moves_from_one_half_of_the_tasks_to_the_other(problem):
    order = query_order(0, "p", 0, problem.n)
    moved = drift_order(order, problem.tasks, np.random.default_rng(0))
    assert sorted(moved) == list(range(problem.n))
    place = np.empty(problem.n)
    place[moved] = np.arange(problem.n)
    means = sorted(place[problem.tasks == t].mean() for t in np.unique(problem.tasks))
    assert means[-1] - means[0] > 0.3 * problem.n


def test_delays():
    pairs = delayed_arrivals(1000, np.random.default_rng(0))
    late = pairs[:, 0] - pairs[:, 1]
    assert late.min() >= 1 and late.max() <= 200 and pairs[:, 0].max() < 1000
    assert (np.diff(pairs[:, 0]) >= 0).all() and len(np.unique(pairs[:, 1])) == len(pairs)
    assert 700 < len(pairs) < 900


def test_noise_keeps_the_means():
    y = (np.random.default_rng(0).random((400, 3)) < [0.2, 0.5, 0.8]).astype(float)
    noisy = noisy_scores(y, seed=1)
    np.testing.assert_allclose(noisy.mean(axis=0), y.mean(axis=0))
    assert 0.05 < (noisy != y).mean() < 0.4


def test_shifted_splits_hold_whole_tasks_out():
    tasks = np.repeat(list("abcdef"), 30)
    prompts = np.array([f"{t} {i % 25}" for i, t in enumerate(tasks)])
    prompts[0] = prompts[-1] = "the same prompt in two tasks"
    split = shifted_splits(tasks, prompts, seed=3)
    test_tasks = {t for t in "abcdef" if (split[tasks == t] == "test").all()}
    assert len(test_tasks) == 3
    for prompt in set(prompts):
        assert len(set(split[prompts == prompt])) == 1
    assert set(split) == {"train", "validation", "test"}
    with pytest.raises(DataError, match="unknown"):
        shifted_splits(tasks, prompts, test_tasks=["z"])
    with pytest.raises(DataError, match="not all"):
        shifted_splits(tasks, prompts, test_tasks=list("abcdef"))
