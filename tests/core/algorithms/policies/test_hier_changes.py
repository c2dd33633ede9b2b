"""Option `changes` of hier_mix: upgraded models are found, probes stay within their price, propensities count
them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests_support import built

from cabs_core.algorithms.policies.hier_mix.models import STEPS, information, learn_change, prior_chance
from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.evaluation.replay import replay

K, T = 18, 3000


def upgraded(seed, after):
    """(problem of 18 models, the arm whose mean was .41 and is `after` in the whole stream)."""
    problem = synthetic_problem(n=T, K=K, d=33, offline=2000, seed=seed)
    arm = int(np.abs(problem.scores.mean(axis=0) - 0.41).argmin())
    scores = problem.scores.copy()
    scores[:, arm] = np.random.default_rng([seed, 5]).random(T) < after
    return replace(problem, scores=scores), arm


def end_shares(changes):
    shares = []
    for seed in range(6):
        problem, arm = upgraded(seed, 0.95)
        options = {"changes": changes, "propensity": "sampled"}
        played = replay(problem, "hier_mix", rho=0.0, trials=1, options=options, threads=1).actions[0]
        shares.append((played[-300:] == arm).mean())
    return np.array(shares)


def test_an_upgraded_arm_is_found():
    assert (end_shares(0.0) > 0.9).mean() < 0.7, "without probes some streams never play it"
    assert (end_shares(0.001) > 0.9).all()


def test_probes_are_paid_from_the_purse():
    problem, _ = upgraded(0, 0.95)
    (policy, stream), spent = built("hier_mix", problem, 0.0, changes=0.005), 0.0
    for t in range(400):
        before = policy.algorithm.changes.purse[0]
        decision = policy.decide(stream.request(t, t))
        after = policy.algorithm.changes.purse[0]
        assert after >= 0.0
        spent += before + 0.005 - after
        assert spent <= 0.005 * (t + 1) + 1e-9
        policy.update(decision, float(problem.scores[t, decision.arm]), 0.0)
    assert spent > 0.1, "something must have been bought for this test to say anything"


def test_propensities_count_the_coin():
    problem, _ = upgraded(1, 0.95)
    policy, stream = built("hier_mix", problem, 0.0, changes=0.02)
    for t in range(50):
        decision = policy.decide(stream.request(t, t))
        policy.update(decision, float(problem.scores[t, decision.arm]), 0.0)
    arrays, values = policy.algorithm.state()
    before = {name: value.copy() for name, value in arrays.items()}
    before["c_purse"][:] = 0.9  # whatever the best probe costs, it can be paid
    counts, draws = np.zeros(K), 2000
    for n in range(draws):
        policy.algorithm.restore({name: value.copy() for name, value in before.items()}, values)
        policy.algorithm.round = 50 + n  # other draws
        choice = policy.algorithm.choose(stream.request(55, 55))
        counts[choice.arm] += 1
    pmf = choice.pmf
    assert 0.45 < np.sort(pmf)[-2] + np.sort(pmf)[-1], "a probe is in play"
    sure = pmf > 1e-3
    z = (counts / draws - pmf)[sure] / np.sqrt(pmf * (1 - pmf) / draws)[sure]
    assert np.abs(z).max() < 4.0, (counts / draws, pmf)


def test_bayes_by_hand():
    chance = np.array([prior_chance(g) for g in range(STEPS.size)])
    assert chance.sum() == pytest.approx(1.0)
    likelihood = np.clip(0.3 + STEPS, 0.02, 0.98)
    posterior = chance * likelihood / (chance @ likelihood)
    prior = chance.copy()
    shift = learn_change(chance, 0.3, 1.0, 1.0)
    np.testing.assert_allclose(chance, 0.999 * posterior + 0.001 * prior, atol=1e-12)
    assert shift == pytest.approx(chance @ STEPS)
    assert information(0.2) > information(0.8) > 0.0, "hard prompts tell most"
