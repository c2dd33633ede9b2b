"""A hard limit on what the calls of a UTC day cost, in USD: at most one call goes above it.

Each call reserves its highest cost in the log before it is made, so the limit holds over restarts, new
bundles and all workers. While the log cannot be reached, a worker counts alone. A clock that is set back does
not begin an earlier day again.
"""

import logging
import math
import time

from cabs_core.base.errors import LogError, RouterError
from cabs_core.base.units import SECONDS_PER_DAY
from cabs_core.data.events.log import EventLog
from cabs_core.data.events.reservations import STANDS, release, renew, reserve

logger = logging.getLogger("cabs.serve")


class Cap:
    """The limit of a day, and what this worker knows of the day's cost.

    The event loop, the worker thread of decisions and the keeper's thread use it.

    Args:
        usd: limit of a day in USD, > 0.

    Raises:
        RouterError: `usd` is not positive and finite.

    Attributes:
        day: the day that is counted, in days since 1970.
        spent: USD of that day, by the log and by this worker's calls.
        held: {name of a call under way: USD that it has reserved}.
        dearest: {model: USD of its dearest call so far}.
    """

    def __init__(self, usd: float):
        if not 0.0 < usd < math.inf:
            raise RouterError(f"--budget-cap-per-day {usd}: expected USD > 0")
        self.usd = float(usd)
        self.day = _today()
        self.spent = 0.0
        self.held: dict[str, float] = {}
        self.dearest: dict[str, float] = {}
        self._renewed_at = time.monotonic()

    def _begin_new_day(self) -> None:
        """Set the cost to 0 if a new day has begun."""
        today = _today()
        if today > self.day:
            self.day = today
            self.spent = 0.0

    def begin(self, log: EventLog, name: str, most: float) -> bool:
        """Reserve the highest cost of a call.

        Args:
            name: random name of the call. most: USD that it may cost.

        Returns:
            False if the call must not be made: the limit is reached, or calls under way may use the rest. If
            the log cannot be used, only this worker's calls count.
        """
        self._begin_new_day()
        try:
            is_reserved, spent = reserve(log, name, most, usd=self.usd, day=self.day)
            self.spent = max(self.spent, spent)
        except LogError as error:
            logger.error("the budget of the day is counted in this worker alone: %s", error)
            is_reserved = self.spent + sum(self.held.values()) < self.usd
        if is_reserved:
            self.held[name] = most
        return is_reserved

    def end(self, log: EventLog, name: str) -> None:
        """Release the reservation of a call whose cost is in the log. Do nothing if it has no reservation.

        Raises:
            LogError: the log cannot be written.
        """
        if self.held.pop(name, None) is not None:
            release(log, name)

    def add(self, model: str, cost: float) -> None:
        """Add the cost of a call, in USD, to the day's cost, and remember it if it is the model's dearest."""
        self._begin_new_day()
        self.spent += cost
        self.dearest[model] = max(cost, self.dearest.get(model, 0.0))

    def follow(self, log: EventLog, day: int, spent: float) -> None:
        """Raise the day's cost to the cost in the log, and renew the reservations of calls under way.

        Reservations are renewed when a quarter of the time for which they stand has passed.

        Args:
            day: day of the cost, in days since 1970. The cost of another day than the counted one is ignored.
            spent: cost of that day by the log, USD.

        Raises:
            LogError: the log cannot be written.
        """
        self._begin_new_day()
        if day == self.day:
            self.spent = max(self.spent, spent)
        if self.held and time.monotonic() - self._renewed_at > STANDS / 4.0:
            renew(log, list(self.held))
            self._renewed_at = time.monotonic()

    def reached(self) -> bool:
        """Return True if the cost of the day has reached the limit."""
        self._begin_new_day()
        return self.spent >= self.usd

    def seconds_left(self) -> int:
        """Return the seconds until the next day begins, at least 1."""
        return max(math.ceil((self.day + 1) * SECONDS_PER_DAY - time.time()), 1)


def _today() -> int:
    """Return the UTC day by this machine's clock, in days since 1970."""
    return int(time.time() // SECONDS_PER_DAY)
