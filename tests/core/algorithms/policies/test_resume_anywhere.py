"""Saved after any rounds and loaded, every policy goes on as if nothing had happened: to the last bit in the
same engine, to 1e-9 in the other one."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cabs_core.algorithms.policies.play import Lane, play_by_calls, play_lanes
from cabs_core.algorithms.policies.registry import build_policy, load_policy
from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.base.catalog.conditions import STREAM_CONDITIONS
from cabs_core.base.catalog.policies import all_policies
from cabs_core.base.compiled.rng import query_order
from cabs_core.evaluation.replay.conditions import stream_condition
from cabs_core.evaluation.replay.engine import make_stream

RHO = 300.0
NEURAL = [n for n in all_policies() if "neural" in n]
QUICK = [n for n in all_policies() if "neural" not in n]
SMALL = {"hidden": 8, "batch": 4, "learning_rate": 0.01}
#: name -> (policy, options), beside the registry's names
VARIANTS = {
    "lin_ucb, vaw": ("lin_ucb", {"regression": "vaw", "target": "score"}),
    "lin_ts@warm, score": ("lin_ts@warm", {"target": "score"}),
    "cabs_d with lin_ucb": ("cabs_d_linear", {"experts": ["lin_ucb", "cabs_c", ["lin_ts", {"warm": 0.3}]]}),
}
#: learn from the played arm alone, so that the rest of a stream may be another lane
LINEAR = ("lin_ucb", "lin_ts@warm", "lin_ucb, vaw", "lin_ts@warm, score", "epsilon_greedy", "square_cb@warm")
CUTS = st.sets(st.integers(1, 199), min_size=1, max_size=3)


@lru_cache
def problem(dim: int):
    return synthetic_problem(n=200, K=4 if dim < 8 else 5, d=dim, seed=3, offline=60)


def plan(dim: int, condition: str):
    """(stream, order, arrivals) of one lane."""
    it = problem(dim)
    stream = make_stream(it, RHO)
    order = query_order(0, "resume", 0, it.n)
    conditioned = stream_condition(condition, it, stream, [order], [0], seed=0, pool="resume")
    return stream, conditioned.orders[0], conditioned.arrivals[0]


def fresh(name: str, dim: int, stream):
    policy, options = VARIANTS.get(name, (name, {}))
    if name in NEURAL:
        options = SMALL
    it = problem(dim)
    return build_policy(
        policy, arms=it.arms, dim=it.dim, rho=RHO, offline=stream.offline, horizon=it.n, seed=5, **options
    )


def advance(engine: str, policy, stream, lane, start: int, stop: int) -> None:
    if engine == "online":
        play_by_calls(policy, stream, lane, start, stop)
    else:
        play_lanes([policy], stream, [lane], start, stop)


def reload(policy):
    with TemporaryDirectory() as folder:
        return load_policy(policy.save(f"{folder}/p"))


@lru_cache
def uninterrupted(name: str, dim: int, condition: str, engine: str):
    stream, order, arrivals = plan(dim, condition)
    policy = fresh(name, dim, stream)
    lane = Lane.empty(order, arrivals, experts=policy.algorithm.experts)
    advance(engine, policy, stream, lane, 0, len(order))
    return policy, lane


def assert_same(name, dim, condition, engine, cuts):
    expected, whole = uninterrupted(name, dim, condition, engine)
    stream, order, arrivals = plan(dim, condition)
    policy = fresh(name, dim, stream)
    lane = Lane.empty(order, arrivals, experts=policy.algorithm.experts)
    bounds = [0, *sorted(cuts), len(order)]
    for start, stop in pairwise(bounds):
        if start:
            policy = reload(policy)
            assert policy.round == start
        advance(engine, policy, stream, lane, start, stop)
    for trace in ("actions", "propensities", "gaps", "meta_weights"):
        np.testing.assert_array_equal(getattr(lane, trace), getattr(whole, trace), err_msg=f"{name}: {trace}")
    mine, theirs = policy.algorithm.state(), expected.algorithm.state()
    assert mine[1] == theirs[1] and set(mine[0]) == set(theirs[0])
    for key, value in theirs[0].items():
        np.testing.assert_array_equal(mine[0][key], value, err_msg=f"{name}: {key}")


@pytest.mark.slow
@given(
    name=st.sampled_from([*QUICK, *VARIANTS]),
    engine=st.sampled_from(["compiled", "online"]),
    dim=st.sampled_from([5, 33]),
    cuts=CUTS,
    condition=st.sampled_from(["none", *STREAM_CONDITIONS]),
)
@settings(max_examples=200)
def test_any_policy_resumes_bit_for_bit(name, engine, dim, cuts, condition):
    assert_same(name, dim, condition, "compiled" if name == "oracle_best" else engine, cuts)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["compiled", "online"])
@given(name=st.sampled_from(NEURAL), cuts=CUTS, condition=st.sampled_from(["none", "delayed_rewards"]))
@settings(max_examples=8, deadline=None)
def test_neural_policies_resume_bit_for_bit(engine, name, cuts, condition):
    assert_same(name, 5, condition, engine, cuts)


@given(name=st.sampled_from(LINEAR), cut=st.integers(1, 199), length=st.integers(1, 199))
@settings(max_examples=40, deadline=None)
def test_the_rest_may_come_as_another_lane(name, cut, length):
    """What is still unknown when a policy is saved, and how it is divided into lanes, changes nothing."""
    expected, whole = uninterrupted(name, 33, "none", "compiled")
    stream, order, _ = plan(33, "none")
    policy = fresh(name, 33, stream)
    actions, propensities, at = [], [], 0
    for stop in sorted({cut, min(cut + length, len(order)), len(order)}):
        lane = Lane.empty(order[at:stop])
        advance("compiled", policy, stream, lane, 0, stop - at)
        actions.append(lane.actions)
        propensities.append(lane.propensities)
        policy, at = reload(policy), stop
    np.testing.assert_array_equal(np.concatenate(actions), whole.actions)
    np.testing.assert_array_equal(np.concatenate(propensities), whole.propensities)
    for key, value in expected.algorithm.state()[0].items():
        np.testing.assert_array_equal(policy.algorithm.state()[0][key], value)


@pytest.mark.slow
@given(
    name=st.sampled_from([n for n in (*QUICK, *VARIANTS) if n != "oracle_best"]),
    cut=st.integers(1, 199),
    first=st.sampled_from(["compiled", "online"]),
)
@settings(max_examples=60, deadline=None)
def test_the_other_engine_goes_on(name, cut, first):
    """Saved by one engine, continued by the other: what was learnt agrees to 1e-9 with one engine alone."""
    expected, whole = uninterrupted(name, 5, "none", first)
    stream, order, _ = plan(5, "none")
    policy = fresh(name, 5, stream)
    lane = Lane.empty(order, experts=policy.algorithm.experts)
    advance(first, policy, stream, lane, 0, cut)
    policy = reload(policy)
    advance("online" if first == "compiled" else "compiled", policy, stream, lane, cut, len(order))
    np.testing.assert_array_equal(lane.actions, whole.actions)
    mine, theirs = learnt(policy), learnt(expected)
    for key, value in theirs.items():
        np.testing.assert_allclose(mine[key], value, atol=1e-9, rtol=1e-9, err_msg=f"{name}: {key}")


def learnt(policy) -> dict[str, np.ndarray]:
    """Arrays of the state, less the upper triangles that nobody reads."""
    return {
        k: np.tril(v) if k.startswith("inv") else np.array(v) for k, v in policy.algorithm.state()[0].items()
    }
