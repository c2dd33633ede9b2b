"""The replay engine: orders, traces, invariants, progress and cancellation, conditions."""

from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.base.catalog.roles import PROPOSED
from cabs_core.base.compiled.rng import query_order
from cabs_core.base.errors import DataError, PolicyError
from cabs_core.base.utility import binary_share, clipped_utility
from cabs_core.data.outcomes.conditions import noisy_scores, shifted_splits
from cabs_core.evaluation.replay import engine
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


def test_progress_and_cancellation_come_after_every_chunk_of_1024_rounds():
    problem = synthetic_problem(n=1030, K=2, d=2, offline=20)
    told, asked = [], []
    replay(problem, "random", 5.0, 2, progress=lambda *args: told.append(args))
    assert told == [
        (1024 / 1030, "random at rho 5: round 1024 of 1030, 2 trials"),
        (1.0, "random at rho 5: round 1030 of 1030, 2 trials"),
    ]
    with pytest.raises(ReplayCancelled, match="random at rho 5 was cancelled after 1024 rounds"):
        replay(problem, "random", 5.0, 1, cancel=lambda: bool(asked) or asked.append(1))


def ticking():
    """Return a stand-in for the module `time` whose clock is a second later at every look."""
    seconds = count()
    return SimpleNamespace(perf_counter=lambda: next(seconds))


def test_trials_share_the_wall_time_of_their_rounds(problem, monkeypatch):
    monkeypatch.setattr(engine, "time", ticking())
    monkeypatch.setattr(engine, "CHUNK", 50)
    assert replay(problem, "random", trials=4).seconds.tolist() == [0.75] * 4
    assert replay(problem, Last(), trials=2).seconds.tolist() == [0.5] * 2


class Last:
    """Plays the last arm; no policy of this project."""

    name = "last"

    def predict(self, context):
        return 3


def test_progress_of_an_object_of_another_library_counts_trials(problem):
    told, asked = [], []
    result = replay(problem, Last(), 5.0, [0, 7], progress=lambda *args: told.append(args))
    assert told == [(0.5, "last at rho 5: trial 1 of 2"), (1.0, "last at rho 5: trial 2 of 2")]
    assert (result.actions == 3).all() and (result.propensities == 1).all() and result.options == {}
    with pytest.raises(ReplayCancelled, match="cancelled after 1 trials"):
        replay(problem, Last(), 5.0, 2, cancel=lambda: bool(asked) or asked.append(1))


def test_ten_trials_of_the_proposed_policy_at_300_a_dollar_are_played_unless_a_caller_says_otherwise():
    result = replay(synthetic_problem(n=10, K=2, d=2, offline=20))
    assert (result.policy, result.rho, result.trials, result.seed) == (PROPOSED, 300.0, 10, 0)
    assert (result.condition, result.latency_weight, result.pool) == ("none", 0.0, "synthetic")


def test_scores_count_as_binary_where_the_train_split_says_so_or_is_missing(problem):
    graded = synthetic_problem(n=20, K=3, d=3, graded=True)
    assert engine.make_stream(graded, 0.0).share == binary_share(graded.offline_scores) < 1
    assert engine.make_stream(replace(graded, metadata={"binary_share": 0.25}), 0.0).share == 0.25
    bare = replace(
        graded,
        offline_contexts=np.empty((0, 3)),
        offline_scores=np.empty((0, 3)),
        offline_costs=np.empty((0, 3)),
        offline_prompt_lengths=None,
        embeddings=None,
        offline_embeddings=None,
    )
    assert engine.make_stream(bare, 0.0).share == 1


class Wordy:
    def __repr__(self):
        return "x" * 300


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"threads": 0}, "threads is 0, expected a whole number from 1 to 4096$"),
        ({"threads": 4097}, "threads is 4097, expected a whole number from 1 to 4096$"),
        ({"trials": 0}, "trials is 0, expected a whole number from 1 to 1000000$"),
        ({"trials": 1_000_001}, "trials is 1000001, expected a whole number from 1 to 1000000$"),
        ({"trials": []}, r"trials \[\] must be a number or numbers of trials$"),
        ({"trials": Wordy()}, r"trials x{77}\.{3} must be"),
        ({"trials": [1, -1]}, "trials is -1, expected"),
        ({"trials": [3, 1, 1]}, "names trial 1 twice"),
        ({"progress": 3}, "progress is 3, expected a function$"),
        ({"rounds": 0}, "rounds is 0, expected"),
        ({"seed": 2**63}, "seed is 9223372036854775808, expected"),
        ({"seed": -(2**63) - 1}, "seed is -9223372036854775809, expected"),
        ({"pool": "p" * 201}, r"pool is 'p{76}\.{3}, expected a name$"),
        ({"pool": 3}, "pool is 3, expected a name$"),
        ({"condition": None}, "condition is None, expected a name$"),
        ({"rho": -1.0}, "rho is -1.0, expected"),
        ({"latency_weight": 1.0}, "the problem has no latencies"),
        ({"options": [1]}, "options must be names and values, not list$"),
        ({"order": [[0.0, 1.0]]}, r"order must be whole \[2, T\] rows in 0..149$"),
        ({"order": [[0, 1]]}, "order must be whole"),
        ({"order": [[1, 2], [1]]}, "order must be whole"),
        ({"order": np.ma.masked_array([[1, 2], [1, 2]])}, "order must be whole"),
        ({"order": [[[0]], [[1]]]}, "order must be whole"),
        ({"order": np.empty((2, 0), int)}, "order must be whole"),
        ({"order": [[0, 1], [2, 150]]}, "order must be whole"),
        ({"order": [[0, 1], [2, -1]]}, "order must be whole"),
    ],
)
def test_what_cannot_be_replayed_is_named(problem, settings_, message):
    with pytest.raises(PolicyError, match=message):
        replay(problem, "random", **{"trials": 2} | settings_)


def test_values_at_the_limits_are_replayed(problem):
    result = replay(problem, "random", 0.0, 1, pool="p" * 200, threads=4096, order=[149, 0])
    assert result.pool == "p" * 200 and result.order.tolist() == [[149, 0]]


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


def test_drift_draws_times_from_the_smallest_and_the_largest_of_three_uniforms():
    n = 20_000
    tasks = np.repeat(["a", "b"], n // 2)
    moved = drift_order(np.random.default_rng(1).permutation(n), tasks, np.random.default_rng(0))
    first = tasks[moved[0]]
    # by the middle, 7 of 8 times of the early task are past, and 1 of 8 times of the late one
    assert (tasks[moved[: n // 2]] == first).mean() == pytest.approx(7 / 8, abs=0.01)
    # a tenth of all times are past at x, where 1 - (1 - x)^3 + x^3 = 0.2
    assert (tasks[moved[: n // 10]] == first).mean() == pytest.approx(0.9982, abs=0.003)


def test_drift_stays_within_the_order_of_time(problem):
    times = np.arange(problem.n) % 3
    result = replay(replace(problem, times=times), "random", trials=2, condition="drift")
    assert (np.diff(times[result.order], axis=1) >= 0).all()
    untimed = replay(problem, "random", trials=2, condition="drift")
    assert not np.array_equal(result.order, untimed.order)


@pytest.mark.parametrize(("arms", "best_third"), [(2, 1), (5, 1), (7, 2)])
def test_the_best_arms_arrive_or_disappear_at_half_time(arms, best_third):
    problem = synthetic_problem(n=60, K=arms, d=4)
    offline = clipped_utility(problem.offline_scores, problem.offline_costs, 300.0).mean(axis=0)
    best = np.argsort(-offline)[:best_third]
    for condition, there in (("arms_arrive", slice(20, 41)), ("arms_disappear", slice(0, 20))):
        result = replay(problem, "random", 300.0, 60, rounds=41, condition=condition)
        played = np.isin(result.actions, best).any(axis=0)
        assert played[there].all() and played.sum() == len(played[there]), condition


def test_an_only_arm_neither_arrives_nor_disappears():
    problem = synthetic_problem(n=20, K=1, d=3)
    for condition in ("arms_arrive", "arms_disappear"):
        result = replay(problem, "random", 0.0, 1, condition=condition)
        assert (result.propensities == 1).all() and np.array_equal(result.rewards, result.best_rewards)


def test_rounds_beyond_an_order_are_refused(problem):
    for rounds in (1, 150):
        assert replay(problem, "random", trials=1, rounds=rounds).rounds == rounds
    with pytest.raises(PolicyError, match="rounds 151 must be between 1 and the 150 rounds of an order"):
        replay(problem, "random", trials=1, rounds=151)


def test_delays_are_uniform_and_a_tenth_of_the_rewards_is_lost():
    total = 50_000
    pairs = delayed_arrivals(total, np.random.default_rng(0))
    late = pairs[:, 0] - pairs[:, 1]
    assert (late.min(), late.max()) == (1, 200) and late.mean() == pytest.approx(100.5, abs=2)
    assert (pairs[:, 1] < total - 200).sum() / (total - 200) == pytest.approx(0.9, abs=0.01)
    assert pairs[:, 0].max() == total - 1


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
