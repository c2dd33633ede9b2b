"""Stage `answers`: a pool's prompts put to its models; what was paid for is never asked again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cabs_core.base.units import money
from cabs_core.data.collect.answers import affordable, collect_answers, described, write_answers
from cabs_core.data.collect.plan import collection_of
from cabs_core.data.collect.store import AnswerStore
from cabs_core.data.collect.trust import require_trusted
from cabs_core.pipeline.artifacts.results import Summary

if TYPE_CHECKING:
    from cabs_core.pipeline.artifacts import Chain, Options, Target


@dataclass(frozen=True, kw_only=True)
class AnswersSummary(Summary):
    """Numbers and costs of the answers of a collected pool's models.

    Attributes:
        prompts: number of prompts with all their answers; prompts_in_all: number of prompts of the source.
        spent, paid: USD in the run that made these answers, and in all runs.
        in_flight: number of calls that were under way when an earlier run died.
        stopped: why the collection ended early. Empty if it did not.
        lanes: {model: summary of its calls in words}; counts: {model: {state or figure: number}}.
        by_budget: True if the budget ended the collection; repriced: sentences about prices that changed.
    """

    prompts: int
    prompts_in_all: int
    spent: float
    paid: float
    in_flight: int
    stopped: str
    lanes: dict[str, str]
    counts: dict[str, dict[str, float]]
    by_budget: bool
    repriced: list[str]

    def shown(self) -> dict[str, Any]:
        """Return the figures that are shown for the stage, {name in words: figure}."""
        return {
            **super().shown(),
            "prompts": self.prompts,
            "of": self.prompts_in_all,
            "spent in this run, USD": self.spent,
            "spent in all, USD": self.paid,
            "under way when an earlier run died": self.in_flight,
            "stopped": self.stopped,
            "models": self.lanes,
            "table": [{"model": model, **row} for model, row in self.counts.items()],
        }

    def outdated(self, chain: Chain) -> list[str]:
        """Return a reason, as a list of one, if the budget that ended the collection allows more now.

        Otherwise return an empty list: while the budget is spent, and after a collection that the budget did
        not end, the answers are up to date.
        """
        if not self.by_budget:
            return []
        with AnswerStore() as store:
            reason = affordable(collection_of(chain.pool_file), store, self.prompts, self.paid)
        if reason:
            return [reason]
        return []

    def lines(self) -> list[str]:
        """Return the summary as lines for a terminal.

        The lines state the number of prompts, the calls of every model, why the collection ended early, which
        prices changed, and the cost.
        """
        return [
            f"{self.prompts:,} of {self.prompts_in_all:,} prompts, {len(self.lanes)} models",
            *(f"  {model}: {text}" for model, text in self.lanes.items()),
            *([f"stopped: {self.stopped}"] if self.stopped else []),
            *(f"note: {sentence}" for sentence in self.repriced),
            f"answers: {money(self.spent)} in the run that made them, {money(self.paid)} in all",
        ]


def build(
    chain: Chain, target: Target, folder: Path, inputs: dict[str, Path], options: Options
) -> AnswersSummary:
    """Ask the models for the answers that are missing, within the budget, and write the table of answers.

    Raises:
        UntrustedCommand: a command of the pool file was not approved. Nothing was asked then.
    """
    require_trusted(chain.pool_file)  # before anything is paid for that could not be scored
    collection = collection_of(chain.pool_file)
    with AnswerStore() as store:
        answers = collect_answers(collection, store, options.notify)
        written = write_answers(collection, answers, store, folder)
    return AnswersSummary(
        rows=answers.prompts * len(collection.models),
        prompts=answers.prompts,
        prompts_in_all=len(collection.prompts),
        spent=answers.spent,
        paid=answers.paid,
        in_flight=answers.in_flight,
        stopped=answers.stopped,
        lanes={name: described(run) for name, run in answers.runs.items()},
        counts=_even(written["models"]),
        by_budget=answers.by_budget,
        repriced=written["repriced"],
    )


def _even(counts: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return the counts with equal names for every model: a count that a model lacks is 0."""
    names = list(dict.fromkeys(name for row in counts.values() for name in row))
    return {model: {name: float(row.get(name, 0.0)) for name in names} for model, row in counts.items()}
