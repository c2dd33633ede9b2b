"""The expected cost of a call: the part that is known before it, and the one factor that has to be learnt.

    expected cost = price in x tokens in  +  predicted cost of the tokens out x factor of the model

Tokens in are those of the whole request, so a long conversation costs what it costs and teaches nothing about
a model. The predicted cost of the tokens out is that of the bundle's predictor less its part for the prompt.
The factor of a model is the mean ratio of what its output cost to what was predicted, with `PRIOR` calls of
ratio 1 before the first.

One outcome counts at most `LARGEST` times what was expected, so it moves a factor by less than
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

PRIOR = 20.0
LARGEST = 4.0
#: least share of a predicted cost that is that of the output
LEAST_OUTPUT = 0.1
#: share of the price of a token in that a cached one saves, where the upstream file does not say
SAVED = 0.5
#: what a client may say that a call cost: at most so many times what is known or expected
MOST_TIMES = 20.0


class Charges:
    """Factors `[K]` of a router's models."""

    def __init__(self, arms: int):
        self.n, self.ratios = np.zeros(arms), np.zeros(arms)

    @property
    def factors(self) -> np.ndarray:
        """Mean ratio of paid to predicted cost of the output, per model."""
        ratio: np.ndarray = (PRIOR + self.ratios) / (PRIOR + self.n)
        return ratio

    def learn(self, arm: int, paid: float, predicted: float) -> None:
        """An output cost `paid` USD, where the predictor said `predicted` > 0."""
        if predicted > 0.0:
            most = LARGEST * float(self.factors[arm])
            self.ratios[arm] += min(max(paid, 0.0) / predicted, most)
            self.n[arm] += 1.0

    def state(self) -> dict[str, list[float]]:
        """JSON values."""
        return {"n": self.n.tolist(), "ratios": self.ratios.tolist()}

    def set_state(self, state: Mapping[str, Sequence[float]]) -> None:
        """Inverse of `state`. Raises ValueError for values that are none."""
        n, ratios = (np.array(state[name], dtype=np.float64) for name in ("n", "ratios"))
        if n.shape != self.n.shape or ratios.shape != n.shape or not (np.isfinite(n) & (ratios >= 0)).all():
            raise ValueError("charges: expected numbers >= 0 for every model")
        self.n, self.ratios = n, ratios


def is_amount(value: Any, most: float = sys.float_info.max) -> bool:
    """Whether a value is a number from 0 to `most`: JSON and Python have integers that no double holds."""
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    return bool(number and 0.0 <= value <= most)


def check_client_cost(cost: Any, *usual: float | None) -> None:
    """RouterError for a cost from a client that is no number from 0 to MOST_TIMES the largest known or
    expected one, in USD."""
    most = min(MOST_TIMES * max((value for value in usual if value is not None), default=0.0), MOST_CALL_USD)
    if not is_amount(cost, most):
        raise RouterError(
            f"cost {cost!r:.60}: expected USD from 0 to {most:.3g}, {MOST_TIMES:g} times the expected"
        )


@dataclass(frozen=True)
class Charge:
    """Expected cost of a request at every model, USD `[K]`.

    Attributes:
        cost: of the whole call. input: its known part, for the tokens in. output: what was predicted for the
            tokens out, before what was learnt.
    """

    cost: np.ndarray
    input: np.ndarray
    output: np.ndarray


class Prices:
    """Prices `[K]` of a router's models, USD per token in.

    Args:
        arms: names. million: {name: USD per one million tokens in}; a model that is absent has no known
            price, and its predicted cost stays as it is.
        means: {name: mean cost of a call, USD}, where the policy predicts none.
        cached: {name: (USD per one million tokens in, the same when cached or None)}.

    Attributes:
        savings: `[K]` USD that a token in costs less when cached; 0 without a price.
    """

    def __init__(
        self,
        arms: Sequence[str],
        million: Mapping[str, float],
        means: Sequence[float] = (),
        cached: Mapping[str, tuple[float, float | None]] | None = None,
    ):
        unknown = sorted(set(million) - set(arms))
        if unknown:
            raise RouterError(f"prices: unknown model {unknown[0]!r}; this router knows {', '.join(arms)}")
        values = np.array([million.get(arm, np.nan) for arm in arms], dtype=np.float64)
        if (values < 0).any() or np.isinf(values).any():
            raise RouterError("prices: expected USD >= 0 per one million tokens")
        self.priced = np.isfinite(values)
        self.input = np.where(self.priced, values, 0.0) / PRICED_TOKENS
        self.means = np.array(means, dtype=np.float64)
        pairs = [(cached or {}).get(arm, (0.0, None)) for arm in arms]
        saved = [SAVED * full if low is None else max(full - low, 0.0) for full, low in pairs]
        self.savings = np.array(saved) / PRICED_TOKENS

    @classmethod
    def of(cls, manifest: Manifest, options: RouterOptions) -> Prices:
        """Those of a bundle's models."""
        means = [float(arm["mean_cost"]) for arm in manifest.arms]
        return cls(manifest.names, options.prices or {}, means, options.cache_prices)

    def charge(
        self, predicted: np.ndarray | None, text_tokens: float, tokens: float | None, factors: np.ndarray
    ) -> Charge | None:
        """The expected cost of a request; None: neither the policy nor a price asks for costs.

        Args:
            predicted: cost `[K]` that the bundle's predictor gives for the prompt's text; None: none is read.
            text_tokens: of that text. tokens: of the whole request; None: those of the text.
            factors: `[K]` of `Charges`.
        """
        if predicted is None:
            if not self.priced.any():
                return None
            predicted = self.means
        into = self.input * (text_tokens if tokens is None else tokens)
        least = np.maximum(predicted - self.input * text_tokens, LEAST_OUTPUT * predicted)
        out = np.where(self.priced, least, predicted)
        return Charge(into + out * factors, into, out)
