"""`cabs_d_linear`: CABS-D, Algorithm 2 of the paper, with every ambiguous point as an option.

Module `reference` has the algorithm line by line in plain NumPy, and is easier to read first.

M experts have distributions p_m over the arms. By default they are LinTS, which uses no surrogates, and
CABS-C (`cabs_c`). Each expert learns in every round. The arm i is drawn from the mixture

    q = sum_m w_m p_m
    w_m proportional to exp(-eta sum of losses)
    loss (1 - r_i) p_m(i) / (q(i) + gamma_IX)

Module `mixture` has the rounds in compiled code. Here are the options, the presets and the policies. The
neural policies (`neural`) are subclasses, with networks in place of the ridge models.

Presets are those of CABS-C. `lin_ucb_expert` is `literal` with LinUCB as the standard expert, which the paper
names as well. Where the paper is silent, the grid of gamma_IX starts at 1 / sqrt(K T) in all presets.

Source: Sridhar, Singh, Mahdavi and Narayanan, Correlation-Aware Contextual Bandits with Surrogate Rewards for
LLM Routing.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator

from cabs_core.algorithms.policies import state as states
from cabs_core.algorithms.policies.cabs_c import CabsC, cabs_c_rule
from cabs_core.algorithms.policies.epsilon_greedy import EpsilonGreedy
from cabs_core.algorithms.policies.lin_ts import LinTS
from cabs_core.algorithms.policies.lin_ucb import LinUCB
from cabs_core.algorithms.policies.mixture import (
    Expert,
    ExpertTables,
    LinTSRule,
    LinUCBRule,
    Memory,
    MixtureModel,
    MixtureParts,
    MixtureRule,
    decide,
    expert_tables,
    learn,
    new_memory,
    new_mixture_work,
)
from cabs_core.algorithms.policies.play import CompiledPolicy, Lane, Stream, round_loop
from cabs_core.algorithms.policies.policy import DEFAULT_HORIZON, PolicyOptions
from cabs_core.algorithms.policies.request import Choice, Decision, Offline, Outcome, Request
from cabs_core.algorithms.policies.ridge_policy import (
    ModelOptions,
    RidgeBandit,
    inverse_of_joined_arm,
    warm_models,
)
from cabs_core.algorithms.policies.square_cb import SquareCB, check_mu
from cabs_core.algorithms.policies.surrogates import SurrogatePolicy, memory_after_redraw
from cabs_core.algorithms.regression.ridge import start_inverse
from cabs_core.base.errors import PolicyError

#: name of an expert, and its options
ExpertSpec = tuple[str, dict[str, Any]]

# -- options -------------------------------------------------------------------------------------------------


class CabsDOptions(PolicyOptions):
    """Options of CABS-D, whatever its regression. Defaults are the preset `practical`.

    experts: two or more experts, each a name or [name, options]. lin_ts enters with the arm that it drew.
    cabs_preset: preset of every cabs_c expert (its options override it).
    meta_loss: `realised`: (1 - r) p_m(i) / (q(i) + gamma_IX) for every expert. `literal`: line 14, in which
        CABS-C's loss also sums over surrogates, which moves weight to the worse expert. `doubly_robust`: the
        loss that the experts' models predict for p_m, corrected by the importance-weighted error at the
        played arm; it is less noisy, so that a larger eta can be used.
    eta: learning rate of the weights. None for line 15, min(gamma_min, sqrt(ln(M L) / (1 + Delta))) for M
        experts with L copies each. It is small, but the weights do move: under the literal loss CABS-C's
        weight falls from one half to about .01 in 3,558 rounds.
    ix_copies: L, number of values of gamma_IX, each twice the one before.
    gamma_ix: the first value of gamma_IX. None for 1 / sqrt(K T).
    target: as in CABS-C, for all experts.
    play: as in CABS-C, for the mixture's q.
    """

    #: names of the experts that exist
    expert_names: ClassVar[tuple[str, ...]] = ()
    experts: tuple[ExpertSpec, ...] = (("lin_ts", {}), ("cabs_c", {}))
    cabs_preset: Literal["practical", "literal", "tuned", "published"] = "practical"
    meta_loss: Literal["realised", "literal", "doubly_robust"] = "realised"
    eta: float | None = Field(0.03, gt=0)
    ix_copies: int = Field(1, ge=1, le=32)
    gamma_ix: float | None = Field(None, gt=0)
    target: Literal["utility", "score"] = "utility"
    play: Literal["sampled", "argmax"] = "sampled"

    @field_validator("experts", mode="before")
    @classmethod
    def _specs(cls, value: Any) -> Any:
        """Return the experts as a tuple of (name, options), with no options for a bare name.

        Raises:
            ValueError: the value is no list or tuple, or names fewer than two experts.
        """
        if not isinstance(value, (list, tuple)) or len(value) < 2:
            raise ValueError("expected two or more experts, each a name or [name, options]")
        specs: list[Any] = []
        for expert in value:
            if isinstance(expert, str):
                specs.append((expert, {}))
            else:
                specs.append(expert)
        return tuple(specs)

    @field_validator("experts")
    @classmethod
    def _known_experts(cls, value: tuple[ExpertSpec, ...]) -> tuple[ExpertSpec, ...]:
        """Return the experts unchanged, or raise ValueError if a name is not in `expert_names`."""
        for name, _ in value:
            if name not in cls.expert_names:
                raise ValueError(f"unknown expert {name!r}; known: {', '.join(cls.expert_names)}")
        return value


#: bandits that can be experts of `cabs_d_linear`
BANDITS: dict[str, type[RidgeBandit]] = {
    "epsilon_greedy": EpsilonGreedy,
    "square_cb": SquareCB,
    "lin_ucb": LinUCB,
    "lin_ts": LinTS,
}


class CabsDLinearOptions(CabsDOptions, ModelOptions):
    """Options of `cabs_d_linear`: those of CABS-D, and the regression of experts without their own.

    experts: epsilon_greedy, square_cb, lin_ucb, lin_ts and cabs_c.
    """

    expert_names = (*BANDITS, "cabs_c")


LITERAL: dict[str, Any] = {
    "experts": (("square_cb", {"gamma": 4.0, "gamma_power": 0.0}), ("cabs_c", {})),
    "cabs_preset": "literal",
    "meta_loss": "literal",
    "eta": None,
    "ix_copies": 8,
}
PUBLISHED: dict[str, Any] = {**LITERAL, "cabs_preset": "published", "play": "argmax"}
LIN_UCB_EXPERT: dict[str, Any] = {**LITERAL, "experts": (("lin_ucb", {}), ("cabs_c", {}))}
#: validation: .4557, against .4519 with the realised loss and eta .03 and .4631 for CABS-C alone
TUNED: dict[str, Any] = {
    "cabs_preset": "tuned",
    "target": "score",
    "meta_loss": "doubly_robust",
    "eta": 0.1,
}
PRESETS: dict[str, dict[str, Any]] = {
    "practical": {},
    "literal": LITERAL,
    "tuned": TUNED,
    "published": PUBLISHED,
    "lin_ucb_expert": LIN_UCB_EXPERT,
}


# -- policies ------------------------------------------------------------------------------------------------


class MixturePolicy(SurrogatePolicy):
    """Base of the policies with one or more experts, whatever their regression.

    Attributes:
        members: the experts, in the order of their weights. tables: rules of the experts.
        rule: how the experts are mixed.
    """

    members: list[Expert]
    tables: ExpertTables
    rule: MixtureRule

    def expert_list(self) -> list[Expert]:
        """Return the experts, in the order of their weights. Subclasses implement this method."""
        raise NotImplementedError

    def mixture_rule(self) -> MixtureRule:
        """Return the rule by which the experts are mixed. The base returns the defaults of `MixtureRule`."""
        return MixtureRule()

    @property
    def experts(self) -> int:
        """Number of expert weights in a decision's trace: the number of experts, or 0 for one expert."""
        if len(self.members) > 1:
            return len(self.members)
        return 0

    def prepare(self) -> None:
        """Set `members`, `tables`, `rule` and `uses_surrogates`, which follow from the options."""
        self.members = self.expert_list()
        self.tables = expert_tables(self.members)
        self.rule = self.mixture_rule()
        self.uses_surrogates = len(self.tables.cabs_c) > 0

    def restore_gamma(self, values: Mapping[str, Any]) -> None:
        """Set gamma_IX of `rule` to that of a saved state, `values["gamma_ix"]`.

        The default depends on the number of arms at the start, so the options do not tell the value.

        Raises:
            PolicyError: the value is no number, or is negative.
        """
        gamma = states.number(self.name, "gamma_ix", values["gamma_ix"], 0.0)
        self.rule = self.rule._replace(gamma_ix=gamma)

    def memory_layout(self, arms: int) -> dict[str, states.Field]:
        """Return {name: field} of the arrays that a decision keeps until its outcome comes.

        They are those of `SurrogatePolicy` and one slot of `Memory`, for this number of arms.
        """
        m = len(self.members)
        c = len(self.tables.cabs_c)
        return super().memory_layout(arms) | {
            "pmfs": states.probabilities(m, arms),
            "mixture": states.probabilities(arms),
            "baseline": states.probabilities(arms),
            "reach": states.probabilities(c, arms),
            "cover": states.probabilities(c, arms),
        }

    def played_pmf(self, arm: int, mixture: np.ndarray) -> np.ndarray:
        """Return the probabilities [K] by which a decision for arm `arm` was drawn.

        They are a copy of the mixture q [K], or 1 for `arm` and 0 for other arms if play is `argmax`.
        """
        pmf: np.ndarray
        if self.rule.plays_likeliest:
            pmf = np.eye(len(self.arms))[arm]
        else:
            pmf = mixture.copy()
        return pmf

    def past(self, arrays: Sequence[np.ndarray]) -> Memory:
        """Return a decision's arrays, in the order of the fields of `Memory`, as a `Memory` with one slot."""
        return Memory(*(value[None] for value in arrays))


def cabs_d_rule(options: CabsDOptions, arms: int, horizon: int | None) -> MixtureRule:
    """Return the rule by which the options of CABS-D mix experts, for this number of arms and rounds.

    The number of rounds counts only if `gamma_ix` is None. A `horizon` of None stands for `DEFAULT_HORIZON`.
    """
    gamma = options.gamma_ix
    if gamma is None:
        gamma = 1.0 / math.sqrt(arms * (horizon or DEFAULT_HORIZON))
    return MixtureRule(
        loss_is_literal=options.meta_loss == "literal",
        loss_is_doubly_robust=options.meta_loss == "doubly_robust",
        eta=options.eta or 0.0,
        gamma_ix=gamma,
        copies=options.ix_copies,
        plays_likeliest=options.play == "argmax",
    )


class Decoupled(MixturePolicy):
    """Base of the CABS-D policies, whatever their regression.

    CABS-D stands for Correlation-Aware Bandits with Surrogates Decoupled (Algorithm 2).
    """

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = PRESETS

    def surrogate_expert(self, options: Mapping[str, Any]) -> Expert:
        """Return a CABS-C expert. Subclasses implement this method.

        The expert's own `options` override those that it takes from the mixture.
        """
        raise NotImplementedError

    def standard_expert(self, name: str, options: Mapping[str, Any]) -> Expert:
        """Return the bandit `name` as an expert. Subclasses implement this method.

        The expert's own `options` override those that it takes from the mixture.
        """
        raise NotImplementedError

    def expert_list(self) -> list[Expert]:
        """Return the experts that the option `experts` names, in its order.

        Raises:
            PolicyError: an expert has a `target` other than that of the mixture, or a cabs_c expert has the
                option `play`.
        """
        target = self.settings.target
        members = []
        for name, options in self.settings.experts:
            if options.get("target", target) != target:
                raise PolicyError(f"{self.name}: all experts learn the same target, {target!r}")
            if name != "cabs_c":
                members.append(self.standard_expert(name, options))
                continue
            if "play" in options:
                raise PolicyError(
                    f"{self.name}: play is an option of the mixture, not of an expert: give play beside "
                    "experts"
                )
            members.append(self.surrogate_expert(options))
        return members

    def mixture_rule(self) -> MixtureRule:
        """Return the rule by which the policy's options mix the experts (`cabs_d_rule`)."""
        return cabs_d_rule(self.settings, len(self.arms), self.horizon)


def bandit_rule(name: str, options: Any) -> Any:
    """Return the rule of a bandit among `BANDITS` with these options."""
    if name == "epsilon_greedy":
        return EpsilonGreedy.rule(options)
    if name == "square_cb":
        return SquareCB.rule(options)
    if name == "lin_ucb":
        return LinUCBRule(options.alpha)
    return LinTSRule(options.v)


class CabsD(Decoupled, CompiledPolicy):
    """The policy CABS-D with ridge regressions; see the module.

    Attributes:
        model: learnt arrays. is_shared: bool [M], True for an expert whose arms share one matrix.
    """

    Settings = CabsDLinearOptions
    loop = staticmethod(round_loop(decide, learn))

    def _regression(self) -> dict[str, Any]:
        """Return the options of the regression and the target, for experts that do not set their own."""
        names = (*ModelOptions.model_fields, "target")
        return {name: getattr(self.settings, name) for name in names}

    def surrogate_expert(self, options: Mapping[str, Any]) -> Expert:
        """Return a CABS-C expert with ridge models.

        Its own `options` override the regression and target of the mixture, which override `cabs_preset`.
        """
        name = f"cabs_c_linear@{self.settings.cabs_preset}"
        settings = CabsC.parse(name, {**self._regression(), **options})
        return Expert(cabs_c_rule(settings), settings, settings.shares_matrix)

    def standard_expert(self, name: str, options: Mapping[str, Any]) -> Expert:
        """Return the bandit `name` of `BANDITS` as an expert with ridge models.

        Its own `options` override the regression and target of the mixture.
        """
        settings = BANDITS[name].parse(name, {**self._regression(), **options})
        return Expert(bandit_rule(name, settings), settings)

    def prepare(self) -> None:
        """Derive experts and rules from the options.

        Raises:
            PolicyError: more experts than there are random streams for, or a mu smaller than the number of
                arms.
        """
        super().prepare()
        m = len(self.members)
        if m + 2 > len(self.keys):
            raise PolicyError(f"{self.name}: at most {len(self.keys) - 2} experts, got {m}")
        self._check_mu(len(self.arms))
        self.is_shared = np.array([expert.shares_matrix for expert in self.members])
        self._is_vaw = np.array([expert.model.regression == "vaw" for expert in self.members])

    def _check_mu(self, arms: int) -> None:
        """Raise PolicyError if an expert square_cb has an option mu below this number of arms."""
        for mu in self.tables.square_cb["mu"]:
            check_mu(self.name, float(mu) or None, arms)

    def start(self, offline: Offline | None) -> None:
        """Start with cold models, or from the train split for experts whose option `warm` is positive."""
        m = len(self.members)
        k = len(self.arms)
        inverse = np.empty((m, k, self.dim, self.dim))
        theta = np.zeros((m, k, self.dim))
        for i, expert in enumerate(self.members):
            inverse[i] = start_inverse(k, self.dim, expert.model.penalty)
            if expert.model.warm > 0 and offline is not None and len(offline):
                one_inverse, theta[i] = warm_models(offline, expert.model, self.target)
                inverse[i] = one_inverse
        log_weights = np.zeros(m * self.rule.copies)
        self.model = MixtureModel(
            inverse, theta, np.zeros((m, k)), np.zeros((m, k)), log_weights, np.zeros(1), np.zeros(k)
        )
        self.resized()

    def resized(self) -> None:
        """Allocate work space and a memory of one slot for today's arms.

        Called at the start, and when the number of arms has changed.
        """
        super().resized()
        k = len(self.arms)
        self._work = new_mixture_work(self.tables, self.rule.copies, k, self.dim)
        self._memory = new_memory(self.tables, (1,), k)

    def unshare(self) -> None:
        """Give every arm its own matrix, because from now on arms may see different rows."""
        for m in np.flatnonzero(self.is_shared):
            self.model.inverse[m, 1:] = self.model.inverse[m, 0]
        self.is_shared[:] = False

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the arrays of `MixtureModel`, and {`shared`: list of bool, `gamma_ix`: number}.

        All other parts of the rules follow from the options. gamma_IX is saved because its default depends
        on the number of arms at the start.
        """
        shared = [bool(x) for x in self.is_shared]
        return self.model._asdict(), {"shared": shared, "gamma_ix": self.rule.gamma_ix}

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        """Restore what `state` returned.

        Raises:
            PolicyError: the values do not fit the experts.
        """
        self.model = MixtureModel(
            *(np.array(arrays[name], dtype=np.float64) for name in MixtureModel._fields)
        )
        shared = values["shared"]
        may_share = [expert.shares_matrix for expert in self.members]
        fits = len(shared) == len(may_share) and all(
            is_shared is False or (is_shared is True and allowed)
            for is_shared, allowed in zip(shared, may_share)
        )
        if not fits:
            raise PolicyError(
                f"{self.name}: shared {states.excerpt(shared, 80)} does not fit experts {may_share}"
            )
        self.is_shared = np.array(shared, dtype=np.bool_)
        self.restore_gamma(values)

    def layout(self) -> dict[str, states.Field]:
        """Return {name: field} of the arrays of `MixtureModel`, by which a saved state is checked."""
        m = len(self.members)
        k = len(self.arms)
        return {
            "inverse": states.learnt(m, k, self.dim, self.dim),
            "theta": states.learnt(m, k, self.dim),
            "bias": states.learnt(m, k),
            "bias_count": states.learnt(m, k, low=0.0),
            "log_weights": states.learnt(m * self.rule.copies, high=0.0),
            "second_order": states.learnt(1, low=0.0),
            "joined": states.learnt(k, low=0.0),
        }

    def check_state(self, where: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Raise PolicyError, with `where` in its text, if `inverse` has a negative number on a diagonal."""
        states.check_variances(where, "inverse", arrays["inverse"])

    def add_arm(self) -> None:
        """Add an arm with cold models, and give every arm its own matrix.

        Raises:
            PolicyError: an expert's option mu is too small for one arm more.
        """
        self._check_mu(len(self.arms) + 1)
        self.unshare()
        fresh = np.stack([start_inverse(1, self.dim, e.model.penalty) for e in self.members])
        zeros = np.zeros((len(self.members), 1))
        old = self.model
        self.model = old._replace(
            inverse=np.ascontiguousarray(np.concatenate([old.inverse, fresh], axis=1)),
            theta=np.concatenate([old.theta, np.zeros_like(old.theta[:, :1])], axis=1),
            bias=np.concatenate([old.bias, zeros], axis=1),
            bias_count=np.concatenate([old.bias_count, zeros], axis=1),
            joined=np.append(old.joined, float(self.round)),
        )

    def remove_arm(self, index: int) -> None:
        """Remove the arm at `index` from all learnt arrays, and give each arm left a matrix of its own.

        The weights of the experts stay.
        """
        self.unshare()
        kept = {"joined": np.delete(self.model.joined, index)}
        for name in ("inverse", "theta", "bias", "bias_count"):
            kept[name] = np.ascontiguousarray(np.delete(getattr(self.model, name), index, axis=1))
        self.model = self.model._replace(**kept)

    @property
    def can_resemble(self) -> bool:
        """Always True: a new arm can start from the estimates of any other arm (`resemble`)."""
        return True

    def resemble(self, arm: int, margin: float) -> None:
        """Start the last arm at the estimates of arm `arm`, with the certainty of a few rounds.

        The estimates are multiplied by `margin` if the target is utility, and copied if it is score.
        """
        factor = margin if self.target == "utility" else 1.0
        for m, expert in enumerate(self.members):
            self.model.theta[m, -1] = factor * self.model.theta[m, arm]
            self.model.inverse[m, -1] = inverse_of_joined_arm(
                self.model.inverse[m, arm], expert.model.penalty
            )

    def parts(self, lane: Lane | None = None) -> MixtureParts:
        """Return the arguments of the kernels. If rewards come late, the lane holds the memory slots."""
        memory = self._memory
        if lane is not None and lane.arrivals is not None:
            if lane.memory is None:
                lane.memory = new_memory(self.tables, (len(lane.order),), len(self.arms))
            memory = lane.memory
        return MixtureParts(
            experts=self.tables,
            rule=self.rule,
            keys=self.keys,
            is_shared=self.is_shared,
            is_vaw=self._is_vaw,
            model=self.model,
            work=self._work,
            memory=memory,
        )

    def run(self, stream: Stream, lane: Lane, start: int, stop: int) -> None:
        """Play rounds start..stop-1 of a lane in the compiled loop.

        If an arm of the stream comes or goes, every arm first gets its own matrix.
        """
        if (stream.active_from > 0).any() or (stream.active_until < len(lane.order)).any():
            self.unshare()  # arms that come and go see different rows
        super().run(stream, lane, start, stop)

    def choose(self, request: Request) -> Choice:
        """Play one round of `decide` on the request as a table with one row.

        If an arm is away, every arm first gets its own matrix.
        """
        inputs = self.inputs(request)
        if not inputs.mask.all():
            self.unshare()
        row = self.request_row(inputs)
        row.contexts[0] = inputs.x
        trace = self.new_trace()
        arm, probability = decide(self.parts(), row, 0, inputs.mask, self.round, 0, trace)
        kept = {name: value[0].copy() for name, value in self._memory._asdict().items()}
        memory = self.request_memory(inputs, trace) | kept
        pmf = self.played_pmf(int(arm), kept["mixture"])
        return Choice(int(arm), float(probability), pmf, inputs.rho, memory, inputs.surrogate)

    def learn(self, decision: Decision, outcome: Outcome) -> None:
        """Update the experts and their weights from the outcome of a past decision.

        The decision's distributions are those that it kept in its memory. Every arm first gets its own matrix
        if the decision was made while an arm was away.
        """
        row, arrays = self.outcome_row(decision, outcome, Memory._fields)
        past = self.past(arrays)
        may_unshare = self.is_shared[self.tables.cabs_c["place"]]
        if (past.reach[0, may_unshare] <= 0.0).any():
            self.unshare()  # a copy of this policy decided while an arm was away
        row.contexts[0] = outcome.memory["context"]
        learn(self.parts()._replace(memory=past), row, 0, outcome.arm, 0)

    def redrawn(self, decision: Decision, arm: int, pmf: np.ndarray) -> dict[str, np.ndarray]:
        """Return the memory that the decision would have if `arm` had been drawn from `pmf` [K].

        The array `mixture` becomes `pmf`. `reach` and `cover` change only if `arm` is not the decision's arm
        (`surrogates.memory_after_redraw`).
        """
        is_shared = self.is_shared[self.tables.cabs_c["place"]]
        return memory_after_redraw(decision.memory, decision.arm, arm, pmf, is_shared)
