"""Expected cost of a call: a part that is known before the call, and a part with one learnt factor.

    expected cost = price in x tokens in  +  predicted cost of the tokens out x factor of the model

Tokens in are those of the whole request, so the length of a conversation is paid for and teaches nothing
about a model. The score of a later turn, or of a session, teaches what the call of its decision cost alone.
The predicted cost of the tokens out is the cost that the bundle predicts, less its part for the prompt. The
factor of a model is the mean ratio of paid to predicted cost of the output, with `PRIOR` calls of ratio 1
before the first.

One outcome counts at most `LARGEST` times the expected cost, so it moves a factor by less than
(LARGEST - 1) / (PRIOR + 1) = 14.3 % upwards, and by less than 1 / (PRIOR + 1) = 4.8 % downwards.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cabs_core.base.errors import RouterError
from cabs_core.base.units import PRICED_TOKENS
from cabs_core.data.endpoints.usage import MOST_CALL_USD
from cabs_core.router.bundle import Manifest
from cabs_core.router.options import RouterOptions

#: Calls of ratio 1 that a factor starts with.
PRIOR = 20.0
#: Largest ratio of one call, in multiples of the factor so far.
LARGEST = 4.0
#: Smallest share of a predicted cost that counts as the cost of the output.
LEAST_OUTPUT = 0.1
#: Share of the price of a token in that a cached token saves, if the upstreams file does not say it.
SAVED = 0.5
#: Largest cost that a client may report, in multiples of the known or expected cost.
MOST_TIMES = 20.0


class CostFactors:
    """Learnt cost factors of a router's models.

    Attributes:
        n: number of calls of every model, `[K]`.
        ratios: sum of their ratios of paid to predicted cost of the output, `[K]`.
    """

    def __init__(self, arms: int):
        self.n = np.zeros(arms)
        self.ratios = np.zeros(arms)

    @property
    def factors(self) -> np.ndarray:
        """Mean ratio of paid to predicted output cost of every model, `[K]`, `PRIOR` calls included."""
        ratio: np.ndarray = (PRIOR + self.ratios) / (PRIOR + self.n)
        return ratio

    def learn(self, arm: int, paid: float, predicted: float) -> None:
        """Learn from a call of a model.

        Args:
            arm: index of the model.
            paid: cost of the output, USD. A negative one counts as 0.
            predicted: cost of the output that was predicted, USD. At 0 nothing is learnt. A ratio above
                `LARGEST` times the factor so far counts as that limit.
        """
        if predicted > 0.0:
            most = LARGEST * float(self.factors[arm])
            self.ratios[arm] += min(max(paid, 0.0) / predicted, most)
            self.n[arm] += 1.0

    def state(self) -> dict[str, list[float]]:
        """Return the state as JSON values."""
        return {"n": self.n.tolist(), "ratios": self.ratios.tolist()}

    def set_state(self, state: Mapping[str, Sequence[float]]) -> None:
        """Restore what `state` returned.

        Raises:
            ValueError: the state is of another number of models, or holds a number that is negative or not
                finite.
        """
        n = np.array(state["n"], dtype=np.float64)
        ratios = np.array(state["ratios"], dtype=np.float64)
        if n.shape != self.n.shape or ratios.shape != n.shape:
            raise ValueError("charges: expected a number for every model")
        values = np.array([n, ratios])
        if not (np.isfinite(values) & (values >= 0)).all():
            raise ValueError("charges: expected finite numbers >= 0 for every model")
        self.n = n
        self.ratios = ratios


def is_amount(value: Any, most: float = sys.float_info.max) -> bool:
    """Return True if a value is a number from 0 to `most`. A bool is no number here.

    JSON and Python have integers that no double holds, hence the default of `most`.
    """
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    return bool(number and 0.0 <= value <= most)


def check_client_cost(cost: Any, *usual: float | None) -> None:
    """Check the cost of a call that a client reports.

    Args:
        cost: USD.
        usual: known and expected costs of the call, USD. One that is None is not known. If none is known,
            only a cost of 0 passes.

    Raises:
        RouterError: the cost is no number from 0 to `MOST_TIMES` times the largest usual cost, or is above
            `MOST_CALL_USD`.
    """
    largest = max((value for value in usual if value is not None), default=0.0)
    most = min(MOST_TIMES * largest, MOST_CALL_USD)
    if not is_amount(cost, most):
        raise RouterError(
            f"cost {cost!r:.60}: expected USD from 0 to {most:.3g}, which is at most {MOST_TIMES:g} times "
            "the expected cost"
        )


@dataclass(frozen=True)
class Charge:
    """Expected cost of a request at every model, `[K]` USD.

    Attributes:
        cost: cost of the whole call.
        input: known part for the tokens in; 0 for a model without a price.
        output: predicted part for the tokens out, before the learnt factor, at least `LEAST_OUTPUT` of the
            predicted cost; the whole predicted cost of a model without a price.
    """

    cost: np.ndarray
    input: np.ndarray
    output: np.ndarray


class Prices:
    """Prices of a router's models.

    Args:
        arms: names of the models.
        per_million: {model: USD per one million tokens in}. A model that is absent has no known price, so no
            part of its cost is known: the learnt factor applies to all of its predicted cost.
        means: mean cost of a call of every model, `[K]` USD, in place of predicted costs if the policy
            predicts none.
        cached: {model: (USD per one million tokens in, USD per one million cached tokens in, or None if
            unknown)}.

    Attributes:
        priced: bool `[K]`, True for the models with a price.
        input: `[K]` USD per token in; 0 without a price.
        savings: `[K]` USD that a token in costs less when it is cached: the share `SAVED` of its price if the
            price of cached tokens is unknown, and 0 for a model that `cached` lacks.

    Raises:
        RouterError: a price of `per_million` is of an unknown model, is negative or is infinite.
    """

    def __init__(
        self,
        arms: Sequence[str],
        per_million: Mapping[str, float],
        means: Sequence[float] = (),
        cached: Mapping[str, tuple[float, float | None]] | None = None,
    ):
        unknown = sorted(set(per_million) - set(arms))
        if unknown:
            raise RouterError(f"prices: unknown model {unknown[0]!r}; this router knows {', '.join(arms)}")
        values = np.array([per_million.get(arm, np.nan) for arm in arms], dtype=np.float64)
        if (values < 0).any() or np.isinf(values).any():
            raise RouterError("prices: expected USD >= 0 per one million tokens")
        self.priced = np.isfinite(values)
        self.input = np.where(self.priced, values, 0.0) / PRICED_TOKENS
        self.means = np.array(means, dtype=np.float64)
        saved = []
        for arm in arms:
            full, low = (cached or {}).get(arm, (0.0, None))
            saved.append(SAVED * full if low is None else max(full - low, 0.0))
        self.savings = np.array(saved) / PRICED_TOKENS

    @classmethod
    def of_bundle(cls, manifest: Manifest, options: RouterOptions) -> Prices:
        """Return the prices of a bundle's models, as the options give them."""
        means = [float(arm["mean_cost"]) for arm in manifest.arms]
        return cls(manifest.names, options.prices or {}, means=means, cached=options.cache_prices)

    def charge(
        self, predicted: np.ndarray | None, text_tokens: float, tokens: float | None, factors: np.ndarray
    ) -> Charge | None:
        """Return the expected cost of a request at every model.

        Return None if the policy predicts no costs and no model has a price, since nothing reads costs then.

        Args:
            predicted: cost that the bundle predicts for the prompt's text, `[K]` USD. None if the policy
                reads none.
            text_tokens: number of tokens of the text.
            tokens: number of tokens of the whole request. None takes those of the text.
            factors: `[K]` of `CostFactors`.
        """
        if predicted is None:
            if not self.priced.any():
                return None
            predicted = self.means
        known = self.input * (text_tokens if tokens is None else tokens)
        least = np.maximum(predicted - self.input * text_tokens, LEAST_OUTPUT * predicted)
        output = np.where(self.priced, least, predicted)
        return Charge(known + output * factors, known, output)
