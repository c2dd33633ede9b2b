"""Forwarding of requests: the router chooses a model, and `attempt` calls it. After a failure the router
chooses again among the other models.

If the router itself fails, the fallback model answers, and the failure is counted.
"""

import asyncio
import json
import logging
import math
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial

import aiohttp

from cabs_core.base.errors import CabsError, HeldElsewhere, LogError, PolicyError, RouterError
from cabs_core.data.endpoints.dialects import COUNT_TOKENS, error_body
from cabs_core.data.endpoints.replies import REFUSALS, Meaning, parse_body
from cabs_core.data.endpoints.request import ChatRequest
from cabs_core.data.endpoints.upstreams import Upstreams
from cabs_core.data.endpoints.usage import as_count
from cabs_core.router.routed import Routed
from cabs_core.router.router import Router
from cabs_core.router.sessions import models_at_holder, route_conversation
from cabs_server.attempt import attempt
from cabs_server.bodies import encoded, top_fields
from cabs_server.breaker import Breaker
from cabs_server.call import JSON, Answer, Call, ClientRequest
from cabs_server.callers import Refused
from cabs_server.candidates import Candidates
from cabs_server.cap import Cap
from cabs_server.connections import CallSettings, Connections, UpstreamState
from cabs_server.limits import RequestSlots
from cabs_server.refusals import RequestKind
from cabs_server.unpacking import PACKED, read_whole

#: failures that count against a model
FAILURES = (Meaning.RETRY, Meaning.WAIT, Meaning.ACCOUNT)
#: failures that may be over at once
TRANSIENT = (Meaning.RETRY, Meaning.WAIT)
#: longest wait for which a tool loop stays with its model, seconds
LONGEST_WAIT = 5.0
#: seconds that a decision may take before the fallback answers
PATIENCE = 5.0
logger = logging.getLogger("cabs.serve")


class Forwarder(Connections):
    """The shared connections of a process, with methods that answer requests by calls to upstreams.

    The arguments are those of `Connections`.

    Attributes:
        own_breaker: breaker of the router itself. While it is open, requests go to the fallback model without
            waiting for a log that does not answer.
    """

    def __init__(
        self, upstreams: Upstreams, settings: CallSettings | None = None, slots: RequestSlots | None = None
    ):
        super().__init__(upstreams, settings, slots)
        self.own_breaker = Breaker(failures=3, window=10.0, cooldown=1.0, longest=5.0)

    def fit(self, chat: ChatRequest, models: Iterable[str]) -> list[UpstreamState]:
        """Return the states of the models that can take a request, by the upstreams file.

        Raises:
            Refused: no model can take the request, or the budget of the day is spent and no model is free.
        """
        states = [self.states[model] for model in models]
        lacking = {state.model: state.upstream.lacks(chat) for state in states}
        able = [state for state in states if lacking[state.model] is None]
        if not able:
            reasons = "; ".join(f"{model} {why}" for model, why in lacking.items())
            raise Refused(400, f"no model can take this request: {reasons:.600}")
        return self._within_cap(able)

    def _within_cap(self, states: list[UpstreamState]) -> list[UpstreamState]:
        """Return the models that may be called now: only free ones once the day's budget is spent.

        Raises:
            Refused: the budget of the day is spent, and no model is free.
        """
        if self.cap is None or not self.cap.reached():
            return states
        free = [state for state in states if state.upstream.free]
        if free:
            return free
        self.counters.add("over_cap_total")
        text = f"the budget of {self.cap.usd:g} USD a day is spent; it begins again at 00:00 UTC"
        raise Refused(429, text, "insufficient_quota", retry_after=self.cap.seconds_left())

    async def _reserve(
        self, router: Router, request: ClientRequest, states: list[UpstreamState], resources: AsyncExitStack
    ) -> list[UpstreamState]:
        """Return the models that may be called, and reserve the cost of the dearest until `resources` close.

        Raises:
            Refused: the budget of the day is spent, calls under way may use the rest of the budget, or a
                limit in the request, by which money would be reserved, is no number.
        """
        cap = self.cap
        if cap is None:
            return states
        unsound = request.chat.output.unsound
        if unsound is not None:
            text = "expected a number from 0 on, for the day's budget is reserved by it"
            raise Refused(400, f"{unsound}: {text}")
        begin = time.monotonic()
        while True:
            states = self._within_cap(states)
            most = max(
                max(state.upstream.most_usd(request.chat), cap.dearest.get(state.model, 0.0))
                for state in states
            )
            if most == 0.0:
                return states
            if await self._reserve_usd(cap, router, request, most, resources):
                return states
            if cap.reached():
                continue
            if time.monotonic() >= min(begin + PATIENCE, request.ends):
                text = "calls under way may use what is left of the day's budget"
                raise Refused(429, text, "insufficient_quota", retry_after=1)
            await asyncio.sleep(0.02)

    async def _reserve_usd(
        self, cap: Cap, router: Router, request: ClientRequest, most: float, resources: AsyncExitStack
    ) -> bool:
        """Reserve `most` USD until `resources` close. Return False if the budget has no room for them now."""
        name = uuid.uuid4().hex
        end_call = partial(self.log, request.caller, partial(cap.end, router.log, name))
        try:
            may = await self.worker.run(request.caller, cap.begin, router.log, name, most)
        except BaseException:  # it may be reserved on the thread, after which this runs there
            end_call()
            raise
        if may:
            resources.callback(end_call)
        return may

    async def find_holder(
        self,
        router: Router,
        chat: ChatRequest,
        models: Sequence[str],
        caller: str,
        seconds: float = PATIENCE,
    ) -> tuple[ChatRequest, list[str] | None]:
        """Return the request and the models at the provider that stores its conversation.

        Args:
            models: models that may answer.
            seconds: longest time to look up the provider in the log.

        Returns:
            (the request, models at that provider). The request counts the tokens that the provider adds from
            its state. The models are None if the request refers to no state of a provider, or if the log
            knows no call that made the state.

        Raises:
            Refused: no model is at that provider, or the log does not answer.
        """
        if not chat.held:
            return chat, None
        accounts = {name: upstream.account for name, upstream in self.upstreams.models.items()}
        try:
            async with asyncio.timeout(min(PATIENCE, max(seconds, 0.1))):
                return await self.worker.run(caller, models_at_holder, router, chat, models, accounts, caller)
        except HeldElsewhere as error:
            raise Refused(503, str(error), "upstream_error") from None
        except (CabsError, TimeoutError) as error:
            logger.error("who holds %s is not known: %s", chat.held[0], error)
            text = "the log, which knows the upstream that holds it, does not answer; try again"
            raise Refused(503, f"{chat.held[0]}: {text}", "internal_error", 1) from None

    async def routed(self, router: Router, request: ClientRequest) -> Answer:
        """Answer a request by the model that the router chooses, or that the conversation keeps.

        Raises:
            Refused: no model can take the request, the state that the request refers to is at another
                provider, or the budget of the day is spent.
            RouterError, PolicyError: rho cannot be served.
        """
        router.rho_of(request.rho)
        models = request.models or router.arms
        request.chat, at_place = await self.find_holder(
            router, request.chat, models, request.caller, request.seconds_left
        )
        fit = self.fit(request.chat, models if at_place is None else at_place)
        candidates = Candidates(fit, self.upstreams.attempts, self.refusals, request.kind)
        failed: list[Answer] = []
        may_repeat = request.chat.in_tools
        try:
            for states in candidates:
                if failed and request.seconds_left <= 0.0:
                    break
                answer = await self._attempt(router, request, states)
                if answer.failure is None:
                    self._settle(failed, request, answered=answer.status < 400)
                    self._remember(failed, answer, request.kind)
                    return answer
                failed.append(answer)
                is_kept = answer.decision is not None and answer.decision.kept is not None
                if may_repeat and is_kept and await self._wait_to_repeat(answer, request):
                    may_repeat = False  # a tool loop stays with its model over a failure that passes
                else:
                    candidates.note(answer)
            self._settle(failed, request, answered=False)
        except BaseException:  # nobody will know whose fault the attempts before were
            self._settle(failed, request, answered=None)
            raise
        return self._failure(failed, request, held=at_place is not None)

    async def _attempt(self, router: Router, request: ClientRequest, states: list[UpstreamState]) -> Answer:
        """Ask the model that the router chooses among these, and return its answer.

        Without a decision the fallback model is asked, or the first model if the fallback is not among them.
        """
        async with AsyncExitStack() as resources:
            usable = await self._reserve(router, request, states, resources)
            names = [state.model for state in usable]
            decision = await self._decide(router, request, names)
            if decision is None:
                model = router.manifest.fallback
            else:
                model = decision.model
            if model in names:
                state = self.states[model]
            else:
                state = usable[0]
            call = resources.enter_context(Call(self, router, state, request, decision))
            return await attempt(call, resources)

    async def _wait_to_repeat(self, answer: Answer, request: ClientRequest) -> bool:
        """Wait as long as a failed model asked for, and return True if the model should be asked again.

        Return False at once if the failure is not transient, the wait is longer than `LONGEST_WAIT`, half of
        the deadline has passed, or the model's breaker is open.
        """
        if answer.failure not in TRANSIENT or request.seconds_left < self.upstreams.deadline / 2:
            return False
        wait = answer.retry_after or (0.2 if answer.failure is Meaning.WAIT else 0.0)
        if wait > LONGEST_WAIT or not self.states[answer.model].breaker.allows():
            return False
        await asyncio.sleep(wait)
        return True

    async def named(self, router: Router, model: str, request: ClientRequest) -> Answer:
        """Answer a request by the model that it names. The log has the call, but no draw of the router.

        Raises:
            Refused: the model cannot take the request, the state that the request refers to is at another
                provider, or the budget of the day is spent.
        """
        is_embedding = request.dialect == "embeddings"
        state = (self.embedders if is_embedding else self.states)[model]
        request.chat, _ = await self.find_holder(
            router, request.chat, [model], request.caller, request.seconds_left
        )
        if is_embedding:
            lacking = None
        else:
            lacking = state.upstream.lacks(request.chat)
        if lacking is not None:
            raise Refused(400, f"model {model} {lacking}")
        async with AsyncExitStack() as resources:
            await self._reserve(router, request, [state], resources)
            call = resources.enter_context(Call(self, router, state, request))
            answer = await attempt(call, resources)
        if answer.failure is None:
            return answer
        self._settle([answer], request, answered=False, states={model: state})
        return self._failure([answer], request)

    async def _decide(self, router: Router, request: ClientRequest, usable: list[str]) -> Routed | None:
        """Return the router's decision, or None if the router failed, was late or is paused.

        Raises:
            Refused: there is no decision, and the server answers 503 in this case (`fail_closed`).
        """
        if request.chat.text is None:
            self.counters.add("unrouted_total", reason="no text")
        if not self.own_breaker.allows():
            self._unrouted("paused")
            return None
        begin = time.perf_counter()
        self.own_breaker.begin()

        def decide() -> Routed:
            routed = route_conversation(
                router,
                request.chat,
                available=usable,
                rho=request.rho,
                call_id=request.call_id,
                caller=request.caller,
            )
            routed.why  # noqa: B018  (the predictions are computed here, beside the event loop)
            return routed

        future = asyncio.wrap_future(self.worker.submit(request.caller, decide))
        try:
            done, _ = await asyncio.wait({future}, timeout=min(PATIENCE, max(request.seconds_left, 0.1)))
            if not done:
                self._forget(router, request, future, "too late")
                self.own_breaker.failed("timeout")
                self._unrouted("timeout")
                return None
            error = future.exception()
            if error is not None:
                self._note_no_decision(error)
                return None
            self.own_breaker.succeeded()
            self.counters.observe("decision_seconds", time.perf_counter() - begin)
        except BaseException:
            if not (future.done() and not future.cancelled() and future.exception()):
                self._forget(router, request, future, "failed here")
            self.own_breaker.released()
            raise
        return future.result()

    def _note_no_decision(self, error: BaseException) -> None:
        """Log and count an error of the router, its log, disk or encoder, after which the fallback answers.

        The error counts against the router's own breaker, unless it is a RouterError of this request alone.

        Raises:
            Refused: the server answers 503 in this case (`fail_closed`).
        """
        if isinstance(error, PolicyError):
            reason = "policy"
        else:
            reason = type(error).__name__
        is_mistake = isinstance(error, RouterError) and not isinstance(error, LogError)
        if is_mistake:  # of this request alone, so the requests of others are still routed
            self.own_breaker.released()
        else:
            self.own_breaker.failed(reason)
        logger.error("no decision: %s: %s", type(error).__name__, error)
        self._unrouted(reason)

    def _unrouted(self, reason: str) -> None:
        """Count a request that the router did not route. Raises Refused if the server is to answer 503."""
        self.counters.add("unrouted_total", reason=reason)
        if self.settings.fail_closed:
            raise Refused(503, "the router cannot decide now; the server's log says why", "internal_error", 1)

    def _forget(
        self, router: Router, request: ClientRequest, future: asyncio.Future[Routed], why: str
    ) -> None:
        """Mark the row of a decision as unused once the decision is made, since no call follows it.

        Args:
            why: reason in the row.
        """

        def note(late: asyncio.Future[Routed]) -> None:
            if not late.cancelled() and late.exception() is None:
                end = partial(router.finish, late.result().id, status="unused", reason=why)
                self.log(request.caller, end)

        future.add_done_callback(note)

    def _settle(
        self,
        failed: list[Answer],
        request: ClientRequest,
        *,
        answered: bool | None,
        states: Mapping[str, UpstreamState] | None = None,
    ) -> None:
        """Tell the breakers of failed attempts.

        Failures of the upstream (`FAILURES`) count if another model answered the request. If no model did,
        they may be the request's fault, and each breaker counts them only once it has enough of them
        (`Breaker.suspected`). Other failures do not count.

        Args:
            failed: answers of the attempts that failed.
            answered: True if another model answered with a status below 400. None, with which nothing counts,
                if that is not known.
            states: {model: endpoint and breaker}. None selects the router's models.
        """
        with ExitStack() as each:  # every breaker is told, whatever is raised
            for answer in failed:
                breaker = (self.states if states is None else states)[answer.model].breaker
                at_once = answer.failure is Meaning.ACCOUNT
                if answer.failure not in FAILURES or answered is None:
                    each.callback(breaker.released)
                elif answered:
                    each.callback(breaker.failed, answer.reason, answer.retry_after, at_once=at_once)
                else:
                    each.callback(
                        breaker.suspected,
                        answer.reason,
                        answer.retry_after,
                        caller=request.caller,
                        request=request.digest,
                        chose=request.chose,
                        at_once=at_once,
                    )

    def _remember(self, failed: list[Answer], answer: Answer, kind: RequestKind) -> None:
        """Remember the models that refused a request by a rule of their own, and the model that answered it.

        Nothing is remembered if the answer has a status of 400 or more.
        """
        if answer.status >= 400:
            return
        self.refusals.note_answer(answer.model, kind)
        for refusal in failed:
            if refusal.failure is Meaning.MODEL_REFUSES_FIELD:
                self.refusals.note_refusal(refusal.model, kind)

    def _failure(self, failed: list[Answer], request: ClientRequest, *, held: bool = False) -> Answer:
        """Return the answer for the client if no model answered.

        The answer is that of the last attempt whose failure is none of `REFUSALS`, or else of the last
        attempt. An error of this server takes its place if every model's content filter stopped the prompt
        (400), if no other provider can answer (503), or if the provider refused the router's account (502).

        Args:
            failed: answers of the attempts, at least one.
            held: True if no other provider stores the conversation that the request continues.
        """
        if all(answer.failure is Meaning.FILTERED for answer in failed):
            return self._as_own_error(
                failed[-1], request, 400, "every model's content filter stopped this prompt"
            )
        answer = next((each for each in reversed(failed) if each.failure not in REFUSALS), failed[-1])
        waits = [each.retry_after for each in failed if each.retry_after is not None]
        if waits:
            answer.headers["retry-after"] = str(max(round(min(waits)), 1))
        text = f"model {answer.model}: {answer.reason}"
        if held and answer.failure not in REFUSALS:
            state = request.chat.held[0]
            text = f"{state} is held by the upstream of {text}, so no other can answer; try again"
            return self._as_own_error(answer, request, 503, text)
        if answer.failure is Meaning.ACCOUNT:  # it is the router's account, not the client's
            return self._as_own_error(answer, request, 502, text)
        return answer

    @staticmethod
    def _as_own_error(answer: Answer, request: ClientRequest, status: int, text: str) -> Answer:
        """Write an error of this server into an answer, as its status and body, and return the answer."""
        if status == 400:
            kind = "invalid_request_error"
        else:
            kind = "upstream_error"
        answer.status = status
        answer.body = json.dumps(error_body(text, kind, request.dialect, status)).encode()
        answer.headers |= JSON
        return answer

    async def count_tokens(self, router: Router, request: ClientRequest, model: str | None) -> Answer:
        """Return an answer with the number of tokens of a request in the messages dialect.

        A model counts the tokens, and the call is not logged. If no model counts them, they are estimated.

        Args:
            model: the model that counts. None asks the router's models in turn, the fallback first.
        """
        fallback = router.manifest.fallback
        if model is None:
            names = sorted(request.models or router.arms, key=lambda arm: arm != fallback)
        else:
            names = [model]
        for name in names:
            state = self.states[name]
            if request.dialect in state.upstream.speaks and state.breaker.allows():
                if self.settings.echo:
                    counted = None
                else:
                    counted = await self._counted(state, request)
                if counted is not None:
                    return Answer(200, {**JSON, "x-cabs-model": ascii(name)[1:-1]}, counted)
        estimate = {"input_tokens": math.ceil(request.chat.tokens), "estimated": True}
        return Answer(200, {**JSON, "x-cabs-estimated": "true"}, json.dumps(estimate).encode())

    async def _counted(self, state: UpstreamState, request: ClientRequest) -> bytes | None:
        """Return the JSON in which an upstream counts the tokens of a request, or None if it does not."""
        upstream = state.upstream
        fields = upstream.body(top_fields(request.content), state.model)
        try:
            async with self.client.post(
                f"{upstream.url}{COUNT_TOKENS}",
                data=encoded(fields),
                headers={**JSON, **PACKED, **upstream.headers(request.dialect), **request.passed_headers},
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=min(upstream.timeout, PATIENCE)),
            ) as response:
                content = await read_whole(response, self.slots.answers, request.caller, request.resources)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
            return None
        if content is None or response.status != 200:
            data = None
        else:
            data = parse_body(content)
        is_count = isinstance(data, dict) and as_count(data.get("input_tokens")) is not None
        if is_count:
            return content
        return None
