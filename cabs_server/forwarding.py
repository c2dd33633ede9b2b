"""One request: decide, forward (`attempt`), and decide again among the other models where an upstream fails.

Whatever fails on our side is answered by the fallback model, and counted.
"""

import asyncio
import json
import logging
import math
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import aiohttp

from cabs_core.base.errors import CabsError, HeldElsewhere, PolicyError
from cabs_core.data.endpoints.dialects import COUNT_TOKENS, error_body
from cabs_core.data.endpoints.replies import REFUSALS, Meaning, parsed
from cabs_core.data.endpoints.request import ChatRequest
from cabs_core.data.endpoints.upstreams import Upstreams
from cabs_core.data.endpoints.usage import count
from cabs_core.router.router import Routed, Router
from cabs_core.router.sessions import at_holder, route_conversation
from cabs_server.attempt import attempt, encoded, whole
from cabs_server.breaker import Breaker
from cabs_server.call import JSON, Answer, Ask, Call
from cabs_server.callers import Refused
from cabs_server.connections import Connections, Line

#: failures that may be over at once, and the longest wait for which a tool loop stays with its model, seconds
TRANSIENT, SOON = (Meaning.RETRY, Meaning.WAIT), 5.0
#: seconds that a decision may take before the fallback answers
PATIENCE = 5.0
logger = logging.getLogger("cabs.serve")


class Forwarder(Connections):
    """Answers requests by calling upstreams for a router.

    Args:
        fail_closed: 503 where the router itself fails, not the fallback model. Others: of `Connections`.
    """

    def __init__(self, upstreams: Upstreams, *, fail_closed: bool = False, **shared: Any):
        super().__init__(upstreams, **shared)
        self.fail_closed = fail_closed
        #: of the router itself: requests do not wait one after the other for a log that does not answer
        self.ours = Breaker(failures=3, window=10.0, cooldown=1.0, longest=5.0)

    def fit(self, ask: Ask, models: Iterable[str]) -> list[Line]:
        """Those of the models that can take a request, by the upstreams file.

        Raises Refused: there is none.
        """
        lines = [self.lines[model] for model in models]
        lacking = [line.upstream.lacks(ask.request) for line in lines]
        able = [line for line, why in zip(lines, lacking, strict=True) if why is None]
        if not able:
            reasons = "; ".join(f"{line.model} {why}" for line, why in zip(lines, lacking, strict=True))
            raise Refused(400, f"no model can take this request: {reasons:.600}")
        return self._within_cap(able)

    def _within_cap(self, lines: list[Line]) -> list[Line]:
        """Those of the models that may be called now. Raises Refused: the budget of the day is spent."""
        if self.cap is None or not self.cap.reached():
            return lines
        if free := [line for line in lines if line.upstream.free]:
            return free
        self.counters.add("over_cap_total")
        text = f"the budget of {self.cap.usd:g} USD a day is spent; it begins again at 00:00 UTC"
        raise Refused(429, text, "insufficient_quota", retry_after=self.cap.seconds_left())

    async def _reserve(self, router: Router, ask: Ask, lines: list[Line], begun: ExitStack) -> list[Line]:
        """Those of the models that may be called, the dearest being reserved until `begun` ends.

        Raises:
            Refused: the budget of the day is spent, or what is left of it may go to calls under way.
        """
        begin = time.monotonic()
        while self.cap is not None:
            lines, dearest = self._within_cap(lines), self.cap.dearest
            most = max(max(x.upstream.most_usd(ask.request), dearest.get(x.model, 0.0)) for x in lines)
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
                if time.monotonic() >= min(begin + PATIENCE, ask.ends):
                    text = "calls under way may use what is left of the day's budget"
                    raise Refused(429, text, "insufficient_quota", retry_after=1)
                await asyncio.sleep(0.02)
        return lines

    async def holders(
        self,
        router: Router,
        request: ChatRequest,
        models: Sequence[str],
        caller: str,
        seconds: float = PATIENCE,
    ) -> tuple[ChatRequest, list[str] | None]:
        """Those of the models at the upstream that holds what a request names (`sessions.at_holder`).

        Args:
            seconds: that the log, which knows, may take.

        Raises:
            Refused: none of them is there, or the log does not answer.
        """
        if not request.held:
            return request, None
        places = {name: upstream.place for name, upstream in self.upstreams.models.items()}
        try:
            async with asyncio.timeout(min(PATIENCE, max(seconds, 0.1))):
                return await self.beside(at_holder, router, request, models, places, caller)
        except HeldElsewhere as error:
            raise Refused(503, str(error), "upstream_error") from None
        except (CabsError, TimeoutError) as error:
            logger.error("who holds %s is not known: %s", request.held[0], error)
            text = "the log, which knows the upstream that holds it, does not answer; try again"
            raise Refused(503, f"{request.held[0]}: {text}", "internal_error", 1) from None

    async def routed(self, router: Router, ask: Ask) -> Answer:
        """Answer a request by the model that the router chooses, or that its conversation has.

        Raises:
            Refused: no model can take it, or the budget of the day is spent. RouterError, PolicyError: rho
                cannot be served.
        """
        router.rho_of(ask.rho)
        arms = ask.models or router.arms
        ask.request, at_place = await self.holders(router, ask.request, arms, ask.caller, ask.left)
        fit = self.fit(ask, arms if at_place is None else at_place)
        failed, gone = list[Answer](), set[str]()
        once_more = ask.request.in_tools
        try:
            while len(gone) < (self.upstreams.attempts or len(fit)):
                rest = [line for line in fit if line.model not in gone]
                if not rest or (failed and ask.left <= 0.0):
                    break
                allowed = [line for line in rest if line.breaker.allows()] or rest
                with ExitStack() as begun:
                    usable = {line.model: line for line in await self._reserve(router, ask, allowed, begun)}
                    decision = await self._decide(router, ask, list(usable))
                    model = router.manifest.fallback if decision is None else decision.model
                    line = usable.get(model) or next(iter(usable.values()))
                    call = begun.enter_context(Call(self, router, line, ask, decision))
                    answer = await attempt(call, begun)
                if answer.failure is None:
                    self._settle(failed, answered=answer.status < 400)
                    return answer
                failed.append(answer)
                if once_more and decision is not None and decision.kept and await self._soon(answer, ask):
                    once_more = False  # a tool loop stays with its model over a failure that passes
                else:
                    gone.add(line.model)
            self._settle(failed, answered=False)
        except BaseException:  # nobody will know whose fault the attempts before were
            self._settle(failed, answered=None)
            raise
        return self._worst(failed, ask, held=at_place is not None)

    async def _soon(self, answer: Answer, ask: Ask) -> bool:
        """Whether a failed model may be asked again at once, or after the short while that it asked for."""
        if answer.failure not in TRANSIENT or ask.left < self.upstreams.deadline / 2:
            return False
        wait = answer.retry_after or (0.2 if answer.failure is Meaning.WAIT else 0.0)
        if wait > SOON or not self.lines[answer.model].breaker.allows():
            return False
        await asyncio.sleep(wait)
        return True

    async def named(self, router: Router, model: str, ask: Ask) -> Answer:
        """Answer a request by the model that it names; the call is in the log, and is no draw.

        Raises:
            Refused: the model cannot take it or does not hold what it names, or the day's budget is spent.
        """
        line = (self.embedders if ask.dialect == "embeddings" else self.lines)[model]
        ask.request, _ = await self.holders(router, ask.request, [model], ask.caller, ask.left)
        if ask.dialect != "embeddings" and (why := line.upstream.lacks(ask.request)):
            raise Refused(400, f"model {model} {why}")
        with ExitStack() as begun:
            await self._reserve(router, ask, [line], begun)
            answer = await attempt(begun.enter_context(Call(self, router, line, ask)), begun)
        line.breaker.released()
        return answer if answer.failure is None else self._worst([answer], ask)

    async def _decide(self, router: Router, ask: Ask, usable: list[str]) -> Routed | None:
        """The router's decision; None: something failed on our side."""
        if ask.request.text is None:
            self.counters.add("unrouted_total", reason="no text")
        if not self.ours.allows():
            self._unrouted("paused")
            return None
        begin = time.perf_counter()
        self.ours.begin()
        names: dict[str, Any] = {"rho": ask.rho, "call_id": ask.call_id, "caller": ask.caller}

        def decide() -> Routed:
            routed = route_conversation(router, ask.request, available=usable, **names)
            routed.why  # noqa: B018  (what it predicts is computed here, beside the event loop)
            return routed

        future = asyncio.get_running_loop().run_in_executor(self.worker, decide)
        try:
            done, _ = await asyncio.wait({future}, timeout=min(PATIENCE, max(ask.left, 0.1)))
            if not done:
                future.add_done_callback(lambda late: self._unused(router, late, "too late"))
                self.ours.failed("timeout")
                self._unrouted("timeout")
                return None
            # log, disk, database, encoder: the request is answered
            if (error := future.exception()) is not None:
                reason = "policy" if isinstance(error, PolicyError) else type(error).__name__
                self.ours.failed(reason)
                logger.error("no decision: %s: %s", type(error).__name__, error)
                self._unrouted(reason)
                return None
            self.ours.succeeded()
            self.counters.observe("decision_seconds", time.perf_counter() - begin)
        except BaseException:
            if not (future.done() and future.exception()):
                future.add_done_callback(lambda late: self._unused(router, late, "failed here"))
            self.ours.released()
            raise
        return future.result()

    def _unrouted(self, reason: str) -> None:
        self.counters.add("unrouted_total", reason=reason)
        if self.fail_closed:
            raise Refused(503, "the router cannot decide now; the server's log says why", "internal_error", 1)

    def _unused(self, router: Router, late: asyncio.Future[Routed], why: str) -> None:
        """A decision that no call follows: its row says so."""
        if not late.cancelled() and late.exception() is None:
            self.log(partial(router.finish, late.result().id, status="unused", reason=why))

    def _settle(self, failed: list[Answer], *, answered: bool | None) -> None:
        """Tell the breakers of failures that may have been the request's: not if another model answered.

        Args:
            answered: None: it is not known.
        """
        alone = answered is False and len({f.model for f in failed}) == 1
        with ExitStack() as each:  # every one is told, whatever is raised
            for answer in failed:
                breaker = self.lines[answer.model].breaker
                if answer.failure is Meaning.RETRY and (answered or alone):
                    each.callback(breaker.failed, answer.reason, answer.retry_after)
                elif answer.failure not in (Meaning.ACCOUNT, Meaning.WAIT):
                    each.callback(breaker.released)

    def _worst(self, failed: list[Answer], ask: Ask, *, held: bool = False) -> Answer:
        """What the client is told where no model answered; held: only those could that hold what it names."""
        answer = next((f for f in reversed(failed) if f.failure not in REFUSALS), failed[-1])
        waits = [f.retry_after for f in failed if f.retry_after is not None]
        if waits:
            answer.headers["retry-after"] = str(max(round(min(waits)), 1))
        held = held and answer.failure not in REFUSALS
        if held or answer.failure is Meaning.ACCOUNT:  # it is the router's account, not the client's
            answer.status = 503 if held else 502
            text = f"model {answer.model}: {answer.reason}"
            if held:
                text = (
                    f"{ask.request.held[0]} is held by the upstream of {text}, so no other can answer; try "
                    "again"
                )
            answer.body = json.dumps(error_body(text, "upstream_error", ask.dialect, answer.status)).encode()
            answer.headers |= JSON
        return answer

    async def count_tokens(self, router: Router, ask: Ask, model: str | None) -> Answer:
        """The tokens of a request in the messages dialect, as a model counts them, else estimated.

        Args:
            model: the one that was named; None: whichever the router has, the fallback first; unlogged.
        """
        names = (
            [model]
            if model
            else sorted(ask.models or router.arms, key=lambda arm: arm != router.manifest.fallback)
        )
        for name in names:
            line = self.lines[name]
            if ask.dialect in line.upstream.speaks and line.breaker.allows():
                counted = await self._counted(line, ask)
                if counted is not None:
                    return Answer(200, {**JSON, "x-cabs-model": ascii(name)[1:-1]}, counted)
        estimate = {"input_tokens": math.ceil(ask.request.tokens), "estimated": True}
        return Answer(200, {**JSON, "x-cabs-estimated": "true"}, json.dumps(estimate).encode())

    async def _counted(self, line: Line, ask: Ask) -> bytes | None:
        """What an upstream says that a request has; None: it does not count."""
        upstream = line.upstream
        try:
            async with self.client.post(
                f"{upstream.url}{COUNT_TOKENS}",
                data=await self.gate.beside(ask.size, encoded, upstream.body(ask.body, line.model)),
                headers={**JSON, **upstream.headers(ask.dialect), **ask.passed},
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=min(upstream.timeout, PATIENCE)),
            ) as response:
                content = await whole(response, ask)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
            return None
        data = None if content is None or response.status != 200 else parsed(content)
        good = isinstance(data, dict) and count(data.get("input_tokens")) is not None
        return content if good else None
