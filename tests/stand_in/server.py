"""The provider's endpoints, the troubles that words ask for, and what it charged."""

import asyncio
import itertools
import json
import math
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.stand_in.dialects import answer, contents_of, stream, text_of
from tests.stand_in.models import answer_of, base_model

#: word -> status that it answers
STATUSES = {
    "broken": 500,
    "limited": 429,
    "revoked": 401,
    "unpaid": 402,
    "forbidden": 403,
    "unknown": 404,
    "toolarge": 413,
    "toolong": 400,
    "refuses": 400,
    "redirects": 302,
    "empty": 204,
    "overloaded": 529,
}
#: word -> code and message of its error, where they are not the word
ERRORS = {
    "toolong": ("context_length_exceeded", "maximum context length is 8192 tokens"),
    "unknown": ("model_not_found", "The model {model} does not exist"),
}
#: word -> usage that it charges and reports
USAGES: dict[str, dict[str, Any]] = {
    "cached": {
        "prompt_tokens": 10_000,
        "completion_tokens": 100,
        "prompt_tokens_details": {"cached_tokens": 9_000},
    },
    "beside": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 1_015},
    "thinks": {
        "prompt_tokens": 10,
        "completion_tokens": 50,
        "completion_tokens_details": {"reasoning_tokens": 45},
    },
}
#: word -> usage that it reports and does not charge
MISREPORTS: dict[str, Any] = {
    "negative": {"prompt_tokens": -10, "completion_tokens": 5},
    "nan": {"prompt_tokens": math.nan, "completion_tokens": 5},
    "digits": {"prompt_tokens": int("9" * 400), "completion_tokens": 5},
    "uncounted": None,
}
#: word -> whether a request is one of those at which the other words hold, by its number for the model
TIMES: dict[str, Callable[[int], bool]] = {
    "flaps": lambda number: number % 2 == 1,
    "often": lambda number: number % 20 == 0,
}
WORDS = {
    "slow": "waits a second",
    "hangs": "never answers",
    "html": "HTML with 200",
    "cut": "half an answer with 200",
    "wrong": "an error object with 200",
    "breaks": "breaks off a stream",
    "early": "ends a stream without its end",
    "errors": "an error as the first event",
    "falls": "an error after the first piece",
    "together": "an error with the first piece",
    "drips": "waits between the pieces of a stream",
    "endless": "a stream goes on for ever",
    "comments": "comments for a second, then a stream",
    "forgets": "knows no earlier response",
    "calls": "calls the first tool",
    "vanishes": "HTTP 404 after fifty requests",
    "soon": "limited for .05 s, not for 7",
    "flaps": "the other words hold at every other request; alone: HTTP 500",
    "often": "they hold at every twentieth request",
    **{word: f"HTTP {status}" for word, status in STATUSES.items()},
    **dict.fromkeys(USAGES, "special usage"),
    **dict.fromkeys(MISREPORTS, "odd usage"),
}
USUAL = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
#: what comes of a body that is not what an endpoint takes
_UNREADABLE = (AttributeError, KeyError, TypeError, ValueError)
_WRONG = b'data: {"error": {"message": "overloaded", "type": "server_error"}}\n\n'


@dataclass
class Account:
    """What came for a model: requests, calls charged, those of them whose prompt it had been charged for
    before, tokens in and out that were charged."""

    requests: int = 0
    charged: int = 0
    again: int = 0
    input: int = 0
    output: int = 0


class StandIn:
    """A provider of its own counts, with `app` to serve; `delay`: seconds that every answer takes."""

    def __init__(self, delay: float = 0.0):
        self.delay = delay
        self.bill: defaultdict[str, Account] = defaultdict(Account)
        self._numbers = itertools.count(1)
        self._behaves: dict[str, str] = {}
        self._seen: dict[str, dict[str, Any]] = {}
        self._charged: set[tuple[str, int]] = set()
        #: id of a response -> the key it was made for: providers know their own
        self._key_of: dict[str, str] = {}
        dialects = {"chat/completions": "chat", **{d: d for d in ("completions", "responses", "messages")}}
        calls = [
            Route(f"/v1/{path}", self._endpoint(dialect), methods=["POST"])
            for path, dialect in dialects.items()
        ]
        self.app = Starlette(
            routes=[
                *calls,
                Route("/v1/messages/count_tokens", self._count_tokens, methods=["POST"]),
                Route("/v1/embeddings", self._embeddings, methods=["POST"]),
                Route("/behave", self._behave, methods=["POST"]),
                Route("/bill", self._bill),
                Route("/seen", self._last),
            ],
            exception_handlers=dict.fromkeys(_UNREADABLE, _refused),
        )

    def _words(self, model: str) -> set[str]:
        """Words that hold at the last request of a model."""
        words = _parts(self._behaves.get(model, model)) & WORDS.keys()
        number = self.bill[model].requests
        if "vanishes" in words and number > 50:
            words.add("unknown")
        times = words & TIMES.keys()
        if not times:
            return words
        return (words - times or {"broken"}) if any(TIMES[word](number) for word in times) else set()

    def _endpoint(self, dialect: str) -> Callable[[Request], Any]:
        async def complete(request: Request) -> Response:
            try:
                body = await request.json()
            except ClientDisconnect:  # a server that was killed while it sent
                return Response(status_code=400)
            return await self._complete(dialect, body, request)

        return complete

    async def _complete(self, dialect: str, body: dict[str, Any], request: Request) -> Response:
        model, name = str(body.get("model")), f"chatcmpl-{next(self._numbers)}"
        self.bill[model].requests += 1
        self._seen[model] = {"headers": dict(request.headers), "body": body}
        words = self._words(model)
        await asyncio.sleep(3600.0 if "hangs" in words else self.delay + ("slow" in words))
        key, before = request.headers.get("authorization", ""), body.get("previous_response_id")
        if before is not None and (self._key_of.get(before) != key or "forgets" in words):
            return _lost(before)
        if failure := _failure(model, words):
            return failure
        contents = contents_of(body, dialect)
        prompt = text_of(contents[-1])
        if base_model(model):
            text = answer_of(model, prompt)
            into, out = sum(len(text_of(content)) for content in contents) // 4 + 4, len(text) // 4 + 1
            usage = {"prompt_tokens": into, "completion_tokens": out, "total_tokens": into + out}
        else:
            text, usage = f"{model}: {prompt}", USUAL
        if dialect == "responses":
            self._key_of[name] = key
        usage = next((USAGES[word] for word in USAGES if word in words), usage)
        reported = next((MISREPORTS[word] for word in MISREPORTS if word in words), usage)
        headers = {"x-request-id": f"up-{name}", "x-ratelimit-remaining-requests": "99"}
        if body.get("stream"):
            with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
            if "errors" not in words:
                self._charge(model, prompt, usage)
            pieces = stream(dialect, name, model, text, reported, with_usage)
            return StreamingResponse(_chunks(pieces, words), media_type="text/event-stream", headers=headers)
        self._charge(model, prompt, usage)
        whole = answer(dialect, name, model, text, reported)
        if "calls" in words and dialect == "chat" and body.get("tools"):
            _call_tool(whole, body)
        content = json.dumps(whole).encode()
        content = content[: len(content) // 2] if "cut" in words else content
        return Response(content, media_type="application/json", headers=headers)

    def _charge(self, model: str, prompt: str, usage: dict[str, Any]) -> None:
        account, question = self.bill[model], (model, hash(prompt))
        account.charged += 1
        account.again += question in self._charged
        self._charged.add(question)
        into, out = usage["prompt_tokens"], usage["completion_tokens"]
        account.input += into
        account.output += max(out, usage.get("total_tokens", 0) - into)

    async def _count_tokens(self, request: Request) -> Response:
        """POST /v1/messages/count_tokens"""
        model = str((await request.json()).get("model"))
        if "unknown" in self._words(model):
            return JSONResponse({"error": {"message": "no such endpoint"}}, 404)
        return JSONResponse({"input_tokens": 11})

    async def _embeddings(self, request: Request) -> Response:
        """POST /v1/embeddings"""
        body = await request.json()
        texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
        data = [{"object": "embedding", "index": i, "embedding": [0.0, 1.0]} for i in range(len(texts))]
        usage = {"prompt_tokens": 10, "total_tokens": 10}
        return JSONResponse({"object": "list", "model": body["model"], "data": data, "usage": usage})

    async def _behave(self, request: Request) -> Response:
        """POST /behave"""
        changes: dict[str, str] = await request.json()
        strange = _parts(" ".join(changes.values())) - WORDS.keys()
        if strange:
            return JSONResponse({"error": f"unknown: {sorted(strange)}; expected {sorted(WORDS)}"}, 400)
        self._behaves |= changes
        return JSONResponse(self._behaves)

    async def _bill(self, _: Request) -> Response:
        """GET /bill"""
        return JSONResponse({model: asdict(account) for model, account in self.bill.items()})

    async def _last(self, _: Request) -> Response:
        """GET /seen"""
        return JSONResponse(self._seen)


async def _refused(_: Request, error: Exception) -> Response:
    """The error for a body that cannot be read, as providers have it."""
    message = f"the request cannot be read: {type(error).__name__}: {error}"
    return JSONResponse({"error": {"message": message, "type": "invalid_request_error"}}, 400)


def _parts(text: str) -> set[str]:
    return set(re.findall("[a-z]+", text))


def _lost(response: str) -> Response:
    """The error for an earlier response that is not known."""
    error = {"message": f"Previous response with id '{response}' not found.", "type": "invalid_request_error"}
    place = {"code": "previous_response_not_found", "param": "previous_response_id"}
    return JSONResponse({"error": error | place}, 400)


def _failure(model: str, words: set[str]) -> Response | None:
    """What is answered in place of an answer, if words ask for it."""
    word = next((word for word in STATUSES if word in words), "")
    if word == "empty":
        return Response(status_code=204)
    if word:
        retry = {"retry-after": "0.05" if "soon" in words else "7"}
        headers = {"limited": retry, "redirects": {"location": "/elsewhere"}}.get(word)
        code, message = ERRORS.get(word, (word, f"{model} is {word}"))
        error = {"message": message.format(model=model), "type": "server_error", "code": code}
        return JSONResponse({"error": error}, STATUSES[word], headers=headers)
    if "html" in words:
        return Response("<html>Bad gateway</html>", media_type="text/html")
    if "wrong" in words:
        return JSONResponse({"error": {"message": "the provider behind is overloaded", "code": 529}})
    return None


def _call_tool(whole: dict[str, Any], body: dict[str, Any]) -> None:
    """Have a chat answer call the first tool, unless it is the answer to a tool's result."""
    if body["messages"][-1]["role"] == "tool":
        return
    function = {"name": body["tools"][0]["function"]["name"], "arguments": "{}"}
    call = {"id": f"call_{whole['id']}", "type": "function", "function": function}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    whole["choices"][0] |= {"message": message, "finish_reason": "tool_calls"}


async def _chunks(pieces: list[bytes], words: set[str]) -> AsyncIterator[bytes]:
    """Pieces of a stream as words have them come."""
    for _ in range(10 if "comments" in words else 0):
        yield b": PROCESSING\n\n"
        await asyncio.sleep(0.1)
    if "errors" in words:
        yield _WRONG
        return
    for i, piece in enumerate(pieces):
        if "early" in words and i >= 2:
            return
        if "together" in words:
            yield piece + _WRONG
            return
        yield piece
        if "drips" in words:
            await asyncio.sleep(0.1)
        while "endless" in words and i == 1:
            await asyncio.sleep(0.1)
            yield piece
        if "falls" in words:
            yield _WRONG
            return
        if "breaks" in words:
            raise ConnectionResetError("the stand-in breaks off")
