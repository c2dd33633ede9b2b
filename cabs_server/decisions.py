"""Endpoints for programs that call models themselves: `/v1/decision`, `/v1/feedback` and its retraction."""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cabs_core.base.errors import RouterError, UnknownDecision
from cabs_core.data.endpoints import person_text
from cabs_core.data.endpoints import request as chat_requests
from cabs_core.data.endpoints.body_fields import MESSAGES
from cabs_core.data.events.rows import Logged
from cabs_core.router.charges import check_client_cost
from cabs_core.router.logged import NAMES
from cabs_core.router.routed import Routed
from cabs_core.router.router import Router
from cabs_core.router.sessions import route_conversation
from cabs_core.router.terms import SCORE, VALUE, WANTED, WHY
from cabs_server.attempt import run_if_large
from cabs_server.bodies import parse_body, read_body
from cabs_server.completions import headers_of, terms_of
from cabs_server.guard import caller_in

#: pauses, in seconds, before each search for a decision by its answer's id, which another worker may log late
SEARCH_PAUSES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
#: seconds that the answer to a retraction waits for the policy to be learnt again
RELEARN_SECONDS = 2.0
_DECISION_FIELDS = ("available", "rho", "budget", "call_id")


async def decide(request: Request) -> Response:
    """POST /v1/decision {text or messages, available, rho, budget, call_id}: choose a model without a call.

    The field `budget` belongs to `text`.

    Raises:
        RouterError: a field is unknown or has a wrong type, a budget comes with messages, a model is unknown,
            no model is within the budget, or there is nothing to route.
        Refused: no model is at the provider that stores the conversation.
    """
    content, body = await _read_json(request)
    state = request.app.state
    router = state.keeper.router
    caller = caller_in(request).name
    _check_fields(body)
    terms = terms_of(request, router)
    rho = body.get("rho")
    if rho is not None and terms.rho is not None:
        raise RouterError(f"rho and {VALUE} both say what a right answer is worth: give one")
    available = _available_models(body, router, terms.models)
    begin = time.perf_counter()
    if "text" in body:
        text = body["text"]
        if isinstance(text, str):
            text = text[: person_text.LONGEST]  # as much as is read of a conversation
        choose: Callable[..., Routed] = partial(
            router.route, text, budget=body.get("budget"), available=available
        )
    else:
        choose = await _choose_for_conversation(request, content, body, router, available)
    worker = state.forwarder.worker
    routed = await worker.run(
        caller,
        choose,
        rho=terms.rho if rho is None else rho,
        call_id=body.get("call_id"),
        caller=caller,
    )
    # these properties are computed when they are read, so the worker reads them
    scores, costs, why = await worker.run(caller, lambda: (routed.scores, routed.costs, routed.why))
    state.forwarder.counters.observe("decision_seconds", time.perf_counter() - begin)
    answer = {
        "id": routed.id,
        "model": routed.model,
        "propensity": routed.propensity,
        "rho": routed.rho,
        "probabilities": routed.probabilities,
        "scores": scores,
        "costs": costs,
        "kept": routed.kept,
    }
    headers = {WHY: json.dumps(why)}
    if routed.marked:
        headers[SCORE] = WANTED
    return JSONResponse(answer, headers=headers)


async def _read_json(request: Request) -> tuple[bytes, dict[str, Any]]:
    """Return (bytes of a request's body, the JSON object in them). A large body is read on a thread.

    Raises:
        Refused: see `read_body` and `parse_body`.
    """
    content = await read_body(request)
    forwarder = request.app.state.forwarder
    body = await run_if_large(forwarder, caller_in(request).name, content, partial(parse_body, content))
    return content, body


def _check_fields(body: dict[str, Any]) -> None:
    """Raise RouterError if the body of a decision has an unknown field, or a budget without a text.

    Of the types, only those of `available` and `call_id` are checked here. The router checks `text`, `rho`
    and `budget`.
    """
    unknown = sorted(set(body) - {"text", *chat_requests.FIELDS, *_DECISION_FIELDS})
    if unknown:
        raise RouterError(
            f"unknown field {unknown[0]!r}: expected text (with budget), or messages and the other fields of "
            "a request that say which conversation it is; available, rho, call_id"
        )
    available = body.get("available")
    is_list = isinstance(available, list) and all(isinstance(name, str) for name in available)
    if available is not None and not is_list:
        raise RouterError("available: expected a list of models")
    if body.get("call_id") is not None and not isinstance(body["call_id"], str):
        raise RouterError("call_id: expected text")
    if body.get("budget") is not None and "text" not in body:
        raise RouterError("budget: it goes with text, and a decision for messages takes rho")


def _available_models(
    body: dict[str, Any], router: Router, allowed: tuple[str, ...] | None
) -> list[str] | None:
    """Return the models that may be chosen, or None if all models may be chosen.

    Args:
        allowed: models that the header `x-cabs-models` names, or None.

    Raises:
        RouterError: `available` is empty or names a model that the router does not have.
    """
    available: list[str] | None = body.get("available")
    router.mask(available)  # raises an error for unknown names
    if allowed is None:
        return available
    return [name for name in allowed if available is None or name in available]


async def _choose_for_conversation(
    request: Request, content: bytes, body: dict[str, Any], router: Router, available: list[str] | None
) -> Callable[..., Routed]:
    """Return the function that chooses a model for the messages in a body.

    Args:
        content: bytes of the body. body: the JSON object in them.

    Raises:
        RouterError: there are no messages, or the text to route by cannot be read.
        Refused: no model is at the provider that stores the conversation.
    """
    if not set(body) & set(MESSAGES):
        raise RouterError("there is nothing to route: expected text, or the messages of a request")
    caller = caller_in(request).name
    forwarder = request.app.state.forwarder
    options = router.options
    read = partial(
        chat_requests.ChatRequest.read,
        body,
        headers_of(request),
        route_by=options.route_by,
        caller=caller,
        rules=options.text_rules,
    )
    chat = await run_if_large(forwarder, caller, content, read)
    models = router.arms if available is None else available
    chat, at_place = await forwarder.find_holder(router, chat, models, caller)
    return partial(route_conversation, router, chat, available=at_place or available)


async def feedback(request: Request) -> Response:
    """POST /v1/feedback {id, response_id, call_id or session; score, cost, idempotency_key}: record a score.

    A session has one score of a caller, at whichever of its turns it is given.
    The answer has status 409 if the decision has another score under this key (without a key: of this
    caller), or if the key was used for another decision. Nothing is recorded then.

    Raises:
        RouterError: a field is unknown or wrong, or the client may not name a cost.
        UnknownDecision: the caller has no such decision.
    """
    _, body = await _read_json(request)
    state = request.app.state
    unknown = sorted(set(body) - {*NAMES, "score", "cost", "idempotency_key"})
    if unknown:
        raise RouterError(
            f"unknown field {unknown[0]!r}: expected one of {', '.join(NAMES)}; score, cost, idempotency_key"
        )
    key = body.get("idempotency_key")
    if not isinstance(key, str | None):
        raise RouterError("idempotency_key: expected text")
    caller = caller_in(request)
    router = state.keeper.router
    logged, name = await _owned_decision(request, body)
    cost = body.get("cost")
    if cost is not None:
        if not state.client_costs:
            raise RouterError("cost: the router counts costs itself; --client-costs takes them from clients")
        check_client_cost(cost, logged.cost, logged.expected_cost)
    result = await state.forwarder.worker.run(
        caller.name,
        partial(router.feedback_by, **name),
        score=body.get("score"),
        cost=cost,
        source=caller.name,
        key=None if key is None else json.dumps([caller.name, key]),
        caller=caller.owner,
    )
    return JSONResponse(router.about_feedback(result), 409 if result == "conflict" else 200)


async def retract(request: Request) -> Response:
    """POST /v1/feedback/retract: take back the scores that the caller's key gave to a decision or a session.

    The policy learns again in the background, once for many retractions. The answer waits for the policy at
    most `RELEARN_SECONDS`.

    Raises:
        RouterError: a field is unknown, or the body does not name exactly one decision.
        UnknownDecision: the caller has no such decision.
    """
    _, body = await _read_json(request)
    state = request.app.state
    unknown = sorted(set(body) - set(NAMES))
    if unknown:
        raise RouterError(f"unknown field {unknown[0]!r}: expected one of {', '.join(NAMES)}")
    _, name = await _owned_decision(request, body)
    router = state.keeper.router
    caller = caller_in(request)

    def take_back() -> tuple[int, int]:
        """Return (number of scores taken back, revision of the log after that)."""
        count = router.retract_by(source=caller.name, follow=False, caller=caller.owner, **name)
        return count, router.log.revision

    retracted, revision = await asyncio.to_thread(take_back)
    end = time.monotonic() + RELEARN_SECONDS
    while time.monotonic() < end and state.keeper.router.learner.revision < revision:
        await asyncio.sleep(0.05)
    return JSONResponse({"result": "retracted", "scores": retracted})


async def _owned_decision(request: Request, body: dict[str, Any]) -> tuple[Logged, dict[str, str]]:
    """Return the decision that a body names, and {field: name} by which the router finds it.

    Administrators may name any decision, callers their own.

    Raises:
        UnknownDecision: there is no such decision.
        RouterError: the body does not name exactly one decision.
    """
    caller = caller_in(request)
    worker = request.app.state.forwarder.worker
    field, name = _named_decision(body, caller.name)
    pauses = SEARCH_PAUSES if field == "response_id" else SEARCH_PAUSES[:1]
    for pause in pauses:
        await asyncio.sleep(pause)
        router = request.app.state.keeper.router
        with suppress(UnknownDecision):
            logged: Logged = await worker.run(caller.name, router.named, caller=caller.owner, **{field: name})
            return logged, {field: name}
    raise UnknownDecision(field, body[field])


def _named_decision(body: dict[str, Any], caller: str) -> tuple[str, str]:
    """Return (field, name) of the decision in a body. A session is given by its hash in the log.

    Raises:
        RouterError: the body has none of `NAMES`, several, or one that is no text.
    """
    named = {field: body[field] for field in NAMES if body.get(field) is not None}
    if len(named) != 1 or not all(isinstance(name, str) for name in named.values()):
        raise RouterError(f"expected one of {', '.join(NAMES)}, as text")
    ((field, name),) = named.items()
    if field == "session" and name:
        name = chat_requests.session_key(name, caller)
    return field, name
