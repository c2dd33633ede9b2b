"""A stand-in upstream that behaves as providers do, for tests and for trying the server.

    python -m cabs_server.echo --port 9000

It repeats the prompt in the four dialects of `dialects`, and reports token counts in streams only when asked
for them. Words in the name of a model ask for trouble (`WORDS`); `POST /behave {"model": "words"}` changes a
model's while it runs, `GET /bill` says what it has charged: {model: [calls, tokens in, tokens out]}, and
`GET /seen` what the last call of each model brought: {model: {headers, body}}.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

#: word -> status that it answers
STATUSES = {
    "broken": 500,
    "limited": 429,
    "revoked": 401,
    "unpaid": 402,
    "forbidden": 403,
    "unknown": 404,
    "large": 413,
    "toolong": 400,
    "refuses": 400,
    "redirects": 302,
    "empty": 204,
    "overloaded": 529,
}
#: word -> usage that it reports
USAGES: dict[str, Any] = {
    "negative": {"prompt_tokens": -10, "completion_tokens": 5},
    "nan": {"prompt_tokens": math.nan, "completion_tokens": 5},
    "digits": {"prompt_tokens": int("9" * 400), "completion_tokens": 5},
    "uncounted": None,
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
    "flaps": "500 every other call",
    "often": "500 at every twentieth call",
    "drips": "waits between the pieces of a stream",
    "endless": "a stream goes on for ever",
    "seldom": "500 at 2 of 100 calls",
    "comments": "comments for a second, then a stream",
    "forgets": "knows no earlier response",
    "calls": "calls the first tool",
    **{w: f"HTTP {s}" for w, s in STATUSES.items()},
    **dict.fromkeys(USAGES, "odd or special usage"),
}
_MESSAGES = {"toolong": ("context_length_exceeded", "maximum context length is 8192 tokens")}
_NUMBERS, _CALLS = itertools.count(1), itertools.count(1)
_BEHAVES: dict[str, str] = {}
#: id of a response -> the key it was made for: providers know their own
_MADE: dict[str, str] = {}
_BILL: dict[str, list[int]] = {}
_SEEN: dict[str, dict[str, Any]] = {}
USUAL = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


def _prompt_of(body: dict[str, Any], dialect: str) -> str:
    if dialect == "completions":
        return str(body.get("prompt"))
    given = body.get("input" if dialect == "responses" else "messages")
    if isinstance(given, list):
        given = given[-1]["content"] if given else ""
    return given if isinstance(given, str) else json.dumps(given)


def _answer(dialect: str, name: str, model: str, text: str, usage: Any) -> dict[str, Any]:
    counts = (
        None
        if usage is None
        else {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]}
    )
    details = {} if usage is None else usage.get("prompt_tokens_details", {})
    if dialect == "messages":
        if counts is not None and details:
            counts["cache_read_input_tokens"] = details["cached_tokens"]
            counts["input_tokens"] -= details["cached_tokens"]
        if counts is not None and "total_tokens" in usage:  # it has no total: all that was written is output
            counts["output_tokens"] = usage["total_tokens"] - usage["prompt_tokens"]
        return {
            "id": name,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [{"type": "text", "text": text}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": counts,
        }
    if dialect == "responses":
        if counts is not None:
            counts |= {
                "total_tokens": usage.get("total_tokens", counts["input_tokens"] + counts["output_tokens"]),
                "input_tokens_details": {"cached_tokens": 0, **details},
                "output_tokens_details": {"reasoning_tokens": 0},
            }
        part = {"type": "output_text", "text": text, "annotations": []}
        message = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [part],
        }
        return {
            "id": name,
            "object": "response",
            "created_at": 0,
            "status": "completed",
            "model": model,
            "output": [message],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "error": None,
            "usage": counts,
        }
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "logprobs": None}
    choice |= (
        {"text": text} if dialect == "completions" else {"message": {"role": "assistant", "content": text}}
    )
    kind = "text_completion" if dialect == "completions" else "chat.completion"
    return {"id": name, "object": kind, "created": 0, "model": model, "choices": [choice], "usage": usage}


def _pieces(dialect: str, name: str, model: str, text: str, usage: Any, with_usage: bool) -> list[bytes]:
    """Events of a stream; the last is the end."""

    def event(body: dict[str, Any], kind: str = "") -> bytes:
        return (f"event: {kind}\n" if kind else "").encode() + f"data: {json.dumps(body)}\n\n".encode()

    parts = [text[i : i + 8] for i in range(0, len(text), 8)]
    whole = _answer(dialect, name, model, text, usage)
    if dialect == "messages":
        start = {
            **whole,
            "content": [],
            "stop_reason": None,
            "usage": {**(whole["usage"] or {}), "output_tokens": 1},
        }
        events = [event({"type": "message_start", "message": start}, "message_start")]
        block: dict[str, Any] = {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "text", "text": ""},
        }
        events.append(event(block, "content_block_start"))
        for part in parts:
            delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": part}}
            events.append(event(delta, "content_block_delta"))
        last = {"output_tokens": (whole["usage"] or {}).get("output_tokens")}
        end: dict[str, Any] = {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": last,
        }
        events += [
            event({"type": "content_block_stop", "index": 0}, "content_block_stop"),
            event(end, "message_delta"),
        ]
        return [*events, event({"type": "message_stop"}, "message_stop")]
    if dialect == "responses":
        created = {**whole, "status": "in_progress", "output": [], "usage": None}
        events = [
            event({"type": "response.created", "sequence_number": 0, "response": created}, "response.created")
        ]
        for i, part in enumerate(parts):
            delta = {
                "type": "response.output_text.delta",
                "sequence_number": i + 1,
                "item_id": "msg_1",
                "output_index": 0,
                "content_index": 0,
                "delta": part,
                "logprobs": [],
            }
            events.append(event(delta, "response.output_text.delta"))
        done = {"type": "response.completed", "sequence_number": len(parts) + 1, "response": whole}
        return [*events, event(done, "response.completed")]
    common: dict[str, Any] = {"id": name, "object": "chat.completion.chunk", "created": 0, "model": model}
    if dialect == "completions":
        common["object"] = "text_completion"
    null: dict[str, Any] = {"usage": None} if with_usage else {}
    events = []
    for part in parts:
        choice: dict[str, Any] = {"index": 0, "finish_reason": None, "logprobs": None}
        choice |= {"text": part} if dialect == "completions" else {"delta": {"content": part}}
        events.append(event({**common, "choices": [choice], **null}))
    stop: dict[str, Any] = {"index": 0, "finish_reason": "stop", "logprobs": None}
    stop["text" if dialect == "completions" else "delta"] = "" if dialect == "completions" else {}
    events.append(event({**common, "choices": [stop], **null}))
    tail = b"data: [DONE]\n\n"
    if with_usage:
        tail = event({**common, "choices": [], "usage": usage}) + tail
    return [*events, tail]


async def _complete(request: Request, dialect: str) -> Response:
    try:
        body = await request.json()
    except ClientDisconnect:  # a server that was killed while it sent
        return Response(status_code=400)
    model = str(body.get("model"))
    behaves, number = _BEHAVES.get(model, model), next(_CALLS)
    _SEEN[model] = {"headers": dict(request.headers), "body": body}
    if "hangs" in behaves:
        await asyncio.sleep(3600.0)
    if "slow" in behaves:
        await asyncio.sleep(1.0)
    words = [word for word in STATUSES if word in behaves]
    unlucky = number * 2_654_435_761 % 2**32 < 0.02 * 2**32  # spread as if drawn, the same in every run
    if (
        ("flaps" in behaves and number % 2)
        or ("often" in behaves and number % 20 == 0)
        or ("seldom" in behaves and unlucky)
    ):
        words = ["broken"]
    key, before = request.headers.get("authorization", ""), body.get("previous_response_id")
    if before is not None and (_MADE.get(before) != key or "forgets" in behaves):
        text = f"Previous response with id '{before}' not found."
        lost = {
            "message": text,
            "type": "invalid_request_error",
            "code": "previous_response_not_found",
            "param": "previous_response_id",
        }
        return JSONResponse({"error": lost}, 400)
    if words:
        status = STATUSES[words[0]]
        headers: dict[str, str] = {429: {"retry-after": "7"}, 302: {"location": "/elsewhere"}}.get(status, {})
        if status == 204:
            return Response(status_code=204)
        code, message = _MESSAGES.get(words[0], (words[0], f"{model} is {words[0]}"))
        error = {"message": message, "type": "server_error", "code": code}
        return JSONResponse({"error": error}, status, headers=headers)
    if "html" in behaves:
        return Response("<html>Bad gateway</html>", media_type="text/html")
    if "wrong" in behaves:
        return JSONResponse({"error": {"message": "the provider behind is overloaded", "code": 529}})
    text, name = f"{model}: {_prompt_of(body, dialect)}", f"chatcmpl-{next(_NUMBERS)}"
    if dialect == "responses":
        _MADE[name] = key
    usage = next((USAGES[word] for word in USAGES if word in behaves), USUAL)
    sent = {"x-request-id": f"up-{name}", "x-ratelimit-remaining-requests": "99"}
    if not body.get("stream"):
        answer = _answer(dialect, name, model, text, usage)
        if (
            "calls" in behaves
            and dialect == "chat"
            and body.get("tools")
            and body["messages"][-1]["role"] != "tool"
        ):
            function = {"name": body["tools"][0]["function"]["name"], "arguments": "{}"}
            calls = [{"id": f"call_{number}", "type": "function", "function": function}]
            first: dict[str, Any] = answer["choices"][0]
            first["message"] = {"role": "assistant", "content": None, "tool_calls": calls}
            first["finish_reason"] = "tool_calls"
        content = json.dumps(answer).encode()
        _charge(model, usage)
        content = content[: len(content) // 2] if "cut" in behaves else content
        return Response(content, media_type="application/json", headers=sent)
    options = body.get("stream_options") or {}
    pieces = _pieces(dialect, name, model, text, usage, bool(options.get("include_usage")))

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(10 if "comments" in behaves else 0):
            yield b": PROCESSING\n\n"
            await asyncio.sleep(0.1)
        wrong = b'data: {"error": {"message": "overloaded", "type": "server_error"}}\n\n'
        if "errors" in behaves:
            yield wrong
            return
        _charge(model, usage)
        for i, piece in enumerate(pieces):
            if "early" in behaves and i >= 2:
                return
            if "together" in behaves:
                yield piece + wrong
                return
            yield piece
            if "drips" in behaves:
                await asyncio.sleep(0.1)
            while "endless" in behaves and i == 1:
                await asyncio.sleep(0.1)
                yield piece
            if "falls" in behaves:
                yield wrong
                return
            if "breaks" in behaves:
                raise ConnectionResetError("the stand-in breaks off")

    return StreamingResponse(chunks(), media_type="text/event-stream", headers=sent)


def _charge(model: str, usage: Any) -> None:
    counts = usage if isinstance(usage, dict) and usage["prompt_tokens"] in (10, 10_000) else USUAL
    sums = _BILL.setdefault(model, [0, 0, 0])
    into, out = int(counts["prompt_tokens"]), int(counts["completion_tokens"])
    for i, amount in enumerate((1, into, max(out, int(counts.get("total_tokens", 0)) - into))):
        sums[i] += amount


async def chat(request: Request) -> Response:
    """POST /v1/chat/completions"""
    return await _complete(request, "chat")


async def completions(request: Request) -> Response:
    """POST /v1/completions"""
    return await _complete(request, "completions")


async def responses(request: Request) -> Response:
    """POST /v1/responses"""
    return await _complete(request, "responses")


async def messages(request: Request) -> Response:
    """POST /v1/messages"""
    return await _complete(request, "messages")


async def count_tokens(request: Request) -> Response:
    """POST /v1/messages/count_tokens"""
    body = await request.json()
    if "unknown" in _BEHAVES.get(str(body.get("model")), str(body.get("model"))):
        return JSONResponse({"error": {"message": "no such endpoint"}}, 404)
    return JSONResponse({"input_tokens": 11})


async def embeddings(request: Request) -> Response:
    """POST /v1/embeddings"""
    body = await request.json()
    given = body["input"] if isinstance(body["input"], list) else [body["input"]]
    data = [{"object": "embedding", "index": i, "embedding": [0.0, 1.0]} for i in range(len(given))]
    usage = {"prompt_tokens": 10, "total_tokens": 10}
    return JSONResponse({"object": "list", "model": body["model"], "data": data, "usage": usage})


async def behave(request: Request) -> Response:
    """POST /behave"""
    _BEHAVES.update(await request.json())
    return JSONResponse(_BEHAVES)


async def bill(request: Request) -> Response:
    """GET /bill"""
    return JSONResponse(_BILL)


async def seen(request: Request) -> Response:
    """GET /seen"""
    return JSONResponse(_SEEN)


app = Starlette(
    routes=[
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/responses", responses, methods=["POST"]),
        Route("/v1/messages", messages, methods=["POST"]),
        Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
        Route("/v1/embeddings", embeddings, methods=["POST"]),
        Route("/behave", behave, methods=["POST"]),
        Route("/bill", bill),
        Route("/seen", seen),
    ]
)


def main() -> None:
    """Serve it on 127.0.0.1."""
    parser = argparse.ArgumentParser(description="A stand-in upstream that repeats the prompt.")
    parser.add_argument("--port", type=int, default=9000)
    uvicorn.run(app, host="127.0.0.1", port=parser.parse_args().port, access_log=False, log_level="critical")


if __name__ == "__main__":
    main()
