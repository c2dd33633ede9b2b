"""How a router behaves: which arms it plays, how often it changes its mind, how long it takes."""

from __future__ import annotations

import numpy as np


def arm_shares(actions, arms: int) -> np.ndarray:
    """[..., arms] share of the rounds in which each arm was played; actions [..., T] in 0..arms-1."""
    actions = np.asarray(actions)
    if actions.shape[-1] == 0:
        raise ValueError("no rounds: shares are undefined")
    if actions.min() < 0 or actions.max() >= arms:
        raise ValueError(f"actions hold {actions.min()}..{actions.max()}, expected 0..{arms - 1}")
    flat = actions.reshape(-1, actions.shape[-1])
    shares = np.stack([np.bincount(row, minlength=arms) for row in flat]) / actions.shape[-1]
    return shares.reshape(*actions.shape[:-1], arms)


def switch_rate(actions) -> np.ndarray:
    """[...] share of rounds whose arm differs from the round before; 0 for a single round."""
    actions = np.asarray(actions)
    if actions.shape[-1] < 2:
        return np.zeros(actions.shape[:-1])
    return (actions[..., 1:] != actions[..., :-1]).mean(axis=-1)


def effective_arms(shares) -> np.ndarray:
    """[...] exp(entropy) of the shares [..., K]: 1 for one arm, K for uniform play."""
    shares = np.asarray(shares, dtype=np.float64)
    positive = np.where(shares > 0, shares, 1.0)
    return np.exp(-(positive * np.log(positive)).sum(axis=-1))


def latency_percentiles(seconds) -> dict[str, float]:
    """{'p50', 'p95', 'p99'} of the values, linear interpolation between order statistics; NaN when empty."""
    seconds = np.asarray(seconds, dtype=np.float64).reshape(-1)
    seconds = seconds[np.isfinite(seconds)]
    return {f"p{p}": float(np.percentile(seconds, p)) if seconds.size else float("nan") for p in (50, 95, 99)}
