"""Traffic: many requests at once, streams that come piece by piece, a bill that is right to the dollar."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from cabs_core.data.events.log import EventLog

from .play import Seen, behaviour
from .stage import PRICE, TEXT, USUAL, Server, Stage, user, wait


@behaviour(short=True)
def client_leaves(stage: Stage) -> Seen:
    """A client leaves in the middle of a stream -> the row is closed as broken, its cost estimated, the model
    not blamed"""
    server = stage.server()
    with server.behaving("drips"):
        body = {"model": "cabs", "messages": user(TEXT * 20), "stream": True}
        answer = server.http.post(f"{server.url}/v1/chat/completions", json=body, stream=True)
        next(answer.iter_lines())
        name = answer.headers["x-request-id"]
        answer.close()
        time.sleep(0.5)
        row = wait(
            lambda: next((d for d in server.rows() if d.call_id == name and d.status != "decided"), None)
        )
        problems = server.problems()
    good = row is not None and row.status == "broken" and row.estimated and not problems
    return (
        good,
        "the row is open"
        if row is None
        else f"{row.status}, estimated {row.cost:g} USD, problems {problems}",
    )


@behaviour(short=True)
def pieces_come_as_they_are_written(stage: Stage) -> Seen:
    """A slow stream -> the first piece comes long before the last"""
    server = stage.server()
    with server.behaving("drips"):
        begin = time.monotonic()
        body = {"model": "cabs", "messages": user(TEXT * 3), "stream": True}
        answer = server.http.post(f"{server.url}/v1/chat/completions", json=body, stream=True)
        times = [time.monotonic() - begin for line in answer.iter_lines() if line]
    return times[-1] - times[0] > 0.5, f"first piece after {times[0]:.2f} s, last after {times[-1]:.2f} s"


@behaviour(short=True)
def the_bill_of_all_ways(stage: Stage) -> Seen:
    """Chat, messages, responses and completions, whole and streamed, reasoning in the total alone, a
    twentieth of the calls
    fails -> log and bill differ by less than .1 %"""
    server = stage.fresh()
    server.behave({0: "often", 1: "beside", 2: "often", 3: "cached"})
    prompts = {
        "/v1/chat/completions": {"messages": user(TEXT)},
        "/v1/messages": {"messages": user(TEXT)},
        "/v1/responses": {"input": TEXT},
        "/v1/completions": {"prompt": TEXT},
    }
    paths = list(prompts)

    def ask(i: int) -> int:
        path = paths[i % 4]
        body = {
            "model": "cabs" if i % 3 else server.arms[i % 4],
            "max_tokens": 50,
            "stream": i % 2 == 0,
            **prompts[path],
        }
        return server.post(path, body).status_code

    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(ask, range(400)))
    rows = server.rows()
    logged = sum(d.cost or 0.0 for d in rows)
    billed = (
        sum(
            into * PRICE["input"]
            + out * PRICE["output"]
            - (0 if number != 3 else cached * 0.5 * PRICE["input"])
            for number, (calls, into, out) in enumerate(server.bill())
            for cached in [0.9 * into]
        )
        / 1e6
    )
    off = abs(logged / billed - 1.0)
    return off < 1e-3 and set(codes) <= {
        200,
        500,
    }, f"{len(rows)} calls, {logged:.6g} USD of {billed:.6g}, off by {off:.2g}"


def _spent(server: Server) -> float:
    server.rows()
    events = EventLog(server.log, read_only=True)
    spent = events.spent()
    events.close()
    return spent


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
