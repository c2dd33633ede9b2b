"""Scores outside of the calls: feedback and annotations that name the id of a span, a run or a trace."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cabs_core.base.errors import DataError
from cabs_core.data.logs.calls import Record, Score, ids, labelled
from cabs_core.data.tables.dotted import at, first, shape

#: Fields with the id of what was scored, the nearest first.
ABOUT = tuple(
    (
        "span_id spanId context.span_id run_id runId observation_id observationId call_id callId request_id "
        "requestId log_id logId generation_id completion_id response_id trace_id traceId root_run_id "
        "session_id sessionId"
    ).split()
)
#: Fields with the name of a score.
_NAMES = tuple("name key annotation_name assessment_name feedback_type metric score_name evaluator".split())
#: Paths to the value of a score.
_VALUES = tuple(
    (
        "score value result.score feedback.value payload.emoji payload.value payload.output rating thumb "
        "thumbs result.label label"
    ).split()
)
#: Fields of a call. A record with one of them is no score.
_OF_CALLS = tuple("inputs input messages prompt request attributes outputs output model".split())


def is_score(record: Record) -> bool:
    """Return True if a record is a score and no call.

    A score has an id, a name, a value and no field of a call, such as `messages` or `model`.
    """
    if any(record.get(name) not in (None, "") for name in _OF_CALLS):
        return False
    return bool(_about(record)) and first(record, *_NAMES) is not None and first(record, *_VALUES) is not None


def scores_of(record: Record) -> list[Score]:
    """Return the score of a record as a list, which is empty if the record has no value.

    A comment and a correction have no value. A score without a name is called `score`.
    """
    if first(record, "dataType", "data_type"):
        value = labelled(record)
    else:
        value = first(record, *_VALUES)
    if isinstance(value, Mapping):
        value = labelled(value)
    name = str(first(record, *_NAMES) or "score")
    if value is None:
        return []
    return [Score(_about(record), name, value)]


def _about(record: Record) -> tuple[Any, ...]:
    """Return the ids that a score names, in the order of `ABOUT`.

    The last part of a reference of Weave is an id too, and comes first.
    """
    reference = record.get("weave_ref")
    if isinstance(reference, str):
        call = reference.rpartition("/")[2]
    else:
        call = None
    return ids(call, *(at(record, name) for name in ABOUT))


def read_scores(path: Path, records: list[tuple[int, Record]]) -> list[Score]:
    """Return the scores in the records of a file, without those that name no id.

    Args:
        path: name of the file, for messages.

    Raises:
        DataError: no score names a span, a run, a trace or a session.
    """
    scores = [score for _, record in records for score in scores_of(record) if score.about]
    if not scores:
        there = shape(records[0][1]) if records else "nothing"
        raise DataError(
            f"{path}: no score names the call that it is about. A row needs one of {', '.join(ABOUT[:9])} or "
            f"trace_id, and a value at score or value. The first record has {there}"
        )
    return scores
