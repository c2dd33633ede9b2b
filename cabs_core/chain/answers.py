"""Stage `answers`: the prompts of a pool put to its models. What was paid for is kept by content and never
asked again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cabs_core.collect.adaptive import looking
from cabs_core.collect.answers import collect_answers, described, going_on, write_answers
from cabs_core.collect.plan import collection_of
from cabs_core.collect.store import AnswerStore
from cabs_core.inputs import plain

if TYPE_CHECKING:
    from cabs_core.artifacts import Chain, Options, Target


def build(
    chain: Chain, target: Target, folder: Path, inputs: dict[str, Path], options: Options
) -> dict[str, Any]:
    """Ask what has no answer yet, and write the table of answers."""
    collection = collection_of(chain.pool_file)
    with AnswerStore() as store:
        found = collect_answers(collection, store, options.notify, looking(collection, store, options.notify))
        written = write_answers(collection, found, store, folder)
    counts = written["models"]
    return {
        "rows": found.prompts * len(found.models),
        "prompts": found.prompts,
        "of": len(collection.prompts),
        "spent in this run, USD": found.spent,
        "spent in all, USD": found.paid,
        "under way when an earlier run died": found.in_flight,
        "stopped": found.stopped,
        "_repriced": written["repriced"],
        "dropped": found.dropped,
        "models": {name: described(lane) for name, lane in found.lanes.items()},
        "_by_budget": found.by_budget,
        "_counts": counts,
        "_looks": plain(found.looks),
        "_rows": [
            {"model": name, **{k: float(v) for k, v in row.items()}} for name, row in _even(counts).items()
        ],
    }


def outdated(chain: Chain, summary: Mapping[str, Any]) -> list[str]:
    """Why answers that are made from what is at hand are nevertheless to be made again: the budget that ended
    them allows more now. One that is spent is spent on purpose, so its answers stand.
    """
    return going_on(collection_of(chain.pool_file), summary) if summary["_by_budget"] else []


def in_words(summary: Mapping[str, Any]) -> list[str]:
    """What was asked and what it cost, from the stage's summary: a line each."""
    spent, paid = summary["spent in this run, USD"], summary["spent in all, USD"]
    return [
        f"{summary['prompts']:,} of {summary['of']:,} prompts, {len(summary['models'])} models",
        *(f"  {model}: {text}" for model, text in summary["models"].items()),
        *([f"stopped: {summary['stopped']}"] if summary["stopped"] else []),
        *(f"dropped: {model}, {why}" for model, why in summary["dropped"].items()),
        *(f"note: {sentence}" for sentence in summary["_repriced"]),
        f"answers: {spent:.4f} USD in the run that made them, {paid:.4f} in all",
    ]


def _even(counts: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """The counts with the same names for every model."""
    names = list(dict.fromkeys(name for row in counts.values() for name in row))
    return {model: {name: row.get(name, 0.0) for name in names} for model, row in counts.items()}
