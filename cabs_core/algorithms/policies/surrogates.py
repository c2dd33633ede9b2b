"""Predictions and surrogates that the CABS policies read from requests and outcomes.

When arm i was played and scored y_i, the propagation head predicts how arm j's score would differ, delta_ij.
The surrogate score y_i + delta_ij of arm j, or the utility that follows from it, is a row that arm j learns
from without having been played. CABS-C, CABS-D and the neural policies share this module. K arms, d features.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from cabs_core.algorithms.policies import state as states
from cabs_core.algorithms.policies.play import Stream
from cabs_core.algorithms.policies.policy import Policy
from cabs_core.algorithms.policies.request import Decision, Outcome, Reads, Request, checked_surrogate
from cabs_core.base.compiled.jit import kernel_part
from cabs_core.base.compiled.utility import clip01, clipped_utility, margin
from cabs_core.base.errors import PolicyError
from cabs_core.base.utility import clipped_utility as clipped_utilities
from cabs_core.base.utility import margin as margins_of
from cabs_core.base.utility import price


class SurrogateRule(NamedTuple):
    """Form of a surrogate target, from a surrogate score y and the price rho chat.

    The price is the predicted cost chat in units of the score.

    Attributes:
        surrogate_is_score: True if the models learn scores: the target is clip01(y).
        surrogate_is_product: True for the expected clipped utility clip01(y) (1 - rho chat)+. Otherwise the
            target is clip01(y - rho chat), as printed in the paper.
    """

    surrogate_is_score: bool
    surrogate_is_product: bool


SURROGATES = {
    "difference": SurrogateRule(surrogate_is_score=False, surrogate_is_product=False),
    "product": SurrogateRule(surrogate_is_score=False, surrogate_is_product=True),
    "score": SurrogateRule(surrogate_is_score=True, surrogate_is_product=False),
}


@kernel_part
def surrogate_target(rule: Any, score: float, price: float) -> float:
    """Return the surrogate target of a surrogate score and a price rho chat.

    Args:
        rule: a `SurrogateRule`, or a record with its fields.
    """
    if rule.surrogate_is_score:
        return clip01(score)
    if rule.surrogate_is_product:
        return clip01(score) * margin(price)
    return clipped_utility(score, price)


class SurrogateData(NamedTuple):
    """Arrays of n queries, or of one request or outcome (n = 1), as the kernels take them.

    Attributes:
        contexts: [n, d].
        targets: [n, K], realised value of every arm in the models' units (utility or score), read at the
            played arm.
        margins: [n, K], factors that turn predictions into utilities: ones if the models learn utilities.
        rewards: [n, K], realised clipped utilities. scores: [n, K], realised scores.
        prices: [n, K], rho times the predicted costs. affinity: [n, K], predicted scores.
        deltas: float32 [n, K, K], output of the propagation head: played arm, then arm that its score
            predicts.
    """

    contexts: np.ndarray
    targets: np.ndarray
    margins: np.ndarray
    rewards: np.ndarray
    scores: np.ndarray
    prices: np.ndarray
    affinity: np.ndarray
    deltas: np.ndarray


class Inputs(NamedTuple):
    """Parts of a request that the CABS policies read, checked.

    Attributes:
        rho: score units per USD. mask: bool [K] of available arms. x: context [d].
        affinity, prices, margins: [K], as in `SurrogateData`; zeros, zeros and ones if the policy does not
            read them. surrogate: the propagation head (a function), its deltas [K, K], or None.
    """

    rho: float
    mask: np.ndarray
    x: np.ndarray
    affinity: np.ndarray
    prices: np.ndarray
    margins: np.ndarray
    surrogate: Any


class SurrogatePolicy(Policy):
    """Base of the policies that may learn from surrogates.

    Attributes:
        uses_surrogates: True if the policy learns from surrogates, with its options.
        row: `SurrogateData` with one row, to which requests and outcomes are written.
    """

    needs_context: ClassVar[bool] = True
    uses_surrogates: bool = True

    @property
    def target(self) -> str:
        """Target of the models: `utility` at the policy's rho, or `score`."""
        target: str = getattr(self.settings, "target", "utility")
        return target

    def reads(self) -> Reads:
        """Return the fields that the policy reads.

        The policy reads the context; costs if it learns scores; predicted scores, costs and surrogates if it
        learns from surrogates.
        """
        surrogates = self.uses_surrogates
        costs = surrogates or self.any_rho_now()
        return Reads(context=True, scores=surrogates, costs=costs, surrogate=surrogates)

    def any_rho_now(self) -> bool:
        """Return True if the models learn scores, which serve every rho."""
        return self.target == "score"

    def context_width(self) -> int:
        """Return the number of features of the contexts that the kernels see."""
        return self.dim

    def resized(self) -> None:
        """Allocate `row` anew for today's arms, with contexts of ones and zeros elsewhere.

        The deltas are float32, as those of a stream, so that requests and replays run the same machine code:
        another type would be compiled a second time, for some 7 s.
        """
        k = len(self.arms)
        tables = {name: np.zeros((1, k)) for name in SurrogateData._fields}
        tables["contexts"] = np.ones((1, self.context_width()))
        tables["deltas"] = np.zeros((1, k, k), dtype=np.float32)
        self.row = SurrogateData(**tables)

    def inputs(self, request: Request) -> Inputs:
        """Return the parts of a request that the policy reads.

        A request without a surrogate is no error: the deltas may come with the outcome instead.

        Raises:
            PolicyError: another part that the policy reads is missing, or is malformed.
        """
        k = len(self.arms)
        rho = self.rho_of(request)
        mask = self.mask(request)
        x = self.need(request, "context", self.dim)
        affinity = np.zeros(k)
        prices = np.zeros(k)
        margins = np.ones(k)
        surrogate = None
        if self.uses_surrogates:
            affinity = self.need(request, "predicted_scores", k).copy()
            surrogate = checked_surrogate(self.name, request.surrogate, k)
        if self.uses_surrogates or self.target == "score":
            costs = self.need(request, "predicted_costs", k, 0.0)
            prices = price(costs, rho)
            if self.target == "score":
                margins = margins_of(costs, rho)
        return Inputs(rho, mask, x, affinity, prices, margins, surrogate)

    def request_row(self, inputs: Inputs) -> SurrogateData:
        """Write margins and affinity of a request, which `decide` reads, to `row`, and return `row`."""
        self.row.margins[0] = inputs.margins
        self.row.affinity[0] = inputs.affinity
        return self.row

    def request_memory(self, inputs: Inputs, trace: np.ndarray) -> dict[str, np.ndarray]:
        """Return {name: array} for a decision's memory: context, affinity and prices, and the trace.

        The first three come from the request. `Policy.trace` describes the trace.
        """
        return {
            "context": inputs.x.copy(),
            "affinity": inputs.affinity,
            "prices": inputs.prices,
            "trace": trace,
        }

    def memory_layout(self, arms: int) -> dict[str, states.Field]:
        """Return {name: field} of the arrays that `request_memory` returns.

        A field has the array's shape and the range of its entries.
        """
        return {
            "context": states.Field((self.dim,)),
            "affinity": states.Field((arms,)),
            "prices": states.Field((arms,), 0.0, states.PRICE_LIMIT),
            "trace": states.Field((2 + self.experts,), None),
        }

    def trace(self, decision: Decision) -> np.ndarray:
        """Return the trace [2 + M] of a decision from the decision's memory.

        The trace holds the gap of the exploration program that was solved (NaN for none), 1 if the solution
        is not certified (otherwise 0), and the weights of M experts. M = 0 if the policy has one expert.
        """
        return decision.memory["trace"]

    def outcome_row(
        self, decision: Decision, outcome: Outcome, kept: tuple[str, ...]
    ) -> tuple[SurrogateData, list[np.ndarray]]:
        """Write an outcome to `row`; return `row`, and arrays of the decision's memory, for today's arms.

        The context is not written. An arm that was added since the decision was no neighbour, so its entries
        of the memory are 0.

        Args:
            kept: names of the arrays of the memory to return, whose last axis is that of the arms.

        Raises:
            PolicyError: the policy learns from surrogates and neither outcome nor request gives deltas, or
                the policy observes every arm (`full_feedback`) and the outcome lacks other arms' scores or
                costs.
        """
        arm = outcome.arm
        places = outcome.places
        deltas: Any = np.zeros(len(decision.arms))
        if self.uses_surrogates:
            deltas = self.deltas_for(decision, outcome)
            if deltas is None:
                raise PolicyError(
                    f"{self.name} learns from surrogates: give Request.surrogate at decide, or deltas [K] at "
                    "update"
                )
        reward = outcome.utility(decision.rho)
        targets: Any
        if self.target == "score":
            targets = outcome.score
        else:
            targets = reward
        if self.full_feedback:
            targets = self._targets_of_all_arms(decision, outcome)
        memory = outcome.memory
        values = [memory["affinity"], memory["prices"], deltas, *(memory[name] for name in kept)]
        if places is not None:
            values = [np.ascontiguousarray(np.where(places >= 0, v[..., places], 0.0)) for v in values]
        self.row.affinity[0] = values[0]
        self.row.prices[0] = values[1]
        self.row.deltas[0, arm] = values[2]
        self.row.targets[0] = targets
        self.row.rewards[0, arm] = reward
        self.row.scores[0, arm] = outcome.score
        return self.row, values[3:]

    def _targets_of_all_arms(self, decision: Decision, outcome: Outcome) -> np.ndarray:
        """Return the targets [K] of today's arms, NaN for an arm that was added since the decision."""
        scores = outcome.all_scores
        costs = outcome.all_costs
        if scores is None or costs is None:
            raise PolicyError(
                f"{self.name} observes every arm: pass all_scores [K] and all_costs [K] to update"
            )
        if self.target == "score":
            targets = scores
        else:
            targets = clipped_utilities(scores, costs, decision.rho)
        if outcome.places is None:
            return targets
        return np.where(outcome.places >= 0, targets[outcome.places], np.nan)

    def data(self, stream: Stream) -> SurrogateData:
        """Return the arrays of a replay in the models' units.

        They are computed once per stream, target and rho.
        """
        return stream.once(f"surrogates:{self.target}:{self.rho!r}", lambda: self._data(stream))

    def _data(self, stream: Stream) -> SurrogateData:
        """Compute the arrays of a replay for the policy's target, with prices at the policy's rho."""
        prices = price(stream.predicted_costs, self.rho)
        targets = stream.utilities
        margins = np.ones_like(prices)
        if self.target == "score":
            targets = stream.scores
            margins = margins_of(stream.predicted_costs, self.rho)
        return SurrogateData(
            contexts=stream.contexts,
            targets=targets,
            margins=margins,
            rewards=stream.utilities,
            scores=stream.scores,
            prices=prices,
            affinity=stream.predicted_scores,
            deltas=stream.deltas,
        )


def memory_after_redraw(
    memory: Mapping[str, np.ndarray], drawn: int, arm: int, pmf: np.ndarray, is_shared: np.ndarray
) -> dict[str, np.ndarray]:
    """Return a decision's memory for the case that `arm`, drawn from pmf [K], is played instead of `drawn`.

    The sampled graph belongs to the arm `drawn`, so the new arm reveals only itself. For an expert whose arms
    share one matrix every arm reveals every arm, so the new arm reveals the same arms as before. The array
    `mixture` becomes pmf.

    Args:
        memory: the decision's memory. Its `reach` (probability with which an arm is revealed, as
            `cabs_c_rounds.fill_reach` fills it) and `cover` (probability with which the mixture reveals an
            arm, as `mixture.fill_cover` fills it), if there, have is_shared's axes in front of that of the
            arms.
        is_shared: bool, True for an expert whose arms share one matrix. [] for the memory of one expert.
    """
    changed = {**memory, "mixture": np.array(pmf)}
    if arm == drawn:
        return changed
    for name in ("reach", "cover"):
        if name in memory:
            value = np.array(memory[name])
            value[~is_shared] = 0.0
            value[..., drawn] = np.where(is_shared, 1.0, value[..., drawn])
            if name == "reach":
                value[..., arm] = pmf[arm]
            else:
                value[..., arm] = np.where(is_shared, 1.0, pmf[arm])
            changed[name] = value
    return changed
