"""`cabs serve --echo`: the server answers by itself with the name of the chosen model, in every dialect.

It shows what a router does without any provider. A call is logged and can be scored like any other.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Sequence
from typing import Any, get_args

from cabs_core.data.endpoints.tokens import text_tokens
from cabs_core.data.endpoints.upstreams import Dialect, Upstream, Upstreams


def echo_upstreams(arms: Sequence[str]) -> Upstreams:
    """Return the content of an upstreams file in which every model is free and no URL is called."""
    dialects = get_args(Dialect)
    return Upstreams(
        models={arm: Upstream(url="http://localhost", free=True, speaks=dialects) for arm in arms}
    )


def answer(dialect: str, model: str, tokens_in: float) -> dict[str, Any]:
    """Return the JSON of an answer in a dialect whose text is the model's name.

    Args:
        tokens_in: estimated tokens of the request, which the usage names.
    """
    name = f"echo-{uuid.uuid4().hex}"
    entry = math.ceil(tokens_in)
    output = math.ceil(text_tokens(model))
    usage: dict[str, Any]
    about: dict[str, Any]
    if dialect == "messages":
        usage = {"input_tokens": entry, "output_tokens": output}
        about = {"id": name, "type": "message", "role": "assistant", "model": model, "usage": usage}
        content = [{"type": "text", "text": model}]
        return {**about, "content": content, "stop_reason": "end_turn", "stop_sequence": None}
    if dialect == "responses":
        usage = {"input_tokens": entry, "output_tokens": output, "total_tokens": entry + output}
        part = {"type": "output_text", "text": model, "annotations": []}
        message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed"}
        about = {"id": name, "object": "response", "created_at": 0, "status": "completed", "model": model}
        return {**about, "output": [{**message, "content": [part]}], "error": None, "usage": usage}
    usage = {"prompt_tokens": entry, "completion_tokens": output, "total_tokens": entry + output}
    is_plain = dialect == "completions"
    said: dict[str, Any] = {"text": model}
    if not is_plain:
        said = {"message": {"role": "assistant", "content": model}}
    if is_plain:
        kind = "text_completion"
    else:
        kind = "chat.completion"
    choice = {"index": 0, "finish_reason": "stop", "logprobs": None, **said}
    return {"id": name, "object": kind, "created": 0, "model": model, "choices": [choice], "usage": usage}


def events(dialect: str, whole: dict[str, Any], *, with_usage: bool) -> list[bytes]:
    """Return the server-sent events of a stream with the content of a whole answer.

    Args:
        whole: the answer, as `answer` returned it.
        with_usage: True if the last chunk names the usage, in the dialects chat and completions.
    """
    model = whole["model"]
    if dialect == "messages":
        start = {**whole, "content": [], "stop_reason": None}
        usage = {"output_tokens": whole["usage"]["output_tokens"]}
        delta = {"stop_reason": "end_turn", "stop_sequence": None}
        bodies: list[dict[str, Any]] = [
            {"type": "message_start", "message": start},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": model}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": delta, "usage": usage},
            {"type": "message_stop"},
        ]
        return [_event(body) for body in bodies]
    if dialect == "responses":
        place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        begun = {**whole, "status": "in_progress", "output": [], "usage": None}
        bodies = [
            {"type": "response.created", "response": begun},
            {"type": "response.output_text.delta", **place, "delta": model, "logprobs": []},
            {"type": "response.completed", "response": whole},
        ]
        return [_event({**body, "sequence_number": i}) for i, body in enumerate(bodies)]
    is_plain = dialect == "completions"
    common = {name: whole[name] for name in ("id", "created", "model")}
    if is_plain:
        common["object"] = "text_completion"
    else:
        common["object"] = "chat.completion.chunk"
    said: dict[str, Any]
    if is_plain:
        said = {"text": model}
    else:
        said = {"delta": {"role": "assistant", "content": model}}
    rest: dict[str, Any]
    if is_plain:
        rest = {"text": ""}
    else:
        rest = {"delta": {}}
    chunks = [
        {**common, "choices": [{"index": 0, "finish_reason": None, **said}]},
        {**common, "choices": [{"index": 0, "finish_reason": "stop", **rest}]},
    ]
    if with_usage:
        chunks.append({**common, "choices": [], "usage": whole["usage"]})
    return [*(_event(chunk) for chunk in chunks), b"data: [DONE]\n\n"]


def _event(body: dict[str, Any]) -> bytes:
    """Return a server-sent event with this JSON, which has a name if the JSON has a `type`."""
    if "type" in body:
        name = f"event: {body['type']}\n"
    else:
        name = ""
    return f"{name}data: {json.dumps(body)}\n\n".encode()
