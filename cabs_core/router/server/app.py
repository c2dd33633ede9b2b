"""The endpoints, and how the server is started.

POST /v1/chat/completions, /v1/completions, /v1/responses, /v1/messages
                            model `cabs`, `cabs-rho-300`, or one of the models itself; streaming as the
                            upstream does
POST /v1/messages/count_tokens  tokens of a request, as a model counts them or estimated
POST /v1/embeddings         passed on to the model that is named, of `embeddings` in the upstreams file
GET  /v1/models, /v1/models/{id}
POST /v1/decision           {text or messages, available, rho, budget} -> a decision, nothing is called
POST /v1/feedback           {id, response_id, call_id or session; score, cost, idempotency_key} -> recorded,
                            duplicate; 404, 409. A static policy records and does not learn, and the answer
                            says so
POST /v1/feedback/retract   {id, response_id, call_id or session} -> how many of the caller's scores were
                            taken back
GET  /healthz               it lives
GET  /readyz                yes (200) or no (503), for anybody; an admin is told why
GET  /metrics               for admins, or at an address of its own (`--metrics`) without a key

Errors have the form of the endpoint's dialect. `callers` says who may ask.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from cabs_core.endpoints import request as asked
from cabs_core.endpoints.dialects import COUNT_TOKENS, PATHS, error_body
from cabs_core.endpoints.upstreams import Upstreams, read_upstreams
from cabs_core.errors import CabsError, LogError, RouterError, UnknownDecision
from cabs_core.paths import default_log
from cabs_core.router.bundle import read_manifest
from cabs_core.router.charges import check_client_cost
from cabs_core.router.encoder import TextEncoder
from cabs_core.router.event_rows import Logged
from cabs_core.router.events import BUDGET, EventLog
from cabs_core.router.logged import NAMES
from cabs_core.router.options import RouterOptions
from cabs_core.router.remote import Follower
from cabs_core.router.router import Router
from cabs_core.router.server.bodies import body_of
from cabs_core.router.server.call import Answer, Ask
from cabs_core.router.server.callers import (
    ADMIN_KEYS,
    KEYS,
    Caller,
    Refused,
    caller_of,
    check_host,
    is_local,
    read_keys,
    request_id,
)
from cabs_core.router.server.cap import Cap
from cabs_core.router.server.forwarding import Forwarder
from cabs_core.router.server.gate import Gate
from cabs_core.router.server.keeper import Keeper
from cabs_core.router.server.lifetime import address_of, end_with_parent, run_server
from cabs_core.router.server.limits import prepare_process
from cabs_core.router.server.logs import REQUEST, log_config
from cabs_core.router.server.metrics import metrics_text
from cabs_core.router.server.protocol import BoundedProtocol
from cabs_core.router.server.readiness import Readiness
from cabs_core.router.server.tracing import Tracer
from cabs_core.router.server.upstreams import prices_of
from cabs_core.router.sessions import route_conversation
from cabs_core.secret import secret
from cabs_core.threads import one_blas_thread

SETTINGS = "CABS_SERVE_SETTINGS"
#: seconds after which a decision is looked for again by its answer's id, which another worker logs a moment
#: after the answer
LOOKS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
#: seconds that an answer waits for what was taken back to be learnt no more
RELEARNT = 2.0
_MODEL = re.compile(r"cabs(?:-rho-(\d{1,12}(?:\.\d{1,12})?))?")
logger = logging.getLogger("cabs.serve")
Endpoint = Callable[[Request], Awaitable[Response]]


def make_app(
    folder: str | Path,
    upstreams: str | Path | None,
    *,
    source: str | None = None,
    log: str | None = None,
    keys: dict[str, str] | None = None,
    admin_keys: dict[str, str] | None = None,
    every: float = 0.5,
    checkpoint: float = 5.0,
    fail_closed: bool = False,
    client_costs: bool = False,
    budget_cap_per_day: float | None = None,
    otel: bool = False,
    metrics: str | None = None,
    **options: Any,
) -> Starlette:
    """The server's application.

    Args:
        folder: the bundle; upstreams: the YAML file, None: decisions and feedback only.
        source: URL that the folder is a copy of, looked at for a new router.
        log: event log; None: beside the bundle. keys, admin_keys: {name: key}; both empty: no key is asked
            for.
        every, checkpoint: seconds, of the keeper.
        fail_closed: 503 where the router itself fails, instead of the fallback model.
        client_costs: feedback may bring the cost of the call. budget_cap_per_day: USD, a limit; None: none.
        otel: send spans over OTLP. metrics: the address at which figures need no key, HOST:PORT.
        **options: of `RouterOptions`.
    """
    place = default_log(folder) if log is None else log
    endpoints, settings = Upstreams(models={}), RouterOptions(**options)
    forwarder: Forwarder | None = None
    cap = None if budget_cap_per_day is None else Cap(budget_cap_per_day)

    def make(encoder: TextEncoder | None = None, log: str | Path | EventLog = place) -> Router:
        nonlocal endpoints
        names = read_manifest(folder, verify=False).names
        read = Upstreams(models={}) if upstreams is None else read_upstreams(upstreams, names)
        prices = None if upstreams is None else prices_of(read, names)
        cached = {n: (m.price.input, m.price.cached) for n, m in read.models.items() if m.price}
        priced = replace(settings, prices=prices, cache_prices=cached)
        router = Router(folder, priced, log=log, encoder=encoder)
        if read != endpoints:
            endpoints = read
            if forwarder is not None:
                forwarder.adopt(endpoints)
        return router

    noted: list[str] | None = None

    def tick(router: Router) -> None:
        nonlocal noted
        day, spent = router.follow_budget()
        if (problems := router.problems()) != noted:
            router.log.note(BUDGET, json.dumps(problems))
            noted = problems
            for problem in problems:
                logger.warning("%s", problem)
        if cap is not None:
            cap.follow(router.log, day, spent)

    keeper = Keeper(folder, make, also=upstreams, every=every, checkpoint=checkpoint, tick=tick)
    tick(keeper.router)
    follower = None if source is None else Follower(source)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        nonlocal forwarder
        tracer = Tracer.exporting() if otel else Tracer()
        app.state.gate = gate = Gate()
        app.state.forwarder = forwarder = Forwarder(
            endpoints, fail_closed=fail_closed, cap=cap, tracer=tracer, gate=gate
        )
        app.state.readiness = Readiness(keeper, forwarder, forwards=upstreams is not None)
        keeper.start()
        if follower is not None:
            follower.start()
        with one_blas_thread():  # as in the replay; products of one prompt are too small to share out
            yield
        await forwarder.close()
        if follower is not None:
            follower.stop()
        await asyncio.to_thread(keeper.stop)
        await asyncio.to_thread(tracer.close)

    forwarding = [
        Route(f"/v1{path}", _guarded(_completion(dialect), dialect), methods=["POST"])
        for dialect, path in PATHS.items()
    ]
    app = Starlette(
        routes=[
            *forwarding,
            Route(f"/v1{COUNT_TOKENS}", _guarded(count_tokens, "messages"), methods=["POST"]),
            Route("/v1/embeddings", _guarded(embeddings), methods=["POST"]),
            Route("/v1/models", _guarded(list_models)),
            Route("/v1/models/{name:path}", _guarded(one_model)),
            Route("/v1/decision", _guarded(decide), methods=["POST"]),
            Route("/v1/feedback", _guarded(feedback), methods=["POST"]),
            Route("/v1/feedback/retract", _guarded(retract), methods=["POST"]),
            Route("/healthz", health),
            Route("/readyz", ready),
            Route("/metrics", _guarded(show_metrics)),
        ],
        exception_handlers={404: _unknown, 405: _unknown},
        lifespan=lifespan,
        middleware=[Middleware(Ends)],
    )
    app.state.keeper, app.state.forwards, app.state.client_costs = keeper, upstreams is not None, client_costs
    app.state.keys, app.state.admins, app.state.cap = keys or {}, admin_keys or {}, cap
    app.state.follower, app.state.metrics = follower, address_of(metrics)
    return app


class Ends:
    """ASGI middleware: what a request has begun, in `request.state.ends`, ends when its answer was sent or
    could not be."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        async with AsyncExitStack() as ends:
            scope.setdefault("state", {})["ends"] = ends
            await self.app(scope, receive, send)


def from_environment() -> Starlette:
    """The application of a worker process: settings (JSON) from CABS_SERVE_SETTINGS, keys from their
    variables."""
    end_with_parent()
    prepare_process()
    keys, admins = (read_keys(secret(name), name) for name in (KEYS, ADMIN_KEYS))
    return make_app(**json.loads(os.environ[SETTINGS]), keys=keys, admin_keys=admins)


def serve(
    settings: dict[str, Any], *, host: str, port: int, workers: int, grace: int, log_format: str = "json"
) -> None:
    """Run the server until it is stopped. Raises RouterError before that where the settings are unusable."""
    keys, admins = (read_keys(secret(name), name) for name in (KEYS, ADMIN_KEYS))
    check_host(host, keys | admins)
    metrics = address_of(settings.get("metrics"))
    read_manifest(settings["folder"])
    if settings.get("upstreams") is not None:
        read_upstreams(settings["upstreams"], read_manifest(settings["folder"], verify=False).names)
    os.environ[SETTINGS] = json.dumps(settings)
    run_server(
        "cabs_core.router.server.app:from_environment",
        host=host,
        port=port,
        workers=workers,
        metrics=metrics,
        grace=grace,
        access_log=False,
        log_config=log_config(log_format),
        http=BoundedProtocol,
        ws="none",
        # a worker that does not answer in time is killed with what it was doing: on a busy machine 5 s are
        # not enough
        timeout_worker_healthcheck=60,
        timeout_keep_alive=75,  # longer than clients wait (OpenAI's: 5 s), so that both never close at once
    )


# -- endpoints -----------------------------------------------------------------------------------------------


def _refused(
    status: int,
    message: str,
    kind: str = "invalid_request_error",
    dialect: str = "chat",
    retry_after: int | None = None,
) -> JSONResponse:
    headers = {} if retry_after is None else {"retry-after": str(retry_after)}
    return JSONResponse(error_body(message, kind, dialect, status), status, headers=headers)


async def _unknown(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    what = "no such endpoint" if status == 404 else f"{request.method} is not how this endpoint is asked"
    return _refused(status, f"{what}: {request.method} {request.url.path:.200}")


def _guarded(endpoint: Endpoint, dialect: str = "chat") -> Endpoint:
    """Ask who it is, and turn the project's errors into answers; every answer has the request's id."""

    async def guarded(request: Request) -> Response:
        begin, name = time.perf_counter(), request_id(request)
        request.state.id = name
        token = REQUEST.set(name)
        counters = request.app.state.forwarder.counters
        try:
            request.state.caller = _who(request)
            request.state.ends.enter_context(request.app.state.gate.request(_caller(request).name))
            answer = await endpoint(request)
        except Refused as error:
            answer = _refused(error.status, error.message, error.kind, dialect, error.retry_after)
        except LogError as error:
            logger.error("%s: %s", request.url.path, error)
            text = "the event log cannot be used now; try again"
            answer = _refused(503, text, "internal_error", dialect, 1)
        except CabsError as error:
            status = 404 if isinstance(error, UnknownDecision) else 400
            answer = _refused(status, str(error), dialect=dialect)
        except Exception:
            logger.exception("%s failed", request.url.path)
            answer = _refused(500, "internal error; the server's log says more", "internal_error", dialect)
        finally:
            REQUEST.reset(token)
        seconds = time.perf_counter() - begin
        counters.observe("request_seconds", seconds)
        if answer.status_code >= 400:
            counters.add("refused_total", status=str(answer.status_code))
            logger.info(
                "%s %s: %d",
                request.method,
                request.url.path,
                answer.status_code,
                extra={"request_id": name, "seconds": round(seconds, 6)},
            )
        answer.headers["x-request-id"] = name
        return answer

    return guarded


def _who(request: Request) -> Caller:
    """Who sent a request; whoever reaches the address of the figures may read them, and nothing else.

    Raises Refused.
    """
    state, here = request.app.state, request.scope.get("server") or ("", 0)
    if state.metrics is None or here[1] != state.metrics[1]:
        return caller_of(request, state.keys, state.admins)
    if request.url.path != "/metrics":
        raise Refused(404, "this address has /metrics, /readyz and /healthz only")
    if is_local(state.metrics[0]) and not is_local(request.headers.get("host", "")):
        raise Refused(403, "this address answers programs on this machine", "permission_error")
    return Caller("metrics", admin=True)


def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


def _completion(dialect: str) -> Endpoint:
    """POST /v1/chat/completions and its kin."""

    async def complete(request: Request) -> Response:
        ask, model, router = await _asked(request, dialect)
        forwarder = request.app.state.forwarder
        if model is None:
            return _answered(await forwarder.routed(router, ask))
        return _answered(await forwarder.named(router, model, ask))

    return complete


async def count_tokens(request: Request) -> Response:
    """POST /v1/messages/count_tokens: as a model counts, else an estimate."""
    ask, model, router = await _asked(request, "messages")
    return _answered(await request.app.state.forwarder.count_tokens(router, ask, model))


async def _asked(request: Request, dialect: str) -> tuple[Ask, str | None, Router]:
    """(what is asked, the model that it names, None: the router is to choose, the router). Raises Refused."""
    state = request.app.state
    if not state.forwards:
        raise Refused(501, "this server was started without --upstreams: it decides and takes feedback only")
    body, router = await body_of(request), state.keeper.router
    model = body.get("model", "cabs")
    match = _MODEL.fullmatch(model) if isinstance(model, str) else None
    if match:
        rho = None if match[1] is None else float(match[1])
        return await _ask(request, body, dialect, rho), None, router
    if isinstance(model, str) and model in state.forwarder.upstreams.models:
        return await _ask(request, body, dialect), model, router
    known = ", ".join(router.arms)
    raise Refused(404, f"unknown model {model!r:.100}: expected cabs, cabs-rho-NUMBER, or one of {known}")


async def _ask(request: Request, body: dict[str, Any], dialect: str, rho: float | None = None) -> Ask:
    state, caller, headers = request.app.state, _caller(request).name, dict(request.headers)
    ends, route_by = (
        time.monotonic() + state.forwarder.upstreams.deadline,
        state.keeper.router.options.route_by,
    )
    read = partial(asked.Request.read, body, headers, dialect, route_by=route_by, caller=caller)
    turn = await state.gate.beside(request.state.size, read)
    here, size = request.state, request.state.size
    return Ask(body, dialect, headers, here.id, caller, rho, ends, turn, size, here.ends, here.room)


def _answered(answer: Answer) -> Response:
    if answer.stream is not None:
        return StreamingResponse(answer.stream, answer.status, answer.headers)
    return Response(answer.body, answer.status, answer.headers)


async def embeddings(request: Request) -> Response:
    """POST /v1/embeddings: to the model that it names; its cost is counted like that of any call."""
    state, body = request.app.state, await body_of(request)
    name, upstreams = body.get("model"), state.forwarder.upstreams.embeddings
    if not isinstance(name, str) or name not in upstreams:
        expected = ", ".join(upstreams) or "none: the upstreams file has no embeddings"
        raise Refused(404, f"unknown model {name!r:.100} of embeddings: expected one of {expected}")
    ask = await _ask(request, body, "embeddings")
    return _answered(await state.forwarder.named(state.keeper.router, name, ask))


def _models(request: Request) -> list[dict[str, Any]]:
    router, forwarder = request.app.state.keeper.router, request.app.state.forwarder
    names = ["cabs"]
    if router.policy.algorithm.any_rho_now():
        names += [f"cabs-rho-{rho:g}" for rho in router.manifest.rhos]
    names += [*router.arms, *forwarder.upstreams.embeddings]
    return [{"id": n, "object": "model", "created": 0, "owned_by": "cabs"} for n in names]


async def list_models(request: Request) -> Response:
    """GET /v1/models"""
    return JSONResponse({"object": "list", "data": _models(request)})


async def one_model(request: Request) -> Response:
    """GET /v1/models/{id}"""
    name = request.path_params["name"]
    for model in _models(request):
        if model["id"] == name:
            return JSONResponse(model)
    raise Refused(404, f"unknown model {name!r:.100}")


async def decide(request: Request) -> Response:
    """POST /v1/decision"""
    state, body = request.app.state, await body_of(request)
    unknown = sorted(set(body) - {"text", *asked.FIELDS, "available", "rho", "budget", "call_id"})
    if unknown:
        raise RouterError(
            f"unknown field {unknown[0]!r}: expected text (with budget), or messages and the other fields of "
            "a request that say which conversation it is; available, rho, call_id"
        )
    router, source = state.keeper.router, _caller(request).name
    available, call_id = body.get("available"), body.get("call_id")
    if available is not None and not (
        isinstance(available, list) and all(isinstance(a, str) for a in available)
    ):
        raise RouterError("available: expected a list of models")
    if call_id is not None and not isinstance(call_id, str):
        raise RouterError("call_id: expected text")
    begin = time.perf_counter()
    if isinstance(body.get("text"), str):
        body["text"] = body["text"][: asked.LONGEST]  # as much as is read of a conversation
    common = {"rho": body.get("rho"), "call_id": call_id, "caller": source}
    if "text" in body:
        decide = partial(router.route, body["text"], budget=body.get("budget"), available=available)
    elif not set(body) & set(asked.MESSAGES):
        raise RouterError("there is nothing to route: expected text, or the messages of a request")
    else:
        ask = await _ask(request, body, "chat")
        router.mask(available)  # names models of this router
        arms = router.arms if available is None else available
        turn, at_place = await state.forwarder.holders(router, ask.request, arms, source)
        decide = partial(route_conversation, router, turn, available=at_place or available)
    routed = await state.forwarder.beside(decide, **common)
    scores, costs = await state.forwarder.beside(lambda: (routed.scores, routed.costs))
    state.forwarder.counters.observe("decision_seconds", time.perf_counter() - begin)
    answer = {"id": routed.id, "model": routed.model, "propensity": routed.propensity, "rho": routed.rho}
    answer |= {"probabilities": routed.probabilities, "scores": scores, "costs": costs, "kept": routed.kept}
    return JSONResponse(answer)


async def feedback(request: Request) -> Response:
    """POST /v1/feedback"""
    state, body = request.app.state, await body_of(request)
    unknown = sorted(set(body) - {*NAMES, "score", "cost", "idempotency_key"})
    if unknown:
        raise RouterError(
            f"unknown field {unknown[0]!r}: expected one of {', '.join(NAMES)}; score, cost, idempotency_key"
        )
    key = body.get("idempotency_key")
    if not isinstance(key, str | None):
        raise RouterError("idempotency_key: expected text")
    caller, router = _caller(request), state.keeper.router
    logged = await _owned(request, body)
    cost = body.get("cost")
    if cost is not None:
        if not state.client_costs:
            raise RouterError("cost: the router counts costs itself; --client-costs takes them from clients")
        check_client_cost(cost, logged.cost, logged.expected_cost)
    result = await state.forwarder.beside(
        router.feedback,
        logged.id,
        score=body.get("score"),
        cost=cost,
        source=caller.name,
        key=None if key is None else f"{caller.name}:{key}",
    )
    return JSONResponse(router.about_feedback(result), 409 if result == "conflict" else 200)


async def _owned(request: Request, body: dict[str, Any]) -> Logged:
    """The decision that a body names among the caller's, for an admin among all.

    Raises UnknownDecision: there is none.
    """
    state, caller = request.app.state, _caller(request)
    named = _named(body, caller.name)
    (what,) = named
    for pause in LOOKS if what == "response_id" else LOOKS[:1]:
        await asyncio.sleep(pause)
        with suppress(UnknownDecision):
            logged: Logged = await state.forwarder.beside(
                state.keeper.router.named, caller=None if caller.admin else caller.name, **named
            )
            return logged
    raise UnknownDecision(what, body[what])


async def retract(request: Request) -> Response:
    """POST /v1/feedback/retract: take back the scores that the caller's key gave.

    The policy learns again in the background, once for all that came meanwhile; the answer waits for it a
    moment.
    """
    state, body = request.app.state, await body_of(request)
    if unknown := sorted(set(body) - set(NAMES)):
        raise RouterError(f"unknown field {unknown[0]!r}: expected one of {', '.join(NAMES)}")
    logged = await _owned(request, body)
    router, source = state.keeper.router, _caller(request).name

    def take_back() -> tuple[int, int]:
        return router.retract(logged.id, source=source, follow=False), router.log.revision

    gone, revision = await asyncio.to_thread(take_back)
    end = time.monotonic() + RELEARNT
    while time.monotonic() < end and state.keeper.router.learner.revision < revision:
        await asyncio.sleep(0.05)
    return JSONResponse({"result": "retracted", "scores": gone})


def _named(body: dict[str, Any], caller: str) -> dict[str, str]:
    """The one name of a decision in a body; a session under its name in the log. Raises RouterError."""
    names = {k: body[k] for k in NAMES if body.get(k) is not None}
    if len(names) != 1 or not all(isinstance(v, str) for v in names.values()):
        raise RouterError(f"expected one of {', '.join(NAMES)}, as text")
    if session := names.get("session"):
        return {"session": asked.session_key(session, caller)}
    return names


async def health(request: Request) -> Response:
    """GET /healthz: this process lives."""
    router = request.app.state.keeper.router
    return JSONResponse(
        {
            "status": "ok",
            "bundle": router.manifest.id,
            "policy": router.manifest.policy,
            "mode": router.options.mode,
        }
    )


async def ready(request: Request) -> Response:
    """GET /readyz: whether requests would be answered; an admin is told what is wrong."""
    state = await request.app.state.readiness.state()
    answer: dict[str, Any] = {"status": state.status}
    with suppress(Refused):
        if caller_of(request, request.app.state.keys, request.app.state.admins).admin:
            answer["problems"] = state.problems
    return JSONResponse(answer, 200 if state.ready else 503)


async def show_metrics(request: Request) -> Response:
    """GET /metrics"""
    state = request.app.state
    if not _caller(request).admin:
        raise Refused(403, f"figures of all callers are for a key of {ADMIN_KEYS}", "permission_error")
    router, forwarder = state.keeper.router, state.forwarder
    gauges: list[tuple[str, dict[str, str], float]] = [
        ("learnt_rewards", {}, router.learner.learnt),
        ("keeper_failures_total", {}, state.keeper.failures),
    ]
    if state.follower is not None:
        gauges.append(("follower_failures_total", {}, state.follower.failures))
    for name, breaker in forwarder.breakers.items():
        gauges.append(("breaker_open", {"model": name}, float(breaker.state == "open")))
        gauges.append(("breaker_opened_total", {"model": name}, breaker.opened))
    if router.pacer is not None:
        gauges += [("budget_rho", {}, router.pacer.rho), ("budget_spent_usd", {}, router.pacer.spent)]
    if state.cap is not None:
        gauges += [("cap_spent_usd", {}, state.cap.spent), ("cap_usd", {}, state.cap.usd)]
    gauges.sort(key=lambda gauge: gauge[0])
    text = await asyncio.to_thread(metrics_text, router.log, router.manifest.id, forwarder.counters, gauges)
    return PlainTextResponse(text, headers={"content-type": "text/plain; version=0.0.4"})
