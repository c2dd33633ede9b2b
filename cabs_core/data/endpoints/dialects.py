"""The four interfaces that requests come in, and what each calls the same things.

chat         POST /v1/chat/completions   OpenAI, and nearly everyone
completions  POST /v1/completions        OpenAI's older one
responses    POST /v1/responses          OpenAI's newer one
messages     POST /v1/messages           Anthropic

`embeddings` (POST /v1/embeddings, OpenAI's) is none of them: no model is chosen for it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cabs_core.data.pool_files.collect import OUTPUT_LIMITS

PATHS = {
    "chat": "/chat/completions",
    "completions": "/completions",
    "responses": "/responses",
    "messages": "/messages",
}
EMBEDDINGS, COUNT_TOKENS = "/embeddings", "/messages/count_tokens"
_ANTHROPIC = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


#: words for an end at the limit of tokens, for a refusal, and for a failure of the provider
_CUT = frozenset(
    (
        "length max_tokens max_output_tokens incomplete model_context_window_exceeded model_length "
        "max_output_reached"
    ).split()
)
_REFUSED = frozenset(
    (
        "content_filter content_filtered refusal safety image_safety guardrail_intervened recitation "
        "blocklist prohibited_content spii language error_toxic sensitive blocked"
    ).split()
)
_BROKEN = frozenset({"error", "abort", "insufficient_system_resource", "network_error"})


def error_body(message: str, kind: str, dialect: str = "chat", status: int = 500) -> dict[str, Any]:
    """An error as the dialect words it."""
    if dialect == "messages":
        return {"type": "error", "error": {"type": _ANTHROPIC.get(status, "api_error"), "message": message}}
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def error_event(message: str, dialect: str) -> bytes:
    """An error inside a stream."""
    body = error_body(message, "upstream_error", dialect)
    if dialect == "responses":
        body = {"type": "error", "code": "upstream_error", "message": message, "param": None}
    head = b"event: error\n" if dialect in ("messages", "responses") else b""
    return head + b"data: " + json.dumps(body).encode() + b"\n\n"


def answer_of(answer: Any, dialect: str) -> tuple[dict[str, Any], str | None]:
    """(a whole answer, why it is none); the reason is None where it is one."""
    if not isinstance(answer, dict):
        return {}, "answered with JSON that is no object"
    if dialect == "responses":
        good = isinstance(answer.get("output"), list) and answer.get("status") != "failed"
    else:
        parts = answer.get({"messages": "content", "embeddings": "data"}.get(dialect, "choices"))
        good = isinstance(parts, list) and (bool(parts) or dialect == "messages")
        if good and parts and (reason := broke_off(parts[0])):
            return answer, reason
    return answer, None if good else "answered without an answer in it"


def broke_off(choice: Any) -> str | None:
    """What says that a choice, of an answer or of an event, broke off at the provider; None: it did not."""
    finish = choice.get("finish_reason") if isinstance(choice, dict) else None
    return f"broke off ({finish})" if str(finish).casefold() in _BROKEN else None


def request_of(
    messages: Sequence[Mapping[str, str]], params: Mapping[str, Any], dialect: str
) -> dict[str, Any]:
    """A request of texts in a dialect.

    Args:
        messages: of the chat dialect: system, user, assistant. params: other fields, by their names in chat.
    """
    rest, most = dict(params), None
    if dialect in ("messages", "responses", "completions"):
        limits = [rest.pop(n) for n in OUTPUT_LIMITS if n in rest]
        most = max(limits, default=None)
    if dialect == "chat":
        return {**rest, "messages": list(messages)}
    if dialect == "completions":
        body: dict[str, Any] = {"prompt": "\n\n".join(m["content"] for m in messages)}
    else:
        system = "\n\n".join(m["content"] for m in messages if m["role"] == "system")
        others = [dict(m) for m in messages if m["role"] != "system"]
        body = {"messages" if dialect == "messages" else "input": others}
        if system:
            body["system" if dialect == "messages" else "instructions"] = system
    if most is not None:
        body["max_output_tokens" if dialect == "responses" else "max_tokens"] = most
    return {**rest, **body}


@dataclass(frozen=True)
class AnswerText:
    """The text of an answer, and how it ended: answered, refused (by the model or a filter) or truncated.

    finish: the provider's word for the end; None: it gives none.
    """

    text: str
    state: str = "answered"
    finish: str | None = None


def text_of_answer(answer: Mapping[str, Any], dialect: str) -> AnswerText | None:
    """What a model said in a whole answer of a dialect; None: there is none, or it broke off."""
    refusal: Any = None
    if dialect == "messages":
        finish, content = answer.get("stop_reason"), answer.get("content")
    elif dialect == "responses":
        about, output = answer.get("incomplete_details"), answer.get("output")
        finish = about.get("reason") if isinstance(about, Mapping) else answer.get("status")
        if not isinstance(output, list):
            return None
        parts = [item.get("content") for item in output if isinstance(item, Mapping)]
        content = [part for group in parts if isinstance(group, list) for part in group]
        refusal = next((p["refusal"] for p in content if isinstance(p, Mapping) and p.get("refusal")), None)
    else:
        choices = answer.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, Mapping):
            return None
        finish, message = choice.get("finish_reason"), choice.get("message")
        content = choice.get("text")
        if isinstance(message, Mapping):
            content, refusal = message.get("content"), message.get("refusal")
    if isinstance(content, list):  # parts
        texts = [p.get("text") for p in content if isinstance(p, Mapping)]
        content = "".join(t for t in texts if isinstance(t, str))
    if not isinstance(content, str):
        content = "" if content is None and finish else None
    if isinstance(refusal, str):
        content = content or refusal
    word = str(finish).casefold()
    if content is None or word in _BROKEN:
        return None
    state = "refused" if refusal or word in _REFUSED else "truncated" if word in _CUT else "answered"
    return AnswerText(content, state, None if finish is None else str(finish)[:40])
