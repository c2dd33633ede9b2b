"""Streams: what breaks before they begin is hidden, what breaks later is told; both cost what they cost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from .play import Seen, behaviour
from .stage import TEXT, USUAL, Stage, near, user, wait


def _hidden(word: str) -> Callable[[Stage], Seen]:
    def play(stage: Stage) -> Seen:
        server = stage.server()
        with server.behaving(word, but=0):
            answers = [server.ask(stream=True) for _ in range(4)]
        whole = all(a.text.rstrip().endswith("[DONE]") and '"error"' not in a.text for a in answers)
        models = {a.headers["x-cabs-model"] for a in answers}
        return whole and models == {server.arms[0]}, f"whole: {whole}, from {models}"

    return play


def _told(word: str) -> Callable[[Stage], Seen]:
    def play(stage: Stage) -> Seen:
        server = stage.server()
        with server.behaving(word):
            answer = server.ask(stream=True)
            rows = server.of(answer)
        good = '"error"' in answer.text and all(d.status == "error" and d.estimated and d.cost for d in rows)
        told = [(d.status, d.reason, d.cost) for d in rows]
        return good, f"error told: {'error' in answer.text}; {told}"

    return play


for _word, _what in (
    ("errors", "an error as its first event"),
    ("broken", "a server error"),
    ("empty", "nothing"),
):
    behaviour(
        says=f"Streams of all models but one begin with {_what} -> a whole stream of that one",
        short=_word == "errors",
    )(_hidden(_word))
for _word, _what in (
    ("falls", "brings an error after its first piece"),
    ("early", "ends without its end"),
    ("breaks", "breaks off"),
):
    behaviour(
        says=f"A stream {_what} -> an error in the stream, a failed row, an estimated cost",
        short=_word == "early",
    )(_told(_word))


@behaviour(short=True)
def error_with_the_first_piece(stage: Stage) -> Seen:
    """The error comes with the first piece -> another model answers, and what was written is billed"""
    server = stage.server()
    with server.behaving("together", but=0):
        answers = [server.ask(stream=True) for _ in range(6)]
        lost = [d for a in answers for d in server.of(a) if d.status == "error"]
    whole = all(a.text.rstrip().endswith("[DONE]") for a in answers)
    costs = {bool(d.cost and d.estimated) for d in lost}
    good = whole and costs <= {True}
    return good, f"whole: {whole}, {len(lost)} failed attempts, all with a cost: {costs <= {True}}"


@behaviour(short=True)
def usage_not_asked(stage: Stage) -> Seen:
    """A client streams without asking for usage -> it sees none, the log has it to the token"""
    server = stage.server()
    answer = server.ask(stream=True)
    (row,) = server.of(answer)
    good = '"usage"' not in answer.text and near(row.cost, USUAL) and not row.estimated
    return (
        good,
        f"usage shown: {'usage' in answer.text}; {row.tokens_in:g} + {row.tokens_out:g} tokens, "
        f"{row.cost:g} USD",
    )


@behaviour(short=True)
def usage_asked(stage: Stage) -> Seen:
    """A client asks for usage -> it sees it, the log has it"""
    server = stage.server()
    answer = server.ask(stream=True, stream_options={"include_usage": True})
    (row,) = server.of(answer)
    good = '"prompt_tokens": 10' in answer.text and near(row.cost, USUAL)
    return good, f"usage shown: {'usage' in answer.text}; {row.cost:g} USD"


@behaviour()
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


@behaviour()
def pieces_come_as_they_are_written(stage: Stage) -> Seen:
    """A slow stream -> the first piece comes long before the last"""
    server = stage.server()
    with server.behaving("drips"):
        begin = time.monotonic()
        body = {"model": "cabs", "messages": user(TEXT * 3), "stream": True}
        answer = server.http.post(f"{server.url}/v1/chat/completions", json=body, stream=True)
        times = [time.monotonic() - begin for line in answer.iter_lines() if line]
    return times[-1] - times[0] > 0.5, f"first piece after {times[0]:.2f} s, last after {times[-1]:.2f} s"


def _in_dialect(path: str, body: dict[str, object], end: str) -> Callable[[Stage], Seen]:
    def play(stage: Stage) -> Seen:
        server = stage.server()
        answer = server.post(path, {"model": "cabs", "stream": True, **body})
        (row,) = server.of(answer)
        good = end in answer.text and near(row.cost, USUAL) and row.response_id is not None
        return good, f"{answer.status_code}, {len(answer.text)} bytes, {row.cost} USD, id {row.response_id}"

    return play


for _path, _body, _end in (
    ("/v1/messages", {"max_tokens": 100, "messages": user(TEXT)}, "message_stop"),
    ("/v1/responses", {"input": TEXT}, "response.completed"),
    ("/v1/completions", {"prompt": TEXT}, "[DONE]"),
):
    behaviour(says=f"A stream of {_path} -> whole, in its own events, its cost in the log", short=True)(
        _in_dialect(_path, _body, _end)
    )


@behaviour()
def error_in_dialects(stage: Stage) -> Seen:
    """Streams of /v1/messages and /v1/responses end early -> the error is an event of theirs"""
    server = stage.server()
    with server.behaving("early"):
        bodies = {
            "/v1/messages": {"max_tokens": 100, "messages": user(TEXT)},
            "/v1/responses": {"input": TEXT},
        }
        seen = {
            p: server.post(p, {"model": "cabs", "stream": True, **b}).text.strip().split("\n")[-2:]
            for p, b in bodies.items()
        }
    good = all(
        lines[0] == "event: error" and json.loads(lines[1][6:])["type"] == "error" for lines in seen.values()
    )
    return good, {p: lines[0] for p, lines in seen.items()}
