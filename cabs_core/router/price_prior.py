"""A prior from prices alone: dearer models are a little better.

A router starts from this prior before anything was measured (`cold`).
"""

from collections.abc import Mapping

import numpy as np

from cabs_core.base.errors import RouterError
from cabs_core.data.endpoints.upstreams import Upstream

#: Expected score of a model at the geometric mean of the prices.
MEAN = 0.6
#: Expected gain in score for ten times the price.
PER_DECADE = 0.1
#: Bounds of the expected score.
LOWEST = 0.3
HIGHEST = 0.9
#: Number of tokens in of a typical call, and number of tokens out.
TYPICAL_TOKENS = 200.0


def price_of(upstream: Upstream) -> float:
    """Return the cost of a typical call, USD: 200 tokens in, 200 out. It is 0 for a free model.

    Raises:
        RouterError: the model has neither a price nor `free: true`.
    """
    if upstream.price is None and not upstream.free:
        raise RouterError(
            "it has no price: give price: {input: , output: } in USD per million tokens, or free: true"
        )
    return upstream.usd_of_tokens(TYPICAL_TOKENS, TYPICAL_TOKENS)


def known_prices(models: Mapping[str, Upstream]) -> dict[str, float]:
    """Return {model: USD of a typical call} of the models that have a price or are free (0 USD)."""
    return {name: price_of(upstream) for name, upstream in models.items() if upstream.free or upstream.price}


def prior_scores(prices: np.ndarray) -> np.ndarray:
    """Return the scores `[K]` that prices `[K]` (USD) suggest, from `LOWEST` to `HIGHEST`.

    The score is `MEAN` at the geometric mean of the prices, and `PER_DECADE` more at ten times it. The price
    of a free model counts as a tenth of the lowest price. Without any price all scores are `MEAN`.
    """
    paid = prices > 0
    if not paid.any():
        return np.full(len(prices), MEAN)
    logs = np.log10(np.where(paid, prices, 1.0))
    logs[~paid] = logs[paid].min() - 1
    scores: np.ndarray = np.clip(MEAN + PER_DECADE * (logs - logs.mean()), LOWEST, HIGHEST)
    return scores
