"""The endpoints, and how the server is started.

POST /v1/chat/completions   model `cabs`, `cabs-rho-300`, or one of the models itself; streaming as the upstream does
GET  /v1/models             those names
POST /v1/decision           {text or messages, available, rho, budget} -> a decision, nothing is called
POST /v1/feedback           {id, response_id, call_id or session; score, cost, idempotency_key} -> recorded, duplicate; 404, 409
POST /v1/feedback/retract   {id, response_id, call_id or session} -> how many of the caller's scores were taken back
GET  /healthz, /metrics

Errors have OpenAI's form. With keys set (CABS_SERVER_KEYS: name=key, separated by commas), every endpoint but
/healthz asks for one; the name of the key is the source of feedback.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from cabs_core.errors import CabsError, LogError, RouterError
from cabs_core.paths import default_log
from cabs_core.router.bundle import read_manifest
from cabs_core.router.encoder import TextEncoder
from cabs_core.router.events import EventLog
from cabs_core.router.remote import Follower
from cabs_core.router.router import NAMES, Router
from cabs_core.router.server.forwarding import Answer, Forwarder, error_body
from cabs_core.router.server.keeper import Keeper
from cabs_core.router.server.metrics import Histogram, metrics_text
from cabs_core.router.server.upstreams import read_upstreams
from cabs_core.router.sessions import read_conversation, route_conversation, session_key
from cabs_core.threads import one_blas_thread

KEYS, SETTINGS = "CABS_SERVER_KEYS", "CABS_SERVE_SETTINGS"
LARGEST = 20 << 20
#: fields of a request by which `sessions.read_conversation` knows a conversation
_REQUEST = (
    "messages", "input", "prompt", "system", "instructions", "metadata", "conversation", "previous_response_id", "prompt_cache_key",
)  # fmt: skip
_MODEL = re.compile(r"cabs(?:-rho-(\d+(?:\.\d+)?))?")
logger = logging.getLogger("cabs.serve")
Endpoint = Callable[[Request], Awaitable[Response]]


def read_keys(text: str | None) -> dict[str, str]:
    """{name: key} from `name=key,name=key`, or from one key without a name.

    Raises:
        RouterError: an empty or short key, or a name twice. The keys are not in the message.
    """
    found: dict[str, str] = {}
    for part in (text or "").split(","):
        if not part.strip():
            continue
        name, separator, key = part.strip().partition("=")
        name, key = (name, key) if separator else ("default", name)
        if len(key) < 8 or name in found:
            raise RouterError(
                f"{KEYS}: the key called {name!r} has fewer than 8 characters, or is named twice"
            )
        found[name] = key
    return found


def check_host(host: str, keys: dict[str, str]) -> None:
    """RouterError where the server would listen beyond this machine without asking for a key."""
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    if not local and not keys:
        raise RouterError(
            f"--host {host} listens beyond this machine, so it asks for a key: set {KEYS}=name=key, or stay on 127.0.0.1"
        )


def make_app(
    folder: str | Path,
    upstreams: str | Path | None,
    *,
    source: str | None = None,
    log: str | None = None,
    keys: dict[str, str] | None = None,
    every: float = 0.5,
    checkpoint: float = 5.0,
    **options: Any,
) -> Starlette:
    """The server's application.

    Args:
        folder: the bundle; upstreams: the YAML file, None: decisions and feedback only.
        source: URL that the folder is a copy of, looked at for a new router.
        log: event log; None: beside the bundle. keys: {name: key}; empty: no key is asked for.
        every, checkpoint: seconds, of the keeper.
        **options: of `Router`.
    """
    keys = keys or {}
    place = default_log(folder) if log is None else log
    manifest = read_manifest(folder, verify=False)
    models = read_upstreams(upstreams, manifest.names) if upstreams is not None else None

    prices = {} if models is None else {n: (m.price.input, None) for n, m in models.models.items() if m.price}

    def make(encoder: TextEncoder | None = None, log: str | Path | EventLog = place) -> Router:
        fresh = Router.load(folder, log=log, encoder=encoder, cache_prices=prices, **options)
        if models is not None and (missing := [a for a in fresh.arms if a not in models.models]):
            raise RouterError(f"{missing[0]!r} has no upstream: add it to {upstreams} and start again")
        return fresh

    keeper = Keeper(folder, make, every=every, checkpoint=checkpoint)
    follower = None if source is None else Follower(source)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.forwarder = Forwarder(_NONE if models is None else models)
        keeper.start()
        if follower is not None:
            follower.start()
        with one_blas_thread():  # as in the replay; products of one prompt are too small to share out
            yield
        await app.state.forwarder.close()
        if follower is not None:
            follower.stop()
        await asyncio.to_thread(keeper.stop)

    app = Starlette(
        routes=[
            Route("/v1/chat/completions", _guarded(chat), methods=["POST"]),
            Route("/v1/models", _guarded(list_models)),
            Route("/v1/decision", _guarded(decide), methods=["POST"]),
            Route("/v1/feedback", _guarded(feedback), methods=["POST"]),
            Route("/v1/feedback/retract", _guarded(retract), methods=["POST"]),
            Route("/healthz", health),
            Route("/metrics", _guarded(metrics)),
        ],
        lifespan=lifespan,
    )
    app.state.keeper, app.state.keys, app.state.forwards = keeper, keys, models is not None
    app.state.follower = follower
    app.state.times = {"decision": Histogram(), "request": Histogram()}
    return app


class _Nothing:
    models: dict[str, Any] = {}  # noqa: RUF012
    attempts, cooldown = 1, 0.0


_NONE: Any = _Nothing()


def from_environment() -> Starlette:
    """The application of a worker process: settings (JSON) from CABS_SERVE_SETTINGS, keys from CABS_SERVER_KEYS."""
    return make_app(**json.loads(os.environ[SETTINGS]), keys=read_keys(os.environ.get(KEYS)))


def serve(settings: dict[str, Any], *, host: str, port: int, workers: int) -> None:
    """Run the server until it is stopped. Raises RouterError before that where the settings are unusable."""
    check_host(host, read_keys(os.environ.get(KEYS)))
    read_manifest(settings["folder"])
    if settings.get("upstreams") is not None:
        read_upstreams(settings["upstreams"], read_manifest(settings["folder"], verify=False).names)
    os.environ[SETTINGS] = json.dumps(settings)
    uvicorn.run(
        "cabs_core.router.server.app:from_environment", factory=True, host=host, port=port, workers=workers,
        access_log=False, log_level="info",
        timeout_keep_alive=75,  # longer than clients wait (OpenAI's: 5 s), so that both never close at once
    )  # fmt: skip


# -- endpoints ------------------------------------------------------------------------------------------------------


def _refused(status: int, message: str, kind: str = "invalid_request_error") -> JSONResponse:
    return JSONResponse(error_body(message, kind), status)


def _guarded(endpoint: Endpoint) -> Endpoint:
    """Ask for a key where there are keys, and turn the project's errors into answers."""

    async def guarded(request: Request) -> Response:
        source = _source(request)
        if source is None:
            return _refused(401, "expected a key: Authorization: Bearer KEY", "authentication_error")
        request.state.source = source
        begin = time.perf_counter()
        try:
            return await endpoint(request)
        except LogError as error:
            logger.error("%s: %s", request.url.path, error)
            return _refused(503, "the event log cannot be used now; try again", "internal_error")
        except CabsError as error:
            return _refused(404 if str(error).startswith("unknown decision") else 400, str(error))
        except Exception:
            logger.exception("%s failed", request.url.path)
            return _refused(500, "internal error; the server's log says more", "internal_error")
        finally:
            request.app.state.times["request"].observe(time.perf_counter() - begin)

    return guarded


def _source(request: Request) -> str | None:
    """Name of the key that came along; 'local' where none is asked for; None: a wrong one, or none."""
    keys = request.app.state.keys
    if not keys:
        return "local"
    sent = request.headers.get("authorization", "").removeprefix("Bearer ").encode()
    found = [name for name, key in keys.items() if hmac.compare_digest(key.encode(), sent)]
    return found[0] if found else None


async def _body(request: Request) -> dict[str, Any]:
    if int(request.headers.get("content-length") or 0) > LARGEST:
        raise RouterError(f"the request is larger than {LARGEST >> 20} MiB")
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > LARGEST:
            raise RouterError(f"the request is larger than {LARGEST >> 20} MiB")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise RouterError("expected a JSON object as the body of the request")
    return found


async def chat(request: Request) -> Response:
    """POST /v1/chat/completions"""
    state = request.app.state
    if not state.forwards:
        return _refused(
            501, "this server was started without --upstreams: it decides and takes feedback only"
        )
    body, router = await _body(request), state.keeper.router
    model, headers = body.get("model", "cabs"), dict(request.headers)
    match = _MODEL.fullmatch(model) if isinstance(model, str) else None
    if match:
        rho = None if match[1] is None else float(match[1])
        begin = time.perf_counter()
        answer = await state.forwarder.routed(
            router,
            body,
            rho=rho,
            headers=headers,
            call_id=headers.get("x-request-id"),
            caller=request.state.source,
        )
        state.times["decision"].observe(time.perf_counter() - begin)
    elif model in router.arms:
        answer = await state.forwarder.call(model, body, headers, router=router)
    else:
        return _refused(
            404,
            f"unknown model {model!r:.100}: expected cabs, cabs-rho-NUMBER, or one of {', '.join(router.arms)}",
        )
    return _answered(answer)


def _answered(answer: Answer) -> Response:
    if answer.stream is not None:
        return StreamingResponse(answer.stream, answer.status, answer.headers)
    return Response(answer.body, answer.status, answer.headers)


async def list_models(request: Request) -> Response:
    """GET /v1/models"""
    router = request.app.state.keeper.router
    names = ["cabs"]
    if router.policy.any_rho_now():
        names += [f"cabs-rho-{rho:g}" for rho in router.manifest.rhos]
    data = [{"id": n, "object": "model", "created": 0, "owned_by": "cabs"} for n in [*names, *router.arms]]
    return JSONResponse({"object": "list", "data": data})


async def decide(request: Request) -> Response:
    """POST /v1/decision"""
    state, body = request.app.state, await _body(request)
    unknown = sorted(set(body) - {"text", *_REQUEST, "available", "rho", "budget", "call_id"})
    if unknown:
        raise RouterError(
            f"unknown field {unknown[0]!r}: expected text (with budget), or messages and the other fields of a request that "
            "say which conversation it is; available, rho, call_id"
        )
    router, source = state.keeper.router, request.state.source
    available, call_id = body.get("available"), body.get("call_id")
    if available is not None and not (
        isinstance(available, list) and all(isinstance(a, str) for a in available)
    ):
        raise RouterError("available: expected a list of models")
    if call_id is not None and not isinstance(call_id, str):
        raise RouterError("call_id: expected text")
    begin = time.perf_counter()
    common = {"available": available, "rho": body.get("rho"), "call_id": call_id, "caller": source}
    if "text" in body:
        made = await state.forwarder.beside(router.route, body["text"], budget=body.get("budget"), **common)
    elif not set(body) & {"messages", "input", "prompt"}:
        raise RouterError("there is nothing to route: expected text, or the messages of a request")
    else:
        turn = read_conversation(body, dict(request.headers), route_by=router.route_by, caller=source)
        made = await state.forwarder.beside(route_conversation, router, turn, **common)
    scores, costs = await state.forwarder.beside(lambda: (made.scores, made.costs))
    state.times["decision"].observe(time.perf_counter() - begin)
    return JSONResponse(
        {
            "id": made.id, "model": made.model, "propensity": made.propensity, "rho": made.rho,
            "probabilities": made.probabilities, "scores": scores, "costs": costs, "kept": made.kept,
        }
    )  # fmt: skip


async def feedback(request: Request) -> Response:
    """POST /v1/feedback"""
    state, body = request.app.state, await _body(request)
    unknown = sorted(set(body) - {*NAMES, "score", "cost", "idempotency_key"})
    if unknown:
        raise RouterError(
            f"unknown field {unknown[0]!r}: expected one of {', '.join(NAMES)}; score, cost, idempotency_key"
        )
    key = body.get("idempotency_key")
    if not isinstance(key, str | None):
        raise RouterError("idempotency_key: expected text")
    source, router = request.state.source, state.keeper.router
    result = await state.forwarder.beside(
        router.feedback_by, **_named(body, source), score=body.get("score"), cost=body.get("cost"), source=source,
        key=None if key is None else f"{source}:{key}",
    )  # fmt: skip
    status = 409 if result == "conflict" else 200
    return JSONResponse({"result": result}, status)


async def retract(request: Request) -> Response:
    """POST /v1/feedback/retract: the scores that the caller's key gave; what was learnt is learnt again beside requests."""
    state, body = request.app.state, await _body(request)
    if unknown := sorted(set(body) - set(NAMES)):
        raise RouterError(f"unknown field {unknown[0]!r}: expected one of {', '.join(NAMES)}")
    router = state.keeper.router
    logged = await state.forwarder.beside(router.named, **_named(body, request.state.source))
    gone = await asyncio.to_thread(router.retract, logged.id, source=request.state.source)
    return JSONResponse({"result": "retracted", "scores": gone})


def _named(body: dict[str, Any], caller: str) -> dict[str, str]:
    """The one name of a decision in a body; a session under its name in the log. Raises RouterError."""
    names = {k: body[k] for k in NAMES if body.get(k) is not None}
    if len(names) != 1 or not all(isinstance(v, str) for v in names.values()):
        raise RouterError(f"expected one of {', '.join(NAMES)}, as text")
    if session := names.get("session"):
        return {"session": session_key(session, caller)}
    return names


async def health(request: Request) -> Response:
    """GET /healthz"""
    router = request.app.state.keeper.router
    return JSONResponse(
        {"status": "ok", "bundle": router.manifest.id, "policy": router.manifest.policy, "mode": router.mode}
    )


async def metrics(request: Request) -> Response:
    """GET /metrics"""
    state = request.app.state
    router = state.keeper.router
    gauges = {
        "learnt_rewards": router.learner.learnt, "keeper_failures": state.keeper.failures,
        "upstream_failures": state.forwarder.errors,
    }  # fmt: skip
    if state.follower is not None:
        gauges["follower_failures"] = state.follower.failures
    if router.pacer is not None:
        gauges |= {"budget_rho": router.pacer.rho, "budget_spent_usd": router.pacer.spent}
    text = await state.forwarder.beside(metrics_text, router.log, router.manifest.id, state.times, gauges)
    return PlainTextResponse(text, headers={"content-type": "text/plain; version=0.0.4"})
