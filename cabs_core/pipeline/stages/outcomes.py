"""Stage `outcomes`: the table of every model's score and cost on every query of the pool, checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cabs_core.data.inputs import plain
from cabs_core.data.outcomes.load import load_outcomes
from cabs_core.data.validation.catalog import Stage
from cabs_core.data.validation.run import run_checks
from cabs_core.pipeline.artifacts.results import Summary

if TYPE_CHECKING:
    import numpy as np

    from cabs_core.data.outcomes import Outcomes
    from cabs_core.data.pool_files import ModelPool
    from cabs_core.pipeline.artifacts import Chain, Options, Target


@dataclass(frozen=True, kw_only=True)
class OutcomesSummary(Summary):
    """Sizes and means of the table of outcomes that was read.

    Attributes:
        queries, tasks: number of queries and number of tasks. models: names of the models.
        scores, costs: {model: mean score} and {model: mean cost in USD}.
        loading: report of how the source was read.
    """

    queries: int
    models: list[str]
    tasks: int
    scores: dict[str, float]
    costs: dict[str, float]
    loading: dict[str, Any]

    def shown(self) -> dict[str, Any]:
        """Return {words: figure} for people: number of rows, and all fields of this class, in their order.

        The means are called `mean score` and `mean cost`.
        """
        return {
            **super().shown(),
            "queries": self.queries,
            "models": self.models,
            "tasks": self.tasks,
            "mean score": self.scores,
            "mean cost": self.costs,
            "loading": self.loading,
        }


def build(
    chain: Chain, target: Target, folder: Path, inputs: dict[str, Path], options: Options
) -> OutcomesSummary:
    """Read the pool's source, save the table of outcomes in the folder, and return its checked summary."""
    table = load_outcomes(chain.pool_file, inputs or None)
    table.save(folder)
    scores, costs = table.means
    return OutcomesSummary(
        rows=len(table) * len(table.arms),
        queries=len(table),
        models=list(table.arms),
        tasks=len(set(table.tasks.tolist())),
        scores={a: round(float(v), 4) for a, v in zip(table.arms, scores)},
        costs={a: float(f"{v:.4g}") for a, v in zip(table.arms, costs)},
        loading=plain(table.report),
        **checked("outcomes", table, chain.pool),
    )


def checked(
    stage: Stage, table: Outcomes, pool: ModelPool, split: np.ndarray | None = None
) -> dict[str, Any]:
    """Check a table as one stage does, and return the fields `checks` and `blocked` of a summary.

    `checks` holds the result of every check, `blocked` the messages of failed checks of severity ERROR.

    Args:
        split: `[n]` split of each query, for the checks of the stage `splits`.
    """
    results = run_checks(stage, table, splits=split, pool=pool)
    failed = [r for r in results if not r.passed and r.severity == "ERROR"]
    return {
        "checks": [plain(result) for result in results],
        "blocked": [r.failure for r in failed],
    }
