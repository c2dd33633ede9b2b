"""hier_mix against dense Gaussian posteriors over all coefficients, and its behaviour online."""

from __future__ import annotations

from dataclasses import replace as with_changes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cabs_core.compiled.rng import query_order
from cabs_core.errors import PolicyError
from cabs_core.policies.base import Policy
from cabs_core.policies.hier_mix import HierMix, _values, scaling_of
from cabs_core.policies.lanes import Lane
from cabs_core.policies.registry import build_policy, load_policy
from cabs_core.policies.requests import Request
from cabs_core.problem.synthetic import synthetic_problem
from cabs_core.replay import replay
from cabs_core.replay.engine import make_stream
from cabs_core.utility import expected_utility


def with_kernel(problem, quality=1.0):
    """The problem with a static prediction called `kernel`."""
    return with_changes(problem, static_scores={"kernel": quality * problem.predicted_scores})


def fresh(problem, rho=300.0, seed=0, **options):
    stream = make_stream(problem, rho)
    policy = build_policy(
        "hier_mix", arms=problem.arms, dim=problem.dim, rho=rho, offline=stream.offline, seed=seed,
        horizon=problem.n, share=stream.share, **options,
    )  # fmt: skip
    return policy, stream


class Dense:
    """Bayesian linear regression over all coefficients at once, solved anew from all rows."""

    def __init__(self, prior_sd, noise):
        self.precision, self.noise = np.diag(1.0 / np.asarray(prior_sd) ** 2), noise
        self.rows, self.targets = [], []

    def posterior(self):
        n = len(self.precision)
        rows = np.array(self.rows).reshape(-1, n)
        covariance = np.linalg.inv(self.precision + rows.T @ rows / self.noise)
        return covariance @ rows.T @ np.array(self.targets) / self.noise, covariance


def dense_models(policy, K, d):
    o = policy.settings
    anchored = Dense([o.anchor_level, o.anchor_slope, *[o.anchor_context] * d, *[o.anchor_arm] * K], o.noise)
    cold = Dense(
        [o.cold_level, *[o.cold_context] * d, *([o.cold_arm] + [o.cold_arm_context] * d) * K], o.noise
    )
    return anchored, cold


def rows_of(z, base, level, K):
    """Rows [K, all coefficients] of the two models and their offsets [K]."""
    d = len(z)
    anchored = np.zeros((K, 2 + d + K))
    cold = np.zeros((K, 1 + d + K * (1 + d)))
    x = np.concatenate([[1.0], z])
    for j in range(K):
        anchored[j, : 2 + d] = [1.0, base[j] - level[j], *z]
        anchored[j, 2 + d + j] = 1.0
        cold[j, : 1 + d] = x
        cold[j, (1 + d) * (1 + j) : (1 + d) * (2 + j)] = x
    return (anchored, base), (cold, np.full(K, 0.5))


def test_both_models_equal_dense_posteriors_and_weights_the_likelihoods():
    K, d = 4, 5
    problem = with_kernel(synthetic_problem(n=150, K=K, d=d, offline=60, seed=3))
    policy, stream = fresh(problem)
    dense = dense_models(policy, K, d)
    scaling = scaling_of(problem.offline_contexts)
    level = problem.offline_scores.mean(axis=0)
    trust, o = 0.9, policy.settings
    for t, row in enumerate(query_order(0, "x", 0, 150)):
        request = stream.request(int(row), t)
        z = (problem.contexts[row] - scaling[0]) * scaling[1]
        base = problem.static_scores["kernel"][row]
        assert policy.weights()[0] == pytest.approx(trust, abs=1e-9)
        decision = policy.decide(request)
        arm, y = decision.arm, problem.scores[row, decision.arm]
        likelihood = []
        for model, (rows, offset) in enumerate(rows_of(z, base, level, K)):
            mean, covariance = dense[model].posterior()
            f = offset + rows @ mean
            if t % 15 == 0:
                numbers = policy._numbers(300.0)
                args = (z, base, problem.predicted_costs[row], np.ones(K, bool), numbers, policy.anchored)
                _values(model, *args, policy.cold, policy.work)
                value = expected_utility(f, problem.predicted_costs[row], 300.0)
                np.testing.assert_allclose(policy.work[3], value, atol=1e-9)
                contrast = rows - rows[np.argmax(value)]
                deviation = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", contrast, covariance, contrast), 0))
                margin = np.clip(1 - 300.0 * problem.predicted_costs[row], 0, 1)
                np.testing.assert_allclose(policy.work[2], 0.5 * margin * deviation, atol=1e-8)
            p = np.clip(f[arm], o.clip, 1 - o.clip)
            likelihood.append(p**y * (1 - p) ** (1 - y))
            dense[model].rows.append(rows[arm])
            dense[model].targets.append(y - offset[arm])
        policy.update(decision, y, 0.0)
        trust = trust * likelihood[0] / (trust * likelihood[0] + (1 - trust) * likelihood[1])
        trust = (1 - o.share) * trust + o.share * o.anchor_weight


@pytest.mark.parametrize("condition", ["none", "delayed_rewards", "arms_arrive", "arms_disappear"])
def test_compiled_replay_is_the_slow_loop(condition, monkeypatch):
    problem = with_kernel(synthetic_problem(n=600, K=5, d=6, offline=80, seed=1, graded=True))
    fast = replay(problem, "hier_mix", 300.0, trials=2, condition=condition)
    monkeypatch.setattr(HierMix, "run", Policy.run)
    slow = replay(problem, "hier_mix", 300.0, trials=2, condition=condition)
    np.testing.assert_array_equal(fast.actions, slow.actions)
    np.testing.assert_array_equal(fast.propensities, slow.propensities)
    np.testing.assert_array_equal(fast.meta_weights, slow.meta_weights)


def test_saved_half_way_continues_bit_for_bit(tmp_path):
    problem = with_kernel(synthetic_problem(n=700, K=4, d=5, offline=50))
    policy, stream = fresh(problem)
    lane = Lane.empty(query_order(0, "x", 0, 700), experts=2)
    policy.run(stream, lane, 0, 5)
    policy.save(tmp_path / "p")
    again = load_policy(tmp_path / "p")
    policy.run(stream, lane, 5, 700)
    other = Lane.empty(lane.order, experts=2)
    other.actions[:5] = lane.actions[:5]
    again.run(stream, other, 5, 700)
    np.testing.assert_array_equal(lane.actions, other.actions)
    for name, value in policy.state()[0].items():
        np.testing.assert_array_equal(value, again.state()[0][name])


def test_long_streams_play_every_arm_and_short_ones_need_not():
    problem = with_kernel(synthetic_problem(n=450, K=4, d=5, offline=50))
    long = replay(problem, "hier_mix", 300.0, trials=1)
    for k in range(4):
        assert (long.actions[0, : 3 * 4] == k).any()
    forced = [t for t in range(12) if t % 3 == 2 and long.propensities[0, t] == 1.0]
    assert forced
    short = replay(problem, "hier_mix", 300.0, trials=1, rounds=300)
    assert not (short.propensities[0, :12] == 1.0).all()


def test_propensities_are_the_frequencies_of_the_draws():
    problem = with_kernel(synthetic_problem(n=50, K=4, d=5, offline=30))
    policy, stream = fresh(problem, anchor_weight=0.5, exploration=2.0, anchor_arm=0.1)
    request = stream.request(0, 0)
    decisions = [policy.decide(request) for _ in range(6000)]
    counts = np.bincount([d.arm for d in decisions], minlength=4) / 6000
    assert (counts > 0.01).sum() >= 3
    np.testing.assert_allclose(counts, decisions[0].pmf, atol=4 * 0.5 / np.sqrt(6000))


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 1000),
    K=st.integers(1, 7),
    d=st.integers(2, 6),
    rho=st.sampled_from([0.0, 400.0, 1e5]),
)
def test_decisions_are_distributions_and_posteriors_shrink(seed, K, d, rho):
    problem = with_kernel(synthetic_problem(n=40, K=K, d=d, offline=20, seed=seed))
    policy, stream = fresh(problem, rho=rho, seed=seed)
    rng = np.random.default_rng(seed)
    start = np.diag(policy.cold[1]).copy()
    for t in range(40):
        mask = rng.random(K) < 0.7
        mask[rng.integers(K)] = True
        decision = policy.decide(Request(**{**stream.request(t, t).__dict__, "available": mask}))
        assert mask[decision.arm] and decision.pmf.min() >= 0
        assert decision.pmf.sum() == pytest.approx(1.0) and (decision.pmf[~mask] == 0).all()
        policy.update(decision, problem.scores[t, decision.arm], problem.costs[t, decision.arm])
        assert policy.weights().sum() == pytest.approx(1.0)
    assert (np.diag(policy.cold[1]) <= start + 1e-15).all() and (np.diag(policy.anchored[1]) > 0).all()


def test_wrong_anchor_is_found_out_and_a_right_one_kept():
    problem = with_kernel(synthetic_problem(n=900, K=5, d=6, offline=400, surrogate_quality=0.9))
    wrong = with_changes(
        problem,
        offline_scores=problem.offline_scores[:, ::-1],
        static_scores={"kernel": problem.static_scores["kernel"][:, ::-1]},
    )
    right = replay(problem, "hier_mix", 0.0, trials=3)
    bad = replay(wrong, "hier_mix", 0.0, trials=3)
    static = replay(wrong, "kernel", 0.0, trials=3)
    assert right.meta_weights[:, -1, 0].min() > 0.5 and right.meta_weights[:, -1, 0].mean() > 0.8
    assert bad.meta_weights[:, -1, 0].max() < 0.2
    assert bad.utilities().mean() > static.utilities().mean() + 0.03


def test_arms_come_and_go():
    problem = with_kernel(synthetic_problem(n=60, K=4, d=5, offline=40))
    policy, stream = fresh(problem)
    waiting = [policy.decide(stream.request(t, t)) for t in range(10)]
    for decision in waiting[:5]:
        policy.update(decision, 1.0, 0.0)
    policy.add_arm("new")
    request = stream.request(11, 0)
    wide = {
        "static_scores": {"kernel": np.append(request.static_scores["kernel"], 0.9)},
        "static_costs": np.append(request.static_costs, 1e-5),
    }
    decision = policy.decide(Request(**{**request.__dict__, **wide}))
    assert decision.pmf.shape == (5,) and policy.update(decision, 0.0, 0.0)
    assert policy.update(waiting[7], 1.0, 0.0)
    policy.remove_arm(policy.arms[waiting[8].arm])
    assert policy.update(waiting[8], 1.0, 0.0) is False
    assert [len(policy.anchored[2]), len(policy.cold[2]), len(policy.plays)] == [4, 4, 4]


def test_constant_features_are_left_out_of_the_scaling():
    rng = np.random.default_rng(0)
    x = np.hstack([rng.normal(3.0, 2.0, size=(500, 3)), np.full((500, 1), 2.0)])
    center, factor = scaling_of(x)
    z = (x - center) * factor
    assert factor[3] == 0.0
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=1e-12)
    assert (z**2).sum(axis=1).mean() == pytest.approx(1.0)
    assert (scaling_of(np.ones((5, 2)))[1] == 0).all()


def test_bad_options_and_requests_are_named():
    problem = with_kernel(synthetic_problem(n=20, K=3, d=4, offline=20))
    with pytest.raises(PolicyError, match="base must be one of"):
        fresh(problem, base="forest")
    with pytest.raises(PolicyError, match="noise"):
        fresh(problem, noise=0)
    policy, stream = fresh(problem)
    with pytest.raises(PolicyError, match="predicted_scores"):
        policy.decide(Request(context=problem.contexts[0], static_costs=np.zeros(3)))
    with pytest.raises(PolicyError, match="static_scores"):
        policy.decide(
            Request(
                context=problem.contexts[0], static_costs=np.zeros(3), static_scores={"kernel": np.zeros(2)}
            )
        )
    assert policy.decide(stream.request(0, 0)).arm in (0, 1, 2)
