"""Callers: keys, the keyless local default, limits, request ids and traces, the server's own log."""

from __future__ import annotations

import json

from .play import Seen, behaviour
from .stage import TEXT, Server, Stage, user

KEYS = {
    "CABS_SERVER_KEYS": "one=key-of-one-1,two=key-of-two-2",
    "CABS_SERVER_ADMIN_KEYS": "boss=key-of-boss-3",
}
ONE, TWO, BOSS = ({"authorization": f"Bearer key-of-{n}"} for n in ("one-1", "two-2", "boss-3"))


def keyed(stage: Stage) -> Server:
    """A server that asks for keys."""
    return stage.server("keyed", environment=KEYS)


@behaviour(short=True)
def no_key(stage: Stage) -> Seen:
    """No key and a wrong key, in OpenAI's and in Anthropic's dialect -> 401 in the dialect's form; /healthz
    needs none"""
    server = keyed(stage)
    chat = [server.ask(headers=h) for h in ({}, {"authorization": "Bearer wrong-key"})]
    message = server.post(
        "/v1/messages", {"model": "cabs", "messages": user(TEXT)}, headers={"x-api-key": "wrong"}
    )
    seen = (
        [a.status_code for a in chat],
        message.status_code,
        message.json()["error"]["type"],
        server.get("/healthz").status_code,
    )
    return seen == ([401, 401], 401, "authentication_error", 200), seen


@behaviour(short=True)
def both_headers(stage: Stage) -> Seen:
    """The key comes as Authorization: Bearer or as x-api-key -> 200"""
    server = keyed(stage)
    seen = [server.ask(headers=h).status_code for h in (ONE, {"x-api-key": "key-of-one-1"})]
    return seen == [200, 200], seen


@behaviour(short=True)
def whose_decision(stage: Stage) -> Seen:
    """A key scores its own decision, another's, an admin key scores it -> 200, 404, 200"""
    server = keyed(stage)
    name = server.ask(headers=ONE).headers["x-cabs-decision"]
    seen = [
        server.post("/v1/feedback", {"id": name, "score": 1.0}, headers=h).status_code
        for h in (TWO, ONE, BOSS)
    ]
    return seen == [404, 200, 200], seen


@behaviour(short=True)
def sessions_are_apart(stage: Stage) -> Seen:
    """Two keys name the same session -> two conversations"""
    server = keyed(stage)
    rows = [
        d for h in (ONE, TWO) for d in server.of(server.ask(headers={**h, "x-session-id": "shared name"}))
    ]
    seen = (len({d.session for d in rows}), [d.kept is None for d in rows])
    return seen == (2, [True, True]), f"{seen[0]} sessions"


@behaviour(short=True)
def metrics_need_a_key(stage: Stage) -> Seen:
    """GET /metrics without a key, with an ordinary one, with an admin's -> 401, 403, 200; /readyz tells the
    admin alone why"""
    server = keyed(stage)
    seen = [server.get("/metrics", headers=h).status_code for h in ({}, ONE, BOSS)]
    ready = [sorted(server.get("/readyz", headers=h).json()) for h in ({}, ONE, BOSS)]
    return seen == [401, 403, 200] and ready == [["status"], ["status"], ["problems", "status"]], (
        seen,
        ready,
    )


@behaviour(short=True)
def secrets_stay(stage: Stage) -> Seen:
    """Keys were used, prompts sent -> neither the server's output nor its log file holds them"""
    server = keyed(stage)
    server.ask(user("the pass phrase is swordfish"), headers=ONE)
    server.rows()
    written = server.said().encode() + b"".join(p.read_bytes() for p in server.folder.glob("log.sqlite*"))
    found = [word for word in (b"key-of-", b"swordfish") if word in written]
    return not found, f"found: {found}"


@behaviour(short=True)
def rebinding(stage: Stage) -> Seen:
    """Without keys: a Host that is not this machine (DNS rebinding) -> 403"""
    answer = stage.server().ask(headers={"host": "evil.example:80"})
    return answer.status_code == 403, f"{answer.status_code}: {answer.json()['error']['message']}"


@behaviour(short=True)
def a_page_in_a_browser(stage: Stage) -> Seen:
    """Without keys: Origin of a page, body that says text/plain -> 403, 415; Origin of this machine -> 200"""
    server = stage.server()
    foreign = server.ask(headers={"origin": "https://evil.example"})
    own = server.ask(headers={"origin": "http://localhost:3000"})
    plain = server.http.post(
        f"{server.url}/v1/chat/completions",
        data=json.dumps({"messages": user(TEXT)}),
        headers={"content-type": "text/plain"},
    )
    seen = (foreign.status_code, plain.status_code, own.status_code)
    return seen == (403, 415, 200), seen


@behaviour(short=True)
def limits(stage: Stage) -> Seen:
    """A body of 21 MiB, headers of 50 KiB and more than the limit, JSON that is none -> 413, refused, 400;
    the next is answered"""
    server = stage.server()
    large = server.ask(user("x" * (21 << 20)))
    headers = server.ask(headers={f"x-{i}": "y" * 7_000 for i in range(10)})
    broken = server.http.post(
        f"{server.url}/v1/chat/completions", data=b"{", headers={"content-type": "application/json"}
    )
    after = server.ask()
    seen = (large.status_code, headers.status_code, broken.status_code, after.status_code)
    return seen[0] == 413 and seen[1] in (400, 431) and seen[2:] == (400, 200), seen


@behaviour(short=True)
def a_large_prompt(stage: Stage) -> Seen:
    """A prompt of 5 MB -> answered; a small one right after it waits no second"""
    server = stage.server()
    large = server.ask(user("word " * 1_000_000))
    small = server.ask()
    seconds = small.elapsed.total_seconds()
    good = (large.status_code, small.status_code) == (200, 200) and seconds < 1.0
    return good, f"{large.status_code}, then {seconds:.2f} s"


@behaviour(short=True)
def request_ids(stage: Stage) -> Seen:
    """x-request-id: abc -> it comes back, is the call's name in the log, goes to the upstream and into the
    server's own log"""
    server = stage.server()
    answer = server.ask(headers={"x-request-id": "abc-1"})
    (row,) = server.of(answer)
    sent = server.received(server.arms.index(row.arm))["headers"]["x-request-id"]
    server.ask(headers={"x-request-id": "abc-2"}, model="gpt-unknown")
    lines = [json.loads(line) for line in server.said().splitlines() if line.startswith("{")]
    logged = any(line.get("request_id") == "abc-2" and {"time", "level"} <= set(line) for line in lines)
    seen = (answer.headers["x-request-id"], row.call_id, sent, logged)
    return seen == ("abc-1", "abc-1", "abc-1", True), seen


@behaviour(short=True)
def traces(stage: Stage) -> Seen:
    """traceparent and tracestate -> they go on to the upstream; its request id and rate limits come back"""
    server = stage.server()
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    answer = server.ask(headers={"traceparent": trace, "tracestate": "x=1"})
    got = server.received(server.arms.index(answer.headers["x-cabs-model"]))["headers"]
    back = [
        answer.headers.get(n) is not None for n in ("x-upstream-request-id", "x-ratelimit-remaining-requests")
    ]
    seen = (got.get("traceparent") == trace, got.get("tracestate"), back)
    return seen == (True, "x=1", [True, True]), seen


@behaviour(short=True)
def the_clients_key_stays(stage: Stage) -> Seen:
    """A client's key and cookies -> they do not go to the upstream"""
    server = keyed(stage)
    answer = server.ask(headers={**ONE, "cookie": "session=1"})
    got = server.received(server.arms.index(answer.headers["x-cabs-model"]))["headers"]
    found = sorted({"authorization", "cookie", "x-api-key"} & set(got))
    return not found, f"passed on: {found}"
