"""A circuit breaker for one upstream: it decides by the last calls whether the upstream may be asked now.

closed     the upstream is asked
open       the upstream is not asked, for `cooldown` seconds or as long as its `Retry-After` asks for; twice
           as long after each failed trial
half-open  one call at a time may try; the first one that succeeds closes the breaker

The breaker opens when at least `failures` calls in the last `window` seconds failed, and these are at least
half of the calls. A refused key or a model that is gone opens the breaker at once.

A failure counts (`failed`) if another model answered the same request. Otherwise the request may be at fault:
the failure is only noted (`suspected`), and counts once requests of two keys have failed, or, on a server
with fewer than two keys, five different requests that left the choice of the model to the router.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

#: longest time that a breaker stays open without a trial, seconds
LONGEST = 300.0
#: keys whose requests failed, and different requests of a single key, after which suspicions count
_KEYS = 2
_REQUESTS = 5


class Suspicion(NamedTuple):
    """A failure that may be the request's own fault.

    Attributes:
        when: time of the failure, seconds of the breaker's clock.
        caller: name of the key.
        request: hash of the request.
        chose: True if the request named models itself.
        at_once: True if one such failure opens the breaker.
    """

    when: float
    caller: str
    request: int
    chose: bool
    at_once: bool


class Breaker:
    """A circuit breaker of one upstream in this process, which is used from one thread.

    Args:
        failures: least number of failures that open the breaker, >= 1.
        window: seconds in which calls are counted.
        cooldown: seconds that the breaker stays open at first.
        longest: most seconds that the breaker stays open without a trial.
        has_keys: True if the server has two keys or more, so that suspicions of one key alone do not count.
        clock: function that returns seconds of a monotonic clock.

    Attributes:
        opened: number of times that the breaker has opened.
        reason: reason of the last failure.
    """

    def __init__(
        self,
        *,
        failures: int = 3,
        window: float = 60.0,
        cooldown: float = 10.0,
        longest: float = LONGEST,
        has_keys: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.failures = failures
        self.window = window
        self.cooldown = cooldown
        self.longest = longest
        self.has_keys = has_keys
        self._clock = clock
        self._calls: deque[tuple[float, bool]] = deque(maxlen=1000)
        self._suspicions: deque[Suspicion] = deque(maxlen=1000)
        self._until: float | None = None
        self._rest = cooldown
        self._trial: float | None = None
        self.opened = 0
        self.reason = ""

    @property
    def state(self) -> str:
        """State of the breaker: closed, open or half-open."""
        if self._until is None:
            return "closed"
        if self._clock() < self._until:
            return "open"
        return "half-open"

    def allows(self) -> bool:
        """Return True if a call may be made now.

        A call may be made if the breaker is closed, or half-open without a trial under way. A trial whose end
        nobody reported holds other calls back for `LONGEST` seconds at most.
        """
        if self._until is None:
            return True
        return self._may_try(self._until)

    def begin(self) -> None:
        """Note that a call is made. The first call while the breaker is half-open is the trial."""
        if self._until is not None and self._may_try(self._until):
            self._trial = self._clock()

    def succeeded(self) -> None:
        """Note that a call was answered. A half-open breaker closes, and suspicions are forgotten."""
        now = self._clock()
        if self._until is not None and now >= self._until:
            self._until = None
            self._rest = self.cooldown
            self._calls.clear()
        self._trial = None
        self._suspicions.clear()
        self._calls.append((now, True))

    def failed(self, reason: str, retry_after: float | None = None, *, at_once: bool = False) -> None:
        """Count a failure that is the upstream's fault, and open the breaker if there are enough failures.

        A half-open breaker opens again, for twice as long as before. An open breaker stays as it is.

        Args:
            retry_after: seconds that the upstream asked to wait.
            at_once: True if no call can work now, so that one failure opens the breaker.
        """
        now = self._clock()
        self.reason = reason
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

    def suspected(
        self,
        reason: str,
        retry_after: float | None = None,
        *,
        caller: str,
        request: int,
        chose: bool,
        at_once: bool = False,
    ) -> None:
        """Note a failure that may be the request's own fault, and count all suspicions once there are enough.

        A suspicion counts at once if the breaker is half-open.

        Args:
            retry_after, at_once: see `failed`.
            caller, request, chose: see `Suspicion`.
        """
        now = self._clock()
        if self._until is not None and now >= self._until:  # it was open already: the trial failed
            self.failed(reason, retry_after, at_once=at_once)
            return
        self._trial = None
        while self._suspicions and now - self._suspicions[0].when > self.window:
            self._suspicions.popleft()
        self._suspicions.append(Suspicion(now, caller, request, chose, at_once))
        callers = {suspicion.caller for suspicion in self._suspicions}
        requests = {suspicion.request for suspicion in self._suspicions if not suspicion.chose}
        if len(callers) < _KEYS and (self.has_keys or len(requests) < _REQUESTS):
            return
        pending = list(self._suspicions)
        self._suspicions.clear()
        for suspicion in pending:
            self.failed(reason, retry_after, at_once=suspicion.at_once)

    def released(self) -> None:
        """Note that a call ended without a verdict on the upstream. Another call may be the trial."""
        self._trial = None

    def _may_try(self, until: float) -> bool:
        """Return True if the breaker's rest ended at `until` and no trial is under way."""
        now = self._clock()
        # a trial whose end nobody reported does not keep the others waiting for ever
        return now >= until and (self._trial is None or now - self._trial > LONGEST)

    def _open(self, now: float, retry_after: float | None) -> None:
        """Open the breaker for `_rest` or `retry_after`, whichever is longer, and for `longest` at most.

        `_rest` is the cooldown, doubled after each failed trial.
        """
        self._until = now + min(max(self._rest, retry_after or 0.0), self.longest)
        self._trial = None
        self.opened += 1
