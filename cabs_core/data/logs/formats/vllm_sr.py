"""vLLM Semantic Router: records of Router Replay, with the outcomes that were posted later.

Source: `pkg/routerreplay/store/store.go` of vllm-project/semantic-router. The router leaves out the score of
an outcome if the score is 0, and always writes the verdict.
"""

from typing import Any

from cabs_core.data.logs.calls import FEEDBACK, Format, LoggedCall, Record, Score, feedback, ids

#: Verdict -> True if the answer was good. A model that is larger than needed answers well.
_VERDICTS = {"good_fit": True, "overprovisioned": True, "underpowered": False, "failed": False}


def split(records: list[tuple[int, Record]]) -> tuple[list[LoggedCall], list[Score]]:
    """Return (an entry for each record, no scores). The scores stand within the records alone."""
    calls = [
        LoggedCall(number, (r,), scores=feedback(r) + _outcomes(r), identity=ids(r.get("id")))
        for number, r in records
    ]
    return calls, []


def _outcomes(record: Record) -> list[tuple[str, Any]]:
    """Return (name, value) of the outcomes about the model that answered.

    The value is the score. If the score is absent or None, it is True or False by the verdict, or an unknown
    verdict itself. Outcomes about a route, a provider or the router do not judge the answer and are left out.
    """
    outcomes = record.get("outcomes") or record.get("outcome") or []
    scores = []
    for outcome in outcomes if isinstance(outcomes, list) else [outcomes]:
        if not isinstance(outcome, dict) or str(outcome.get("target") or "model").casefold() != "model":
            continue
        if outcome.get("target_ref") not in (None, "", record.get("selected_model")):
            continue
        verdict = outcome.get("verdict")
        value = outcome.get("score")
        if value is None:
            value = _VERDICTS.get(str(verdict).casefold(), verdict)
        if value is not None:
            scores.append((str(outcome.get("name") or "outcome"), value))
    return scores


FORMAT = Format(
    split,
    status=("response_status", "lifecycle_state"),
    cached=("from_cache",),
    model=("selected_model", "response_body.model"),  # `original_model` is what was asked for
    prompt=("request_body", "prompt"),
    bodies=frozenset({"request_body"}),
    cut=("prompt_truncated",),
    cost=("actual_cost", "cost", "usage.cost"),
    unpriced=lambda call: str(call.at("currency") or "USD").upper() != "USD",
    usage=("response_body.usage", "", "usage"),
    session=("session_id", "conversation_id"),
    task=("category",),
    also=(*FEEDBACK, "outcomes", "outcome", "id"),
    time=("timestamp",),
)
