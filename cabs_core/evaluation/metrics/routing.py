"""Figures of a router's behaviour: shares of the arms, switches between arms, latencies."""

import numpy as np
from numpy.typing import ArrayLike


def arm_shares(actions: ArrayLike, arms: int) -> np.ndarray:
    """Share of the rounds in which each arm was played, `[..., arms]`, from actions `[..., T]` in 0..arms-1.

    Raises:
        ValueError: there are no rounds, or an action is no arm.
    """
    actions = np.asarray(actions)
    if actions.shape[-1] == 0:
        raise ValueError("no rounds: shares are undefined")
    if actions.min() < 0 or actions.max() >= arms:
        raise ValueError(f"actions hold {actions.min()}..{actions.max()}, expected 0..{arms - 1}")
    flat = actions.reshape(-1, actions.shape[-1])
    shares: np.ndarray = np.stack([np.bincount(row, minlength=arms) for row in flat]) / actions.shape[-1]
    return shares.reshape(*actions.shape[:-1], arms)


def switch_rate(actions: ArrayLike) -> np.ndarray:
    """Share of rounds whose arm differs from that of the round before, `[...]`; 0 for a single round."""
    actions = np.asarray(actions)
    if actions.shape[-1] < 2:
        return np.zeros(actions.shape[:-1])
    rate: np.ndarray = (actions[..., 1:] != actions[..., :-1]).mean(axis=-1)
    return rate


def effective_arms(shares: ArrayLike) -> np.ndarray:
    """Effective number of arms, `[...]`: exp of the entropy of shares `[..., K]`, from 1 to K."""
    shares = np.asarray(shares, dtype=np.float64)
    positive = np.where(shares > 0, shares, 1.0)
    arms: np.ndarray = np.exp(-(positive * np.log(positive)).sum(axis=-1))
    return arms


def latency_percentiles(seconds: ArrayLike) -> dict[str, float]:
    """Percentiles of the finite values, `{"p50": ..., "p95": ..., "p99": ...}`; NaN without finite values."""
    finite: np.ndarray = np.asarray(seconds, dtype=np.float64).reshape(-1)
    finite = finite[np.isfinite(finite)]
    return {f"p{p}": float(np.percentile(finite, p)) if finite.size else float("nan") for p in (50, 95, 99)}
