"""It answers: a client sees no error that another model could have answered."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks.speed.servers import free_port

from .play import Seen, behaviour
from .stage import ROOT, Stage, wait

#: word of the stand-in -> what a provider does then
FAILS = {
    "revoked": "a revoked key (401)",
    "unpaid": "an unpaid account (402)",
    "forbidden": "a key without rights (403)",
    "unknown": "a model that is gone (404)",
    "toolarge": "a request that is too large for it (413)",
    "toolong": "a prompt beyond its context (400)",
    "limited": "a rate limit (429)",
    "broken": "a server error (500)",
    "overloaded": "overload (529)",
    "redirects": "a redirect (302)",
    "empty": "nothing (204)",
    "html": "a page of HTML with 200",
    "cut": "half an answer with 200",
    "wrong": "an error with 200",
}


def _another(word: str) -> Callable[[Stage], Seen]:
    def play(stage: Stage) -> Seen:
        server = stage.server()
        with server.behaving(word, but=0):
            answers = [server.ask() for _ in range(4)]
            failed = {d.status for a in answers for d in server.of(a) if d.arm != server.arms[0]}
        seen = sorted({(a.status_code, a.headers.get("x-cabs-model")) for a in answers})
        good = seen == [(200, server.arms[0])] and failed <= {"error", "refused"}
        return good, f"{seen}, the others: {failed or 'not tried'}"

    return play


for _word, _what in FAILS.items():
    behaviour(
        says=f"All models but one answer with {_what} -> 200 from that one",
        short=_word in ("revoked", "toolong", "html"),
    )(_another(_word))


@behaviour()
def times_out(stage: Stage) -> Seen:
    """All models but one never answer -> 200 from that one, within the deadline"""
    server = stage.server("hurry", changes={i: {"timeout": 1.0} for i in (1, 2, 3)})
    with server.behaving("hangs", but=0):
        begin = time.monotonic()
        answers = [server.ask() for _ in range(3)]
        seconds = time.monotonic() - begin
        rows = [d.status for a in answers for d in server.of(a)]
    seen = {a.status_code for a in answers}
    good = seen == {200} and rows.count("answered") == 3
    return good, f"{seen} in {seconds:.1f} s, attempts {sorted(set(rows))}"


@behaviour()
def unreachable(stage: Stage) -> Seen:
    """All models but one cannot be reached -> 200 from that one"""
    nobody = {"url": f"http://127.0.0.1:{free_port()}/v1"}
    server = stage.fresh(changes=dict.fromkeys((1, 2, 3), nobody))
    seen = {server.ask().status_code for _ in range(4)}
    return seen == {200}, seen


@behaviour(short=True)
def flaps(stage: Stage) -> Seen:
    """Every model fails at every other call, 40 requests -> at least 37 answered, no 5xx that one attempt
    explains"""
    server = stage.server()
    with server.behaving({0: "flaps", 1: "flaps", 2: "flaps"}):
        answers = [server.ask() for _ in range(40)]
    wrong = [a for a in answers if a.status_code != 200]
    return not wrong, f"{40 - len(wrong)} of 40 answered"


@behaviour(short=True)
def refused(stage: Stage) -> Seen:
    """A request that a provider finds invalid (400) -> it goes back to the client, and is tried once"""
    server = stage.server()
    with server.behaving("refuses"):
        answer = server.ask()
        rows = [d.status for d in server.of(answer)]
    return answer.status_code == 400 and rows == ["rejected"], f"{answer.status_code}, attempts {rows}"


@behaviour(short=True)
def all_revoked(stage: Stage) -> Seen:
    """The router's keys are all revoked -> 502 upstream_error, for the client's own key is good"""
    server = stage.server()
    with server.behaving("revoked"):
        answer = server.ask()
    error = answer.json()["error"]
    good = (answer.status_code, error["type"]) == (502, "upstream_error")
    return good, f"{answer.status_code} {error['type']}"


@behaviour(short=True)
def all_limited(stage: Stage) -> Seen:
    """All models are limited and say Retry-After: 7 -> 429 with Retry-After: 7"""
    server = stage.fresh()
    server.behave(dict.fromkeys(range(4), "limited"))
    answer = server.ask()
    seen = (answer.status_code, answer.headers.get("retry-after"))
    return seen == (429, "7"), seen


@behaviour(short=True)
def all_too_long(stage: Stage) -> Seen:
    """A prompt beyond the context of every model -> 400 context_length_exceeded, no model is left alone"""
    server = stage.server()
    with server.behaving("toolong"):
        answers = [server.ask() for _ in range(5)]
        problems = server.problems()
    seen = {(a.status_code, a.json()["error"]["code"]) for a in answers}
    return seen == {(400, "context_length_exceeded")} and not problems, f"{seen}, problems {problems}"


@behaviour()
def all_hang(stage: Stage) -> Seen:
    """No model ever answers -> 504 at the deadline of 2 s, attempts are closed, their costs estimated"""
    server = stage.fresh(whole={"deadline": 2.0})
    server.behave(dict.fromkeys(range(4), "hangs"))
    begin = time.monotonic()
    answer = server.ask()
    seconds = time.monotonic() - begin
    rows = [(d.status, bool(d.estimated)) for d in server.of(answer)]
    good = answer.status_code == 504 and seconds < 6.0 and set(rows) == {("timeout", True)}
    return good, f"{answer.status_code} after {seconds:.1f} s, {rows}"


@behaviour(short=True)
def poisoned(stage: Stage) -> Seen:
    """A request that breaks every model, sent ten times -> no model is left alone for the others"""
    server = stage.server()
    with server.behaving("broken"):
        seen = {server.ask().status_code for _ in range(10)}
        problems = server.problems()
    after = server.ask().status_code
    return not problems and after == 200, f"{seen}, problems {problems}, then {after}"


@behaviour(short=True)
def left_alone(stage: Stage) -> Seen:
    """The key of the most played model is revoked and renewed -> no error, few calls of it, /readyz says why,
    it comes back"""
    server = stage.fresh(whole={"breaker": {"cooldown": 1.0}}, options=("--epsilon", "0"))
    favourite = server.arms.index(server.ask().headers["x-cabs-model"])
    before = server.metrics()
    server.behave({favourite: "revoked"})
    seen = {server.ask().status_code for _ in range(40)}
    problems = server.problems()
    labels = f'worker="{_worker(before)}",model="{server.arms[favourite]}",status="error"'
    name = f"cabs_upstream_calls_total{{{labels}}}"
    calls = server.metrics().get(name, 0.0)
    server.behave({favourite: ""})
    back = wait(lambda: server.ask().headers["x-cabs-model"] == server.arms[favourite], 20.0)
    good = seen == {200} and 1 <= calls <= 8 and any("HTTP 401" in p for p in problems) and back
    return good, f"{seen}, {calls:.0f} calls of it failed, /readyz: {problems}, back: {back}"


def _worker(metrics: dict[str, float]) -> str:
    return next(name.split('worker="')[1].partition('"')[0] for name in metrics if 'worker="' in name)


@behaviour(short=True)
def one_callers_failure(stage: Stage) -> Seen:
    """One request meets one server error -> the model stays in play for the others"""
    server = stage.fresh(options=("--epsilon", "0"))
    favourite = server.arms.index(server.ask().headers["x-cabs-model"])
    with server.behaving({favourite: "broken"}):
        server.ask()
    models = [server.ask().headers["x-cabs-model"] for _ in range(20)]
    share = models.count(server.arms[favourite])
    return share > 10, f"{share} of 20 calls afterwards"


@behaviour(short=True)
def doctor_knows(stage: Stage) -> Seen:
    """Calls failed -> `cabs doctor`, /metrics and the server's log say so, with the reason"""
    server = stage.server()
    with server.behaving("unpaid", but=0):
        for _ in range(6):
            server.ask()
        server.rows()
    command = "from cabs_server.main import main; main()"
    arguments = ["doctor", "--router", str(server.router), "--log", server.log, "--json"]
    out = subprocess.run(
        [sys.executable, "-c", command, *arguments], capture_output=True, text=True, cwd=ROOT
    ).stdout
    found = json.loads(out)
    counted = sum(
        v for k, v in server.metrics().items() if k.startswith("cabs_upstream_failures_total{") and "402" in k
    )
    told = "HTTP 402" in server.said()
    good = found["failed"] > 0 and counted > 0 and told
    return (
        good,
        f"doctor: {found['failed']} failed, {found['problems'][:1]}; metrics: {counted:.0f}; log: {told}",
    )
