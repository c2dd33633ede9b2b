"""What every endpoint does first and last: who asks, and how an error is answered."""

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


def _refused(
    status: int,
    message: str,
    kind: str = "invalid_request_error",
    dialect: str = "chat",
    retry_after: int | None = None,
) -> JSONResponse:
    headers = {} if retry_after is None else {"retry-after": str(retry_after)}
    return JSONResponse(error_body(message, kind, dialect, status), status, headers=headers)


async def unknown(request: Request, error: Exception) -> Response:
    """An address or method that there is not."""
    status = getattr(error, "status_code", 404)
    what = "no such endpoint" if status == 404 else f"{request.method} is not how this endpoint is asked"
    answer = _refused(status, f"{what}: {request.method} {request.url.path:.200}")
    answer.headers.update(getattr(error, "headers", None) or {})  # of 405: `allow`
    return answer


def guarded(endpoint: Endpoint, dialect: str = "chat") -> Endpoint:
    """Ask who it is, and turn the project's errors into answers; every answer has the request's id."""

    async def endpoint_guarded(request: Request) -> Response:
        begin, name = time.perf_counter(), request_id(request)
        state, here = request.app.state, request.state
        here.id = name
        token = REQUEST.set(name)
        counters = state.forwarder.counters
        try:
            here.caller = caller = who(request)
            here.resources.enter_context(state.slots.request(caller.name))
            answer = await endpoint(request)
        except Refused as error:
            answer = _refused(error.status, error.message, error.kind, dialect, error.retry_after)
        except LogError as error:
            logger.error("%s: %s", request.url.path, error)
            text = "the event log cannot be used now; try again"
            answer = _refused(503, text, "internal_error", dialect, 1)
        except CabsError as error:
            status = 404 if isinstance(error, UnknownDecision) else 400
            answer = _refused(status, str(error), dialect=dialect)
        except Exception:
            logger.exception("%s failed", request.url.path)
            answer = _refused(500, "internal error; the server's log says more", "internal_error", dialect)
        finally:
            REQUEST.reset(token)
        seconds = time.perf_counter() - begin
        counters.observe("request_seconds", seconds)
        if answer.status_code >= 400:
            counters.add("refused_total", status=str(answer.status_code))
            logger.info(
                "%s %s: %d",
                request.method,
                request.url.path,
                answer.status_code,
                extra={"request_id": name, "seconds": round(seconds, 6)},
            )
        answer.headers["x-request-id"] = name
        return answer

    return endpoint_guarded


def who(request: Request) -> Caller:
    """Return who sent a request; whoever reaches the address of the figures may read them, and nothing else.

    Raises Refused.
    """
    state, here = request.app.state, request.scope.get("server") or ("", 0)
    if state.metrics is None or here[1] != state.metrics[1]:
        return caller_of(request, state.keys, state.admins)
    if request.url.path not in ("/metrics", "/readyz"):
        raise Refused(404, "this address has /metrics, /readyz and /healthz only")
    if is_local(state.metrics[0]) and not is_local(request.headers.get("host", "")):
        raise Refused(403, "this address answers programs on this machine", "permission_error")
    return Caller("metrics", admin=True)


def caller_in(request: Request) -> Caller:
    """Who sent a guarded request."""
    caller: Caller = request.state.caller
    return caller
