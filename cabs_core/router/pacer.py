"""A budget in dollars instead of rho: a controller that moves rho until spending fits the target.

rho is the price of a dollar, so the budget's multiplier: after every call it moves by the share that the call was
over its allowance (dual ascent, as the pacer of ParetoBandit), smoothed over some twenty calls. Since it adds up what
was over and under, what is spent in total stays within some calls' worth of the target, as long as a rho of the grid
reaches it. An allowance is the target per request, or what has come in since the last call of a target per day.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from cabs_core.errors import RouterError

SECONDS_PER_DAY = 86_400.0


class Pacer:
    """Gives the rho of the next request; told what every call cost.

    Args:
        per_request, per_day: target in USD, exactly one of them.
        low, high: range of rho, score units per USD, 0 <= low < high. start: first rho.
        step: share of (high - low) that rho moves when calls cost twice their allowance.
        memory: share of the smoothed excess that is kept per call.
        clock: seconds; for targets per day.

    Raises:
        RouterError: no target, two, or one that is not positive.
    """

    def __init__(
        self,
        *,
        per_request: float | None = None,
        per_day: float | None = None,
        low: float = 0.0,
        high: float = 1000.0,
        start: float | None = None,
        step: float = 0.02,
        memory: float = 0.95,
        clock: Callable[[], float] = time.time,
    ):
        targets = [t for t in (per_request, per_day) if t is not None]
        if len(targets) != 1 or not 0.0 < targets[0] < math.inf:
            raise RouterError(
                f"budget per request {per_request} and per day {per_day}: give one of them, in USD, > 0"
            )
        if not 0.0 <= low < high < math.inf:
            raise RouterError(f"budget: rho from {low} to {high}: expected 0 <= low < high")
        self.per_request, self.per_day = per_request, per_day
        self.low, self.high, self.step, self.memory = float(low), float(high), float(step), float(memory)
        self.rho = float(min(max(low if start is None else start, low), high))
        self.excess, self.spent, self.allowed, self.calls = 0.0, 0.0, 0.0, 0
        self._scale: float | None = None
        self._clock = clock
        self._last = clock()

    def spend(self, cost: float) -> float:
        """A call cost so much (USD >= 0); returns the rho of the next request."""
        if self.per_request is not None:
            allowance = scale = self.per_request
        else:
            now = self._clock()
            allowance = self.per_day * max(now - self._last, 0.0) / SECONDS_PER_DAY
            self._last = now
            self._scale = cost if self._scale is None else 0.95 * self._scale + 0.05 * cost
            scale = max(self._scale, allowance, 1e-12)
        self.spent, self.allowed, self.calls = self.spent + cost, self.allowed + allowance, self.calls + 1
        # one very dear call must not throw rho from one end to the other
        over = min(max((cost - allowance) / scale, -5.0), 5.0)
        self.excess = self.memory * self.excess + (1.0 - self.memory) * over
        self.rho = min(max(self.rho + self.step * (self.high - self.low) * self.excess, self.low), self.high)
        return self.rho
