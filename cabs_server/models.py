"""Endpoints of admins: a model joins the router that is served, or leaves it (`router.joining`)."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cabs_core.base.errors import RouterError
from cabs_core.data.endpoints import person_text
from cabs_core.data.endpoints.upstreams import STARTS
from cabs_core.router.joining import Scored, join, remove_model
from cabs_server.bodies import body_of
from cabs_server.callers import Refused
from cabs_server.guard import caller_in
from cabs_server.joins import COPY

#: scored prompts that a request may bring, and seconds that its answer waits for the new set of models
MOST, PATIENCE = 1000, 10.0


async def add(request: Request) -> Response:
    """POST /v1/models {name; scored, like or price_only}

    Raises:
        RouterError: a field is unknown or of another type, or as of `join`.
    """
    state, body = request.app.state, await body_of(request)
    _allow(request)
    if unknown := sorted(set(body) - {"name", *STARTS}):
        raise RouterError(f"unknown field {unknown[0]!r}: expected name, and one of {', '.join(STARTS)}")
    name, like = body.get("name"), body.get("like")
    if not isinstance(name, str) or not isinstance(like, str | None):
        raise RouterError("name, like: expected text")
    if not isinstance(body.get("price_only", False), bool):
        raise RouterError("price_only: expected true or false")
    how = {"like": like, "price_only": body.get("price_only") is True}
    scored = None if body.get("scored") is None else _scored(body["scored"])
    return await _changed(request, join, name, state.forwarder.upstreams.models, scored=scored, **how)


async def remove(request: Request) -> Response:
    """DELETE /v1/models/{name}"""
    _allow(request)
    name = request.path_params["name"]
    if name not in request.app.state.keeper.router.arms:
        raise Refused(404, f"unknown model {name!r:.100}")
    return await _changed(request, remove_model, name)


def _allow(request: Request) -> None:
    """Raises Refused: the caller is no admin, or the router is a copy of one on a store."""
    if not caller_in(request).admin:
        raise Refused(403, "models come and go by an admin's key", "permission_error")
    if request.app.state.follower is not None:
        raise Refused(409, COPY)


def _scored(rows: Any) -> Scored:
    """Raises RouterError: no rows of prompt, score and perhaps cost."""
    if not isinstance(rows, list) or not 1 <= len(rows) <= MOST:
        raise RouterError(f"scored: expected 1 to {MOST} objects of prompt, score and, where known, cost")
    for i, row in enumerate(rows):
        prompt = row.get("prompt") if isinstance(row, dict) else None
        if not isinstance(prompt, str) or not prompt.strip():
            raise RouterError(f"scored[{i}].prompt: expected text")
        for field, most in (("score", 1.0), ("cost", float("inf"))):
            value = row.get(field, 0.0 if field == "cost" else None)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= most:
                raise RouterError(f"scored[{i}].{field} {value!r:.60}: expected a number from 0 to {most:g}")
    costs = np.array([row["cost"] for row in rows]) if all("cost" in row for row in rows) else None
    texts = [row["prompt"][: person_text.LONGEST] for row in rows]
    return Scored(texts, np.array([float(row["score"]) for row in rows]), costs)


async def _changed(request: Request, change: Callable[..., str], *args: Any, **how: Any) -> Response:
    """Do it beside requests, and wait until this worker serves the new bundle."""
    state = request.app.state
    router = state.keeper.router
    shared = {"log": router.log, "encoder": router.encoder}
    bundle = await asyncio.to_thread(change, router.folder, *args, **how, **shared)
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and state.keeper.router.manifest.id != bundle:
        await asyncio.sleep(0.05)
    served = state.keeper.router
    answer = {"bundle": bundle, "models": served.arms, "served": served.manifest.id == bundle}
    return JSONResponse(answer)
