"""Checks that a policy keeps the contract of a replay, on a short synthetic problem."""

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from cabs_core.algorithms.policies.play import Lane, play_by_calls, play_lanes
from cabs_core.algorithms.policies.policy import Policy
from cabs_core.algorithms.policies.registry import load_policy, policy_class, policy_of_trial
from cabs_core.algorithms.policies.request import Decision
from cabs_core.algorithms.policies.safe import SafePolicy
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.base.catalog.conditions import STREAM_CONDITIONS
from cabs_core.base.catalog.policies import policy_description, policy_record
from cabs_core.base.errors import PolicyError
from cabs_core.evaluation.replay.engine import make_stream, replay

ROUNDS = 120
RHO = 300.0
#: compiled and online rounds may differ in the last digits of a probability, never in an action
TOLERANCE = 1e-6


def check_replay(name: str, options: dict[str, Any]) -> None:
    """Check that a policy keeps the contract of a replay; `cabs_core.check_policy` also checks deployment.

    Raises:
        PolicyError: the policy breaks the contract; the message says where.
    """
    for check in (_methods, _record, _traces, _lanes, _conditions, _resume, _online, _options, _arms):
        check(name, options)


@cache
def _problem() -> ReplayProblem:
    """Return the synthetic problem of all checks, with `ROUNDS` queries and 4 arms."""
    return synthetic_problem(n=ROUNDS, K=4, d=5, seed=3, offline=60, pool="check")


def expect(holds: Any, name: str, promise: str) -> None:
    """Raise PolicyError with the text `promise` unless `holds` is true."""
    if not holds:
        raise PolicyError(f"{name}: {promise}")


def _build(name: str, options: dict[str, Any], stream: Any) -> SafePolicy:
    """Build a new policy for one trial of the stream."""
    return policy_of_trial(stream, name, seed=5, horizon=ROUNDS, options=options)


def _methods(name: str, options: dict[str, Any]) -> None:
    """Check that the class implements the abstract methods of `Policy`.

    If the policy's entry in the catalog says that it learns, the class needs `learn`, too.
    """
    cls = policy_class(name)
    missing = ", ".join(sorted(cls.__abstractmethods__))
    expect(
        not missing,
        name,
        f"class {cls.__name__} lacks {missing} (see cabs_core.algorithms.policies.policy.Policy)",
    )
    learns = policy_record(name).learns
    implemented = any("learn" in vars(base) for base in cls.__mro__ if base not in Policy.__mro__)
    expect(not learns or implemented, name, f"it learns, but {cls.__name__} lacks learn")


def _record(name: str, options: dict[str, Any]) -> None:
    """Check a policy's entry in the catalog (`PolicyRecord`) against its class.

    The class must have every preset that the entry names, except `default`.
    The description must end in a full stop, and a policy that needs outcomes must have feedback `full`.
    """
    record, cls = policy_record(name), policy_class(name)
    for preset in record.presets:
        expect(preset == "default" or preset in cls.PRESETS, name, f"its class has no preset {preset!r}")
    expect(policy_description(name).endswith("."), name, "its description must end with a full stop")
    expect(
        record.feedback == "full" or not cls.needs_outcomes,
        name,
        "it looks at outcomes: feedback must be 'full'",
    )


def _traces(name: str, options: dict[str, Any]) -> None:
    """Check that actions are arms, propensities are in (0, 1], and equal seeds give equal traces."""
    first, second = (replay(_problem(), name, rho=RHO, trials=2, options=options) for _ in range(2))
    arms = range(_problem().K)
    expect(np.isin(first.actions, arms).all(), name, "an action is no index of an arm")
    p = first.propensities
    expect(((p > 0) & (p <= 1)).all(), name, "a propensity is not in (0, 1]")
    for trace in ("actions", "propensities"):
        same = np.array_equal(getattr(first, trace), getattr(second, trace))
        expect(same, name, f"two replays with one seed differ in their {trace}")


def _lanes(name: str, options: dict[str, Any]) -> None:
    """Check that a trial plays the same arms alone on one thread and beside another trial on two threads."""
    both = replay(_problem(), name, rho=RHO, trials=2, threads=2, options=options)
    alone = replay(_problem(), name, rho=RHO, trials=[1], threads=1, options=options)
    same = np.array_equal(both.actions[1], alone.actions[0])
    expect(same, name, "trial 1 plays otherwise alone than beside trial 0")


def _conditions(name: str, options: dict[str, Any]) -> None:
    """Check that the policy plays under every condition of the stream, and never an arm that is gone."""
    for condition in STREAM_CONDITIONS:
        result = replay(_problem(), name, rho=RHO, trials=1, condition=condition, options=options)
        expect((result.actions >= 0).all(), name, f"rounds without an action under {condition}")
    best = int(np.argmax(make_stream(_problem(), RHO).offline.utilities.mean(axis=0)))
    half = ROUNDS // 2
    gone = replay(_problem(), name, rho=RHO, trials=1, condition="arms_disappear", options=options)
    expect(best not in gone.actions[0, half:], name, "it plays an arm that has disappeared")


def _played(
    name: str, options: dict[str, Any], cuts: tuple[int, ...], advance: Callable[..., None]
) -> tuple[SafePolicy, Lane]:
    """Play all rounds of one trial, saving and loading the policy before the rounds `cuts`.

    Args:
        advance: called as `advance(policy, stream, lane, start, stop)` to play these rounds.

    Returns:
        The policy after the last round, and the trial's arrays.
    """
    stream = make_stream(_problem(), RHO)
    policy = _build(name, options, stream)
    lane = Lane.empty(np.arange(ROUNDS), experts=policy.algorithm.experts)
    for start, stop in pairwise((0, *cuts, ROUNDS)):
        if start:
            with TemporaryDirectory() as folder:
                policy = load_policy(policy.save(f"{folder}/policy"))
        advance(policy, stream, lane, start, stop)
    return policy, lane


def _compiled(policy: SafePolicy, stream: Any, lane: Lane, start: int, stop: int) -> None:
    """Play the rounds from `start` to `stop` - 1 in the replay's loops."""
    play_lanes([policy], stream, [lane], start, stop)


def _resume(name: str, options: dict[str, Any]) -> None:
    """Check that saving and loading between rounds does not change what the policy plays.

    The policy must also have counted all rounds at the end.
    """
    _, unbroken = _played(name, options, (), _compiled)
    policy, parts = _played(name, options, (1, 50), _compiled)
    expect(policy.round == ROUNDS, name, f"its round is {policy.round} after {ROUNDS} rounds")
    same = np.array_equal(unbroken.actions, parts.actions) and np.array_equal(
        unbroken.propensities, parts.propensities
    )
    expect(same, name, "saved and loaded after round 1 and 50, it plays otherwise than without a break")


def _online(name: str, options: dict[str, Any]) -> None:
    """Check that `decide` and `update` play as the replay's loops do.

    A decision must also keep its arm through `to_dict` and `from_dict`, and `update` must then accept it.
    A policy that needs outcomes to decide is not checked.
    """
    if policy_class(name).needs_outcomes:
        return
    _, compiled = _played(name, options, (), _compiled)
    _, online = _played(name, options, (), play_by_calls)
    expect(np.array_equal(compiled.actions, online.actions), name, "decide plays otherwise than run")
    gap = np.abs(compiled.propensities - online.propensities).max()
    expect(gap <= TOLERANCE, name, f"propensities of decide and run differ by {gap:.2g}")
    stream = make_stream(_problem(), RHO)
    policy = _build(name, options, stream)
    decision = policy.decide(stream.request(0, 0))
    gap = abs(decision.pmf[decision.arm] - decision.probability)
    expect(gap < 1e-9, name, "probability is not the arm's in pmf")
    again = Decision.from_dict(decision.to_dict())
    expect(again.arm == decision.arm, name, "a decision does not survive to_dict and from_dict")
    outcome = stream.outcome(0, again.arm, policy.algorithm.full_feedback)
    policy.update(again, **outcome | {"deltas": None})  # the decision has kept them


def _options(name: str, options: dict[str, Any]) -> None:
    """Check that `parse` of the class raises PolicyError for an unknown option."""
    try:
        policy_class(name).parse(name, {**options, "no_such_option": None})
    except PolicyError:
        return
    raise PolicyError(f"{name}: an unknown option is taken without an error")


def _arms(name: str, options: dict[str, Any]) -> None:
    """Check that the policy decides and learns after an arm came and another one went.

    Policies with full feedback are not checked, since they never route.

    Raises:
        PolicyError: the policy refuses the arms, the request or its own decision.
    """
    if policy_record(name).feedback == "full":
        return
    stream = make_stream(_problem(), RHO)
    policy = _build(name, options, stream)
    policy.add_arm("another")
    policy.remove_arm(policy.arms[0])
    decision = policy.decide(stream.request(0, 0))
    policy.update(decision, **stream.outcome(0, decision.arm, policy.algorithm.full_feedback))
