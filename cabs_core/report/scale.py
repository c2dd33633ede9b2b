"""Axes: round tick values and limits."""

from __future__ import annotations

import math

import numpy as np


def limits(values, *, zero: bool = False, pad: float = 0.04) -> tuple[float, float]:
    """(low, high) around the finite values with a margin; a single value gets an interval around it."""
    values = np.asarray(values, dtype=float)
    values = values[np.isfinite(values)]
    if not values.size:
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    span = (high - low) or abs(high) * 0.1 or 1.0
    return (low if zero and low == 0 else low - pad * span), high + pad * span


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers in [low, high], about `count` of them: multiples of 1, 2, 2.5 or 5 times a power of ten."""
    raw = (high - low) / max(count, 1)
    if not raw > 0 or not math.isfinite(raw):
        return [low]
    power = 10.0 ** math.floor(math.log10(raw))
    step = min((m * power for m in (1, 2, 2.5, 5, 10)), key=lambda s: abs(math.log(s / raw)))
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def tick_text(value: float, step: float) -> str:
    """The value with as many decimals as the step between ticks needs; thousands separated."""
    decimals = max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 2
    if step > 0 and round(step * 10**decimals, 6) != int(round(step * 10**decimals, 6)):
        decimals += 1
    text = f"{value:,.{decimals}f}"
    return "0" if float(value) == 0 else text.replace("-", "−")
