"""The ASGI application of `cabs serve`: its settings, its endpoints, and the objects that requests share.

`make_app` is the entry point for the server, for tests and for a program that serves a router itself.
docs/serve.md describes the endpoints. An error has the form of the endpoint's dialect.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import anyio
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


@dataclass(frozen=True)
class ServerSettings:
    """Settings of a server.

    Attributes:
        folder: folder of the router's bundle.
        upstreams: path of the upstreams file. None if the server only decides and takes feedback.
        source: URL of the store that `folder` is a copy of, from which new bundles are fetched. None if
            `folder` is no copy.
        log: path or URL of the event log. None selects the file beside the bundle.
        keys: {name: key} of callers.
        admin_keys: {name: key} of administrators. If both are empty, no key is asked for.
        every: seconds between two looks at the log and the bundle.
        checkpoint: seconds between two checkpoints.
        fail_closed: True to answer 503 if the router itself fails, instead of calling the fallback model.
        client_costs: True if feedback may bring the cost of a call.
        budget_cap_per_day: most USD that calls of a UTC day may cost. None sets no limit.
        otel: True to send spans over OTLP.
        metrics: HOST:PORT of a second address, at which figures need no key.
        echo: True if the server answers by itself with the name of the chosen model.
        max_body: most MiB of a request's body.
        requests_per_key: most requests of one key under way in this process.
        requests: most requests under way in this process.
        router: options of the router.
    """

    folder: Path
    upstreams: Path | None = None
    source: str | None = None
    log: str | None = None
    keys: dict[str, str] = field(default_factory=dict)
    admin_keys: dict[str, str] = field(default_factory=dict)
    every: float = 0.5
    checkpoint: float = 5.0
    fail_closed: bool = False
    client_costs: bool = False
    budget_cap_per_day: float | None = None
    otel: bool = False
    metrics: str | None = None
    echo: bool = False
    max_body: int = 20
    requests_per_key: int = 64
    requests: int = 512
    router: RouterOptions = field(default_factory=RouterOptions)

    @property
    def forwards(self) -> bool:
        """True if the server answers requests for completions."""
        return self.upstreams is not None or self.echo


def make_app(folder: str | Path, upstreams: str | Path | None, **settings: Any) -> Starlette:
    """Return the application that serves the router in a folder.

    Args:
        upstreams: path of the upstreams file, or None.
        **settings: further fields of `ServerSettings`, and fields of `RouterOptions`.

    Raises:
        CabsError: the bundle, the upstreams file, the log or an option cannot be used.
        TypeError: a setting has an unknown name.
    """
    own_names = {each.name for each in fields(ServerSettings)}
    own = {name: value for name, value in settings.items() if name in own_names}
    of_router = {name: value for name, value in settings.items() if name not in own_names}
    server = RouterServer(
        ServerSettings(
            folder=Path(folder),
            upstreams=None if upstreams is None else Path(upstreams),
            router=RouterOptions(**of_router),
            **own,
        )
    )
    return server.make_starlette()


class RouterServer:
    """The objects that all requests of one server process share: router, keeper, upstreams and budget.

    The keeper's thread replaces the router when the bundle or the upstreams file changes. The forwarder is
    made once the event loop runs.
    """

    def __init__(self, settings: ServerSettings):
        self._settings = settings
        self._upstreams = Upstreams(models={})
        self._forwarder: Forwarder | None = None
        self._noted_problems: list[str] | None = None
        self._cap: Cap | None = None
        if settings.budget_cap_per_day is not None:
            self._cap = Cap(settings.budget_cap_per_day)
        remove_leftovers_beside(settings.folder.absolute())
        self._log = default_log(settings.folder) if settings.log is None else settings.log
        self._joins = Joins(
            settings.upstreams, lambda: self._upstreams.models, is_copy=settings.source is not None
        )
        self._keeper = Keeper(
            settings.folder,
            self._make_router,
            also=settings.upstreams,
            every=settings.every,
            checkpoint=settings.checkpoint,
            tick=self._tick,
        )
        self._tick(self._keeper.router, leads=False)
        if settings.source is None:
            self._follower = None
        else:
            self._follower = Follower(settings.source)

    def make_starlette(self) -> Starlette:
        """Return the application with its endpoints, which find the shared objects in `app.state`."""
        settings = self._settings
        app = Starlette(
            routes=_routes(),
            exception_handlers={404: unknown, 405: unknown},
            lifespan=self._lifespan,
            middleware=[Middleware(RequestResources)],
        )
        app.router.redirect_slashes = False  # behind TLS it would send callers, and their keys, to http
        app.state.keeper = self._keeper
        app.state.forwards = settings.forwards
        app.state.client_costs = settings.client_costs
        app.state.keys = settings.keys
        app.state.admins = settings.admin_keys
        app.state.cap = self._cap
        app.state.follower = self._follower
        app.state.metrics = address_of(settings.metrics)
        return app

    def _make_router(
        self, encoder: TextEncoder | None = None, log: str | Path | EventLog | None = None
    ) -> Router:
        """Return a router on the bundle as it is now, and take up the upstreams file as it is now.

        Args:
            encoder: encoder of the router before, which is used again if it fits.
            log: open log of the router before. None opens the log.
        """
        names = read_manifest(self._settings.folder, verify=False).names
        upstreams = self._read_upstreams(names)
        options = self._settings.router
        if self._settings.upstreams is not None:
            options = replace(options, prices=prices_of(upstreams, names))
        cache_prices = {
            name: (model.price.input, model.price.cached)
            for name, model in upstreams.models.items()
            if model.price
        }
        options = replace(options, cache_prices=cache_prices)
        router = Router(
            self._settings.folder, options, log=self._log if log is None else log, encoder=encoder
        )
        router.warm_up()
        if upstreams != self._upstreams:
            self._upstreams = upstreams
            if self._forwarder is not None:
                self._forwarder.adopt(upstreams)
        return router

    def _read_upstreams(self, names: list[str]) -> Upstreams:
        """Return the models' endpoints of the upstreams file, or of `--echo`; without both there are none.

        Args:
            names: the router's models.
        """
        if self._settings.upstreams is not None:
            return read_upstreams(self._settings.upstreams, names)
        if self._settings.echo:
            return echo_upstreams(names)
        return Upstreams(models={})

    def _tick(self, router: Router, leads: bool) -> None:
        """Update the budget, note a new problem of the budget, and add models that wait to join.

        The problem is noted in the event log and as a warning. The keeper's thread calls this method at every
        look.

        Args:
            leads: True if this process holds the lease of the log. Only then are models added.
        """
        day, spent = router.follow_budget()
        problems = router.budget_problems()
        if problems != self._noted_problems:
            router.log.note(BUDGET, json.dumps(problems))
            self._noted_problems = problems
            for problem in problems:
                logger.warning("%s", problem)
        if self._cap is not None:
            self._cap.follow(router.log, day, spent)
        self._joins.look(router, leads)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Run the threads and connections of the server while it answers requests."""
        settings = self._settings
        if settings.otel:
            tracer = Tracer.exporting()
        else:
            tracer = Tracer()
        slots = RequestSlots(Limits(settings.max_body << 20, settings.requests_per_key, settings.requests))
        calls = CallSettings(
            cap=self._cap,
            tracer=tracer,
            has_keys=len(settings.keys) + len(settings.admin_keys) >= 2,
            echo=settings.echo,
            fail_closed=settings.fail_closed,
        )
        forwarder = Forwarder(self._upstreams, calls, slots)
        self._forwarder = forwarder
        app.state.slots = slots
        app.state.forwarder = forwarder
        app.state.readiness = Readiness(self._keeper, forwarder, self._joins, forwards=settings.forwards)
        self._keeper.start()
        if self._follower is not None:
            self._follower.start()
        async with anyio.create_task_group():
            pass  # Starlette's streams use one; the first loads modules, which would hold up all requests
        with one_blas_thread():  # as in the replay; products of one prompt are too small to share out
            yield
        await forwarder.close()
        if self._follower is not None:
            self._follower.stop()
        await asyncio.to_thread(self._keeper.stop, self._joins.stop)
        await asyncio.to_thread(tracer.close)


def _routes() -> list[Route]:
    """Return the endpoints."""
    completions = [
        Route(f"/v1{path}", guarded(completion(dialect), dialect), methods=["POST"])
        for dialect, path in PATHS.items()
    ]
    return [
        *completions,
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
    ]


class RequestResources:
    """ASGI middleware that opens the resources of a request and closes them when the answer was sent.

    `request.state.resources` is the exit stack of what the request opens. `request.state.large` is the exit
    stack of the memory that a large body reserves; it may be closed before the answer was sent.
    """

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        # uvicorn appends the trailers of a chunked body to its own list, after the headers were checked
        scope = {**scope, "headers": list(scope["headers"])}
        async with AsyncExitStack() as resources, AsyncExitStack() as large:
            scope.setdefault("state", {}).update(resources=resources, large=large)
            await self.app(scope, receive, send)
