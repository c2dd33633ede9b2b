"""A hard limit on the cost of a UTC day, beside the pacer's target.

What was spent is read from the log, so restarts, promotions and other workers change nothing; calls of this worker that
are under way count what its calls cost on average. A clock that goes back stays on the day that had begun.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from cabs_core.errors import RouterError

DAY = 86_400.0


class Cap:
    """Args: usd: of a day, > 0. clock: seconds since 1970."""

    def __init__(self, usd: float, clock: Callable[[], float] = time.time):
        if not 0.0 < usd < math.inf:
            raise RouterError(f"--budget-cap-per-day {usd}: expected USD > 0")
        self.usd, self._clock = float(usd), clock
        self.day = int(clock() // DAY)
        self.spent, self.under_way = 0.0, 0
        self._n, self._total = 0, 0.0

    def _today(self) -> None:
        today = int(self._clock() // DAY)
        if today > self.day:
            self.day, self.spent = today, 0.0

    def begin(self) -> None:
        """A call is made."""
        self.under_way += 1

    def end(self, cost: float) -> None:
        """A call that was made has ended, and cost so much."""
        self._today()
        self.under_way -= 1
        self._n, self._total = self._n + 1, self._total + cost
        self.spent += cost

    def follow(self, day: int, spent: float) -> None:
        """What the log says was spent on a day (days since 1970)."""
        self._today()
        if day == self.day:
            self.spent = max(self.spent, spent)

    def reached(self) -> bool:
        """Whether nothing more may be spent today."""
        self._today()
        mean = self._total / self._n if self._n else 0.0
        return self.spent + mean * self.under_way >= self.usd

    def seconds_left(self) -> int:
        """Until the next day begins."""
        return max(math.ceil((self.day + 1) * DAY - self._clock()), 1)
