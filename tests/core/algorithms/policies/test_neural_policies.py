"""Neural policies: lockstep replay against the online loop, files, arms, and what the networks are taught."""

from __future__ import annotations

import numpy as np
import pytest
from tests_support import built

from cabs_core.algorithms.policies.play import Lane, play_by_calls
from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.base.compiled.rng import query_order
from cabs_core.base.errors import PolicyError
from cabs_core.base.streams import stream_keys
from cabs_core.evaluation.replay import replay
from cabs_core.evaluation.replay.conditions import stream_condition

SMALL = {"hidden": 8, "batch": 8, "learning_rate": 0.01}
POLICIES = (
    ("neural_ucb", {}),
    ("neural_ucb_full", {}),
    ("cabs_c_neural", {}),
    ("cabs_c_neural@literal", {}),
    ("cabs_d_neural", {"updates": 2}),
    ("cabs_d_neural@literal", {}),
    ("cabs_d_neural@tuned", {"experts": [["neural_ucb", {"alpha": 0.5}], "square_cb", "cabs_c"]}),
)


def fresh(problem, name, trial=0, rho=300.0, **options):
    keys = stream_keys(0, problem.pool, name, f"{rho:g}", trial)
    return built(name, problem, rho, keys=keys, **SMALL | options)


@pytest.mark.slow
@pytest.mark.parametrize("condition", ["delayed_rewards", "arms_arrive"])
@pytest.mark.parametrize("name, options", POLICIES)
def test_lockstep_replay_is_the_online_loop(name, options, condition):
    problem = synthetic_problem(n=60, K=4, d=5, offline=20, seed=1)
    fast = replay(problem, name, 300.0, trials=3, condition=condition, **SMALL, **options)
    for trial in (0, 2):
        policy, stream = fresh(problem, name, trial, **options)
        order = query_order(0, problem.pool, trial, problem.n)
        plan = stream_condition(condition, problem, stream, [order], [trial], seed=0, pool=problem.pool)
        lane = Lane.empty(plan.orders[0], plan.arrivals[0], experts=policy.algorithm.experts)
        play_by_calls(policy, stream, lane, 0, problem.n)
        np.testing.assert_array_equal(lane.actions, fast.actions[trial])
        np.testing.assert_allclose(lane.propensities, fast.propensities[trial], atol=1e-6)
        if policy.algorithm.experts:
            np.testing.assert_allclose(lane.meta_weights, fast.meta_weights[trial], atol=1e-6)


def test_networks_are_taught_what_cabs_c_says():
    problem = synthetic_problem(n=40, K=4, d=5, offline=20, seed=3)
    policy, stream = fresh(problem, "cabs_c_neural")
    bias, plays = np.zeros(4), np.zeros(4)
    for t in range(40):
        decision = policy.decide(stream.request(t, t))
        reach = decision.memory["reach"][0]
        arm, y = decision.arm, problem.scores[t, decision.arm]
        policy.update(decision, y, problem.costs[t, arm], deltas=problem.surrogate_deltas[t, arm])
        margin = np.clip(1 - 300.0 * problem.predicted_costs[t], 0, None)
        surrogate = np.clip(y + problem.surrogate_deltas[t, arm].astype(float), 0, 1) * margin
        target = np.clip(surrogate - bias / (plays + 20.0), 0, 1)
        target[arm] = np.clip(y - 300.0 * problem.costs[t, arm], 0, 1)
        seen = (reach > 0).astype(float)
        seen[arm] = 1.0
        state = policy.algorithm.state()[0]
        np.testing.assert_allclose(state["history_w"][t, 0], seen, atol=1e-12)
        np.testing.assert_allclose(state["history_y"][t, 0], target * seen, atol=1e-12)
        np.testing.assert_array_equal(state["history_x"][t], problem.contexts[t])
        predicted = np.clip(problem.predicted_scores[t, arm], 0, 1) * margin[arm]
        bias[arm] += predicted - target[arm]
        plays[arm] += 1
    assert 0 < seen.sum() <= 4


def test_a_bandit_is_taught_the_played_arm_alone_and_full_feedback_all():
    problem = synthetic_problem(n=5, K=3, d=4, offline=20)
    for name in ("neural_ucb", "neural_ucb_full"):
        policy, stream = fresh(problem, name)
        decision = policy.decide(stream.request(0, 0))
        extra = {"all_scores": problem.scores[0], "all_costs": problem.costs[0]}
        policy.update(decision, problem.scores[0, decision.arm], problem.costs[0, decision.arm], **extra)
        rows = policy.algorithm.state()[0]
        expected = np.eye(3)[decision.arm] if name == "neural_ucb" else np.ones(3)
        np.testing.assert_array_equal(rows["history_w"][0, 0], expected)
        np.testing.assert_allclose(rows["history_y"][0, 0], expected * stream.utilities[0], atol=1e-12)


def test_networks_learn():
    problem = synthetic_problem(n=400, K=4, d=6, offline=50, seed=2)
    random = replay(problem, "random", 200.0, trials=2).utilities().mean()
    full, ucb, cabs = (
        replay(problem, name, 200.0, trials=2, hidden=16).utilities().mean()
        for name in ("neural_ucb_full", "neural_ucb", "cabs_c_neural")
    )
    assert full > random + 0.08 and ucb > random + 0.01 and cabs > random + 0.05


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cabs_c_neural", {"warm": 0.3}, "warm"),
        ("neural_ucb", {"hidden": 0}, "hidden"),
        ("cabs_d_neural", {"experts": ["cabs_c"]}, "experts"),
        ("cabs_d_neural", {"experts": [5, "cabs_c"]}, "experts.0: Input should be a valid tuple"),
        ("cabs_d_neural", {"experts": ["lin_ts", "cabs_c"]}, "unknown expert 'lin_ts'"),
        ("cabs_d_neural", {"experts": [["neural_ucb", {"alpha": -1}], "cabs_c"]}, "alpha"),
        ("cabs_d_neural", {"experts": [["neural_ucb", {"hidden": 4}], "cabs_c"]}, "hidden"),
        ("cabs_d_neural", {"experts": [["neural_ts", {"target": "score"}], "cabs_c"]}, "target"),
        ("cabs_d_neural", {"experts": [["square_cb", {"penalty": 1.0}], "cabs_c"]}, "penalty"),
        ("cabs_d_neural", {"experts": ["square_cb", ["cabs_c", {"hidden": 4}]]}, "network settings"),
    ],
)
def test_bad_options_are_named(name, options, message):
    with pytest.raises(PolicyError, match=message):
        fresh(synthetic_problem(n=5, K=3, d=4, offline=20), name, **options)


def test_full_feedback_is_asked_for():
    policy, stream = fresh(synthetic_problem(n=5, K=3, d=4, offline=20), "neural_ucb_full")
    with pytest.raises(PolicyError, match="all_scores"):
        policy.update(policy.decide(stream.request(0, 0)), 1.0, 0.0)


def test_no_gpu_is_said(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    problem = synthetic_problem(n=5, K=3, d=4, offline=20)
    with pytest.raises(PolicyError, match="no GPU"):
        fresh(problem, "neural_ucb", device="cuda")
    assert fresh(problem, "neural_ucb", device="auto")[0].algorithm.core.shape.device == "cpu"
