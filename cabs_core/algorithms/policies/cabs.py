"""CABS-C and CABS-D, Algorithms 1 and 2 of the paper, with every ambiguous point as an option.

Read `reference` first: both algorithms line by line in plain NumPy.

CABS-C. Of context x, arm j is expected to earn f_j = x'theta_j, a ridge regression. A feedback graph A is
drawn, edge (i, j) with probability sigma((1 - R_ij) / 2) for R_ij = 1 - 2 |ybar_i - ybar_j| of the predicted
scores ybar, and the arm from

    p = argmin_p max_i { f_i - p'f + sum_k (1[k = i] - p_k)^2 / (gamma_t (p'A)_k) },
    gamma_t = gamma t^gamma_power.

The score y_i of the played arm i says what each neighbour j would have scored, y_i + delta_ij; that
surrogate, less its bias, is a row of j's regression as well.

CABS-D. M experts p_m (by default LinTS, which uses no surrogates, and CABS-C), each learning in every round,
are mixed: q = sum_m w_m p_m, w_m proportional to exp(-eta sum of losses), loss (1 - r_i) p_m(i) / (q(i) +
gamma_IX).

Kernels: `experts.cabs_c` (lines 6 to 8), `learning.learn_cabs_c` (11 to 16); `experts.meta_weights` and
`experts.decide` mix, `learning.learn_meta` weighs the experts. The neural policies (`neural.cabs`) differ in
the regression alone.

Presets. `literal`: the algorithms word for word with the published constants. `practical`, the default: the
same algorithms with the departures that make them work. `tuned`: the settings that were best on validation
data. Two more show how a reading changes the published ranking (docs/paper.md). `published`: the arm of the
largest probability is played, models learn plain targets, all other constants are the printed ones.
`lin_ucb_expert` (CABS-D): `literal` with LinUCB as the standard expert, which the paper names as well.

Readings where the paper is silent, in all presets: predictions are clipped to [0, 1] before the program;
importance weights use CABS-C's own p, also inside CABS-D; a weight 1/p counts at most 1/min_probability; the
IQR quartiles are over the K - 1 values |delta_j|; the played arm's surrogate, where the literal bias needs
it, is its score with predicted costs; the IQR rule prunes what is learnt, not the bias of line 12 and not the
losses of CABS-D; the grid of gamma_IX starts at 1 / sqrt(K T). The pool chooses which models predict the
surrogates, in every preset: `oracle: {kind: network}` is the printed choice.

Source: Sridhar, Singh, Mahdavi and Narayanan, Correlation-Aware Contextual Bandits with Surrogate Rewards for
LLM Routing.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from cabs_core.algorithms.graph.affinity import GRAPHS
from cabs_core.algorithms.policies.linear import kernel_arrays
from cabs_core.algorithms.policies.linear.bandits import OPTIONS as BANDITS
from cabs_core.algorithms.policies.linear.bandits import LinearBandit, bandit_expert
from cabs_core.algorithms.policies.linear.expert_policy import Expert, ExpertPolicy, ModelOptions, expert
from cabs_core.algorithms.policies.linear.policy import LinearPolicy
from cabs_core.algorithms.policies.policy import DEFAULT_HORIZON, PolicyOptions
from cabs_core.base.errors import PolicyError


class CabsCRule(PolicyOptions):
    """Settings of CABS-C, whatever its regression. Defaults are the preset `practical`.

    target: utility: models learn the clipped utility at one rho, as in the paper; score: they learn the score
        and serve every rho (predictions times (1 - rho chat)+).
    gamma, gamma_power: gamma_t = gamma t^gamma_power, t = 1, 2, ... The paper fixes gamma = 4; with a
        constant gamma exploration never stops, which its theory does not ask for. Default 4 sqrt(t).
    importance: what lines 14 and 15 (r / p) mean. target: the regression target is r / p, as printed: a row
        enters only when its arm is played, so the fit estimates r / p and rarely played arms look best.
        weight: the row gets weight 1 / p. none: target r, weight 1.
    min_probability: smallest p that is divided by.
    prune: kappa of the IQR rule of the appendix (1.5 there); None: off. The rule drops nearly all surrogates.
    bias: literal: lines 12 and 13, mean of surrogate minus own prediction from n = 0 on; subtracting it
        removes what the surrogate could teach. realised: for plays of arm j, sum of (oracle's predicted minus
        realised) divided by n_j + bias_prior. none: no de-biasing.
    clip_surrogates: clip de-biased surrogates to [0, 1].
    graph: probability of an edge (`graph.affinity.GRAPHS`): paper is sigma((1 - R) / 2); all: every arm.
    symmetric: draw each pair once for both directions.
    program_graph: the adjacency A of the program (line 8): sampled; expected: E[A]; printed: a sampled edge
        counts with its probability E[A], as the line says.
    pseudo_weight: weight of a pseudo-observation relative to a real one.
    floor: share of the uniform distribution that is mixed into p.
    play: sampled: the arm is drawn from p, as printed. argmax: the arm of the largest p is played and logged
        with probability 1. Only the arm that p puts first is then ever played, so importance weights lose
        their meaning and the regret bounds do not hold.
    surrogate: difference: clip(y_i + delta_j - rho chat_j), as printed; product: clip01(y_i + delta_j)
        (1 - rho chat_j)+, the expected clipped utility.
    clip_predictions: clip predictions to [0, 1] before the program.
    tol: certified gap of the program.
    """

    target: Literal["utility", "score"] = "utility"
    gamma: float = Field(4.0, gt=0)
    gamma_power: float = Field(0.5, ge=0, le=1)
    importance: Literal["none", "target", "weight"] = "none"
    min_probability: float = Field(1e-3, gt=0, le=1)
    prune: float | None = Field(None, ge=0)
    bias: Literal["none", "literal", "realised"] = "realised"
    bias_prior: float = Field(20.0, ge=0)
    clip_surrogates: bool = True
    graph: Literal["paper", "dissimilarity", "sigmoid_similarity", "similarity", "all", "self"] = "paper"
    symmetric: bool = False
    program_graph: Literal["sampled", "expected", "printed"] = "sampled"
    pseudo_weight: float = Field(1.0, ge=0, le=1)
    floor: float = Field(0.0, ge=0, lt=1)
    play: Literal["sampled", "argmax"] = "sampled"
    surrogate: Literal["difference", "product"] = "product"
    clip_predictions: bool = True
    tol: float = Field(1e-6, gt=0, le=1e-2)


LITERAL_C: dict[str, Any] = {
    "gamma": 4.0,
    "gamma_power": 0.0,
    "importance": "target",
    "prune": 1.5,
    "bias": "literal",
    "clip_surrogates": False,
    "graph": "paper",
    "program_graph": "printed",
    "surrogate": "difference",
}
#: plain targets: no r / p, no IQR rule, no de-biasing
PUBLISHED_C: dict[str, Any] = {
    "gamma": 4.0,
    "gamma_power": 0.0,
    "bias": "none",
    "surrogate": "difference",
    "play": "argmax",
}
#: every arm is a neighbour, and models learn the score: one regression target for every rho, without the
#: clipping of utilities (validation: .463 against .456 for utilities and .439 for the preset `practical`).
#: Cold, like the other presets; `warm=0.3` adds .006 where the train split can be trusted.
TUNED_C: dict[str, Any] = {"graph": "all", "gamma": 16.0, "gamma_power": 0.5, "target": "score"}


class CabsCOptions(CabsCRule, ModelOptions):
    """Settings of `cabs_c_linear`: those of CABS-C, and of its ridge regression."""


def cabs_expert(o: CabsCRule) -> Expert:
    """CABS-C as an expert; with the regression of its options, where they have one."""
    shared = o.graph == "all" and o.importance != "weight" and o.pseudo_weight == 1.0 and o.prune is None
    form = "score" if o.target == "score" else o.surrogate
    return expert(
        "cabs_c",
        o if isinstance(o, ModelOptions) else ModelOptions(),
        clip=o.clip_predictions,
        shared=shared,
        gamma=o.gamma,
        power=o.gamma_power,
        importance=kernel_arrays.IMPORTANCE[o.importance],
        min_probability=o.min_probability,
        prune=-1.0 if o.prune is None else o.prune,
        bias=kernel_arrays.BIAS[o.bias],
        bias_prior=o.bias_prior,
        graph=GRAPHS[o.graph],
        program=kernel_arrays.PROGRAM_GRAPHS[o.program_graph],
        symmetric=o.symmetric,
        pseudo_weight=o.pseudo_weight,
        floor=o.floor,
        surrogate=kernel_arrays.SURROGATES[form],
        tol=o.tol,
        clip_surrogates=o.clip_surrogates,
    )


class Coupled(ExpertPolicy):
    """Correlation-Aware Bandits with Surrogates Coupled (Algorithm 1), whatever the regression."""

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "practical": {},
        "literal": LITERAL_C,
        "tuned": TUNED_C,
        "published": PUBLISHED_C,
    }

    def expert_list(self) -> list[Expert]:
        return [cabs_expert(self.settings)]

    def mixture(self) -> kernel_arrays.Mixture:
        """How the arm is chosen from p (option `play`)."""
        return kernel_arrays.Mixture(greedy=self.settings.play == "argmax")


class CabsC(Coupled, LinearPolicy):
    """`cabs_c_linear`: CABS-C with ridge regressions."""

    Settings = CabsCOptions


ExpertSpec = tuple[str, dict[str, Any]]


class CabsDRule(PolicyOptions):
    """Settings of CABS-D, whatever its regression. Defaults are the preset `practical`.

    experts: what is mixed, each a name or [name, options]. Two or more. lin_ts enters with the arm that it
    drew. cabs_preset: preset of every cabs_c expert (its options override it).
    meta_loss: realised: (1 - r) p_m(i) / (q(i) + gamma_IX) for every expert; literal: line 14, where CABS-C's
        loss also sums over surrogates, which moves weight to the worse expert; doubly_robust: the loss that
        the experts' models predict for p_m, corrected by the importance-weighted error at the played arm. It
        is less noisy, so that a larger eta can be used.
    eta: learning rate of the weights; None: line 15, min(gamma_min, sqrt(ln(M L) / (1 + Delta))) for M
        experts with L copies each. It is small, but the weights do move: under the literal loss CABS-C's
        weight falls from one half to about .01 in 3,558 rounds.
    ix_copies: L, the number of values of gamma_IX, each twice the one before.
    gamma_ix: the first of them; None: 1 / sqrt(K T).
    target: as in CABS-C, for all experts.
    play: as in CABS-C, of the mixture's q.
    """

    #: names of the experts that there are
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
        if not isinstance(value, (list, tuple)) or len(value) < 2:
            raise ValueError("expected two or more experts, each a name or [name, options]")
        return tuple((v, {}) if isinstance(v, str) else tuple(v) for v in value)

    @field_validator("experts")
    @classmethod
    def _known_experts(cls, value: tuple[ExpertSpec, ...]) -> tuple[ExpertSpec, ...]:
        for name, _ in value:
            if name not in cls.expert_names:
                raise ValueError(f"unknown expert {name!r}; known: {', '.join(cls.expert_names)}")
        return value


class CabsDOptions(CabsDRule, ModelOptions):
    """Settings of `cabs_d_linear`: those of CABS-D, and the regression of experts without their own.

    experts: epsilon_greedy, square_cb, lin_ucb, lin_ts and cabs_c.
    """

    expert_names = (*BANDITS, "cabs_c")


LITERAL_D: dict[str, Any] = {
    "experts": (("square_cb", {"gamma": 4.0, "gamma_power": 0.0}), ("cabs_c", {})),
    "cabs_preset": "literal",
    "meta_loss": "literal",
    "eta": None,
    "ix_copies": 8,
}
PUBLISHED_D: dict[str, Any] = {**LITERAL_D, "cabs_preset": "published", "play": "argmax"}
LIN_UCB_EXPERT: dict[str, Any] = {**LITERAL_D, "experts": (("lin_ucb", {}), ("cabs_c", {}))}
#: validation: .4557, against .4519 with the realised loss and eta .03 and .4631 for CABS-C alone
TUNED_D: dict[str, Any] = {
    "cabs_preset": "tuned",
    "target": "score",
    "meta_loss": "doubly_robust",
    "eta": 0.1,
}


class Decoupled(ExpertPolicy):
    """Correlation-Aware Bandits with Surrogates Decoupled (Algorithm 2), whatever the regression."""

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "practical": {},
        "literal": LITERAL_D,
        "tuned": TUNED_D,
        "published": PUBLISHED_D,
        "lin_ucb_expert": LIN_UCB_EXPERT,
    }

    def surrogate_expert(self, options: Mapping[str, Any]) -> Expert:
        """CABS-C with these options over those of the mixture."""
        raise NotImplementedError

    def standard_expert(self, name: str, options: Mapping[str, Any]) -> Expert:
        """A bandit of this name with these options over those of the mixture."""
        raise NotImplementedError

    def expert_list(self) -> list[Expert]:
        """The experts of the options; PolicyError where one has an option that belongs to the mixture."""
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

    def mixture(self) -> kernel_arrays.Mixture:
        """Loss, learning rate and grid of the weights."""
        options = self.settings
        gamma = options.gamma_ix
        if gamma is None:
            gamma = 1.0 / math.sqrt(len(self.arms) * (self.horizon or DEFAULT_HORIZON))
        return kernel_arrays.Mixture(
            loss=kernel_arrays.META_LOSSES[options.meta_loss],
            eta=options.eta or 0.0,
            gamma_ix=gamma,
            copies=options.ix_copies,
            greedy=options.play == "argmax",
        )


class CabsD(Decoupled, LinearPolicy):
    """`cabs_d_linear`: CABS-D with ridge regressions."""

    Settings = CabsDOptions

    def _regression(self) -> dict[str, Any]:
        names = (*ModelOptions.model_fields, "target")
        return {name: getattr(self.settings, name) for name in names}

    def surrogate_expert(self, options: Mapping[str, Any]) -> Expert:
        name = f"cabs_c_linear@{self.settings.cabs_preset}"
        return cabs_expert(CabsC.parse(name, {**self._regression(), **options}))

    def standard_expert(self, name: str, options: Mapping[str, Any]) -> Expert:
        return bandit_expert(name, LinearBandit.parse(name, {**self._regression(), **options}))
