"""Stage `replay_problem`: everything a replay needs as arrays, so that the online loop runs no network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from cabs_core.inputs import embeddings_of, outcomes_of, split_of
from cabs_core.oracles.neighbours import neighbour_lists
from cabs_core.oracles.oracles import Oracles
from cabs_core.oracles.problems import build_problems
from cabs_core.outcomes import outcomes_under

if TYPE_CHECKING:
    from cabs_core.artifacts import Chain, Options, Target


def build(
    chain: Chain, target: Target, folder: Path, inputs: dict[str, Path], options: Options
) -> dict[str, Any]:
    """Write one problem for the test split and one for validation, under the pool's stress condition."""
    pool, split = chain.pool, split_of(inputs)
    table = outcomes_under(outcomes_of(inputs), split, pool.replay.condition, pool.oracle.oracle_seed)
    vectors, oracles = embeddings_of(inputs), Oracles.load(inputs["oracles"])
    oracles.use(neighbour_lists(vectors, split))
    problems = build_problems(table, split, vectors, oracles, pool)
    for name, problem in problems.items():
        problem.save(folder / name)
    return {
        name: {"rounds": len(p.query_ids), "arms": len(p.arms), "offline rows": len(p.offline_scores)}
        for name, p in problems.items()
    }
