"""The endpoints, and the application that answers them.

docs/serve.md says what they are for, each function what it takes. Errors have the form of the endpoint's
dialect. `callers` says who may ask.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from cabs_core.base.atomic import remove_leftovers_beside
from cabs_core.base.paths import default_log
from cabs_core.base.threads import one_blas_thread
from cabs_core.data.endpoints.dialects import COUNT_TOKENS, PATHS
from cabs_core.data.endpoints.upstreams import Upstreams, read_upstreams
from cabs_core.data.events.log import BUDGET, EventLog
from cabs_core.router.bundle import read_manifest
from cabs_core.router.encoder import TextEncoder
from cabs_core.router.options import RouterOptions
from cabs_core.router.remote import Follower
from cabs_core.router.router import Router
from cabs_server.cap import Cap
from cabs_server.completions import completion, count_tokens, embeddings, list_models, one_model
from cabs_server.connections import CallSettings
from cabs_server.decisions import decide, feedback, retract
from cabs_server.echo import echo_upstreams
from cabs_server.forwarding import Forwarder
from cabs_server.guard import guarded, unknown
from cabs_server.joins import Joins
from cabs_server.keeper import Keeper
from cabs_server.lifetime import address_of
from cabs_server.limits import Limits, RequestSlots
from cabs_server.probes import health, ready, show_metrics
from cabs_server.readiness import Readiness
from cabs_server.tracing import Tracer
from cabs_server.upstreams import prices_of

logger = logging.getLogger("cabs.serve")


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
    echo: bool = False,
    max_body: int = 20,
    requests_per_key: int = 64,
    requests: int = 512,
    **options: Any,
) -> Starlette:
    """The server's application.

    Args:
        folder: the bundle; upstreams: the YAML file, None: decisions and feedback only.
        source: URL that the folder is a copy of, looked at for a new router.
        log: event log; None: beside the bundle. keys, admin_keys: {name: key}; both empty: none is asked for.
        every, checkpoint: seconds, of the keeper.
        fail_closed: 503 where the router itself fails, instead of the fallback model.
        client_costs: feedback may bring the cost of the call. budget_cap_per_day: USD, a limit; None: none.
        otel: send spans over OTLP. metrics: the address at which figures need no key, HOST:PORT.
        echo: the server answers by itself with the name of the chosen model.
        max_body: MiB of a request's body. requests_per_key, requests: under way at once in this process.
        **options: of `RouterOptions`.
    """
    remove_leftovers_beside(Path(folder).absolute())
    place = default_log(folder) if log is None else log
    endpoints, settings = Upstreams(models={}), RouterOptions(**options)
    forwarder: Forwarder | None = None
    cap = None if budget_cap_per_day is None else Cap(budget_cap_per_day)

    def make(encoder: TextEncoder | None = None, log: str | Path | EventLog = place) -> Router:
        nonlocal endpoints
        names = read_manifest(folder, verify=False).names
        read = Upstreams(models={})
        if upstreams is not None:
            read = read_upstreams(upstreams, names)
        elif echo:
            read = echo_upstreams(names)
        prices = None if upstreams is None else prices_of(read, names)
        cached = {n: (m.price.input, m.price.cached) for n, m in read.models.items() if m.price}
        priced = replace(settings, prices=prices, cache_prices=cached)
        router = Router(folder, priced, log=log, encoder=encoder)
        router.warm_up()
        if read != endpoints:
            endpoints = read
            if forwarder is not None:
                forwarder.adopt(endpoints)
        return router

    noted: list[str] | None = None

    joins = Joins(upstreams, lambda: endpoints.models, copy=source is not None)

    def tick(router: Router, leads: bool) -> None:
        nonlocal noted
        day, spent = router.follow_budget()
        if (problems := router.problems()) != noted:
            router.log.note(BUDGET, json.dumps(problems))
            noted = problems
            for problem in problems:
                logger.warning("%s", problem)
        if cap is not None:
            cap.follow(router.log, day, spent)
        joins.look(router, leads)

    keeper = Keeper(folder, make, also=upstreams, every=every, checkpoint=checkpoint, tick=tick)
    tick(keeper.router, False)
    follower = None if source is None else Follower(source)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        nonlocal forwarder
        tracer = Tracer.exporting() if otel else Tracer()
        limits = Limits(max_body << 20, requests_per_key, requests)
        app.state.slots = slots = RequestSlots(limits)
        has_keys = len(app.state.keys) + len(app.state.admins) >= 2
        calls = CallSettings(cap, tracer, has_keys, echo, fail_closed)
        app.state.forwarder = forwarder = Forwarder(endpoints, calls, slots)
        app.state.readiness = Readiness(keeper, forwarder, joins, forwards=app.state.forwards)
        keeper.start()
        if follower is not None:
            follower.start()
        with one_blas_thread():  # as in the replay; products of one prompt are too small to share out
            yield
        await forwarder.close()
        if follower is not None:
            follower.stop()
        await asyncio.to_thread(keeper.stop, joins.stop)
        await asyncio.to_thread(tracer.close)

    forwarding = [
        Route(f"/v1{path}", guarded(completion(dialect), dialect), methods=["POST"])
        for dialect, path in PATHS.items()
    ]
    app = Starlette(
        routes=[
            *forwarding,
            Route(f"/v1{COUNT_TOKENS}", guarded(count_tokens, "messages"), methods=["POST"]),
            Route("/v1/embeddings", guarded(embeddings), methods=["POST"]),
            Route("/v1/models", guarded(list_models)),
            Route("/v1/models/{name:path}", guarded(one_model)),
            Route("/v1/decision", guarded(decide), methods=["POST"]),
            Route("/v1/feedback", guarded(feedback), methods=["POST"]),
            Route("/v1/feedback/retract", guarded(retract), methods=["POST"]),
            Route("/healthz", health),
            Route("/readyz", ready),
            Route("/metrics", guarded(show_metrics)),
        ],
        exception_handlers={404: unknown, 405: unknown},
        lifespan=lifespan,
        middleware=[Middleware(RequestResources)],
    )
    app.router.redirect_slashes = False  # behind TLS it would send callers, and their keys, to http
    app.state.keeper = keeper
    app.state.forwards = upstreams is not None or echo
    app.state.client_costs = client_costs
    app.state.keys = keys or {}
    app.state.admins = admin_keys or {}
    app.state.cap = cap
    app.state.follower = follower
    app.state.metrics = address_of(metrics)
    return app


class RequestResources:
    """ASGI middleware that closes the resources of a request (`request.state.resources` and `.large`)."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        # uvicorn adds the trailers of a chunked body to its list, after the headers were judged
        scope = {**scope, "headers": list(scope["headers"])}
        async with AsyncExitStack() as resources, AsyncExitStack() as large:
            scope.setdefault("state", {}).update(resources=resources, large=large)
            await self.app(scope, receive, send)
