"""Helicone: rows of its request API or of an export. Source: `HeliconeRequest` of its OpenAPI description."""

from typing import Any

from cabs_core.data.logs.calls import Format, LoggedCall, Record, Score, is_yes, named
from cabs_core.data.tables.dotted import at

_BOOLEAN, _THUMB = "-hcone-bool", "helicone-score-feedback"


def split(records: list[tuple[int, Record]]) -> tuple[list[LoggedCall], list[Score]]:
    """Every record is a call."""
    return [LoggedCall(number, (_view(r), r), scores=_scores(r)) for number, r in records], []


def _view(record: Record) -> Record:
    """The kind of a call: Helicone logs tools, searches and data as requests too, whose bodies say so."""
    path = str(record.get("request_path") or record.get("target_url") or "")
    kind = at(record, "request_body._type")
    if kind is None and any(
        word in path for word in ("embeddings", "moderations", "/images", "/audio", "rerank")
    ):
        kind = path.rstrip("/").rpartition("/")[2]
    return {"kind": kind}


def _scores(record: Record) -> list[tuple[str, Any]]:
    """Scores by their names, and the thumb, which Helicone writes twice."""
    pairs: list[tuple[str, Any]] = []
    thumb = next(
        (
            v
            for p in ("feedback_rating", "request_feedback.rating", "feedback.rating")
            if (v := at(record, p)) is not None
        ),
        None,
    )
    for name, value in named(record.get("scores")):
        if name == _THUMB:
            thumb = is_yes(value) if thumb is None else thumb
        else:
            yes = name.endswith(_BOOLEAN) and not isinstance(value, str)
            pairs.append((name.removesuffix(_BOOLEAN), bool(value) if yes else value))
    return pairs if thumb is None else [("feedback", thumb), *pairs]


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
    also=("feedback_rating", "request_feedback", "feedback", "scores", "request_path", "target_url"),
)
