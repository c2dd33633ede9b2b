"""One request: decide, forward, and decide again among the other models where an upstream fails.

What a reply means says `endpoints.replies`. After `account` and `wait` the breaker hears of it at once, and after `account` it
opens: no call can work. After `retry` (5xx, a timeout, an answer that is none) it hears of it once another model has answered
the same request, or if no other was tried. A prompt that is too long, a field that the model refuses and a filter of its
deployment are no fault of it: another model is tried, and no breaker hears of it. Whatever fails on our side is answered by the fallback model, and counted.
"""

from __future__ import annotations

import asyncio
import errno
import io
import json
import logging
import math
import os
import re
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import aiohttp

from cabs_core.endpoints.dialects import COUNT_TOKENS, EMBEDDINGS, PATHS, answer_of, error_body, error_event
from cabs_core.endpoints.replies import REFUSALS, Meaning, field_of, lost_state, meaning, parsed, retry_after
from cabs_core.endpoints.request import Request
from cabs_core.endpoints.upstreams import Upstream, Upstreams
from cabs_core.endpoints.usage import Bill, count, estimated, tokens_of
from cabs_core.errors import CabsError, PolicyError, RouterError
from cabs_core.router.doctor import ACCOUNT
from cabs_core.router.router import Routed, Router
from cabs_core.router.server import limits
from cabs_core.router.server.bodies import bounded
from cabs_core.router.server.breaker import Breaker
from cabs_core.router.server.callers import Refused
from cabs_core.router.server.cap import Cap
from cabs_core.router.server.gate import Gate
from cabs_core.router.server.metrics import Counters
from cabs_core.router.server.streams import Events, written_in
from cabs_core.router.server.tracing import Span, Tracer
from cabs_core.router.sessions import maker_of, route_conversation, with_carried

#: failures that may be over at once, and the longest wait for which a tool loop stays with its model, seconds
TRANSIENT, SOON = (Meaning.RETRY, Meaning.WAIT), 5.0
#: request headers that are passed on, and those of the answer that come back
PASSED = (
    "openai-organization", "openai-beta", "anthropic-version", "anthropic-beta", "user-agent", "traceparent",
    "tracestate", "baggage", "x-request-id",
)  # fmt: skip
BACK = ("retry-after", "x-ratelimit-", "anthropic-ratelimit-", "openai-processing-ms", "openai-version")
#: seconds that an idle connection to an upstream is kept: less than servers do (uvicorn, so vLLM: 5 s), or a request may be sent
#: into one that is just being closed
IDLE = 4.0
JSON = {"content-type": "application/json"}
#: seconds that a decision may take before the fallback answers
PATIENCE = 5.0
#: names and values of headers that can be sent on: tokens, and Latin-1 without control characters
_NAME, _VALUE = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+"), re.compile(r"[\t\x20-\x7e\x80-\xff]*")
#: what this machine lacks, not the upstream
_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL})
#: an answer that is not read
TOO_MUCH = object()
P = ParamSpec("P")
T = TypeVar("T")
logger = logging.getLogger("cabs.serve")


@dataclass
class Ask:
    """A request to be answered.

    Attributes:
        body: its JSON. dialect: see `dialects`. headers: names in lower case. call_id: name of the request in the log.
        caller: name of the key. rho: cost sensitivity; None: the router's. ends: when its deadline is, monotonic seconds.
        request: what the body says, read when the forwarder gets it.
        size: bytes of the body. scope: what the request has begun, which ends when its answer was sent or could not be.
        room: what the body itself holds, given back once a stream has begun. has_turn: a large answer may be kept.
    """

    body: dict[str, Any]
    dialect: str = "chat"
    headers: dict[str, str] = field(default_factory=dict)
    call_id: str | None = None
    caller: str = "local"
    rho: float | None = None
    ends: float = 0.0
    request: Request = field(default_factory=lambda: Request(None))
    size: int = 0
    scope: AsyncExitStack = field(default_factory=AsyncExitStack)
    room: AsyncExitStack = field(default_factory=AsyncExitStack)
    has_turn: bool = False

    @property
    def left(self) -> float:
        """Seconds to the deadline."""
        return self.ends - time.monotonic()


@dataclass
class Answer:
    """What goes back: status, headers, and a body or a stream of it; the model, and the decision, if there was one.

    failure: what the reply meant where another model should be tried; reason: why, for people.
    """

    status: int
    headers: dict[str, str]
    body: bytes = b""
    stream: AsyncIterator[bytes] | None = None
    decision: Routed | None = None
    model: str = ""
    failure: Meaning | None = None
    reason: str = ""
    retry_after: float | None = None


class Forwarder:
    """Calls upstreams for a router, made within an event loop. Blocking work runs on one thread beside the loop.

    Args:
        fail_closed: 503 where the router itself fails, instead of the fallback model.
        cap: of spending a day; None: there is none.
    """

    def __init__(
        self,
        upstreams: Upstreams,
        *,
        fail_closed: bool = False,
        cap: Cap | None = None,
        tracer: Tracer | None = None,
        gate: Gate | None = None,
    ):
        self.upstreams, self.fail_closed, self.cap = upstreams, fail_closed, cap
        self._earlier = upstreams
        # no cookies: those that an upstream sets for one caller must not go to another
        trace = aiohttp.TraceConfig()
        trace.on_request_headers_sent.append(_sent)
        self.client = aiohttp.ClientSession(
            # as many as there are requests, which are bounded: none waits for another's
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE),
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=limits.SMALL_BODY,
            trace_configs=[trace],
        )
        self.gate = gate or Gate()
        self.worker = ThreadPoolExecutor(1, thread_name_prefix="cabs-decide")
        options = upstreams.breaker.model_dump()
        self.breakers = {name: Breaker(**options) for name in upstreams.models}
        self._earlier_breakers = self.breakers
        #: models of embeddings are asked by name only, so nothing is left alone: these are heard by nobody
        self._unheeded = {name: Breaker(**options) for name in upstreams.embeddings}
        #: of the router itself: where its log does not answer, requests do not wait for it one after the other
        self.ours = Breaker(failures=3, window=10.0, cooldown=1.0, longest=5.0)
        self.counters = Counters()
        self.tracer = tracer or Tracer()
        #: {model: USD of its dearest call so far}
        self.dearest: dict[str, float] = {}

    def adopt(self, upstreams: Upstreams) -> None:
        """Go on with another file's endpoints; what did not change keeps its breaker. Requests under way end as they began."""
        if upstreams is self.upstreams:
            return
        before, options = self.upstreams, upstreams.breaker.model_dump()

        def same(name: str) -> bool:
            return before.breaker == upstreams.breaker and before.models.get(name) == upstreams.models[name]

        kept = {name: self.breakers[name] if same(name) else Breaker(**options) for name in upstreams.models}
        self._earlier, self._earlier_breakers = before, self.breakers
        self._unheeded |= {name: Breaker(**options) for name in upstreams.embeddings}
        self.breakers, self.upstreams = kept, upstreams

    def upstream(self, model: str, dialect: str) -> Upstream:
        """Where a model is called."""
        kind = "embeddings" if dialect == "embeddings" else "models"
        here: Mapping[str, Upstream] = getattr(self.upstreams, kind)
        return here[model] if model in here else getattr(self._earlier, kind)[model]

    def breaker(self, model: str, dialect: str) -> Breaker:
        """The breaker that hears of a model's calls."""
        if dialect == "embeddings":
            return self._unheeded[model]
        return self.breakers[model] if model in self.breakers else self._earlier_breakers[model]

    async def beside(self, call: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Run blocking work on the thread for it."""
        return await asyncio.get_running_loop().run_in_executor(
            self.worker, lambda: call(*arguments, **keywords)
        )

    async def close(self) -> None:
        """Close the connections, and finish the blocking work that waits."""
        await self.client.close()
        self.worker.shutdown(wait=True)
        self.gate.close()

    # -- which models -----------------------------------------------------------------------------------------------

    def fit(self, router: Router, ask: Ask, among: Iterable[str] | None = None) -> list[str]:
        """Models that can take a request, by their entries in the upstreams file. Raises Refused: there is none."""
        arms = router.arms if among is None else among
        lacking = {arm: self.upstream(arm, "chat").lacks(ask.request) for arm in arms}
        able = [arm for arm, why in lacking.items() if why is None]
        if not able:
            reasons = "; ".join(f"{arm} {why}" for arm, why in lacking.items())
            raise Refused(400, f"no model can take this request: {reasons:.600}")
        return self._within_cap(able, ask)

    def _within_cap(self, models: list[str], ask: Ask) -> list[str]:
        """Those of the models that may be called now. Raises Refused: the budget of the day is spent."""
        if self.cap is None or not self.cap.reached():
            return models
        if free := [model for model in models if self.upstream(model, ask.dialect).free]:
            return free
        self.counters.add("over_cap_total")
        raise Refused(
            429, f"the budget of {self.cap.usd:g} USD a day is spent; it begins again at 00:00 UTC",
            "insufficient_quota", retry_after=self.cap.seconds_left(),
        )  # fmt: skip

    async def _reserve(self, router: Router, ask: Ask, models: list[str], begun: ExitStack) -> list[str]:
        """Those of the models that may be called, once the dearest of them is reserved; released where `begun` ends.

        Raises:
            Refused: the budget of the day is spent, or what is left of it may go to calls under way.
        """
        end = time.monotonic() + min(ask.left, PATIENCE)
        while self.cap is not None:
            models = self._within_cap(models, ask)
            priced = {m: self.upstream(m, ask.dialect).most_usd(ask.request) for m in models}
            most = max(max(usd, self.dearest.get(m, 0.0)) for m, usd in priced.items())
            if most == 0.0:
                break
            name = uuid.uuid4().hex
            end_call = partial(self.log, partial(self.cap.end, router.log, name))
            try:
                may = await self.beside(self.cap.begin, router.log, name, most)
            except BaseException:  # it may be reserved on the thread, after which this runs there
                end_call()
                raise
            if may:
                begun.callback(end_call)
                break
            if not self.cap.reached():
                if time.monotonic() >= end:
                    text = "calls under way may use what is left of the day's budget"
                    raise Refused(429, text, "insufficient_quota", retry_after=1)
                await asyncio.sleep(0.02)
        return models

    async def routed(self, router: Router, ask: Ask) -> Answer:
        """Answer a request by the model that the router chooses, or that its conversation has.

        Raises:
            Refused: no model can take it, or the budget of the day is spent. RouterError, PolicyError: rho cannot be served.
        """
        await self._prepare(router, ask)
        if (
            ask.rho is not None
            and ask.rho != router.manifest.rho
            and not router.policy.algorithm.any_rho_now()
        ):
            raise RouterError(
                f"{router.manifest.policy} serves rho {router.manifest.rho:g} only: ask for model cabs"
            )
        holders = await self._holders(router, ask)
        fit, failed, gone = self.fit(router, ask, holders), list[Answer](), set[str]()
        once_more = ask.request.in_tools
        try:
            while len(gone) < (self.upstreams.attempts or len(fit)):
                rest = [m for m in fit if m not in gone]
                if not rest or (failed and ask.left <= 0.0):
                    break
                usable = [m for m in rest if self.breaker(m, ask.dialect).allows()] or rest
                with ExitStack() as begun:
                    usable = await self._reserve(router, ask, usable, begun)
                    decision = await self._decide(router, ask, usable)
                    model = self._fallback(router, usable) if decision is None else decision.model
                    answer = await self.call(model, ask, begun, router=router, decision=decision)
                if answer.failure is None:
                    self._settle(failed, answered=answer.status < 400)
                    return answer
                failed.append(answer)
                if once_more and decision is not None and decision.kept and await self._soon(answer, ask):
                    once_more = False  # a tool loop stays with its model over a failure that passes
                else:
                    gone.add(model)
            self._settle(failed, answered=False)
        except BaseException:  # nobody will know whose fault the attempts before were
            self._settle(failed, answered=None)
            raise
        return self._worst(failed, ask, held=holders is not None)

    async def _holders(self, router: Router, ask: Ask) -> list[str] | None:
        """The models at the upstream that holds what a request names; None: it names nothing, or nobody knows of whom.

        Raises Refused: what holds it is no upstream of this router now, or the log, which knows, does not answer.
        """
        if not ask.request.held:
            return None
        try:
            async with asyncio.timeout(min(PATIENCE, max(ask.left, 0.1))):
                made = await self.beside(maker_of, router, ask.request, ask.caller)
        except (CabsError, TimeoutError) as error:
            logger.error("who holds %s is not known: %s", ask.request.held[0], error)
            text = "the log, which knows the upstream that holds it, does not answer; try again"
            raise Refused(503, f"{ask.request.held[0]}: {text}", "internal_error", 1) from None
        if made is None:
            return None
        ask.request = with_carried(ask.request, made)
        place = self.upstreams.models[made.arm].place if made.arm in self.upstreams.models else None
        models = [arm for arm in router.arms if self.upstream(arm, "chat").place == place]
        if not models:
            text = f"{ask.request.held[0]}: the upstream of {made.arm}, which holds it, is none of this router's now"
            raise Refused(503, text, "upstream_error")
        return models

    async def _soon(self, answer: Answer, ask: Ask) -> bool:
        """Whether a failed model may be asked again at once, or after the short while that it asked for, which is waited."""
        if answer.failure not in TRANSIENT or ask.left < self.upstreams.deadline / 2:
            return False
        wait = answer.retry_after or (0.2 if answer.failure is Meaning.WAIT else 0.0)
        if wait > SOON or not self.breaker(answer.model, ask.dialect).allows():
            return False
        await asyncio.sleep(wait)
        return True

    async def named(self, router: Router, model: str, ask: Ask) -> Answer:
        """Answer a request by the model that it names; the call is in the log, and is no draw."""
        await self._prepare(router, ask)
        upstream = self.upstream(model, ask.dialect)
        if ask.dialect != "embeddings" and (why := upstream.lacks(ask.request)):
            raise Refused(400, f"model {model} {why}")
        with ExitStack() as begun:
            await self._reserve(router, ask, [model], begun)
            answer = await self.call(model, ask, begun, router=router)
        self.breaker(model, ask.dialect).released()
        return answer if answer.failure is None else self._worst([answer], ask)

    async def _prepare(self, router: Router, ask: Ask) -> None:
        ask.ends = time.monotonic() + self.upstreams.deadline
        ask.request = await self.gate.beside(
            ask.size, Request.read, ask.body, ask.headers, ask.dialect, route_by=router.route_by, caller=ask.caller
        )  # fmt: skip

    async def _decide(self, router: Router, ask: Ask, usable: list[str]) -> Routed | None:
        """The router's decision; None: something failed on our side."""
        if ask.request.text is None:
            self.counters.add("unrouted_total", reason="no text")
        if not self.ours.allows():
            self._unrouted("paused")
            return None
        begin = time.perf_counter()
        self.ours.begin()
        future = asyncio.get_running_loop().run_in_executor(
            self.worker,
            lambda: route_conversation(
                router, ask.request, available=usable, rho=ask.rho, call_id=ask.call_id, caller=ask.caller
            ),
        )
        try:
            done, _ = await asyncio.wait({future}, timeout=min(PATIENCE, max(ask.left, 0.1)))
            if not done:
                future.add_done_callback(lambda late: self._unused(router, late, "too late"))
                self.ours.failed("timeout")
                self._unrouted("timeout")
                return None
            if (
                error := future.exception()
            ) is not None:  # log, disk, database, encoder: the request is answered
                self._failed_here("policy" if isinstance(error, PolicyError) else type(error).__name__, error)
                return None
            self.ours.succeeded()
            self.counters.observe("decision_seconds", time.perf_counter() - begin)
        except BaseException:
            if not (future.done() and future.exception()):
                future.add_done_callback(lambda late: self._unused(router, late, "failed here"))
            self.ours.released()
            raise
        return future.result()

    def _failed_here(self, reason: str, error: BaseException) -> None:
        self.ours.failed(reason)
        logger.error("no decision: %s: %s", type(error).__name__, error)
        self._unrouted(reason)

    def _unrouted(self, reason: str) -> None:
        self.counters.add("unrouted_total", reason=reason)
        if self.fail_closed:
            raise Refused(503, "the router cannot decide now; the server's log says why", "internal_error", 1)

    def _unused(self, router: Router, late: asyncio.Future[Routed], why: str) -> None:
        """A decision that no call follows: its row says so."""
        if not late.cancelled() and late.exception() is None:
            name = late.result().id
            self.log(lambda: router.finish(name, status="unused", reason=why))

    def _fallback(self, router: Router, usable: list[str]) -> str:
        best = router.arms[router.fallback]
        return best if best in usable else usable[0]

    def _settle(self, failed: list[Answer], *, answered: bool | None) -> None:
        """Tell the breakers of failures that may have been the request's: they were not if another model answered.

        Args:
            answered: None: it is not known.
        """
        alone = answered is False and len({f.model for f in failed}) == 1
        with ExitStack() as each:  # every one is told, whatever is raised
            for answer in failed:
                breaker = self.breaker(answer.model, "chat")
                if answer.failure is Meaning.RETRY and (answered or alone):
                    each.callback(breaker.failed, answer.reason, answer.retry_after)
                elif answer.failure not in (Meaning.ACCOUNT, Meaning.WAIT):
                    each.callback(breaker.released)

    def _worst(self, failed: list[Answer], ask: Ask, *, held: bool = False) -> Answer:
        """What the client is told where no model answered; held: only those could that hold what the request names."""
        answer = next((f for f in reversed(failed) if f.failure not in REFUSALS), failed[-1])
        waits = [f.retry_after for f in failed if f.retry_after is not None]
        if waits:
            answer.headers["retry-after"] = str(max(round(min(waits)), 1))
        held = held and answer.failure not in REFUSALS
        if held or answer.failure is Meaning.ACCOUNT:  # it is the router's account, not the client's
            answer.status = 503 if held else 502
            text = f"model {answer.model}: {answer.reason}"
            if held:
                text = f"{ask.request.held[0]} is held by the upstream of {text}, so no other can answer; try again"
            answer.body = json.dumps(error_body(text, "upstream_error", ask.dialect, answer.status)).encode()
            answer.headers["content-type"] = "application/json"
        return answer

    async def count_tokens(self, router: Router, ask: Ask, model: str | None) -> Answer:
        """The tokens of a request in the messages dialect, as a model counts them; else an estimate, which says so.

        Args:
            model: the one that was named; None: whichever the router has, the fallback first. Nothing is logged or charged.
        """
        await self._prepare(router, ask)
        names = [model] if model else sorted(router.arms, key=lambda arm: arm != router.arms[router.fallback])
        for name in names:
            upstream = self.upstream(name, ask.dialect)
            if ask.dialect in upstream.speaks and self.breaker(name, ask.dialect).allows():
                counted = await self._counted(upstream, name, ask)
                if counted is not None:
                    return Answer(200, {**JSON, "x-cabs-model": ascii(name)[1:-1]}, counted)
        estimate = {"input_tokens": math.ceil(ask.request.tokens), "estimated": True}
        return Answer(200, {**JSON, "x-cabs-estimated": "true"}, json.dumps(estimate).encode())

    async def _counted(self, upstream: Upstream, name: str, ask: Ask) -> bytes | None:
        """What an upstream says that a request has; None: it does not count."""
        passed = {k: ask.headers[k] for k in PASSED if k in ask.headers}
        try:
            async with self.client.post(
                f"{upstream.url}{COUNT_TOKENS}", json=upstream.body(ask.body, name),
                headers={**JSON, **upstream.headers(ask.dialect), **passed}, allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=min(upstream.timeout, PATIENCE)),
            ) as response:  # fmt: skip
                content = await self._whole(response, ask)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
            return None
        if content is None:
            return None
        data = parsed(content)
        good = (
            response.status == 200 and isinstance(data, dict) and count(data.get("input_tokens")) is not None
        )
        return content if good else None

    # -- one call ---------------------------------------------------------------------------------------------------

    async def call(
        self, model: str, ask: Ask, begun: ExitStack, *, router: Router, decision: Routed | None = None
    ) -> Answer:
        """One attempt at one model.

        Args:
            begun: what the attempt has begun; it ends with it, or where its answer is a stream with the request.
        """
        call = begun.enter_context(Call(self, router, model, ask, decision))
        upstream = call.upstream
        sent = {"content-type": "application/json", **upstream.headers(ask.dialect)}
        sent |= {name: ask.headers[name] for name in PASSED if name in ask.headers}
        if ask.call_id:
            sent["x-request-id"] = ask.call_id
        sent |= call.span.headers()
        body = upstream.body(ask.body, model)
        streams, hide = bool(body.get("stream")), False
        if streams and upstream.stream_usage and ask.dialect in ("chat", "completions"):
            options = body.get("stream_options")
            options = options if isinstance(options, dict) else {}
            hide = not options.get("include_usage")
            body["stream_options"] = {**options, "include_usage": True}
        payload = await self.gate.beside(ask.size, _encoded, body)
        left = max(ask.left, 0.05)
        seconds = min(upstream.timeout, left)
        times = aiohttp.ClientTimeout(total=None if streams else left, connect=seconds, sock_read=seconds)
        try:
            async with asyncio.timeout(seconds if streams else left) as patience:
                call.response = response = await self.client.post(
                    f"{upstream.url}{PATHS.get(ask.dialect, EMBEDDINGS)}", data=payload, headers=sent,
                    allow_redirects=False, timeout=times, trace_request_ctx=call,
                )  # fmt: skip
                del payload  # it may be large
                good = 200 <= response.status < 300
                kind = response.headers.get("content-type", "")
                if good and streams and not kind.startswith("application/json"):
                    patience.reschedule(None)
                    answer = await self._begun(call, response, hide, seconds)
                    if answer.stream is not None:
                        ask.scope.push(begun.pop_all().__exit__)
                        ask.body = {}  # no other attempt needs it
                        await ask.room.aclose()
                    return answer
                content = await self._whole(response, ask)
            response.release()
        except TimeoutError:
            what = f"no answer within {seconds:g} s"
            return call.failed(Meaning.RETRY, 504, what, status="timeout", billed=call.sent)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if _lacking(error):
                raise Refused(503, "this server is short of a resource now", "internal_error", 1) from error
            unreachable = isinstance(error, aiohttp.ClientConnectorError)
            what = f"{'cannot be reached' if unreachable else 'broke off'} ({type(error).__name__})"
            means = Meaning.WAIT if unreachable else Meaning.RETRY
            return call.failed(means, 502, what, billed=call.sent)
        except MemoryError as error:
            raise Refused(503, "this server is short of memory now", "internal_error", 1) from error
        except asyncio.CancelledError:
            call.finish("broken", reason="the client went away", billed=call.sent)
            raise
        data = None if content is None else await self.gate.beside(len(content), _parsed, content)
        if content is None or data is TOO_MUCH:
            return call.failed(Meaning.RETRY, 502, "answered with more than is read", billed=True)
        means = meaning(response.status, response.headers, data)
        if means is not Meaning.ANSWERED:
            return self._refused(call, response, means, content, data)
        whole, wrong = answer_of(data, ask.dialect)
        usage, name = whole.get("usage"), whole.get("id")
        if wrong is not None:
            return call.failed(Meaning.RETRY, 502, wrong, usage=usage)
        call.breaker.succeeded()
        written = written_in(content) if tokens_of(usage) is None else 0
        call.finish("answered", usage=usage, response_id=name, written=written, billed=True)
        return Answer(_status(response), call.back(response), content, decision=decision, model=model)

    def _refused(
        self, call: Call, response: aiohttp.ClientResponse, means: Meaning, content: bytes, data: Any
    ) -> Answer:
        """A reply that is no answer."""
        status, wait = response.status, retry_after(response.headers)
        reason = f"HTTP {status}"
        if means is Meaning.CALLER and call.ask.request.held and lost_state(data):
            means = Meaning.MODEL_REFUSES_FIELD  # another provider may hold what this one does not know
        if means is Meaning.CALLER:
            call.finish("rejected", reason=reason)
            call.breaker.released()
            return Answer(
                _status(response), call.back(response), content, decision=call.decision, model=call.model
            )
        if means in REFUSALS:
            field = field_of(data) if means is Meaning.MODEL_REFUSES_FIELD else None
            reason = f"{REFUSALS[means]} ({reason}{f', {field}' if field else ''})"
        elif means is Meaning.ACCOUNT:
            reason = f"{reason}: {ACCOUNT}, has no such model, or no credit is left"
        elif 200 <= status < 300:
            reason = f"{reason}: {'an error' if content else 'nothing'} in it"
        code, body = (status, content) if 400 <= status < 600 else (502, b"")
        answer = call.failed(
            means, code, reason, status="refused" if means in REFUSALS else "error", body=body, wait=wait
        )
        if body:
            answer.headers = call.back(response)
        return answer

    async def _begun(
        self, call: Call, response: aiohttp.ClientResponse, hide: bool, seconds: float
    ) -> Answer:
        """A stream, once its first event is there and is no error.

        Comments are bytes: an upstream that sends them is alive. Where nothing else has come after so many seconds they are
        passed on, and the stream has begun.
        """
        events, ready = Events(call.ask.dialect, hide_usage=hide), list[bytes]()
        source = response.content.iter_any()
        begun, last, alive = time.monotonic(), 0.0, False
        try:
            async with asyncio.timeout(seconds) as patience:
                async for chunk in source:
                    ready += events.feed(chunk)
                    last = time.monotonic()
                    if events.seen or events.error:
                        break
                    if sum(map(len, ready)) > limits.EVENT:
                        alive = True
                        break
                patience.reschedule(None)
        except TimeoutError:
            alive = bool(ready) and last - begun >= seconds / 2
            if not alive:
                raise
        if events.error is not None or not (events.seen or alive):
            response.close()
            what = "ended before it began" if events.error is None else f"error in the stream: {events.error}"
            means = meaning(200, response.headers, events.failure)
            # an error that came with the first pieces: they may be billed, though no client saw them
            return call.failed(
                Meaning.RETRY if means in (Meaning.ANSWERED, Meaning.CALLER) else means,
                502,
                what,
                usage=events.reported,
                written=events.written,
                billed=events.written > 0,
            )
        stream = self._stream(call, response, source, events, ready)
        return Answer(
            _status(response), call.back(response), stream=stream, decision=call.decision, model=call.model
        )

    async def _stream(
        self, call: Call, response: aiohttp.ClientResponse, source: AsyncIterator[bytes], events: Events, ready: list[bytes]
    ) -> AsyncIterator[bytes]:  # fmt: skip
        """The upstream's events as they come; the end is logged even where either side breaks off."""
        status, reason, ours = "broken", "the client went away", False
        try:
            for event in ready:
                yield event
            async for chunk in source:
                if events_ready := b"".join(events.feed(chunk)):
                    yield events_ready
            if rest := events.end():
                yield rest
            status, reason = "answered", ""
            if events.error is not None:
                status, reason = "error", f"error in the stream: {events.error}"
            elif not events.done:
                status, reason = "error", "ended early"
                yield error_event(f"{call.model} ended early", call.ask.dialect)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            status = "timeout" if isinstance(error, TimeoutError) else "error"
            reason = f"broke off: {type(error).__name__}"
            yield error_event(f"{call.model} {reason}", call.ask.dialect)
        except Exception as error:
            status, reason, ours = "error", f"failed here: {type(error).__name__}", True
            raise
        finally:
            response.close()
            if status == "answered":
                call.breaker.succeeded()
            elif status == "broken" or ours:
                call.breaker.released()
            else:
                call.breaker.failed(reason)
                logger.warning("upstream %s: %s", call.model, reason)
            call.finish(
                status,
                usage=events.reported,
                response_id=events.id,
                written=events.written,
                reason=reason,
                billed=True,
            )

    async def _whole(self, response: aiohttp.ClientResponse, ask: Ask) -> bytes | None:
        """An upstream's answer, unpacked; None: it is larger than `limits.ANSWER`. A key's large ones wait in turn."""
        whole = io.BytesIO()
        async for chunk in response.content.iter_any():
            whole.write(chunk)
            if whole.tell() > limits.ANSWER:
                response.close()
                return None
            if whole.tell() > limits.LARGE_ANSWER and not ask.has_turn:
                ask.has_turn = True
                known = None if "content-encoding" in response.headers else response.content_length
                turn = self.gate.body(
                    f"answers of {ask.caller}",
                    min(known or limits.ANSWER, limits.ANSWER),
                    most=limits.ANSWERS_BY_KEY,
                )
                await ask.scope.enter_async_context(turn)  # until it was sent: the client may not read it
            if whole.tell() > limits.LARGE_ANSWER:
                await asyncio.sleep(limits.PAUSE)
        return whole.getvalue()

    def log(self, work: Callable[[], object]) -> None:
        """Have something logged. The answer does not wait for it; what comes after it on the thread does."""

        def safely() -> None:
            try:
                work()
            except Exception:  # the log's disk is full, say: the answer has gone out
                self.counters.add("unlogged_total")
                logger.exception("the end of a call could not be logged")

        self.worker.submit(safely)


class Call:
    """One attempt, as a context: its breaker, span, row, stream and cost end with it, whatever is raised."""

    def __init__(self, forwarder: Forwarder, router: Router, model: str, ask: Ask, decision: Routed | None):
        self.forwarder, self.router, self.model, self.ask, self.decision = (
            forwarder, router, model, ask, decision,
        )  # fmt: skip
        self.begin, self.ended = time.perf_counter(), False
        self.span = Span()
        self.response: aiohttp.ClientResponse | None = None
        #: whether a part of the request has left, which a provider may charge for
        self.sent = False

    def __enter__(self) -> Call:
        forwarder, dialect = self.forwarder, self.ask.dialect
        try:
            self.upstream = forwarder.upstream(self.model, dialect)
            self.breaker = forwarder.breaker(self.model, dialect)
            self.breaker.begin()
            self.span = forwarder.tracer.start(self.model, dialect, self.ask.body, self.ask.headers)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.response is not None:
                self.response.close()
        finally:
            try:
                if kind is not None or not self.ended:  # whatever it was, it was no word of the upstream
                    self.breaker.released()
            finally:  # nothing happens where it has ended
                what = "the answer was not sent" if kind is None else f"failed here: {kind.__name__}"
                self.response = None  # which holds this call, for `_sent`: both would stay, with the body
                gone = kind is None or issubclass(kind, asyncio.CancelledError | GeneratorExit)
                self.finish("broken" if gone else "error", reason=what, billed=self.sent)

    def back(self, response: aiohttp.ClientResponse | None = None) -> dict[str, str]:
        """Headers of the answer: those of the upstream that HTTP can carry on."""
        headers = {"content-type": "application/json"}
        for name, value in () if response is None else response.headers.items():
            low = name.lower()
            if not _NAME.fullmatch(low) or not _VALUE.fullmatch(value):
                continue
            if low == "content-type" or low.startswith(BACK):
                headers[low] = value
            elif low in ("x-request-id", "request-id"):
                headers["x-upstream-request-id"] = value
        headers["x-cabs-model"] = ascii(self.model)[1:-1]
        if self.decision is not None:
            headers["x-cabs-decision"] = self.decision.id
        return headers

    def failed(
        self, failure: Meaning, code: int, what: str, *, status: str = "error", body: bytes = b"", usage: Any = None,
        written: int = 0, billed: bool = False, wait: float | None = None,
    ) -> Answer:  # fmt: skip
        """An attempt after which another model is tried."""
        level = logging.INFO if status == "refused" else logging.WARNING
        logger.log(level, "upstream %s: %s", self.model, what)
        self.finish(status, usage=usage, written=written, reason=what, billed=billed or usage is not None)
        if failure in (Meaning.ACCOUNT, Meaning.WAIT):
            self.breaker.failed(what, wait, at_once=failure is Meaning.ACCOUNT)
        text = error_body(f"model {self.model}: {what}", "upstream_error", self.ask.dialect, code)
        return Answer(
            code, self.back(), body or json.dumps(text).encode(), decision=self.decision, model=self.model,
            failure=failure, reason=what, retry_after=wait,
        )  # fmt: skip

    def finish(
        self, status: str, *, usage: Any = None, response_id: Any = None, written: int = 0, reason: str = "",
        billed: bool = False,
    ) -> None:  # fmt: skip
        """The call ended: log, counters, span. billed: a provider may charge for it though it reported nothing."""
        if self.ended:
            return
        self.ended = True
        facts: dict[str, Any] = {
            "status": status, "latency": time.perf_counter() - self.begin, "reason": reason[:200] or None,
            "response_id": response_id if isinstance(response_id, str) else None,
        }  # fmt: skip
        bill = Bill()
        try:
            request = self.ask.request
            bill = self.upstream.bill(
                usage, estimated(request.tokens, written, request.most_output) if billed else None
            )
            facts |= {
                "cost": bill.cost, "tokens_in": bill.tokens_in, "tokens_out": bill.tokens_out,
                "estimated": int(bill.estimated) or None,
            }  # fmt: skip
            self._count(status, bill)
            self.forwarder.counters.call(self.model, status, reason, facts["latency"], bill)
        except Exception:  # the answer goes out, and its row is closed
            logger.exception("the end of a call could not be counted")
        finally:
            self._log(facts)
            self._end_span(status, reason, bill, response_id)

    def _log(self, facts: dict[str, Any]) -> None:
        router, ask = self.router, self.ask
        if self.decision is not None:
            name = self.decision.id
            self.forwarder.log(lambda: router.finish(name, **facts))
        else:
            self.forwarder.log(
                lambda: router.log_call(self.model, call_id=ask.call_id, caller=ask.caller, **facts)
            )

    def _end_span(self, status: str, reason: str, bill: Bill, response_id: Any) -> None:
        try:
            self.span.end(status, reason, bill, response_id)
        except Exception:
            logger.exception("the span of a call could not be ended")

    def _count(self, status: str, bill: Bill) -> None:
        if bill.cost is None:
            return
        dearest = self.forwarder.dearest
        dearest[self.model] = max(bill.cost, dearest.get(self.model, 0.0))
        if self.forwarder.cap is not None:
            self.forwarder.cap.add(bill.cost)
        if self.decision is not None and self.decision.fixed_cost is not None:
            if status == "answered":  # a request is answered once, whatever its attempts cost
                self.forwarder.counters.add("fixed_model_cost_usd_total", self.decision.fixed_cost)
            self.forwarder.counters.add("routed_cost_usd_total", bill.cost)


async def _sent(session: aiohttp.ClientSession, context: Any, parameters: Any) -> None:
    if isinstance(call := context.trace_request_ctx, Call):
        call.sent = True


def _encoded(body: dict[str, Any]) -> aiohttp.BytesIOPayload:
    """The JSON of a request, as UTF-8: escaped it may be three times as long. Raises Refused: there is none of it."""
    try:
        try:
            content = json.dumps(body, ensure_ascii=False).encode()
        except UnicodeEncodeError:  # half a surrogate pair
            content = json.dumps(body).encode()
    except (RecursionError, TypeError, ValueError) as error:
        raise Refused(400, f"the request cannot be passed on: {error!s:.100}") from None
    return aiohttp.BytesIOPayload(io.BytesIO(content), content_type="application/json")


def _parsed(content: bytes) -> Any:
    """`replies.parsed`, or TOO_MUCH."""
    try:
        return parsed(bytes(bounded(content, commas=False)))
    except Refused:
        return TOO_MUCH


def _lacking(error: Exception) -> bool:
    """Whether what failed is that this process has no descriptor, port or memory left."""
    inner = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if getattr(inner, "errno", None) in _OURS:
        return True
    if not isinstance(error, aiohttp.ClientConnectorError):
        return False
    try:  # without a descriptor a name is not found either
        os.close(os.dup(2))
    except OSError:
        return True
    return False


def _status(response: aiohttp.ClientResponse) -> int:
    """A status that HTTP has."""
    return response.status if 200 <= response.status < 600 else 502
