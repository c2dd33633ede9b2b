"""Neural policies: `neural_ucb`, `neural_ucb_full`, `cabs_c_neural`, `cabs_d_neural` (paper, section "From
linear to neural bandits").

One network per policy (per expert in CABS-D) maps the context to the utility of every arm: 64 hidden ReLU
units, Adam at 1e-3, lambda 1e-3 (paper, appendix "Implementation Details"). After every reward the network
takes `updates` Adam steps on minibatches of all rows seen so far. Exploration bonuses use the last layer's
features, as in NeuralUCB (Zhou et al. 2020): the squared width of arm j is lambda phi'A_j^-1 phi.

The algorithms, options, presets and readings of the CABS policies are those of `cabs_c` and `cabs_d`. Only
the regression differs. A row that a ridge model would see with weight w and target y enters the network's
history with that weight and target. No step of CABS-C needs the regression's confidence widths. CABS-D's
standard expert is a neural bandit: neural_ts by default (Thompson sampling on the last layer's widths, the
counterpart of lin_ts), square_cb as in the paper, neural_ucb or epsilon_greedy.

In a replay the trials advance in lockstep as batched torch tensors (`networks`). A policy that serves is one
lane of the same code. Results are those of the CPU in float64. On a GPU sums are in another order, so runs
agree closely at first and part when a near tie falls the other way.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, ValidationError

from cabs_core.algorithms.policies import cabs_c, cabs_d
from cabs_core.algorithms.policies import state as states
from cabs_core.algorithms.policies.cabs_c import CabsCOptions, cabs_c_rule
from cabs_core.algorithms.policies.cabs_d import (
    BANDITS,
    CabsDOptions,
    Decoupled,
    ExpertSpec,
    MixturePolicy,
    bandit_rule,
)
from cabs_core.algorithms.policies.mixture import Expert, LinTSRule, LinUCBRule, Memory, MixtureRule
from cabs_core.algorithms.policies.neural.networks import MAX_EXPERTS, NeuralLanes, Shape
from cabs_core.algorithms.policies.play import Lane, LoopPolicy, Stream, check_lane
from cabs_core.algorithms.policies.policy import PolicyOptions
from cabs_core.algorithms.policies.request import Choice, Decision, Offline, Outcome, Request
from cabs_core.algorithms.policies.ridge_policy import ModelOptions
from cabs_core.algorithms.policies.surrogates import SurrogateData, memory_after_redraw
from cabs_core.base.errors import PolicyError, first_fault


class NeuralOptions(PolicyOptions):
    """Options of the networks and their training.

    hidden: number of hidden units. learning_rate: of Adam.
    penalty: lambda, which pulls weights towards their initial values and sets the initial covariances of the
        widths.
    batch: rows of a minibatch. updates: Adam steps after every reward.
    output: prediction of an untrained network.
    device: `cpu`, `cuda`, or `auto`: cuda if there is one and 64 networks or more make it worth its latency.
    target: `utility`: networks learn the clipped utility at one rho, as in the paper. `score`: they learn the
        score and serve every rho. The predicted utility is then score max(0, 1 - rho c) at predicted cost c.
    """

    hidden: int = Field(64, ge=1, le=4096)
    learning_rate: float = Field(1e-3, gt=0, le=1)
    penalty: float = Field(1e-3, gt=0)
    batch: int = Field(32, ge=1, le=4096)
    updates: int = Field(1, ge=1, le=100)
    output: float = Field(0.0, ge=0, le=1)
    device: Literal["cpu", "cuda", "auto"] = "auto"
    target: Literal["utility", "score"] = "utility"


def neural_expert(rule: Any) -> Expert:
    """Return an expert with this rule whose predictions come from a network."""
    return Expert(rule, ModelOptions())


class NeuralPolicy(MixturePolicy, LoopPolicy):
    """Base of the policies of one or more experts with a network each.

    Attributes:
        core: the networks and all other learnt state, as one lane.
    """

    Settings: ClassVar = NeuralOptions

    def prepare(self) -> None:
        """Derive experts and rules from the options.

        Raises:
            PolicyError: too many experts.
        """
        super().prepare()
        if len(self.members) > MAX_EXPERTS:
            raise PolicyError(f"{self.name}: at most {MAX_EXPERTS} experts, got {len(self.members)}")

    def start(self, offline: Offline | None) -> None:
        """Start with random weights; the train split is not used."""
        self.resized()
        self.core = self._lanes([NeuralLanes.fresh(self._shape(), self.keys)], self.keys[None])

    def context_width(self) -> int:
        """Return 1: the kernels see the prediction of a network as a ridge model of the single feature 1."""
        return 1

    def _shape(self, lanes: int = 1, arms: int | None = None) -> Shape:
        """Return the form of the networks for so many lanes and arms (by default the policy's arms)."""
        options = self.settings
        wide = []
        for m, expert in enumerate(self.members):
            rule = expert.rule
            is_ucb = isinstance(rule, LinUCBRule) and rule.alpha > 0
            is_ts = isinstance(rule, LinTSRule) and rule.v > 0
            if is_ucb or is_ts:
                wide.append(m)
        experts = len(self.members)
        return Shape(
            dim=self.dim,
            hidden=options.hidden,
            arms=arms or len(self.arms),
            rate=options.learning_rate,
            penalty=options.penalty,
            batch=options.batch,
            updates=options.updates,
            output=options.output,
            wide=tuple(wide),
            copies=self.rule.copies,
            experts=experts,
            device=_device(options.device, lanes * experts),
        )

    def _lanes(
        self, states: Sequence[Mapping[str, np.ndarray]], keys: np.ndarray, arms: int | None = None
    ) -> NeuralLanes:
        """Return lanes with these states and keys [L, purposes, 2]."""
        return NeuralLanes(self._shape(len(states), arms), self.tables, self.rule, keys, states)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the arrays of `layout` (networks, mixture and history of rows), and {`gamma_ix`: number}."""
        return self.core.part(0), {"gamma_ix": self.rule.gamma_ix}

    def layout(self) -> dict[str, states.Field]:
        """Return {name: field} of the arrays of `state`, by which a saved state is checked.

        A field states the shape, type and range of an array.
        """
        shape = self._shape()
        m = shape.experts
        k = shape.arms
        size = shape.dim * shape.hidden + shape.hidden + shape.hidden * k + k
        fields = {
            "flat": states.learnt(m, size),
            "start": states.learnt(m, size),
            "first": states.learnt(m, size),
            "second": states.learnt(m, size, low=0.0),
            "steps": states.learnt(m, low=0, high=states.MOST_ROUNDS, dtype=states.I8),
            "bias": states.learnt(m, k),
            "bias_count": states.learnt(m, k, low=0.0),
            "log_weights": states.learnt(m * shape.copies, high=0.0),
            "second_order": states.learnt(1, low=0.0),
            "joined": states.learnt(k, low=0.0),
            "history_x": states.learnt("rows", shape.dim),
            "history_y": states.learnt("rows", m, k),
            "history_w": states.learnt("rows", m, k, low=0.0),
        }
        if shape.wide:
            fields["widths"] = states.learnt(len(shape.wide), k, shape.hidden + 1, shape.hidden + 1)
        return fields

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        self.restore_gamma(values)
        self.core = self._lanes([arrays], self.keys[None])

    def add_arm(self) -> None:
        """Add an untrained output to every network."""
        self._resize(list(range(len(self.arms))), 1)

    def remove_arm(self, index: int) -> None:
        self._resize([i for i in range(len(self.arms)) if i != index], 0)

    @property
    def can_resemble(self) -> bool:
        """Always True: a new arm can start from the prediction of any other arm (`resemble`)."""
        return True

    def resemble(self, arm: int, margin: float) -> None:
        """Start the last arm at the prediction of arm `arm`, with the certainty of a few rounds.

        A prediction of utility is multiplied by `margin`.
        """
        self.core.nets.copy_output(arm, margin if self.target == "utility" else 1.0)
        if self.core.widths is not None:
            self.core.widths.copy_arm(arm)

    def _resize(self, keep: Sequence[int], added: int) -> None:
        """Keep the arms with the indices `keep` and add `added` untrained arms at the end."""
        core = self.core
        state = core.part(0)
        nets = core.nets.resize_arms(keep, added, self.settings.output)
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
        """Play one round on the request as a lane of its own."""
        inputs = self.inputs(request)
        core = self.core
        rounds = np.array([self.round])
        slots = np.zeros(1, dtype=np.int64)
        row = self.request_row(inputs)
        core.decide(inputs.x[None], row, inputs.mask[None], rounds, core.memory, slots)
        arm = int(core.arms[0])
        kept = {name: value[0, 0].copy() for name, value in core.memory._asdict().items()}
        memory = self.request_memory(inputs, core.traces[0].copy()) | kept
        pmf = self.played_pmf(arm, kept["mixture"])
        return Choice(arm, float(core.chances[0]), pmf, inputs.rho, memory, inputs.surrogate)

    def learn(self, decision: Decision, outcome: Outcome) -> None:
        row, arrays = self.outcome_row(decision, outcome, Memory._fields)
        self.core.learn(
            outcome.memory["context"][None],
            row,
            np.array([outcome.arm]),
            np.array([True]),
            Memory(*(value[None, None] for value in arrays)),
            np.zeros(1, dtype=np.int64),
            self.full_feedback,
        )

    def redrawn(self, decision: Decision, arm: int, pmf: np.ndarray) -> dict[str, np.ndarray]:
        """Return the memory that the decision would have if `arm` had been drawn from `pmf` [K].

        The array `mixture` becomes `pmf`. If `arm` is not the decision's arm, it reveals only itself, since
        the sampled graphs belong to the decision's arm.
        """
        is_shared = np.zeros(len(self.tables.cabs_c), dtype=np.bool_)
        return memory_after_redraw(decision.memory, decision.arm, arm, pmf, is_shared)

    def run(self, stream: Stream, lane: Lane, start: int, stop: int) -> None:
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
        """Play all lanes in lockstep; `threads` changes nothing."""
        import torch  # noqa: PLC0415  (takes seconds, and only a replay needs it)

        for policy, lane in zip(policies, lanes, strict=True):
            check_lane(policy, stream, lane, start, stop)
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            _Lockstep(policies, stream, lanes, start).play(start, stop)
        finally:
            torch.set_num_threads(before)


def _device(name: str, networks: int) -> str:
    """Return `cpu` or `cuda` for the option `device`, given the number of networks that train together.

    Raises:
        PolicyError: the option is `cuda`, and there is no GPU.
    """
    if name == "cpu":
        return "cpu"
    import torch  # noqa: PLC0415  (takes seconds, and only a replay needs it)

    if not torch.cuda.is_available():
        if name == "cuda":
            raise PolicyError("option device is 'cuda', but torch sees no GPU; use 'cpu' or 'auto'")
        return "cpu"
    if name == "cuda" or networks >= 64:
        return "cuda"
    return "cpu"


class _Lockstep:
    """A replay of lanes whose networks decide and train as one batch.

    Attributes:
        core: the networks of all lanes. late: True if rewards come after their own round; the memory of
            decisions then has a slot for every round.
    """

    def __init__(
        self, policies: Sequence[NeuralPolicy], stream: Stream, lanes: Sequence[Lane], start: int
    ) -> None:
        first = policies[0]
        self.policies = policies
        self.stream = stream
        self.lanes = lanes
        keys = np.stack([p.keys for p in policies])
        self.core = first._lanes([p.core.part(0) for p in policies], keys)
        self.table = first.data(stream)
        self.sees_all_arms = first.full_feedback
        self.late = lanes[0].arrivals is not None
        if self.late:
            self.memory = self._late_memory()
        else:
            self.memory = self.core.memory
        #: decisions of each policy before round 0
        self.offset = np.array([p.round for p in policies]) - start
        #: place of each lane's next arrival
        self.next = [0 if a is None else int(np.searchsorted(a[:, 0], start)) for a in self._arrivals()]

    def _arrivals(self) -> list[np.ndarray | None]:
        """Return `Lane.arrivals` of every lane; None for a lane whose rewards come at once."""
        return [lane.arrivals for lane in self.lanes]

    def _late_memory(self) -> Memory:
        """Return memory with a slot for every round, of which each lane keeps its own part.

        Decisions of earlier calls may still wait for their rewards, so their slots are copied to this memory.
        """
        late = self.core.slots(len(self.lanes[0].order))
        for i, lane in enumerate(self.lanes):
            for slots, stored in zip(late, lane.memory or ()):
                slots[i] = stored
            lane.memory = Memory(*(slots[i] for slots in late))
        return late

    def play(self, start: int, stop: int) -> None:
        """Play rounds start..stop-1 of every lane, and give the learnt state back to the policies."""
        for t in range(start, stop):
            if self.late:
                slots = np.full(len(self.lanes), t)
            else:
                slots = np.zeros(len(self.lanes), dtype=np.int64)
            rows = np.array([lane.order[t] for lane in self.lanes])
            self._decide(t, rows, slots)
            if self.late:
                self._learn_arrivals(t)
            else:
                self._learn_now(rows, slots)
        for i, policy in enumerate(self.policies):
            policy.core = policy._lanes([self.core.part(i)], policy.keys[None])
            policy.round += stop - start

    def _rows(self, rows: np.ndarray) -> SurrogateData:
        """Return rows [L] of the replay's arrays, with the single feature 1."""
        return SurrogateData(np.ones((len(rows), 1)), *(values[rows] for values in self.table[1:]))

    def _decide(self, t: int, rows: np.ndarray, slots: np.ndarray) -> None:
        """Let every lane decide in round t, and record the traces."""
        core = self.core
        active = np.tile(self.stream.active(t), (len(rows), 1))
        contexts = self.stream.contexts[rows]
        core.decide(contexts, self._rows(rows), active, self.offset + t, self.memory, slots)
        for i, lane in enumerate(self.lanes):
            lane.actions[t] = core.arms[i]
            lane.propensities[t] = core.chances[i]
            lane.gaps[t] = core.traces[i, 0]
            lane.uncertified += int(core.traces[i, 1])
            if lane.meta_weights is not None:
                lane.meta_weights[t] = core.traces[i, 2:]

    def _learn_now(self, rows: np.ndarray, slots: np.ndarray) -> None:
        """Let every lane learn the outcome of the round that was just played."""
        self.core.learn(
            self.stream.contexts[rows],
            self._rows(rows),
            self.core.arms.copy(),
            np.ones(len(rows), dtype=np.bool_),
            self.memory,
            slots,
            self.sees_all_arms,
            is_new_context=False,
        )

    def _learn_arrivals(self, t: int) -> None:
        """Let the lanes learn the rewards that arrive at the end of round t, one per lane at a time."""
        while True:
            past = np.zeros(len(self.lanes), dtype=np.int64)
            due = np.zeros(len(self.lanes), dtype=np.bool_)
            for i, arrivals in enumerate(self._arrivals()):
                place = self.next[i]
                assert arrivals is not None
                if place < len(arrivals) and arrivals[place, 0] == t:
                    past[i] = arrivals[place, 1]
                    due[i] = True
                    self.next[i] += 1
            if not due.any():
                return
            rows = np.array([lane.order[past[i]] for i, lane in enumerate(self.lanes)])
            arms = np.array([lane.actions[past[i]] for i, lane in enumerate(self.lanes)])
            contexts = self.stream.contexts[rows]
            self.core.learn(contexts, self._rows(rows), arms, due, self.memory, past, self.sees_all_arms)


class NeuralUCBOptions(NeuralOptions):
    """Options of `neural_ucb`.

    alpha: weight of the width sqrt(lambda phi'A^-1 phi), 0 for none; .1 was chosen on validation data.
    """

    alpha: float = Field(0.1, ge=0)


class NeuralUCB(NeuralPolicy):
    """The policy `neural_ucb` (Zhou et al. 2020), which plays the argmax of prediction plus alpha width.

    `neural_ucb_full` learns from every arm's reward, with alpha 0 as in the paper. It shows the loss of
    utility that bandit feedback causes.
    """

    Settings: ClassVar = NeuralUCBOptions

    def __init__(self, name: str, **keywords: Any) -> None:
        self.full_feedback = name.split("@")[0] == "neural_ucb_full"
        super().__init__(name, **keywords)

    @classmethod
    def defaults(cls, base: str) -> dict[str, Any]:
        """Return {`alpha`: 0} for `neural_ucb_full`, which observes everything, and {} for `neural_ucb`."""
        if base == "neural_ucb_full":
            return {"alpha": 0.0}
        return {}

    def expert_list(self) -> list[Expert]:
        return [neural_expert(LinUCBRule(self.settings.alpha))]


class CabsCNeuralOptions(CabsCOptions, NeuralOptions):
    """Options of `cabs_c_neural`: those of CABS-C (`cabs_c.CabsCOptions`), and of the networks."""


class CabsCNeural(NeuralPolicy):
    """The policy CABS-C (Algorithm 1) with a network as its regression."""

    Settings: ClassVar = CabsCNeuralOptions
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = cabs_c.PRESETS

    def expert_list(self) -> list[Expert]:
        return [neural_expert(cabs_c_rule(self.settings))]

    def mixture_rule(self) -> MixtureRule:
        """Return the rule of a mixture of one expert, which plays the likeliest arm if `play` is `argmax`."""
        return MixtureRule(plays_likeliest=self.settings.play == "argmax")


class CabsDNeuralOptions(CabsDOptions, NeuralOptions):
    """Options of `cabs_d_neural`: those of CABS-D (`cabs_d.CabsDOptions`), and of all networks.

    experts: epsilon_greedy, square_cb, neural_ucb, neural_ts and cabs_c.
    """

    expert_names = ("epsilon_greedy", "square_cb", "neural_ucb", "neural_ts", "cabs_c")
    experts: tuple[ExpertSpec, ...] = (("neural_ts", {}), ("cabs_c", {}))


class _UCBExpertOptions(PolicyOptions):
    alpha: float = Field(0.1, gt=0)


class _TSExpertOptions(PolicyOptions):
    v: float = Field(0.1, gt=0)


class CabsDNeural(Decoupled, NeuralPolicy):
    """The policy CABS-D (Algorithm 2) with a network for every expert."""

    Settings: ClassVar = CabsDNeuralOptions
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        **cabs_d.PRESETS,
        "lin_ucb_expert": {**cabs_d.LIN_UCB_EXPERT, "experts": (("neural_ucb", {}), ("cabs_c", {}))},
    }

    def surrogate_expert(self, options: Mapping[str, Any]) -> Expert:
        """Return the expert CABS-C with these options; its network has the shape of all experts' networks.

        Raises:
            PolicyError: an option belongs to the network, whose options all experts share.
        """
        if set(options) & (set(NeuralOptions.model_fields) - {"target"}):
            raise PolicyError(f"{self.name}: network settings are common to all experts, not {options}")
        name = f"cabs_c_neural@{self.settings.cabs_preset}"
        settings = CabsCNeural.parse(name, {**options, "target": self.settings.target})
        return neural_expert(cabs_c_rule(settings))

    def standard_expert(self, name: str, options: Mapping[str, Any]) -> Expert:
        """Return a neural bandit as an expert. Its options are those of its exploration.

        Raises:
            PolicyError: an option is not one of the expert (options of networks are not), or its value is out
                of range.
        """
        try:
            if name == "neural_ucb":
                return neural_expert(LinUCBRule(_UCBExpertOptions(**options).alpha))
            if name == "neural_ts":
                return neural_expert(LinTSRule(_TSExpertOptions(**options).v))
            foreign = sorted(set(options) & {*ModelOptions.model_fields, "target", "propensity"})
            if foreign:
                raise PolicyError(f"{self.name}: expert {name!r} has no options {foreign}")
            return neural_expert(bandit_rule(name, BANDITS[name].Settings(**options)))
        except ValidationError as error:
            raise PolicyError(f"{self.name}: expert {name!r}, option {first_fault(error)[0]}") from None
