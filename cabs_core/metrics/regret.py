"""Regret against the best arm of each query, and what share of the value of full information is recovered."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def cumulative_regret(rewards: ArrayLike, best_rewards: ArrayLike) -> np.ndarray:
    """[..., T] running sum of best - reward; both inputs [..., T] clipped utilities.

    Raises:
        ValueError: a reward above the best one (the two do not belong together).
    """
    regret = np.asarray(best_rewards, dtype=np.float64) - np.asarray(rewards, dtype=np.float64)
    if regret.size and regret.min() < -1e-6:
        raise ValueError(f"a reward exceeds the best reward by {-regret.min():.3g}: the inputs do not match")
    return np.cumsum(regret, axis=-1)


def gap_closed(utility: float, reference: float, full_feedback: float) -> float:
    """Share of the way from the reference (bandit feedback) to full feedback: 0 = reference, 1 = full.

    NaN where full feedback is not better than the reference: there is no gap to close.
    """
    gap = full_feedback - reference
    return float((utility - reference) / gap) if gap > 0 else float("nan")
