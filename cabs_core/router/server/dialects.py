"""The four interfaces that requests come in, and what each calls the same things.

chat         POST /v1/chat/completions   OpenAI, and nearly everyone
completions  POST /v1/completions        OpenAI's older one
responses    POST /v1/responses          OpenAI's newer one
messages     POST /v1/messages           Anthropic

`embeddings` (POST /v1/embeddings, OpenAI's) is none of them: no model is chosen for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

PATHS = {
    "chat": "/chat/completions", "completions": "/completions", "responses": "/responses", "messages": "/messages",
}  # fmt: skip
EMBEDDINGS = "/embeddings"
_ANTHROPIC = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error",
}  # fmt: skip
#: words of providers for a prompt that is longer than a model's context
_TOO_LONG = re.compile(
    r"context_length_exceeded|context length|context window|prompt is too long|too many tokens|maximum.{0,20}tokens|"
    r"input is too long|exceeds? the (?:model's )?(?:maximum )?(?:context|limit)",
    re.IGNORECASE,
)


def error_body(message: str, kind: str, dialect: str = "chat", status: int = 500) -> dict[str, Any]:
    """An error as the dialect words it."""
    if dialect == "messages":
        return {"type": "error", "error": {"type": _ANTHROPIC.get(status, "api_error"), "message": message}}
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def error_event(message: str, dialect: str) -> bytes:
    """An error inside a stream."""
    body = error_body(message, "upstream_error", dialect)
    if dialect == "messages":
        return b"event: error\ndata: " + json.dumps(body).encode() + b"\n\n"
    if dialect == "responses":
        body = {"type": "error", "code": "upstream_error", "message": message, "param": None}
        return b"event: error\ndata: " + json.dumps(body).encode() + b"\n\n"
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def answer_of(content: bytes, dialect: str) -> tuple[dict[str, Any], str | None]:
    """(JSON of a whole answer with status 200, why it is none); the reason is None where it is one."""
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        return {}, "answered 200 with something that is not JSON"
    if not isinstance(answer, dict):
        return {}, "answered 200 with JSON that is no object"
    if answer.get("error"):
        return answer, f"answered 200 with an error: {_message(answer['error'])}"
    if dialect == "responses":
        good = isinstance(answer.get("output"), list) and answer.get("status") != "failed"
    else:
        parts = answer.get({"messages": "content", "embeddings": "data"}.get(dialect, "choices"))
        good = isinstance(parts, list) and (bool(parts) or dialect == "messages")
    return answer, None if good else "answered 200 without an answer in it"


def _message(error: Any) -> str:
    text = error.get("message") if isinstance(error, Mapping) else error
    return f"{text!s:.120}"


def too_long(status: int, content: bytes) -> bool:
    """Whether an upstream says that a request is too large for the model."""
    if status == 413:
        return True
    return status == 400 and _TOO_LONG.search(content[:4096].decode("utf-8", "replace")) is not None
