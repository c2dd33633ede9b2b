"""cabs_mix against full ridge solves from history, and its behaviour online."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tests_support import built

from cabs_core.compiled.rng import query_order
from cabs_core.policies.requests import Request
from cabs_core.problem.synthetic import synthetic_problem
from cabs_core.replay import replay
from cabs_core.utility import expected_utility


def fresh(problem, rho=300.0, **options):
    return built("cabs_mix", problem, rho, **options)


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
            np.testing.assert_allclose(policy.algorithm.weights(), weights, atol=1e-9)
            x = problem.contexts[row]
            mine = sum(
                w * (th @ x)
                for w, th in zip(
                    weights,
                    (policy.algorithm.model.th_a, policy.algorithm.model.th_b, policy.algorithm.model.th_c),
                )
            )
            np.testing.assert_allclose(mine, f, atol=1e-9)
        decision = policy.decide(request)
        if t % 10 == 0:
            value = expected_utility(f, problem.predicted_costs[row], 300.0)
            # the played arm is the one that the reference plays with the same normals
            from cabs_core.compiled.rng import NOISE, normal

            draw = np.array([normal(policy.algorithm.keys, NOISE, t, j) for j in range(4)])
            margin = np.clip(1 - 300.0 * problem.predicted_costs[row], 0, 1)
            assert decision.arm == np.argmax(value + 0.1 * margin * width * draw)
        policy.update(decision, problem.scores[row, decision.arm], 0.0)
        reference.learn(row, decision.arm)
    assert len({arm for _, arm, _ in reference.seen}) == 4


def test_one_model_serves_every_rho():
    problem = synthetic_problem(n=50, K=4, d=5, offline=50)
    policy, stream = fresh(problem, rho=0.0)
    request = stream.request(3, 0)
    dear = policy.decide(Request(**{**request.__dict__, "rho": 1e6}))
    cheap = policy.decide(request)
    assert dear.rho == 1e6 and cheap.rho == 0.0
    assert policy.update(dear, 1.0, 0.1)


def test_a_new_arm_learns_from_what_was_predicted_for_it():
    problem = synthetic_problem(n=60, K=4, d=5, offline=40)
    policy, stream = fresh(problem)
    waiting = policy.decide(stream.request(0, 0))
    policy.add_arm("new")
    assert policy.algorithm.model.th_a.shape == (5, 5) and policy.algorithm.model.inv_b.shape == (2, 5, 5)
    before = policy.algorithm.model.inv_b[1].copy()
    assert policy.update(waiting, 1.0, 0.0, deltas=np.full(4, -0.2))
    np.testing.assert_array_equal(
        policy.algorithm.model.inv_b[1], before
    )  # nothing was predicted for the new arm then
    request = stream.request(11, 0)
    wide = {
        "predicted_scores": np.append(request.predicted_scores, 0.5),
        "static_costs": np.append(request.static_costs, 1e-4),
        "surrogate": lambda arm, score: np.zeros(5),
    }
    decision = policy.decide(Request(**{**request.__dict__, **wide}))
    policy.update(decision, 1.0, 0.0)
    assert not np.array_equal(policy.algorithm.model.inv_b[1], before)


def test_without_deltas_the_surrogate_model_learns_nothing():
    problem = synthetic_problem(n=20, K=3, d=4, offline=20)
    policy, stream = fresh(problem)
    decision = policy.decide(Request(**{**stream.request(0, 0).__dict__, "surrogate": None}))
    b, a = policy.algorithm.model.th_b.copy(), policy.algorithm.model.th_a.copy()
    assert policy.update(decision, 1.0, 0.0)
    np.testing.assert_array_equal(policy.algorithm.model.th_b, b)
    assert not np.array_equal(policy.algorithm.model.th_a, a)


def test_wrong_offline_labels_lose_their_weight():
    problem = synthetic_problem(n=600, K=4, d=6, offline=400)
    wrong = {"offline_scores": 1.0 - problem.offline_scores, "surrogate_deltas": -problem.surrogate_deltas}

    right = replay(problem, "cabs_mix", 0.0, trials=2)
    bad = replay(replace(problem, **wrong), "cabs_mix", 0.0, trials=2)
    assert right.meta_weights[:, -1, 2].mean() < 0.1 < 0.9 < bad.meta_weights[:, -1, 2].mean()
