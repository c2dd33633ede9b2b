"""What prices alone say of models: dearer ones are a little better."""

from collections.abc import Mapping

import numpy as np

from cabs_core.base.errors import RouterError
from cabs_core.data.endpoints.upstreams import Upstream

MEAN, PER_DECADE = 0.6, 0.1
LOWEST, HIGHEST = 0.3, 0.9
#: tokens of a typical call, in and out
OUTPUT = 200.0


def price_of(upstream: Upstream) -> float:
    """USD of a typical call: 200 tokens in, 200 out; 0 for a free model.

    Raises:
        RouterError: it has neither a price nor `free: true`.
    """
    if upstream.price is None and not upstream.free:
        raise RouterError(
            "it has no price: give price: {input: , output: } in USD per million tokens, or free: true"
        )
    return upstream.usd_of_tokens(OUTPUT, OUTPUT)


def known_prices(models: Mapping[str, Upstream]) -> dict[str, float]:
    """{model: USD of a typical call} of those whose price is known."""
    return {name: price_of(upstream) for name, upstream in models.items() if upstream.free or upstream.price}


def prior_scores(prices: np.ndarray) -> np.ndarray:
    """`[K]` scores that prices (USD) suggest: MEAN at the geometric mean, PER_DECADE more at ten times it.

    A free model counts as a tenth of the cheapest that is not.
    """
    paid = prices > 0
    if not paid.any():
        return np.full(len(prices), MEAN)
    logs = np.log10(np.where(paid, prices, 1.0))
    logs[~paid] = logs[paid].min() - 1
    scores: np.ndarray = np.clip(MEAN + PER_DECADE * (logs - logs.mean()), LOWEST, HIGHEST)
    return scores
