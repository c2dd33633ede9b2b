"""Stage `replay_problem`: everything a replay needs as arrays, so that the online loop runs no network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cabs_core.algorithms.oracles.neighbours import neighbour_lists
from cabs_core.algorithms.oracles.oracles import Oracles
from cabs_core.algorithms.oracles.problems import build_problems
from cabs_core.data.inputs import embeddings_of, outcomes_of, split_of
from cabs_core.data.outcomes import outcomes_under
from cabs_core.pipeline.artifacts.results import Summary

if TYPE_CHECKING:
    from cabs_core.pipeline.artifacts import Chain, Options, Target


@dataclass(frozen=True, kw_only=True)
class ReplayProblemSummary(Summary):
    """`problems`: {split: {what: number}}."""

    problems: dict[str, dict[str, int]]

    def shown(self) -> dict[str, Any]:
        return self.problems


def build(
    chain: Chain, target: Target, folder: Path, inputs: dict[str, Path], options: Options
) -> ReplayProblemSummary:
    """Write one problem for the test split and one for validation, under the pool's stress condition."""
    pool, split = chain.pool, split_of(inputs)
    table = outcomes_under(outcomes_of(inputs), split, pool.replay.condition, pool.oracle.oracle_seed)
    vectors, oracles = embeddings_of(inputs), Oracles.load(inputs["oracles"])
    oracles.use(neighbour_lists(vectors, split))
    problems = build_problems(table, split, vectors, oracles, pool)
    for name, problem in problems.items():
        problem.save(folder / name)
    sizes = {
        name: {"rounds": len(p.query_ids), "arms": len(p.arms), "offline rows": len(p.offline_scores)}
        for name, p in problems.items()
    }
    return ReplayProblemSummary(problems=sizes)
