"""What a large event log costs: `/metrics`, a restart from a checkpoint, a promoted bundle, `cabs doctor`,
compaction.

    python -m benchmarks.large_log --router router --decisions 1000000

The log is filled with copies of decisions that the router made, under ids of their own, a share of them
scored; all figures are taken on it afterwards, each in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.script import Script, write_figures
from cabs_core.base.paths import default_log
from cabs_core.data.events.log import EventLog
from cabs_core.data.events.retention import compact
from cabs_core.router.doctor import examine
from cabs_core.router.router import Router
from cabs_server.metrics import Counters, metrics_text

_ROWS = 2_000


def fill(bundle: Path, log: Path, decisions: int, scored: float) -> None:
    """Append so many decisions, finished, the given share of them scored, at a rate of one a second; then a
    checkpoint."""
    router = Router.load(bundle, log=":memory:")
    for i in range(200):
        router.route(f"Question number {i}: what is {i} times {i + 1}, and why?")
    rows = [vars(d) for d in router.log.decisions()]
    events, now = EventLog(log), time.time()
    every = max(1, round(1 / scored)) if scored else decisions + 1
    for start in range(0, decisions, _ROWS):
        batch = [
            rows[i % len(rows)] | {"id": uuid.uuid4().hex, "ts": now - (decisions - i), "status": "answered"}
            for i in range(start, min(start + _ROWS, decisions))
        ]
        events.add_decisions(batch)
        for i, row in enumerate(batch, start):
            if i % every == 0:
                events.add_reward(row["id"], (i % 11) / 10, 1e-4, "user", f"{row['id']}:user")
    events.close()
    full = Router.load(bundle, log=log)
    full.close()


def measure(bundle: Path, log: Path, what: str) -> dict[str, Any]:
    """One figure, taken in this process: seconds, and the largest memory of the process in MB."""
    before = time.perf_counter()
    figures: dict[str, Any] = {}
    if what == "metrics":
        events = EventLog(log)
        times = []
        for _ in range(20):
            before = time.perf_counter()
            metrics_text(events, "bundle", Counters(), [])
            times.append(time.perf_counter() - before)
        figures = {"seconds": max(times), "median seconds": sorted(times)[10]}
    elif what == "restart":
        Router.load(bundle)  # libraries and compiled code, which have nothing to do with the log
        figures = {"without a log, seconds": time.perf_counter() - before}
        before = time.perf_counter()
        router = Router.load(bundle, log=log)
        figures |= {"learnt": router.learner.learnt, "seconds": time.perf_counter() - before}
        before = time.perf_counter()
        router.route("and one decision")
        figures["first decision, seconds"] = time.perf_counter() - before
    elif what == "doctor":
        figures = {"decisions": examine(bundle, log)["decisions"], "seconds": time.perf_counter() - before}
    elif what == "compact":
        figures = {
            **compact(EventLog(log), time.time() - 7 * 86_400.0),
            "seconds": time.perf_counter() - before,
            "MB after": log.stat().st_size / 1e6,
        }
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return figures | {"peak MB": peak / 1e3}


def run(bundle: Path, decisions: int, scored: float, place: Path) -> dict[str, Any]:
    """All figures, on a log in the folder `place`."""
    log = default_log(place / "router")
    begin = time.perf_counter()
    fill(bundle, log, decisions, scored)
    figures: dict[str, Any] = {
        "decisions": decisions,
        "MB": log.stat().st_size / 1e6,
        "filled, seconds": time.perf_counter() - begin,
    }
    for what in ("metrics", "restart", "doctor", "compact", "restart"):
        command = [
            sys.executable,
            "-m",
            "benchmarks.large_log",
            "--router",
            str(bundle),
            "--one",
            what,
            str(log),
        ]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        figures[what if what not in figures else f"{what} after compaction"] = json.loads(out)
    return figures


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Fill a log, and print the figures."""
    parser = Script(__file__, __doc__)
    parser.add_argument("--router", default="router", help="folder of the router")
    parser.add_argument("--decisions", type=int, default=1_000_000)
    parser.add_argument("--scored", type=float, default=0.1, help="share of the decisions with a score")
    parser.add_argument("--one", nargs=2, metavar=("WHAT", "LOG"), help="one figure, of a log that is there")
    options = parser.parse_args(argv)
    bundle = Path(options.router).absolute()
    if options.one:
        figures = measure(bundle, Path(options.one[1]), options.one[0])
    else:
        with tempfile.TemporaryDirectory(prefix="cabs-large-log-") as name:
            figures = run(bundle, options.decisions, options.scored, Path(name))
    print(json.dumps(figures, indent=1))
    write_figures(figures, options.json)
    return figures


if __name__ == "__main__":
    main()
