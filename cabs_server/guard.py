"""The wrapper of every endpoint. It identifies the caller, counts the request, and answers errors."""

import logging
import time
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cabs_core.base.errors import CabsError, LogError, UnknownDecision
from cabs_core.data.endpoints.dialects import error_body
from cabs_server.callers import Caller, Refused, caller_of, is_local, request_id
from cabs_server.logs import REQUEST

logger = logging.getLogger("cabs.serve")
Endpoint = Callable[[Request], Awaitable[Response]]


def guarded(endpoint: Endpoint, dialect: str = "chat") -> Endpoint:
    """Return an endpoint that answers known callers only, and every error in the words of a dialect.

    The returned endpoint sets `request.state.id` and `request.state.caller`, counts the request against the
    caller's limit, and names the request's id in every answer.
    """

    async def endpoint_guarded(request: Request) -> Response:
        begin = time.perf_counter()
        name = request_id(request)
        request.state.id = name
        token = REQUEST.set(name)
        try:
            caller = identify(request)
            request.state.caller = caller
            request.state.resources.enter_context(request.app.state.slots.request(caller.name))
            answer = await endpoint(request)
        except Exception as error:
            answer = _answer_of_error(error, request, dialect)
        finally:
            REQUEST.reset(token)
        _note_end(request, answer, time.perf_counter() - begin)
        answer.headers["x-request-id"] = name
        return answer

    return endpoint_guarded


def _answer_of_error(error: Exception, request: Request, dialect: str) -> JSONResponse:
    """Return the answer for an error of an endpoint, and log the errors that are the server's own."""
    if isinstance(error, Refused):
        return _error_answer(error, dialect)
    if isinstance(error, LogError):
        logger.error("%s: %s", request.url.path, error)
        text = "the event log cannot be used now; try again"
        return _error_answer(Refused(503, text, "internal_error", 1), dialect)
    if isinstance(error, CabsError):
        if isinstance(error, UnknownDecision):
            status = 404
        else:
            status = 400
        return _error_answer(Refused(status, str(error)), dialect)
    logger.error("%s failed", request.url.path, exc_info=error)
    text = "internal error; the server's log says more"
    return _error_answer(Refused(500, text, "internal_error"), dialect)


def _error_answer(refused: Refused, dialect: str) -> JSONResponse:
    """Return the error as JSON in the form of a dialect, with its `retry-after` as a header if it has one."""
    headers = {}
    if refused.retry_after is not None:
        headers["retry-after"] = str(refused.retry_after)
    body = error_body(refused.message, refused.kind, dialect, refused.status)
    return JSONResponse(body, refused.status, headers=headers)


def _note_end(request: Request, answer: Response, seconds: float) -> None:
    """Record the seconds of a request, and count and log its answer if the status is 400 or more."""
    counters = request.app.state.forwarder.counters
    counters.observe("request_seconds", seconds)
    if answer.status_code < 400:
        return
    counters.add("refused_total", status=str(answer.status_code))
    logger.info(
        "%s %s: %d",
        request.method,
        request.url.path,
        answer.status_code,
        extra={"request_id": request.state.id, "seconds": round(seconds, 6)},
    )


async def unknown(request: Request, error: Exception) -> Response:
    """Answer a request to an unknown address, or with a method that the endpoint does not have."""
    status = getattr(error, "status_code", 404)
    if status == 404:
        reason = "no such endpoint"
    else:
        reason = f"{request.method} is not how this endpoint is asked"
    text = f"{reason}: {request.method} {request.url.path:.200}"
    answer = _error_answer(Refused(status, text), "chat")
    answer.headers.update(getattr(error, "headers", None) or {})  # `allow`, if the status is 405
    return answer


def identify(request: Request) -> Caller:
    """Return the caller of a request.

    A request that came in at the address of `--metrics` needs no key, and may ask for `/metrics` and
    `/readyz` only.

    Raises:
        Refused: the key is wrong or missing, or the address of `--metrics` does not answer the request.
    """
    state = request.app.state
    _, port = request.scope.get("server") or ("", 0)
    if state.metrics is None or port != state.metrics[1]:
        return caller_of(request, state.keys, state.admins)
    if request.url.path not in ("/metrics", "/readyz"):
        raise Refused(404, "this address has /metrics, /readyz and /healthz only")
    if is_local(state.metrics[0]) and not is_local(request.headers.get("host", "")):
        raise Refused(403, "this address answers programs on this machine", "permission_error")
    return Caller("metrics", admin=True)


def caller_in(request: Request) -> Caller:
    """Return the caller of a request that an endpoint of `guarded` handles."""
    caller: Caller = request.state.caller
    return caller
