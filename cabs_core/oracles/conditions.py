"""Stress conditions on the data: what is altered before anything is trained (see `cabs_core.replay.conditions`).

    split = split_under(outcomes, pool.split, condition)
    outcomes = outcomes_under(outcomes, split, condition, seed)        # then train_oracles, build_problems as ever

Under `corrupted_oracle` and `noisy_oracle` the labels of the train AND validation splits are altered, so that
predictors, oracles, early stopping, choices and tuning are all misled; the test split stays what it is.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cabs_core.errors import PoolError
from cabs_core.outcomes import Outcomes, make_splits
from cabs_core.pools.config import Split


def split_under(outcomes: Outcomes, split: Split, condition: str = "none") -> np.ndarray:
    """`[n]` 'train' | 'validation' | 'test' under a stress condition.

    task_shift: the tasks in `split.test_tasks`, else a random half of them, are the test split.
    severe_shift: the tasks in `split.test_tasks`, which must be given. Every other condition: `make_splits`.

    Raises:
        PoolError: severe_shift without split.test_tasks. PolicyError: unknown condition.
        DataError: an empty split or unknown task.
    """
    from cabs_core.replay.conditions import check_condition, shifted_splits

    check_condition(condition)
    if condition not in ("task_shift", "severe_shift"):
        return make_splits(outcomes, split)
    if condition == "severe_shift" and not split.test_tasks:
        raise PoolError(
            "replay.condition 'severe_shift' needs split.test_tasks: the tasks, of another kind than the rest, "
            "that are held out for test"
        )
    train, validation, _ = split.fractions
    return shifted_splits(
        outcomes.tasks,
        outcomes.prompts,
        test_tasks=split.test_tasks,
        validation=validation / (train + validation),
        seed=split.split_seed,
    )


def outcomes_under(outcomes: Outcomes, split: np.ndarray, condition: str = "none", seed: int = 0) -> Outcomes:
    """The outcomes with offline labels altered as the condition says; the same object where it alters none.

    Raises:
        PolicyError: unknown condition.
    """
    from cabs_core.replay.conditions import check_condition, corrupted_scores, noisy_scores

    check_condition(condition)
    if condition not in ("corrupted_oracle", "noisy_oracle"):
        return outcomes
    offline = np.flatnonzero(split != "test")
    scores = outcomes.scores.copy()
    known = scores[offline]
    scores[offline] = (
        corrupted_scores(known) if condition == "corrupted_oracle" else noisy_scores(known, seed=seed)
    )
    return replace(outcomes, scores=scores, report={**outcomes.report, "condition": condition})
