"""Endpoints of those who call models themselves: decisions, and scores of them."""

import asyncio
import json
import time
from contextlib import suppress
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cabs_core.base.errors import RouterError, UnknownDecision
from cabs_core.data.endpoints import person_text
from cabs_core.data.endpoints import request as asked
from cabs_core.data.events.rows import Logged
from cabs_core.router.charges import check_client_cost
from cabs_core.router.logged import NAMES
from cabs_core.router.sessions import route_conversation
from cabs_core.router.terms import SCORE, VALUE, WANTED, WHY
from cabs_server.bodies import read_json
from cabs_server.completions import headers_of, terms_of
from cabs_server.guard import caller_in

#: seconds after which a decision is looked for again by its answer's id, which another worker logs later
LOOKS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
#: seconds that an answer waits for what was taken back to be learnt no more
RELEARNT = 2.0


async def decide(request: Request) -> Response:
    """POST /v1/decision {text or messages, available, rho, budget, call_id}

    Raises:
        RouterError: a field is unknown, or of another type.
    """
    state, body = request.app.state, await read_json(request)
    unknown = sorted(set(body) - {"text", *asked.FIELDS, "available", "rho", "budget", "call_id"})
    if unknown:
        raise RouterError(
            f"unknown field {unknown[0]!r}: expected text (with budget), or messages and the other fields of "
            "a request that say which conversation it is; available, rho, call_id"
        )
    router, source = state.keeper.router, caller_in(request).name
    available, call_id = body.get("available"), body.get("call_id")
    if available is not None and not (
        isinstance(available, list) and all(isinstance(a, str) for a in available)
    ):
        raise RouterError("available: expected a list of models")
    if call_id is not None and not isinstance(call_id, str):
        raise RouterError("call_id: expected text")
    terms, rho = terms_of(request, router), body.get("rho")
    if rho is not None and terms.rho is not None:
        raise RouterError(f"rho and {VALUE} both say what a right answer is worth: give one")
    router.mask(available)  # names models of this router
    if terms.models is not None:
        available = [arm for arm in terms.models if available is None or arm in available]
    begin = time.perf_counter()
    if isinstance(body.get("text"), str):
        body["text"] = body["text"][: person_text.LONGEST]  # as much as is read of a conversation
    common = {"rho": terms.rho if rho is None else rho, "call_id": call_id, "caller": source}
    if "text" in body:
        decide = partial(router.route, body["text"], budget=body.get("budget"), available=available)
    elif not set(body) & set(asked.MESSAGES):
        raise RouterError("there is nothing to route: expected text, or the messages of a request")
    else:
        options = router.options
        chat = asked.ChatRequest.read(
            body, headers_of(request), route_by=options.route_by, caller=source, rules=options.text_rules
        )
        arms = router.arms if available is None else available
        chat, at_place = await state.forwarder.holders(router, chat, arms, source)
        decide = partial(route_conversation, router, chat, available=at_place or available)
    run = state.forwarder.worker.run
    routed = await run(source, decide, **common)
    scores, costs, why = await run(source, lambda: (routed.scores, routed.costs, routed.why))
    state.forwarder.counters.observe("decision_seconds", time.perf_counter() - begin)
    answer = {"id": routed.id, "model": routed.model, "propensity": routed.propensity, "rho": routed.rho}
    answer |= {"probabilities": routed.probabilities, "scores": scores, "costs": costs, "kept": routed.kept}
    headers = {WHY: json.dumps(why)} | ({SCORE: WANTED} if routed.marked else {})
    return JSONResponse(answer, headers=headers)


async def feedback(request: Request) -> Response:
    """POST /v1/feedback {id, response_id, call_id or session; score, cost, idempotency_key}

    Raises:
        RouterError: a field is unknown, or the client may not name a cost.
    """
    state, body = request.app.state, await read_json(request)
    unknown = sorted(set(body) - {*NAMES, "score", "cost", "idempotency_key"})
    if unknown:
        raise RouterError(
            f"unknown field {unknown[0]!r}: expected one of {', '.join(NAMES)}; score, cost, idempotency_key"
        )
    key = body.get("idempotency_key")
    if not isinstance(key, str | None):
        raise RouterError("idempotency_key: expected text")
    caller, router = caller_in(request), state.keeper.router
    logged = await _owned(request, body)
    cost = body.get("cost")
    if cost is not None:
        if not state.client_costs:
            raise RouterError("cost: the router counts costs itself; --client-costs takes them from clients")
        check_client_cost(cost, logged.cost, logged.expected_cost)
    result = await state.forwarder.worker.run(
        caller.name,
        router.feedback,
        logged.id,
        score=body.get("score"),
        cost=cost,
        source=caller.name,
        key=None if key is None else json.dumps([caller.name, key]),
    )
    return JSONResponse(router.about_feedback(result), 409 if result == "conflict" else 200)


async def _owned(request: Request, body: dict[str, Any]) -> Logged:
    """The decision that a body names among the caller's, for an admin among all.

    Raises UnknownDecision: there is none.
    """
    state, caller = request.app.state, caller_in(request)
    named = _named(body, caller.name)
    (what,) = named
    for pause in LOOKS if what == "response_id" else LOOKS[:1]:
        await asyncio.sleep(pause)
        with suppress(UnknownDecision):
            logged: Logged = await state.forwarder.worker.run(
                caller.name, state.keeper.router.named, caller=caller.owner, **named
            )
            return logged
    raise UnknownDecision(what, body[what])


async def retract(request: Request) -> Response:
    """POST /v1/feedback/retract: take back the scores that the caller's key gave.

    The policy learns again in the background, once for all; the answer waits a moment.

    Raises:
        RouterError: a field is unknown.
    """
    state, body = request.app.state, await read_json(request)
    if unknown := sorted(set(body) - set(NAMES)):
        raise RouterError(f"unknown field {unknown[0]!r}: expected one of {', '.join(NAMES)}")
    logged = await _owned(request, body)
    router, source = state.keeper.router, caller_in(request).name

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
