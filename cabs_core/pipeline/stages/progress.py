"""Progress of long work in words: after a few seconds, then every ten, with the rate and the time left.

The first piece includes the start of the work, so rates are of the pieces that follow.
"""

import time
from collections.abc import Callable

from cabs_core.base.units import duration

#: seconds before the first line, and between lines
_FIRST = 3.0
_EVERY = 10.0


class Progress:
    """Reporter of how far work is. A call with (done, total) passes a line to `notify` now and then.

    Args:
        notify: takes a line of text. what: the work, such as "embedding". unit: what is counted.
        may_end_early: True if the total and the time left are upper bounds.

    Examples:
        >>> told = Progress(print, "embedding", "prompts", clock=iter([0.0, 20.0, 40.0]).__next__)
        >>> told(100, 2000)
        embedding: 100 of 2,000 prompts
        >>> told(600, 2000)
        embedding: 600 of 2,000 prompts, 25 a second, about 56 s left
    """

    def __init__(
        self,
        notify: Callable[[str], None],
        what: str,
        unit: str,
        *,
        may_end_early: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._notify = notify
        self._what = what
        self._unit = unit
        self._clock = clock
        self._most = "at most " if may_end_early else ""
        self._next = clock() + _FIRST
        #: (time, size) of the first piece
        self._first: tuple[float, float] | None = None

    def __call__(self, done: float, total: float) -> None:
        """Report how far the work is, if enough time has passed since the last line and 0 < done <= total."""
        now = self._clock()
        if not 0 < done <= total:
            return
        self._first = self._first or (now, done)
        begun, before = self._first
        if now < self._next:
            return
        self._next = now + _EVERY
        line = f"{self._what}: {done:,.0f} of {self._most}{total:,.0f} {self._unit}"
        if done > before and now > begun:
            rate = (done - before) / (now - begun)
            if rate >= 1:
                speed = f"{rate:,.0f} a second"
            else:
                speed = f"{1 / rate:,.0f} s each"
            line += f", {speed}, {self._most or 'about '}{duration((total - done) / rate)} left"
        self._notify(line)
