"""Endpoints that call models: completions in four dialects, token counts, embeddings; the list of models."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Coroutine
from functools import partial
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from cabs_core.base.errors import RouterError
from cabs_core.data.endpoints.body_fields import misspelt_field
from cabs_core.data.endpoints.request import ChatRequest
from cabs_core.router.router import Router
from cabs_core.router.terms import MODELS, VALUE, Terms
from cabs_server import limits
from cabs_server.attempt import run_if_large
from cabs_server.bodies import parse_body, read_body
from cabs_server.call import Answer, ClientRequest
from cabs_server.callers import Refused
from cabs_server.guard import Endpoint
from cabs_server.refusals import RequestKind
from cabs_server.unpacking import pieces_of

#: seconds after which the server begins to look whether the client of an unanswered request is still there
_LOOK = 0.1
_MODEL = re.compile(r"cabs(?:-rho-(\d{1,12}(?:\.\d{1,12})?))?")


def completion(dialect: str) -> Endpoint:
    """Return the endpoint that forwards a request to a model and returns the model's answer.

    The model is the one that the request names, or otherwise one that the router chooses.

    Args:
        dialect: form of the request and the answer: chat, completions, responses or messages.
    """

    async def complete(request: Request) -> Response:
        asked, model, router = await _read_for_router(request, dialect)
        forwarder = request.app.state.forwarder
        if model is None:
            work = forwarder.routed(router, asked)
        else:
            work = forwarder.named(router, model, asked)
        return response_of(await while_connected(request, work))

    return complete


async def count_tokens(request: Request) -> Response:
    """POST /v1/messages/count_tokens: return the tokens of a request, counted by a model or estimated."""
    asked, model, router = await _read_for_router(request, "messages")
    work = request.app.state.forwarder.count_tokens(router, asked, model)
    return response_of(await while_connected(request, work))


async def embeddings(request: Request) -> Response:
    """POST /v1/embeddings: send a request to the model that it names, and count its cost.

    Raises:
        Refused: the upstreams file has no such model of embeddings.
    """
    state = request.app.state
    content = await read_body(request)
    read = await _read(request, content, "embeddings")
    name = read.model
    upstreams = state.forwarder.upstreams.embeddings
    if not isinstance(name, str) or name not in upstreams:
        expected = ", ".join(upstreams) or "none: the upstreams file has no embeddings"
        raise Refused(404, f"unknown model {name!r:.100} of embeddings: expected one of {expected}")
    asked = client_request(request, content, "embeddings", read, chose=True)
    work = state.forwarder.named(state.keeper.router, name, asked)
    return response_of(await while_connected(request, work))


async def while_connected(request: Request, work: Coroutine[Any, Any, Answer]) -> Answer:
    """Return the answer of work, which is cancelled when the client goes away.

    The server begins to look for the client after `_LOOK` seconds, and most answers come earlier.

    Raises:
        Refused: the client went away.
    """
    loop = asyncio.get_running_loop()
    looking: list[asyncio.Task[None]] = []
    try:
        async with asyncio.timeout(None) as connected:
            look = partial(_end_when_gone, request, connected)
            timer = loop.call_later(_LOOK, lambda: looking.append(loop.create_task(look())))
            try:
                return await work
            finally:
                timer.cancel()
                for task in looking:
                    task.cancel()
    except TimeoutError:
        if not connected.expired():
            raise
        raise Refused(499, "the client went away") from None


async def _end_when_gone(request: Request, connected: asyncio.Timeout) -> None:
    """Wait until the client has gone away, then let a timeout expire at once."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    connected.reschedule(asyncio.get_running_loop().time())


class ReadRequest(NamedTuple):
    """Facts of a request, read from its body and headers.

    Attributes:
        headers: headers of the request, with names in lower case.
        chat: text, conversation and size of the request.
        model: value of the field `model`.
        kind: kind of the request for `Refusals`.
        is_background: True if the request asks for an answer in the background.
    """

    headers: dict[str, str]
    chat: ChatRequest
    model: Any
    kind: RequestKind
    is_background: bool


async def _read_for_router(request: Request, dialect: str) -> tuple[ClientRequest, str | None, Router]:
    """Return (the request, the model that it names or None if the router is to choose, the router).

    Raises:
        Refused: the request cannot be read, names an unknown or excluded model, or asks for an answer in the
            background; or the server has no upstreams.
        RouterError: the terms of the request do not fit the router.
    """
    state = request.app.state
    if not state.forwards:
        raise Refused(501, "this server was started without --upstreams: it decides and takes feedback only")
    content = await read_body(request)
    router = state.keeper.router
    read = await _read(request, content, dialect)
    if read.is_background:
        text = "background: an answer in the background cannot be fetched here; leave it out, or stream"
        raise Refused(400, text)
    model = "cabs" if read.model is None else read.model
    if isinstance(model, str):
        match = _MODEL.fullmatch(model)
    else:
        match = None
    if match:
        return client_request(request, content, dialect, read, rho=match[1]), None, router
    if isinstance(model, str) and model in state.forwarder.upstreams.models:
        asked = client_request(request, content, dialect, read, chose=True)
        if asked.models is not None and model not in asked.models:
            raise Refused(400, f"model {model} is asked for, and {MODELS} leaves it out")
        return asked, model, router
    models = ", ".join(router.arms)
    raise Refused(404, f"unknown model {model!r:.100}: expected cabs, cabs-rho-NUMBER, or one of {models}")


def terms_of(request: Request, router: Router) -> Terms:
    """Return the models that may answer and the rho of a request, from its two headers of terms.

    `x-cabs-models` lists models, and `x-cabs-value` gives the value of a right answer, 1 / rho, in USD. If a
    header is absent, its field of the terms is None. The values of a repeated header are joined by a comma.

    Raises:
        RouterError: the list of models is empty or names a model that the router does not have; or the value
            is no number, is out of range, or differs from the only value that the policy serves.
    """
    values = {name: request.headers.getlist(name) for name in (MODELS, VALUE)}
    return Terms.read({name: ", ".join(texts) for name, texts in values.items() if texts}, router)


async def _read(request: Request, content: bytes, dialect: str) -> ReadRequest:
    """Return the facts of a request. A large body is read on a thread.

    Raises:
        Refused: the body is no JSON object, has too many values, names a field twice, or has a field whose
            name providers read differently.
        RouterError: the client gives a text to route by that cannot be read.
    """
    state = request.app.state
    caller = request.state.caller.name
    headers = headers_of(request)
    options = state.keeper.router.options

    def read() -> ReadRequest:
        body = parse_body(content)
        field = misspelt_field(body)
        if field is not None:
            text = f"{field!r:.100}: some providers read this field as {field.casefold()!r}: write it so"
            raise Refused(400, text)
        chat = ChatRequest.read(
            body, headers, dialect, route_by=options.route_by, caller=caller, rules=options.text_rules
        )
        kind = RequestKind.of(caller, body)
        is_background = dialect == "responses" and bool(body.get("background"))
        return ReadRequest(headers, chat, body.get("model"), kind, is_background)

    return await run_if_large(state.forwarder, caller, content, read)


def headers_of(request: Request) -> dict[str, str]:
    """Return {name in lower case: value} of a request. If a header stands twice, the first value is kept."""
    return dict(reversed(request.headers.items()))


def client_request(
    request: Request,
    content: bytes,
    dialect: str,
    read: ReadRequest,
    *,
    rho: str | None = None,
    chose: bool = False,
) -> ClientRequest:
    """Return the request as the forwarder takes it.

    Args:
        content: bytes of the body. read: facts of the body.
        rho: rho in the model name `cabs-rho-NUMBER`, in digits; score units per USD.
        chose: True if the request names a model. `ClientRequest.chose` is then True, as for a request whose
            headers limit the models.

    Raises:
        RouterError: the terms of the request do not fit the router, or the request names rho twice.
    """
    state = request.app.state
    here = request.state
    terms = terms_of(request, state.keeper.router)
    if rho is not None and terms.rho is not None:
        raise RouterError(f"model cabs-rho-{rho} and {VALUE} both say what a right answer is worth: give one")
    return ClientRequest(
        content=content,
        digest=hash(content),
        dialect=dialect,
        headers=read.headers,
        call_id=here.id,
        caller=here.caller.name,
        rho=terms.rho if rho is None else float(rho),
        models=terms.models,
        chose=chose or terms.models is not None,
        ends=time.monotonic() + state.forwarder.upstreams.deadline,
        chat=read.chat,
        kind=read.kind,
        resources=here.resources,
        large=here.large,
    )


def response_of(answer: Answer) -> Response:
    """Return the response for the client. A stream is passed on, and a large body is sent in pieces."""
    if answer.stream is not None:
        return StreamingResponse(answer.stream, answer.status, answer.headers)
    if len(answer.body) <= limits.COUNTED:
        return Response(answer.body, answer.status, answer.headers)
    length = {"content-length": str(len(answer.body))}
    return StreamingResponse(_in_pieces(answer.body), answer.status, answer.headers | length)


async def _in_pieces(body: bytes) -> AsyncIterator[bytes]:
    """Yield a large answer in pieces, each once the client has taken the pieces before it.

    Uvicorn would accept a whole body at once and keep it in memory for a client that does not read.
    """
    for piece in pieces_of(body):
        yield piece


def _models(request: Request) -> list[dict[str, Any]]:
    """Return names that a request may give as its model, in OpenAI's form.

    The names are `cabs`, `cabs-rho-NUMBER` for the rhos of the bundle if the policy serves any rho, the
    router's models and the models of embeddings. Requests may also name other rhos, and models of the
    upstreams file that the router does not choose.
    """
    router = request.app.state.keeper.router
    forwarder = request.app.state.forwarder
    names = ["cabs"]
    if router.policy.algorithm.any_rho_now():
        names += [f"cabs-rho-{rho:g}" for rho in router.manifest.rhos]
    names += [*router.arms, *forwarder.upstreams.embeddings]
    return [{"id": n, "object": "model", "created": 0, "owned_by": "cabs"} for n in names]


async def list_models(request: Request) -> Response:
    """GET /v1/models: return the names of `_models`."""
    return JSONResponse({"object": "list", "data": _models(request)})


async def one_model(request: Request) -> Response:
    """GET /v1/models/{id}: return one of the names of `_models`.

    Raises:
        Refused: the name is not among them.
    """
    name = request.path_params["name"]
    for model in _models(request):
        if model["id"] == name:
            return JSONResponse(model)
    raise Refused(404, f"unknown model {name!r:.100}")
