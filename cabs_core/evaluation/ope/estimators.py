"""Estimators of the mean outcome of a target policy, as contributions of single decisions.

n decisions, K arms, pi target, mu logging policy, w = pi(a|x) / mu(a|x) of the played arm (the propensity
mu(a|x) in (0, 1]), q [n, K] a model of the outcome. All but SNIPS are means of one number a decision, so that
intervals resample those numbers.
"""

import numpy as np

#: largest weight: no estimate survives one a fraction of this size, and squares of larger ones overflow
_LARGEST = 1e120


def weights(target: np.ndarray, actions: np.ndarray, propensities: np.ndarray) -> np.ndarray:
    """w [n] = pi(a|x) / mu(a|x) of the played arm."""
    with np.errstate(over="ignore"):
        ratio: np.ndarray = target[np.arange(len(actions)), actions] / propensities
    capped: np.ndarray = np.minimum(ratio, _LARGEST)
    return capped


def snips(w: np.ndarray, outcomes: np.ndarray) -> float:
    """Self-normalised: sum(w r) / sum(w). nan where every weight is 0."""
    total = float(w.sum())
    return float((w * outcomes).sum()) / total if total > 0.0 else float("nan")


def direct(target: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Contributions sum_a pi q [n] of the direct method."""
    contributions: np.ndarray = (target * q).sum(axis=1)
    return contributions


def doubly_robust(
    target: np.ndarray,
    w: np.ndarray,
    actions: np.ndarray,
    outcomes: np.ndarray,
    q: np.ndarray,
    switch: float = np.inf,
) -> np.ndarray:
    """Contributions sum_a pi q + w (r - q_a) [n]; SWITCH corrects only where w <= switch."""
    error = outcomes - q[np.arange(len(actions)), actions]
    contributions: np.ndarray = direct(target, q) + np.where(w <= switch, w, 0.0) * error
    return contributions
