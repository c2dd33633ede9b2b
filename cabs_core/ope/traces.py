"""Other people's logs: calls as LiteLLM, Langfuse, OpenAI, OpenTelemetry, vLLM Semantic Router and Helicone write them.

    frame, left_out = read_traces(path, "langfuse", columns)

Each record becomes one call: the text that the server would route by (nested messages flattened), the model that answered, its
score, cost, tokens, conversation (`session`). Where the defaults of a format do not fit, `source.columns` names dotted paths into the record, such
as `score: metadata.rating` or `model: calls.0.model`.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from cabs_core.endpoints.request import chat_text
from cabs_core.errors import DataError, shortened
from cabs_core.pool_files.config import Columns

_UP = {
    "up",
    "thumbs_up",
    "thumbsup",
    "thumb_up",
    "like",
    "liked",
    "positive",
    "good",
    "pass",
    "passed",
    "true",
    "yes",
    "correct",
    "👍",
}
_DOWN = {"down", "thumbs_down", "thumbsdown", "thumb_down", "dislike", "disliked", "negative", "bad", "fail", "failed", "false", "no", "incorrect", "👎"}  # fmt: skip
Record = Mapping[str, Any]


@dataclass
class Call:
    """One call of a log.

    Attributes:
        scores: {name: value} of what was said about it; values as they stand in the log.
        session, number: of one conversation, and the record's place in the file (from 1).
        owner: what a score that names no call may be about: a trace or session.
    """

    number: int
    messages: Any
    model: Any
    scores: dict[str, Any] = field(default_factory=dict)
    cost: Any = None
    tokens_in: Any = None
    tokens_out: Any = None
    session: Any = None
    propensity: Any = None
    task: Any = None


def at(record: Any, path: str) -> Any:
    """The value at a dotted path of nested mappings and lists; None where there is none. A key may itself hold dots."""
    if path == "" or record is None:
        return record
    if isinstance(record, str) and record[:1] in "{[":  # JSON within JSON
        record = _parsed(record)
    if isinstance(record, Mapping):
        if path in record:
            return record[path]
        parts = path.split(".")
        for size in range(len(parts) - 1, 0, -1):
            key = ".".join(parts[:size])
            if key in record:
                return at(record[key], ".".join(parts[size:]))
        return None
    head, _, rest = path.partition(".")
    if isinstance(record, list) and head.lstrip("-").isdigit() and -len(record) <= int(head) < len(record):
        return at(record[int(head)], rest)
    return None


def first(record: Any, *paths: str) -> Any:
    """The first value that is there."""
    return next((value for path in paths if (value := at(record, path)) is not None and value != ""), None)


def read_traces(path: Path, form: str, columns: Columns) -> tuple[pd.DataFrame, dict[str, int]]:
    """(calls with columns prompt, model, score, cost, n_input_tokens, n_output_tokens, session, and their place `row`; what was left out).

    Args:
        path: .jsonl (a record a line) or .json (a list, or an object that holds one).
        form: a key of `FORMATS`. columns: fields that were set name dotted paths, `score` also the name of a score.

    Raises:
        DataError: it cannot be read, no record has a prompt, a model, the wanted score or the session that is named, or there are
            several scores and none is named; the first record's fields are shown.
    """
    records = list(_records(path))
    calls = list(FORMATS[form](records))
    chosen = columns.model_fields_set
    for call in calls:
        record = records[call.number - 1]
        for name, target in _TARGETS.items():
            if name in chosen and (value := at(record, str(getattr(columns, name)))) is not None:
                setattr(call, target, value)
    if "session" in chosen and columns.session and all(at(r, columns.session) is None for r in records):
        raise DataError(
            f"{path}: no record has {columns.session!r:.100}, which source.columns.session names. The first record has "
            f"{shape(records[0])}"
        )
    wanted = _wanted_score(path, calls, records, columns if "score" in chosen else None)
    left_out: Counter[str] = Counter()
    rows = []
    for call in calls:
        text = routed_text(call.messages)
        if text is None or call.model is None:
            left_out["no text of a user" if text is None else "no model"] += 1
            continue
        row = {
            "prompt": text, "model": str(call.model), "score": _score(path, call, wanted), "cost": call.cost,
            "n_input_tokens": call.tokens_in, "n_output_tokens": call.tokens_out, "row": call.number,
            "session": None if columns.session is None else call.session,
        }  # fmt: skip
        rows.append(
            row | {k: v for k, v in (("propensity", call.propensity), ("task", call.task)) if v is not None}
        )
    if not rows:
        what = "calls" if not calls else "prompts" if left_out["no text of a user"] else "models"
        raise DataError(
            f"{path}: no {what} were found as format {form}. The first record has {shape(records[0])}. Name the places under "
            "source.columns as dotted paths, e.g. columns: {prompt: a.messages, model: b.model, score: c.0.value}, or use another format"
        )
    frame = pd.DataFrame(rows)
    return frame.dropna(axis="columns", how="all").assign(score=frame["score"]), dict(left_out)


#: field of `source.columns` -> what of a call it names
_TARGETS = {
    "prompt": "messages", "model": "model", "cost": "cost", "input_tokens": "tokens_in", "output_tokens": "tokens_out",
    "propensity": "propensity", "task": "task", "session": "session",
}  # fmt: skip


def _wanted_score(
    path: Path, calls: list[Call], records: list[Record], columns: Columns | None
) -> str | None:
    """The score to read: a name, or '' for a dotted path whose value was put under that name; None: there are none."""
    if columns is not None:
        named = columns.score
        for call in calls:
            if named not in call.scores and (value := at(records[call.number - 1], named)) is not None:
                call.scores[named] = value
        if not any(named in call.scores for call in calls):
            titles = sorted({name for call in calls for name in call.scores})
            raise DataError(
                f"{path}: no record has a score {named!r:.100} (source.columns.score: the name of a score, or a dotted path). "
                f"{f'Scores are: {chr(44).join(titles):.300}' if titles else f'The first record has {shape(records[0])}'}"
            )
        return named
    names = Counter(name for call in calls for name in call.scores)
    if len(names) > 1:
        listed = ", ".join(f"{name} ({count:,})" for name, count in names.most_common())
        raise DataError(f"{path} holds several scores: {listed:.400}. Name one: source.columns.score")
    return next(iter(names), None)


def _score(path: Path, call: Call, wanted: str | None) -> Any:
    value = call.scores.get(wanted) if wanted is not None else None
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        word = value.strip().casefold().replace("-", "_").replace(" ", "_")
        if word in _UP or word in _DOWN:
            return float(word in _UP)
        try:
            value = float(word) if word else None
        except ValueError:
            raise DataError(
                f"{path}, record {call.number}: score {wanted!r:.60} is {value!r:.60}; expected a number, true or false, or a thumb "
                f"({', '.join(sorted(_UP)[:4])}, ...)"
            ) from None
    if isinstance(value, dict | list):
        raise DataError(
            f"{path}, record {call.number}: score {wanted!r:.60} is {shape(value)}; name the number in it: source.columns.score"
        )
    return 0.0 if value == -1 else value  # thumbs as -1 and 1


def routed_text(messages: Any) -> str | None:
    """The text by which the server would route a request with these messages; None: there is none.

    Args:
        messages: a text; messages as OpenAI, Anthropic or OpenTelemetry (`parts`) write them; an object that holds them under
            messages, input or prompt; or any of these as JSON.
    """
    if isinstance(messages, str) and messages.lstrip()[:1] in ("[", "{"):
        messages = _parsed(messages)
    return chat_text(messages)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def shape(value: Any, depth: int = 2) -> str:
    """What a record holds, in a line: its keys, nested ones in braces."""
    if isinstance(value, Mapping):
        inner = (
            f"{k}{f' {shape(v, depth - 1)}' if depth > 1 and isinstance(v, dict | list) else ''}"
            for k, v in value.items()
        )
        return "{" + shortened(", ".join(inner), 500) + "}"
    if isinstance(value, list):
        return f"[{shape(value[0], depth) if value else ''}]"
    return type(value).__name__


def _records(path: Path) -> Iterator[Record]:
    """The records of a file.

    Raises:
        DataError: it cannot be read, or is no JSON.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as a log: {error}") from None
    records: list[Any] = []
    try:
        whole = json.loads(text)
        records = whole if isinstance(whole, list) else [whole]
        if isinstance(whole, Mapping) and isinstance(
            inner := first(whole, "data", "observations", "records", "traces"), list
        ):
            records = [*inner] if "observations" not in whole else [whole]
    except RecursionError:
        raise DataError(f"{path}: JSON that is nested too deeply") from None
    except ValueError:
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip():
                continue
            try:
                records.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"{path}, line {number}: not JSON ({error}); expected one JSON object a line, or one JSON file"
                ) from None
    wrong = next((i for i, record in enumerate(records, 1) if not isinstance(record, Mapping)), 0)
    if wrong or not records:
        what = f"record {wrong} is {shape(records[wrong - 1])}" if wrong else "there are no records"
        raise DataError(f"{path}: {what}; expected JSON objects")
    yield from records


def _named(scores: Any) -> dict[str, Any]:
    """{name: value} of scores as lists of objects, as a mapping, or a single value."""
    if isinstance(scores, list):
        return {
            str(first(s, "name", "key", "id") or "score"): first(s, "value", "score", "stringValue", "string_value", "label")
            for s in scores if isinstance(s, Mapping)
        }  # fmt: skip
    if isinstance(scores, Mapping):
        return {str(k): at(v, "value") if isinstance(v, Mapping) else v for k, v in scores.items()}
    return {} if scores is None else {"score": scores}


def _feedback(record: Record) -> dict[str, Any]:
    """Scores where users of a format without scores put them: beside the call, or in its metadata."""
    scores: dict[str, Any] = {}
    for place in ("", "metadata.", "metadata.requester_metadata.", "metadata.spend_logs_metadata."):
        for name in ("score", "rating", "feedback", "thumbs", "thumb", "stars", "user_feedback"):
            value = at(record, place + name)
            if value is not None and not isinstance(value, dict | list):
                scores.setdefault(name, value)
        scores |= _named(at(record, place + "scores"))
    return {name: value for name, value in scores.items() if value is not None}


#: kinds of LiteLLM's calls that answer a prompt, without the `a` of those that were awaited
_CHATS = ("completion", "text_completion", "responses", "nthropic_messages")


def _litellm(records: Iterable[Record]) -> Iterator[Call]:
    """StandardLoggingPayload, and rows of LiteLLM_SpendLogs with stored prompts."""
    for number, r in enumerate(records, 1):
        if str(r.get("call_type") or "completion").removeprefix("a") not in _CHATS:
            continue
        if r.get("status") == "failure":
            continue
        yield Call(
            number, first(r, "messages", "proxy_server_request.messages"), first(r, "model_group", "model"), _feedback(r),
            first(r, "response_cost", "spend"), first(r, "prompt_tokens"), first(r, "completion_tokens"),
            first(r, "session_id", "metadata.session_id", "trace_id"),
        )  # fmt: skip


def _langfuse(records: Iterable[Record]) -> Iterator[Call]:
    """Traces with observations and scores, or observations (generations) a line. A score of a trace is of its last generation."""
    late: dict[Any, dict[str, Any]] = defaultdict(dict)
    calls: list[tuple[Any, Call]] = []
    for number, r in enumerate(records, 1):
        inner = r.get("observations")
        generations = (
            [o for o in inner if isinstance(o, Mapping) and o.get("type") == "GENERATION"]
            if isinstance(inner, list)
            else []
        )
        flat = not generations and (r.get("type") in (None, "GENERATION"))
        trace = first(r, "traceId", "id") if flat else r.get("id")
        for o in generations or ([r] if flat else []):
            scores = _named(o.get("scores")) if o is not r else {}
            call = Call(
                number, first(o, "input", "prompt") or r.get("input"), first(o, "model", "providedModelName", "modelId", "internalModel"), scores,
                first(o, "costDetails.total", "calculatedTotalCost", "totalCost", "cost"),
                first(o, "usageDetails.input", "usage.input", "usage.promptTokens", "promptTokens", "inputUsage"),
                first(o, "usageDetails.output", "usage.output", "usage.completionTokens", "completionTokens", "outputUsage"),
                first(r, "sessionId", "traceId") or trace,
            )  # fmt: skip
            calls.append((trace, call))
            raw = r.get("scores")
            if isinstance(raw, list) and generations:
                mine = [s for s in raw if isinstance(s, Mapping) and s.get("observationId") == o.get("id")]
                call.scores |= _named([s for s in mine if s.get("observationId") is not None])
            elif not generations:
                call.scores |= _named(raw)
        if generations and isinstance(r.get("scores"), list):
            late[trace] |= _named(
                [s for s in r["scores"] if isinstance(s, Mapping) and not s.get("observationId")]
            )
    last = dict(calls)
    for trace, scores in late.items():
        if trace in last:
            last[trace].scores = {**scores, **last[trace].scores}
    yield from (call for _, call in calls)


def _openai(records: Iterable[Record]) -> Iterator[Call]:
    """Requests with responses: stored completions, batch files with their request, or `{request, response}` pairs."""
    for number, r in enumerate(records, 1):
        request = first(r, "request.body", "request", "body") or r
        response = first(r, "response.body", "response", "completion") or r
        usage = first(response, "usage") or first(r, "usage")
        yield Call(
            number, first(request, "messages", "input", "prompt"), first(response, "model") or first(request, "model"), _feedback(r),
            first(r, "cost", "cost_usd", "metadata.cost"), first(usage, "prompt_tokens", "input_tokens"),
            first(usage, "completion_tokens", "output_tokens"), first(r, "metadata.session_id", "session_id"),
        )  # fmt: skip


_EVALUATED = "gen_ai.evaluation.result"


def _otel(records: Iterable[Record]) -> Iterator[Call]:
    """Spans by the GenAI conventions, as OTLP JSON or one span a line; evaluations are events of the span or of its response."""
    evaluations: dict[Any, dict[str, Any]] = defaultdict(dict)
    calls: list[tuple[tuple[Any, ...], Call]] = []
    for number, r in enumerate(records, 1):
        for span in _spans(r):
            values = _attributes(span.get("attributes"))
            name = values.get("event.name") or span.get("name") or span.get("eventName")
            owner = first(span, "spanId", "span_id", "context.span_id")
            for event in [
                *_objects(span.get("events")),
                *([span] if name == _EVALUATED else []),
            ]:
                data = values if event is span else _attributes(event.get("attributes"))
                if first(data, "event.name") == _EVALUATED or first(event, "name", "eventName") == _EVALUATED:
                    title = str(data.get("gen_ai.evaluation.name") or "score")
                    value = first(data, "gen_ai.evaluation.score.value", "gen_ai.evaluation.score.label")
                    for place in (owner, data.get("gen_ai.response.id")):
                        if place is not None:
                            evaluations[place][title] = value
            if name == _EVALUATED or not any(
                k in values for k in ("gen_ai.request.model", "gen_ai.response.model")
            ):
                continue
            old = {k: v for k, v in values.items() if k.startswith("gen_ai.prompt.")}
            messages = (
                first(values, "gen_ai.input.messages", "gen_ai.prompt")
                or _numbered(old)
                or _message_events(span)
            )
            calls.append(
                (
                    (owner, values.get("gen_ai.response.id")),
                    Call(
                        number, messages, first(values, "gen_ai.response.model", "gen_ai.request.model"), {},
                        first(values, "gen_ai.usage.cost", "llm.usage.cost", "cost"),
                        first(values, "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
                        first(values, "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
                        first(values, "gen_ai.conversation.id", "session.id") or first(span, "traceId", "trace_id", "context.trace_id"),
                    ),
                )
            )  # fmt: skip
    for places, call in calls:
        for place in places:
            call.scores |= evaluations.get(place, {}) if place is not None else {}
        yield call


def _spans(record: Record) -> Iterator[Record]:
    """The spans and log records of OTLP JSON, or the record itself."""
    resources = [*_objects(record.get("resourceSpans")), *_objects(record.get("resourceLogs"))]
    if not resources:
        yield record
    for resource in resources:
        for scope in [*_objects(resource.get("scopeSpans")), *_objects(resource.get("scopeLogs"))]:
            yield from [*_objects(scope.get("spans")), *_objects(scope.get("logRecords"))]


def _objects(value: Any) -> list[Record]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _attributes(entries: Any) -> dict[str, Any]:
    """Attributes as a mapping; OTLP writes them as a list of {key, value: {stringValue | intValue | ...}}."""
    if isinstance(entries, Mapping):
        return dict(entries)
    values = {}
    for item in _objects(entries):
        value = item.get("value")
        values[str(item.get("key"))] = (
            next(iter(value.values()), None) if isinstance(value, Mapping) else value
        )
    return values


def _numbered(old: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Messages of `gen_ai.prompt.0.role`, `gen_ai.prompt.0.content`, ..."""
    messages: dict[int, dict[str, Any]] = defaultdict(dict)
    for key, value in old.items():
        number, _, name = key.removeprefix("gen_ai.prompt.").partition(".")
        if number.isdigit():
            messages[int(number)][name] = value
    return [messages[i] for i in sorted(messages)]


def _message_events(span: Record) -> list[dict[str, Any]]:
    """Messages of the events `gen_ai.user.message`, ..."""
    messages = []
    for event in _objects(span.get("events")):
        name = str(event.get("name") or "")
        if name.startswith("gen_ai.") and name.endswith(".message"):
            data = _attributes(event.get("attributes"))
            messages.append(
                {"role": name.split(".")[1], "content": first(data, "content", "gen_ai.event.content")}
            )
    return messages


def _vllm_sr(records: Iterable[Record]) -> Iterator[Call]:
    """Records of Router Replay: the model that was selected, the request and response bodies, outcomes posted later."""
    for number, r in enumerate(records, 1):
        request, response = r.get("request_body"), r.get("response_body")
        scores = _feedback(r) | _named(first(r, "outcomes", "outcome"))
        yield Call(
            number, request, first(r, "selected_model", "original_model"), scores, first(r, "cost", "actual_cost", "usage.cost"),
            first(response, "usage.prompt_tokens") or first(r, "prompt_tokens", "usage.prompt_tokens"),
            first(response, "usage.completion_tokens") or first(r, "completion_tokens", "usage.completion_tokens"),
            first(r, "session_id", "conversation_id"), task=first(r, "category"),
        )  # fmt: skip


def _helicone(records: Iterable[Record]) -> Iterator[Call]:
    """Rows of the request API or of an export: bodies, cost, properties, feedback (a thumb) and scores."""
    for number, r in enumerate(records, 1):
        thumb = first(r, "feedback_rating", "request_feedback.rating", "feedback.rating")
        scores = _named(r.get("scores")) | ({"feedback": thumb} if thumb is not None else {})
        yield Call(
            number, first(r, "request_body", "request.body", "request_prompt"), first(r, "response_body.model", "model", "response_model", "request_model"),
            scores, first(r, "cost_usd", "costUSD", "cost"), first(r, "prompt_tokens", "response_body.usage.prompt_tokens"),
            first(r, "completion_tokens", "response_body.usage.completion_tokens"),
            first(r, "request_properties.Helicone-Session-Id", "properties.Helicone-Session-Id", "request_session"),
        )  # fmt: skip


#: {source.format: reader}
FORMATS: dict[str, Callable[[Iterable[Record]], Iterator[Call]]] = {
    "litellm": _litellm, "langfuse": _langfuse, "openai": _openai, "otel": _otel, "vllm_sr": _vllm_sr, "helicone": _helicone,
}  # fmt: skip
