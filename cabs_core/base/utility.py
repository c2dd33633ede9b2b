"""Utility of a routed call: r = y - rho c - rho1 l, clipped to [0, 1] (paper, equation 1).

y is the score in [0, 1], c the cost in USD, l the latency in seconds; rho and rho1 say how many units of
score a dollar and a second are worth. Learners are fed the clipped utility, as in the paper.
`compiled.utility` is the same for single values inside compiled loops.
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
    """The middle one of one or more cost sensitivities, the lower of two: what is timed, deployed and shown
    first where nobody names another."""
    values = sorted(rhos)
    return float(values[(len(values) - 1) // 2])


def price(costs: ArrayLike, rho: float | np.ndarray) -> np.ndarray:
    """rho c, the deduction of a call's cost from its score; arrays of shapes that broadcast, rho >= 0."""
    return rho * np.asarray(costs, dtype=np.float64)


def utility(
    scores: ArrayLike,
    costs: ArrayLike,
    rho: float | np.ndarray,
    latencies: ArrayLike | None = None,
    latency_weight: float = 0.0,
) -> np.ndarray:
    """y - rho c - rho1 l, not clipped; arrays of shapes that broadcast, rho and latency_weight >= 0.

    Raises:
        ValueError: latencies weigh, and there are none.
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
    """`utility` clipped to [0, 1]: what learners see and what is reported unless a column says otherwise."""
    clipped: np.ndarray = np.clip(utility(scores, costs, rho, latencies, latency_weight), 0.0, 1.0)
    return clipped


def margin(costs: ArrayLike, rho: float | np.ndarray) -> np.ndarray:
    """(1 - rho c)+, the most that a call can be worth: the clipped utility of a score of 1."""
    return clipped_utility(1.0, costs, rho)


def binary_share(scores: ArrayLike, predictions: ArrayLike | None = None) -> float:
    """How binary the scores are, in [0, 1]: E (y - f)^2 / E f (1 - f), 1 for scores of 0 and 1 only.

    scores [n, K] in [0, 1]; predictions [n, K] of them, by default every arm's mean score.
    """
    y = np.asarray(scores, dtype=np.float64)
    f = np.broadcast_to(y.mean(axis=0), y.shape) if predictions is None else np.clip(predictions, 0.0, 1.0)
    spread = float(np.mean(f * (1.0 - f)))
    return 1.0 if spread <= 0.0 else float(np.clip(np.mean((y - f) ** 2) / spread, 0.0, 1.0))


def expected_utility(
    predicted_scores: ArrayLike,
    predicted_costs: ArrayLike,
    rho: float,
    share: float = 1.0,
) -> np.ndarray:
    """Expected clipped utility of predicted scores and costs [..., K].

    For scores of 0 and 1, clip(y - rho c, 0, 1) = y (1 - rho c)+ exactly, so its expectation is the product
    of the predicted score and the margin; clip(yhat - rho c) is not. Graded scores want the linear rule, and
    `share` (see `binary_share`) blends the two.
    """
    f = np.clip(np.asarray(predicted_scores, dtype=np.float64), 0.0, 1.0)
    product: np.ndarray = f * margin(predicted_costs, rho)
    if share >= 1.0:
        return product
    linear = clipped_utility(f, predicted_costs, rho)
    return share * product + (1.0 - share) * linear


def may_keep(sticky: str, in_tools: bool) -> bool:
    """Whether a turn of a conversation may keep the model of the turn before, by `sticky`."""
    return sticky == "session" or (sticky == "tools" and in_tools)


def worth_a_switch(
    scores: np.ndarray,
    costs: np.ndarray,
    arm: int,
    rho: float,
    lost: float,
    available: np.ndarray | None = None,
) -> bool:
    """Whether some model is worth more than `arm` by more than the prompt cache that a switch loses.

    max_j (s_j - rho c_j) - (s_arm - rho c_arm) > rho x lost, with s the predicted scores `[K]`, c the
    expected costs `[K]` in USD of the whole request without any cache, and `lost` the USD that the cache of
    `arm` saves.

    Args:
        available: bool `[K]` of models that may be asked; None: all.
    """
    worth = utility(scores, costs, rho)
    best = float(worth.max() if available is None else worth[available].max())
    return best - float(worth[arm]) > float(price(lost, rho))
