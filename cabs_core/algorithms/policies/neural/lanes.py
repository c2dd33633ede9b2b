"""Rounds of the neural policies: lanes in lockstep, networks in torch, the linear kernels decide.

The compiled loop (`rounds`) plays one lane after the other; here the networks of all lanes predict and train
in one batch, which a compiled loop could not ask for.

A network gives the predictions f_j and the widths; what is played and what is learnt from an outcome (graphs,
the exploration program, pruning, realised bias, importance weights, meta weights) is `experts.decide` and
`learning.learn`, the same code as for linear models. For every arm they are given a linear model of a single
feature x = 1, whose coefficient is f_j and whose inverse is the squared width. Before learning, the inverse
is set to 1; the updated model then gives the target y and weight w of the arm's row, since its inverse is 1 /
(1 + w) and its coefficient f + (y - f) w / (1 + w). These rows go into the lane's history, from which
networks train by minibatches.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cabs_core.algorithms.policies.linear import experts, kernel_arrays, learning
from cabs_core.algorithms.regression.neural import LastLayerCovariance, NetworkBatch
from cabs_core.base.compiled.jit import kernel
from cabs_core.base.compiled.rng import normal, uniform

#: streams of a policy's own: experts use NOISE + m, so there are at most 8 experts
START, SAMPLE = 10, 11
MAX_EXPERTS = 8
_FIRST_ROWS = 256


@dataclass(frozen=True)
class Shape:
    """What the networks of a policy look like and how they train; equal for all lanes of a replay."""

    dim: int
    hidden: int
    arms: int
    rate: float
    penalty: float
    batch: int
    updates: int
    output: float
    wide: tuple[int, ...]
    copies: int
    experts: int
    device: str


@kernel
def _normals(keys: np.ndarray, network: int, out: np.ndarray) -> None:
    for i in range(out.size):
        out[i] = normal(keys, START, network, i)


@kernel
def _lane_memory(memory: kernel_arrays.Memory, lane: int) -> kernel_arrays.Memory:
    return kernel_arrays.Memory(
        memory.reach[lane], memory.pmfs[lane], memory.mixture[lane], memory.cover[lane], memory.baseline[lane]
    )


@kernel
def _lane_parts(parts: kernel_arrays.LinearParts, keys: np.ndarray, lane: int) -> kernel_arrays.LinearParts:
    """One lane's share of parts whose model and memory have an axis of lanes in front."""
    rules, model = parts.rules, parts.model
    return kernel_arrays.LinearParts(
        kernel_arrays.Rules(rules.experts, rules.mixture, keys[lane]),
        kernel_arrays.LinearModel(
            model.inverse[lane],
            model.theta[lane],
            model.bias[lane],
            model.bias_count[lane],
            model.log_weights[lane],
            model.scalars[lane],
            model.joined[lane],
        ),
        parts.scratch,
        _lane_memory(parts.memory, lane),
    )


@kernel
def _decide_lanes(
    parts: kernel_arrays.LinearParts,
    keys: np.ndarray,
    data: kernel_arrays.LinearData,
    active: np.ndarray,
    rounds: np.ndarray,
    slots: np.ndarray,
    arms: np.ndarray,
    chances: np.ndarray,
    traces: np.ndarray,
) -> None:
    """Every lane decides on its row of the data. Fills arms and chances [L] and traces [L, 2 + weights]."""
    for lane in range(arms.size):
        arms[lane], chances[lane] = experts.decide(
            _lane_parts(parts, keys, lane), data, lane, active[lane], rounds[lane], slots[lane], traces[lane]
        )


@kernel
def _learn_lanes(
    parts: kernel_arrays.LinearParts,
    keys: np.ndarray,
    data: kernel_arrays.LinearData,
    x: np.ndarray,
    arms: np.ndarray,
    due: np.ndarray,
    slots: np.ndarray,
    counts: np.ndarray,
    history_x: np.ndarray,
    history_y: np.ndarray,
    history_w: np.ndarray,
) -> None:
    """Lanes with due[lane] learn an outcome: biases, meta weights, the rows of the networks' history."""
    values, squares = parts.model.theta, parts.model.inverse
    for lane in range(values.shape[0]):
        if not due[lane]:
            continue
        for m in range(values.shape[1]):
            for j in range(values.shape[2]):
                squares[lane, m, j, 0, 0] = 1.0
                history_y[lane, counts[lane], m, j] = values[lane, m, j, 0]
        learning.learn(_lane_parts(parts, keys, lane), data, lane, arms[lane], slots[lane])
        n = counts[lane]
        for m in range(values.shape[1]):
            for j in range(values.shape[2]):
                weight = 1.0 / squares[lane, m, j, 0, 0] - 1.0
                before = history_y[lane, n, m, j]
                if weight > 0.0:
                    moved = values[lane, m, j, 0] - before
                    history_y[lane, n, m, j] = before + moved * (1.0 + weight) / weight
                else:
                    history_y[lane, n, m, j] = 0.0
                history_w[lane, n, m, j] = weight
        for i in range(x.shape[1]):
            history_x[lane, n, i] = x[lane, i]
        counts[lane] = n + 1


@kernel
def _draw_batches(
    keys: np.ndarray,
    counts: np.ndarray,
    update: int,
    updates: int,
    history_x: np.ndarray,
    history_y: np.ndarray,
    history_w: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    w: np.ndarray,
) -> None:
    """Minibatches x [L M, B, d], y and w [L M, B, K], drawn with replacement from each lane's history."""
    lanes, experts = history_y.shape[0], history_y.shape[2]
    for lane in range(lanes):
        for b in range(x.shape[1]):
            if counts[lane] > 0:
                u = uniform(keys[lane], SAMPLE, counts[lane] * updates + update, b)
                row = int(u * counts[lane])
            else:
                row = 0
            for m in range(experts):
                place = lane * experts + m
                for i in range(x.shape[2]):
                    x[place, b, i] = history_x[lane, row, i]
                for j in range(y.shape[2]):
                    y[place, b, j] = history_y[lane, row, m, j]
                    w[place, b, j] = history_w[lane, row, m, j]


_LEARNT = ("bias", "bias_count", "log_weights", "scalars", "joined")
_NETS = ("flat", "start", "first", "second", "steps")


class NeuralLanes:
    """The state of L lanes (one online policy is one lane) and the rounds that they play together.

    rules: of any lane; keys uint64 [L, purposes, 2]; model: lanes, then as for one feature.
    """

    def __init__(
        self,
        shape: Shape,
        rules: kernel_arrays.Rules,
        keys: np.ndarray,
        states: Sequence[Mapping[str, np.ndarray]],
    ) -> None:
        self.shape, self.rules = shape, rules
        self.keys = np.ascontiguousarray(keys, dtype=np.uint64)
        lanes, m, k, d = len(states), shape.experts, shape.arms, shape.dim
        parts = [{name: s[name][i] for name in _NETS} for s in states for i in range(m)]
        self.nets = NetworkBatch.join(d, shape.hidden, k, parts, device=shape.device)
        self.widths = None
        if shape.wide:
            inverse = np.concatenate([s["widths"] for s in states])
            self.widths = LastLayerCovariance(inverse, shape.penalty, device=shape.device)

        def stacked(name: str) -> np.ndarray:
            return np.stack([np.array(s[name], dtype=np.float64) for s in states])

        self.model = kernel_arrays.LinearModel(
            np.zeros((lanes, m, k, 1, 1)), np.zeros((lanes, m, k, 1)), *(stacked(name) for name in _LEARNT)
        )
        self.counts = np.array([len(s["history_x"]) for s in states], dtype=np.int64)
        room = max(_FIRST_ROWS, int(self.counts.max()) + 1)
        self.history = (
            np.zeros((lanes, room, d)),
            np.zeros((lanes, room, m, k)),
            np.zeros((lanes, room, m, k)),
        )
        for i, s in enumerate(states):
            for array, name in zip(self.history, ("history_x", "history_y", "history_w"), strict=True):
                array[i, : self.counts[i]] = s[name]
        solves = bool((rules.experts["kind"] == kernel_arrays.CABS_C).any())
        self.scratch = kernel_arrays.scratch(m, k, 1, shape.copies, solves)
        self.memory = self.slots(1)
        self.arms, self.chances = np.zeros(lanes, dtype=np.int64), np.zeros(lanes)
        self.traces = np.zeros((lanes, 2 + (m if m > 1 else 0)))
        b = shape.batch
        self.batch = (np.zeros((lanes * m, b, d)), np.zeros((lanes * m, b, k)), np.zeros((lanes * m, b, k)))
        self._wide = None
        if shape.wide and len(shape.wide) < m:
            index = [lane * m + e for lane in range(lanes) for e in shape.wide]
            self._wide = torch.as_tensor(index, device=shape.device)
        self._seen: Any = None

    @property
    def lanes(self) -> int:
        """Number of lanes L."""
        return len(self.counts)

    @staticmethod
    def fresh(shape: Shape, keys: np.ndarray) -> dict[str, np.ndarray]:
        """State of one lane before its first round."""
        m, k = shape.experts, shape.arms
        flats = []
        normals = np.empty(shape.dim * shape.hidden + shape.hidden * k)
        for i in range(m):
            _normals(keys, i, normals)
            flats.append(NetworkBatch.initial(shape.dim, shape.hidden, k, normals, shape.output))
        flat = np.stack(flats)
        state = {
            "flat": flat,
            "start": flat.copy(),
            "first": np.zeros_like(flat),
            "second": np.zeros_like(flat),
        }
        state |= {"steps": np.zeros(m, dtype=np.int64), "scalars": np.zeros(2), "joined": np.zeros(k)}
        state |= {"bias": np.zeros((m, k)), "bias_count": np.zeros((m, k))}
        state |= {"log_weights": np.zeros(m * shape.copies), "history_x": np.zeros((0, shape.dim))}
        state |= {"history_y": np.zeros((0, m, k)), "history_w": np.zeros((0, m, k))}
        if shape.wide:
            one = LastLayerCovariance.initial(shape.hidden, k, shape.penalty)
            state["widths"] = np.stack([one] * len(shape.wide))
        return state

    def part(self, lane: int) -> dict[str, np.ndarray]:
        """State of one lane, from which another NeuralLanes can continue."""
        m, n = self.shape.experts, int(self.counts[lane])
        state = self.nets.arrays(slice(lane * m, (lane + 1) * m))
        for name in _LEARNT:
            state[name] = getattr(self.model, name)[lane].copy()
        for name, array in zip(("history_x", "history_y", "history_w"), self.history, strict=True):
            state[name] = array[lane, :n].copy()
        if self.widths is not None:
            w = len(self.shape.wide)
            state["widths"] = self.widths.inverse[lane * w : (lane + 1) * w].cpu().numpy().copy()
        return state

    def slots(self, slots: int) -> kernel_arrays.Memory:
        """Memory of decisions: `kernel_arrays.Memory` with an axis of lanes in front."""
        return kernel_arrays.slots((self.lanes, slots), self.shape.experts, self.shape.arms)

    def _forward(self, x: np.ndarray) -> torch.Tensor:
        """Hidden units [L W, h] of the W networks with widths at contexts x [L, d]; fills in predictions."""
        m, k = self.shape.experts, self.shape.arms
        inputs = torch.from_numpy(np.repeat(x, m, axis=0)).to(self.shape.device)
        hidden, out = self.nets.forward(inputs[:, None, :])
        self.model.theta[...] = out[:, 0].cpu().numpy().reshape(self.lanes, m, k, 1)
        return hidden[:, 0] if self._wide is None else hidden[self._wide, 0]

    def parts(self, memory: kernel_arrays.Memory) -> kernel_arrays.LinearParts:
        """What the kernels take, every lane's."""
        return kernel_arrays.LinearParts(self.rules, self.model, self.scratch, memory)

    def decide(
        self,
        x: np.ndarray,
        data: kernel_arrays.LinearData,
        active: np.ndarray,
        rounds: np.ndarray,
        memory: kernel_arrays.Memory,
        slots: np.ndarray,
    ) -> None:
        """Every lane plays a round; results in `arms`, `chances`, `traces` and the memory slots [L].

        x [L, d]; data: a row a lane, with one feature, 1; active bool [L, K]; rounds int64 [L].
        """
        self._seen = hidden = self._forward(x)
        squares = self.model.inverse
        squares[...] = 0.0
        if self.widths is not None:
            values = self.widths.squared_widths(hidden).cpu().numpy()
            values = np.maximum(values, 0.0).reshape(self.lanes, len(self.shape.wide), self.shape.arms)
            for i, expert in enumerate(self.shape.wide):
                squares[:, expert, :, 0, 0] = values[:, i]
        _decide_lanes(
            self.parts(memory), self.keys, data, active, rounds, slots, self.arms, self.chances, self.traces
        )

    def learn(
        self,
        x: np.ndarray,
        data: kernel_arrays.LinearData,
        arms: np.ndarray,
        due: np.ndarray,
        memory: kernel_arrays.Memory,
        slots: np.ndarray,
        everything: bool = False,
        again: bool = True,
    ) -> None:
        """Lanes with due [L] learn the outcome of one of their decisions, then train.

        x, data: as for `decide`, of the decisions that were made; arms [L] were played; everything: the
        targets of all arms are observed (NaN: not); again: whether x is not `decide`'s.
        """
        hidden = self._forward(x) if again or self._seen is None else self._seen
        self._seen = None
        self._room()
        if not everything:
            _learn_lanes(self.parts(memory), self.keys, data, x, arms, due, slots, self.counts, *self.history)
        else:
            for lane in np.flatnonzero(due):
                n = self.counts[lane]
                finite = np.isfinite(data.targets[lane])
                self.history[0][lane, n] = x[lane]
                self.history[1][lane, n, :] = np.where(finite, data.targets[lane], 0.0)
                self.history[2][lane, n, :] = finite
                self.counts[lane] += 1
        every = bool(due.all())
        if self.widths is not None:
            repeat = self.shape.experts if self._wide is None else len(self.shape.wide)
            played = torch.from_numpy(np.repeat(arms, repeat)).to(self.shape.device)
            mask = None if every else torch.from_numpy(np.repeat(due, repeat)).to(self.shape.device)
            self.widths.observe(hidden, played, mask)
        self._train(due, every)

    def _room(self) -> None:
        rows = self.history[0].shape[1]
        if int(self.counts.max()) + 1 > rows:
            x, y, w = (np.concatenate([a, np.zeros_like(a)], axis=1) for a in self.history)
            self.history = x, y, w

    def _train(self, due: np.ndarray, every: bool) -> None:
        shape = self.shape
        device = torch.device(shape.device)
        observed = torch.from_numpy(np.repeat(self.counts.astype(np.float64), shape.experts)).to(device)
        active = None if every else torch.from_numpy(np.repeat(due, shape.experts)).to(device)
        for update in range(shape.updates):
            _draw_batches(self.keys, self.counts, update, shape.updates, *self.history, *self.batch)
            x, y, w = (torch.from_numpy(v).to(device) for v in self.batch)
            self.nets.step(x, y, w, shape.rate, shape.penalty, observed, active)
