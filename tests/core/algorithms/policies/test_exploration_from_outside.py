"""What a router needs of a policy beyond deciding and learning: another arm played, copies that decide, other
draws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_policies import feedback, fresh, stream

from cabs_core.algorithms.policies.registry import build_policy, load_policy
from cabs_core.base.catalog.policies import random_key
from cabs_core.base.streams import stream_keys

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


def learn(policy, row, decision):
    policy.update(decision, **feedback(policy, row, decision))


def arrays(policy):
    return policy.algorithm.state()[0]


@pytest.mark.parametrize("name", NAMES)
def test_the_same_arm_redrawn_teaches_the_same(name):
    one, two = fresh(name), fresh(name)
    for row in range(30):
        a, b = one.decide(stream().request(row, row)), two.decide(stream().request(row, row))
        learn(one, row, a)
        learn(two, row, two.redraw(b, b.arm, b.pmf))
    for key, value in arrays(one).items():
        assert np.array_equal(value, arrays(two)[key]), key


def test_a_redrawn_arm_is_what_a_bandit_observes():
    """LinUCB with a redrawn arm holds exactly the ridge solution of the rows that were played."""
    policy, pmf = fresh("lin_ucb"), np.array([0.4, 0.3, 0.2, 0.1])
    played = np.arange(20) % 4
    for row, arm in enumerate(played):
        redrawn = policy.redraw(policy.decide(stream().request(row, row)), arm, pmf)
        assert (redrawn.arm, redrawn.probability) == (arm, pmf[arm])
        assert np.array_equal(redrawn.pmf, pmf)
        learn(policy, row, redrawn)
    x, u = stream().contexts[:20], stream().utilities[:20]
    for arm in range(4):
        rows = np.flatnonzero(played == arm)
        gram = x[rows].T @ x[rows] + 10.0 * np.eye(x.shape[1])
        expected = np.linalg.solve(gram, x[rows].T @ u[rows, arm])
        assert np.allclose(policy.algorithm.models.theta[arm], expected)


def test_a_redrawn_arm_reveals_every_arm_where_arms_share_a_matrix():
    policy = fresh("cabs_d_linear@tuned")
    pmf = np.array([0.4, 0.3, 0.2, 0.1])
    decision = policy.decide(stream().request(0, 0))
    assert np.allclose(decision.memory["cover"], 1.0)
    redrawn = policy.redraw(decision, (decision.arm + 1) % 4, pmf)
    assert np.allclose(redrawn.memory["cover"], 1.0)
    assert (redrawn.memory["reach"] > 0.0).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_that_only_learns_holds_what_the_decider_learns(name, tmp_path):
    """All the time, also with arms away, which the copy is not told of."""
    decider = fresh(name)
    copy = load_policy(decider.save(tmp_path / "copy"))
    for row in range(40):
        mask = None if row % 3 else np.array([True, True, False, True])
        request = replace(stream().request(row, row), available=mask)
        decision = decider.decide(request)
        copy.algorithm.count(decision.arm_name)
        learn(decider, row, decision)
        learn(copy, row, decision)
    assert copy.round == decider.round
    request = stream().request(50, 0)
    one, two = decider.decide(request), copy.decide(request)
    assert one.arm == two.arm
    assert np.allclose(one.pmf, two.pmf, atol=1e-9)


# the keys of a neural policy also draw its first weights
@pytest.mark.parametrize("name", [n for n in NAMES if "neural" not in n])
def test_reseeding_equals_being_built_with_the_keys(name):
    policy, reseeded = fresh(name), fresh(name, seed=9)
    policy.algorithm.reseed(9, random_key(name))
    for row in range(30):
        a, b = policy.decide(stream().request(row, row)), reseeded.decide(stream().request(row, row))
        assert a.arm == b.arm
        learn(policy, row, a)
        learn(reseeded, row, b)


def test_reseeding_reaches_what_a_neural_policy_draws_with():
    policy = fresh("cabs_c_neural")
    policy.algorithm.reseed(9, "other")
    assert np.array_equal(policy.algorithm.core.keys[0], policy.algorithm.keys)


def test_built_with_keys_leaves_the_callers_keys_alone():
    keys = stream_keys(1, "mine")
    before = keys.copy()
    policy = build_policy("random", arms=["a", "b"], keys=keys)
    policy.algorithm.reseed(2, "others")
    assert np.array_equal(keys, before)
