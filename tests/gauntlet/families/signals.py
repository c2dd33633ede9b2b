"""SIGINT and SIGTERM at any moment, in the foreground and in the background: the end within two seconds, 130
or 143."""

from __future__ import annotations

import os
import shutil
import signal
import time

from .. import homes
from ..homes import MINE
from ..runner import Nonsense, pick
from .kills import MOMENTS, ORDER

COUNT, QUICK, WHOLE_RUNS = 40, 0, True  # tests/gauntlet/test_interrupted_runs.py sends some
LIMIT = 1800.0
WITHIN = 2.0


def prepare():
    """A finished home, of which a probe deletes what the run shall make again."""
    return homes.finished()


def probe(tally, rng, ready) -> None:
    """One signal in a run that makes some of its stages."""
    number = pick(rng, (signal.SIGINT, signal.SIGTERM))
    background = bool(rng.random() < 0.5)
    moment = pick(rng, ORDER)
    with homes.copied(ready) as home:
        for path in home.glob(MOMENTS[moment]):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for stage in ("outcomes", "tuning", "replay", "marts", "reports", "leaderboard"):
            if rng.random() < 0.3:
                for path in (home / "artifacts" / stage).rglob("*.*"):
                    if path.is_file():
                        path.unlink()
        first = _ignoring if background else (lambda: None)
        process = homes.start(home, "run", "--pool", MINE, first=first)
        while process.poll() is None and not process.output():
            time.sleep(0.002)  # until the command itself has begun, and not only our copy of this process
        until = time.monotonic() + float(rng.choice([0.0, 0.1, 2.0, 20.0]) * rng.random())
        while process.poll() is None and time.monotonic() < until and not set(home.glob(MOMENTS[moment])):
            time.sleep(0.005)
        ended = process.end(number)
        if ended.code == 0:
            tally.calls["ended before the signal"] += 1
            return
        # a busy machine is slow at everything; the load is the number of processes that wait for each core
        limit = WITHIN * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        if ended.code != 128 + number or ended.seconds > limit or "Traceback" in ended.text:
            raise Nonsense(
                f"signal {number}: exit {ended.code} after {ended.seconds:.1f} s: {ended.text[-800:]}"
            )
        tally.calls[f"{signal.Signals(number).name} in the {'back' if background else 'fore'}ground"] += 1


def _ignoring() -> None:
    """As a shell starts a background command."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
