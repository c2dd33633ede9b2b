"""OpenAI: batches with their requests, stored completions and responses, and pairs `{request, response}`.

Batches of Anthropic, Gemini, Vertex and Bedrock have the same form under other names.
"""

import re
from collections.abc import Mapping
from typing import Any

from cabs_core.data.logs.calls import FEEDBACK, Format, LoggedCall, Record, Score, feedback, ids, word_of
from cabs_core.data.tables.dotted import at, first, parsed

#: Endings of the addresses of chats: of OpenAI, Anthropic and Azure, of Bedrock, and of Gemini.
_CHAT_ADDRESSES = (
    "chat/completions",
    "completions",
    "responses",
    "messages",
    "converse",
    "converse-stream",
    "generateContent",
    "streamGenerateContent",
)
_CHAT_ADDRESS = re.compile(rf"(?:^|[/:])({'|'.join(_CHAT_ADDRESSES)})$", re.IGNORECASE)
#: Scheme and host of a URL.
_BEFORE_PATH = re.compile(r"^[a-z][a-z0-9+.-]*://[^/]*", re.IGNORECASE)


def split(records: list[tuple[int, Record]]) -> tuple[list[LoggedCall], list[Score]]:
    """Return (calls of a log, no scores). OpenAI keeps scores within the calls alone.

    A line of a batch's input is joined with the line of the output that has the same id. A line of the input
    without an answer becomes a call with the status `pending`.
    """
    keys = ("custom_id", "recordId", "key")
    names = {id(r): next(iter(ids(*(r.get(key) for key in keys))), None) for _, r in records}
    asked = {
        names[id(r)]: r
        for _, r in records
        if any(name in r for name in ("body", "params"))
        and not any(name in r for name in _ANSWERS)
        and names[id(r)] is not None
    }
    answered = {names[id(r)] for _, r in records if any(name in r for name in (*_ANSWERS, "error"))}
    calls = []
    for number, r in records:
        request = asked.get(names[id(r)])
        if request is r and names[id(r)] in answered:
            continue  # its answer stands elsewhere
        if request is r:
            views: tuple[Record, ...] = ({**_flat(r), "status_code": "pending"}, r)
        else:
            if request is None:
                views = (_flat(r), r)
            else:
                views = (_flat({**request, **r}), r, request)
        calls.append(LoggedCall(number, views, scores=feedback(r) or feedback(views[0]["request"])))
    return calls, []


def _flat(record: Record) -> Record:
    """Return a record with request, response, address, status and error under one name for all forms."""
    request = _object(record, "request.body", "request", "body", "params", "modelInput") or record
    answers = ("response.body", "response", "completion", "result.message", "modelOutput")
    response = _object(record, *answers) or record
    status = at(record, "response.status_code")
    # Anthropic writes how a call ended into its result, Vertex and Databricks write it next to the answer
    ended = first(record, "result.type", "status_code", "statusCode")
    message = record.get("status")
    errors = [record.get("error"), at(record, "result.error"), response.get("error_code")]
    if isinstance(message, str) and message.casefold().startswith(
        ("error", "bad request", "invalid", "internal")
    ):
        errors.append(message)
    return {
        "request": request,
        "response": response,
        "url": _address(record.get("url") or at(record, "request.url")),
        "status_code": ended if status is None else status,
        "error": next((error for error in errors if error), None),
    }


def _address(url: Any) -> Any:
    """Return the ending of a URL that is the address of a chat, such as `chat/completions`.

    Host, query and the path before the ending do not count: Azure writes the name of a deployment into it. Of
    another text the path is returned, and any other value as it is.
    """
    if not isinstance(url, str):
        return url
    path = _BEFORE_PATH.sub("", re.split(r"[?#]", url.strip(), maxsplit=1)[0]).rstrip("/")
    chat = _CHAT_ADDRESS.search(path)
    if chat is None:
        return path
    return chat[1]


def _object(record: Record, *paths: str) -> Any:
    """Return the first object at these paths that is not empty, also from JSON in a text, or None."""
    for path in paths:
        value = parsed(at(record, path))
        if isinstance(value, Mapping) and value:
            return value
    return None


#: Fields of a line that hold an answer.
_ANSWERS = ("response", "result", "modelOutput")

FORMAT = Format(
    split,
    kind=("url", "response.object"),
    chats=frozenset(
        [
            *map(word_of, _CHAT_ADDRESSES),
            *"chat.completion text_completion response chat.completion.chunk".split(),
        ]
    ),
    status=("status_code", "response.status", "response.status_code"),
    errors=("error", "response.error"),
    cached=("cached", "cache_hit"),
    model=("response.model", "response.modelVersion", "response.model_version", "request.model", "model"),
    prompt=("request",),
    cost=("cost", "cost_usd", "metadata.cost"),
    usage=("response.usage", "response.usageMetadata", "response.usage_metadata", "usage"),
    session=("metadata.session_id", "session_id", "request.metadata.session_id", "response.conversation.id"),
    also=(
        *FEEDBACK,
        *"custom_id key recordId body params method result status modelInput modelOutput".split(),
    ),
    time=("response.created", "response.created_at", "created", "created_at", "timestamp"),
)
