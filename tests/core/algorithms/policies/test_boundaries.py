"""What comes from outside is checked before compiled code sees it: requests, outcomes, decisions, lanes,
policies."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import pickle
import threading

import numpy as np
import pytest
from small_policies import (
    ARMS,
    CLASSES,
    DIM,
    LEARNING,
    ONE_OF_EACH,
    ONLINE,
    RHO,
    feedback,
    fresh,
    learned,
    problem,
    small_networks,
    stream,
)

from cabs_core.algorithms.policies.play import Lane, play_lanes
from cabs_core.algorithms.policies.registry import build_policy, load_policy, policy_class
from cabs_core.algorithms.policies.request import Decision, Offline, Reads
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.base.catalog.conditions import STREAM_CONDITIONS
from cabs_core.base.errors import CabsError, DataError, PolicyError
from cabs_core.evaluation.replay import replay
from cabs_core.evaluation.replay.engine import make_stream

# -- decisions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_decision_of_another_router_is_refused(name):
    """The same policy with more features, and a twin: neither reaches the model."""
    policy, wide, twin = fresh(name), fresh(name, ARMS, 7), fresh(name)
    before = learned(policy)
    for maker in (wide, twin):
        decision = maker.decide(stream(ARMS, maker.algorithm.dim).request(0, 0))
        with pytest.raises(PolicyError, match="made by router"):
            policy.update(decision, **feedback(maker, 0, decision))
    assert learned(policy) == before


@pytest.mark.parametrize("name", LEARNING)
def test_feedback_counts_once_also_after_a_restart(name, tmp_path):
    """At-least-once delivery: what comes again is ignored, whatever it says; what was never learnt still can
    be."""
    policy = fresh(name)
    decisions = [policy.decide(stream().request(t, t)) for t in range(3)]
    assert policy.update(decisions[1], **feedback(policy, 1, decisions[1]))
    after = learned(policy)
    assert not policy.update(decisions[1], **feedback(policy, 1, decisions[1]) | {"score": 1.0, "cost": 9.0})
    assert learned(policy) == after and len(policy.learnt) == 1
    loaded = load_policy(policy.save(tmp_path / "p"))
    again = Decision.from_dict(json.loads(json.dumps(decisions[1].to_dict())))
    assert not loaded.update(again, **feedback(policy, 1, again)) and learned(loaded) == after
    for late in (2, 0):
        assert loaded.update(decisions[late], **feedback(policy, late, decisions[late]))
        assert not loaded.update(decisions[late], **feedback(policy, late, decisions[late]))


def test_copies_of_a_router_are_told_apart(tmp_path):
    """Two processes that serve one saved router decide rounds of the same number; both can be learnt by
    either."""
    fresh("lin_ucb").save(tmp_path / "p")
    one, two = load_policy(tmp_path / "p"), load_policy(tmp_path / "p")
    a, b = one.decide(stream().request(0, 0)), two.decide(stream().request(1, 1))
    assert a.round == b.round and a.router == b.router and a.instance != b.instance
    assert one.update(a, 1.0, 0.0) and one.update(b, 1.0, 0.0) and not one.update(b, 1.0, 0.0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_is_a_copy():
    policy = fresh("lin_ucb")
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, json.dumps(policy.decide(stream().request(0, 0)).to_dict()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    decision = Decision.from_dict(json.loads(os.read(read, 60_000)))
    assert (len(policy.instance), len(decision.instance)) == (16, 32)
    assert policy.update(decision, 1.0, 0.0)


@pytest.mark.parametrize("name", [n for n in LEARNING if n != "lin_ucb_full"])
def test_an_arm_that_came_back_is_another_arm(name):
    policy = fresh(name)
    first = policy.decide(stream().request(0, 0))
    policy.remove_arm(first.arm_name)
    policy.add_arm(first.arm_name)
    before = learned(policy)
    assert policy.update(first, **feedback(policy, 0, first)) is False and learned(policy) == before


@pytest.mark.parametrize("name", [n for n in ONLINE if n != "lin_ucb_full"])
def test_arms_change_between_decide_and_update(name, tmp_path):
    """Waiting decisions of every earlier set of arms, before and after a restart."""
    policy, rows = fresh(name), range(6)
    waiting = [policy.decide(stream().request(t, t)) for t in rows]
    policy.add_arm("new")
    policy.remove_arm("arm-1")
    for t, decision in zip(rows, waiting, strict=True):
        if t == 3:
            policy = load_policy(policy.save(tmp_path / "p"))
            assert policy.arms == ["arm-0", "arm-2", "arm-3", "new"] and policy.version == 2
        learnt = policy.update(decision, **feedback(policy, t, decision))
        assert learnt == (policy.algorithm.learns and decision.arm_name != "arm-1")
    assert policy.arms is not policy.arms, "nobody can sort the policy's own list"


BROKEN = {
    "arm too large": {"arm": 99},
    "arm negative": {"arm": -1},
    "arm enormous": {"arm": 2_000_000_000},
    "arm true": {"arm": True},
    "arm text": {"arm": "1"},
    "no chance": {"probability": float("nan")},
    "pmf short": {"pmf": np.full(3, 1 / 3)},
    "pmf no distribution": {"pmf": np.zeros(ARMS)},
    "rho": {"rho": -1.0},
    "rho nan": {"rho": float("nan")},
    "more arms": {"arms": tuple("abcdefgh")},
    "no arms": {"arms": ()},
    "arms twice": {"arms": ("a",) * ARMS},
    "arms list": {"arms": ["arm-0"]},
    "round": {"round": -1},
    "version": {"version": 1.5},
    "router": {"router": ""},
    "instance": {"instance": 7},
    "short instance": {"instance": "x" * 15},
    "long instance": {"instance": "x" * 33},
    "memory": {"memory": None},
}


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_altered_decisions_are_refused(name):
    policy = fresh(name)
    decision = policy.decide(stream().request(0, 0))
    before, outcome = learned(policy), feedback(policy, 0, decision)
    for what, change in BROKEN.items():
        with pytest.raises(PolicyError):
            policy.update(dataclasses.replace(decision, **change), **outcome)
        assert learned(policy) == before, what
    policy.update(decision, **outcome)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"router": ""}, "made by an unnamed router, this"),
        ({"router": None}, "made by an unnamed router, this"),
        ({"router": "x" * 41}, f"made by router {'x' * 37}..., this"),
        ({"instance": "x" * 59}, f"Decision.instance is '{'x' * 56}...$"),
    ],
)
def test_a_refused_decision_is_named_in_short(change, words):
    policy = fresh("lin_ucb")
    decision = policy.decide(stream().request(0, 0))
    with pytest.raises(PolicyError, match=words):
        policy.update(dataclasses.replace(decision, **change), 1.0, 0.0)


@pytest.mark.parametrize("probability", [0.0, 1.1, float("nan")])
def test_a_state_that_gives_an_impossible_probability_decides_nothing(probability, monkeypatch):
    policy = fresh("lin_ucb")
    chosen = policy.algorithm.choose(stream().request(0, 0))
    monkeypatch.setattr(policy.algorithm, "choose", lambda request: (chosen[0], probability, *chosen[2:]))
    with pytest.raises(PolicyError, match="load the last saved state"):
        policy.decide(stream().request(0, 0))
    assert policy.round == 0


def test_decisions_are_counted_from_zero():
    policy = fresh("lin_ucb")
    assert [policy.decide(stream().request(t, t)).round for t in range(3)] == [0, 1, 2]
    assert policy.round == 3


def test_an_unknown_arm_and_the_last_one_are_not_removed():
    policy = fresh("lin_ucb", 2)
    with pytest.raises(PolicyError, match=f"cannot remove '{'x' * 77}...' from"):
        policy.remove_arm("x" * 81)
    policy.remove_arm("arm-0")
    with pytest.raises(PolicyError, match="cannot remove 'arm-1'"):
        policy.remove_arm("arm-1")
    assert policy.arms == ["arm-1"]


def test_the_last_arm_that_came_back_learns_nothing_of_earlier_decisions():
    """All arms stand where they stood when the decision was made."""
    policy = fresh("lin_ucb")
    first = policy.decide(stream().request(0, 0))
    chances = np.full(ARMS, 1 / ARMS)
    of_last, of_first = (policy.redraw(first, arm, chances) for arm in (ARMS - 1, 0))
    policy.remove_arm(f"arm-{ARMS - 1}")
    policy.add_arm(f"arm-{ARMS - 1}")
    assert tuple(policy.arms) == first.arms
    assert not policy.update(of_last, 1.0, 0.0)
    assert policy.update(of_first, 1.0, 0.0)


def test_a_new_arm_is_expected_to_earn_what_the_one_that_it_resembles_does():
    by_default, by_margin, by_less = (fresh("lin_ts") for _ in range(3))
    for policy in (by_default, by_margin, by_less):
        for t in range(20):
            decision = policy.decide(stream().request(t, t))
            policy.update(decision, **feedback(policy, t, decision))
    by_default.add_arm("new", like="arm-0")
    by_margin.add_arm("new", like="arm-0", margin=1.0)
    by_less.add_arm("new", like="arm-0", margin=0.5)
    assert learned(by_default) == learned(by_margin) != learned(by_less)


def test_an_arm_resembles_an_arm_and_has_no_scored_prompts_beside_it():
    policy = fresh("lin_ts")
    before = learned(policy)
    one = {"embeddings": np.ones((1, DIM)), "scores": np.ones(1)}
    for given, words in (
        ({"like": "unknown"}, "expected an arm, and no scored prompts"),
        ({"like": "arm-0", **one}, "expected an arm, and no scored prompts"),
        ({"embeddings": one["embeddings"]}, "give both or none"),
        ({"scores": one["scores"]}, "give both or none"),
        (one, "cannot start an arm from scored prompts"),
    ):
        with pytest.raises(PolicyError, match=words):
            policy.add_arm("new", **given)
    with pytest.raises(PolicyError, match="already an arm 'arm-0'"):
        policy.add_arm("arm-0")
    assert learned(policy) == before
    assert (len(policy.arms), policy.version) == (ARMS, 0)


@pytest.mark.parametrize("name", [n for n in ONLINE if policy_class(n).needs_context])
def test_altered_memory_is_refused(name):
    policy = fresh(name)
    decision = policy.decide(stream().request(0, 0))
    before = learned(policy)
    never_learnt = {"trace"}  # recorded, never learnt from
    for key, value in decision.memory.items():
        wrong = [np.zeros(99), np.zeros((*value.shape, 2)), None, "text"]
        if key not in never_learnt and value.size:  # an empty array holds no wrong number
            wrong += [np.full(value.shape, v) for v in (np.nan, np.inf, 1e20)]
        for bad in wrong:
            broken = dataclasses.replace(decision, memory={**decision.memory, key: bad})
            with pytest.raises(PolicyError, match=key):
                policy.update(broken, **feedback(policy, 0, decision))
    for memory in ({}, {**decision.memory, "more": np.zeros(2)}):
        with pytest.raises(PolicyError, match="memory"):
            policy.update(dataclasses.replace(decision, memory=memory), **feedback(policy, 0, decision))
    assert learned(policy) == before


def test_decisions_read_from_json_are_checked():
    policy = fresh("cabs_c_linear")
    sound = json.loads(json.dumps(policy.decide(stream().request(0, 0)).to_dict()))
    assert policy.update(Decision.from_dict(sound), 1.0, 0.0)
    text = json.dumps(sound)
    for key in sound:
        for value in (None, {}, [], "x", -1, 1e400, {"dtype": "|O", "shape": [1], "values": [[]]}):
            if (key, value) in (("surrogate", None), ("memory", {})):
                continue  # what a policy without memory gives
            with pytest.raises(PolicyError, match="ecision"):
                Decision.from_dict({**json.loads(text), key: value})
        with pytest.raises(PolicyError):
            Decision.from_dict({k: v for k, v in sound.items() if k != key})
    context = sound["memory"]["context"]
    for change in ({"shape": [10**9]}, {"shape": [-1]}, {"dtype": "|S999999999"}, {"values": ["1"] * DIM}):
        with pytest.raises(PolicyError, match="context"):
            Decision.from_dict({**sound, "memory": {**sound["memory"], "context": {**context, **change}}})


@pytest.mark.parametrize("kind", ["<f8", "<f4", "<f2", ">f8", "<i8", "<i4", "|u1"])
def test_a_decision_with_a_table_of_any_real_type_is_saved_and_read(kind):
    policy = fresh("cabs_c_linear")
    k = len(policy.arms)
    table = np.eye(k).astype(kind)
    decision = policy.decide(dataclasses.replace(stream().request(0, 0), surrogate=table))
    again = Decision.from_dict(json.loads(json.dumps(decision.to_dict())))
    assert np.array_equal(again.surrogate, np.eye(k)) and again.surrogate.dtype == decision.surrogate.dtype
    assert policy.update(again, 1.0, 0.0)


IMPOSSIBLE = [
    {"score": np.nan},
    {"score": 1.5},
    {"score": "1"},
    {"score": None},
    {"score": [0.5]},
    {"cost": -1.0},
    {"cost": np.inf},
    {"cost": 1j},
    {"latency_penalty": np.nan},
    {"latency_penalty": -1.0},
    {"latency_penalty": np.inf},
    {"deltas": np.full(ARMS, np.nan)},
    {"deltas": np.zeros(ARMS + 1)},
    {"deltas": "none"},
    {"all_scores": np.full(ARMS, np.nan), "all_costs": np.zeros(ARMS)},
    {"all_scores": np.zeros(2), "all_costs": np.zeros(2)},
]


@pytest.mark.parametrize("name", LEARNING)
def test_impossible_outcomes_are_refused(name):
    policy = fresh(name)
    decision = policy.decide(stream().request(0, 0))
    before, outcome = learned(policy), feedback(policy, 0, decision)
    for wrong in IMPOSSIBLE:
        with pytest.raises(PolicyError):
            policy.update(decision, **outcome | wrong)
        assert learned(policy) == before, wrong
    assert policy.update(decision, **outcome)


# -- requests ------------------------------------------------------------------------------------------------

WRONG_ARRAYS = [
    lambda a: np.full_like(a, np.nan),
    lambda a: np.full_like(a, np.inf),
    lambda a: np.full_like(a, 1e7),
    lambda a: a[:-1],
    lambda a: np.append(a, 0.0),
    lambda a: a[None],
    lambda a: a.astype(str),
    lambda a: a + 1j,
    lambda a: np.ma.masked_array(a, mask=True),
    lambda a: "text",
    lambda a: [object()] * len(a),
]


@pytest.mark.parametrize("name", ONLINE)
def test_broken_requests_are_refused(name):
    """A request with a broken part is an error or, where the policy does not read that part, changes
    nothing."""
    sound = stream().request(0, 0)
    sound = dataclasses.replace(sound, embedding=None, prompt_length=None)
    reads = 0
    for part in ("context", "predicted_scores", "predicted_costs", "static_costs"):
        for wrong in WRONG_ARRAYS:
            policy, twin = fresh(name), fresh(name)
            broken = dataclasses.replace(sound, **{part: wrong(getattr(sound, part))})
            try:
                decision = policy.decide(broken)
            except PolicyError:
                assert policy.round == 0
                reads += 1
            else:
                assert decision.arm == twin.decide(sound).arm
    assert reads % len(WRONG_ARRAYS) == 0 and bool(reads) == (fresh(name).algorithm.reads() != Reads())
    policy = fresh(name)
    for change in (
        {"rho": np.nan},
        {"rho": -1.0},
        {"rho": "300"},
        {"available": np.zeros(ARMS, bool)},
        {"available": np.full(ARMS, np.nan)},
        {"available": np.ones(ARMS + 1, bool)},
        {"available": ["yes"] * ARMS},
    ):
        with pytest.raises(PolicyError):
            policy.decide(dataclasses.replace(sound, **change))
    with pytest.raises(PolicyError, match="Request"):
        policy.decide({"context": np.zeros(DIM)})


@pytest.mark.parametrize("name", ONE_OF_EACH)
@pytest.mark.parametrize(
    "layout",
    [
        lambda a: np.repeat(a, 3).reshape(-1, 3)[:, 1],
        lambda a: a.astype(">f8"),
        lambda a: a.tolist(),
        lambda a: np.frombuffer(b"\0" + a.astype("<f8").tobytes(), "<f8", offset=1),
    ],
    ids=["strided", "big endian", "list", "not aligned, read only"],
)
def test_the_memory_layout_of_a_request_changes_nothing(name, layout):
    policy, twin, sound = fresh(name), fresh(name), stream().request(0, 0)
    parts = ("context", "predicted_scores", "predicted_costs", "static_costs")
    relaid = dataclasses.replace(sound, **{part: layout(getattr(sound, part)) for part in parts})
    assert policy.decide(relaid).arm == twin.decide(sound).arm


def test_what_a_decision_remembers_is_its_own():
    """The caller may use its arrays for the next request."""
    policy, twin = fresh("cabs_c_linear"), fresh("cabs_c_linear")
    sound = stream().request(0, 0)
    names = ("context", "predicted_scores", "predicted_costs", "surrogate")
    for router, reuse in ((policy, True), (twin, False)):
        parts = {name: getattr(sound, name).copy() for name in names}
        decision = router.decide(dataclasses.replace(sound, **parts))
        if reuse:
            for array in parts.values():
                array[...] = 0.25
        router.update(decision, 1.0, 0.0)
    assert learned(policy) == learned(twin)


def test_policies_are_checked_when_built():
    good = {"arms": ["a", "b"], "dim": 3}
    for change in (
        {"dim": -1},
        {"dim": 2.0},
        {"dim": 10**6},
        {"dim": 10**30},
        {"rho": np.nan},
        {"rho": -1.0},
        {"arms": []},
        {"arms": "ab"},
        {"arms": ["a", "a"]},
        {"arms": [1, 2]},
        {"horizon": -1},
        {"binary_share": 2.0},
        {"seed": "x"},
        {"keys": np.zeros((2, 2), np.uint64)},
        {"keys": np.zeros((12, 2))},
        {"penalty": np.nan},
        {"alpha": np.inf},
        {"offline": Offline(np.zeros((4, 9)), np.zeros((4, 2)), np.zeros((4, 2)), 1.0)},
        {"offline": Offline(np.zeros((4, 3)), np.zeros((4, 5)), np.zeros((4, 5)), 1.0)},
    ):
        with pytest.raises(PolicyError):
            build_policy("lin_ucb", **good | change)
    with pytest.raises(PolicyError, match="mu"):
        build_policy("square_cb", arms=["a", "b", "c"], dim=3, mu=2.0)
    with pytest.raises(PolicyError, match="Offline"):
        Offline(np.full((2, 3), np.nan), np.zeros((2, 2)), np.zeros((2, 2)), 1.0)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_policies_are_neither_pickled_nor_copied(name):
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(PolicyError, match="load_policy"):
            way(fresh(name))


def test_threads_take_turns():
    """Every decision of four threads is valid, and every reward learnt once."""
    policy, results = fresh("cabs_c_linear"), []

    def work(row):
        for _ in range(25):
            decision = policy.decide(stream().request(row, row))
            results.append((decision, policy.update(decision, **feedback(policy, row, decision))))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(d.round for d, _ in results) == list(range(100)) and all(ok for _, ok in results)
    assert len(policy.learnt) == 100 == policy.round


# -- replay --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLASSES)
def test_lanes_are_checked(name):
    policy, s = fresh(name), stream()
    experts, order = policy.algorithm.experts, np.arange(60)

    def lane(**change):
        return dataclasses.replace(Lane.empty(order, experts=experts), **change)

    wrong = [
        (lane(), 0, 10**6),
        (lane(), -1, 5),
        (lane(), 7, 5),
        (lane(order=order + 1), 0, 60),
        (lane(order=order - 1), 0, 60),
        (lane(actions=np.zeros(3, np.int64)), 0, 60),
        (lane(propensities=np.zeros(3)), 0, 60),
        (lane(gaps=np.zeros(3)), 0, 60),
        (lane(order=order.astype(float)), 0, 60),
        (lane(arrivals=np.array([[3, 99]])), 0, 60),
        (lane(arrivals=np.array([[3, 5]])), 0, 60),
        (lane(arrivals=np.array([[5, 1], [3, 1]])), 0, 60),
    ]
    if experts:
        wrong.append((lane(meta_weights=np.zeros((60, experts + 1), np.float32)), 0, 60))
    for broken, start, stop in wrong:
        with pytest.raises(PolicyError):
            play_lanes([policy], s, [broken], start, stop)
    for k, d in ((ARMS + 1, DIM), (ARMS, DIM + 1)):
        if k != ARMS or policy.algorithm.needs_context:
            with pytest.raises(PolicyError, match="the stream has"):
                play_lanes([policy], stream(k, d), [lane()], 0, 5)
    play_lanes([policy], s, [Lane.empty(order)], 0, 20)


@pytest.mark.parametrize("name", CLASSES)
def test_one_arm_and_one_query(name):
    """The smallest problems there are, under every condition."""
    options = small_networks(name)
    for n in (1, 9):
        one = synthetic_problem(n=n, K=1, d=2, seed=0, offline=20)
        for condition in ("none", *STREAM_CONDITIONS):
            result = replay(one, name, rho=RHO, trials=1, condition=condition, options=options)
            assert not result.actions.any() and np.allclose(result.propensities, 1.0)
    two = synthetic_problem(n=9, K=2, d=2, seed=0, offline=20)
    result = replay(two, name, rho=RHO, trials=1, condition="arms_arrive", options=options)
    assert ((result.propensities > 0) & (result.propensities <= 1)).all()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"rho": np.nan}, "rho is nan"),
        ({"rho": -1}, "rho is -1"),
        ({"rho": "300"}, "rho"),
        ({"trials": 0}, "trials is 0"),
        ({"trials": []}, "trials"),
        ({"trials": "three"}, "trials"),
        ({"trials": [0.5]}, "trials"),
        ({"rounds": 0}, "rounds"),
        ({"rounds": 61}, "rounds 61"),
        ({"rounds": 2.5}, "rounds"),
        ({"threads": "all"}, "threads"),
        ({"seed": None}, "seed"),
        ({"latency_weight": np.nan}, "latency_weight"),
        ({"latency_weight": -1}, "latency_weight"),
        ({"latency_weight": 0.1, "problem": synthetic_problem(n=9, K=2, d=2)}, "no latencies"),
        ({"order": np.array([[0.5, 1.0]])}, "order"),
        ({"order": [[]]}, "order"),
        ({"order": [[60]]}, r"rows in 0\.\.59"),
        ({"order": [[-1]]}, "order"),
        ({"order": np.zeros((1, 2, 3), int)}, "order"),
        ({"condition": "rain"}, "unknown stress condition"),
        ({"policy": "lin_ucbb"}, "Did you mean"),
        ({"options": {"alpha": np.nan}}, "option alpha"),
        ({"options": [1]}, "options"),
        ({"problem": None}, None),
    ],
    ids=str,
)
def test_replays_are_checked(wrong, words):
    with pytest.raises(CabsError, match=words):
        replay(**{"problem": problem(), "policy": "lin_ucb", "rho": RHO, "trials": 1} | wrong)


#: fields of a problem that hold any number, any text, or nothing
FREE = """name pool costs offline_costs latencies embeddings offline_embeddings prompt_lengths
    offline_prompt_lengths metadata query_ids tasks""".split()


@pytest.mark.parametrize(
    "name", ["lin_ucb", "lin_ucb_full", "cabs_d_linear", "hier_mix", "kernel_ridge", "knn"]
)
def test_rows_that_a_replay_hands_out_cannot_be_written(name):
    made = make_stream(problem(), RHO)
    policy = fresh(name)
    request = made.request(3, 0)
    outcome = made.outcome(3, policy.decide(request).arm, every_arm=True)
    given = [*vars(request).values(), *request.static_scores.values(), *outcome.values()]
    rows = [value for value in given if isinstance(value, np.ndarray) and value.dtype.kind == "f"]
    assert len(rows) >= 10
    for row in rows:
        with pytest.raises(ValueError, match="read-only"):
            row *= 2.0
    assert all(array.flags.writeable for array in (made.contexts, made.scores, made.deltas))


def test_no_policies_play_no_lanes():
    play_lanes([], make_stream(problem(), RHO), [], 0, 60)


@pytest.mark.parametrize("settings", [{"foo": 1}, {"k": "a"}, {"k": -1}])
@pytest.mark.parametrize("name", ["knn", "knn@literal"])
def test_a_bad_option_of_a_predictor_names_policy_and_options(name, settings):
    with pytest.raises(PolicyError, match=f"^{name}: .*{next(iter(settings))}.* grid"):
        replay(problem(), name, RHO, trials=1, settings=settings)
    with pytest.raises(PolicyError, match=f"^{name}: .*{next(iter(settings))}"):
        build_policy(name, arms=["a", "b"], options={"settings": settings})


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(ReplayProblem)])
def test_problems_are_checked(field):
    """Each part replaced by what it cannot be: an error that names the problem, or the same problem."""
    sound = getattr(problem(), field)
    wrong = [object(), 7, "text", np.zeros((2, 2, 2, 2)), {"a": 1}, [[1], [2, 3]]]
    if isinstance(sound, np.ndarray) and sound.dtype.kind == "f":
        wrong += [np.full_like(sound, value) for value in (np.nan, np.inf, 1e9)]
        wrong += [sound[:-1], sound.T[:-1], sound.astype(str), sound + 1j]
        wrong.append(np.ma.masked_array(sound, mask=True))
    for value in wrong:
        try:
            changed = dataclasses.replace(problem(), **{field: value})
        except DataError as error:
            assert len(str(error)) < 700
            continue
        assert field in FREE, f"{field} = {str(value)[:60]}"
        if field not in ("name", "pool"):
            assert replay(changed, "cabs_c_linear", trials=1).actions.shape == (1, 60)
