"""Endpoints of those who watch the server: whether it lives, whether it answers, and its figures."""

import asyncio
from contextlib import suppress
from typing import Any

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from cabs_server.callers import ADMIN_KEYS, Refused
from cabs_server.guard import caller_in, who
from cabs_server.metrics import Sample, metrics_text


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
    status, problems = await request.app.state.readiness.state()
    answer: dict[str, Any] = {"status": status}
    with suppress(Refused):
        if who(request).admin:
            answer["problems"] = problems
    return JSONResponse(answer, 503 if status == "not ready" else 200)


async def show_metrics(request: Request) -> Response:
    """GET /metrics"""
    state = request.app.state
    if not caller_in(request).admin:
        text = f"figures are for a key of {ADMIN_KEYS}, or stand at --metrics ADDRESS"
        raise Refused(403, text, "permission_error")
    router, forwarder = state.keeper.router, state.forwarder
    states: list[Sample] = [
        ("learnt_rewards", {}, router.learner.learnt),
        ("keeper_failures_total", {}, state.keeper.failures),
    ]
    if state.follower is not None:
        states.append(("follower_failures_total", {}, state.follower.failures))
    for name, breaker in forwarder.breakers.items():
        states.append(("breaker_open", {"model": name}, float(breaker.state == "open")))
        states.append(("breaker_opened_total", {"model": name}, breaker.opened))
    if router.pacer is not None:
        states += [("budget_rho", {}, router.pacer.rho), ("budget_spent_usd", {}, router.pacer.spent)]
    if state.cap is not None:
        states += [("cap_spent_usd", {}, state.cap.spent), ("cap_usd", {}, state.cap.usd)]
    text = await asyncio.to_thread(metrics_text, router.log, router.manifest.id, forwarder.counters, states)
    return PlainTextResponse(text, headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})
