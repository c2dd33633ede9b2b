"""Linear bandits against brute force: every prediction from a full solve of the history, 500 rounds, 1e-9."""

import subprocess
import sys

import numpy as np
import pytest
from ridge_by_rows import RidgeByRows

from cabs_core.algorithms.policies.registry import build_policy
from cabs_core.algorithms.policies.request import Offline
from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.base.compiled.rng import ACTION, NOISE, draw, normal, uniform
from cabs_core.base.streams import stream_keys
from cabs_core.evaluation.replay import replay
from cabs_core.evaluation.replay.engine import make_stream

RHO = 300.0
ROUNDS = 500


@pytest.fixture(scope="module")
def problem():
    return synthetic_problem(n=ROUNDS, K=5, d=7, seed=3)


def choose(kind, options, keys, t, mu, width):
    """(arm, probability or None) of a bandit from predictions [K] and squared widths [K]."""
    K = len(mu)
    if kind == "lin_ucb":
        return int(np.argmax(mu + options.alpha * np.sqrt(width))), 1.0
    if kind == "lin_ts":
        noise = np.array([normal(keys, NOISE, t, j) for j in range(K)])
        return int(np.argmax(mu + options.v * np.sqrt(width) * noise)), None
    if kind == "epsilon_greedy":
        eps = max(options.eps_min, options.eps0 / (1 + options.decay * t))
        pmf = np.full(K, eps / K)
        pmf[np.argmax(mu)] += 1 - eps
    else:
        mu = np.clip(mu, 0, 1)
        gamma = options.gamma * (t + 1) ** options.gamma_power
        best = int(np.argmax(mu))
        pmf = 1 / (K + gamma * (mu[best] - mu))
        pmf[best] = 0
        pmf[best] = 1 - pmf.sum()
    arm = draw(pmf, uniform(keys, ACTION, t, 0))
    return arm, pmf[arm]


CASES = [
    ("epsilon_greedy", {}),
    ("square_cb", {}),
    ("lin_ucb", {}),
    ("lin_ts", {}),
    ("lin_ucb", {"regression": "vaw"}),
    ("square_cb", {"regression": "vaw", "penalty": 1.0}),
    ("lin_ucb", {"warm": 0.3}),
    ("lin_ts", {"target": "score", "penalty": 3.0}),
]


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_bandit_equals_brute_force(problem, kind, options):
    result = replay(problem, kind, rho=RHO, trials=1, seed=5, options=options)
    policy = build_policy(kind, arms=problem.arms, dim=problem.dim, rho=RHO, **options)
    settings = policy.settings
    keys = stream_keys(5, problem.pool, kind, "300", 0)
    utilities = np.clip(problem.scores - RHO * problem.costs, 0, 1)
    target = problem.scores if settings.target == "score" else utilities
    margins = (
        np.clip(1 - RHO * problem.predicted_costs, 0, 1)
        if settings.target == "score"
        else np.ones_like(target)
    )
    prior = None
    if settings.warm:
        X = problem.offline_contexts
        Y = np.clip(problem.offline_scores - RHO * problem.offline_costs, 0, 1)
        prior = settings.penalty * np.eye(problem.dim) + settings.warm * X.T @ X, settings.warm * (X.T @ Y).T
    reference = RidgeByRows(problem.K, problem.dim, settings.penalty, settings.regression, prior)
    for t, row in enumerate(result.order[0]):
        x = problem.contexts[row]
        mu, width = np.array([reference.predict(j, x) for j in range(problem.K)]).T
        arm, probability = choose(kind, settings, keys, t, mu * margins[row], width * margins[row] ** 2)
        assert arm == result.actions[0, t], f"round {t}"
        if probability is not None:
            assert probability == pytest.approx(result.propensities[0, t], rel=1e-5)
        reference.observe(arm, x, target[row, arm])


def test_full_feedback_equals_brute_force(problem):
    result = replay(problem, "lin_ucb_full", rho=RHO, trials=1)
    utilities = np.clip(problem.scores - RHO * problem.costs, 0, 1)
    order = result.order[0]
    for t in range(0, ROUNDS, 17):
        X, Y = problem.contexts[order[:t]], utilities[order[:t]]
        theta = np.linalg.solve(10 * np.eye(problem.dim) + X.T @ X, X.T @ Y)
        assert result.actions[0, t] == np.argmax(problem.contexts[order[t]] @ theta)


def test_full_feedback_keeps_what_it_learnt_when_the_first_arm_leaves(problem):
    """All arms share one matrix, which lies at the place of the first arm."""
    policy = build_policy("lin_ucb_full", arms=problem.arms, dim=problem.dim, rho=RHO)
    stream = make_stream(problem, RHO)
    for t in range(30):
        decision = policy.decide(stream.request(t, t))
        policy.update(decision, **stream.outcome(t, decision.arm, every_arm=True))
    shared = policy.algorithm.models.inverse[0].copy()
    theta = policy.algorithm.models.theta.copy()
    policy.remove_arm(problem.arms[0])
    np.testing.assert_array_equal(policy.algorithm.models.inverse[0], shared)
    np.testing.assert_array_equal(policy.algorithm.models.theta, theta[1:])


def test_full_feedback_has_one_width_for_all_arms(problem):
    policy = build_policy("lin_ucb_full", arms=problem.arms, dim=problem.dim, rho=RHO, alpha=0.4)
    stream = make_stream(problem, RHO)
    for t in range(30):
        decision = policy.decide(stream.request(t, t))
        policy.update(decision, **stream.outcome(t, decision.arm, every_arm=True))
    decision = policy.decide(stream.request(30, 30))
    x = problem.contexts[:31]
    width = np.sqrt(x[30] @ np.linalg.solve(10 * np.eye(problem.dim) + x[:30].T @ x[:30], x[30]))
    deviations = [policy.algorithm.deviation(decision, arm) for arm in range(problem.K)]
    np.testing.assert_allclose(deviations, 0.4 * width, rtol=1e-9)


def test_reading_lin_ucb_takes_at_most_twenty_modules():
    """A reader of one small algorithm opens its file and what it imports, and no other algorithm."""
    script = (
        "import sys, cabs_core.algorithms.policies.lin_ucb\n"
        "ours = [m for n, m in sys.modules.items() if n.partition('.')[0] == 'cabs_core']\n"
        "print(sum(not hasattr(m, '__path__') for m in ours))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 20


def test_warm_start_needs_offline_rows(problem):
    empty = Offline(np.zeros((0, problem.dim)), np.zeros((0, 5)), np.zeros((0, 5)), RHO)
    policy = build_policy("lin_ucb@warm", arms=problem.arms, dim=problem.dim, rho=RHO, offline=empty)
    assert not policy.algorithm.models.theta.any()
