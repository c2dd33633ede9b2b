"""Online and compiled rounds are one definition: same actions, under every condition, with rewards in any
order."""

import numpy as np
import pytest

from cabs_core.algorithms.policies.registry import (
    build_policy,
    load_policy,
    policy_class,
    policy_of_trial,
)
from cabs_core.algorithms.policies.request import Offline, Request
from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.base.errors import PolicyError
from cabs_core.evaluation.replay import replay
from cabs_core.evaluation.replay.engine import make_stream

RHO = 300.0
LINEAR = [
    "epsilon_greedy",
    "square_cb",
    "lin_ucb",
    "lin_ts",
    "lin_ucb@warm",
    "lin_ucb_full",
    "cabs_c_linear",
    "cabs_c_linear@literal",
    "cabs_c_linear@tuned",
    "cabs_d_linear",
    "cabs_d_linear@literal",
    "cabs_d_linear@tuned",
]
#: name and options of every policy whose rounds are compiled
COMPILED = [
    *((name, {}) for name in LINEAR),
    ("pareto_bandit", {}),
    ("hier_mix", {}),
    ("hier_mix", {"restart": 1.0}),
    ("hier_mix", {"changes": 0.02}),
]


@pytest.fixture(scope="module")
def problem():
    return synthetic_problem(n=260, K=4, d=5, seed=2, latencies=True)


def by_hand(monkeypatch, problem, name, **options):
    """The same replay through decide and update."""
    cls = policy_class(name)
    with monkeypatch.context() as patch:
        patch.setattr(cls, "own_loop", False)
        return replay(problem, name, rho=RHO, trials=1, **options)


@pytest.mark.parametrize(("name", "options"), COMPILED)
@pytest.mark.parametrize("condition", ["delayed_rewards", "arms_arrive", "arms_disappear"])
def test_online_equals_compiled(monkeypatch, problem, name, options, condition):
    compiled = replay(problem, name, rho=RHO, trials=1, condition=condition, options=options)
    online = by_hand(monkeypatch, problem, name, condition=condition, options=options)
    assert np.array_equal(compiled.actions, online.actions)
    exact = 0.0 if "mix" in name else 1e-7
    np.testing.assert_allclose(compiled.propensities, online.propensities, rtol=exact, atol=exact)
    if compiled.gaps is not None:
        np.testing.assert_allclose(compiled.gaps, online.gaps, rtol=1e-4, atol=1e-9)
    if compiled.meta_weights is not None:
        np.testing.assert_allclose(compiled.meta_weights, online.meta_weights, rtol=exact, atol=exact)


@pytest.mark.parametrize("name", [name for name in LINEAR if name.startswith("cabs_d")])
def test_every_expert_learns_the_played_arm_of_many(monkeypatch, name):
    """The solver for many arms gives some arms of CABS-C exactly 0, and the other expert may play them."""
    many = synthetic_problem(n=120, K=60, d=5, seed=2, offline=60)
    online = by_hand(monkeypatch, many, name)
    compiled = replay(many, name, rho=RHO, trials=1)
    np.testing.assert_array_equal(compiled.actions, online.actions)
    np.testing.assert_allclose(compiled.propensities, online.propensities, atol=1e-7)
    np.testing.assert_allclose(compiled.meta_weights, online.meta_weights, atol=1e-7)
    stream = make_stream(many, RHO)
    policy = policy_of_trial(stream, name, seed=3, horizon=many.n)
    learnt = []
    for t in range(many.n):
        decision = policy.decide(stream.request(t, t))
        arm = decision.arm
        before = policy.algorithm.model.theta[1, arm].copy()
        policy.update(decision, **stream.outcome(t, arm))
        assert decision.memory["reach"][0, arm] > 0.0
        if decision.memory["pmfs"][1, arm] == 0.0:
            learnt.append(not np.array_equal(policy.algorithm.model.theta[1, arm], before))
    # an outcome of 0 changes no coefficients that are 0
    assert any(learnt)


def test_latency_counts_in_both_engines(monkeypatch, problem):
    compiled = replay(problem, "lin_ucb", rho=RHO, trials=1, latency_weight=0.2)
    assert np.array_equal(
        compiled.actions, by_hand(monkeypatch, problem, "lin_ucb", latency_weight=0.2).actions
    )
    assert compiled.rewards.mean() < replay(problem, "lin_ucb", rho=RHO, trials=1).rewards.mean()


def learnt_theta(policy):
    """Coefficients [..., K, d] of the ridge models."""
    return policy.algorithm.state()[0]["theta"]


@pytest.mark.parametrize("name", ["lin_ucb", "cabs_c_linear", "cabs_c_linear@tuned", "cabs_d_linear"])
def test_arms_come_and_go(problem, name):
    stream = make_stream(problem, RHO)
    policy = build_policy(name, arms=problem.arms, dim=problem.dim, rho=RHO)

    def request(t, keep):
        r = stream.request(t, t)
        return Request(
            context=r.context,
            predicted_scores=r.predicted_scores[keep],
            predicted_costs=r.predicted_costs[keep],
            surrogate=np.ascontiguousarray(r.surrogate[np.ix_(keep, keep)]),
        )

    def play(t, keep):
        decision = policy.decide(request(t, keep))
        policy.update(decision, problem.scores[t, keep[decision.arm]], problem.costs[t, keep[decision.arm]])
        return decision

    for t in range(40):
        play(t, [0, 1, 2, 3])
    gone, left = "arm-1", [0, 2, 3]
    theta = learnt_theta(policy)[..., 2, :].copy()
    policy.remove_arm(gone)
    assert policy.arms == ["arm-0", "arm-2", "arm-3"]
    np.testing.assert_array_equal(learnt_theta(policy)[..., 1, :], theta)
    for t in range(40, 80):
        assert play(t, left).pmf.shape == (3,)
    policy.add_arm(gone)
    assert policy.arms[-1] == gone and not learnt_theta(policy)[..., 3, :].any()
    played = {play(t, [0, 2, 3, 1]).arm_name for t in range(80, 260)}
    assert gone in played, "a new arm is tried"


def test_rho_per_request(problem):
    stream = make_stream(problem, RHO)
    request = stream.request(0, 0)
    dearer = Request(**{**request.__dict__, "rho": 900.0})
    with pytest.raises(PolicyError, match="cannot serve rho = 900"):
        build_policy("lin_ucb", arms=problem.arms, dim=problem.dim, rho=RHO).decide(dearer)
    decision = build_policy("lin_ucb", arms=problem.arms, dim=problem.dim, rho=RHO, target="score").decide(
        dearer
    )
    assert decision.rho == 900.0
    cheap = build_policy("carrot", arms=problem.arms, rho=RHO)
    margin = np.clip(1 - 900 * problem.predicted_costs[0], 0, 1)
    assert cheap.decide(dearer).arm == np.argmax(np.clip(problem.predicted_scores[0], 0, 1) * margin)


def test_a_surrogate_that_is_missing_is_named(problem):
    policy = build_policy("cabs_c_linear", arms=problem.arms, dim=problem.dim, rho=RHO)
    request = make_stream(problem, RHO).request(0, 0)
    decision = policy.decide(Request(**{**request.__dict__, "surrogate": None}))
    with pytest.raises(PolicyError, match="surrogate"):
        policy.update(decision, 1.0, 0.0)


def test_more_than_two_experts(problem):
    result = replay(
        problem,
        "cabs_d_linear",
        rho=RHO,
        trials=2,
        experts=[
            "lin_ts",
            "cabs_c",
            ["cabs_c", {"graph": "all"}],
            ["lin_ucb", {"alpha": 0.2}],
            "epsilon_greedy",
        ],
    )
    assert result.meta_weights.shape == (2, problem.n, 5)
    np.testing.assert_allclose(result.meta_weights.sum(axis=2), 1.0, atol=1e-6)


def test_static_policies_online(problem, tmp_path):
    offline = Offline(problem.offline_contexts, problem.offline_scores, problem.offline_costs, RHO)
    single = build_policy("best_single", arms=problem.arms, rho=RHO, offline=offline)
    assert single.decide(Request()).arm == np.argmax(offline.utilities.mean(axis=0))
    with pytest.raises(PolicyError, match="replay only"):
        build_policy("oracle_best", arms=problem.arms, rho=RHO).decide(Request())
    ridge = build_policy("ridge", arms=problem.arms, rho=RHO)
    with pytest.raises(PolicyError, match="predictor"):
        ridge.decide(Request())
    offline = make_stream(problem, RHO).offline
    ridge = build_policy("ridge", arms=problem.arms, rho=RHO, offline=offline)
    row = {"embedding": problem.embeddings[3], "predicted_costs": problem.predicted_costs[3]}
    asked = Request(**row, prompt_length=problem.prompt_lengths[3])
    arm = ridge.decide(asked).arm
    ridge.save(tmp_path / "r")
    assert load_policy(tmp_path / "r").decide(asked).arm == arm
