"""The replay of one policy at one rho, in several trials, over a problem's arrays.

Each trial is a lane with a policy of its own and random streams keyed by order seed, pool, policy, rho, trial
and purpose, so neither the number of threads nor the order of lanes changes a result. Policies run compiled
loops over chunks of rounds. Between chunks the engine reports progress and may be cancelled.

rho is in score units per USD.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from pydantic import ValidationError

from cabs_core.algorithms.policies import state as states
from cabs_core.algorithms.policies.play import Lane, Stream, play_lanes
from cabs_core.algorithms.policies.registry import policy_of_trial
from cabs_core.algorithms.policies.request import Offline
from cabs_core.algorithms.policies.safe import SafePolicy
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.catalog.policies import canonical_name
from cabs_core.base.catalog.roles import PROPOSED
from cabs_core.base.compiled.rng import query_order
from cabs_core.base.errors import PolicyError, first_fault
from cabs_core.base.threads import number_of_workers, one_blas_thread
from cabs_core.base.utility import binary_share, clipped_utility
from cabs_core.data.pool_files.sessions import Sessions
from cabs_core.evaluation.replay.conditions import StreamPlan, in_time, stream_condition
from cabs_core.evaluation.replay.external import external_name, fresh_copies, play_external
from cabs_core.evaluation.replay.result import ReplayResult
from cabs_core.evaluation.replay.sessions import ConversationTrial, play_conversation_trials, tokens_of

#: number of rounds that are played between two reports of progress
CHUNK = 1024
Progress = Callable[[float, str], None]


class ReplayCancelled(Exception):
    """A replay was cancelled, because `cancel()` returned True. Nothing was returned or written."""


def default_threads() -> int:
    """Return the number of trials to play at once: `CABS_THREADS`, or the number of the process's processors.

    Raises:
        CabsError: `CABS_THREADS` is no whole number of at least 1.
    """
    return number_of_workers("CABS_THREADS")


def make_stream(problem: ReplayProblem, rho: float, latency_weight: float = 0.0) -> Stream:
    """Make the arrays that all trials of a replay at this rho share.

    Raises:
        PolicyError: rho is out of range.
    """
    rho = states.number("replay", "rho", rho, 0.0, states.RHO_LIMIT)
    share = problem.metadata.get("binary_share")
    if share is None:
        if len(problem.offline_scores):
            share = binary_share(problem.offline_scores)
        else:
            share = 1.0
    return Stream(
        arms=problem.arms,
        rho=float(rho),
        contexts=problem.contexts,
        scores=problem.scores,
        costs=problem.costs,
        utilities=clipped_utility(problem.scores, problem.costs, rho, problem.latencies, latency_weight),
        predicted_scores=problem.predicted_scores,
        predicted_costs=problem.predicted_costs,
        deltas=problem.surrogate_deltas,
        static_scores=problem.static_scores,
        static_costs=problem.predicted_costs if problem.static_costs is None else problem.static_costs,
        share=float(share),
        active_from=np.zeros(problem.K, dtype=np.int64),
        active_until=np.full(problem.K, np.iinfo(np.int64).max, dtype=np.int64),
        offline=Offline(
            problem.offline_contexts,
            problem.offline_scores,
            problem.offline_costs,
            rho,
            embeddings=None if problem.embeddings is None else problem.offline_embeddings,
            prompt_lengths=problem.offline_prompt_lengths,
            fits=problem.fits,
            answered=problem.offline_answered,
            propensities=problem.offline_propensities,
        ),
        latencies=problem.latencies,
        latency_weight=float(latency_weight),
        embeddings=problem.embeddings,
        prompt_lengths=problem.prompt_lengths,
    )


def replay(
    problem: ReplayProblem,
    policy: str | object = PROPOSED,
    rho: float = 300.0,
    trials: int | Sequence[int] = 10,
    seed: int = 0,
    *,
    pool: str = "",
    rounds: int | None = None,
    order: np.ndarray | None = None,
    condition: str = "none",
    sessions: Sessions | Mapping[str, Any] | None = None,
    latency_weight: float = 0.0,
    threads: int | None = None,
    progress: Progress | None = None,
    cancel: Callable[[], bool] | None = None,
    options: Mapping[str, Any] | None = None,
    **overrides: Any,
) -> ReplayResult:
    """Replay a policy online over a problem.

    Args:
        problem: the arrays.
        policy: `name` or `name@preset`; or an object of your own with `predict(context)` and, if it learns,
            `learn(context, arm, reward, probability)` (`replay.external`), copied for every trial.
        rho: cost sensitivity >= 0, score units per USD.
        trials: number of trials, or their numbers (trial 3 is the same trial alone or among others).
        seed: `order_seed`. A trial's order depends only on (seed, pool, trial) and on the problem's times.
        pool: name for the seeds and the record; default the problem's.
        rounds: number of rounds to play of every order. None plays whole orders.
        order: `[trials, T]` queries to play. None makes orders from the seed, with every query once.
        condition: a stream-level stress condition (`replay.conditions`); data-level ones change the problem.
        sessions: conversations of condition `sessions`, `{"turns": 4, "sticky": "off"}`
            (`pool_files.sessions.Sessions`).
        latency_weight: rho1, score units per second. A positive one needs latencies.
        threads: number of trials to play at once, which changes no result. None takes `default_threads`.
        progress: called with (fraction, text) between chunks of rounds.
        cancel: called between chunks; if it returns True, ReplayCancelled is raised.
        options, **overrides: options that override the policy's preset. Keywords override `options`.

    Raises:
        PolicyError: unknown policy, preset, option or condition, or a value out of range.

    Examples:
        >>> from cabs_core import synthetic_problem
        >>> from cabs_core.evaluation.replay import replay
        >>> problem = synthetic_problem(n=200, K=4, d=5)
        >>> result = replay(problem, "lin_ucb", rho=300.0, trials=2, alpha=0.2)
        >>> result.trials, result.rounds, result.utility > 0
        (2, 200, True)
    """
    asked = _settings(
        problem, policy, rho, pool=pool, seed=seed, latency_weight=latency_weight, condition=condition
    )
    options = _options(options, overrides)
    if threads is None:
        threads = default_threads()
    else:
        threads = states.whole_number("replay", "threads", threads, 1, 4096)
    for what, callback in (("progress", progress), ("cancel", cancel)):
        if callback is not None and not callable(callback):
            raise PolicyError(f"replay: {what} is {states.excerpt(repr(callback), 80)}, expected a function")
    watch = _Watch(f"{asked.policy} at rho {asked.rho:g}", progress, cancel)
    stream = make_stream(problem, asked.rho, asked.latency_weight)
    numbers = _trial_numbers(trials)
    conversations = _sessions(sessions, condition)
    plan = stream_condition(
        condition,
        problem,
        stream,
        _orders(problem, asked, numbers, order),
        numbers,
        seed=asked.seed,
        pool=asked.pool,
        rounds=None if rounds is None else states.whole_number("replay", "rounds", rounds, 1),
        sessions=conversations,
    )
    if not isinstance(policy, str):
        return _replay_external(policy, problem, stream, plan, numbers, asked, watch, options)
    players = _players(problem, stream, plan, numbers, asked, conversations, options)
    return _result(players, stream, problem, asked, _play(players, stream, threads, watch))


@dataclass(frozen=True)
class _Settings:
    """The checked settings that identify a replay, as in the fields of `ReplayResult` with these names."""

    policy: str
    rho: float
    pool: str
    seed: int
    latency_weight: float
    condition: str


@dataclass(frozen=True)
class _Watch:
    """The callbacks for progress and cancellation, with the name of the replay for their texts."""

    name: str
    progress: Progress | None
    cancel: Callable[[], bool] | None

    def go_on(self, done: int, unit: str) -> None:
        """Raise ReplayCancelled if `cancel()` returns True; the message says that `done` units are played."""
        if self.cancel is not None and self.cancel():
            raise ReplayCancelled(f"replay of {self.name} was cancelled after {done} {unit}")

    def tell(self, done: int, total: int, text: str) -> None:
        """Report that `done` of `total` units are played."""
        if self.progress is not None:
            self.progress(done / total, f"{self.name}: {text}")


@dataclass(frozen=True)
class _Players:
    """The trials of a replay with their policies.

    Attributes:
        lanes: arrays of each trial.
        policies: policy of each trial; empty for an object of another library.
        conversation_trials: trials under condition `sessions`, otherwise None.
    """

    lanes: list[Lane]
    policies: list[SafePolicy] = field(default_factory=list)
    conversation_trials: list[ConversationTrial] | None = None


def _settings(
    problem: Any, policy: Any, rho: Any, *, pool: Any, seed: Any, latency_weight: Any, condition: Any
) -> _Settings:
    """Check types and ranges of the settings of a replay, and return them with the policy's canonical name.

    Names of a policy and of a condition may still be unknown. They are looked up when policies and orders are
    made.

    Raises:
        PolicyError: a value has the wrong type or is out of range, or `latency_weight` is positive for a
            problem without latencies.
    """
    if isinstance(policy, str):
        name = policy
    else:
        name = external_name(policy)
    if not isinstance(problem, ReplayProblem):
        raise PolicyError(f"replay takes a ReplayProblem, not {type(problem).__name__}")
    for what, value in (("policy", name), ("condition", condition), ("pool", pool)):
        if not isinstance(value, str) or len(value) > 200:
            raise PolicyError(f"replay: {what} is {states.excerpt(repr(value), 80)}, expected a name")
    latency_weight = states.number("replay", "latency_weight", latency_weight, 0.0)
    if latency_weight and problem.latencies is None:
        raise PolicyError("replay: latency_weight is positive, but the problem has no latencies; set it to 0")
    return _Settings(
        policy=canonical_name(name) if isinstance(policy, str) else name,
        rho=float(states.number("replay", "rho", rho, 0.0, states.RHO_LIMIT)),
        pool=pool or problem.pool,
        seed=int(states.whole_number("replay", "seed", seed, -(2**63), 2**63 - 1)),
        latency_weight=float(latency_weight),
        condition=condition,
    )


def _options(options: Any, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the policy's options; keywords override `options`.

    Raises:
        PolicyError: `options` is no mapping.
    """
    if options is not None and not isinstance(options, Mapping):
        raise PolicyError(f"replay: options must be names and values, not {type(options).__name__}")
    return {**(options or {}), **overrides}


def _orders(
    problem: ReplayProblem, asked: _Settings, trials: Sequence[int], order: np.ndarray | None
) -> list[np.ndarray]:
    """Queries in the order of play, int64 `[T]` for each trial: from the seed, or `order` if it is given.

    Raises:
        PolicyError: `order` does not have one row for each trial, has rows of different lengths, is masked,
            or holds a number that is no query.
    """
    if order is None:
        seeded = (query_order(asked.seed, asked.pool, i, problem.n) for i in trials)
        return [in_time(rows, problem.times) for rows in seeded]
    try:
        rows = np.atleast_2d(np.asarray(order))
    except (TypeError, ValueError):  # rows of different lengths make no array
        rows = np.empty(0)
    valid = rows.dtype.kind in "iu" and rows.ndim == 2 and rows.size and len(rows) == len(trials)
    if not valid or isinstance(order, np.ma.MaskedArray) or rows.min() < 0 or rows.max() >= problem.n:
        raise PolicyError(f"replay: order must be whole [{len(trials)}, T] rows in 0..{problem.n - 1}")
    return list(rows.astype(np.int64))


def _players(
    problem: ReplayProblem,
    stream: Stream,
    plan: StreamPlan,
    trials: Sequence[int],
    asked: _Settings,
    conversations: Sessions,
    options: Mapping[str, Any],
) -> _Players:
    """Make a policy and a lane for every trial, and its conversations under condition `sessions`."""
    new_policy = partial(
        policy_of_trial,
        stream,
        asked.policy,
        seed=asked.seed,
        pool=asked.pool,
        horizon=len(plan.orders[0]),
        options=options,
    )
    with one_blas_thread():  # the last digits of a warm start depend on the number of threads too
        policies = [new_policy(trial=trial) for trial in trials]
    lanes = [
        Lane.empty(o, arrivals, experts=p.algorithm.experts)
        for o, arrivals, p in zip(plan.orders, plan.arrivals, policies, strict=True)
    ]
    if plan.turns is None:
        return _Players(lanes, policies)
    tokens = tokens_of(problem, conversations)
    each = zip(policies, lanes, plan.turns, strict=True)
    conversation_trials = [
        ConversationTrial(policy, stream, lane, turns, tokens, conversations) for policy, lane, turns in each
    ]
    return _Players(lanes, policies, conversation_trials)


def _play(players: _Players, stream: Stream, threads: int, watch: _Watch) -> float:
    """Play all rounds, one chunk after another; return the wall time of the chunks in seconds."""
    total = len(players.lanes[0].order)
    spent = 0.0
    for start in range(0, total, CHUNK):
        watch.go_on(start, "rounds")
        stop = min(start + CHUNK, total)
        begin = time.perf_counter()
        with one_blas_thread():
            if players.conversation_trials is None:
                play_lanes(players.policies, stream, players.lanes, start, stop, threads)
            else:
                play_conversation_trials(players.conversation_trials, start, stop, threads)
        spent += time.perf_counter() - begin
        watch.tell(stop, total, f"round {stop} of {total}, {len(players.lanes)} trials")
    return spent


def _sessions(sessions: Sessions | Mapping[str, Any] | None, condition: str) -> Sessions:
    """Check the argument `sessions`, and return the default if it is None.

    Raises:
        PolicyError: the condition is another one, or a value is impossible.
    """
    if sessions is not None and condition != "sessions":
        raise PolicyError(f"replay: sessions is for condition 'sessions'; the condition is {condition!r:.60}")
    if sessions is None or isinstance(sessions, Sessions):
        return sessions or Sessions()
    try:
        return Sessions.model_validate(sessions)
    except ValidationError as error:
        raise PolicyError(f"replay: sessions: {first_fault(error, 'sessions')[0]}") from None


def _replay_external(
    external: object,
    problem: ReplayProblem,
    stream: Stream,
    plan: StreamPlan,
    trials: Sequence[int],
    asked: _Settings,
    watch: _Watch,
    options: Mapping[str, Any],
) -> ReplayResult:
    """Replay an object of another library, one trial after another.

    Raises:
        PolicyError: the condition is `sessions`, options are given, or the object cannot be copied.
    """
    name = asked.policy
    if plan.turns is not None:
        raise PolicyError(f"{name}: condition sessions needs a subclass of Policy, which is told of costs")
    if options:
        raise PolicyError(f"{name}: set options {', '.join(options)} on the object itself")
    lanes = [Lane.empty(o, arrivals) for o, arrivals in zip(plan.orders, plan.arrivals, strict=True)]
    begin = time.perf_counter()
    copies = fresh_copies(external, len(lanes))
    for i, (copied, lane, trial) in enumerate(zip(copies, lanes, trials, strict=True)):
        watch.go_on(i, "trials")
        play_external(copied, name, stream, lane, (asked.seed, asked.pool, name, f"{asked.rho:g}", trial))
        watch.tell(i + 1, len(lanes), f"trial {i + 1} of {len(lanes)}")
    return _result(_Players(lanes), stream, problem, asked, time.perf_counter() - begin)


def _trial_numbers(trials: Any) -> list[int]:
    """Return the numbers of the trials: 0, 1, ... if `trials` is a count, otherwise the numbers in `trials`.

    Raises:
        PolicyError: `trials` is neither a count of at least 1 nor a sequence of different numbers.
    """
    if isinstance(trials, (int, np.integer)):
        return list(range(states.whole_number("replay", "trials", trials, 1, 1_000_000)))
    try:
        numbers = list(trials)
    except TypeError:
        numbers = []
    if not numbers:
        raise PolicyError(
            f"replay: trials {states.excerpt(repr(trials), 80)} must be a number or numbers of trials"
        )
    numbers = [states.whole_number("replay", "trials", i) for i in numbers]
    if len(set(numbers)) != len(numbers):
        twice = next(i for i in numbers if numbers.count(i) > 1)
        raise PolicyError(
            f"replay: trials names trial {twice} twice, which would count its rounds as independent ones: "
            "name each trial once"
        )
    return numbers


def rho_grid(where: str, rhos: Any) -> list[float]:
    """Return the rhos of an argument that is one rho or several.

    Args:
        where: name of the function, for the message.

    Raises:
        PolicyError: the argument is neither, or a rho is out of range.
    """
    try:
        values = [rhos] if np.ndim(rhos) == 0 and not isinstance(rhos, Iterable) else list(rhos)
    except (TypeError, ValueError):
        values = [rhos]
    return [float(states.number(where, "rhos", rho, 0.0, states.RHO_LIMIT)) for rho in values]


def _result(
    players: _Players, stream: Stream, problem: ReplayProblem, asked: _Settings, seconds: float
) -> ReplayResult:
    """Collect the traces of all trials in a result.

    In conversations, costs and best utilities come from `conversation_trials`, and rewards follow from these
    costs.
    """
    lanes = players.lanes
    conversation_trials = players.conversation_trials
    order = np.stack([lane.order for lane in lanes])
    actions = np.stack([lane.actions for lane in lanes])
    total = order.shape[1]
    active = stream.active(np.arange(total))
    best = np.stack([np.where(active, stream.utilities[lane.order], -np.inf).max(axis=1) for lane in lanes])
    gaps = np.stack([lane.gaps for lane in lanes]).astype(np.float32)
    traced = [lane.meta_weights for lane in lanes if lane.meta_weights is not None]
    scores = stream.scores[order, actions]
    costs = stream.costs[order, actions]
    rewards = stream.utilities[order, actions]
    conversations: dict[str, Any] = {}
    if conversation_trials is not None:
        if stream.latencies is None:
            latencies = None
        else:
            latencies = stream.latencies[order, actions]
        costs = np.stack([trial.costs for trial in conversation_trials])
        best = np.stack([trial.best for trial in conversation_trials])
        rewards = clipped_utility(scores, costs, stream.rho, latencies, stream.latency_weight)
        conversations = {
            "turns": np.stack([trial.turns.number for trial in conversation_trials]).astype(np.int32),
            "kept": np.stack([trial.kept for trial in conversation_trials]),
            "random_rewards": np.stack([trial.random for trial in conversation_trials]),
        }
    return ReplayResult(
        order=order.astype(np.int32),
        # the surrogates of one query take 8 GB where there are more arms than int16 holds
        actions=actions.astype(np.int16),
        propensities=np.stack([lane.propensities for lane in lanes]).astype(np.float32),
        rewards=rewards,
        scores=scores,
        costs=costs,
        best_rewards=best,
        gaps=gaps if np.isfinite(gaps).any() else None,
        meta_weights=np.stack(traced) if traced else None,
        uncertified=np.array([lane.uncertified for lane in lanes], dtype=np.int64),
        seconds=np.full(len(lanes), seconds / len(lanes)),
        options=players.policies[0].settings.model_dump(mode="json") if players.policies else {},
        clusters=problem.clusters,
        **vars(asked),
        **conversations,
    )
