"""One call: decide, forward, and decide again among the other models where an upstream fails."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import aiohttp

from cabs_core.router.router import Routed, Router
from cabs_core.router.server.upstreams import Upstreams
from cabs_core.router.sessions import read_conversation, route_conversation

#: statuses of an upstream after which another model is tried
RETRIED = frozenset({408, 409, 425, 429, *range(500, 600)})
#: request headers that are passed on
PASSED = ("openai-organization", "openai-beta", "user-agent")
#: bytes kept of the start and of the end of a stream, from which response id and usage are read
TAIL = 16_384
P = ParamSpec("P")
T = TypeVar("T")
logger = logging.getLogger("cabs.serve")


@dataclass
class Answer:
    """What goes back: status, headers, and a body or a stream of it; the routed decision, if there was one."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    stream: AsyncIterator[bytes] | None = None
    decision: Routed | None = None


class Forwarder:
    """Calls upstreams for a router, made within an event loop. Blocking work runs on one thread beside the loop."""

    def __init__(self, upstreams: Upstreams):
        self.upstreams = upstreams
        # no cookies: those that an upstream sets for one caller must not go to another
        self.client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=1000), cookie_jar=aiohttp.DummyCookieJar()
        )
        self.worker = ThreadPoolExecutor(1, thread_name_prefix="cabs-decide")
        self.down: dict[str, float] = {}
        self.errors = 0

    async def beside(self, call: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Run blocking work on the thread for it."""
        return await asyncio.get_running_loop().run_in_executor(
            self.worker, lambda: call(*arguments, **keywords)
        )

    async def close(self) -> None:
        """Close the connections, and finish the blocking work that waits."""
        await self.client.close()
        self.worker.shutdown(wait=True)

    def usable(self, router: Router, failed: set[str]) -> list[str]:
        """Models that have not failed for this request, without those cooling down unless all of them are."""
        now = time.monotonic()
        rest = [arm for arm in router.arms if arm not in failed]
        warm = [arm for arm in rest if self.down.get(arm, 0.0) <= now]
        return warm or rest

    async def routed(
        self, router: Router, body: dict[str, Any], *, rho: float | None, headers: dict[str, str], call_id: str | None,
        caller: str = "",
    ) -> Answer:  # fmt: skip
        """Answer a chat request by the model that the router chooses, or that its conversation has.

        Raises:
            RouterError, PolicyError: there is no decision for it.
        """
        conversation = read_conversation(body, headers, route_by=router.route_by, caller=caller)
        failed: set[str] = set()
        for _ in range(self.upstreams.attempts):
            usable = self.usable(router, failed)
            if not usable:
                break
            decision = await self.beside(
                route_conversation,
                router,
                conversation,
                available=usable,
                rho=rho,
                call_id=call_id,
                caller=caller,
            )
            answer = await self.call(decision.model, body, headers, router=router, decision=decision)
            if answer.status not in RETRIED:
                return answer
            failed.add(decision.model)
        return answer

    async def call(
        self, model: str, body: dict[str, Any], headers: dict[str, str], *, router: Router, decision: Routed | None = None
    ) -> Answer:  # fmt: skip
        """One attempt at one model."""
        upstream = self.upstreams.models[model]
        sent = {"content-type": "application/json", **{k: headers[k] for k in PASSED if k in headers}}
        if key := upstream.key():
            sent["authorization"] = f"Bearer {key}"
        begin = time.perf_counter()
        seconds = upstream.timeout
        try:
            response = await self.client.post(
                f"{upstream.url}/chat/completions", json={**body, "model": upstream.model or model}, headers=sent,
                allow_redirects=False, timeout=aiohttp.ClientTimeout(total=None, connect=seconds, sock_read=seconds),
            )  # fmt: skip
        except TimeoutError:
            return self._failed(router, decision, model, "timeout", 504, f"no answer within {seconds:g} s")
        except aiohttp.ClientError as error:
            return self._failed(
                router, decision, model, "error", 502, f"cannot be reached ({type(error).__name__})"
            )
        back = {"content-type": response.headers.get("content-type", "application/json")}
        if decision is not None:
            back |= {"x-cabs-decision": decision.id, "x-cabs-model": ascii(model)[1:-1]}
        if response.status in RETRIED:
            kept = await self._rest(response)
            self._failed(router, decision, model, "error", response.status, f"HTTP {response.status}")
            return Answer(response.status, back, kept, decision=decision)
        if body.get("stream") and response.status == 200:
            stream = self._stream(response, router, decision, model, begin)
            return Answer(200, back, stream=stream, decision=decision)
        try:
            async with response:
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            return self._failed(router, decision, model, "error", 502, f"broke off ({type(error).__name__})")
        status = "answered" if response.status < 400 else "rejected"
        self._finish(router, decision, model, status, _json(content), time.perf_counter() - begin)
        return Answer(response.status, back, content, decision=decision)

    async def _rest(self, response: aiohttp.ClientResponse) -> bytes:
        try:
            async with response:
                return await response.read()
        except (aiohttp.ClientError, TimeoutError):
            return b""

    async def _stream(
        self,
        response: aiohttp.ClientResponse,
        router: Router,
        decision: Routed | None,
        model: str,
        begin: float,
    ) -> AsyncIterator[bytes]:
        """The upstream's bytes as they come; the end is logged even where either side breaks off."""
        first, tail, status = b"", b"", "broken"
        try:
            async for chunk in response.content.iter_any():
                if len(first) < TAIL:
                    first += chunk
                tail = (tail + chunk)[-TAIL:]
                yield chunk
            status = "answered"
        except (aiohttp.ClientError, TimeoutError) as error:
            self.errors += 1
            status = "timeout" if isinstance(error, TimeoutError) else "error"
            text = f"{model} broke off: {type(error).__name__}"
            logger.warning("%s", text)
            yield b"data: " + json.dumps(error_body(text, "upstream_error")).encode() + b"\n\n"
        finally:
            response.close()
            facts = _events(first)[:1] + [e for e in _events(tail) if e.get("usage")][-1:]
            found = {k: v for event in facts for k, v in event.items() if k in ("id", "usage") and v}
            self._finish(router, decision, model, status, found, time.perf_counter() - begin)

    def _finish(
        self, router: Router, decision: Routed | None, model: str, status: str, answer: dict[str, Any],
        seconds: float | None = None,
    ) -> None:  # fmt: skip
        """Have the end of a call logged. The answer does not wait for it; what comes after it on the thread does."""
        if decision is None:
            return
        cost = self.upstreams.models[model].cost(answer.get("usage")) if status == "answered" else None
        name = answer.get("id")

        def log() -> None:
            try:
                router.finish(
                    decision.id, status=status, cost=cost, latency=seconds, response_id=name if isinstance(name, str) else None
                )  # fmt: skip
            except Exception:  # the log's disk is full, say: the answer has gone out
                logger.exception("the end of call %s to %s could not be logged", decision.id, model)

        self.worker.submit(log)

    def _failed(
        self, router: Router, decision: Routed | None, model: str, status: str, code: int, what: str
    ) -> Answer:
        self.errors += 1
        self.down[model] = time.monotonic() + self.upstreams.cooldown
        logger.warning("upstream %s failed: %s", model, what)
        self._finish(router, decision, model, status, {})
        body = json.dumps(error_body(f"model {model}: {what}", "upstream_error")).encode()
        headers = {"content-type": "application/json"}
        if decision is not None:
            headers |= {"x-cabs-decision": decision.id, "x-cabs-model": ascii(model)[1:-1]}
        return Answer(code, headers, body, decision=decision)


def error_body(message: str, kind: str) -> dict[str, Any]:
    """An error as the OpenAI interface words it."""
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def _json(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _events(data: bytes) -> list[dict[str, Any]]:
    """JSON objects of the whole `data:` lines in some bytes of a stream."""
    lines = [line[5:].strip() for line in data.split(b"\n") if line.startswith(b"data:")]
    return [found for line in lines if (found := _json(line))]
