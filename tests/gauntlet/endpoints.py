"""Endpoints: four dialects, embeddings, models, what the server tells of itself; errors in each dialect's
form."""

from __future__ import annotations

import time
from collections.abc import Callable

from .play import Seen, behaviour
from .stage import TEXT, USUAL, Stage, near, user

ANSWERS = {
    "/v1/chat/completions": ({"messages": user(TEXT)}, lambda a: a["choices"][0]["message"]["content"]),
    "/v1/completions": ({"prompt": TEXT}, lambda a: a["choices"][0]["text"]),
    "/v1/responses": ({"input": TEXT}, lambda a: a["output"][0]["content"][0]["text"]),
    "/v1/messages": ({"max_tokens": 9, "messages": user(TEXT)}, lambda a: a["content"][0]["text"]),
}


def _answers(path: str) -> Callable[[Stage], Seen]:
    def play(stage: Stage) -> Seen:
        server = stage.server()
        body, text = ANSWERS[path]
        answer = server.post(path, {"model": "cabs", **body})
        (row,) = server.of(answer)
        good = TEXT in text(answer.json()) and near(row.cost, USUAL)
        return good, f"{answer.status_code}, {text(answer.json())!r}"

    return play


def _error(path: str) -> Callable[[Stage], Seen]:
    def play(stage: Stage) -> Seen:
        server = stage.server()
        body, _ = ANSWERS[path]
        found = [server.post(path, {**body, "model": "gpt-unknown"})]
        with server.behaving("revoked"):
            found.append(server.post(path, {"model": "cabs", **body}))
        forms = [_form(a.json(), path) for a in found]
        return [a.status_code for a in found] == [404, 502] and all(forms), [a.json() for a in found]

    return play


def _form(body: dict, path: str) -> bool:
    """Whether an error has the form of the endpoint's dialect."""
    error = body["error"]
    if path == "/v1/messages":
        return body["type"] == "error" and set(error) == {"type", "message"}
    return {"message", "type", "param", "code"} == set(error)


for _path in ANSWERS:
    behaviour(says=f"POST {_path} -> answered in its dialect, its cost in the log", short=True)(
        _answers(_path)
    )
    behaviour(
        says=f"POST {_path} with an unknown model, and when all models fail -> 404, 502 in its dialect's form"
    )(_error(_path))


@behaviour(short=True)
def speaks(stage: Stage) -> Seen:
    """One upstream of four speaks /v1/messages -> only that one is asked for it"""
    server = stage.fresh(changes={i: {"speaks": ["chat"]} for i in (0, 1, 2)})
    body = {"model": "cabs", "max_tokens": 9, "messages": user(TEXT)}
    models = {server.post("/v1/messages", body).headers["x-cabs-model"] for _ in range(8)}
    return models == {server.arms[3]}, models


@behaviour(short=True)
def embeddings(stage: Stage) -> Seen:
    """POST /v1/embeddings to a named model, and to an unknown one -> passed through, its cost in the log; 404
    in OpenAI's form"""
    server = stage.server()
    good = server.post("/v1/embeddings", {"model": "embed", "input": ["a", "b"]})
    bad = server.post("/v1/embeddings", {"model": "nobody", "input": "a"})
    (row,) = server.of(good)
    seen = (
        good.status_code,
        len(good.json()["data"]),
        row.cost,
        bad.status_code,
        sorted(bad.json()["error"]),
    )
    return seen == (200, 2, 1e-3, 404, ["code", "message", "param", "type"]), seen


@behaviour(short=True)
def models(stage: Stage) -> Seen:
    """GET /v1/models and /v1/models/{id} of a known and an unknown one -> a list, the model, 404"""
    server = stage.server()
    names = [m["id"] for m in server.get("/v1/models").json()["data"]]
    one, none = server.get(f"/v1/models/{server.arms[0]}"), server.get("/v1/models/gpt-unknown")
    seen = (one.json()["id"] == server.arms[0], none.status_code, none.json()["error"]["type"])
    return set(server.arms) < set(names) and seen == (True, 404, "invalid_request_error"), (names, seen)


@behaviour(short=True)
def no_such_endpoint(stage: Stage) -> Seen:
    """POST /v1/audio/speech, GET /v1/chat/completions -> 404 and 405, in OpenAI's form"""
    server = stage.server()
    answers = [server.post("/v1/audio/speech", {}), server.get("/v1/chat/completions")]
    seen = [(a.status_code, "message" in a.json()["error"]) for a in answers]
    return seen == [(404, True), (405, True)], seen


@behaviour()
def at_another_rho(stage: Stage) -> Seen:
    """Model cabs-rho-900 -> the request is routed at that rho"""
    server = stage.server()
    (row,) = server.of(server.ask(model="cabs-rho-900"))
    return row.rho == 900.0, f"rho {row.rho:g}"


@behaviour(short=True)
def decision_only(stage: Stage) -> Seen:
    """POST /v1/decision -> a model with its probabilities; no upstream is called"""
    server = stage.server()
    before = server.bill()
    found = server.post("/v1/decision", {"text": TEXT, "available": server.arms[:2]}).json()
    good = found["model"] in server.arms[:2] and abs(sum(found["probabilities"].values()) - 1) < 1e-9
    return good and server.bill() == before, f"{found['model']}, propensity {found['propensity']:.3f}"


@behaviour(short=True)
def lives_and_is_ready(stage: Stage) -> Seen:
    """GET /healthz and /readyz of a sound server -> 200, no problems"""
    server = stage.fresh()
    seen = (server.get("/healthz").json()["status"], server.get("/readyz").json())
    return seen == ("ok", {"status": "ready", "problems": []}), seen


@behaviour(short=True)
def metrics_are_sound(stage: Stage) -> Seen:
    """GET /metrics before and after 20 calls and a failure -> every figure has HELP, counters only rise, cost
    and tokens by model"""
    server = stage.server()
    before, text = server.metrics(), server.get("/metrics").text
    with server.behaving("broken", but=0):
        for i in range(20):
            server.ask(user(f"Question {i}"))
        server.rows()
    after, kinds = server.metrics(), {}
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            kinds[line.split()[2]] = line.split()[3]
    falls = [
        n for n in before if kinds.get(n.partition("{")[0]) == "counter" and after.get(n, 0.0) < before[n]
    ]
    told = {line.split()[2] for line in text.splitlines() if line.startswith("# HELP")}
    by_model = all(
        any(k.startswith(f"cabs_{n}{{") and 'model="' in k for k in after)
        for n in ("cost_usd_total", "tokens_total")
    )
    buckets = any('le="120"' in k for k in after if k.startswith("cabs_upstream_seconds_bucket"))
    good = not falls and told == set(kinds) and by_model and buckets
    return good, f"{len(kinds)} figures, {len(told)} with HELP, falling: {falls}"


@behaviour()
def metrics_are_quick(stage: Stage) -> Seen:
    """GET /metrics twenty times -> the median takes less than a tenth of a second"""
    server, times = stage.server(), []
    for _ in range(20):
        begin = time.monotonic()
        server.get("/metrics")
        times.append(time.monotonic() - begin)
    return sorted(times)[10] < 0.1, f"median {1e3 * sorted(times)[10]:.0f} ms"
