"""Neural policies: `neural_ucb`, `neural_ucb_full`, and the base of the neural CABS policies (`neural.cabs`).

One network per policy (per expert in CABS-D) maps the context to the utility of every arm: 64 hidden ReLU
units, Adam at 1e-3, lambda 1e-3 (paper, appendix "Implementation Details"). After every reward the network
takes `updates` Adam steps on minibatches of all rows seen so far. Exploration bonuses use the last layer's
features, as in NeuralUCB (Zhou et al. 2020).

In replay the trials advance in lockstep as batched torch tensors (`lanes`); online use is one lane of the
same code. Results are those of the CPU in float64; on a GPU sums are in another order, so runs agree closely
at first and part when a near tie falls the other way.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from cabs_core.algorithms.policies import state as states
from cabs_core.algorithms.policies.linear import kernel_arrays
from cabs_core.algorithms.policies.linear.expert_policy import Expert, ExpertPolicy, ModelOptions, expert
from cabs_core.algorithms.policies.neural.lanes import MAX_EXPERTS, NeuralLanes, Shape
from cabs_core.algorithms.policies.play import Lane, LoopPolicy, Stream, check_lane
from cabs_core.algorithms.policies.policy import PolicyOptions
from cabs_core.algorithms.policies.request import Choice, Decision, Offline, Outcome, Request
from cabs_core.base.errors import PolicyError


class NeuralOptions(PolicyOptions):
    """The networks and their training.

    hidden: hidden units; learning_rate: Adam's; penalty: lambda, pulls weights towards their initial values
    and sets the initial covariances of the widths. batch, updates: rows of a minibatch and Adam steps after
    every reward. output: what an untrained network predicts.
    device: cpu, cuda or auto (cuda where there is one and 64 networks or more make it worth its latency).
    target: utility: networks learn the clipped utility at one rho, as in the paper; score: they learn the
    score and serve every rho (predictions times (1 - rho chat)+).
    """

    hidden: int = Field(64, ge=1, le=4096)
    learning_rate: float = Field(1e-3, gt=0, le=1)
    penalty: float = Field(1e-3, gt=0)
    batch: int = Field(32, ge=1, le=4096)
    updates: int = Field(1, ge=1, le=100)
    output: float = Field(0.0, ge=0, le=1)
    device: Literal["cpu", "cuda", "auto"] = "auto"
    target: Literal["utility", "score"] = "utility"


def neural_expert(kind: str, **options: float) -> Expert:
    """An expert whose predictions come from a network."""
    return expert(kind, ModelOptions(), **options)


class NeuralPolicy(ExpertPolicy, LoopPolicy):
    """Base: one or more experts with a network each, exactly as `LinearPolicy` has ridge models.

    Its rounds are not those of `rounds`: the networks of all trials decide and train as one batch of tensors.
    """

    Settings: ClassVar = NeuralOptions

    def prepare(self) -> None:
        """Experts and rules from the options.

        Raises:
            PolicyError: too many experts.
        """
        super().prepare()
        if len(self._experts) > MAX_EXPERTS:
            raise PolicyError(f"{self.name}: at most {MAX_EXPERTS} experts, got {len(self._experts)}")
        # linear policies may share one matrix among their arms to save time; here every arm has its own model
        self.rules.experts["shared"] = 0

    def start(self, offline: Offline | None) -> None:
        self.resized()
        self.core = self._lanes([NeuralLanes.fresh(self._shape(), self.keys)], self.keys[None])

    def _width(self) -> int:
        """The prediction alone (`lanes`)."""
        return 1

    def _shape(self, lanes: int = 1, arms: int | None = None) -> Shape:
        o = self.settings
        wide = tuple(i for i, e in enumerate(self._experts) if e.options.alpha > 0 or e.options.v > 0)
        return Shape(
            self.dim,
            o.hidden,
            arms or len(self.arms),
            o.learning_rate,
            o.penalty,
            o.batch,
            o.updates,
            o.output,
            wide,
            self.rules.mixture.copies,
            len(self._experts),
            _device(o.device, lanes * len(self._experts)),
        )

    def _lanes(
        self, states: Sequence[Mapping[str, np.ndarray]], keys: np.ndarray, arms: int | None = None
    ) -> NeuralLanes:
        return NeuralLanes(self._shape(len(states), arms), self.rules, keys, states)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        return self.core.part(0), {"gamma_ix": self.rules.mixture.gamma_ix}

    def layout(self) -> dict[str, states.Field]:
        shape, s = self._shape(), states.learnt
        m, k, d, h = shape.experts, shape.arms, shape.dim, shape.hidden
        size = d * h + h + h * k + k
        fields = {
            "flat": s(m, size),
            "start": s(m, size),
            "first": s(m, size),
            "second": s(m, size, low=0.0),
            "steps": s(m, low=0, high=states.MOST_ROUNDS, dtype=states.I8),
            "bias": s(m, k),
            "bias_count": s(m, k, low=0.0),
            "log_weights": s(m * shape.copies, high=0.0),
            "scalars": s(2, low=0.0),
            "joined": s(k, low=0.0),
            "history_x": s("rows", d),
            "history_y": s("rows", m, k),
            "history_w": s("rows", m, k, low=0.0),
        }
        if shape.wide:
            fields["widths"] = s(len(shape.wide), k, h + 1, h + 1)
        return fields

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        self._set_gamma(values)
        self.core = self._lanes([arrays], self.keys[None])

    def add_arm(self) -> None:
        """A new output of every network, untrained."""
        self._resize(list(range(len(self.arms))), 1)

    def remove_arm(self, index: int) -> None:
        self._resize([i for i in range(len(self.arms)) if i != index], 0)

    @property
    def can_resemble(self) -> bool:
        return True

    def resemble(self, arm: int, margin: float) -> None:
        """Start the last arm at the prediction of arm `arm`, with the certainty of a few rounds."""
        self.core.nets.copy_output(arm, margin if self.target == "utility" else 1.0)
        if self.core.widths is not None:
            self.core.widths.copy_arm(arm)

    def _resize(self, keep: Sequence[int], added: int) -> None:
        core, o = self.core, self.settings
        state = core.part(0)
        nets = core.nets.resize_arms(keep, added, o.output)
        state |= nets.arrays(slice(None))
        if core.widths is not None:
            core.widths.resize(keep, added)
            state["widths"] = core.widths.inverse.cpu().numpy()
        for name in ("bias", "bias_count", "history_y", "history_w"):
            old = state[name][..., list(keep)]
            new = np.concatenate([old, np.zeros((*old.shape[:-1], added))], axis=-1)
            # C order: another layout would compile the kernels anew
            state[name] = np.ascontiguousarray(new)
        state["joined"] = np.append(state["joined"][list(keep)], np.full(added, float(self.round)))
        self.core = self._lanes([state], self.keys[None], len(keep) + added)

    def choose(self, request: Request) -> Choice:
        """One round; the decision remembers context and probabilities for its update."""
        inputs, core = self._inputs(request), self.core
        zero = np.zeros(1, dtype=np.int64)
        core.decide(
            inputs.x[None],
            self._request(inputs),
            inputs.mask[None],
            np.array([self.round]),
            core.memory,
            zero,
        )
        arm, memory = int(core.arms[0]), [value[0, 0] for value in core.memory]
        pmf = np.eye(len(self.arms))[arm] if self.rules.mixture.greedy else core.memory.mixture[0, 0].copy()
        facts = self._facts(inputs, core.traces[0].copy(), memory)
        return Choice(arm, float(core.chances[0]), pmf, inputs.rho, facts, inputs.surrogate)

    def learn(self, decision: Decision, outcome: Outcome) -> None:
        data, past = self._feedback(decision, outcome)
        self.core.learn(
            outcome.memory["context"][None],
            data,
            np.array([outcome.arm]),
            np.array([True]),
            kernel_arrays.Memory(*(value[None] for value in past)),
            np.zeros(1, dtype=np.int64),
            self.full_feedback,
        )

    def run(self, stream: Stream, lane: Lane, start: int, stop: int) -> None:
        """Play rounds start..stop-1 of a lane on its own."""
        self.run_lanes([self], stream, [lane], start, stop, threads=1)

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
        """All lanes in lockstep; `threads` changes nothing."""
        import torch  # noqa: PLC0415  (seconds, and a replay alone needs it)

        for policy, lane in zip(policies, lanes, strict=True):
            check_lane(policy, stream, lane, start, stop)
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            _play(policies, stream, lanes, start, stop)
        finally:
            torch.set_num_threads(before)


def _device(name: str, networks: int) -> str:
    if name == "cpu":
        return "cpu"
    import torch  # noqa: PLC0415  (seconds, and a replay alone needs it)

    if not torch.cuda.is_available():
        if name == "cuda":
            raise PolicyError("option device is 'cuda', but torch sees no GPU; use 'cpu' or 'auto'")
        return "cpu"
    return "cuda" if name == "cuda" or networks >= 64 else "cpu"


def _play(
    policies: Sequence[NeuralPolicy], stream: Stream, lanes: Sequence[Lane], start: int, stop: int
) -> None:
    first = policies[0]
    core = first._lanes([p.core.part(0) for p in policies], np.stack([p.keys for p in policies]))
    count = len(lanes)
    table = first.data(stream)
    ones = np.ones((count, 1))
    delayed = lanes[0].arrivals is not None
    memory, zeros = core.memory, np.zeros(count, dtype=np.int64)
    if delayed:
        # decisions of earlier chunks may still wait, so their memory stays with the lanes
        late = core.slots(len(lanes[0].order))
        for i, lane in enumerate(lanes):
            for slots, stored in zip(late, lane.memory or ()):
                slots[i] = stored
            lane.memory = kernel_arrays.Memory(*(slots[i] for slots in late))
        memory = late
    everyone = np.ones(count, dtype=np.bool_)
    offset = np.array([p.round for p in policies]) - start
    pointers = [0 if a is None else int(np.searchsorted(a[:, 0], start)) for a in (x.arrivals for x in lanes)]
    for t in range(start, stop):
        rows = np.array([lane.order[t] for lane in lanes])
        active = np.tile(stream.active(t), (count, 1))
        slots = np.full(count, t) if delayed else zeros
        data = kernel_arrays.LinearData(ones, *(values[rows] for values in table[1:]))
        core.decide(stream.contexts[rows], data, active, offset + t, memory, slots)
        for i, lane in enumerate(lanes):
            lane.actions[t], lane.propensities[t] = core.arms[i], core.chances[i]
            lane.gaps[t] = core.traces[i, 0]
            lane.uncertified += int(core.traces[i, 1])
            if lane.meta_weights is not None:
                lane.meta_weights[t] = core.traces[i, 2:]
        if not delayed:
            arms = core.arms.copy()
            core.learn(
                stream.contexts[rows], data, arms, everyone, memory, slots, first.full_feedback, again=False
            )
            continue
        while True:
            # one reward of every lane that has one, until no lane has any left
            past, due = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.bool_)
            for i, lane in enumerate(lanes):
                p = pointers[i]
                assert lane.arrivals is not None
                if p < len(lane.arrivals) and lane.arrivals[p, 0] == t:
                    past[i], due[i] = lane.arrivals[p, 1], True
                    pointers[i] += 1
            if not due.any():
                break
            rows = np.array([lane.order[past[i]] for i, lane in enumerate(lanes)])
            arms = np.array([lane.actions[past[i]] for i, lane in enumerate(lanes)])
            data = kernel_arrays.LinearData(ones, *(values[rows] for values in table[1:]))
            core.learn(stream.contexts[rows], data, arms, due, memory, past, first.full_feedback)
    for i, policy in enumerate(policies):
        policy.core = policy._lanes([core.part(i)], policy.keys[None])
        policy.round += stop - start


class NeuralUCBOptions(NeuralOptions):
    """Settings of `neural_ucb`.

    alpha: weight of the width sqrt(lambda phi'A^-1 phi); 0: greedy. .1 was chosen on validation.
    """

    alpha: float = Field(0.1, ge=0)


class NeuralUCB(NeuralPolicy):
    """`neural_ucb` (Zhou et al. 2020): argmax of prediction plus alpha times the width.

    `neural_ucb_full` learns from every arm's reward, with alpha 0 as in the paper: an upper bound.
    """

    Settings: ClassVar = NeuralUCBOptions

    def __init__(self, name: str, **keywords: Any) -> None:
        self.full_feedback = name.split("@")[0] == "neural_ucb_full"
        super().__init__(name, **keywords)

    @classmethod
    def defaults(cls, base: str) -> dict[str, Any]:
        """No exploration where everything is observed."""
        return {"alpha": 0.0} if base == "neural_ucb_full" else {}

    def expert_list(self) -> list[Expert]:
        return [neural_expert("lin_ucb", alpha=self.settings.alpha)]
