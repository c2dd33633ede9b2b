"""What a router needs of a policy beyond deciding and learning: another arm played, copies that decide, other
draws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cabs_core.algorithms.policies import build_policy, load_policy
from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.base.catalog.policies import random_key
from cabs_core.base.streams import stream_keys
from cabs_core.evaluation.replay.engine import make_stream

RHO = 300.0
SMALL = {"hidden": 8, "batch": 4}
NAMES = [
    "random",
    "best_single",
    "carrot",
    "epsilon_greedy",
    "lin_ucb",
    "lin_ts",
    "cabs_c_linear",
    "cabs_c_linear@tuned",
    "cabs_c_linear@literal",
    "cabs_d_linear",
    "cabs_d_linear@tuned",
    "hier_mix",
    "neural_ucb",
    "cabs_c_neural",
]


@pytest.fixture(scope="module")
def stream():
    return make_stream(synthetic_problem(n=60, K=4, d=4, seed=3, offline=60), RHO)


def fresh(name, stream, seed=0):
    return build_policy(
        name,
        arms=stream.arms,
        dim=stream.contexts.shape[1],
        rho=RHO,
        offline=stream.offline,
        horizon=60,
        seed=seed,
        binary_share=stream.share,
        **(SMALL if "neural" in name else {}),
    )


def learn(policy, stream, row, decision):
    arm = decision.arm
    deltas = np.asarray(stream.deltas[row, arm], dtype=np.float64)
    policy.update(decision, float(stream.scores[row, arm]), float(stream.costs[row, arm]), deltas=deltas)


def arrays(policy):
    return policy.algorithm.state()[0]


@pytest.mark.parametrize("name", NAMES)
def test_the_same_arm_redrawn_teaches_the_same(name, stream):
    one, two = fresh(name, stream), fresh(name, stream)
    for row in range(30):
        a, b = one.decide(stream.request(row, row)), two.decide(stream.request(row, row))
        learn(one, stream, row, a)
        learn(two, stream, row, two.redraw(b, b.arm, b.pmf))
    for key, value in arrays(one).items():
        assert np.array_equal(value, arrays(two)[key]), key


@pytest.mark.parametrize("name", NAMES)
def test_another_arm_redrawn_is_the_one_that_learns(name, stream):
    policy = fresh(name, stream)
    for row in range(20):
        decision = policy.decide(stream.request(row, row))
        arm = (decision.arm + 1) % 4
        pmf = 0.9 * decision.pmf + 0.1 / 4
        redrawn = policy.redraw(decision, arm, pmf)
        assert (redrawn.arm, redrawn.probability) == (arm, pmf[arm])
        assert np.array_equal(redrawn.pmf, pmf)
        learn(policy, stream, row, redrawn)
    assert all(np.isfinite(v).all() for v in arrays(policy).values())


def test_a_redrawn_arm_is_what_a_bandit_observes(stream):
    """LinUCB with a redrawn arm holds exactly the ridge solution of the rows that were played."""
    policy = fresh("lin_ucb", stream)
    played = []
    for row in range(20):
        decision = policy.decide(stream.request(row, row))
        learn(policy, stream, row, policy.redraw(decision, row % 4, np.full(4, 0.25)))
        played.append(row % 4)
    x, u = stream.contexts[:20], stream.utilities[:20]
    for arm in range(4):
        rows = np.flatnonzero(np.array(played) == arm)
        gram = x[rows].T @ x[rows] + 10.0 * np.eye(x.shape[1])
        assert np.allclose(
            policy.algorithm.model.theta[0, arm], np.linalg.solve(gram, x[rows].T @ u[rows, arm])
        )


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_that_only_learns_holds_what_the_decider_learns(name, stream, tmp_path):
    """All the time, also with arms away, which the copy is not told of."""
    decider = fresh(name, stream)
    copy = load_policy(decider.save(tmp_path / "copy"))
    for row in range(40):
        mask = None if row % 3 else np.array([True, True, False, True])
        request = replace(stream.request(row, row), available=mask)
        decision = decider.decide(request)
        copy.algorithm.count(decision.arm_name)
        learn(decider, stream, row, decision)
        learn(copy, stream, row, decision)
    assert copy.round == decider.round
    request = stream.request(50, 0)
    one, two = decider.decide(request), copy.decide(request)
    assert one.arm == two.arm
    assert np.allclose(one.pmf, two.pmf, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_reseeding_equals_being_built_with_the_keys(name, stream):
    if "neural" in name:
        pytest.skip("the keys of a neural policy also draw its first weights")
    policy, reseeded = fresh(name, stream, seed=0), fresh(name, stream, seed=9)
    policy.algorithm.reseed(9, random_key(name))
    for row in range(30):
        a, b = policy.decide(stream.request(row, row)), reseeded.decide(stream.request(row, row))
        assert a.arm == b.arm
        learn(policy, stream, row, a)
        learn(reseeded, stream, row, b)


def test_reseeding_reaches_what_a_neural_policy_draws_with(stream):
    policy = fresh("cabs_c_neural", stream)
    policy.algorithm.reseed(9, "other")
    assert np.array_equal(policy.algorithm.core.keys[0], policy.algorithm.keys)


def test_built_with_keys_leaves_the_callers_keys_alone(stream):
    keys = stream_keys(1, "mine")
    before = keys.copy()
    policy = build_policy("random", arms=["a", "b"], keys=keys)
    policy.algorithm.reseed(2, "others")
    assert np.array_equal(keys, before)
