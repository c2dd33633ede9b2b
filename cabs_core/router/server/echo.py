"""A stand-in upstream: an OpenAI-compatible API that answers at once, for tests and for trying the server.

    python -m cabs_core.router.server.echo --port 9000

It repeats the prompt. The name of a model can ask for trouble: with `slow` it waits a second, with `broken` it
answers 500, with `limited` 429, and with `breaks` it breaks off a stream after the first piece.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
from collections.abc import AsyncIterator

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

_NUMBERS = itertools.count(1)


async def complete(request: Request) -> Response:
    """POST /v1/chat/completions"""
    try:
        body = await request.json()
    except ClientDisconnect:  # a server that was killed while it sent
        return Response(status_code=400)
    model = str(body.get("model"))
    if "slow" in model:
        await asyncio.sleep(1.0)
    for word, status in (("broken", 500), ("limited", 429)):
        if word in model:
            return JSONResponse({"error": {"message": f"{model} is {word}", "type": "server_error"}}, status)
    text = f"{model}: {body['messages'][-1]['content']}"
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    name = f"chatcmpl-{next(_NUMBERS)}"
    if not body.get("stream"):
        message = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return JSONResponse(
            {"id": name, "object": "chat.completion", "model": model, "choices": [message], "usage": usage}
        )

    async def chunks() -> AsyncIterator[bytes]:
        for i in range(0, len(text), 8):
            delta = {"index": 0, "delta": {"content": text[i : i + 8]}}
            event = {"id": name, "object": "chat.completion.chunk", "model": model, "choices": [delta]}
            yield f"data: {json.dumps(event)}\n\n".encode()
            if "breaks" in model:
                raise ConnectionResetError("the stand-in breaks off")
        last = {"id": name, "object": "chat.completion.chunk", "model": model, "choices": [], "usage": usage}
        yield f"data: {json.dumps(last)}\n\ndata: [DONE]\n\n".encode()

    return StreamingResponse(chunks(), media_type="text/event-stream")


app = Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"])])


def main() -> None:
    """Serve it on 127.0.0.1."""
    parser = argparse.ArgumentParser(description="A stand-in upstream that repeats the prompt.")
    parser.add_argument("--port", type=int, default=9000)
    uvicorn.run(app, host="127.0.0.1", port=parser.parse_args().port, access_log=False, log_level="warning")


if __name__ == "__main__":
    main()
