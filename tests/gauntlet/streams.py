"""Streams: their pieces come one by one, and a client may leave."""

from __future__ import annotations

import time

from .play import Seen, behaviour
from .stage import TEXT, Stage, user, wait


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
