"""cabs_mix against full ridge solves from history, and its behaviour online."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cabs_core.compiled.rng import query_order
from cabs_core.compiled.utility import value_and_slope
from cabs_core.errors import PolicyError
from cabs_core.policies.base import Policy
from cabs_core.policies.lanes import Lane
from cabs_core.policies.registry import build_policy, load_policy
from cabs_core.policies.requests import Request
from cabs_core.problem.synthetic import synthetic_problem
from cabs_core.replay import replay
from cabs_core.replay.engine import make_stream
from cabs_core.utility import expected_utility


def fresh(problem, rho=300.0, seed=0, **options):
    stream = make_stream(problem, rho)
    policy = build_policy(
        "cabs_mix", arms=problem.arms, dim=problem.dim, rho=rho, offline=stream.offline, seed=seed,
        horizon=problem.n, binary_share=stream.share, **options,
    )  # fmt: skip
    return policy, stream


def ridge(rows, targets, penalty):
    gram = rows.T @ rows + penalty * np.eye(rows.shape[1])
    return np.linalg.inv(gram), np.linalg.solve(gram, rows.T @ targets)


class Reference:
    """Every model solved anew from all it has seen, with nothing clever."""

    def __init__(self, problem, penalty=10.0, warm=0.3):
        self.p, self.penalty, self.warm = problem, penalty, warm
        self.seen = []  # (row, arm, targets of B [K])
        self.losses, self.bias = np.zeros(3), np.zeros((problem.K, 2))

    def model(self, which, arm):
        p = self.p
        rows, targets = [np.zeros((0, p.dim))], [np.zeros(0)]
        if which != "C":
            rows.append(np.sqrt(self.warm) * p.offline_contexts)
            targets.append(np.sqrt(self.warm) * p.offline_scores[:, arm])
        for row, played, b_targets in self.seen:
            if which == "B" or played == arm:
                rows.append(p.contexts[row][None])
                targets.append(b_targets[[arm]] if which == "B" else p.scores[row, [arm]])
        return ridge(np.vstack(rows), np.concatenate(targets), self.penalty)

    def predict(self, row):
        x, k = self.p.contexts[row], self.p.K
        weights = np.exp(-3.0 * (self.losses - self.losses.min()))
        weights /= weights.sum()
        f, width = np.zeros(k), np.zeros(k)
        for m, which in enumerate("ABC"):
            for j in range(k):
                inverse, theta = self.model(which, j)
                f[j] += weights[m] * (x @ theta)
                width[j] += weights[m] * np.sqrt(x @ inverse @ x)
        return weights, f, width

    def learn(self, row, arm):
        x, y = self.p.contexts[row], self.p.scores[row, arm]
        for m, which in enumerate("ABC"):
            self.losses[m] += (y - np.clip(x @ self.model(which, arm)[1], 0, 1)) ** 2
        b = self.bias[:, 0] / (self.bias[:, 1] + 20.0)
        targets = np.clip(np.clip(y + self.p.surrogate_deltas[row, arm].astype(float), 0, 1) - b, 0, 1)
        targets[arm] = y
        self.seen.append((row, arm, targets))
        self.bias[arm] += self.p.predicted_scores[row, arm] - y, 1.0


def test_models_and_weights_equal_solves_from_history():
    problem = synthetic_problem(n=120, K=4, d=5, offline=60, seed=2)
    policy, stream = fresh(problem)
    reference = Reference(problem)
    for t, row in enumerate(query_order(0, "x", 0, 120)):
        request = stream.request(int(row), t)
        if t % 10 == 0:
            weights, f, width = reference.predict(row)
            np.testing.assert_allclose(policy.weights(), weights, atol=1e-9)
            x = problem.contexts[row]
            mine = sum(
                w * (th @ x)
                for w, th in zip(weights, (policy.model.th_a, policy.model.th_b, policy.model.th_c))
            )
            np.testing.assert_allclose(mine, f, atol=1e-9)
        decision = policy.decide(request)
        if t % 10 == 0:
            value = expected_utility(f, problem.predicted_costs[row], 300.0)
            # the played arm is the one that the reference plays with the same normals
            from cabs_core.compiled.rng import NOISE, normal

            draw = np.array([normal(policy.keys, NOISE, t, j) for j in range(4)])
            margin = np.clip(1 - 300.0 * problem.predicted_costs[row], 0, 1)
            assert decision.arm == np.argmax(value + 0.1 * margin * width * draw)
        policy.update(decision, problem.scores[row, decision.arm], 0.0)
        reference.learn(row, decision.arm)
    assert len({arm for _, arm, _ in reference.seen}) == 4


@pytest.mark.parametrize("condition", ["none", "delayed_rewards", "arms_arrive", "arms_disappear"])
def test_compiled_replay_is_the_slow_loop(condition, monkeypatch):
    problem = synthetic_problem(n=260, K=5, d=6, offline=80, seed=1, graded=True)
    fast = replay(problem, "cabs_mix", 300.0, trials=2, condition=condition)
    from cabs_core.policies.mix import CabsMix

    monkeypatch.setattr(CabsMix, "run", Policy.run)
    slow = replay(problem, "cabs_mix", 300.0, trials=2, condition=condition)
    np.testing.assert_array_equal(fast.actions, slow.actions)
    np.testing.assert_array_equal(fast.propensities, slow.propensities)
    np.testing.assert_array_equal(fast.meta_weights, slow.meta_weights)


def test_saved_half_way_continues_bit_for_bit(tmp_path):
    problem = synthetic_problem(n=200, K=4, d=5, offline=50)
    policy, stream = fresh(problem)
    lane = Lane.empty(query_order(0, "x", 0, 200), experts=3)
    policy.run(stream, lane, 0, 90)
    policy.save(tmp_path / "p")
    again = load_policy(tmp_path / "p")
    policy.run(stream, lane, 90, 200)
    other = Lane.empty(lane.order, experts=3)
    other.actions[:90] = lane.actions[:90]
    again.run(stream, other, 90, 200)
    np.testing.assert_array_equal(lane.actions, other.actions)
    for name, value in policy.state()[0].items():
        np.testing.assert_array_equal(value, again.state()[0][name])


@settings(max_examples=25, deadline=None)
@given(
    st.floats(-0.5, 1.5),
    st.floats(0, 0.01),
    st.sampled_from([0.0, 100.0, 900.0]),
    st.sampled_from([0.0, 0.4, 1.0]),
)
def test_value_is_the_shared_expected_utility(f, cost, rho, share):
    value, slope = value_and_slope(f, cost, rho, share)
    assert value == pytest.approx(float(expected_utility(f, cost, rho, share)), abs=1e-12)
    assert 0.0 <= slope <= 1.0


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 1000),
    K=st.integers(1, 7),
    d=st.integers(2, 6),
    rho=st.sampled_from([0.0, 400.0, 1e5]),
)
def test_decisions_are_distributions_and_weights_sum_to_one(seed, K, d, rho):
    problem = synthetic_problem(n=40, K=K, d=d, offline=20, seed=seed)
    policy, stream = fresh(problem, rho=rho, seed=seed)
    rng = np.random.default_rng(seed)
    for t in range(40):
        mask = rng.random(K) < 0.7
        mask[rng.integers(K)] = True
        request = stream.request(t, t)
        decision = policy.decide(Request(**{**request.__dict__, "available": mask}))
        assert mask[decision.arm] and decision.pmf.min() >= 0
        assert decision.pmf.sum() == pytest.approx(1.0) and (decision.pmf[~mask] == 0).all()
        policy.update(decision, problem.scores[t, decision.arm], problem.costs[t, decision.arm])
        assert policy.weights().sum() == pytest.approx(1.0)


def test_propensities_are_the_frequencies_of_the_draws():
    problem = synthetic_problem(n=50, K=4, d=5, offline=30)
    policy, stream = fresh(problem, exploration=1.0)
    request = stream.request(0, 0)
    decisions = [policy.decide(request) for _ in range(4000)]
    counts = np.bincount([d.arm for d in decisions], minlength=4) / 4000
    np.testing.assert_allclose(counts, decisions[0].pmf, atol=4 * 0.5 / np.sqrt(4000))


def test_one_model_serves_every_rho():
    problem = synthetic_problem(n=50, K=4, d=5, offline=50)
    policy, stream = fresh(problem, rho=0.0)
    request = stream.request(3, 0)
    dear = policy.decide(Request(**{**request.__dict__, "rho": 1e6}))
    cheap = policy.decide(request)
    assert dear.rho == 1e6 and cheap.rho == 0.0
    assert policy.update(dear, 1.0, 0.1)


def test_arms_come_and_go():
    problem = synthetic_problem(n=60, K=4, d=5, offline=40)
    policy, stream = fresh(problem)
    waiting = [policy.decide(stream.request(t, t)) for t in range(10)]
    policy.add_arm("new")
    assert policy.model.th_a.shape == (5, 5) and policy.model.inv_b.shape == (2, 5, 5)
    before = policy.model.inv_b[1].copy()
    assert policy.update(waiting[0], 1.0, 0.0, deltas=np.full(4, -0.2))
    np.testing.assert_array_equal(policy.model.inv_b[1], before)  # nothing was predicted for the new arm then
    request = stream.request(11, 0)
    wide = {
        "predicted_scores": np.append(request.predicted_scores, 0.5),
        "static_costs": np.append(request.static_costs, 1e-4),
        "surrogate": lambda arm, score: np.zeros(5),
    }
    decision = policy.decide(Request(**{**request.__dict__, **wide}))
    policy.update(decision, 1.0, 0.0)
    assert not np.array_equal(policy.model.inv_b[1], before)
    gone = policy.arms[waiting[1].arm]
    policy.remove_arm(gone)
    assert policy.update(waiting[1], 1.0, 0.0, deltas=np.zeros(4)) is False
    policy.remove_arm("new")
    assert policy.model.inv_b.shape[0] == 1 and len(policy.arms) == 3
    narrow = {
        "predicted_scores": np.full(3, 0.5), "static_costs": np.full(3, 1e-4), "surrogate": np.zeros((3, 3)),
    }  # fmt: skip
    assert policy.update(policy.decide(Request(**{**request.__dict__, **narrow})), 0.0, 0.0)


def test_without_deltas_the_surrogate_model_learns_nothing():
    problem = synthetic_problem(n=20, K=3, d=4, offline=20)
    policy, stream = fresh(problem)
    decision = policy.decide(Request(**{**stream.request(0, 0).__dict__, "surrogate": None}))
    b, a = policy.model.th_b.copy(), policy.model.th_a.copy()
    assert policy.update(decision, 1.0, 0.0)
    np.testing.assert_array_equal(policy.model.th_b, b)
    assert not np.array_equal(policy.model.th_a, a)


def test_bad_options_and_requests_are_named():
    problem = synthetic_problem(n=20, K=3, d=4, offline=20)
    with pytest.raises(PolicyError, match="temperature"):
        fresh(problem, temperature=-1)
    with pytest.raises(PolicyError, match="unheard_of"):
        fresh(problem, unheard_of=1)
    policy, stream = fresh(problem)
    with pytest.raises(PolicyError, match="context"):
        policy.decide(Request(predicted_scores=np.zeros(3), static_costs=np.zeros(3)))
    decision = policy.decide(stream.request(0, 0))
    with pytest.raises(PolicyError, match="score is 2"):
        policy.update(decision, 2.0, 0.0)
    with pytest.raises(PolicyError, match="deltas"):
        policy.update(decision, 1.0, 0.0, deltas=np.zeros(7))


def test_wrong_offline_labels_lose_their_weight():
    problem = synthetic_problem(n=600, K=4, d=6, offline=400)
    wrong = {"offline_scores": 1.0 - problem.offline_scores, "surrogate_deltas": -problem.surrogate_deltas}
    from dataclasses import replace as with_changes

    right = replay(problem, "cabs_mix", 0.0, trials=2)
    bad = replay(with_changes(problem, **wrong), "cabs_mix", 0.0, trials=2)
    assert right.meta_weights[:, -1, 2].mean() < 0.1 < 0.9 < bad.meta_weights[:, -1, 2].mean()
