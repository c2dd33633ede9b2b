"""`cabs_c_linear`: CABS-C, Algorithm 1 of the paper, with every ambiguous point as an option.

Module `reference` has the algorithm line by line in plain NumPy, and is easier to read first.

For context x, arm j has the predicted utility f_j = x'theta_j, by a ridge regression of every arm. In round t
= 1, 2, ... a feedback graph A is drawn, edge (i, j) with probability sigma((1 - R_ij) / 2) for the affinity
R_ij = 1 - 2 |ybar_i - ybar_j| of the predicted scores ybar. The arm is drawn from

    p = argmin_p max_i { f_i - p'f + sum_k (1[k = i] - p_k)^2 / (gamma_t (p'A)_k) },
    gamma_t = gamma t^gamma_power.

The score y_i of the played arm i gives a surrogate of the score of each neighbour j, y_i + delta_ij. This
surrogate, less its bias, is added to j's regression as well.

Module `cabs_c_rounds` has the compiled rounds, of which CABS-D and the neural policies call parts.

Presets. `literal`: the algorithm word for word with the published constants. `practical`, the default: the
same algorithm with the departures that make it work. `tuned`: the settings that were best on validation data.
`published` shows how a reading changes the published ranking (docs/paper.md): the arm of the largest
probability is played, models learn plain targets, and all other constants are the printed ones.

Readings where the paper is silent, in all presets: predictions are clipped to [0, 1] before the program;
importance weights use CABS-C's own p, also inside CABS-D; a weight 1/p counts at most 1/min_probability; the
IQR quartiles are over the K - 1 values |delta_j|; the played arm's surrogate, which the literal bias needs,
is its score with predicted costs; the IQR rule prunes the rows that are learnt, not the bias of line 12 and
not the losses of CABS-D. The pool chooses which models predict the surrogates, in every preset: `oracle:
{kind: network}` is the printed choice.

Source: Sridhar, Singh, Mahdavi and Narayanan, Correlation-Aware Contextual Bandits with Surrogate Rewards for
LLM Routing.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from cabs_core.algorithms.graph.affinity import GRAPHS
from cabs_core.algorithms.policies import state as states
from cabs_core.algorithms.policies.cabs_c_rounds import (
    CabsCModels,
    CabsCParts,
    CabsCRule,
    decide,
    learn,
    new_work,
    rule_table,
)
from cabs_core.algorithms.policies.play import Lane, Stream, round_loop
from cabs_core.algorithms.policies.policy import PolicyOptions
from cabs_core.algorithms.policies.request import Choice, Decision, Offline, Outcome, Request
from cabs_core.algorithms.policies.ridge_policy import ModelOptions, RidgePolicy
from cabs_core.algorithms.policies.surrogates import SURROGATES, SurrogatePolicy, memory_after_redraw


class CabsCOptions(PolicyOptions):
    """Options of CABS-C, whatever its regression. Defaults are the preset `practical`.

    target: quantity that the models learn. `utility` is the clipped utility at one rho, as in the paper. With
        `score` they learn the score and serve every rho (predictions times (1 - rho chat)+).
    gamma, gamma_power: gamma_t = gamma t^gamma_power, t = 1, 2, ... The paper fixes gamma = 4. With a
        constant gamma exploration never stops, which the paper's theory does not need. The default is 4
        sqrt(t).
    importance: reading of lines 14 and 15 (r / p). `target`: the regression target is r / p, as printed. A
        row enters only if its arm is revealed, so the fit estimates r / p, and rarely revealed arms look
        best. `weight`: the row gets weight 1 / p. `none`: target r, weight 1.
    min_probability: smallest probability that r or a weight is divided by.
    prune: kappa of the IQR rule of the appendix (1.5 there), which drops nearly all surrogates. None for no
        rule.
    bias: bias that is subtracted from surrogates. `literal`: lines 12 and 13, the mean of surrogate minus own
        prediction from n = 0 on, which removes the information of the surrogate. `realised`: the sum over
        plays of arm j of (oracle's prediction minus realised value), divided by n_j + bias_prior. `none`: no
        bias.
    bias_prior: see `bias`.
    clip_surrogates: True to clip de-biased surrogates to [0, 1].
    graph: probability of an edge, key of `graph.affinity.GRAPHS`. `paper` is sigma((1 - R) / 2).
    symmetric: True to draw each pair once for both directions.
    program_graph: adjacency A of the program (line 8). `sampled`: the drawn graph. `expected`: E[A].
        `printed`: a drawn edge counts with its probability E[A], as the line says.
    pseudo_weight: weight of a surrogate's row relative to the row of the played arm.
    floor: share of the uniform distribution that is mixed into p.
    play: `sampled`: the arm is drawn from p, as printed. `argmax`: the arm of the largest p is played and
        logged with probability 1. Only the arm that p puts first is then ever played, so importance weights
        lose their meaning and the regret bounds do not hold.
    surrogate: `difference`: clip(y_i + delta_j - rho chat_j), as printed. `product`: clip01(y_i + delta_j)
        (1 - rho chat_j)+, the expected clipped utility.
    clip_predictions: True to clip predictions to [0, 1] before the program.
    tol: largest gap at which a solution of the program is certified.
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

    @property
    def shares_matrix(self) -> bool:
        """True if all arms learn from the same contexts with equal weights while no arm comes or goes, so
        that they can share one matrix.
        """
        same_rows = self.graph == "all" and self.prune is None
        return same_rows and self.importance != "weight" and self.pseudo_weight == 1.0


class CabsCLinearOptions(CabsCOptions, ModelOptions):
    """Options of `cabs_c_linear`: those of CABS-C, and of its ridge regression."""


LITERAL: dict[str, Any] = {
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
PUBLISHED: dict[str, Any] = {
    "gamma": 4.0,
    "gamma_power": 0.0,
    "bias": "none",
    "surrogate": "difference",
    "play": "argmax",
}
#: every arm is a neighbour, and models learn the score: one regression target for every rho, without the
#: clipping of utilities (validation: .463 against .456 for utilities and .439 for the preset `practical`).
#: Models start cold, as in the other presets; `warm=0.3` adds .006 where the train split can be trusted.
TUNED: dict[str, Any] = {"graph": "all", "gamma": 16.0, "gamma_power": 0.5, "target": "score"}
PRESETS: dict[str, dict[str, Any]] = {
    "practical": {},
    "literal": LITERAL,
    "tuned": TUNED,
    "published": PUBLISHED,
}


def cabs_c_rule(options: CabsCOptions) -> CabsCRule:
    """Return the options of CABS-C as the kernels take them."""
    edges = GRAPHS[options.graph]
    surrogate = SURROGATES["score" if options.target == "score" else options.surrogate]
    return CabsCRule(
        gamma=options.gamma,
        gamma_power=options.gamma_power,
        divides_targets=options.importance == "target",
        weights_rows=options.importance == "weight",
        min_probability=options.min_probability,
        prune=-1.0 if options.prune is None else options.prune,
        bias_of_predictions=options.bias == "literal",
        bias_of_outcomes=options.bias == "realised",
        bias_prior=options.bias_prior,
        clip_surrogates=options.clip_surrogates,
        constant_edge=edges.constant_edge,
        is_similarity=edges.is_similarity,
        is_sigmoid=edges.is_sigmoid,
        symmetric=options.symmetric,
        expects_graph=options.program_graph == "expected",
        weights_edges=options.program_graph == "printed",
        pseudo_weight=options.pseudo_weight,
        floor=options.floor,
        surrogate_is_score=surrogate.surrogate_is_score,
        surrogate_is_product=surrogate.surrogate_is_product,
        clip_predictions=options.clip_predictions,
        tol=options.tol,
        plays_likeliest=options.play == "argmax",
    )


class CabsC(SurrogatePolicy, RidgePolicy):
    """The policy CABS-C (Correlation-Aware Bandits with Surrogates Coupled) with ridge regressions.

    Attributes:
        bias, bias_count: [K], see `CabsCModels`.
    """

    Settings = CabsCLinearOptions
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = PRESETS
    loop = staticmethod(round_loop(decide, learn))

    def prepare(self) -> None:
        """Derive the kernels' rule table from the options, and if all arms start with one shared matrix."""
        self.starts_shared = self.settings.shares_matrix
        self.rules = rule_table(CabsCRule, [0], [cabs_c_rule(self.settings)])

    def start(self, offline: Offline | None) -> None:
        """Start without bias, with cold models or from the train split."""
        self.bias = np.zeros(len(self.arms))
        self.bias_count = np.zeros(len(self.arms))
        super().start(offline)

    def resized(self) -> None:
        """Allocate work space, graph and one memory slot anew for today's number of arms."""
        super().resized()
        k = len(self.arms)
        self._work = new_work(k)
        self._graph = np.zeros((k, k))
        self._mixture = np.zeros((1, k))
        self._reach = np.zeros((1, k))

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the arrays of the models and of the bias, and values for JSON."""
        arrays, values = super().state()
        return arrays | {"bias": self.bias, "bias_count": self.bias_count}, values

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        """Restore the models and the bias from the arrays and values that `state` returned."""
        super().restore(arrays, values)
        self.bias = np.array(arrays["bias"])
        self.bias_count = np.array(arrays["bias_count"])

    def layout(self) -> dict[str, states.Field]:
        """Return {name: shape and limits} of the arrays of `state`, by which saved files are checked."""
        k = len(self.arms)
        return super().layout() | {"bias": states.learnt(k), "bias_count": states.learnt(k, low=0.0)}

    def memory_layout(self, arms: int) -> dict[str, states.Field]:
        """Return the fields of the memory: those of the request, p, the reach, and `baseline`, the clipped
        predicted utilities.
        """
        chances = states.probabilities(arms)
        return super().memory_layout(arms) | {"mixture": chances, "reach": chances, "baseline": chances}

    def add_arm(self) -> None:
        """Add an arm at the end, with a cold model and without bias."""
        super().add_arm()
        self.bias = np.append(self.bias, 0.0)
        self.bias_count = np.append(self.bias_count, 0.0)

    def remove_arm(self, index: int) -> None:
        """Remove the model and the bias of the arm at `index`."""
        super().remove_arm(index)
        self.bias = np.delete(self.bias, index)
        self.bias_count = np.delete(self.bias_count, index)

    def parts(self, lane: Lane | None = None) -> CabsCParts:
        """Return the arguments of the kernels. If rewards come late, the lane holds the memory slots."""
        mixture = self._mixture
        reach = self._reach
        if lane is not None and lane.arrivals is not None:
            if lane.memory is None:
                shape = (len(lane.order), len(self.arms))
                lane.memory = (np.zeros(shape), np.zeros(shape))
            mixture, reach = lane.memory
        models = CabsCModels(self.models, self.bias, self.bias_count)
        return CabsCParts(self.rules, self.keys, models, self._work, self._graph, mixture, reach)

    def run(self, stream: Stream, lane: Lane, start: int, stop: int) -> None:
        """Play rounds start..stop-1 of a replay in the compiled loop: fill the lane's traces, and learn.

        If arms come or go in the stream, every arm first gets a matrix of its own.
        """
        if (stream.active_from > 0).any() or (stream.active_until < len(lane.order)).any():
            self.unshare()  # arms that come and go see different rows
        super().run(stream, lane, start, stop)

    def choose(self, request: Request) -> Choice:
        """Play one round of `decide` on the request as a table with one row."""
        inputs = self.inputs(request)
        if not inputs.mask.all():
            self.unshare()
        row = self.request_row(inputs)
        row.contexts[0] = inputs.x
        trace = self.new_trace()
        arm, probability = decide(self.parts(), row, 0, inputs.mask, self.round, 0, trace)
        mixture = self._mixture[0].copy()
        if self.settings.play == "argmax":
            pmf = np.eye(len(self.arms))[arm]
        else:
            pmf = mixture.copy()
        memory = self.request_memory(inputs, trace) | {
            "mixture": mixture,
            "reach": self._reach[0].copy(),
            "baseline": np.clip(self.models.values, 0.0, 1.0),
        }
        return Choice(int(arm), float(probability), pmf, inputs.rho, memory, inputs.surrogate)

    def learn(self, decision: Decision, outcome: Outcome) -> None:
        """Learn the outcome of an earlier decision, with the context and reach from its memory."""
        row, (reach,) = self.outcome_row(decision, outcome, ("reach",))
        if self.models.is_shared and (reach <= 0.0).any():
            self.unshare()  # a copy of this policy decided while an arm was away
        row.contexts[0] = outcome.memory["context"]
        learn(self.parts()._replace(reach=reach[None]), row, 0, outcome.arm, 0)

    def redrawn(self, decision: Decision, arm: int, pmf: np.ndarray) -> dict[str, np.ndarray]:
        """Return the memory that the decision would have if `arm` had been drawn from pmf [K].

        `mixture` becomes pmf. If another arm had been drawn, the reach is that of `arm` alone, unless all
        arms share one matrix: then every arm stays revealed.
        """
        is_shared = np.array(self.models.is_shared)
        return memory_after_redraw(decision.memory, decision.arm, arm, pmf, is_shared)
