"""The expected cost of a call: the part that is known before it, and the one factor that has to be learnt.

    expected cost = price in x tokens in  +  predicted cost of the tokens out x factor of the model

Tokens in are those of the whole request, so a long conversation costs what it costs and teaches nothing about a model.
The predicted cost of the tokens out is that of the bundle's predictor less its part for the prompt. The factor of a
model is the mean ratio of what its output cost to what was predicted, with `PRIOR` calls of ratio 1 before the first.

One outcome counts at most `LARGEST` times what was expected, so it moves a factor by less than
(LARGEST - 1) / (PRIOR + 1) = 14.3 % upwards, and by less than 1 / (PRIOR + 1) = 4.8 % downwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cabs_core.endpoints.usage import MOST_USD
from cabs_core.errors import RouterError

PRIOR = 20.0
LARGEST = 4.0
#: least share of a predicted cost that is that of the output
LEAST_OUTPUT = 0.1
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


def check_client_cost(cost: Any, *known: float | None) -> None:
    """RouterError for a cost from a client that is no number from 0 to MOST_TIMES the largest known or expected one, in USD."""
    most = min(MOST_TIMES * max((value for value in known if value is not None), default=0.0), MOST_USD)
    if isinstance(cost, bool) or not isinstance(cost, int | float) or not 0.0 <= cost <= most:
        raise RouterError(
            f"cost {cost!r:.60}: expected USD from 0 to {most:.3g}, {MOST_TIMES:g} times the expected"
        )


class Prices:
    """Prices `[K]` of a router's models, USD per token in.

    Args:
        arms: names. million: {name: USD per one million tokens in}; a model that is absent has no known price, and
            its predicted cost stays as it is.
    """

    def __init__(self, arms: Sequence[str], million: Mapping[str, float]):
        unknown = sorted(set(million) - set(arms))
        if unknown:
            raise RouterError(f"prices: unknown model {unknown[0]!r}; this router knows {', '.join(arms)}")
        values = np.array([million.get(arm, np.nan) for arm in arms], dtype=np.float64)
        if (values < 0).any() or np.isinf(values).any():
            raise RouterError("prices: expected USD >= 0 per one million tokens")
        self.input = values / 1e6

    def split(self, predicted: np.ndarray, own: float, tokens: float | None) -> tuple[Any, Any]:
        """(known cost of the tokens in, predicted cost of the tokens out), USD `[K]`, before any factor.

        Args:
            predicted: cost `[K]` that the bundle's predictor gives for the prompt's text.
            own: tokens of that text. tokens: of the whole request; None: those of the text.
        """
        priced = np.isfinite(self.input)
        price = np.where(priced, self.input, 0.0)
        into = price * (own if tokens is None else tokens)
        out = np.where(priced, np.maximum(predicted - price * own, LEAST_OUTPUT * predicted), predicted)
        return into, out
