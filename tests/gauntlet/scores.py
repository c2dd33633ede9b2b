"""Scores: by whatever name an answer is known, once, and taken back."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from .callers import KEYS, ONE, TWO, keyed
from .play import Seen, behaviour
from .stage import ROOT, Stage, user, wait


@behaviour(short=True)
def by_every_name(stage: Stage) -> Seen:
    """Feedback by id, response_id, call_id and session -> each recorded"""
    server, said = stage.server(), {}
    for name in ("id", "response_id", "call_id", "session"):
        answer = server.ask(
            user(f"By {name}?"), headers={"x-request-id": f"call-{name}", "x-session-id": f"session-{name}"}
        )
        server.rows()
        value = {
            "id": answer.headers["x-cabs-decision"],
            "response_id": answer.json()["id"],
            "call_id": "call-call_id",
            "session": "session-session",
        }[name]
        said[name] = server.post("/v1/feedback", {name: value, "score": 1.0}).json().get("result")
    return set(said.values()) == {"recorded"}, said


@behaviour(short=True)
def once(stage: Stage) -> Seen:
    """The same score twice, another score, an unknown decision, a score of 1.2 -> recorded, duplicate, 409,
    404, 400"""
    server = stage.server()
    name = server.ask().headers["x-cabs-decision"]
    bodies = [
        {"id": name, "score": 1.0},
        {"id": name, "score": 1.0},
        {"id": name, "score": 0.0},
        {"id": "nobody", "score": 1.0},
        {"id": name, "score": 1.2},
    ]
    seen = [server.post("/v1/feedback", b).status_code for b in bodies]
    return seen == [200, 200, 409, 404, 400], seen


@behaviour(short=True)
def after_a_retry(stage: Stage) -> Seen:
    """The first model failed, the second answered, the call is scored -> the attempt that answered gets it"""
    server = stage.server()
    with server.behaving("broken", but=0):
        answer = next((a for _ in range(12) if len(server.of(a := server.ask())) > 1), server.ask())
    server.post("/v1/feedback", {"call_id": answer.headers["x-request-id"], "score": 1.0})
    rows = server.of(answer)
    conflict = server.post("/v1/feedback", {"id": rows[-1].id, "score": 0.0}).status_code
    good = rows[-1].status == "answered" and conflict == 409
    return good, f"{[d.status for d in rows]}, the last one is scored: {conflict == 409}"


@behaviour(short=True)
def taken_back(stage: Stage) -> Seen:
    """A score is retracted and given anew -> recorded again; the learner has learnt one"""
    server = stage.fresh("hier_mix")
    name = server.ask().headers["x-cabs-decision"]
    said = [server.post("/v1/feedback", {"id": name, "score": 1.0}).json()["result"]]
    said.append(server.post("/v1/feedback/retract", {"id": name}).json()["result"])
    said.append(server.post("/v1/feedback", {"id": name, "score": 0.0}).json()["result"])
    return said == ["recorded", "retracted", "recorded"], said


@behaviour()
def taken_back_from_a_shell(stage: Stage) -> Seen:
    """`cabs-router feedback ID --retract` beside a running server -> the server's learner forgets it"""
    server = stage.fresh("hier_mix")
    names = [server.ask(user(f"Question {i}")).headers["x-cabs-decision"] for i in range(3)]
    for name in names:
        server.post("/v1/feedback", {"id": name, "score": 1.0})

    def learnt(count: int) -> bool:
        return bool(wait(lambda: server.metrics().get("cabs_learnt_rewards") == count))

    before = learnt(3)
    command = [
        sys.executable,
        "-c",
        "from cabs_server.main import main; main()",
        "feedback",
        names[0],
        "--retract",
        "--router",
        str(server.router),
        "--log",
        server.log,
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    good = before and done.returncode == 0 and learnt(2)
    return good, f"3 learnt: {before}; then: {done.stdout.strip() or done.stderr.strip()[-200:]}"


@behaviour(short=True)
def costs_of_clients(stage: Stage) -> Seen:
    """A client posts cost: 1e9, without and with --client-costs -> 400 both; with it a plausible cost is
    taken"""
    plain, open_ = stage.server(), stage.fresh(options=("--client-costs",))
    seen = []
    for server, cost in ((plain, 1e-3), (open_, 1e9), (open_, 2e-3)):
        answer = server.ask()
        server.rows()
        body = {"id": answer.headers["x-cabs-decision"], "score": 1.0, "cost": cost}
        seen.append(server.post("/v1/feedback", body).status_code)
    return seen == [400, 400, 200], seen


@behaviour()
def zeros_of_a_stranger(stage: Stage) -> Seen:
    """Another key posts 20 zeros for decisions that are not its own -> none counts"""
    server = keyed(stage)
    names = [server.ask(user(f"Question {i}"), headers=ONE).headers["x-cabs-decision"] for i in range(20)]
    seen = {server.post("/v1/feedback", {"id": n, "score": 0.0}, headers=TWO).status_code for n in names}
    return seen == {404}, seen


@behaviour()
def at_the_other_worker_at_once(stage: Stage) -> Seen:
    """40 streams at two workers, each scored by its answer's id as soon as it has ended -> all recorded"""
    server, seen = stage.fresh(options=("--workers", "2")), []
    for i in range(40):
        answer = server.ask(user(f"Question {i}"), stream=True, headers={"connection": "close"})
        name = json.loads(answer.text.split("data: ")[1].split("\n")[0])["id"]
        said = server.post(
            "/v1/feedback", {"response_id": name, "score": 1.0}, headers={"connection": "close"}
        )
        seen.append(said.status_code)
    return seen == [200] * 40, f"{seen.count(200)} of 40 recorded"


@behaviour()
def many_taken_back_at_once(stage: Stage) -> Seen:
    """A key takes twelve scores back at once -> all of them, and nobody waits for it: the other key's slowest
    decision is below 2 s"""
    server = stage.fresh("hier_mix", environment=KEYS)
    names = [server.ask(user(f"Question {i}"), headers=ONE).headers["x-cabs-decision"] for i in range(30)]
    for name in names:
        server.post("/v1/feedback", {"id": name, "score": 1.0}, headers=ONE)
    slowest = 0.0
    with ThreadPoolExecutor(12) as pool:
        said = [pool.submit(server.post, "/v1/feedback/retract", {"id": n}, headers=ONE) for n in names[:12]]
        for i in range(20):
            begin = time.monotonic()
            server.post("/v1/decision", {"text": f"Another {i}"}, headers=TWO)
            slowest = max(slowest, time.monotonic() - begin)
    counts = [s.result().json().get("scores") for s in said]
    return counts == [
        1
    ] * 12 and slowest < 2.0, f"{sum(counts)} taken back, slowest decision of the other key {slowest:.2f} s"
