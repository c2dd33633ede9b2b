"""Budgets: a cap that four workers hold, a target that is met across a restart."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor

from cabs_core.router import EventLog, read_manifest

from .play import Seen, behaviour
from .stage import USUAL, Server, Stage, user, wait


def _spent(server: Server) -> float:
    server.rows()
    events = EventLog(server.log, read_only=True)
    found = events.spent()
    events.close()
    return found


@behaviour(short=True)
def a_cap_at_once(stage: Stage) -> Seen:
    """The same cap, 60 requests, 8 at once, on four workers -> at most one call above it"""
    server = stage.fresh(options=("--budget-cap-per-day", f"{10 * USUAL}", "--workers", "4"))
    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(lambda _: server.ask().status_code, range(60)))
    wait(lambda: server.ask().status_code == 429)
    spent = _spent(server) / USUAL
    good = 9.99 < spent <= 11.01 and set(seen) <= {200, 429}
    return good, f"spent {spent:.0f} calls of 10, at 8 requests at once"


@behaviour()
def a_target(stage: Stage) -> Seen:
    """A target a request between the cheapest and the dearest model, half streams, a restart half way ->
    within 3 % after 600 requests, from the log"""
    target, router = 4e-4, stage.routers / "carrot"
    costs = [float(a["mean_cost"]) for a in read_manifest(router).arms]
    changes = {i: {"price": {"input": 1e6 * c / 15, "output": 1e6 * c / 15}} for i, c in enumerate(costs)}
    server = stage.fresh(changes=changes, options=("--budget-per-request", str(target)))

    def half(name: str) -> None:
        texts = [f"{name} half: what is {i} plus {i * i}?" for i in range(300)]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda text: server.ask(user(text), stream=len(text) % 2 == 0), texts))

    half("First")
    server.rows()
    server.kill(signal.SIGTERM)
    server.start()
    half("Second")
    spent = _spent(server) / 600
    good = abs(spent / target - 1) < 0.03
    return (
        good,
        f"{spent:.6f} USD a request, target {target}, models cost {min(costs):.6f} to {max(costs):.6f}",
    )
