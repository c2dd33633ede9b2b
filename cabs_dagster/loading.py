"""Reading the artifacts of earlier stages, given `{stage: folder}` of verified inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cabs_core.pools import ModelPool


def outcomes_of(inputs: dict[str, Path]):
    """The `Outcomes` table."""
    from cabs_core.outcomes import Outcomes

    return Outcomes.load(inputs["outcomes"])


def split_of(inputs: dict[str, Path]) -> np.ndarray:
    """`[n]` array of train, validation or test."""
    import pyarrow.parquet as pq

    return np.array(pq.read_table(inputs["splits"] / "splits.parquet")["split"].to_pylist())


def embeddings(inputs: dict[str, Path]) -> np.ndarray:
    """`[n, e]` float32, memory-mapped."""
    return np.load(inputs["prompt_embeddings"] / "embeddings.npy", mmap_mode="r", allow_pickle=False)


def is_shift(pool: ModelPool) -> bool:
    """Whether the pool's stress condition moves whole tasks into the test split."""
    return pool.replay.condition in ("task_shift", "severe_shift")


def shifted(outcomes, pool: ModelPool) -> np.ndarray:
    """Splits of a pool under a shift condition; `severe_shift` takes the tasks named by `split.test_tasks`.

    Raises:
        PoolError: severe_shift without named tasks.
    """
    from cabs_core.errors import PoolError
    from cabs_core.replay.conditions import shifted_splits

    tasks = pool.split.test_tasks
    if pool.replay.condition == "severe_shift" and not tasks:
        raise PoolError(
            f"pool {pool.name!r}: condition severe_shift needs split.test_tasks, the tasks of the test split"
        )
    train, validation, _ = pool.split.fractions
    return shifted_splits(
        outcomes.tasks,
        outcomes.prompts,
        test_tasks=tasks,
        validation=validation / (train + validation),
        seed=pool.split.split_seed,
    )


def with_condition(outcomes, split: np.ndarray, pool: ModelPool):
    """Outcomes as the offline part sees them: train and validation labels damaged when the condition says so.

    The test split keeps its true outcomes, since those are what the online replay pays.
    """
    from dataclasses import replace

    from cabs_core.replay.conditions import corrupted_scores, noisy_scores

    if pool.replay.condition not in ("corrupted_oracle", "noisy_oracle"):
        return outcomes
    scores = outcomes.scores.copy()
    offline = split != "test"
    if pool.replay.condition == "corrupted_oracle":
        scores[offline] = corrupted_scores(scores[offline])
    else:
        scores[offline] = noisy_scores(scores[offline], seed=pool.oracle.oracle_seed)
    return replace(outcomes, scores=scores)
