"""Stage `replay_problem`: all that a replay needs as arrays, for every fold; its loop runs no network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cabs_core.algorithms.oracles.neighbours import neighbour_lists
from cabs_core.algorithms.oracles.oracles import Oracles
from cabs_core.algorithms.oracles.problems import build_problems
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.data.inputs import FoldData, fold_folder, folds_of
from cabs_core.data.outcomes import outcomes_under
from cabs_core.pipeline.artifacts.results import Summary

if TYPE_CHECKING:
    from cabs_core.pipeline.artifacts import Chain, Options, Target


@dataclass(frozen=True, kw_only=True)
class ReplayProblemSummary(Summary):
    """Sizes of the problems.

    Attributes:
        problems: {split: {rounds, arms or offline rows: number}} of the first fold; folds: number of folds.
    """

    problems: dict[str, dict[str, int]]
    folds: int = 1

    def shown(self) -> dict[str, Any]:
        """Return the sizes of each split's problem under the name of the split, then the number of folds."""
        return {**self.problems, "folds": self.folds}


def build(
    chain: Chain, target: Target, folder: Path, inputs: dict[str, Path], options: Options
) -> ReplayProblemSummary:
    """Write two problems of every fold, one for its test split and one for its validation split.

    If the pool's stress condition (`replay.condition`) changes labels, the scores of the train and validation
    splits are altered first.
    """
    pool = chain.pool
    folds = FoldData.read(inputs)
    sizes: dict[str, dict[str, int]] = {}
    for fold, split in enumerate(folds.splits):
        known = folds.table_of(split)
        table = outcomes_under(known, split, pool.replay.condition, pool.oracle.oracle_seed)
        oracles = Oracles.load(fold_folder(inputs["oracles"], fold))
        oracles.use(neighbour_lists(folds.vectors, split))
        for name, problem in build_problems(table, split, folds.vectors, oracles, pool).items():
            problem.save(fold_folder(folder, fold) / name)
            numbers = {
                "rounds": len(problem.query_ids),
                "arms": len(problem.arms),
                "offline rows": len(problem.offline_scores),
            }
            sizes.setdefault(name, numbers)
    return ReplayProblemSummary(problems=sizes, folds=len(folds.splits))


def fold_problems(folder: Path, split: str = "test", *, verify: bool = True) -> list[ReplayProblem]:
    """Load the problems of all folds from the folder of the artifact.

    Raises:
        ProvenanceError: a file is missing or, with `verify`, was altered.
    """
    return [
        ReplayProblem.load(fold_folder(folder, fold) / split, verify=verify)
        for fold in range(folds_of(folder))
    ]
