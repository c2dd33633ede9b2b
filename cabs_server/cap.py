"""A hard limit on the cost of a UTC day, beside the pacer's target: at most one call above it.

The count is in the log (`reservations`), so restarts, promotions and other workers change nothing. Where the
log cannot be reached, this worker goes on by its own count. A clock that goes back stays on the day that had
begun.
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
    """Used from the thread beside the event loop and from the keeper's.

    Args:
        usd: of a day, > 0.

    Attributes:
        spent: USD on the day, as far as this worker knows. held: {call under way: USD that it may cost}.
        dearest: {model: USD of its dearest call so far}.
    """

    def __init__(self, usd: float):
        if not 0.0 < usd < math.inf:
            raise RouterError(f"--budget-cap-per-day {usd}: expected USD > 0")
        self.usd = float(usd)
        self.day = int(time.time() // SECONDS_PER_DAY)
        self.spent, self.held, self.dearest = 0.0, dict[str, float](), dict[str, float]()
        self._renewed = time.monotonic()

    def _today(self) -> None:
        today = int(time.time() // SECONDS_PER_DAY)
        if today > self.day:
            self.day, self.spent = today, 0.0

    def begin(self, log: EventLog, name: str, most: float) -> bool:
        """Whether a call may be made; it is then under way.

        Where it may not: `reached`, or those under way may use the rest.

        Args:
            name: of the call, random. most: USD that it may cost.
        """
        self._today()
        try:
            may, spent = reserve(log, name, most, usd=self.usd, day=self.day)
            self.spent = max(self.spent, spent)
        except LogError as error:
            logger.error("the budget of the day is counted in this worker alone: %s", error)
            may = self.spent + sum(self.held.values()) < self.usd
        if may:
            self.held[name] = most
        return may

    def end(self, log: EventLog, name: str) -> None:
        """A call has ended, and what it cost is in the log. Raises LogError: the log cannot be written."""
        if self.held.pop(name, None) is not None:
            release(log, name)

    def add(self, model: str, cost: float) -> None:
        """A call has cost so much, which the log will say in a moment."""
        self._today()
        self.spent += cost
        self.dearest[model] = max(cost, self.dearest.get(model, 0.0))

    def follow(self, log: EventLog, day: int, spent: float) -> None:
        """What the log says was spent on a day (days since 1970); calls under way are renewed in time."""
        self._today()
        if day == self.day:
            self.spent = max(self.spent, spent)
        if self.held and time.monotonic() - self._renewed > STANDS / 4.0:
            renew(log, list(self.held))
            self._renewed = time.monotonic()

    def reached(self) -> bool:
        """Whether nothing more may be spent today."""
        self._today()
        return self.spent >= self.usd

    def seconds_left(self) -> int:
        """Until the next day begins."""
        return max(math.ceil((self.day + 1) * SECONDS_PER_DAY - time.time()), 1)
