"""Langfuse: traces with observations (API), rows of its pages' export, files of the blob export.

Sources: Langfuse's API, `observation-stream.ts` of its worker, "Blob storage export field reference", 2026.
"""

from collections.abc import Mapping
from typing import Any

from cabs_core.data.endpoints.usage import as_count
from cabs_core.data.logs.calls import Format, LoggedCall, Record, Score, ids, labelled, named, upwards
from cabs_core.data.tables.dotted import first, objects, parsed

#: lists in a row of the pages' export that are no scores
_LISTS = frozenset(
    (
        "tags traceTags comments toolCalls toolCallNames toolDefinitions input output tool_calls "
        "tool_call_names trace_tags userIds environment metadata observations"
    ).split()
)


def split(records: list[tuple[int, Record]]) -> tuple[list[LoggedCall], list[Score]]:
    """Observations are entries; rows of traces add what these leave out; rows of scores join both."""
    calls: list[LoggedCall] = []
    loose: list[Score] = []
    traces = {name: r for _, r in records if _is_trace(r) for name in ids(r.get("id"))}
    for number, r in records:
        if _is_score(r):
            loose += _loose(r)
            continue
        if observations := objects(r.get("observations")):
            calls += [_call(number, o, r, r.get("id")) for o in observations]
            for score in objects(r.get("scores")):
                loose += _loose({"traceId": r.get("id"), **{k: v for k, v in score.items() if v is not None}})
        elif _is_trace(r):
            loose += [Score(ids(r.get("id")), *score) for score in _row_scores(r)]
        else:
            trace = next(iter(ids(r.get("traceId"), r.get("trace_id"))), None)
            calls.append(_call(number, r, traces.get(trace, {}), trace))
    parents = {c.names[0]: c.within[0] for c in calls if c.names and c.within}
    for call in calls:
        call.within = upwards(call.within, parents)
    return calls, loose


def _is_trace(record: Record) -> bool:
    """Whether a row is a trace: it has no trace of its own, no type and no model."""
    identity = (
        "traceId",
        "trace_id",
        "type",
        "model",
        "providedModelName",
        "provided_model_name",
        "modelId",
        "internalModel",
    )
    return not any(record.get(key) not in (None, "") for key in identity)


def _is_score(record: Record) -> bool:
    kind = record.get("dataType") or record.get("data_type")
    about = ("traceId", "trace_id", "observationId", "observation_id", "sessionId", "session_id")
    valued = any(key in record for key in ("value", "stringValue", "string_value"))
    return (
        bool(kind or valued) and "name" in record and "type" not in record and any(k in record for k in about)
    )


def _loose(score: Record) -> list[Score]:
    keys = ("observationId", "observation_id", "traceId", "trace_id", "sessionId", "session_id")
    value = labelled(score)
    name = str(score.get("name") or "score")
    return [] if value is None else [Score(ids(*(score.get(key) for key in keys))[:1], name, value)]


def _call(number: int, o: Record, trace: Record, trace_id: Any) -> LoggedCall:
    parent = o.get("parentObservationId") or o.get("parent_observation_id")
    session = next((v for r in (o, trace) for k in ("sessionId", "session_id") if (v := r.get(k))), None)
    mine = {"session": session or trace_id, "kind": _kind(o), "usage_in_kinds": _usage(o)}
    within, names = ids(parent, trace_id, session), ids(o.get("id"))
    scores = named(o.get("scores")) if o is not trace else []
    rows = _row_scores(o) if "observations" not in trace else []
    return LoggedCall(
        number, (mine, o, trace), names, within, messages=trace.get("input"), scores=scores + rows
    )


def _usage(observation: Record) -> dict[str, float]:
    """Tokens in and out, which Langfuse keeps by kind, such as `input_cached_tokens`."""
    kinds = parsed(observation.get("usageDetails") or observation.get("usage_details"))
    items = kinds.items() if isinstance(kinds, Mapping) else ()
    counts = {name: number for name, v in items if (number := as_count(v)) is not None}
    return {
        f"{side}_tokens": sum(number for name, number in counts.items() if side in name.casefold())
        for side in ("input", "output")
        if any(side in name.casefold() for name in counts)
    }


def _kind(observation: Record) -> Any:
    """The type, or that it is a judge's: Langfuse runs its evaluators in environments of its own."""
    place = str(observation.get("environment") or "")
    return "evaluator" if place.startswith("langfuse-") else observation.get("type")


def _row_scores(row: Record) -> list[tuple[str, Any]]:
    """Scores of a row of the pages' export: columns with their names, whose cells are lists of values."""
    pairs = []
    for name, cell in row.items():
        if name in _LISTS or name == "scores":
            continue
        values = parsed(cell) if isinstance(cell, str) and cell[:1] == "[" else cell
        if isinstance(values, list) and values and all(isinstance(v, str | int | float) for v in values):
            pairs += [(name, value) for value in values]
    return pairs


def _unpriced(call: LoggedCall) -> bool:
    """A total of 0 beside no details: no price of the model is known."""
    details = parsed(call.first(("costDetails", "cost_details")))
    total = first(call.views[1], *FORMAT.cost)
    empty = isinstance(details, Mapping) and all(value is None for value in details.values())
    return empty and total in (0, 0.0, "0", "0.0")


FORMAT = Format(
    split,
    kind=("kind",),
    chats=frozenset({"generation"}),
    status=("level",),
    errors=(),
    cached=(),
    model=("model", "providedModelName", "provided_model_name", "internalModel"),
    prompt=("input", "prompt"),
    cost=(
        "costDetails.total",
        "cost_details.total",
        "calculatedTotalCost",
        "totalCost",
        "total_cost",
        "cost",
    ),
    unpriced=_unpriced,
    zero_is_free=True,
    usage=("usage_in_kinds", "usage", ""),
    input_tokens=("usageDetails.input", "usage_details.input", "usage.input", "inputUsage"),
    output_tokens=("usageDetails.output", "usage_details.output", "usage.output", "outputUsage"),
    tokens=("usageDetails.total", "usage_details.total", "usage.total", "totalUsage"),
    session=("session",),
    also=tuple(
        (
            "id type environment observations scores traceId trace_id sessionId session_id "
            "parentObservationId parent_observation_id"
        ).split()
    ),
    time=("startTime", "start_time", "timestamp"),
)
