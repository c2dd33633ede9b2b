"""Endpoints that call models: completions in four dialects, token counts, embeddings; the list of models."""

import re
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from cabs_core.base.errors import RouterError
from cabs_core.data.endpoints import person_text
from cabs_core.data.endpoints import request as asked
from cabs_core.router.router import Router
from cabs_core.router.terms import MODELS, VALUE, Terms
from cabs_server import limits
from cabs_server.bodies import body_of
from cabs_server.call import Answer, Ask
from cabs_server.callers import Refused
from cabs_server.guard import Endpoint

_MODEL = re.compile(r"cabs(?:-rho-(\d{1,12}(?:\.\d{1,12})?))?")


def completion(dialect: str) -> Endpoint:
    """POST /v1/chat/completions and its kin."""

    async def complete(request: Request) -> Response:
        ask, model, router = await _asked(request, dialect)
        forwarder = request.app.state.forwarder
        if model is None:
            return response_of(await forwarder.routed(router, ask))
        return response_of(await forwarder.named(router, model, ask))

    return complete


async def count_tokens(request: Request) -> Response:
    """POST /v1/messages/count_tokens: as a model counts, else an estimate."""
    ask, model, router = await _asked(request, "messages")
    return response_of(await request.app.state.forwarder.count_tokens(router, ask, model))


async def _asked(request: Request, dialect: str) -> tuple[Ask, str | None, Router]:
    """(what is asked, the model that it names, None: the router is to choose, the router). Raises Refused."""
    state = request.app.state
    if not state.forwards:
        raise Refused(501, "this server was started without --upstreams: it decides and takes feedback only")
    body, router = await body_of(request), state.keeper.router
    model = body.get("model", "cabs")
    match = _MODEL.fullmatch(model) if isinstance(model, str) else None
    if match:
        return await ask_of(request, body, dialect, match[1]), None, router
    if isinstance(model, str) and model in state.forwarder.upstreams.models:
        ask = await ask_of(request, body, dialect)
        if ask.models is not None and model not in ask.models:
            raise Refused(400, f"model {model} is asked for, and {MODELS} leaves it out")
        return ask, model, router
    models = ", ".join(router.arms)
    raise Refused(404, f"unknown model {model!r:.100}: expected cabs, cabs-rho-NUMBER, or one of {models}")


def terms_of(request: Request, router: Router) -> Terms:
    """The terms in a request's headers; one that comes twice is one with a comma.

    Raises:
        RouterError: see `Terms.read`.
    """
    values = {name: request.headers.getlist(name) for name in (MODELS, VALUE)}
    return Terms.read({name: ", ".join(texts) for name, texts in values.items() if texts}, router)


async def ask_of(request: Request, body: dict[str, Any], dialect: str, rho: str | None = None) -> Ask:
    """What a request in a dialect asks for, by its body and headers.

    Args:
        rho: of the model that it names, in digits; score units per USD.

    Raises:
        Refused: it is too much. RouterError: its terms do not fit the router, or it names rho twice.
    """
    state, here = request.app.state, request.state
    headers = dict(reversed(request.headers.items()))  # the first of a name that comes twice
    router, caller, size = state.keeper.router, here.caller.name, here.size
    terms = terms_of(request, router)
    if rho is not None and terms.rho is not None:
        raise RouterError(f"model cabs-rho-{rho} and {VALUE} both say what a right answer is worth: give one")
    ends, route_by = time.monotonic() + state.forwarder.upstreams.deadline, router.options.route_by
    rules = router.options.text_rules
    read = partial(
        asked.ChatRequest.read, body, headers, dialect, route_by=route_by, caller=caller, rules=rules
    )
    turn = await state.gate.beside(size, read)
    body = dict(person_text.without_given_text(body))
    dial = terms.rho if rho is None else float(rho)
    return Ask(
        body, dialect, headers, here.id, caller, dial, terms.models, ends, turn, size, here.ends, here.room
    )


def response_of(answer: Answer) -> Response:
    """What goes back to the client; a large body in pieces."""
    if answer.stream is not None:
        return StreamingResponse(answer.stream, answer.status, answer.headers)
    if len(answer.body) <= limits.LARGE_ANSWER:
        return Response(answer.body, answer.status, answer.headers)
    length = {"content-length": str(len(answer.body))}
    return StreamingResponse(_in_pieces(answer.body), answer.status, answer.headers | length)


async def _in_pieces(body: bytes) -> AsyncIterator[bytes]:
    """A large answer, each piece once the client has taken those before it.

    Uvicorn takes the whole of it, and calls it sent though the client does not read.
    """
    for begin in range(0, len(body), limits.SMALL_BODY):
        yield body[begin : begin + limits.SMALL_BODY]


async def embeddings(request: Request) -> Response:
    """POST /v1/embeddings: to the model that it names; its cost is counted like that of any call."""
    state, body = request.app.state, await body_of(request)
    name, upstreams = body.get("model"), state.forwarder.upstreams.embeddings
    if not isinstance(name, str) or name not in upstreams:
        expected = ", ".join(upstreams) or "none: the upstreams file has no embeddings"
        raise Refused(404, f"unknown model {name!r:.100} of embeddings: expected one of {expected}")
    ask = await ask_of(request, body, "embeddings")
    return response_of(await state.forwarder.named(state.keeper.router, name, ask))


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
