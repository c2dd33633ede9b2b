"""Budgets: a cap that holds, a target that is met, both known from the log alone."""

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
def a_cap(stage: Stage) -> Seen:
    """A cap of ten calls a day, 20 requests; the server is killed and started again -> 10 answers, then 429
    with Retry-After, also after it"""
    server = stage.fresh(options=("--budget-cap-per-day", f"{10 * USUAL}"))
    answers = [server.ask(stream=i % 2 == 0) for i in range(20)]
    seen = [a.status_code for a in answers]
    spent = _spent(server)
    server.kill()
    server.start()
    after = server.ask()
    wait_s = int(after.headers.get("retry-after", "0"))
    good = seen == [200] * 10 + [429] * 10 and after.status_code == 429 and 0 < wait_s <= 86_400
    return (
        good,
        f"{seen.count(200)} answered, spent {spent / USUAL:.1f} calls; after kill -9: {after.status_code}, "
        f"Retry-After {wait_s}",
    )


@behaviour(short=True)
def a_target_out_of_reach(stage: Stage) -> Seen:
    """A budget a request below what the cheapest costs -> it is answered; /readyz, log and doctor say what
    the end costs"""
    server = stage.fresh(options=("--budget-per-request", "0.00000001"))
    seen = server.ask().status_code
    words = "$0.00000001 a request cannot be reached"
    told = [words in " ".join(server.problems()), words in server.said()]
    return seen == 200 and all(told), f"{seen}; /readyz, log: {told}; {server.problems()[:1]}"


@behaviour()
def a_cap_at_once(stage: Stage) -> Seen:
    """The same cap, 60 requests, 8 at once, on four workers -> at most one call above it"""
    server = stage.fresh(options=("--budget-cap-per-day", f"{10 * USUAL}", "--workers", "4"))
    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(lambda _: server.ask().status_code, range(60)))
    wait(lambda: server.ask().status_code == 429)
    spent = _spent(server) / USUAL
    good = 9.99 < spent <= 11.01 and set(seen) <= {200, 429}
    return good, f"spent {spent:.0f} calls of 10, at 8 requests at once"


@behaviour(short=True)
def free_models_go_on(stage: Stage) -> Seen:
    """The cap is reached and one model is free -> that one answers"""
    server = stage.fresh(
        changes={3: {"price": None, "free": True}}, options=("--budget-cap-per-day", f"{2 * USUAL}")
    )
    answers = [server.ask() for _ in range(30)]
    late = {a.headers.get("x-cabs-model") for a in answers[-5:]}
    spent = _spent(server) / USUAL
    good = {a.status_code for a in answers} == {200} and spent <= 2.01
    return good, f"spent {spent:.0f} of 2 calls, the last by {late}"


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
