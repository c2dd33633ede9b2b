"""The four interfaces (dialects) in which requests come in, and how each of them writes requests and answers.

chat         POST /v1/chat/completions   OpenAI, and nearly every other provider
completions  POST /v1/completions        OpenAI's older interface
responses    POST /v1/responses          OpenAI's newer interface
messages     POST /v1/messages           Anthropic

OpenAI's `embeddings` (POST /v1/embeddings) is no dialect, since no model is chosen for such a request. A few
functions accept the name "embeddings" as well and say so.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cabs_core.data.pool_files.collect import OUTPUT_LIMITS

#: Dialect -> path of its endpoint below the base URL.
PATHS = {
    "chat": "/chat/completions",
    "completions": "/completions",
    "responses": "/responses",
    "messages": "/messages",
}
#: Path of OpenAI's endpoint for embeddings.
EMBEDDINGS = "/embeddings"
#: Path of Anthropic's endpoint that counts the tokens of a request.
COUNT_TOKENS = "/messages/count_tokens"
#: HTTP status -> Anthropic's type of the error.
_ANTHROPIC_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
#: Finish reasons of an answer that ended at the limit of tokens.
_TRUNCATED_REASONS = frozenset(
    {
        "length",
        "max_tokens",
        "max_output_tokens",
        "incomplete",
        "model_context_window_exceeded",
        "model_length",
        "max_output_reached",
    }
)
#: Finish reasons of an answer that the model or a filter refused.
_REFUSED_REASONS = frozenset(
    {
        "content_filter",
        "content_filtered",
        "refusal",
        "safety",
        "image_safety",
        "guardrail_intervened",
        "recitation",
        "blocklist",
        "prohibited_content",
        "spii",
        "language",
        "error_toxic",
        "sensitive",
        "blocked",
    }
)
#: Finish reasons of an answer that the provider could not finish.
_FAILED_REASONS = frozenset({"error", "abort", "insufficient_system_resource", "network_error"})
#: Dialect -> field of a whole answer that holds its list of parts; `choices` for the other dialects.
_ANSWER_FIELDS = {"messages": "content", "embeddings": "data"}


def error_body(message: str, kind: str, dialect: str = "chat", status: int = 500) -> dict[str, Any]:
    """JSON body of an error reply in the form of the dialect.

    Args:
        kind: type of the error in OpenAI's form. The messages dialect takes Anthropic's type of the status
            instead.
        status: HTTP status of the reply.
    """
    if dialect == "messages":
        anthropic_type = _ANTHROPIC_ERROR_TYPES.get(status, "api_error")
        return {"type": "error", "error": {"type": anthropic_type, "message": message}}
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def error_event(message: str, dialect: str) -> bytes:
    """Server-sent event that tells the client of a stream that an error ended the answer."""
    body = error_body(message, "upstream_error", dialect)
    if dialect == "responses":
        body = {"type": "error", "code": "upstream_error", "message": message, "param": None}
    has_event_line = dialect in ("messages", "responses")
    head = b"event: error\n" if has_event_line else b""
    return head + b"data: " + json.dumps(body).encode() + b"\n\n"


def check_answer(answer: Any, dialect: str) -> tuple[dict[str, Any], str | None]:
    """Return the fields of an answer that is no stream, and the reason if the answer cannot be used.

    Args:
        answer: parsed JSON of a reply with a good status.
        dialect: one of the four dialects, or "embeddings".

    Returns:
        (fields, reason). The fields are empty if the JSON is no object. The reason is None if the answer can
        be used.
    """
    if not isinstance(answer, dict):
        return {}, "answered with JSON that is no object"
    if dialect == "responses":
        is_usable = isinstance(answer.get("output"), list) and answer.get("status") != "failed"
    else:
        parts = answer.get(_ANSWER_FIELDS.get(dialect, "choices"))
        is_usable = isinstance(parts, list) and (bool(parts) or dialect == "messages")
        if is_usable and parts:
            failure = failure_of_choice(parts[0])
            if failure:
                return answer, failure
    return answer, None if is_usable else "answered without an answer in it"


def failure_of_choice(choice: Any) -> str | None:
    """Return the words `broke off (REASON)` if the provider failed while it wrote a choice, otherwise None.

    Args:
        choice: an element of `choices`, of a whole answer or of an event of a stream.
    """
    if isinstance(choice, dict):
        finish = choice.get("finish_reason")
    else:
        finish = None
    if str(finish).casefold() in _FAILED_REASONS:
        return f"broke off ({finish})"
    return None


def build_request(
    messages: Sequence[Mapping[str, str]], params: Mapping[str, Any], dialect: str
) -> dict[str, Any]:
    """Return the body of a request in a dialect.

    In the messages and responses dialects the system messages are joined in a field of their own. The
    completions dialect gets the contents of all messages as one prompt.

    Dialects other than chat have one field for the limit of output tokens. This field gets the largest of the
    limits that `params` has under the names of chat.

    Args:
        messages: messages of the chat dialect, with role (system, user or assistant) and content (a text).
        params: further fields of the request, by their names in the chat dialect.
    """
    fields = dict(params)
    if dialect == "chat":
        return {**fields, "messages": list(messages)}
    most_output = None
    if dialect in ("messages", "responses", "completions"):
        limits = [fields.pop(name, None) for name in OUTPUT_LIMITS]
        most_output = max((limit for limit in limits if limit is not None), default=None)
    if dialect == "completions":
        body: dict[str, Any] = {"prompt": "\n\n".join(m["content"] for m in messages)}
    else:
        system = "\n\n".join(m["content"] for m in messages if m["role"] == "system")
        others = [dict(m) for m in messages if m["role"] != "system"]
        body = {"messages" if dialect == "messages" else "input": others}
        if system:
            body["system" if dialect == "messages" else "instructions"] = system
    if most_output is not None:
        body["max_output_tokens" if dialect == "responses" else "max_tokens"] = most_output
    return {**fields, **body}


@dataclass(frozen=True)
class AnswerText:
    """Text of an answer, and how the answer ended.

    Attributes:
        text: text of the answer, or the words of the refusal if a refused answer has no other text.
        state: answered, refused (by the model or by a filter) or truncated (at the limit of tokens).
        finish: finish reason in the provider's words, at most 40 characters. None if the provider gives none.
    """

    text: str
    state: str = "answered"
    finish: str | None = None


class _AnswerParts(NamedTuple):
    """Values of a whole answer that hold its text, its refusal and its finish reason, unchanged."""

    content: Any
    refusal: Any
    finish: Any


def read_answer_text(answer: Mapping[str, Any], dialect: str) -> AnswerText | None:
    """Return the text of a whole answer, or None if the answer has no content or the provider broke it off.

    The text is '' for a finished answer without text, such as an answer of tool calls alone.

    Args:
        answer: parsed JSON of a reply that is no stream.
        dialect: one of the four dialects. Any other value counts as chat.
    """
    if dialect == "messages":
        parts: _AnswerParts | None = _AnswerParts(answer.get("content"), None, answer.get("stop_reason"))
    elif dialect == "responses":
        parts = _parts_of_responses(answer)
    else:
        parts = _parts_of_choices(answer)
    if parts is None:
        return None
    content = parts.content
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        content = "".join(text for text in texts if isinstance(text, str))
    if not isinstance(content, str):
        # An answer of tool calls alone has no content, and its finish reason shows that it is complete.
        if content is None and parts.finish:
            content = ""
        else:
            content = None
    if isinstance(parts.refusal, str):
        content = content or parts.refusal
    reason = str(parts.finish).casefold()
    if content is None or reason in _FAILED_REASONS:
        return None
    state = "answered"
    if parts.refusal or reason in _REFUSED_REASONS:
        state = "refused"
    elif reason in _TRUNCATED_REASONS:
        state = "truncated"
    return AnswerText(content, state, None if parts.finish is None else str(parts.finish)[:40])


def _parts_of_responses(answer: Mapping[str, Any]) -> _AnswerParts | None:
    """Return the parts of an answer in the responses dialect, or None if it has no list `output`.

    An empty list gives parts without content.
    """
    details = answer.get("incomplete_details")
    if isinstance(details, Mapping):
        finish = details.get("reason")
    else:
        finish = answer.get("status")
    output = answer.get("output")
    if not isinstance(output, list):
        return None
    contents = [item.get("content") for item in output if isinstance(item, Mapping)]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    refusals = (part["refusal"] for part in parts if isinstance(part, Mapping) and part.get("refusal"))
    return _AnswerParts(parts, next(refusals, None), finish)


def _parts_of_choices(answer: Mapping[str, Any]) -> _AnswerParts | None:
    """Return the parts of the first choice of an answer in the chat or completions dialect.

    Return None if the answer has no choice.
    """
    choices = answer.get("choices")
    if isinstance(choices, list) and choices:
        choice = choices[0]
    else:
        choice = None
    if not isinstance(choice, Mapping):
        return None
    finish = choice.get("finish_reason")
    message = choice.get("message")
    if isinstance(message, Mapping):
        return _AnswerParts(message.get("content"), message.get("refusal"), finish)
    return _AnswerParts(choice.get("text"), None, finish)
