"""The decision of a router for one prompt, as its caller gets it, and what the caller may ask for.

`Router.route` returns a `Routed`. Predictions that only explain the decision are computed when they are first
read, so that a caller who wants the model alone does not wait for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cabs_core.base.utility import utility
from cabs_core.router.heads import Prediction


@dataclass(frozen=True)
class RouteRequest:
    """Conditions under which prompts are routed, and names under which their decisions are logged.

    Attributes:
        available: models that can be called now. None if all can.
        rho: cost sensitivity, score units per USD. None takes the bundle's, or the pacer's if the router has
            a budget per request or day.
        budget: USD > 0. Models that are expected to cost more are left out. None leaves none out.
        tokens: number of tokens of the whole request, if more than the text is sent. None counts the text
            alone. Only the expected costs of models with a price in `RouterOptions.prices` depend on it.
        call_id: another name of the decision, for `feedback_by`.
        caller: name of the client that asks, kept in the log.
        session: key of the conversation (`request.session_key`), kept in the log.
    """

    available: Iterable[str] | None = None
    rho: float | None = None
    budget: float | None = None
    tokens: float | None = None
    call_id: str | None = None
    caller: str | None = None
    session: str | None = None


@dataclass(frozen=True)
class Routed:
    """A decision for one prompt.

    Attributes:
        id: name of the decision in the log, for `feedback` and `explain`.
        model: the model to call.
        propensity: probability with which `model` was drawn, given everything that was learnt before.
        probabilities: probability of every model, {model: share}.
        rho: the cost sensitivity that was used, score units per USD.
        chosen: the policy's own choice. `model` may differ after exploration, in shadow or in guarded mode.
        explored: True if the exploration floor drew the model uniformly.
        available: the models that `model` was drawn from.
        kept: id of the earlier decision whose model this turn of a conversation kept. None if the model was
            drawn.
        fallback_cost: expected cost of the fallback, USD. None if no cost is predicted, or if no model was
            drawn.
        fallback_cost_per_usd: expected cost of the fallback for every dollar that the call costs, in a kept
            turn. None if the ratio is not known, or if no model was kept.
        marked: True if the score of this decision is wanted (`marks`). None if the router marks no decision.
        shared_text: mean share of text that most recent prompts have in common (`shared_text`). None if they
            share at most half.
    """

    id: str
    model: str
    propensity: float
    probabilities: dict[str, float]
    rho: float
    chosen: str
    explored: bool
    _expect: Callable[[], tuple[np.ndarray, np.ndarray]] | None
    available: tuple[str, ...] = ()
    kept: str | None = None
    fallback_cost: float | None = None
    fallback_cost_per_usd: float | None = None
    marked: bool | None = None
    shared_text: float | None = None

    @property
    def scores(self) -> dict[str, float]:
        """Expected score of every model, from 0 to 1. Empty if the request had no text."""
        if self._expect is None:
            return {}
        return by_name(self.probabilities, self._expect()[0])

    @property
    def costs(self) -> dict[str, float]:
        """Expected cost of every model, USD. Empty if the request had no text."""
        if self._expect is None:
            return {}
        return by_name(self.probabilities, self._expect()[1])

    @cached_property
    def why(self) -> list[dict[str, Any]]:
        """Reasons of the decision: a row for the model, and one for its best rival by expected utility.

        The rival is one of the available models; there is no second row if no other model is available.
        A row has `model`, `score` (expected) and `cost` (expected, USD). The first row also has `explored` if
        the exploration floor drew the model, and `shared_text` if most prompts share their text. For a kept
        turn the only row has `kept`, the id of the decision whose model was kept, and no figures. For a
        request without text the only row has no figures either.
        """
        first: dict[str, Any] = {"model": self.model}
        if self.shared_text is not None:
            first["shared_text"] = round(self.shared_text, 3)
        if self.kept is not None:
            return [first | {"kept": self.kept}]
        if self._expect is None:
            return [first]
        scores, costs = self._expect()
        utilities = utility(scores, costs, self.rho).tolist()
        index_of = {name: i for i, name in enumerate(self.probabilities)}
        rivals = [(-utilities[index_of[name]], name) for name in self.available if name != self.model]
        names = [self.model]
        if rivals:
            names.append(min(rivals)[1])
        rows = []
        for name in names:
            i = index_of[name]
            rows.append({"model": name, "score": float(f"{scores[i]:.4g}"), "cost": float(f"{costs[i]:.4g}")})
        first |= rows[0]
        if self.explored:
            first["explored"] = True
        return [first, *rows[1:]]

    def expected_fallback_cost(self, cost: float | None) -> float | None:
        """Return the expected cost of the fallback for this call, USD, where the call itself cost `cost`.

        A kept turn has no expectation of its own: its `cost` counts times the ratio that was expected when
        its model was drawn. The ratio is 1 if the fallback itself was kept. Return None if `cost` is None, if
        no cost was predicted for the decision, or if the ratio of a kept turn is not known.
        """
        if cost is None:
            return None
        if self.fallback_cost_per_usd is not None:
            return self.fallback_cost_per_usd * cost
        return self.fallback_cost


def by_name(models: Iterable[str], values: np.ndarray) -> dict[str, float]:
    """Return {model: value} for values `[K]` in the order of the models."""
    return dict(zip(models, values.tolist(), strict=True))


def expected(prediction: Prediction, costs: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the expected scores `[K]` in [0, 1] and the expected costs `[K]` in USD of a prompt.

    Args:
        costs: `[K]` USD of the whole request. None takes the predicted costs of the text alone.
    """
    if costs is None:
        costs = prediction.costs
    return prediction.scores, costs
