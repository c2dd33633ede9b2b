"""Policies of one or more experts with models of their own: what the linear and the neural ones share.

A subclass has the experts (`expert_list`), how they are mixed (`mixture`), and their models.
"""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from cabs_core.algorithms.policies import state as states
from cabs_core.algorithms.policies.linear import kernel_arrays
from cabs_core.algorithms.policies.play import Stream
from cabs_core.algorithms.policies.policy import Policy, PolicyOptions
from cabs_core.algorithms.policies.request import Decision, Outcome, Reads, Request, checked_surrogate
from cabs_core.base.errors import PolicyError
from cabs_core.base.utility import clipped_utility, margin, price


class ModelOptions(PolicyOptions):
    """The regression of an expert.

    penalty: lambda of the ridge; 10 is the paper's.
    warm: kappa, weight of a row of the train split against an online one; 0: cold start.
    regression: ridge, or vaw (Vovk-Azoury-Warmuth: prediction shrunk by 1 / (1 + x'A^-1 x)).
    """

    penalty: float = Field(10.0, gt=0, le=1e9)
    warm: float = Field(0.0, ge=0, le=1)
    regression: Literal["ridge", "vaw"] = "ridge"


class Expert(NamedTuple):
    """One expert: its regression, and all its options as kernels take them."""

    model: ModelOptions
    options: kernel_arrays.ExpertOptions


def expert(kind: str, model: ModelOptions, **options: float) -> Expert:
    """An expert of a kind in `kernel_arrays.KINDS`, with its options by name."""
    kinds = {"kind": kernel_arrays.KINDS[kind], "regression": kernel_arrays.REGRESSIONS[model.regression]}
    numbers: dict[str, Any] = {**kinds, **options}
    return Expert(model, kernel_arrays.ExpertOptions(**numbers))


class Inputs(NamedTuple):
    """What the experts read of a request, [K] each but rho and x [d]; prediction times margin is utility."""

    rho: float
    mask: np.ndarray
    x: np.ndarray
    affinity: np.ndarray
    prices: np.ndarray
    margins: np.ndarray
    surrogate: np.ndarray | None


class ExpertPolicy(Policy):
    """M experts, mixed by exponential weights if M > 1.

    Attributes:
        rules: the experts' options and the mixture's.
        uses_surrogates: whether any expert learns from surrogates.
    """

    needs_context: ClassVar[bool] = True

    # -- to implement ----------------------------------------------------------------------------------------

    def expert_list(self) -> list[Expert]:
        """The experts, in the order of the meta weights."""
        raise NotImplementedError

    def mixture(self) -> kernel_arrays.Mixture:
        """How they are mixed."""
        return kernel_arrays.Mixture()

    @property
    def target(self) -> str:
        """What the models learn: 'utility' (at the policy's rho) or 'score'."""
        return getattr(self.settings, "target", "utility")

    def reads(self) -> Reads:
        """Context; costs where it learns scores; with surrogates both heads and the propagation head."""
        s = self.uses_surrogates
        return Reads(context=True, scores=s, costs=s or self.any_rho_now(), surrogate=s)

    def any_rho_now(self) -> bool:
        """Models of scores serve every rho."""
        return self.target == "score"

    @property
    def experts(self) -> int:
        """Meta weights in the trace: one per expert of a mixture."""
        return len(self._experts) if len(self._experts) > 1 else 0

    def prepare(self) -> None:
        """Experts and rules from the options."""
        self._experts = self.expert_list()
        self.uses_surrogates = any(e.options.kind == kernel_arrays.CABS_C for e in self._experts)
        options = np.array([e.options for e in self._experts], dtype=kernel_arrays.EXPERTS)
        self.rules = kernel_arrays.Rules(options, self.mixture(), np.ascontiguousarray(self.keys))

    def _set_gamma(self, values: Mapping[str, Any]) -> None:
        """Restore gamma_ix from a saved state: its default depends on the number of arms at the start."""
        mixture = self.rules.mixture
        gamma = states.number(self.name, "gamma_ix", values["gamma_ix"], 0.0)
        self.rules = self.rules._replace(mixture=mixture._replace(gamma_ix=gamma))

    def memory_layout(self, arms: int) -> dict[str, states.Field]:
        m, k = len(self._experts), arms
        chances = states.probabilities
        return {
            "context": states.Field((self.dim,)),
            "affinity": states.Field((k,)),
            "prices": states.Field((k,), 0.0, states.PRICE_LIMIT),
            "trace": states.Field((2 + self.experts,), None),
            "reach": chances(m, k),
            "pmfs": chances(m, k),
            "mixture": chances(k),
            "cover": chances(m, k),
            "baseline": chances(k),
        }

    def resized(self) -> None:
        k = len(self.arms)
        tables = {name: np.zeros((1, k)) for name in kernel_arrays.LinearData._fields}
        tables |= {"contexts": np.ones((1, self._width())), "deltas": np.zeros((1, k, k))}
        self._row = kernel_arrays.LinearData(**tables)

    def _width(self) -> int:
        """Number of features that the kernels see."""
        return self.dim

    def _inputs(self, request: Request) -> Inputs:
        """The parts of a request that these experts need; PolicyError where one is missing."""
        k = len(self.arms)
        rho, mask = self.rho_of(request), self.mask(request)
        x = self.need(request, "context", self.dim)
        affinity, prices, margins, surrogate = np.zeros(k), np.zeros(k), np.ones(k), None
        if self.uses_surrogates:
            affinity = self.need(request, "predicted_scores", k).copy()
            surrogate = checked_surrogate(self.name, request.surrogate, k)
        if self.uses_surrogates or self.target == "score":
            costs = self.need(request, "predicted_costs", k, 0.0)
            prices = price(costs, rho)
            if self.target == "score":
                margins = margin(costs, rho)
        return Inputs(rho, mask, x, affinity, prices, margins, surrogate)

    def _request(self, inputs: Inputs) -> kernel_arrays.LinearData:
        """A request as a table with one row, as far as `decide` reads it."""
        row = self._row
        row.margins[0], row.affinity[0] = inputs.margins, inputs.affinity
        return row

    def _facts(
        self, inputs: Inputs, trace: np.ndarray, memory: Iterable[np.ndarray]
    ) -> dict[str, np.ndarray]:
        """What a decision remembers, given one slot of the kernels' memory."""
        facts = {
            "context": inputs.x.copy(),
            "affinity": inputs.affinity,
            "prices": inputs.prices,
            "trace": trace,
        }
        return facts | {
            name: value.copy() for name, value in zip(kernel_arrays.Memory._fields, memory, strict=True)
        }

    def _feedback(
        self, decision: Decision, outcome: Outcome
    ) -> tuple[kernel_arrays.LinearData, kernel_arrays.Memory]:
        """(outcome as a table with one row, but for the context; the decision's memory) for the current arms.

        Raises:
            PolicyError: surrogates are needed and not known, or all arms' outcomes are.
        """
        past, places, arm, data = outcome.memory, outcome.places, outcome.arm, self._row
        deltas = self.deltas_for(decision, outcome) if self.uses_surrogates else np.zeros(len(decision.arms))
        if deltas is None:
            raise PolicyError(
                f"{self.name} learns from surrogates: give Request.surrogate at decide, or deltas [K] at "
                "update"
            )
        reward = outcome.utility(decision.rho)
        targets: Any = outcome.score if self.target == "score" else reward
        if self.full_feedback:
            y, c = outcome.all_scores, outcome.all_costs
            if y is None or c is None:
                raise PolicyError(
                    f"{self.name} observes every arm: pass all_scores [K] and all_costs [K] to update"
                )
            targets = y if self.target == "score" else clipped_utility(y, c, decision.rho)
        values = [past["affinity"], past["prices"], deltas, *(past[n] for n in kernel_arrays.Memory._fields)]
        if places is not None:
            # arms that did not exist then were no neighbours: they learn nothing from this round
            values = [np.ascontiguousarray(np.where(places >= 0, v[..., places], 0.0)) for v in values]
            targets = np.where(places >= 0, targets[places], np.nan) if self.full_feedback else targets
        data.affinity[0], data.prices[0], data.deltas[0, arm], *memory = values
        data.targets[0], data.rewards[0, arm], data.scores[0, arm] = targets, reward, outcome.score
        return data, kernel_arrays.Memory(*(value[None] for value in memory))

    def redrawn(self, decision: Decision, arm: int, pmf: np.ndarray) -> dict[str, np.ndarray]:
        return kernel_arrays.redrawn(decision.memory, decision.arm, arm, pmf, self.rules.experts["shared"])

    def trace(self, decision: Decision) -> np.ndarray:
        return decision.memory["trace"]

    def data(self, stream: Stream) -> kernel_arrays.LinearData:
        """The arrays of a replay in the models' units; computed once per stream and kind of target."""
        return stream.once(f"data:{self.target}:{self.rho!r}", lambda: self._data(stream))

    def _data(self, stream: Stream) -> kernel_arrays.LinearData:
        prices, score = price(stream.predicted_costs, self.rho), self.target == "score"
        return kernel_arrays.LinearData(
            stream.contexts,
            stream.scores if score else stream.utilities,
            margin(stream.predicted_costs, self.rho) if score else np.ones_like(prices),
            stream.utilities,
            stream.scores,
            prices,
            stream.predicted_scores,
            stream.deltas,
        )
