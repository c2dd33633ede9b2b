"""How far a collection is: the time left follows from the rate,
and nothing is said of it before there is one."""

import time
from types import SimpleNamespace

import pytest

from cabs_core.data.collect.asking import Tally


@pytest.mark.parametrize(
    ("done", "seconds", "text"),
    [(10, 10, ", about 2 minutes left"), (0, 10, "0.0 a second; "), (99, 10, ", about 0 s left")],
)
def test_the_time_left_follows_from_the_rate(done, seconds, text):
    lines: list[str] = []
    now = time.monotonic()
    progress = Tally(100, done, began=now - seconds, _last_notice=now - 60)
    progress.tell(SimpleNamespace(spent=0.1, most=1.0), lines.append)
    assert text in lines[0] and (done > 0 or "left" not in lines[0])
