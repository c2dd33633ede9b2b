"""Online and compiled rounds are one definition: same actions, saved and resumed, in any order and thread count."""

import json

import numpy as np
import pytest

from cabs_core.catalog import all_policies, policies
from cabs_core.errors import PolicyError, ProvenanceError
from cabs_core.policies import POLICIES, Request, build_policy, load_policy, policy_class
from cabs_core.policies.base import Policy
from cabs_core.policies.lanes import Lane, Offline
from cabs_core.policies.requests import Decision
from cabs_core.problem.synthetic import synthetic_problem
from cabs_core.replay import replay
from cabs_core.replay.engine import make_stream

RHO = 300.0
LINEAR = [
    "epsilon_greedy", "square_cb", "lin_ucb", "lin_ts", "lin_ucb@warm", "lin_ucb_full", "cabs_c_linear",
    "cabs_c_linear@literal", "cabs_c_linear@tuned", "cabs_d_linear", "cabs_d_linear@literal",
    "cabs_d_linear@tuned",
]  # fmt: skip


@pytest.fixture(scope="module")
def problem():
    return synthetic_problem(n=260, K=4, d=5, seed=2, latencies=True)


def by_hand(monkeypatch, problem, name, **options):
    """The same replay through decide and update."""
    cls = policy_class(name)
    with monkeypatch.context() as patch:
        patch.setattr(cls, "run", Policy.run)
        return replay(problem, name, rho=RHO, trials=1, **options)


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("condition", ["none", "delayed_rewards", "arms_arrive", "arms_disappear"])
def test_online_equals_compiled(monkeypatch, problem, name, condition):
    compiled = replay(problem, name, rho=RHO, trials=1, condition=condition)
    online = by_hand(monkeypatch, problem, name, condition=condition)
    assert np.array_equal(compiled.actions, online.actions)
    np.testing.assert_allclose(compiled.propensities, online.propensities, atol=1e-7)
    if compiled.gaps is not None:
        np.testing.assert_allclose(compiled.gaps, online.gaps, rtol=1e-4, atol=1e-9)
    if compiled.meta_weights is not None:
        np.testing.assert_allclose(compiled.meta_weights, online.meta_weights, atol=1e-7)


def test_latency_counts_in_both_engines(monkeypatch, problem):
    compiled = replay(problem, "lin_ucb", rho=RHO, trials=1, latency_weight=0.2)
    assert np.array_equal(
        compiled.actions, by_hand(monkeypatch, problem, "lin_ucb", latency_weight=0.2).actions
    )
    assert compiled.rewards.mean() < replay(problem, "lin_ucb", rho=RHO, trials=1).rewards.mean()


@pytest.mark.parametrize("name", LINEAR)
def test_saved_and_loaded_continues_bit_for_bit(tmp_path, problem, name):
    stream = make_stream(problem, RHO)
    order = np.random.default_rng(0).permutation(problem.n)

    def fresh():
        return build_policy(
            name,
            arms=problem.arms,
            dim=problem.dim,
            rho=RHO,
            offline=stream.offline,
            horizon=problem.n,
            seed=4,
        )

    whole, halves = fresh(), fresh()
    lane, lane2 = Lane.empty(order, experts=whole.experts), Lane.empty(order, experts=whole.experts)
    whole.run(stream, lane, 0, 128)
    whole.run(stream, lane, 128, problem.n)
    halves.run(stream, lane2, 0, 128)
    halves.save(tmp_path / "policy")
    loaded = load_policy(tmp_path / "policy")
    assert loaded.name == name and loaded.round == 128 and loaded.settings == whole.settings
    loaded.run(stream, lane2, 128, problem.n)
    assert np.array_equal(lane.actions, lane2.actions)
    assert np.array_equal(lane.propensities, lane2.propensities)
    for first, second in zip(whole.model, loaded.model, strict=True):
        assert np.array_equal(
            np.tril(first) if first.ndim == 4 else first, np.tril(second) if second.ndim == 4 else second
        )


@pytest.mark.parametrize("name", LINEAR)
def test_loaded_policy_continues_online(tmp_path, problem, name):
    """Compiled first half, saved, online second half: to 1e-9 what one engine does alone."""
    stream = make_stream(problem, RHO)
    order = np.arange(problem.n)
    one = build_policy(
        name, arms=problem.arms, dim=problem.dim, rho=RHO, offline=stream.offline, horizon=problem.n
    )
    lane = Lane.empty(order, experts=one.experts)
    one.run(stream, lane, 0, 128)
    one.save(tmp_path / "p")
    two = load_policy(tmp_path / "p")
    one.run(stream, lane, 128, problem.n)
    lane2 = Lane.empty(order, experts=two.experts)
    Policy.run(two, stream, lane2, 128, problem.n)
    assert np.array_equal(lane.actions[128:], lane2.actions[128:])
    np.testing.assert_allclose(one.model.theta, two.model.theta, atol=1e-9)


def test_threads_and_company_change_nothing(problem):
    for name in ("lin_ts", "cabs_d_linear"):
        alone = replay(problem, name, rho=RHO, trials=[2], threads=1)
        together = replay(problem, name, rho=RHO, trials=4, threads=3)
        assert np.array_equal(alone.actions[0], together.actions[2])
        assert np.array_equal(alone.propensities[0], together.propensities[2])
        assert np.array_equal(replay(problem, name, rho=RHO, trials=4, threads=1).actions, together.actions)


def test_late_rewards_out_of_order_and_after_a_restart(tmp_path, problem):
    """Decisions survive JSON; updates in another order; one reward never comes."""
    policy = build_policy("cabs_c_linear", arms=problem.arms, dim=problem.dim, rho=RHO)
    stream = make_stream(problem, RHO)
    decisions = [policy.decide(stream.request(t, t)) for t in range(6)]
    texts = [json.dumps(d.to_dict()) for d in decisions]
    policy.save(tmp_path / "p")
    loaded = load_policy(tmp_path / "p")
    for t in (4, 0, 3, 5):
        again = Decision.from_dict(json.loads(texts[t]))
        assert again.arm == decisions[t].arm and np.array_equal(again.pmf, decisions[t].pmf)
        score, cost = problem.scores[t, again.arm], problem.costs[t, again.arm]
        assert loaded.update(again, score, cost)
        assert policy.update(decisions[t], score, cost)
    assert np.array_equal(policy.model.theta, loaded.model.theta)
    assert policy.decide(stream.request(9, 9)).arm == loaded.decide(stream.request(9, 9)).arm


@pytest.mark.parametrize("name", ["lin_ucb", "cabs_c_linear", "cabs_c_linear@tuned", "cabs_d_linear"])
def test_arms_come_and_go(problem, name):
    stream = make_stream(problem, RHO)
    policy = build_policy(name, arms=problem.arms, dim=problem.dim, rho=RHO)

    def request(t, keep):
        r = stream.request(t, t)
        return Request(
            context=r.context, predicted_scores=r.predicted_scores[keep], predicted_costs=r.predicted_costs[keep],
            surrogate=np.ascontiguousarray(r.surrogate[np.ix_(keep, keep)]),
        )  # fmt: skip

    def play(t, keep):
        decision = policy.decide(request(t, keep))
        policy.update(decision, problem.scores[t, keep[decision.arm]], problem.costs[t, keep[decision.arm]])
        return decision

    for t in range(40):
        play(t, [0, 1, 2, 3])
    waiting = [policy.decide(request(t, [0, 1, 2, 3])) for t in range(40, 60)]
    gone, left = "arm-1", [0, 2, 3]
    theta = policy.model.theta[:, 2].copy()
    policy.remove_arm(gone)
    assert policy.arms == ["arm-0", "arm-2", "arm-3"] and np.array_equal(policy.model.theta[:, 1], theta)
    for t, decision in zip(range(40, 60), waiting, strict=True):
        learnt = policy.update(decision, problem.scores[t, decision.arm], problem.costs[t, decision.arm])
        assert learnt == (decision.arm_name != gone)
    for t in range(60, 100):
        assert play(t, left).pmf.shape == (3,)
    policy.add_arm(gone)
    assert policy.arms[-1] == gone and not policy.model.theta[:, 3].any()
    seen = {play(t, [0, 2, 3, 1]).arm_name for t in range(100, 260)}
    assert gone in seen, "a new arm is tried"
    with pytest.raises(PolicyError, match="already an arm"):
        policy.add_arm(gone)


def test_unavailable_arms_are_never_played(problem):
    for name in ("random", "best_single", "carrot", *LINEAR):
        result = replay(problem, name, rho=RHO, trials=2, condition="arms_arrive")
        half = problem.n // 2
        best = np.argsort(-np.clip(problem.offline_scores - RHO * problem.offline_costs, 0, 1).mean(axis=0))[
            0
        ]
        assert not (result.actions[:, :half] == best).any(), name
        assert (result.best_rewards >= result.rewards).all()


def test_rho_per_request(problem):
    stream = make_stream(problem, RHO)
    request = stream.request(0, 0)
    other = Request(**{**request.__dict__, "rho": 900.0})
    with pytest.raises(PolicyError, match="cannot serve rho = 900"):
        build_policy("lin_ucb", arms=problem.arms, dim=problem.dim, rho=RHO).decide(other)
    decision = build_policy("lin_ucb", arms=problem.arms, dim=problem.dim, rho=RHO, target="score").decide(
        other
    )
    assert decision.rho == 900.0
    cheap = build_policy("carrot", arms=problem.arms, rho=RHO)
    margin = np.clip(1 - 900 * problem.predicted_costs[0], 0, 1)
    assert cheap.decide(other).arm == np.argmax(np.clip(problem.predicted_scores[0], 0, 1) * margin)


def test_requests_are_checked(problem):
    policy = build_policy("cabs_c_linear", arms=problem.arms, dim=problem.dim, rho=RHO)
    x = problem.contexts[0]
    with pytest.raises(PolicyError, match=r"needs Request.predicted_scores \[4\]"):
        policy.decide(Request(context=x))
    with pytest.raises(PolicyError, match="shape"):
        policy.decide(Request(context=x[:2]))
    good = make_stream(problem, RHO).request(0, 0)
    with pytest.raises(PolicyError, match="available"):
        policy.decide(Request(**{**good.__dict__, "available": np.zeros(4, bool)}))
    decision = policy.decide(good)
    with pytest.raises(PolicyError, match="score"):
        policy.update(decision, 1.5, 0.0)
    silent = policy.decide(Request(**{**good.__dict__, "surrogate": None}))
    with pytest.raises(PolicyError, match="surrogate"):
        policy.update(silent, 1.0, 0.0)


def test_options_are_checked():
    with pytest.raises(PolicyError, match="option alfa"):
        build_policy("lin_ucb", arms=["a", "b"], dim=2, alfa=1.0)
    with pytest.raises(PolicyError, match="two or more experts"):
        build_policy("cabs_d_linear", arms=["a", "b"], dim=2, experts=["lin_ts"])
    with pytest.raises(PolicyError, match="unknown expert"):
        build_policy("cabs_d_linear", arms=["a", "b"], dim=2, experts=["lin_ts", "magic"])
    with pytest.raises(PolicyError, match="no preset"):
        build_policy("lin_ucb@literal", arms=["a", "b"], dim=2)
    with pytest.raises(PolicyError, match="Did you mean 'lin_ucb'"):
        build_policy("linucb", arms=["a", "b"], dim=2)


def test_more_than_two_experts(problem):
    result = replay(
        problem, "cabs_d_linear", rho=RHO, trials=2,
        experts=["lin_ts", "cabs_c", ["cabs_c", {"graph": "all"}], ["lin_ucb", {"alpha": 0.2}], "epsilon_greedy"],
    )  # fmt: skip
    assert result.meta_weights.shape == (2, problem.n, 5)
    np.testing.assert_allclose(result.meta_weights.sum(axis=2), 1.0, atol=1e-6)


def test_damaged_files_are_refused(tmp_path):
    policy = build_policy("lin_ucb", arms=["a", "b"], dim=2)
    policy.save(tmp_path / "p")
    (tmp_path / "p" / "state.npz").write_bytes(b"not a zip")
    with pytest.raises(ProvenanceError, match="cannot be read"):
        load_policy(tmp_path / "p")
    with pytest.raises(ProvenanceError):
        load_policy(tmp_path / "nothing")


def test_registry_has_every_name():
    assert list(POLICIES) == list(policies()) and "lin_ucb@warm" in POLICIES and "nope" not in POLICIES
    for name in all_policies():
        assert issubclass(policy_class(name), Policy)


def test_static_policies_online(problem, tmp_path):
    from cabs_core.predictors import CostPredictor, make_score_predictor

    offline = Offline(problem.offline_contexts, problem.offline_scores, problem.offline_costs, RHO)
    single = build_policy("best_single", arms=problem.arms, rho=RHO, offline=offline)
    assert single.decide(Request()).arm == np.argmax(offline.utilities.mean(axis=0))
    single.save(tmp_path / "s")
    assert load_policy(tmp_path / "s").decide(Request()).arm == single.decide(Request()).arm
    with pytest.raises(PolicyError, match="replay only"):
        build_policy("oracle_best", arms=problem.arms, rho=RHO).decide(Request())
    ridge = build_policy("ridge", arms=problem.arms, rho=RHO)
    with pytest.raises(PolicyError, match="attached predictor"):
        ridge.decide(Request())
    lengths = problem.offline_prompt_lengths
    ridge.attach(
        make_score_predictor("ridge").fit(problem.offline_contexts, lengths, problem.offline_scores),
        CostPredictor().fit(lengths, problem.offline_costs),
    )
    asked = Request(embedding=problem.contexts[3], prompt_length=problem.prompt_lengths[3])
    ridge.save(tmp_path / "r")
    assert load_policy(tmp_path / "r").decide(asked).arm == ridge.decide(asked).arm
