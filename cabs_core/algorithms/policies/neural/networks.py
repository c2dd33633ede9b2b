"""Rounds of the neural policies: lanes in lockstep, networks in torch, the kernels of CABS-D.

The compiled loop (`play`) plays one lane after the other. Here the networks of all lanes predict and train in
one batch of torch operations, which a compiled loop could not call.

A network gives the predictions f_j and the confidence widths. `mixture.decide` and `mixture.learn` do the
rest, the same code as for ridge models: graphs, the exploration program, pruning, realised bias, importance
weights and weights of experts. For every arm they are given a ridge model of a single feature x = 1, whose
coefficient is f_j and whose inverse is the squared width. Before learning, the inverse is set to 1. The
updated model then gives the target y and weight w of the arm's row, since its inverse is 1 / (1 + w) and its
coefficient f + (y - f) w / (1 + w). These rows go into the lane's history, from which networks train by
minibatches.

L lanes, M experts, K arms, d features, h hidden units, B rows of a minibatch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from cabs_core.algorithms.policies import mixture
from cabs_core.algorithms.policies.mixture import (
    ExpertTables,
    Memory,
    MixtureModel,
    MixtureParts,
    MixtureRule,
    new_memory,
    new_mixture_work,
)
from cabs_core.algorithms.policies.surrogates import SurrogateData
from cabs_core.algorithms.regression.neural import LastLayerCovariance, NetworkBatch
from cabs_core.base.compiled.jit import kernel, kernel_part
from cabs_core.base.compiled.rng import normal, uniform

#: random stream of the first weights
START = 10
#: random stream of the minibatches
SAMPLE = 11
#: largest number of experts: expert m draws from the stream NOISE + m, and more would reach the stream START
MAX_EXPERTS = 8
_FIRST_ROWS = 256


@dataclass(frozen=True)
class Shape:
    """Form of a policy's networks and of their training, equal for all lanes of a replay.

    Attributes:
        dim, hidden, arms, experts: d, h, K and M.
        rate: learning rate of Adam. penalty: pull towards the first weights.
        batch: B. updates: Adam steps after every reward. output: prediction of an untrained network.
        wide: indices of the experts that use confidence widths. copies: number of values of gamma_IX.
        device: `cpu` or `cuda`.
    """

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
def _fill_normals(keys: np.ndarray, network: int, out: np.ndarray) -> None:
    """Fill out with the standard normal draws for the first weights of network number `network`."""
    for i in range(out.size):
        out[i] = normal(keys, START, network, i)


@kernel_part
def _lane_parts(parts: MixtureParts, keys: np.ndarray, lane: int) -> MixtureParts:
    """Return one lane's share of parts whose model and memory have an axis of lanes in front."""
    model = parts.model
    memory = parts.memory
    return MixtureParts(
        parts.experts,
        parts.rule,
        keys[lane],
        parts.is_shared,
        parts.is_vaw,
        MixtureModel(
            model.inverse[lane],
            model.theta[lane],
            model.bias[lane],
            model.bias_count[lane],
            model.log_weights[lane],
            model.second_order[lane],
            model.joined[lane],
        ),
        parts.work,
        Memory(
            memory.pmfs[lane],
            memory.mixture[lane],
            memory.baseline[lane],
            memory.reach[lane],
            memory.cover[lane],
        ),
    )


@kernel
def _decide_lanes(
    parts: MixtureParts,
    keys: np.ndarray,
    data: SurrogateData,
    active: np.ndarray,
    rounds: np.ndarray,
    slots: np.ndarray,
    arms: np.ndarray,
    chances: np.ndarray,
    traces: np.ndarray,
) -> None:
    """Let every lane decide on its row of the data; fill arms and chances [L] and traces [L, 2 + weights]."""
    for lane in range(arms.size):
        arms[lane], chances[lane] = mixture.decide(
            _lane_parts(parts, keys, lane), data, lane, active[lane], rounds[lane], slots[lane], traces[lane]
        )


@kernel
def _learn_lanes(
    parts: MixtureParts,
    keys: np.ndarray,
    data: SurrogateData,
    x: np.ndarray,
    arms: np.ndarray,
    due: np.ndarray,
    slots: np.ndarray,
    counts: np.ndarray,
    history_x: np.ndarray,
    history_y: np.ndarray,
    history_w: np.ndarray,
) -> None:
    """Let lanes with due[lane] learn an outcome.

    Biases and experts' weights are updated, and the histories of these lanes get a row.
    """
    values = parts.model.theta
    squares = parts.model.inverse
    for lane in range(values.shape[0]):
        if not due[lane]:
            continue
        n = counts[lane]
        for m in range(values.shape[1]):
            for j in range(values.shape[2]):
                squares[lane, m, j, 0, 0] = 1.0
                history_y[lane, n, m, j] = values[lane, m, j, 0]
        mixture.learn(_lane_parts(parts, keys, lane), data, lane, arms[lane], slots[lane])
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
    """Fill minibatches x [L M, B, d], y and w [L M, B, K] by draws with replacement from the histories.

    Args:
        counts: [L], rows of each history. update: number of this minibatch among the `updates` of a reward.
    """
    lanes = history_y.shape[0]
    experts = history_y.shape[2]
    for lane in range(lanes):
        for b in range(x.shape[1]):
            row = 0
            if counts[lane] > 0:
                u = uniform(keys[lane], SAMPLE, counts[lane] * updates + update, b)
                row = int(u * counts[lane])
            for m in range(experts):
                place = lane * experts + m
                for i in range(x.shape[2]):
                    x[place, b, i] = history_x[lane, row, i]
                for j in range(y.shape[2]):
                    y[place, b, j] = history_y[lane, row, m, j]
                    w[place, b, j] = history_w[lane, row, m, j]


_LEARNT = ("bias", "bias_count", "log_weights", "second_order", "joined")
_NETS = ("flat", "start", "first", "second", "steps")
_HISTORY = ("history_x", "history_y", "history_w")


class NeuralLanes:
    """The state of L lanes (a policy that serves is one lane) and the rounds that they play together.

    Attributes:
        shape: form of the networks. experts, rule: rules of the experts and of their mixture.
        keys: uint64 [L, purposes, 2]. model: as `MixtureModel` with one feature and lanes in front.
        counts: int64 [L], rows of the histories. history: x [L, N, d], y and w [L, N, M, K], with room for
            more rows. arms, chances (probabilities of the arms) [L] and traces [L, 2 + weights]: results of
            `decide`. A trace holds the gap of the last exploration program, 1 if a program was not certified
            and otherwise 0, and, if M > 1, the weights of the experts.
    """

    def __init__(
        self,
        shape: Shape,
        experts: ExpertTables,
        rule: MixtureRule,
        keys: np.ndarray,
        states: Sequence[Mapping[str, np.ndarray]],
    ) -> None:
        self.shape = shape
        self.experts = experts
        self.rule = rule
        self.keys = np.ascontiguousarray(keys, dtype=np.uint64)
        lanes = len(states)
        m = shape.experts
        k = shape.arms
        d = shape.dim
        networks = [{name: s[name][i] for name in _NETS} for s in states for i in range(m)]
        self.nets = NetworkBatch.join(d, shape.hidden, k, networks, device=shape.device)
        self.widths = None
        if shape.wide:
            inverse = np.concatenate([s["widths"] for s in states])
            self.widths = LastLayerCovariance(inverse, shape.penalty, device=shape.device)

        def stacked(name: str) -> np.ndarray:
            return np.stack([np.array(s[name], dtype=np.float64) for s in states])

        self.model = MixtureModel(
            np.zeros((lanes, m, k, 1, 1)), np.zeros((lanes, m, k, 1)), *(stacked(name) for name in _LEARNT)
        )
        self.counts = np.array([len(s["history_x"]) for s in states], dtype=np.int64)
        room = max(_FIRST_ROWS, int(self.counts.max()) + 1)
        self.history = (
            np.zeros((lanes, room, d)),
            np.zeros((lanes, room, m, k)),
            np.zeros((lanes, room, m, k)),
        )
        for i, lane_state in enumerate(states):
            for array, name in zip(self.history, _HISTORY, strict=True):
                array[i, : self.counts[i]] = lane_state[name]
        self._work = new_mixture_work(experts, shape.copies, k, 1)
        # linear policies may share one matrix among their arms to save time; here every arm has its own model
        self._no = np.zeros(m, dtype=np.bool_)
        self.memory = self.slots(1)
        self.arms = np.zeros(lanes, dtype=np.int64)
        self.chances = np.zeros(lanes)
        self.traces = np.zeros((lanes, 2 + (m if m > 1 else 0)))
        b = shape.batch
        self._batch = (np.zeros((lanes * m, b, d)), np.zeros((lanes * m, b, k)), np.zeros((lanes * m, b, k)))
        self._wide: torch.Tensor | None = None
        if shape.wide and len(shape.wide) < m:
            index = [lane * m + e for lane in range(lanes) for e in shape.wide]
            self._wide = torch.as_tensor(index, device=shape.device)
        self._seen: torch.Tensor | None = None

    @property
    def lanes(self) -> int:
        """Number of lanes L."""
        return len(self.counts)

    @staticmethod
    def fresh(shape: Shape, keys: np.ndarray) -> dict[str, np.ndarray]:
        """Return the state of one lane before its first round, for its keys uint64 [purposes, 2]."""
        m = shape.experts
        k = shape.arms
        flats = []
        normals = np.empty(shape.dim * shape.hidden + shape.hidden * k)
        for i in range(m):
            _fill_normals(keys, i, normals)
            flats.append(NetworkBatch.initial(shape.dim, shape.hidden, k, normals, shape.output))
        flat = np.stack(flats)
        state = {
            "flat": flat,
            "start": flat.copy(),
            "first": np.zeros_like(flat),
            "second": np.zeros_like(flat),
            "steps": np.zeros(m, dtype=np.int64),
            "bias": np.zeros((m, k)),
            "bias_count": np.zeros((m, k)),
            "log_weights": np.zeros(m * shape.copies),
            "second_order": np.zeros(1),
            "joined": np.zeros(k),
            "history_x": np.zeros((0, shape.dim)),
            "history_y": np.zeros((0, m, k)),
            "history_w": np.zeros((0, m, k)),
        }
        if shape.wide:
            one = LastLayerCovariance.initial(shape.hidden, k, shape.penalty)
            state["widths"] = np.stack([one] * len(shape.wide))
        return state

    def part(self, lane: int) -> dict[str, np.ndarray]:
        """Return the state of one lane, from which another NeuralLanes can continue."""
        m = self.shape.experts
        state = self.nets.arrays(slice(lane * m, (lane + 1) * m))
        for name in _LEARNT:
            state[name] = getattr(self.model, name)[lane].copy()
        for name, array in zip(_HISTORY, self.history, strict=True):
            state[name] = array[lane, : int(self.counts[lane])].copy()
        if self.widths is not None:
            w = len(self.shape.wide)
            state["widths"] = self.widths.inverse[lane * w : (lane + 1) * w].cpu().numpy().copy()
        return state

    def slots(self, slots: int) -> Memory:
        """Return empty memory with this number of slots and an axis of lanes in front."""
        return new_memory(self.experts, (self.lanes, slots), self.shape.arms)

    def _forward(self, x: np.ndarray) -> torch.Tensor:
        """Write predictions at contexts x [L, d] into the model; return hidden units [L W, h].

        W is the number of networks with widths, or M if no network has any.
        """
        m = self.shape.experts
        inputs = torch.from_numpy(np.repeat(x, m, axis=0)).to(self.shape.device)
        hidden, out = self.nets.forward(inputs[:, None, :])
        self.model.theta[...] = out[:, 0].cpu().numpy().reshape(self.lanes, m, self.shape.arms, 1)
        if self._wide is None:
            return hidden[:, 0]
        return hidden[self._wide, 0]

    def parts(self, memory: Memory) -> MixtureParts:
        """Return the arguments of the kernels for all lanes."""
        return MixtureParts(
            experts=self.experts,
            rule=self.rule,
            keys=self.keys[0],
            is_shared=self._no,
            is_vaw=self._no,
            model=self.model,
            work=self._work,
            memory=memory,
        )

    def decide(
        self,
        x: np.ndarray,
        data: SurrogateData,
        active: np.ndarray,
        rounds: np.ndarray,
        memory: Memory,
        slots: np.ndarray,
    ) -> None:
        """Let every lane play a round; results are in `arms`, `chances`, `traces` and the memory slots.

        Args:
            x: [L, d]. data: a row for every lane, with one feature, 1. active: bool [L, K].
            rounds, slots: int64 [L].
        """
        hidden = self._forward(x)
        self._seen = hidden
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
        data: SurrogateData,
        arms: np.ndarray,
        due: np.ndarray,
        memory: Memory,
        slots: np.ndarray,
        sees_all_arms: bool = False,
        is_new_context: bool = True,
    ) -> None:
        """Let lanes with due [L] learn the outcome of one of their decisions, then train their networks.

        Args:
            x, data: as for `decide`, of the decisions whose outcomes come. arms: [L], which they played.
            memory, slots: memory of these decisions.
            sees_all_arms: True if the targets of all arms are observed (NaN for one that is not). Biases and
                weights of the experts then stay as they are.
            is_new_context: False if x is the context of the last `decide`, whose hidden units are kept.
        """
        if is_new_context or self._seen is None:
            hidden = self._forward(x)
        else:
            hidden = self._seen
        self._seen = None
        self._make_room()
        if sees_all_arms:
            for lane in np.flatnonzero(due):
                self._add_row_of_all_arms(lane, x[lane], data.targets[lane])
        else:
            _learn_lanes(self.parts(memory), self.keys, data, x, arms, due, slots, self.counts, *self.history)
        are_all_due = bool(due.all())
        if self.widths is not None:
            if self._wide is None:
                repeat = self.shape.experts
            else:
                repeat = len(self.shape.wide)
            played = torch.from_numpy(np.repeat(arms, repeat)).to(self.shape.device)
            mask = None
            if not are_all_due:
                mask = torch.from_numpy(np.repeat(due, repeat)).to(self.shape.device)
            self.widths.observe(hidden, played, mask)
        self._train(due, are_all_due)

    def _add_row_of_all_arms(self, lane: np.integer, x: np.ndarray, targets: np.ndarray) -> None:
        """Add a row to a lane's history in which every arm with a target [K] that is not NaN has weight 1."""
        n = self.counts[lane]
        is_known = np.isfinite(targets)
        self.history[0][lane, n] = x
        self.history[1][lane, n, :] = np.where(is_known, targets, 0.0)
        self.history[2][lane, n, :] = is_known
        self.counts[lane] += 1

    def _make_room(self) -> None:
        """Double the room of the histories if one is full."""
        rows = self.history[0].shape[1]
        if int(self.counts.max()) + 1 > rows:
            x, y, w = (np.concatenate([a, np.zeros_like(a)], axis=1) for a in self.history)
            self.history = (x, y, w)

    def _train(self, due: np.ndarray, are_all_due: bool) -> None:
        """Take the Adam steps of one reward on the networks of lanes with due [L]."""
        shape = self.shape
        device = torch.device(shape.device)
        observed = torch.from_numpy(np.repeat(self.counts.astype(np.float64), shape.experts)).to(device)
        active = None
        if not are_all_due:
            active = torch.from_numpy(np.repeat(due, shape.experts)).to(device)
        for update in range(shape.updates):
            _draw_batches(self.keys, self.counts, update, shape.updates, *self.history, *self._batch)
            x, y, w = (torch.from_numpy(v).to(device) for v in self._batch)
            self.nets.step(x, y, w, shape.rate, shape.penalty, observed, active)
