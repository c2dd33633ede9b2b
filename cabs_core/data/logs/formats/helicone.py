"""Helicone: rows of its request API or of an export.

Source: `HeliconeRequest` of its OpenAPI description.
"""

from typing import Any

from cabs_core.data.logs.calls import Format, LoggedCall, Record, Score, ids, is_yes, named
from cabs_core.data.tables.dotted import at

#: Ending that Helicone adds to the name of a boolean score.
_BOOLEAN_ENDING = "-hcone-bool"
#: Name of the score under which Helicone repeats the thumb.
_THUMB = "helicone-score-feedback"
#: Places of the thumb.
_THUMB_PATHS = ("feedback_rating", "request_feedback.rating", "feedback.rating")
#: Parts of an address that is no chat.
_OTHER_ADDRESSES = ("embeddings", "moderations", "/images", "/audio", "rerank")


def split(records: list[tuple[int, Record]]) -> tuple[list[LoggedCall], list[Score]]:
    """Return (an entry for each record, no scores). Helicone keeps scores within the records alone."""
    calls = [
        LoggedCall(number, (_view(r), r), scores=_scores(r), identity=ids(r.get("request_id")))
        for number, r in records
    ]
    return calls, []


def _view(record: Record) -> Record:
    """Return {"kind": kind of a request}, in which the kind of a chat is None.

    Helicone also logs tools, searches and data as requests. The body of such a request names its kind. The
    kind of another request that is no chat, such as embeddings, is the last part of its address.
    """
    kind = at(record, "request_body._type")
    address = str(record.get("request_path") or record.get("target_url") or "")
    if kind is None and any(word in address for word in _OTHER_ADDRESSES):
        kind = address.rstrip("/").rpartition("/")[2]
    return {"kind": kind}


def _scores(record: Record) -> list[tuple[str, Any]]:
    """Return (name, value) of the scores of a request, and once and first the thumb, as `feedback`."""
    pairs: list[tuple[str, Any]] = []
    thumbs = (at(record, path) for path in _THUMB_PATHS)
    thumb = next((value for value in thumbs if value is not None), None)
    for name, value in named(record.get("scores")):
        if name == _THUMB:
            thumb = is_yes(value) if thumb is None else thumb
        else:
            is_boolean = name.endswith(_BOOLEAN_ENDING) and not isinstance(value, str)
            pairs.append((name.removesuffix(_BOOLEAN_ENDING), bool(value) if is_boolean else value))
    if thumb is None:
        return pairs
    return [("feedback", thumb), *pairs]


FORMAT = Format(
    split,
    kind=("kind",),
    status=("response_status", "status"),
    errors=("response_body.error", "error"),
    cached=("cache_reference_id", "cached"),
    health=("request_properties", "properties"),
    model=(
        "response_body.model",
        "response_model",
        "model_override",
        "model",
        "request_model",
        "request_body.model",
    ),
    prompt=("request_body", "request.body", "request_prompt"),
    bodies=frozenset({"request_body", "request.body"}),
    cost=("cost_usd", "costUSD", "cost"),
    usage=("response_body.usage", "response_body.usageMetadata", ""),
    session=("request_properties.Helicone-Session-Id", "properties.Helicone-Session-Id", "request_session"),
    time=("request_created_at",),
    also=(
        "feedback_rating",
        "request_feedback",
        "feedback",
        "scores",
        "request_path",
        "target_url",
        "request_id",
    ),
)
