"""The callback that routes inside LiteLLM.

Parameters have LiteLLM's names, since LiteLLM passes them by keyword.
"""

import asyncio
import atexit
import json
import logging
import math
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import litellm
from litellm.integrations.custom_logger import CustomLogger

from cabs_core.base.errors import CabsError, HeldElsewhere, RouterError, UnknownDecision
from cabs_core.base.paths import default_log
from cabs_core.data.endpoints.person_text import TEXT_FIELD
from cabs_core.data.endpoints.request import ChatRequest, session_key
from cabs_core.data.endpoints.usage import Tokens, reported_output, tokens_of
from cabs_core.router.charges import check_client_cost
from cabs_core.router.encoder import TextEncoder
from cabs_core.router.logged import NAMES
from cabs_core.router.options import RouterOptions
from cabs_core.router.router import Router
from cabs_core.router.sessions import models_at_holder, route_conversation
from cabs_core.router.terms import MODELS, SCORE, WANTED, WHY, Terms
from cabs_server.keeper import Keeper

logger = logging.getLogger("cabs.litellm")
_MARK = "cabs"
_QUIET = 60.0
#: {owner of a decision: attribute of the key that LiteLLM's proxy has accepted}
OWNERS = {"key": "api_key", "team": "team_id", "user": "user_id"}


class Attempt(NamedTuple):
    """One attempt of a call.

    Attributes:
        decision: id of the router's decision. model: model that was drawn.
        why: `Routed.why` as JSON. marked: True if a score of the answer is wanted.
    """

    decision: str
    model: str
    why: str
    marked: bool


class CabsLogger(CustomLogger):
    """A callback of LiteLLM that chooses the deployment of every call in a model group and logs its end.

    A logger on a folder loads a router that is promoted there and learns what other processes log. One
    process writes checkpoints (`cabs_server.keeper`).

    Args:
        router: folder of the bundle, or an open `Router`.
        free: models whose calls cost nothing.
        owner: owner of decisions on the proxy: `key` (the hash of the key that asked), `team` or `user`
            of that key. A key without team or user owns its decisions itself. Owners have their own sessions
            and score their own decisions; administrators score all.
        **options: arguments of `Router.load`. Without `log` the log beside the bundle is used.

    Attributes:
        errors: number of errors of this logger so far.
        attempts: {(owner, id of a call): attempts} of recent calls.
        places: {model: provider, address and key of its deployment}.
    """

    def __init__(
        self, router: str | Path | Router, *, free: tuple[str, ...] = (), owner: str = "key", **options: Any
    ):
        super().__init__()
        if owner not in OWNERS:
            raise RouterError(f"owner {owner!r:.40}: expected one of {', '.join(OWNERS)}")
        self.owner = owner
        self._keeper: Keeper | None = None
        if isinstance(router, Router):
            self.router = router
        else:
            place = options.pop("log", None) or default_log(router)
            router_options = RouterOptions(**options)

            def make(encoder: TextEncoder | None = None, log: Any = place) -> Router:
                fresh = Router.load(router, router_options, log=log, encoder=encoder)
                fresh.warm_up()  # the first call does not wait for libraries and compiled code
                return fresh

            self._keeper = Keeper(router, make)
            self._keeper.start()
            atexit.register(self._keeper.stop)
        free_arms = {arm["name"] for arm in self.router.manifest.arms if arm.get("free")}
        self.free = free_arms | set(free)
        self.errors = 0
        #: a client may choose the id of a call, so the owner is a part of the key
        self.attempts: dict[tuple[str | None, str], list[Attempt]] = {}
        self.places: dict[str, tuple[Any, ...]] = {}
        self._last_report = -_QUIET

    @property
    def router(self) -> Router:
        """The router that decides now."""
        if self._keeper is None:
            return self._router
        return self._keeper.router

    @router.setter
    def router(self, router: Router) -> None:
        """Use an open router from now on, and stop following the folder."""
        if self._keeper is not None:
            atexit.unregister(self._keeper.stop)
            self._keeper.stop()
            self._keeper = None
        self._router = router

    async def async_filter_deployments(
        self,
        model: str,
        healthy_deployments: list[dict[str, Any]],
        messages: list[Any] | None,
        request_kwargs: dict[str, Any] | None = None,
        parent_otel_span: Any = None,
    ) -> list[dict[str, Any]]:
        """Return the one deployment that the router chooses.

        Return all deployments if none is a model of the router. If the router fails, return the deployments
        that the request allows.

        The id of the decision is written into the metadata of the call.

        Raises:
            ServiceUnavailableError: LiteLLM's 503. No deployment is one that the request allows, or none
                stores the conversation that the request continues.
            BadRequestError: LiteLLM's 400. The request's terms do not fit the router, or the text that the
                caller gives to route by is unreadable.
        """
        allowed = healthy_deployments
        try:
            named = {_arm(d): d for d in healthy_deployments}
            by_arm = {arm: d for arm, d in named.items() if arm is not None and arm in self.router.arms}
            if not by_arm:
                return healthy_deployments
            if isinstance(request_kwargs, dict):
                keywords = request_kwargs
            else:
                keywords = {}
            terms = self._terms(keywords, model)
            if terms.models is not None:
                by_arm = {arm: by_arm[arm] for arm in terms.models if arm in by_arm}
                allowed = list(by_arm.values())
            if not by_arm:
                text = f"none of the models that {MODELS} allows can be called now"
                raise litellm.ServiceUnavailableError(text, llm_provider="cabs", model=model)
            call, caller = keywords.get("litellm_call_id"), self.caller_in(keywords)
            self.places |= {arm: _place(deployment) for arm, deployment in by_arm.items()}
            turn = self._conversation(messages, keywords, caller, model)
            turn, at_place = await asyncio.to_thread(
                models_at_holder, self.router, turn, list(by_arm), self.places, caller
            )
            by_arm = {arm: by_arm[arm] for arm in at_place or by_arm}
            by_arm = await self._left(by_arm, caller, call)
            facts: dict[str, Any] = {"rho": terms.rho, "call_id": call, "caller": caller}
            routed = await asyncio.to_thread(
                route_conversation, self.router, turn, available=list(by_arm), **facts
            )
            why = await asyncio.to_thread(lambda: json.dumps(routed.why))
            if "litellm_metadata" in keywords:
                key = "litellm_metadata"
            else:
                key = "metadata"
            # a copy: the caller's own dict may serve several calls
            keywords[key] = {**(keywords.get(key) or {}), _MARK: routed.id}
            for name in ("litellm_metadata", "metadata"):
                about = keywords.get(name)
                if isinstance(about, dict) and TEXT_FIELD in about:
                    keywords[name] = {field: value for field, value in about.items() if field != TEXT_FIELD}
            if call:
                self._remember(caller, call, Attempt(routed.id, routed.model, why, bool(routed.marked)))
            return [by_arm[routed.model]]
        except (litellm.BadRequestError, litellm.ServiceUnavailableError):
            raise
        except HeldElsewhere as error:  # any other deployment would answer with an error of its own
            raise litellm.ServiceUnavailableError(str(error), llm_provider="cabs", model=model) from None
        except Exception as error:  # routing must never stop a call
            self._failed("a deployment was not chosen", error)
            return allowed

    def _terms(self, keywords: dict[str, Any], model: str) -> Terms:
        """Return the terms of a call: the models that may answer it, and its rho.

        The terms stand in headers of the proxy's client (`x-cabs-models`, and `x-cabs-value` for 1 / rho), or
        in the call's metadata under the same names. A header counts before metadata.

        Raises:
            BadRequestError: LiteLLM's 400, if the terms do not fit the router.
        """
        about, headers = _call_facts(keywords)
        try:
            return Terms.read({**about, **headers}, self.router)
        except RouterError as error:
            raise litellm.BadRequestError(str(error), model=model, llm_provider="cabs") from None

    def _conversation(
        self, messages: Any, keywords: dict[str, Any], caller: str | None, model: str
    ) -> ChatRequest:
        """Return the request of a call: text, conversation and size.

        Raises:
            BadRequestError: LiteLLM's 400, if the text that the caller gives to route by is unreadable.
        """
        about, headers = _call_facts(keywords)
        body = {**keywords, "metadata": about} | ({"messages": messages} if messages else {})
        options = self.router.options
        try:
            return ChatRequest.read(
                body,
                headers,
                route_by=options.route_by,
                caller=caller or "",
                rules=options.text_rules,
            )
        except RouterError as error:
            raise litellm.BadRequestError(str(error), model=model, llm_provider="cabs") from None

    async def async_log_success_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: datetime, end_time: datetime
    ) -> None:
        """Log the cost and the duration of an answered call."""
        await self._finish(kwargs, response_obj, start_time, end_time, "answered")

    async def async_log_failure_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: datetime, end_time: datetime
    ) -> None:
        """Log an attempt that failed."""
        await self._finish(kwargs, response_obj, start_time, end_time, "error")

    async def async_post_call_response_headers_hook(
        self, data: dict[str, Any], user_api_key_dict: Any, response: Any, *args: Any, **kwargs: Any
    ) -> dict[str, str] | None:
        """Return headers by which clients of the proxy score an answer and learn why its model was chosen."""
        last = self._last(self.caller_of(user_api_key_dict), data.get("litellm_call_id"))
        if last is not None:
            wanted = {SCORE: WANTED} if last.marked else {}
            return {"x-cabs-decision": last.decision, WHY: last.why, **wanted}
        name = _decision(data)
        if name:
            return {"x-cabs-decision": name}
        return None

    async def async_post_call_failure_hook(
        self,
        request_data: dict[str, Any],
        original_exception: Exception,
        user_api_key_dict: Any,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Close the attempts of a call that the proxy has given up."""
        try:
            caller = self.caller_of(user_api_key_dict)
            for attempt in self.attempts.get((caller, request_data.get("litellm_call_id") or ""), []):
                await self._close(attempt.decision, _failure_reason(original_exception))
        except Exception as error:  # logging must never stop a call
            self._failed("the end of a call was not logged", error)

    def caller_of(self, key: Any) -> str | None:
        """Return the owner of a key's calls: `key:HASH`, `team:ID` or `user:ID`.

        Return None if no proxy has accepted a key.

        Args:
            key: LiteLLM's `UserAPIKeyAuth`. JSON from clients has none of the attributes of this class.
        """
        for owner in (self.owner, "key"):
            name = getattr(key, OWNERS[owner], None)
            if isinstance(name, str) and name:
                return f"{owner}:{name}"
        return None

    def caller_in(self, keywords: dict[str, Any]) -> str | None:
        """Return the owner (`caller_of`) by the key that the proxy keeps in a call's metadata."""
        metadata = [keywords.get(name) for name in ("litellm_metadata", "metadata")]
        keys = [about.get("user_api_key_auth") for about in metadata if isinstance(about, dict)]
        owners = (self.caller_of(key) for key in keys)
        return next((owner for owner in owners if owner is not None), None)

    async def _left(
        self, by_arm: dict[str, dict[str, Any]], caller: str | None, call: str | None
    ) -> dict[str, dict[str, Any]]:
        """Return the deployments that have not failed in this call, or all if each has.

        Earlier attempts of the call that have not ended are marked as failed. The proxy retries under the
        same id, offers the deployment that has just failed again, and reports the failure of one attempt
        only. In LiteLLM's Router a retry has no id, but the Router keeps a failed deployment out for a while.

        Args:
            by_arm: {model: deployment}. caller: owner of the call. call: id of the call.
        """
        tried_arms = set()
        for attempt in self.attempts.get((caller, call or ""), []):
            if await self._close(attempt.decision, "LiteLLM asked another model and named no error"):
                tried_arms.add(attempt.model)
        return {arm: d for arm, d in by_arm.items() if arm not in tried_arms} or by_arm

    async def _close(self, name: str, reason: str) -> bool:
        """Mark an attempt as failed unless it has ended. Return True if the attempt was not answered.

        Args:
            name: id of the attempt's decision. An unknown id gives False.
            reason: why the attempt failed, in words.
        """
        logged = await asyncio.to_thread(self.router.log.decision, id=name)
        if logged is not None and logged.status == "decided":
            await asyncio.to_thread(self.router.finish, name, status="error", reason=reason)
        return logged is not None and logged.status != "answered"

    async def _finish(
        self, kwargs: dict[str, Any], response: Any, start: datetime, end: datetime, status: str
    ) -> None:
        """Write the end of a call to the router's log: status, duration and, if answered, cost and tokens.

        A cost of 0 counts as unknown unless the model is free. Calls without a decision of this router are
        ignored. An error is counted and reported, but not raised.
        """
        try:
            about = kwargs.get("litellm_params") or {}
            caller = self.caller_in(about)
            last = self._last(caller, kwargs.get("litellm_call_id"))
            name = _decision(about) or (None if last is None else last.decision)
            if name is None:
                return
            logged = self.router.log.decision(id=name, caller=caller)
            if logged is None:  # another router's, or another caller's that this one has named
                return
            if status == "answered":
                cost, tokens = _bill(kwargs, response)
            else:
                cost, tokens = (None, None)
            # LiteLLM says 0.0 for a model whose price it does not know
            if cost is not None and (cost < 0 or (cost == 0 and logged.arm not in self.free)):
                cost = None
            await asyncio.to_thread(
                self.router.finish,
                name,
                status=status,
                reason=None if status == "answered" else _failure_reason(kwargs.get("exception")),
                cost=cost,
                latency=max((end - start).total_seconds(), 0.0),
                response_id=getattr(response, "id", None),
                tokens_in=None if tokens is None else tokens.input,
                tokens_out=None if tokens is None else tokens.output,
            )
        except Exception as error:  # logging must never stop a call
            self._failed("the end of a call was not logged", error)

    def _remember(self, caller: str | None, call: str, attempt: Attempt) -> None:
        """Add an attempt to its call, and forget the oldest calls above 10,000."""
        self.attempts.setdefault((caller, call), []).append(attempt)
        while len(self.attempts) > 10_000:
            self.attempts.pop(next(iter(self.attempts)))

    def _last(self, caller: str | None, call: str | None) -> Attempt | None:
        """Return the last attempt of a call, or None."""
        attempts = self.attempts.get((caller, call or ""))
        if attempts:
            return attempts[-1]
        return None

    def _failed(self, what: str, error: Exception) -> None:
        """Count an error of this logger, and report it at most once in `_QUIET` seconds."""
        self.errors += 1
        now = time.monotonic()
        if now - self._last_report >= _QUIET:
            self._last_report = now
            logger.warning("%s (%d errors so far): %s: %s", what, self.errors, type(error).__name__, error)

    async def check(self, router: Any, group: str) -> None:
        """Check at start that deployments fit the router, have prices, and report the end of a mocked call.

        Args:
            router: LiteLLM's `Router`. group: name of the model group.

        Raises:
            RouterError: deployments and models of the router differ, LiteLLM knows neither price (per input
                and per output token) of a model that is not free, `litellm.callbacks` does not hold this
                logger, or no event came in ten seconds.
        """
        deployments = [d for d in router.model_list if d["model_name"] == group]
        names = [_arm(d) for d in deployments]
        deployed_only = {str(name) for name in names if name not in self.router.arms}
        unknown = sorted(deployed_only | (set(self.router.arms) - set(names)))
        if unknown:
            raise RouterError(
                f"model group {group!r}: {unknown[0]!r} is a deployment or a model of the router, but not "
                f"both; the router knows {', '.join(self.router.arms)}: set model_info.id of every "
                "deployment to one of them"
            )
        for deployment in deployments:
            info = router.get_router_model_info(deployment=deployment, received_model_name=group)
            prices = [info.get("input_cost_per_token"), info.get("output_cost_per_token")]
            if not any(prices) and _arm(deployment) not in self.free:
                raise RouterError(
                    f"LiteLLM knows no price of {_arm(deployment)!r} and would count 0 USD: set "
                    "input_cost_per_token and output_cost_per_token in its litellm_params, or name it in free"
                )
        if self not in litellm.callbacks:
            raise RouterError("litellm.callbacks does not hold this logger: append it first")
        before = self.errors
        answer = await router.acompletion(
            model=group,
            messages=[{"role": "user", "content": "self-test of the router"}],
            mock_response="fine",
        )
        for _ in range(100):
            decision = self.router.log.decision(response_id=answer.id)
            if decision is not None and decision.status == "answered":
                return
            await asyncio.sleep(0.1)
        raise RouterError(
            f"a mocked call through model group {group!r} left no event ({self.errors - before} errors): the "
            "version of LiteLLM may call its callbacks otherwise; 1.106.2 and 1.108.7 are known to work"
        )

    def add_feedback_endpoint(self) -> None:
        """Add the endpoint POST /cabs/feedback {id, response_id, call_id or session; score} to the proxy.

        The endpoint asks for a key of the proxy. `call_id` is the value of the proxy's header
        `x-litellm-call-id`.
        """
        from fastapi import Depends  # noqa: PLC0415  (of LiteLLM's proxy)
        from fastapi import Request as HttpRequest  # noqa: PLC0415  (of LiteLLM's proxy)
        from fastapi.responses import JSONResponse  # noqa: PLC0415  (of LiteLLM's proxy)
        from litellm.proxy.proxy_server import app, user_api_key_auth  # noqa: PLC0415  (of LiteLLM's proxy)

        async def feedback(request: HttpRequest, key: Any) -> JSONResponse:
            try:
                body = await request.json()
                result = await asyncio.to_thread(self.score, body, key)
                return JSONResponse(self.router.about_feedback(result), 409 if result == "conflict" else 200)
            except (CabsError, KeyError, TypeError, ValueError, AttributeError) as error:
                if isinstance(error, UnknownDecision):
                    status = 404
                else:
                    status = 400
                return JSONResponse({"error": {"message": str(error)}}, status)

        feedback.__annotations__ |= {
            "request": HttpRequest,
            "key": Annotated[Any, Depends(user_api_key_auth)],
        }
        app.post("/cabs/feedback")(feedback)

    def score(self, body: dict[str, Any], key: Any) -> str:
        """Record the score of a decision that the key owns. Administrators of the proxy may score any.

        The name of a session means a session of the key's own, also for administrators.

        Args:
            body: one of `id`, `response_id`, `call_id` and `session`, which names the decision, with `score`
                in [0, 1], and optionally `cost` in USD.
            key: LiteLLM's `UserAPIKeyAuth`.

        Returns:
            'recorded', 'duplicate' or 'conflict', as of `Router.feedback`.

        Raises:
            UnknownDecision: the key owns no such decision. RouterError: not exactly one name is given, the
                decision has as many scores as one may have, the score is missing, or score or cost is out of
                range.
        """
        caller, cost = self.caller_of(key), body.get("cost")
        if getattr(key, "user_role", None) == "proxy_admin":
            owner = None
        else:
            owner = caller or ""
        names = {k: str(body[k]) for k in NAMES if body.get(k) is not None}
        if "session" in names:
            names["session"] = session_key(names["session"], caller or "")
        logged = self.router.named(caller=owner, **names)
        if cost is not None:
            check_client_cost(cost, logged.cost, logged.expected_cost)
        return self.router.feedback_by(
            **names, caller=owner, score=body.get("score", math.nan), cost=cost, source=caller or "proxy"
        )


def _failure_reason(error: Any) -> str:
    """Return the kind of LiteLLM's error with its HTTP status.

    The text of the error stays out of the log, since a provider may quote the key or the prompt in it.
    """
    if not isinstance(error, BaseException):
        return "LiteLLM named no error"
    status = getattr(error, "status_code", None)
    if status is None:
        return type(error).__name__
    return f"{type(error).__name__} (HTTP {status})"


def _arm(deployment: dict[str, Any]) -> str | None:
    """Return the name of the model that a deployment gives in `model_info.id`, or None."""
    return (deployment.get("model_info") or {}).get("id")


def _place(deployment: dict[str, Any]) -> tuple[Any, ...]:
    """Return (provider, address, key). Deployments of one place store each other's conversations."""
    about = deployment.get("litellm_params") or {}
    provider = about.get("custom_llm_provider") or str(about.get("model")).partition("/")[0]
    return provider, about.get("api_base"), about.get("api_key")


def _call_facts(keywords: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (metadata of a call, headers of the proxy's client)."""
    request = keywords.get("proxy_server_request")
    if isinstance(request, dict):
        headers = request.get("headers")
    else:
        headers = None
    about = {**(keywords.get("litellm_metadata") or {}), **(keywords.get("metadata") or {})}
    return about, headers if isinstance(headers, dict) else {}


def _bill(kwargs: dict[str, Any], response: Any) -> tuple[float | None, Tokens | None]:
    """Return (USD or None, counts or None) of a call.

    The provider's own cost comes first, then LiteLLM's. LiteLLM prices the completion, in which some
    providers do not count reasoning, so the price of the missing tokens is added.
    """
    usage: Any = getattr(response, "usage", None)
    reported: Any
    if hasattr(usage, "model_dump"):
        reported = usage.model_dump()
    else:
        reported = usage
    tokens = tokens_of(reported)
    cost = kwargs.get("response_cost")
    if tokens is None or tokens.usd is not None:
        return cost if tokens is None else tokens.usd, tokens
    written = reported_output(reported) or 0.0
    if cost is not None and tokens.output > written:
        about = kwargs.get("litellm_params") or {}
        price = about.get("output_cost_per_token")
        if price is None:
            try:
                price = litellm.get_model_info(str(kwargs.get("model"))).get("output_cost_per_token")
            except Exception:  # it knows no such model, and says so by a bare Exception
                price = None
        cost += (tokens.output - written) * (price or 0.0)
    return cost, tokens


def _decision(holder: dict[str, Any]) -> str | None:
    """Return the id of the decision that this logger wrote into the metadata of a call, or None."""
    for key in ("litellm_metadata", "metadata"):
        metadata = holder.get(key)
        if isinstance(metadata, dict):
            name = metadata.get(_MARK)
        else:
            name = None
        if isinstance(name, str):
            return name
    return None
