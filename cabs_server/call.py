"""A client's request, its answer, and `Call`, one attempt to have a model answer it.

A call is a context manager: its connection, span, breaker and log row end with it, whatever is raised.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

import aiohttp

from cabs_core.data.endpoints.dialects import error_body
from cabs_core.data.endpoints.replies import Meaning
from cabs_core.data.endpoints.request import ChatRequest
from cabs_core.data.endpoints.usage import Bill, Tokens, estimate_tokens
from cabs_core.router.routed import Routed
from cabs_core.router.router import Router
from cabs_core.router.terms import SCORE, WANTED, WHY
from cabs_server.connections import Connections, UpstreamState
from cabs_server.refusals import RequestKind
from cabs_server.tracing import Span

_TRACE = ("traceparent", "tracestate", "baggage", "x-request-id")
#: headers of a request that go to the upstream. Headers that name an account do not, since the key is the
#: operator's
PASSED = ("openai-beta", "anthropic-version", "anthropic-beta", "user-agent", *_TRACE)
#: beginnings of the names of an upstream's headers that go back to the client
BACK = ("retry-after", "x-ratelimit-", "anthropic-ratelimit-", "openai-processing-ms", "openai-version")
JSON = {"content-type": "application/json"}
#: names and values of headers that can be sent on: tokens, and Latin-1 without control characters
_NAME, _VALUE = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+"), re.compile(r"[\t\x20-\x7e\x80-\xff]*")
logger = logging.getLogger("cabs.serve")


@dataclass
class ClientRequest:
    """A request of a client that a model is to answer.

    Attributes:
        content: bytes of the body. digest: hash of these bytes.
        dialect: dialect of the endpoint, see `dialects`.
        headers: headers of the request, with names in lower case.
        call_id: id of the request, by which the log and the client name it.
        caller: name of the client's key.
        rho: cost sensitivity, score units per USD. None selects the router's own.
        models: models that may answer. None if all may.
        chose: True if the request named a model or models itself.
        ends: deadline in seconds of the monotonic clock.
        chat: facts that were read from the body.
        kind: kind of the request for `Refusals`.
        resources: stack of everything that the request opens, closed when the answer was sent.
        large: stack that holds the memory reserved for a large body. `release_body` closes it.
    """

    content: bytes
    digest: int
    dialect: str
    headers: Mapping[str, str]
    call_id: str | None
    caller: str
    rho: float | None
    models: tuple[str, ...] | None
    chose: bool
    ends: float
    chat: ChatRequest
    kind: RequestKind
    resources: AsyncExitStack
    large: AsyncExitStack

    @property
    def seconds_left(self) -> float:
        """Seconds to the deadline."""
        return self.ends - time.monotonic()

    @property
    def passed_headers(self) -> dict[str, str]:
        """Headers of the request that are sent on to an upstream."""
        return {name: self.headers[name] for name in PASSED if name in self.headers}

    async def release_body(self) -> None:
        """Free the body, since an answer has begun and no other attempt will be made."""
        self.content = b""
        await self.large.aclose()


@dataclass
class Answer:
    """An answer for the client, or the failure of an attempt after which another model is tried.

    Attributes:
        status: HTTP status for the client. headers: headers for the client.
        body: bytes of a whole answer. stream: pieces of a streamed answer, in place of `body`.
        decision: the router's decision. None if the router did not choose the model.
        model: name of the model.
        failure: meaning of the reply if another model should be tried, otherwise None.
        is_certain: True if the meaning of the reply is certain (see `replies.Judgement`).
        reason: why the attempt failed, in words.
        retry_after: seconds that the upstream asks to wait, or None.
    """

    status: int
    headers: dict[str, str]
    body: bytes = b""
    stream: AsyncIterator[bytes] | None = None
    decision: Routed | None = None
    model: str = ""
    failure: Meaning | None = None
    is_certain: bool = True
    reason: str = ""
    retry_after: float | None = None


class Call:
    """One attempt to have one model answer a request, as a context manager.

    When the context ends, the connection is closed and the end of the call is logged, whatever is raised. The
    breaker is released if an exception ended the call or nobody noted its end.

    Args:
        shared: the process's connections. state: endpoint and breaker of the model.
        decision: the router's decision. None if the router did not choose the model.

    Attributes:
        ended: True if the end of the call was noted (`finish`).
        sent: True if a part of the request was sent, for which a provider may charge.
        span: span of the attempt. response: response of the upstream, once there is one.
    """

    def __init__(
        self,
        shared: Connections,
        router: Router,
        state: UpstreamState,
        request: ClientRequest,
        decision: Routed | None = None,
    ):
        self.shared = shared
        self.request = request
        self.decision = decision
        self.model, self.upstream, self.breaker = state
        #: writes the end of the call to the log
        self._record: Callable[..., object] = partial(
            router.log_call, state.model, call_id=request.call_id, caller=request.caller
        )
        if decision is not None:
            self._record = partial(router.finish, decision.id)
        self.begin = time.perf_counter()
        self.ended = False
        self.sent = False
        self.span = Span()
        self.response: aiohttp.ClientResponse | None = None

    def __enter__(self) -> Call:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.response is not None:
                self.response.close()
        finally:
            try:
                if kind is not None or not self.ended:  # the upstream has not said how the call ended
                    self.breaker.released()
            finally:
                if not self.ended:
                    self._finish_without_answer(kind)

    def _finish_without_answer(self, kind: type[BaseException] | None) -> None:
        """Note the end of a call whose end nobody has noted.

        The status is `broken` after a cancellation or without an exception, and `error` after any other
        exception.

        Args:
            kind: class of the exception that ended the call, or None.
        """
        if kind is None:
            reason = "the answer was not sent"
        else:
            reason = f"failed here: {kind.__name__}"
        is_cancelled = kind is None or issubclass(kind, asyncio.CancelledError | GeneratorExit)
        self.finish("broken" if is_cancelled else "error", reason=reason, billed=self.sent)

    def answer(
        self,
        status: int,
        response: aiohttp.ClientResponse | None = None,
        body: bytes = b"",
        stream: AsyncIterator[bytes] | None = None,
        **failure: Any,
    ) -> Answer:
        """Return an answer with the router's headers and the headers of the upstream that may pass.

        A status outside 200 to 599 becomes 502.

        Args:
            response: the upstream's response, or None. body, stream: see `Answer`.
            **failure: failure, is_certain, reason and retry_after of `Answer`.
        """
        headers = dict(JSON)
        upstream_headers = () if response is None else response.headers.items()
        for name, value in upstream_headers:
            low = name.lower()
            if low in ("x-request-id", "request-id"):
                low = "x-upstream-request-id"
            elif low != "content-type" and not low.startswith(BACK):
                continue
            if _NAME.fullmatch(low) and _VALUE.fullmatch(value):
                headers[low] = self.shared.secrets.removed_text(value)
        headers["x-cabs-model"] = ascii(self.model)[1:-1]
        if self.decision is not None:
            headers |= {"x-cabs-decision": self.decision.id, WHY: json.dumps(self.decision.why)}
            if self.decision.marked:
                headers[SCORE] = WANTED
        status = status if 200 <= status < 600 else 502
        return Answer(status, headers, body, stream, self.decision, self.model, **failure)

    def failed(
        self,
        failure: Meaning,
        code: int,
        what: str,
        *,
        status: str = "error",
        response: aiohttp.ClientResponse | None = None,
        body: bytes = b"",
        usage: Any = None,
        written: int = 0,
        billed: bool = False,
        wait: float | None = None,
        is_certain: bool = True,
    ) -> Answer:
        """Note the end of a failed attempt, and return its answer, after which another model is tried.

        The breaker is not told here, but when it is known whether another model answers the same request.

        Args:
            failure: meaning of the failure.
            code: HTTP status for the client if no other model answers.
            what: description of the failure in words.
            response, body: response and body of the upstream if the client may see them.
            wait: seconds that the upstream asks to wait.
            status, usage, written, billed: see `finish`. is_certain: see `Answer`.
        """
        what = self.shared.secrets.removed_text(what)
        if status == "refused":
            level = logging.INFO
        else:
            level = logging.WARNING
        logger.log(level, "upstream %s: %s", self.model, what)
        self.finish(status, usage=usage, written=written, reason=what, billed=billed or usage is not None)
        facts: dict[str, Any] = {
            "failure": failure,
            "is_certain": is_certain,
            "reason": what,
            "retry_after": wait,
        }
        if body:
            return self.answer(code, response, body, **facts)
        error = error_body(f"model {self.model}: {what}", "upstream_error", self.request.dialect, code)
        return self.answer(code, None, json.dumps(error).encode(), **facts)

    def finish(
        self,
        status: str,
        *,
        usage: Any = None,
        response_id: Any = None,
        written: int = 0,
        reason: str = "",
        billed: bool = False,
    ) -> None:
        """Note the end of the call in the log, the counters and the span. Only the first end counts.

        Args:
            status: how the call ended, a status of the log.
            usage: usage as the provider reported it. written: bytes of text that came.
            response_id: id of the provider's answer. reason: why the call failed, in words.
            billed: True if a provider that reported no usage may charge for the call. The tokens are then
                estimated.
        """
        if self.ended:
            return
        self.ended = True
        shared = self.shared
        bill = Bill()
        reason = shared.secrets.removed_text(reason)
        seconds = time.perf_counter() - self.begin
        facts: dict[str, Any] = {"status": status, "latency": seconds, "reason": reason[:200] or None}
        if isinstance(response_id, str):
            response_id = shared.secrets.removed_text(response_id)
        else:
            response_id = None
        facts["response_id"] = response_id
        try:
            bill = self.upstream.bill(usage, partial(self._estimate, written) if billed else None)
            facts |= {"cost": bill.cost, "tokens_in": bill.tokens_in, "tokens_out": bill.tokens_out}
            facts["estimated"] = int(bill.is_estimated) or None
            facts["unpriced"] = ", ".join(bill.unpriced) or None
            if shared.cap is not None and bill.cost is not None:
                shared.cap.add(self.model, bill.cost)
            if self.decision is None:
                instead = None
            else:
                instead = self.decision.expected_fallback_cost(bill.cost)
            shared.counters.call(self.model, status, reason, seconds, bill, instead)
        except Exception:  # the answer goes out, and its row is closed
            logger.exception("the end of a call could not be counted")
        finally:
            shared.log(self.request.caller, partial(self._record, **facts))
            try:
                self.span.end(status, reason, bill, response_id)
            except Exception:
                logger.exception("the span of a call could not be ended")

    def _estimate(self, written: int) -> Tokens:
        """Return estimated counts of tokens, by the request, its limit and the bytes of text that came."""
        chat = self.request.chat
        limit = self.upstream.sent_limit(chat)
        if limit is None:
            most_output = None
        else:
            most_output = chat.output.answers * limit
        return estimate_tokens(chat.tokens, written, most_output)
