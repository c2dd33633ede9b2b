"""Utility of a routed call: r = y - rho c - rho1 l, clipped to [0, 1] (paper, equation 1).

y is the score in [0, 1], c the cost in USD and l the latency in seconds. rho and rho1 say how many units of
score a dollar and a second are worth. Policies learn from the clipped utility, as in the paper.
`compiled.utility` has `price`, `clipped_utility` and `margin` of single values for compiled loops, the latter
two as functions of the price.
"""

from collections.abc import Iterable
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

Sticky = Literal["session", "tools", "off"]

#: largest absolute value of a feature, prediction or delta that an algorithm takes. Features are scaled to
#: about 1; beyond this limit, squares in the ridge models' matrices exhaust float64's precision
LARGEST_INPUT = 1e6


def middle_rho(rhos: Iterable[float]) -> float:
    """Return the lower median of one or more cost sensitivities.

    This rho is timed, deployed and shown first if nobody names another one.
    """
    values = sorted(rhos)
    return float(values[(len(values) - 1) // 2])


def price(costs: ArrayLike, rho: float | np.ndarray) -> np.ndarray:
    """Price of calls in units of score, rho c, for arrays of shapes that broadcast and rho >= 0."""
    return rho * np.asarray(costs, dtype=np.float64)


def utility(
    scores: ArrayLike,
    costs: ArrayLike,
    rho: float | np.ndarray,
    latencies: ArrayLike | None = None,
    latency_weight: float = 0.0,
) -> np.ndarray:
    """Utility y - rho c - rho1 l, not clipped, for arrays of shapes that broadcast.

    Args:
        scores: y in [0, 1].
        costs: c in USD.
        rho: units of score that a dollar is worth, 0 or more.
        latencies: l in seconds. Needed only if `latency_weight` is positive.
        latency_weight: rho1, units of score that a second is worth, 0 or more.

    Raises:
        ValueError: `latency_weight` is positive and there are no latencies.
    """
    value: np.ndarray = np.asarray(scores, dtype=np.float64) - price(costs, rho)
    if latency_weight:
        if latencies is None:
            raise ValueError("latency_weight is positive, but there are no latencies: set it to 0")
        value = value - latency_weight * np.asarray(latencies, dtype=np.float64)
    return value


def clipped_utility(
    scores: ArrayLike,
    costs: ArrayLike,
    rho: float | np.ndarray,
    latencies: ArrayLike | None = None,
    latency_weight: float = 0.0,
) -> np.ndarray:
    """Utility clipped to [0, 1], for policies to learn from and for reports. Arguments as in `utility`."""
    clipped: np.ndarray = np.clip(utility(scores, costs, rho, latencies, latency_weight), 0.0, 1.0)
    return clipped


def margin(costs: ArrayLike, rho: float | np.ndarray) -> np.ndarray:
    """Largest utility that calls can have, (1 - rho c)+, which is the clipped utility of a score of 1."""
    return clipped_utility(1.0, costs, rho)


def binary_share(scores: ArrayLike, predictions: ArrayLike | None = None) -> float:
    """Measure how binary scores are, E (y - f)^2 / E f (1 - f), clipped to [0, 1].

    The measure is 1 if all scores are 0 or 1 and the predictions are calibrated, as mean scores are. The
    measure is also 1 if all predictions are 0 or 1, where the quotient has no value.

    Args:
        scores: y, `[n, K]` in [0, 1].
        predictions: f, `[n, K]` predicted scores. None takes every arm's mean score.
    """
    y = np.asarray(scores, dtype=np.float64)
    if predictions is None:
        f = np.broadcast_to(y.mean(axis=0), y.shape)
    else:
        f = np.clip(predictions, 0.0, 1.0)
    spread = float(np.mean(f * (1.0 - f)))
    if spread <= 0.0:
        return 1.0
    return float(np.clip(np.mean((y - f) ** 2) / spread, 0.0, 1.0))


def expected_utility(
    predicted_scores: ArrayLike,
    predicted_costs: ArrayLike,
    rho: float,
    share: float = 1.0,
) -> np.ndarray:
    """Expected clipped utility of predicted scores and costs, `[..., K]`.

    For scores of 0 and 1, clip(y - rho c, 0, 1) = y (1 - rho c)+. The expectation is therefore the product of
    the predicted score and `margin`, and not clip(yhat - rho c), which suits graded scores.

    Args:
        predicted_scores: `[..., K]`, clipped to [0, 1] here.
        predicted_costs: `[..., K]` USD.
        rho: units of score that a dollar is worth, 0 or more.
        share: weight of the product, in [0, 1] (`binary_share`); clip(yhat - rho c, 0, 1) has the weight
            1 - share.
    """
    f = np.clip(np.asarray(predicted_scores, dtype=np.float64), 0.0, 1.0)
    product: np.ndarray = f * margin(predicted_costs, rho)
    if share >= 1.0:
        return product
    linear = clipped_utility(f, predicted_costs, rho)
    return share * product + (1.0 - share) * linear


def may_keep(sticky: str, in_tools: bool) -> bool:
    """Return True if a turn of a conversation may keep the model of the turn before.

    Args:
        sticky: `session` allows this in every turn, `tools` in turns that answer a tool call, `off` never.
        in_tools: True if the turn answers a tool call.
    """
    return sticky == "session" or (sticky == "tools" and in_tools)


def worth_a_switch(
    scores: np.ndarray,
    costs: np.ndarray,
    arm: int,
    rho: float,
    lost: float,
    available: np.ndarray | None = None,
) -> bool:
    """Return True if the gain of a switch from `arm` to the best model exceeds the prompt cache that is lost.

    The rule is max_j (s_j - rho c_j) - (s_arm - rho c_arm) > rho lost.

    Args:
        scores: s, `[K]` predicted scores.
        costs: c, `[K]` expected USD of the whole request without any cache.
        arm: the model that answered the turn before.
        rho: units of score that a dollar is worth.
        lost: USD that the prompt cache of `arm` saves.
        available: bool `[K]` of models that may be asked. None allows all.
    """
    worth = utility(scores, costs, rho)
    if available is None:
        allowed = worth
    else:
        allowed = worth[available]
    best = float(allowed.max())
    return best - float(worth[arm]) > float(price(lost, rho))
