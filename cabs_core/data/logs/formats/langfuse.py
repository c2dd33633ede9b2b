"""Langfuse: traces with observations (API), rows of the export of its pages, and files of its blob export.

Sources: Langfuse's API, `observation-stream.ts` of its worker, "Blob storage export field reference", 2026.
"""

import re
from collections.abc import Mapping
from typing import Any

from cabs_core.data.endpoints.usage import as_count
from cabs_core.data.logs.calls import (
    Format,
    LoggedCall,
    Record,
    Score,
    ids,
    labelled,
    named,
    parents_of,
    upwards,
)
from cabs_core.data.tables.dotted import first, objects, parsed

#: Ids by which a score names what was scored, the nearest first.
_SCORED_IDS = ("observationId", "observation_id", "traceId", "trace_id", "sessionId", "session_id")
#: Columns of the pages' export that hold lists and are no scores.
_LISTS = frozenset(
    (
        "tags traceTags comments toolCalls toolCallNames toolDefinitions input output tool_calls "
        "tool_call_names trace_tags userIds environment metadata observations"
    ).split()
)
#: Kinds of tokens that were written to the cache, such as `input_cache_creation_1h`.
_WRITTEN = re.compile("creation|write|ephemeral")
#: Fields of a trace with sums over all of its observations, which are no values of any one of them.
_SUMS_OF_TRACE = re.compile("cost|usage|tokens|latency|duration", re.IGNORECASE)


def split(records: list[tuple[int, Record]]) -> tuple[list[LoggedCall], list[Score]]:
    """Return (entries of a log, scores outside of the entries).

    Observations are entries. Rows of traces give the session and the prompt that an observation leaves out.
    Scores outside of the entries stand in rows of scores, or in a trace: as its `scores` or as its columns.
    A score with an id that stands in several files is read once.
    """
    calls: list[LoggedCall] = []
    loose: list[Score] = []
    read: set[Any] = set()

    def is_new(record: Record) -> bool:
        """Return True unless a score with the id of this one was read before."""
        names = ids(record.get("id"))
        is_known = names[:1] and names[0] in read
        read.update(names)
        return not is_known

    traces = {name: r for _, r in records if _is_trace(r) for name in ids(r.get("id"))}
    for number, r in records:
        if _is_score(r):
            if is_new(r):
                loose += _loose(r)
            continue
        observations = objects(r.get("observations"))
        if observations:
            calls += [_call(number, o, r, r.get("id")) for o in observations]
            for score in filter(is_new, objects(r.get("scores"))):
                loose += _loose({"traceId": r.get("id"), **{k: v for k, v in score.items() if v is not None}})
        elif _is_trace(r):
            loose += [Score(ids(r.get("id")), *score) for score in _row_scores(r)]
        else:
            trace = next(iter(ids(r.get("traceId"), r.get("trace_id"))), None)
            calls.append(_call(number, r, traces.get(trace, {}), trace))
    parents = parents_of(calls)
    for call in calls:
        call.within = upwards(call.within, parents)
    return calls, loose


def _is_trace(record: Record) -> bool:
    """Return True if a row is a trace: it belongs to no other trace and has neither type nor model."""
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
    """Return True if a row is a score.

    A score has a name, a value or a data type, the id of the scored object, and no field `type`.
    """
    kind = record.get("dataType") or record.get("data_type")
    has_value = any(key in record for key in ("value", "stringValue", "string_value"))
    has_id = any(key in record for key in _SCORED_IDS)
    return bool(kind or has_value) and "name" in record and "type" not in record and has_id


def _loose(score: Record) -> list[Score]:
    """Return the score in a row of scores as a list, which is empty if the row has no value or is a comment.

    Only the nearest object that the row names counts as scored: the observation before trace and session.
    """
    value = labelled(score)
    if value is None:
        return []
    about = ids(*(score.get(key) for key in _SCORED_IDS))[:1]
    return [Score(about, str(score.get("name") or "score"), value)]


def _call(number: int, observation: Record, trace: Record, trace_id: Any) -> LoggedCall:
    """Return an observation as an entry, whose session is the trace's id if neither record names a session.

    Args:
        number: number of its record in the file, from 1.
        trace: the trace that contains the observation; empty if the log has no row of the trace.
    """
    parent = observation.get("parentObservationId") or observation.get("parent_observation_id")
    sessions = (record.get(key) for record in (observation, trace) for key in ("sessionId", "session_id"))
    session = next((value for value in sessions if value), None)
    derived = {
        "session": session or trace_id,
        "kind": _kind(observation),
        "usage_in_kinds": _usage(observation),
    }
    if observation is not trace:
        scores = named(observation.get("scores"))
    else:
        scores = []
    if "observations" not in trace:
        scores += _row_scores(observation)
    return LoggedCall(
        number,
        (derived, observation, _inherited(trace)),
        names=ids(observation.get("id")),
        within=ids(parent, trace_id, session),
        messages=trace.get("input"),
        scores=scores,
        identity=ids(observation.get("id")),
    )


def _inherited(trace: Record) -> Record:
    """Return the fields of a trace that its observations may inherit: all but sums over the trace."""
    return {name: value for name, value in trace.items() if not _SUMS_OF_TRACE.search(name)}


def _usage(observation: Record) -> dict[str, Any]:
    """Return a usage block with the tokens of an observation, as far as they are known.

    Langfuse counts tokens by kind, such as `input` and `input_cached_tokens`. Kinds do not overlap, so the
    kinds of each side are added up. Only if the total leaves them out are kinds of the cache part of others.
    """
    found = parsed(observation.get("usageDetails") or observation.get("usage_details"))
    kinds: dict[str, float] = {}
    for name, value in found.items() if isinstance(found, Mapping) else ():
        count = as_count(value)
        if count is not None:
            kinds[str(name).casefold()] = count
    inputs = {name: count for name, count in kinds.items() if "input" in name}
    outputs = {name: count for name, count in kinds.items() if "output" in name}
    written = {name: count for name, count in inputs.items() if _WRITTEN.search(name)}
    cached = {name: count for name, count in inputs.items() if "cache" in name and name not in written}
    of_cache = written | cached
    output = sum(outputs.values())
    others = sum(count for name, count in inputs.items() if name not in of_cache)
    usage: dict[str, Any] = {}
    if inputs:
        usage["prompt_tokens"] = sum(inputs.values())
        if kinds.get("total") == others + output:
            usage["prompt_tokens"] = others
        usage["prompt_tokens_details"] = {
            "cached_tokens": sum(cached.values()),
            "cache_creation_tokens": sum(written.values()),
            "cache_creation_token_details": {name: count for name, count in written.items() if "1h" in name},
            "audio_tokens": sum(n for name, n in inputs.items() if "audio" in name and name not in of_cache),
        }
    if outputs:
        usage["completion_tokens"] = output
        usage["completion_tokens_details"] = {
            "reasoning_tokens": sum(count for name, count in outputs.items() if "reasoning" in name),
            "audio_tokens": sum(count for name, count in outputs.items() if "audio" in name),
        }
    return usage


def _kind(observation: Record) -> Any:
    """Return the type of an observation, or `evaluator` if it is a call of a judge.

    Langfuse runs its evaluators in environments of their own.
    """
    environment = str(observation.get("environment") or "")
    if environment.startswith("langfuse-"):
        return "evaluator"
    return observation.get("type")


def _row_scores(row: Record) -> list[tuple[str, Any]]:
    """Return (name, value) of the scores in a row of the export of Langfuse's pages.

    Each score has a column with its name, whose cells are lists of values.
    """
    pairs = []
    for name, cell in row.items():
        if name in _LISTS or name == "scores":
            continue
        if isinstance(cell, str) and cell[:1] == "[":
            values = parsed(cell)
        else:
            values = cell
        if isinstance(values, list) and values and all(isinstance(v, str | int | float) for v in values):
            pairs += [(name, value) for value in values]
    return pairs


def _unpriced(call: LoggedCall) -> bool:
    """Return True if a call has cost details without any number, and its total cost is 0 or missing.

    Langfuse then knows no price of the model.
    """
    details = parsed(call.first(("costDetails", "cost_details")))
    total = first(call.views[1], *FORMAT.cost)
    empty = isinstance(details, Mapping) and all(value is None for value in details.values())
    return empty and total in (None, 0, 0.0, "0", "0.0")


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
    usage=("usage_in_kinds", "usageDetails", "usage_details", "usage", ""),
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
