"""The rounds of a replay: its arrays, its trials, and the loop that plays a policy on them.

A replay has one `Stream` of arrays and one `Lane` for every trial. `play_lanes` plays all lanes: in the
policy's own loop if it has one, otherwise round by round with `SafePolicy.decide` and `update`.

A policy whose rounds are two compiled kernels derives from `CompiledPolicy`, and `round_loop` makes its loop:

    decide(parts, data, row, mask, t, slot, trace) -> (arm, its probability)
    learn(parts, data, row, arm, slot)

`parts` is a NamedTuple of the policy's options, state and work space. `data` is a NamedTuple of arrays over
rows (queries); a single request is a table with one row. `mask` bool [K] is True for arms that may be played.
`t` counts the policy's decisions. A reward may come rounds after its decision, so `decide` writes the values
that the update needs to memory slot `slot`, and `learn` reads them from there. `decide` fills `trace` [2 +
M]: the gap of an exploration program that it solved (NaN if it solves none), 1 if the solution was not
certified, and M weights of experts.

`choose` and `learn` of the policy call the same kernels, so that a policy is defined once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from cabs_core.algorithms.policies import state as states
from cabs_core.algorithms.policies.policy import Policy
from cabs_core.algorithms.policies.request import Decision, Offline, Request
from cabs_core.base.errors import PolicyError
from cabs_core.base.threads import over_threads

if TYPE_CHECKING:
    from cabs_core.algorithms.policies.safe import SafePolicy

T = TypeVar("T")
Kernel = Any  # a numba dispatcher


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a view of the array that cannot be written to. No entry is copied."""
    view = array.view()
    view.setflags(write=False)
    return view


@dataclass
class Stream:
    """All arrays of one (problem, rho), shared by the lanes of a replay. Rows are queries, not rounds.

    Arrays are C-contiguous float64, except deltas (float32) and active_from and active_until (int64), as a
    `ReplayProblem` has checked them.

    Attributes:
        arms: names of the K arms. rho: score units per USD.
        contexts: [n, d].
        scores, costs, utilities: [n, K] realised outcomes; utilities are clipped.
        predicted_scores, predicted_costs: [n, K], outputs of the accuracy head and the cost head (USD).
        deltas: [n, K, K], output of the propagation head.
        static_scores: {name: [n, K]}, predictions of the static predictors. static_costs: [n, K], costs in
            USD that static policies expect.
        share: how binary the scores are (`utility.binary_share`).
        active_from, active_until: [K]; arm j may be played in rounds active_from[j] <= t < active_until[j].
        offline: the train split.
        latencies: [n, K] seconds, or None. latency_weight: rho1, score units per second.
        embeddings: [n, e] and prompt_lengths: [n] characters, or None if the problem has none.
        fitted: values that policies compute once per stream, by key.
    """

    arms: list[str]
    rho: float
    contexts: np.ndarray
    scores: np.ndarray
    costs: np.ndarray
    utilities: np.ndarray
    predicted_scores: np.ndarray
    predicted_costs: np.ndarray
    deltas: np.ndarray
    static_scores: dict[str, np.ndarray]
    static_costs: np.ndarray
    share: float
    active_from: np.ndarray
    active_until: np.ndarray
    offline: Offline
    latencies: np.ndarray | None = None
    latency_weight: float = 0.0
    embeddings: np.ndarray | None = None
    prompt_lengths: np.ndarray | None = None
    fitted: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def _shown(self) -> Stream:
        """This stream with read-only views of the arrays that requests and outcomes hold rows of.

        A policy that changed a row in place would change the problem for every later replay. The stream
        itself keeps writeable arrays, because compiled loops are compiled for these.
        """
        return replace(
            self,
            contexts=read_only(self.contexts),
            scores=read_only(self.scores),
            costs=read_only(self.costs),
            predicted_scores=read_only(self.predicted_scores),
            predicted_costs=read_only(self.predicted_costs),
            deltas=read_only(self.deltas),
            static_scores={key: read_only(value) for key, value in self.static_scores.items()},
            static_costs=read_only(self.static_costs),
            embeddings=None if self.embeddings is None else read_only(self.embeddings),
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        """(n queries, K arms, d features)."""
        return len(self.contexts), len(self.arms), self.contexts.shape[1]

    def once(self, key: str, compute: Callable[[], T]) -> T:
        """Return `compute()` of the first call with this key, so that all lanes share one computation."""
        if key not in self.fitted:
            self.fitted[key] = compute()
        value: T = self.fitted[key]
        return value

    def latency_penalty(self, row: int, arm: int) -> float:
        """Return rho1 times the latency of an arm on a query, 0 if latency has no weight."""
        if self.latencies is None:
            return 0.0
        return float(self.latency_weight * self.latencies[row, arm])

    def outcome(self, row: int, arm: int, every_arm: bool = False) -> dict[str, Any]:
        """Return keyword arguments of `SafePolicy.update` for an arm that has answered query `row`.

        Args:
            every_arm: include the scores and costs of all arms, for policies with full feedback.
        """
        shown = self._shown
        outcome = {
            "score": float(self.scores[row, arm]),
            "cost": float(self.costs[row, arm]),
            "latency_penalty": self.latency_penalty(row, arm),
            "deltas": shown.deltas[row, arm],
        }
        if every_arm:
            outcome |= {"all_scores": shown.scores[row], "all_costs": shown.costs[row]}
        return outcome

    def active(self, rounds: ArrayLike) -> np.ndarray:
        """Return bool [..., K], True for arms that may be played in these rounds [...]."""
        t = np.asarray(rounds)[..., None]
        return (self.active_from <= t) & (t < self.active_until)

    def available(self, t: int) -> np.ndarray | None:
        """Return bool [K], True for arms that may be played in round t, or None if all may be."""
        mask = self.active(t)
        if mask.all():
            return None
        return mask

    def request(self, row: int, t: int) -> Request:
        """Return the request that round t makes if it plays query `row`; its arrays are read-only."""
        shown = self._shown
        return Request(
            context=shown.contexts[row],
            predicted_scores=shown.predicted_scores[row],
            predicted_costs=shown.predicted_costs[row],
            surrogate=shown.deltas[row],
            static_scores={k: v[row] for k, v in shown.static_scores.items()},
            static_costs=shown.static_costs[row],
            embedding=None if shown.embeddings is None else shown.embeddings[row],
            prompt_length=None if self.prompt_lengths is None else float(self.prompt_lengths[row]),
            available=self.available(t),
        )


@dataclass
class Lane:
    """One trial: the order of queries, when rewards arrive, and the traces that a replay fills.

    Attributes:
        order: int64 [T], the row played in each round.
        arrivals: None if every reward comes at the end of its own round. Otherwise int64 [A, 2] of (round at
            whose end the reward arrives, round it belongs to), sorted.
        actions: int64 [T], played arms. propensities: float64 [T].
        gaps: float64 [T], NaN in rounds that solve no program. uncertified: number of rounds whose solution
            was not certified.
        meta_weights: float32 [T, M], weights of experts, or None.
        pending: {round: decision} of decisions that wait for their reward, if the lane is played by calls.
        memory: memory of these decisions, arrays with a slot per round, if a loop other than the loop of
            calls plays the lane.
    """

    order: np.ndarray
    arrivals: np.ndarray | None
    actions: np.ndarray
    propensities: np.ndarray
    gaps: np.ndarray
    meta_weights: np.ndarray | None = None
    uncertified: int = 0
    pending: dict[int, Decision] = field(default_factory=dict)
    memory: Any = None

    @classmethod
    def empty(cls, order: np.ndarray, arrivals: ArrayLike | None = None, experts: int = 0) -> Lane:
        """Return a lane of which no round has been played.

        Args:
            order: rows [T]. arrivals: [A, 2] as in the class, or None. experts: number of weights to trace.
        """
        rounds = len(order)
        if arrivals is not None:
            arrivals = np.ascontiguousarray(arrivals, dtype=np.int64).reshape(-1, 2)
        return cls(
            order=np.ascontiguousarray(order, dtype=np.int64),
            arrivals=arrivals,
            actions=np.full(rounds, -1, dtype=np.int64),
            propensities=np.full(rounds, np.nan),
            gaps=np.full(rounds, np.nan),
            meta_weights=np.full((rounds, experts), np.nan, dtype=np.float32) if experts else None,
        )

    def record(self, t: int, decision: Decision, trace: np.ndarray | None) -> None:
        """Fill the traces of round t; `trace` is the result of `Policy.trace` for the decision."""
        self.actions[t] = decision.arm
        self.propensities[t] = decision.probability
        if trace is None:
            return
        self.gaps[t] = trace[0]
        self.uncertified += int(trace[1])
        if self.meta_weights is not None:
            self.meta_weights[t] = trace[2:]

    def due(self, t: int) -> Iterable[int]:
        """Return the rounds whose reward arrives at the end of round t, in order."""
        if self.arrivals is None:
            return (t,)
        low, high = np.searchsorted(self.arrivals[:, 0], [t, t + 1])
        return (int(s) for s in self.arrivals[low:high, 1])


# -- checks --------------------------------------------------------------------------------------------------


def check_lane(policy: Policy, stream: Stream, lane: Lane, start: int, stop: int) -> None:
    """Raise PolicyError if rounds start..stop-1 of the lane do not fit the policy and the stream.

    Compiled loops check nothing, so every loop calls this function first.
    """
    where = f"{policy.name}: replay"
    n, k, d = stream.shape
    if k != len(policy.arms) or (policy.needs_context and d != policy.dim):
        raise PolicyError(
            f"{where}: the stream has {k} arms and {d} features, the policy {len(policy.arms)} and "
            f"{policy.dim}"
        )
    for name in ("order", "actions", "propensities", "gaps"):
        _check_is_array(where, name, getattr(lane, name))
    for name in ("arrivals", "meta_weights"):
        if getattr(lane, name) is not None:
            _check_is_array(where, name, getattr(lane, name))
    total = len(lane.order)
    states.whole_number(where, "stop", stop, 0, total)
    states.whole_number(where, "start", start, 0, stop)
    _check_indices(where, "order", lane.order, ndim=1, high=n)
    if lane.arrivals is not None:
        _check_indices(where, "arrivals", lane.arrivals, ndim=2, high=total)
        _check_arrivals(where, lane.arrivals)
    _check_trace(where, "actions", lane.actions, (total,), states.I8)
    _check_trace(where, "propensities", lane.propensities, (total,), states.F8)
    _check_trace(where, "gaps", lane.gaps, (total,), states.F8)
    if policy.experts and lane.meta_weights is not None:
        shape = (total, policy.experts)
        _check_trace(where, "meta_weights", lane.meta_weights, shape, np.dtype(np.float32))
    if lane.arrivals is not None:
        past = lane.actions[:start]
    else:
        past = lane.actions[:0]
    if past.size and not (past.min() >= 0 and past.max() < k):
        raise PolicyError(
            f"{where}: lane.actions of rounds before {start} hold numbers that are no arm of this problem"
        )


def _check_is_array(where: str, name: str, value: Any) -> None:
    """Raise PolicyError unless the value is a numpy array (no subclass) of at least one dimension."""
    if type(value) is not np.ndarray or not value.ndim:
        raise PolicyError(f"{where}: lane.{name} is a {type(value).__name__}, expected an array")


def _check_indices(where: str, name: str, values: np.ndarray, *, ndim: int, high: int) -> None:
    """Raise PolicyError unless values are C-contiguous int64 from 0 to high - 1 of `ndim` dimensions.

    An array of two dimensions must have two columns. An empty array passes.
    """
    columns = (2,) if ndim == 2 else ()
    if (
        values.dtype != states.I8
        or values.ndim != ndim
        or not values.flags.c_contiguous
        or values.shape[1:] != columns
    ):
        raise PolicyError(f"{where}: lane.{name} must be int64, as `Lane.empty` makes it")
    if values.size and not (values.min() >= 0 and values.max() < high):
        raise PolicyError(f"{where}: lane.{name} must lie in 0..{high - 1}")


def _check_arrivals(where: str, arrivals: np.ndarray) -> None:
    """Raise PolicyError if rewards `[m, 2]`, (round of arrival, round of the decision), are out of order.

    Rounds of arrival may not descend, and no reward may arrive before its decision.
    """
    arrival_rounds, reward_rounds = arrivals.T
    if (np.diff(arrival_rounds) < 0).any() or (reward_rounds > arrival_rounds).any():
        raise PolicyError(f"{where}: lane.arrivals must be sorted, no reward before its round")


def _check_trace(where: str, name: str, values: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Raise PolicyError unless a trace has this shape and dtype, and is contiguous, aligned and writeable."""
    if values.shape != shape or values.dtype != dtype or not values.flags.carray:
        raise PolicyError(
            f"{where}: lane.{name} has shape {list(values.shape)} of {values.dtype}, expected {dtype} "
            f"{list(shape)}"
        )


# -- policies with a loop of their own -----------------------------------------------------------------------


class LoopPolicy(Policy):
    """Base of the policies with a loop of their own.

    The loop plays a replay as `choose` and `learn` would, but faster.
    """

    own_loop: ClassVar[bool] = True

    @abstractmethod
    def run(self, stream: Stream, lane: Lane, start: int, stop: int) -> None:
        """Play rounds start..stop-1 of a lane: fill its traces, learn, and count the rounds."""

    @classmethod
    def run_lanes(
        cls,
        policies: Sequence[Any],
        stream: Stream,
        lanes: Sequence[Lane],
        start: int,
        stop: int,
        threads: int,
    ) -> None:
        """Call `run` for every lane, over threads, since compiled loops hold no GIL.

        A policy that plays its lanes in lockstep overrides this method. Results must not depend on `threads`.

        Args:
            policies: one policy of this class for every lane.
        """
        jobs = [partial(p.run, stream, lane, start, stop) for p, lane in zip(policies, lanes, strict=True)]
        over_threads(jobs, threads)


# -- the loop of calls ---------------------------------------------------------------------------------------


def play_by_calls(policy: SafePolicy, stream: Stream, lane: Lane, start: int, stop: int) -> None:
    """Play rounds start..stop-1 of a lane by `decide` and `update`.

    Every other loop must give the results of this loop.

    Raises:
        PolicyError: the rounds do not fit the policy and the stream (`check_lane`).
    """
    algorithm = policy.algorithm
    check_lane(algorithm, stream, lane, start, stop)
    for t in range(start, stop):
        row = int(lane.order[t])
        decision = policy.decide(stream.request(row, t))
        lane.record(t, decision, algorithm.trace(decision))
        lane.pending[t] = decision
        for s in lane.due(t):
            past = lane.pending.pop(s)
            outcome = stream.outcome(int(lane.order[s]), past.arm, algorithm.full_feedback)
            policy.update(past, **outcome)


def play_lanes(
    policies: Sequence[SafePolicy],
    stream: Stream,
    lanes: Sequence[Lane],
    start: int,
    stop: int,
    threads: int = 1,
) -> None:
    """Play rounds start..stop-1 of every lane, in the algorithm's own loop or call by call.

    Lanes are played over threads, since compiled loops hold no GIL. Results do not depend on `threads`.

    Args:
        policies: one policy for every lane, all with algorithms of one class. Without policies nothing is
            played.
    """
    if not policies:
        return
    algorithms = [policy.algorithm for policy in policies]
    first = algorithms[0]
    if isinstance(first, LoopPolicy) and first.own_loop:
        type(first).run_lanes(algorithms, stream, lanes, start, stop, threads)
        return
    jobs = []
    for policy, lane in zip(policies, lanes, strict=True):
        jobs.append(partial(play_by_calls, policy, stream, lane, start, stop))
    over_threads(jobs, threads)


# -- the compiled loop ---------------------------------------------------------------------------------------


class Rounds(NamedTuple):
    """Arrays of a stream and a lane that the compiled loop reads and fills.

    Attributes:
        order, active_from, active_until, actions, propensities, gaps: as in `Stream` and `Lane`.
        arrivals: int64 [A, 2] as in `Lane`, empty if `immediate`.
        immediate: True if every reward comes at the end of its own round. Slot 0 is used for all rounds then;
            otherwise the slot of a round is its number.
        offset: number of the policy's decisions before round 0.
        meta_weights: float32 [T, M], with M = 0 if no weights are traced.
        trace: [2 + M], which `decide` fills in every round.
    """

    order: np.ndarray
    arrivals: np.ndarray
    immediate: bool
    offset: int
    active_from: np.ndarray
    active_until: np.ndarray
    actions: np.ndarray
    propensities: np.ndarray
    gaps: np.ndarray
    meta_weights: np.ndarray
    trace: np.ndarray


def decide(
    parts: Any, data: Any, row: int, mask: np.ndarray, t: int, slot: int, trace: np.ndarray
) -> tuple[int, float]:
    """Stand in for the kernel that `_play` calls; `round_loop` puts a policy's own `decide` here."""
    raise NotImplementedError


def learn(parts: Any, data: Any, row: int, arm: int, slot: int) -> None:
    """Stand in for the kernel that `_play` calls; `round_loop` puts a policy's own `learn` here."""
    raise NotImplementedError


def _play(parts: Any, data: Any, rounds: Rounds, start: int, stop: int) -> float:
    """Play rounds start..stop-1 and return the number of solutions that were not certified."""
    # each array is taken out of its tuple once, because every access counts its references
    order = rounds.order
    arrivals = rounds.arrivals
    trace = rounds.trace
    weights = rounds.meta_weights
    actions = rounds.actions
    propensities = rounds.propensities
    gaps = rounds.gaps
    active_from = rounds.active_from
    active_until = rounds.active_until
    mask = np.empty(active_from.size, dtype=np.bool_)
    uncertified = 0.0
    due = np.searchsorted(arrivals[:, 0], start)
    for t in range(start, stop):
        for j in range(mask.size):
            mask[j] = active_from[j] <= t < active_until[j]
        slot = 0 if rounds.immediate else t
        arm, probability = decide(parts, data, order[t], mask, t + rounds.offset, slot, trace)
        actions[t] = arm
        propensities[t] = probability
        gaps[t] = trace[0]
        uncertified += trace[1]
        for m in range(weights.shape[1]):
            weights[t, m] = trace[2 + m]
        if rounds.immediate:
            learn(parts, data, order[t], arm, slot)
        while due < arrivals.shape[0] and arrivals[due, 0] == t:
            past = arrivals[due, 1]
            learn(parts, data, order[past], actions[past], past)
            due += 1
    return uncertified


def round_loop(decide: Kernel, learn: Kernel) -> Kernel:
    """Return the compiled loop of two kernels: (parts, data, rounds, start, stop) -> uncertified solutions.

    The kernels become globals of a copy of `_play` that counts as code of their file. numba's cache on disk
    then finds the loop again in every process, and drops it when that file, or one that it imports, changes.
    The cache key of a closure over kernels would differ in every process.
    """
    # numba takes a second, and static policies are replayed without it
    from cabs_core.base.compiled.jit import kernel  # noqa: PLC0415

    home = decide.py_func
    code = _play.__code__.replace(co_filename=home.__code__.co_filename)
    loop = FunctionType(code, {**globals(), "decide": decide, "learn": learn})
    loop.__module__ = home.__module__
    loop.__qualname__ = f"play_{home.__name__}_{learn.py_func.__name__}"
    return kernel(loop)


class CompiledPolicy(LoopPolicy):
    """Base of the policies whose rounds are two kernels. Subclasses define `loop`, `parts` and `data`.

    Attributes:
        loop: `staticmethod(round_loop(decide, learn))`.
    """

    loop: ClassVar[Any]

    @abstractmethod
    def parts(self, lane: Lane | None = None) -> Any:
        """Return options, state and work space as the kernels take them.

        Args:
            lane: the lane that the kernels play, None for a single request.
        """

    @abstractmethod
    def data(self, stream: Stream) -> Any:
        """Return the NamedTuple of arrays that the kernels read in a replay. Lanes share it."""

    def new_trace(self) -> np.ndarray:
        """Return an array [2 + M] for `decide` to fill."""
        trace = np.zeros(2 + self.experts)
        trace[0] = np.nan
        return trace

    def run(self, stream: Stream, lane: Lane, start: int, stop: int) -> None:
        """Play rounds start..stop-1 of a lane in the compiled loop."""
        check_lane(self, stream, lane, start, stop)
        arrivals = lane.arrivals
        weights = lane.meta_weights
        rounds = Rounds(
            order=lane.order,
            arrivals=np.zeros((0, 2), dtype=np.int64) if arrivals is None else arrivals,
            immediate=arrivals is None,
            offset=self.round - start,
            active_from=stream.active_from,
            active_until=stream.active_until,
            actions=lane.actions,
            propensities=lane.propensities,
            gaps=lane.gaps,
            meta_weights=np.zeros((1, 0), dtype=np.float32) if weights is None else weights,
            trace=self.new_trace(),
        )
        lane.uncertified += int(self.loop(self.parts(lane), self.data(stream), rounds, start, stop))
        self.round += stop - start
