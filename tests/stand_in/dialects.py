"""Prompts, answers and streams of a provider in the four dialects: chat, completions, responses, messages.

Usage is given as the dialect `chat` writes it; None where the provider does not count.
"""

import json
from typing import Any

#: characters in one event of a stream
_PIECE = 8


def contents_of(body: dict[str, Any], dialect: str) -> list[Any]:
    """Contents of the messages of a request, the last of which is the prompt; at least one."""
    if dialect == "completions":
        return [body.get("prompt")]
    contents = body.get("input" if dialect == "responses" else "messages")
    return (
        [message.get("content") for message in contents] or [""] if isinstance(contents, list) else [contents]
    )


def text_of(content: Any) -> str:
    """A content as text; parts, and what is no text, as JSON."""
    return content if isinstance(content, str) else json.dumps(content)


def answer(dialect: str, name: str, model: str, text: str, usage: dict[str, Any] | None) -> dict[str, Any]:
    """An answer in one piece."""
    counts = _usage(dialect, usage)
    whole: dict[str, Any]
    if dialect == "messages":
        whole = {"id": name, "type": "message", "role": "assistant", "model": model, "usage": counts}
        content = [{"type": "text", "text": text}]
        return {**whole, "content": content, "stop_reason": "end_turn", "stop_sequence": None}
    if dialect == "responses":
        part = {"type": "output_text", "text": text, "annotations": []}
        message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed"}
        whole = {"id": name, "object": "response", "created_at": 0, "status": "completed", "model": model}
        tools = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        return {**whole, "output": [{**message, "content": [part]}], **tools, "error": None, "usage": counts}
    plain = dialect == "completions"
    piece = {"text": text} if plain else {"message": {"role": "assistant", "content": text}}
    kind = "text_completion" if plain else "chat.completion"
    return {
        "id": name,
        "object": kind,
        "created": 0,
        "model": model,
        "choices": [_choice("stop", piece)],
        "usage": counts,
    }


def stream(
    dialect: str, name: str, model: str, text: str, usage: dict[str, Any] | None, with_usage: bool
) -> list[bytes]:
    """Events of a stream; the last is its end. Chat and completions report usage only `with_usage`."""
    parts = [text[i : i + _PIECE] for i in range(0, len(text), _PIECE)]
    whole = answer(dialect, name, model, text, usage)
    if dialect == "messages":
        return [_event(body) for body in _of_messages(parts, whole)]
    if dialect == "responses":
        return [_event(body) for body in _of_responses(parts, whole)]
    plain = dialect == "completions"
    kind = "text_completion" if plain else "chat.completion.chunk"
    common = {"id": name, "object": kind, "created": 0, "model": model}
    null = {"usage": None} if with_usage else {}
    bodies = [{"text": part} if plain else {"delta": {"content": part}} for part in parts]
    choices = [_choice(None, piece) for piece in bodies]
    choices.append(_choice("stop", {"text": ""} if plain else {"delta": {}}))
    events = [_event({**common, "choices": [choice], **null}) for choice in choices]
    counts = _event({**common, "choices": [], "usage": usage}) if with_usage else b""
    return [*events, counts + b"data: [DONE]\n\n"]


def _event(body: dict[str, Any]) -> bytes:
    kind = f"event: {body['type']}\n" if "type" in body else ""
    return f"{kind}data: {json.dumps(body)}\n\n".encode()


def _choice(reason: str | None, piece: dict[str, Any]) -> dict[str, Any]:
    return {"index": 0, "finish_reason": reason, "logprobs": None, **piece}


def _usage(dialect: str, usage: dict[str, Any] | None) -> dict[str, Any] | None:
    if usage is None or dialect in ("chat", "completions"):
        return usage
    into, out = usage["prompt_tokens"], usage["completion_tokens"]
    details = usage.get("prompt_tokens_details", {})
    if dialect == "responses":
        total = usage.get("total_tokens", into + out)
        counts = {"input_tokens": into, "output_tokens": out, "total_tokens": total}
        counts["input_tokens_details"] = {"cached_tokens": 0, **details}
        return {**counts, "output_tokens_details": {"reasoning_tokens": 0}}
    if "total_tokens" in usage:  # `messages` has no total: all that was written is output
        out = usage["total_tokens"] - into
    if not details:
        return {"input_tokens": into, "output_tokens": out}
    cached = details["cached_tokens"]
    return {"input_tokens": into - cached, "output_tokens": out, "cache_read_input_tokens": cached}


def _of_messages(parts: list[str], whole: dict[str, Any]) -> list[dict[str, Any]]:
    counts = whole["usage"] or {}
    start = {**whole, "content": [], "stop_reason": None, "usage": {**counts, "output_tokens": 1}}
    block = {"index": 0, "content_block": {"type": "text", "text": ""}}
    deltas = [{"type": "text_delta", "text": part} for part in parts]
    stop = {"stop_reason": "end_turn", "stop_sequence": None}
    return [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", **block},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": stop, "usage": {"output_tokens": counts.get("output_tokens")}},
        {"type": "message_stop"},
    ]


def _of_responses(parts: list[str], whole: dict[str, Any]) -> list[dict[str, Any]]:
    created = {**whole, "status": "in_progress", "output": [], "usage": None}
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    bodies: list[dict[str, Any]] = [
        {"type": "response.created", "response": created},
        *({"type": "response.output_text.delta", **place, "delta": part, "logprobs": []} for part in parts),
        {"type": "response.completed", "response": whole},
    ]
    return [{**body, "sequence_number": i} for i, body in enumerate(bodies)]
