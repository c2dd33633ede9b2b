"""Policies of one or more experts with models of their own: what the linear and the neural ones share.

A subclass says which experts it has (`expert_rules`) and how they are mixed (`mixture_rules`), and holds their models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from cabs_core.errors import PolicyError
from cabs_core.policies import checks
from cabs_core.policies.base import Options, Policy
from cabs_core.policies.lanes import Lane
from cabs_core.policies.linear import kernel_arrays
from cabs_core.policies.requests import Decision, Reads, Request
from cabs_core.utility import margin


class ModelOptions(Options):
    """The regression of an expert.

    penalty: lambda of the ridge; 10 is the paper's.
    warm: kappa, weight of a row of the train split against an online one; 0: cold start.
    regression: ridge, or vaw (Vovk-Azoury-Warmuth: prediction shrunk by 1 / (1 + x'A^-1 x)).
    """

    penalty: float = Field(10.0, gt=0, le=1e9)
    warm: float = Field(0.0, ge=0, le=1)
    regression: Literal["ridge", "vaw"] = "ridge"


class Expert:
    """One expert: its kind, its regression options, and its row of `kernel_arrays.Rules.params`, by column name."""

    def __init__(self, name: str, kind: str, model: ModelOptions, **columns: float) -> None:
        self.name, self.kind, self.model = name, kind, model
        self.row = np.zeros(kernel_arrays.PARAMS)
        self.row[kernel_arrays.KIND] = kernel_arrays.KINDS[kind]
        self.row[kernel_arrays.REGRESSION] = (
            kernel_arrays.VAW if model.regression == "vaw" else kernel_arrays.RIDGE
        )
        self.row[kernel_arrays.PRUNE] = -1.0
        for column, value in columns.items():
            self.row[getattr(kernel_arrays, column)] = float(value)


class Inputs(NamedTuple):
    """What the experts read of a request, [K] each but rho and x [d]. margins multiply predictions into utilities."""

    rho: float
    mask: np.ndarray
    x: np.ndarray
    affinity: np.ndarray
    prices: np.ndarray
    margins: np.ndarray
    surrogate: np.ndarray | None


class Feedback(NamedTuple):
    """What a decision remembers, rearranged for the current arms.

    arm: the played one, -1 if it has been removed; places: `Policy.today`; affinity, prices, deltas [K]; memory: one
    decision's `kernel_arrays.Memory`, without its first axis.
    """

    arm: int
    places: np.ndarray | None
    affinity: np.ndarray
    prices: np.ndarray
    deltas: np.ndarray
    memory: kernel_arrays.Memory


class ExpertPolicy(Policy):
    """M experts, mixed by exponential weights if M > 1.

    Attributes:
        rules: the experts' parameters and the mixture's.
        uses_surrogates: whether any expert learns from surrogates.
    """

    needs_context: ClassVar[bool] = True

    # -- to implement -----------------------------------------------------------------------------------------

    def expert_rules(self) -> list[Expert]:
        """The experts, in the order of the meta weights."""
        raise NotImplementedError

    def mixture_rules(self) -> dict[int, float]:
        """Entries of `Rules.meta` that differ from their defaults."""
        return {}

    # -- state ------------------------------------------------------------------------------------------------

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
        self._experts = self.expert_rules()
        self.uses_surrogates = any(e.kind == "cabs_c" for e in self._experts)
        meta = np.zeros(kernel_arrays.META)
        meta[kernel_arrays.COPIES] = 1
        meta[kernel_arrays.PROPENSITY] = 1
        for entry, value in self.mixture_rules().items():
            meta[entry] = value
        self.rules = kernel_arrays.Rules(
            np.stack([e.row for e in self._experts]), meta, np.ascontiguousarray(self.keys)
        )

    def _set_gamma(self, values: Mapping[str, Any]) -> None:
        """Restore gamma_ix from a saved state: its default depends on the number of arms at the start."""
        gamma = values.get("gamma_ix", float(self.rules.meta[kernel_arrays.GAMMA_IX]))
        self.rules.meta[kernel_arrays.GAMMA_IX] = checks.number(self.name, "gamma_ix", gamma, 0.0)

    def memory_layout(self, arms: int) -> dict[str, checks.Field]:
        """What `_decide` keeps."""
        m, k = len(self._experts), arms
        chances = checks.probabilities
        return {
            "context": checks.Field((self.dim,)), "affinity": checks.Field((k,)),
            "prices": checks.Field((k,), 0.0, checks.PRICE_LIMIT), "gap": checks.Field((), None),
            "certified": checks.Field((), None, dtype=checks.B1), "weights": chances(m), "reach": chances(m, k),
            "pmfs": chances(m, k), "mixture": chances(k), "cover": chances(m, k), "baseline": chances(k),
        }  # fmt: skip

    # -- online -----------------------------------------------------------------------------------------------

    def _inputs(self, request: Request) -> Inputs:
        """The parts of a request that these experts need; PolicyError where one is missing."""
        k = len(self._arms)
        rho, mask = self.rho_of(request), self.mask(request)
        x = self.need(request, "context", self.dim)
        affinity, prices, margins, surrogate = np.zeros(k), np.zeros(k), np.ones(k), None
        if self.uses_surrogates:
            affinity = self.need(request, "predicted_scores", k).copy()
            surrogate = checks.surrogate(self.name, request.surrogate, k)
        if self.uses_surrogates or self.target == "score":
            prices = rho * self.need(request, "predicted_costs", k, 0.0)
        if self.target == "score":
            margins = margin(prices, 1.0)
        return Inputs(rho, mask, x, affinity, prices, margins, surrogate)

    def _feedback(self, decision: Decision, outcome: checks.Outcome) -> Feedback:
        """The decision's memory for the current arms; PolicyError where surrogates are needed and not known."""
        kept, places = outcome.memory, self.today(decision)
        deltas = self.deltas_for(decision, outcome) if self.uses_surrogates else np.zeros(len(decision.arms))
        if deltas is None:
            raise PolicyError(
                f"{self.name} learns from surrogates: give Request.surrogate at decide, or deltas [K] at update"
            )
        values = [kept["affinity"], kept["prices"], deltas, *(kept[n] for n in kernel_arrays.Memory._fields)]
        if places is not None:
            # arms that did not exist then were no neighbours: they learn nothing from this round
            values = [np.ascontiguousarray(np.where(places >= 0, v[..., places], 0.0)) for v in values]
        affinity, prices, deltas, *parts = values
        arm = self.arm_today(decision, places)
        return Feedback(arm, places, affinity, prices, deltas, kernel_arrays.Memory(*parts))

    def redraw(self, decision: Decision, arm: int, pmf: np.ndarray) -> Decision:
        """As `Policy.redraw`, with what the other arm reveals."""
        shared = self.rules.params[:, kernel_arrays.SHARED]
        memory = kernel_arrays.redrawn(decision.memory, decision.arm, arm, pmf, shared)
        return replace(super().redraw(decision, arm, pmf), memory=memory)

    def trace(self, decision: Decision, lane: Lane, t: int) -> None:
        """Gap, certificate and meta weights."""
        lane.gaps[t] = decision.memory["gap"].item()
        lane.uncertified += not decision.memory["certified"].item()
        if lane.meta_weights is not None:
            lane.meta_weights[t] = decision.memory["weights"]
