"""CABS-C and CABS-D against the reference of the paper, and their options against plain NumPy."""

import math
from dataclasses import replace

import numpy as np
import pytest
from ridge_by_rows import RidgeByRows
from scipy.special import expit

from cabs_core.algorithms.policies import reference
from cabs_core.algorithms.policies.registry import build_policy
from cabs_core.algorithms.policies.request import Request
from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.algorithms.solver.api import solve_exploration
from cabs_core.algorithms.solver.program import objective
from cabs_core.base.compiled.rng import GRAPH, uniform
from cabs_core.base.errors import PolicyError
from cabs_core.evaluation.replay.engine import make_stream

RHO = 400.0
K, D, ROUNDS = 5, 6, 500


@pytest.fixture(scope="module")
def problem():
    return synthetic_problem(n=ROUNDS, K=K, d=D, seed=11)


@pytest.fixture(scope="module")
def stream(problem):
    return make_stream(problem, RHO)


def expected_graph(ybar, probability):
    """Probabilities [K, K] of the edges, from those of a gap between two predictions."""
    E = probability(np.abs(ybar[:, None] - ybar))
    np.fill_diagonal(E, 1.0)
    return E


def drawn_graph(policy, t, E):
    """The compiled policy's graph of round t (it draws an edge by the number i K + j of the round)."""
    draws = [[uniform(policy.algorithm.keys, GRAPH, t, i * K + j) for j in range(K)] for i in range(K)]
    return reference.sample_graph(E, np.array(draws))


def outcome_of(problem, t, i):
    """(score, cost, r, s, delta) of arm i in round t, as lines 9 and 10 hand them on."""
    y, c = float(problem.scores[t, i]), float(problem.costs[t, i])
    delta = problem.surrogate_deltas[t, i].astype(float)
    s = np.clip(y + delta - RHO * problem.predicted_costs[t], 0, 1)
    return y, c, float(np.clip(y - RHO * c, 0, 1)), s, delta


def solves_line_8(p, f, W):
    """Whether p is as good as the paper's form of the program, solved by another solver."""
    best = objective(reference.exploration(f, W, 4.0), 1 - f, W, 4.0)
    return objective(p, 1 - f, W, 4.0) <= best + 2e-6


def test_literal_is_algorithm_1_line_by_line(problem, stream):
    policy = build_policy("cabs_c_linear@literal", arms=problem.arms, dim=D, rho=RHO)
    printed = reference.PlainCabsC(K, D)
    for t in range(ROUNDS):
        x = problem.contexts[t]
        E = reference.expected_graph(reference.affinity(problem.predicted_scores[t]))
        A = drawn_graph(policy, t, E)
        decision = policy.decide(stream.request(t, t))
        if t < 5 or t % 25 == 0:
            f = policy.algorithm.models.theta @ x
            np.testing.assert_allclose(f, printed.rs.theta @ x, atol=1e-9)
            assert solves_line_8(decision.pmf, printed.rs.predict(x), A * E)
        y, c, r, s, delta = outcome_of(problem, t, decision.arm)
        printed.update(x, A, decision.pmf, decision.arm, r, s, delta)
        policy.update(decision, y, c)
        np.testing.assert_allclose(policy.algorithm.bias, printed.b, atol=1e-8)


@pytest.mark.parametrize("name", ["cabs_c_linear@published", "cabs_d_linear@published"])
def test_argmax_plays_the_likeliest_arm_and_learns_what_sampling_learns(problem, stream, name):
    """The mixture, and with it the printed losses, stay those of the distribution; only the draw is
    replaced."""
    policy = build_policy(name, arms=problem.arms, dim=D, rho=RHO)
    twin = build_policy(name, arms=problem.arms, dim=D, rho=RHO, play="sampled")
    drawn = 0
    for t in range(150):
        asked = stream.request(t, t)
        decision, by_twin = policy.decide(asked), twin.decide(asked)
        q = decision.memory["mixture"]
        np.testing.assert_array_equal(q, by_twin.memory["mixture"])
        assert decision.arm == q.argmax() and decision.probability == 1.0
        np.testing.assert_array_equal(decision.pmf, np.eye(K)[decision.arm])
        assert by_twin.probability == q[by_twin.arm]
        drawn += by_twin.arm != decision.arm
        outcome = float(problem.scores[t, decision.arm]), float(problem.costs[t, decision.arm])
        # the twin is told of the arm that was played, so that both learn from the same rounds
        policy.update(decision, *outcome)
        twin.update(replace(decision, router=twin.router), *outcome)
        mine, its = policy.algorithm.state()[0], twin.algorithm.state()[0]
        for key, value in mine.items():
            np.testing.assert_array_equal(value, its[key])
    assert drawn > 10, "sampling must differ from argmax for this test to say anything"


def test_published_learns_plain_targets(problem, stream):
    """No r / p, no IQR rule, no de-biasing: every neighbour's row is its surrogate utility as printed."""
    policy = build_policy("cabs_c_linear@published", arms=problem.arms, dim=D, rho=RHO)
    history = RidgeByRows(K, D, 10.0)
    for t in range(200):
        x, ybar, chat = problem.contexts[t], problem.predicted_scores[t], problem.predicted_costs[t]
        decision = policy.decide(stream.request(t, t))
        i = decision.arm
        A = drawn_graph(policy, t, expected_graph(ybar, expit))
        r = np.clip(problem.scores[t, i] - RHO * problem.costs[t, i], 0, 1)
        s = np.clip(problem.scores[t, i] + problem.surrogate_deltas[t, i].astype(float) - RHO * chat, 0, 1)
        for j in range(K):
            if j == i or A[i, j]:
                history.observe(j, x, r if j == i else s[j])
        policy.update(decision, float(problem.scores[t, i]), float(problem.costs[t, i]))
    np.testing.assert_allclose(policy.algorithm.models.theta, history.theta(), atol=1e-9)


@pytest.mark.parametrize("name", ["cabs_d_linear", "cabs_d_neural"])
def test_an_expert_does_not_play(problem, name):
    with pytest.raises(PolicyError, match="give play beside experts"):
        build_policy(
            name, arms=problem.arms, dim=D, rho=RHO, experts=["square_cb", ["cabs_c", {"play": "argmax"}]]
        )


@pytest.mark.parametrize(
    ("options", "probability"),
    [
        ({}, expit),
        ({"graph": "all"}, np.ones_like),
        ({"graph": "similarity", "pseudo_weight": 0.3, "bias": "none"}, lambda g: 1 - g),
        ({"graph": "sigmoid_similarity", "importance": "weight"}, lambda g: expit(1 - g)),
    ],
)
def test_practical_preset_equals_brute_force(problem, stream, options, probability):
    policy = build_policy("cabs_c_linear", arms=problem.arms, dim=D, rho=RHO, **options)
    o = policy.settings
    history = RidgeByRows(K, D, 10.0)
    n, total = np.zeros(K), np.zeros(K)
    for t in range(ROUNDS):
        x, ybar, chat = problem.contexts[t], problem.predicted_scores[t], problem.predicted_costs[t]
        margin = np.clip(1 - RHO * chat, 0, None)
        if t % 20 == 0:
            np.testing.assert_allclose(policy.algorithm.models.theta @ x, history.theta() @ x, atol=1e-9)
        predicted = policy.algorithm.models.theta @ x
        decision = policy.decide(stream.request(t, t))
        A = drawn_graph(policy, t, expected_graph(ybar, probability))
        if t % 20 == 0:
            losses, gamma = 1 - np.clip(predicted, 0, 1), 4 * math.sqrt(t + 1)
            best = solve_exploration(losses, A, gamma, tol=1e-9)
            assert objective(decision.pmf, losses, A, gamma) <= best.objective + 2e-6
        p, i = decision.pmf, decision.arm
        y, c = problem.scores[t, i], problem.costs[t, i]
        r = np.clip(y - RHO * c, 0, 1)
        s = np.clip(y + problem.surrogate_deltas[t, i].astype(float), 0, 1) * margin
        bias = total / (n + 20) if o.bias == "realised" else np.zeros(K)
        for j in range(K):
            if j == i:
                weight = 1 / max(p[i], 1e-3) if o.importance == "weight" else 1.0
                history.observe(j, x, r, weight)
            elif A[i, j]:
                seen = max(A[:, j] @ p, 1e-3)
                weight = o.pseudo_weight / (seen if o.importance == "weight" else 1.0)
                history.observe(j, x, np.clip(s[j] - bias[j], 0, 1), weight)
        total[i] += np.clip(ybar[i], 0, 1) * margin[i] - r
        n[i] += 1
        policy.update(decision, float(y), float(c))


@pytest.mark.parametrize(
    ("meta_loss", "baseline", "score", "losses"),
    # p = (.2, .6) and q = .4 + .1: 1 x .2 / .5 and 1 x .6 / .5; .5 - .5 x .2 / .5 and .5 - .5 x .6 / .5
    [("realised", None, 0.0, (0.4, 1.2)), ("doubly_robust", 0.5, 1.0, (0.3, -0.1))],
)
def test_cabs_d_weights_by_hand(meta_loss, baseline, score, losses):
    """Two rounds with round numbers, worked out on paper."""
    problem = synthetic_problem(n=10, K=3, d=3, seed=1)
    policy = build_policy(
        "cabs_d_linear",
        arms=problem.arms,
        dim=3,
        rho=0.0,
        eta=0.5,
        gamma_ix=0.1,
        meta_loss=meta_loss,
        experts=["square_cb", ["cabs_c", {"graph": "self"}]],
    )
    zero = np.zeros(3)
    asked = Request(
        context=np.ones(3), predicted_scores=zero, predicted_costs=zero, surrogate=np.zeros((3, 3))
    )
    first = policy.decide(asked)
    # no data: both experts are uniform (SquareCB with equal predictions; the program with equal losses)
    np.testing.assert_allclose(first.memory["pmfs"], 1 / 3, atol=1e-6)
    np.testing.assert_allclose(first.memory["trace"][2:], [0.5, 0.5])
    if baseline is not None:
        np.testing.assert_allclose(first.memory["baseline"], 0.0)  # nothing learnt: predictions are zero
        first.memory["baseline"][:] = baseline
    # give the experts different opinions by hand
    i = first.arm
    first.memory["pmfs"][:] = [[0.4], [0.2]]
    first.memory["pmfs"][:, i] = 0.2, 0.6
    first.memory["mixture"][i] = 0.4
    policy.update(first, score, 0.0)
    weights = np.exp(-0.5 * np.array(losses))
    second = policy.decide(asked).memory["trace"][2:]
    np.testing.assert_allclose(second, weights / weights.sum(), atol=1e-12)


def test_literal_cabs_d_is_algorithm_2_line_by_line(problem, stream):
    copies, horizon = 3, 500
    policy = build_policy(
        "cabs_d_linear@literal", arms=problem.arms, dim=D, rho=RHO, horizon=horizon, ix_copies=copies
    )
    printed = reference.PlainCabsD(K, D, 2.0 ** np.arange(copies) / math.sqrt(K * horizon))
    for t in range(200):
        x = problem.contexts[t]
        E = reference.expected_graph(reference.affinity(problem.predicted_scores[t]))
        A = drawn_graph(policy, t, E)
        decision = policy.decide(stream.request(t, t))
        p, i = decision.memory["pmfs"], decision.arm
        np.testing.assert_allclose(p[0], printed.experts[0].policy(x), atol=1e-12)
        if t % 25 == 0:
            assert solves_line_8(p[1], printed.experts[1].rs.predict(x), A * E)
        np.testing.assert_allclose(decision.pmf, printed.mixture(p), atol=1e-9)
        y, c, r, s, delta = outcome_of(problem, t, i)
        printed.update(x, A, p, i, r, s, delta)
        policy.update(decision, y, c)
        weights = np.exp(policy.algorithm.model.log_weights.reshape(2, copies))
        np.testing.assert_allclose(weights / weights.sum(), printed.w / printed.w.sum(), atol=1e-10)
    assert policy.algorithm.model.second_order[0] == pytest.approx(printed.Delta, rel=1e-10)
