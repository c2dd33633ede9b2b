"""OpenTelemetry: spans by the GenAI conventions or OpenInference, as OTLP JSON or as one span in each record.

Sources: the GenAI semantic conventions 1.44, and OpenInference's conventions, spans and annotations.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from cabs_core.data.endpoints.usage import FIELDS
from cabs_core.data.logs.calls import (
    UNKNOWN_KIND,
    Format,
    LoggedCall,
    Record,
    Score,
    ids,
    is_yes,
    parents_of,
    upwards,
)
from cabs_core.data.tables.dotted import at, first, objects, parsed

#: Name of an event or log record that holds the score of an evaluation.
_EVALUATION = "gen_ai.evaluation.result"
#: Attributes that name the model.
_MODELS = (
    "gen_ai.response.model",
    "ai.response.model",
    "gen_ai.request.model",
    "llm.model_name",
    "ai.model.id",
    "model_name",  # Pydantic AI's agents
)
#: Attributes that hold the prompt.
_MESSAGES = (
    "gen_ai.input.messages",
    "gen_ai.prompt",
    "llm.input_messages",
    "llm.prompts",
    "ai.prompt.messages",  # Vercel's AI SDK
    "ai.prompt",
    "request_data",  # Logfire
    "pydantic_ai.all_messages",
    "all_messages_events",
    "input.value",
)
#: Fields of a span that hold its id, in the names of several stores.
_IDS = ("spanId", "span_id", "spanID", "SpanId", "context.span_id", "id", "Id")
#: Fields of a span that hold the id of the trace.
_TRACES = ("traceId", "trace_id", "traceID", "TraceId", "context.trace_id", "operation_Id", "OperationId")
#: Fields of a span that hold the id of the parent.
_PARENTS = (
    "parentSpanId",
    "parent_span_id",
    "parent_id",
    "ParentSpanId",
    "context.parent_id",
    "operation_ParentId",
    "ParentId",
)
#: Fields of a span that hold the status.
_STATUSES = (
    "status.code",
    "status_code",
    "status.status_code",
    "StatusCode",
    "statusCode",
    "otel_status_code",
    "status",
)
#: Fields of a span that hold the attributes, by OTLP, ClickHouse, Application Insights and Jaeger.
_HOLDERS = (
    "attributes",
    "SpanAttributes",
    "span_attributes",
    "customDimensions",
    "custom_dimensions",
    "Properties",
    "tags",
)
#: Field of a usage block, or of its details -> attributes with this count whose names differ from the field.
#: Conventions say that the input contains the tokens of the cache. It therefore stands under the name
#: `prompt_tokens`, since under `input_tokens` providers leave them out.
_COUNTS: dict[str, tuple[str, ...]] = {
    "prompt_tokens": (
        "gen_ai.usage.input_tokens",
        "ai.usage.inputTokens",
        "llm.token_count.prompt",  # OpenInference
    ),
    "completion_tokens": (
        "gen_ai.usage.output_tokens",
        "ai.usage.outputTokens",
        "llm.token_count.completion",
    ),
    "total_tokens": (
        "llm.usage.total_tokens",  # OpenLLMetry
        "llm.token_count.total",
    ),
    "cache_read_input_tokens": (
        "gen_ai.usage.cache_read.input_tokens",  # the GenAI conventions
        "gen_ai.usage.details.cache_read_tokens",  # Pydantic AI
        "ai.usage.inputTokenDetails.cacheReadTokens",  # Vercel's AI SDK
        "llm.token_count.prompt_details.cache_read",
    ),
    "cache_creation_input_tokens": (
        "gen_ai.usage.cache_creation.input_tokens",
        "gen_ai.usage.cache_write.input_tokens",
        "gen_ai.usage.cache_write_input_tokens",  # Strands Agents
        "gen_ai.usage.details.cache_write_tokens",
        "ai.usage.inputTokenDetails.cacheWriteTokens",
        "llm.token_count.prompt_details.cache_write",
    ),
    "reasoning_tokens": (
        "gen_ai.usage.reasoning.output_tokens",
        "gen_ai.usage.details.reasoning_tokens",
        "ai.usage.outputTokenDetails.reasoningTokens",
        "llm.token_count.completion_details.reasoning",
    ),
    "prompt_tokens_details.audio_tokens": (
        "gen_ai.usage.details.input_audio_tokens",
        "llm.token_count.prompt_details.audio",
    ),
    "completion_tokens_details.audio_tokens": (
        "gen_ai.usage.details.output_audio_tokens",
        "llm.token_count.completion_details.audio",
    ),
}
#: Operations of Vercel's AI SDK that contain the span of the call itself -> kind.
_VERCEL = {
    "ai.generatetext": "chat",
    "ai.streamtext": "chat",
    "ai.generateobject": "chat",
    "ai.streamobject": "chat",
}


def split(records: list[tuple[int, Record]]) -> tuple[list[LoggedCall], list[Score]]:
    """Return the spans of a log as entries, and the scores outside of them.

    Events and log records hold evaluations and, with some tools, the messages of a call. A span that contains
    the span of a call of a model does not count as a call itself.
    """
    calls: list[LoggedCall] = []
    loose: dict[Any, list[Score]] = {}  # a span that was delivered twice has its evaluations once
    late: dict[Any, list[Any]] = defaultdict(list)
    for number, record in records:
        for span, resource in _spans(record):
            values = _attributes(span)
            span_id = first(span, *_IDS)
            named = first(span, "name", "eventName", "event_name") or values.get("event.name")
            events = [(_event_name(e), _attributes(e), e) for e in objects(span.get("events"))]
            is_event = _is_event(span, str(named))
            if is_event:
                events = [(str(values.get("event.name") or named), values, span)]
            scores = []
            for name, data, event in events:
                if name == _EVALUATION:
                    scores += _evaluation(data, span_id)
                else:
                    late[str(span_id)].extend(_event_messages(name, data, event))
            key = len(loose) if is_event else _identity(span, span_id) or len(loose)
            loose[key] = max(loose.get(key, []), scores, key=len)
            if is_event:
                continue
            calls.append(_call(number, span, resource, values, span_id))
    parents = parents_of(calls, least_containers=2)
    children = {c.within[0] for c in calls if len(c.within) > 1 and c.at("kind") in FORMAT.chats}
    for call in calls:
        call.within = upwards(call.within, parents)
        call.messages = call.messages or late.get(str(call.names[0]) if call.names else "")
        if call.at("kind") in FORMAT.chats and call.names and call.names[0] in children:
            call.views = ({**call.views[0], "kind": "holds the span of the call itself"}, *call.views[1:])
    return calls, [score for scores in loose.values() for score in scores]


def _is_event(span: Record, name: str) -> bool:
    """Return True if a record is no span but a log record, such as an evaluation or messages of a call.

    Args:
        name: name of the span or event that the record gives.
    """
    return name == _EVALUATION or "eventName" in span or "timeUnixNano" in span or "body" in span


def _call(number: int, span: Record, resource: Record, values: dict[str, Any], span_id: Any) -> LoggedCall:
    """Return a span as an entry.

    Args:
        number: number of its record in the file, from 1.
        resource: attributes of the resource that made the span.
        values: attributes of the span.
    """
    trace = first(span, *_TRACES)
    derived = {
        "attributes": values,  # so that `columns` may name a path as it stands in the file
        "usage": _usage(values),
        "kind": _kind(values, span),
        "session": first(values, "gen_ai.conversation.id", "session.id") or trace,
        "failed": _has_failed(span, values),
    }
    return LoggedCall(
        number,
        (derived, values, span, resource),
        names=ids(span_id, values.get("gen_ai.response.id")),
        within=ids(_parent_of(span), trace),
        messages=_as_messages(_messages_of(values)),
        scores=_scores_of(values),
        identity=_identity(span, span_id),
    )


def _identity(span: Record, span_id: Any) -> tuple[Any, ...]:
    """Return the ids of a span's trace and of the span, or an empty tuple if it lacks one of them."""
    found = ids(first(span, *_TRACES), span_id)
    return found if len(found) == 2 else ()


def _parent_of(span: Record) -> Any:
    """Return the id of the span's parent, or None. Jaeger writes it as a reference."""
    parent = first(span, *_PARENTS)
    if parent:
        return parent
    references = (r for r in objects(span.get("references")) if r.get("refType") != "FOLLOWS_FROM")
    return next((first(reference, "spanID", "spanId") for reference in references), None)


def _has_failed(span: Record, values: Record) -> bool:
    """Return True if status, flags or attributes of a span say that the call failed."""
    status = str(first(span, *_STATUSES) or values.get("otel.status_code") or "").casefold()
    succeeded = first(span, "success", "Success")
    return (
        status in ("2", "error", "status_code_error", "statuscode.error")
        or is_yes(values.get("error"))
        or is_yes(span.get("is_exception"))
        or (succeeded is not None and not is_yes(succeeded))
    )


def _messages_of(values: dict[str, Any]) -> Any:
    """Return the prompt in the attributes of a span: numbered messages first, then a whole list or text."""
    for prefix in ("gen_ai.prompt", "llm.input_messages", "llm.prompts"):
        messages = _numbered(values, prefix)
        if messages:
            return messages
    whole = first(values, *_MESSAGES)
    if isinstance(whole, str) and whole.lstrip()[:1] == "[":
        return parsed(whole)
    return whole


def _scores_of(values: Record) -> list[tuple[str, Any]]:
    """Return (name, value) of the annotations and evaluations in the attributes of a span."""
    scores = []
    for kind in ("annotation", "evaluation"):
        for entry in _numbered(values, f"{kind}s"):
            value = first(entry, f"{kind}.score", f"{kind}.label", "score", "label")
            if value is not None:
                scores.append((str(first(entry, f"{kind}.name", "name") or "score"), value))
    return scores


def _kind(values: dict[str, Any], span: Record) -> str:
    """Return the kind of a span in lower case.

    The kind comes from an attribute of Vercel's AI SDK, the GenAI conventions, OpenInference or OpenLLMetry,
    or else from the span's field `span_kind`. Without a kind, a span that names a model is a `chat`, and any
    other span is `UNKNOWN_KIND`.
    """
    vercel = first(values, "ai.operationId", "operation.name")
    if isinstance(vercel, str) and vercel.casefold().startswith("ai."):
        name = vercel.split(" ")[0].casefold()
        if name.endswith((".dogenerate", ".dostream")):
            return "chat"
        return _VERCEL.get(name, name)
    kind = first(
        values, "gen_ai.operation.name", "openinference.span.kind", "llm.request.type", "traceloop.span.kind"
    ) or span.get("span_kind")
    if isinstance(kind, str) and not kind.casefold().startswith(("spankind", "span_kind")):
        return kind.strip().casefold()
    if first(values, *_MODELS):
        return "chat"
    return UNKNOWN_KIND


def _spans(record: Record) -> Iterator[tuple[Record, Record]]:
    """Yield (span or log record, attributes of its resource) of a record.

    A record of OTLP or Jaeger may hold many spans. A record in another form is a span itself. Attributes of
    resources are read from OTLP alone, and are empty otherwise.
    """
    if isinstance(record.get("spans"), list) and ("traceID" in record or "processes" in record):  # Jaeger
        for span in objects(record["spans"]):
            yield span, {}
        return
    resources = [*objects(record.get("resourceSpans")), *objects(record.get("resourceLogs"))]
    if "scopeSpans" in record or "scopeLogs" in record:
        resources = [record]
    if not resources:
        yield record, {}
    for resource in resources:
        about = _attributes(resource.get("resource") or {})
        for scope in [*objects(resource.get("scopeSpans")), *objects(resource.get("scopeLogs"))]:
            for span in [*objects(scope.get("spans")), *objects(scope.get("logRecords"))]:
                yield span, about


def _attributes(span: Any) -> dict[str, Any]:
    """Return {name: value} of the attributes of a span, an event or a resource.

    The attributes are in a field of `_HOLDERS`, with nested ones as `_flat` returns them. Without such a
    field they are the fields `attributes.NAME`, else the fields with names such as `gen_ai.NAME`.
    """
    holder = next((name for name in _HOLDERS if isinstance(span, Mapping) and span.get(name)), None)
    if holder is not None:
        entries = parsed(span[holder])
    else:
        entries = None
    if isinstance(entries, list) and all(
        isinstance(item, list | tuple) and len(item) == 2 for item in entries
    ):
        entries = dict(entries)  # a map of parquet
    if isinstance(entries, Mapping):
        return _flat(entries)
    if isinstance(entries, list):
        return {str(item.get("key")): _any_value(item.get("value")) for item in objects(entries)}
    if not isinstance(span, Mapping):
        return {}
    flat = {k.removeprefix("attributes."): v for k, v in span.items() if k.startswith("attributes.")}
    return flat or {
        k: v for k, v in span.items() if k.startswith(("gen_ai.", "llm.", "openinference.", "ai."))
    }


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes, those nested in gen_ai, llm, ai or openinference also under their dotted names.

    From {gen_ai: {request: {model: m}}}, for example, the key `gen_ai.request.model` is made.
    """
    flat = dict(values)
    for root in ("gen_ai", "llm", "ai", "openinference"):
        waiting = [(root, values.get(root))]
        while waiting:
            name, value = waiting.pop()
            if isinstance(value, Mapping):
                waiting += [(f"{name}.{key}", inner) for key, inner in value.items()]
            elif value is not None:
                flat.setdefault(name, value)
    return flat


def _usage(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a usage block: the attributes `ai.usage.NAME` and `gen_ai.usage.NAME` of a span under NAME.

    Attributes of `_COUNTS` are in the block under their fields there. Logfire's usage block is included.
    """
    usage: dict[str, Any] = {}
    block = at(values, "response_data.usage")
    usage |= block if isinstance(block, Mapping) else {}
    for prefix in ("ai.usage.", "gen_ai.usage."):
        usage |= {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}
    for field, names in _COUNTS.items():
        count = next((values[name] for name in names if values.get(name) is not None), None)
        holder, _, part = field.rpartition(".")
        if count is None:
            continue
        if holder:
            usage[holder] = {part: count}
        else:
            usage.setdefault(part, count)
    return usage


def _any_value(value: Any) -> Any:
    """Return the value that OTLP wraps as {stringValue: ...}, {intValue: ...}, {arrayValue: ...} etc.

    Any mapping is taken for such a wrapper, of which the first value counts. Other values are returned as
    they are.
    """
    if not isinstance(value, Mapping):
        return value
    kind, inner = next(iter(value.items()), ("", None))
    if kind == "arrayValue":
        return [_any_value(v) for v in (inner or {}).get("values", [])]
    if kind == "kvlistValue":
        return {
            str(v.get("key")): _any_value(v.get("value")) for v in objects((inner or {}).get("values", []))
        }
    if kind == "intValue" and isinstance(inner, str) and inner.lstrip("-").isdecimal():
        return int(inner)
    return inner


def _numbered(values: Record, prefix: str) -> list[dict[str, Any]]:
    """Return the objects that numbered attributes hold, or those of a list that stands at the prefix itself.

    The attributes `prefix.0.a.b`, `prefix.1.a.b` and so on become a list of {a.b: value}. Items of a list
    that are no objects are left out.
    """
    there = at(values, prefix)
    if isinstance(there, list):
        return [dict(item) for item in there if isinstance(item, Mapping)]
    items: dict[int, dict[str, Any]] = defaultdict(dict)
    for key, value in values.items():
        number, _, name = key.removeprefix(f"{prefix}.").partition(".")
        if key.startswith(f"{prefix}.") and number.isdecimal():
            items[int(number)][name] = value
    return [items[i] for i in sorted(items)]


def _as_messages(messages: Any) -> Any:
    """Return messages of OpenInference in the form of chat; other values stay as they are."""
    if not isinstance(messages, list):
        return messages
    return [_message(m) if isinstance(m, Mapping) else m for m in messages]


def _message(message: Record) -> Record:
    """Return a message of OpenInference with role and content; other messages stay as they are."""
    prompt = at(message, "prompt.text")
    if prompt is not None:
        return {"role": "user", "content": prompt}
    role = at(message, "message.role")
    content = at(message, "message.content")
    if role is None:
        return message
    if content is None:
        parts = _numbered(message, "message.contents") or objects(at(message, "message.contents"))
        content = [
            {
                "type": first(p, "message_content.type", "type"),
                "text": first(p, "message_content.text", "text"),
            }
            for p in parts
        ]
    return {"role": role, "content": content}


def _event_name(event: Record) -> str:
    """Return the name of an event, or ''."""
    return str(first(event, "name", "eventName") or _attributes(event).get("event.name") or "")


def _event_messages(name: str, data: Record, event: Record) -> list[Any]:
    """Return the messages that an event or log record holds, or an empty list.

    The messages stand in `gen_ai.input.messages`, or one message in each event `gen_ai.user.message`,
    `gen_ai.system.message` and so on.
    """
    whole = parsed(data.get("gen_ai.input.messages"))
    if isinstance(whole, list):
        return whole
    if name.startswith("gen_ai.") and name.endswith(".message"):
        body = _any_value(event.get("body"))
        content = first(data, "content", "gen_ai.event.content") or first(body, "content")
        return [{"role": name.split(".")[1], "content": content}]
    return []


def _evaluation(data: Record, span_id: Any) -> list[Score]:
    """Return the score in the data of an evaluation as a list, which is empty if there is no value.

    The score belongs to the call with the response id in the data, or with the id of the span.
    """
    value = first(data, "gen_ai.evaluation.score.value", "gen_ai.evaluation.score.label")
    about = ids(data.get("gen_ai.response.id"), span_id)
    name = str(data.get("gen_ai.evaluation.name") or "score")
    if value is None:
        return []
    return [Score(about, name, value)]


FORMAT = Format(
    split,
    kind=("kind",),
    chats=frozenset({"chat", "text_completion", "generate_content", "completion", "llm"}),
    status=(),
    errors=("failed", "error.type", "exception.type"),
    cached=("cache_hit", "gen_ai.response.cached"),
    model=_MODELS,
    prompt=(),  # messages are put together from attributes and events
    cost=("gen_ai.usage.cost", "operation.cost", "llm.cost.total", "llm.usage.cost", "cost"),
    usage=("usage",),
    input_tokens=("llm.token_count.prompt",),
    output_tokens=("llm.token_count.completion",),
    tokens=("llm.usage.total_tokens", "llm.token_count.total"),
    session=("session",),
    also=(
        *(
            "traceId trace_id spanId span_id context parentSpanId parent_span_id parent_id name "
            "attributes events status status_code span_kind gen_ai.operation.name openinference.span.kind "
            "llm.request.type traceloop.span.kind gen_ai.conversation.id session.id gen_ai.response.id "
            "annotations evaluations traceID spanID references tags logs processID operationName "
            "SpanAttributes SpanId TraceId ParentSpanId StatusCode customDimensions Properties operation_Id "
            "operation_ParentId OperationId ParentId success Success id Id"
        ).split(),
        *_MESSAGES,
        *(f"{prefix}.usage.{name}" for prefix in ("gen_ai", "ai") for name in FIELDS),
        *(name for names in _COUNTS.values() for name in names),
    ),
    time=(
        "startTimeUnixNano",
        "Timestamp",
        "timestamp",
        "TimeGenerated",
        "start_timestamp",
        "start_time",
        "startTime",
        "start_time_unix_nano",
    ),
)
