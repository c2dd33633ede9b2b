"""The rounds of a replay in compiled code: one loop, made for every policy from its two kernels.

    decide(parts, data, row, mask, t, slot, trace) -> (arm, its probability)
    learn(parts, data, row, arm, slot)

`parts` is a NamedTuple of the policy's options, state and work space; `data` one of arrays over rows
(queries), of which a request is a table with one row; mask bool [K] says which arms may be played; t counts
the policy's decisions. A reward may come rounds after its decision: what `decide` leaves in memory slot
`slot`, `learn` finds there. `decide` fills trace [2 + M]: the gap of a program it solved (NaN: none), 1 where
that was not certified, M meta weights.

`decide` and `update` call the same kernels, so that a policy is defined once.
"""

from abc import abstractmethod
from types import FunctionType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from cabs_core.algorithms.policies.base import Policy
from cabs_core.algorithms.policies.lane_checks import check_lane
from cabs_core.algorithms.policies.lanes import Lane, Stream
from cabs_core.base.compiled.jit import kernel

Kernel = Any  # a numba dispatcher


class Rounds(NamedTuple):
    """What the loop reads of a stream and a lane, and the traces that it fills (`lanes`).

    immediate: every reward comes at the end of its own round, in slot 0; otherwise slots are rounds. offset:
    the policy's decisions before round 0. arrivals is empty where `immediate`; meta_weights may be empty.
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
    """Stands in `_play` for a policy's kernel (`round_loop`)."""
    raise NotImplementedError


def learn(parts: Any, data: Any, row: int, arm: int, slot: int) -> None:
    """Stands in `_play` for a policy's kernel (`round_loop`)."""
    raise NotImplementedError


def _play(parts: Any, data: Any, rounds: Rounds, start: int, stop: int) -> float:
    # an array is taken out of a tuple once: each time counts its references
    order, arrivals, trace, weights = rounds.order, rounds.arrivals, rounds.trace, rounds.meta_weights
    actions, propensities, gaps = rounds.actions, rounds.propensities, rounds.gaps
    active_from, active_until = rounds.active_from, rounds.active_until
    mask = np.empty(active_from.size, dtype=np.bool_)
    uncertified = 0.0
    due = np.searchsorted(arrivals[:, 0], start)
    for t in range(start, stop):
        for j in range(mask.size):
            mask[j] = active_from[j] <= t < active_until[j]
        slot = 0 if rounds.immediate else t
        arm, probability = decide(parts, data, order[t], mask, t + rounds.offset, slot, trace)
        actions[t], propensities[t], gaps[t] = arm, probability, trace[0]
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
    """The compiled loop with these kernels: (parts, data, rounds, start, stop) -> uncertified solves.

    The kernels become globals of a copy of `_play` that counts as code of their file. numba's cache on disk
    then finds the loop again in every process and drops it when that file, or one that it imports, changes;
    the key of a closure over kernels would differ in every process.
    """
    home = decide.py_func
    code = _play.__code__.replace(co_filename=home.__code__.co_filename)
    loop = FunctionType(code, {**globals(), "decide": decide, "learn": learn})
    loop.__module__, loop.__qualname__ = home.__module__, f"play_{home.__name__}_{learn.py_func.__name__}"
    return kernel(loop)


class CompiledPolicy(Policy):
    """A policy whose rounds are two kernels. Subclasses give `loop`, `parts` and `data`.

    Attributes:
        loop: `staticmethod(round_loop(decide, learn))`.
    """

    own_loop: ClassVar[bool] = True

    loop: ClassVar[Any]

    @abstractmethod
    def parts(self, lane: Lane | None = None) -> Any:
        """Options, state and work space as the kernels take them; lane: the one they play, None online."""

    @abstractmethod
    def data(self, stream: Stream) -> Any:
        """What the kernels read of every row of a replay; lanes share it."""

    def new_trace(self) -> np.ndarray:
        """[2 + M] for `decide` to fill."""
        trace = np.zeros(2 + self.experts)
        trace[0] = np.nan
        return trace

    def run(self, stream: Stream, lane: Lane, start: int, stop: int) -> None:
        """Play rounds start..stop-1 of a lane in the compiled loop."""
        check_lane(self, stream, lane, start, stop)
        immediate = lane.arrivals is None
        weights = np.zeros((1, 0), dtype=np.float32) if lane.meta_weights is None else lane.meta_weights
        rounds = Rounds(
            lane.order,
            np.zeros((0, 2), dtype=np.int64) if lane.arrivals is None else lane.arrivals,
            immediate,
            self.round - start,
            stream.active_from,
            stream.active_until,
            lane.actions,
            lane.propensities,
            lane.gaps,
            weights,
            self.new_trace(),
        )
        lane.uncertified += int(self.loop(self.parts(lane), self.data(stream), rounds, start, stop))
        self.round += stop - start
