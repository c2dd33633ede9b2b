"""Endpoints for monitoring: `/healthz`, `/readyz` and `/metrics`."""

import asyncio
from contextlib import suppress
from typing import Any

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from cabs_server.callers import ADMIN_KEYS, Refused
from cabs_server.guard import caller_in, identify
from cabs_server.metrics import Sample, metrics_text


async def health(request: Request) -> Response:
    """GET /healthz: answer 200 with JSON that names the bundle, the policy and the mode of the router."""
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
    """GET /readyz: answer 200 if requests would be answered now, otherwise 503.

    The body is JSON: `status` is `ready`, `degraded` or `not ready`. Administrators also get `problems`, a
    list of sentences.
    """
    status, problems = await request.app.state.readiness.state()
    body: dict[str, Any] = {"status": status}
    with suppress(Refused):
        if identify(request).admin:
            body["problems"] = problems
    return JSONResponse(body, 503 if status == "not ready" else 200)


async def show_metrics(request: Request) -> Response:
    """GET /metrics: return the figures in Prometheus' text format.

    Raises:
        Refused: the caller is no administrator.
    """
    if not caller_in(request).admin:
        text = f"figures are for a key of {ADMIN_KEYS}, or stand at --metrics ADDRESS"
        raise Refused(403, text, "permission_error")
    router = request.app.state.keeper.router
    counters = request.app.state.forwarder.counters
    gauges = _gauges(request)
    text = await asyncio.to_thread(metrics_text, router.log, router.manifest.id, counters, gauges)
    return PlainTextResponse(text, headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})


def _gauges(request: Request) -> list[Sample]:
    """Return the figures of this process that are read from its objects and not counted by events."""
    state = request.app.state
    router = state.keeper.router
    samples: list[Sample] = [
        ("learnt_rewards", {}, router.learner.learnt),
        ("keeper_failures_total", {}, state.keeper.failures),
    ]
    if state.follower is not None:
        samples.append(("follower_failures_total", {}, state.follower.failures))
    for name, breaker in state.forwarder.breakers.items():
        samples.append(("breaker_open", {"model": name}, float(breaker.state == "open")))
        samples.append(("breaker_opened_total", {"model": name}, breaker.opened))
    if router.pacer is not None:
        samples.append(("budget_rho", {}, router.pacer.rho))
        samples.append(("budget_spent_usd", {}, router.pacer.spent))
    if state.cap is not None:
        samples.append(("cap_spent_usd", {}, state.cap.spent))
        samples.append(("cap_usd", {}, state.cap.usd))
    return samples
