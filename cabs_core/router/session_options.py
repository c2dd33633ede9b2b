"""Settings of conversations that a router checks and holds; `sessions` explains them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import get_args

import numpy as np

from cabs_core.errors import RouterError
from cabs_core.utility import Sticky

STICKY: tuple[str, ...] = get_args(Sticky)
ROUTE_BY: tuple[str, ...] = ("last_user", "first_user", "conversation")
#: share of the price of a token in that a cached one saves, where the upstream file does not say
SAVED = 0.5


def cache_savings(
    arms: Iterable[str], prices: Mapping[str, tuple[float, float | None]] | None = None
) -> np.ndarray:
    """USD `[K]` that a token in costs less when the provider has cached it; 0 where no price is known.

    Args:
        prices: {model: (USD per one million tokens in, the same when cached or None)}.
    """
    pairs = [(prices or {}).get(arm, (0.0, None)) for arm in arms]
    savings = [SAVED * full if cached is None else max(full - cached, 0.0) for full, cached in pairs]
    return np.array(savings) / 1e6


def check_options(sticky: str, route_by: str) -> None:
    """RouterError for settings that there are not."""
    for what, value, choices in (("sticky", sticky, STICKY), ("route_by", route_by, ROUTE_BY)):
        if value not in choices:
            raise RouterError(f"{what} {value!r:.40}: expected one of {', '.join(choices)}")
