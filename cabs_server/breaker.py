"""A circuit breaker for one upstream: whether it may be asked now, from how its last calls went.

closed     it is asked
open       it is not, for `cooldown` seconds or as long as its `Retry-After` asks for; twice as long after
           each failed trial
half-open  one call at a time may try; the first that succeeds closes it

It opens when at least `failures` calls in the last `window` seconds failed, and they are at least half of the
calls: one caller's bad luck moves nobody else's traffic. A refused key or a model that is gone opens it at
once. Failures that followed one request through every model that it tried say nothing about a model and are
not reported here (`forwarding`).
"""

import time
from collections import deque
from collections.abc import Callable

#: longest time that it stays open without a trial, seconds
LONGEST = 300.0


class Breaker:
    """State of one upstream in this process; used from one thread.

    Args:
        failures: least failures that open it, >= 1. window, cooldown: seconds. clock: seconds, monotonic.
        longest: most seconds that it stays open without a trial.

    Attributes:
        opened: how often it has opened. reason: of the last failure.
    """

    def __init__(
        self,
        *,
        failures: int = 3,
        window: float = 60.0,
        cooldown: float = 10.0,
        longest: float = LONGEST,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.failures, self.window, self.cooldown, self.longest = failures, window, cooldown, longest
        self._clock = clock
        self._calls: deque[tuple[float, bool]] = deque(maxlen=1000)
        self._until: float | None = None
        self._rest = cooldown
        self._trial: float | None = None
        self.opened, self.reason = 0, ""

    @property
    def state(self) -> str:
        """closed, open or half-open."""
        if self._until is None:
            return "closed"
        return "open" if self._clock() < self._until else "half-open"

    def allows(self) -> bool:
        """Whether a call may be made now."""
        if self._until is None:
            return True
        now = self._clock()
        # a trial whose end nobody reported does not keep the others waiting for ever
        return now >= self._until and (self._trial is None or now - self._trial > LONGEST)

    def begin(self) -> None:
        """A call is made; half-open, it is the trial."""
        if self._until is None or self._trial is not None:
            return
        if (now := self._clock()) >= self._until:
            self._trial = now

    def succeeded(self) -> None:
        """A call was answered."""
        now = self._clock()
        if self._until is not None and now >= self._until:
            self._until, self._rest = None, self.cooldown
            self._calls.clear()
        self._trial = None
        self._calls.append((now, True))

    def failed(self, reason: str, retry_after: float | None = None, *, at_once: bool = False) -> None:
        """A call failed for a reason that lies with the upstream.

        Args:
            retry_after: seconds that it asked for. at_once: no call can work now, so one failure opens.
        """
        now, self.reason = self._clock(), reason
        self._calls.append((now, False))
        if self._until is not None:
            if now >= self._until:  # the trial failed
                self._rest = min(2.0 * self._rest, self.longest)
                self._open(now, retry_after)
            return
        while now - self._calls[0][0] > self.window:
            self._calls.popleft()
        bad = sum(not good for _, good in self._calls)
        if at_once or (bad >= self.failures and 2 * bad >= len(self._calls)):
            self._rest = self.cooldown
            self._open(now, retry_after)

    def released(self) -> None:
        """A call ended in a way that says nothing about the upstream."""
        self._trial = None

    def _open(self, now: float, retry_after: float | None) -> None:
        self._until = now + min(max(self._rest, retry_after or 0.0), self.longest)
        self._trial = None
        self.opened += 1
