"""Stress conditions of the data: changes of splits and labels before anything is trained or predicted.

    task_shift        the test split is whole tasks: `split.test_tasks`, else a random half of them
    severe_shift      the test split is `split.test_tasks`, tasks of another kind than the rest
    corrupted_oracle  offline labels exchanged between models: the best model gets the worst one's, and so on
    noisy_oracle      a share (`NOISE`) of each model's offline labels exchanged between queries

    split = split_under(outcomes, pool.split, condition)
    outcomes = outcomes_under(outcomes, split, condition, seed)   # then train_oracles, build_problems

Under `corrupted_oracle` and `noisy_oracle` the labels of the train and validation splits are altered, which
misleads predictors, oracles, early stopping, the choice of models and tuning. The test split is not altered.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cabs_core.base.catalog.conditions import condition_that_changes
from cabs_core.base.errors import DataError, PoolError
from cabs_core.base.streams import stream_key
from cabs_core.data.outcomes.splits import make_folds, make_splits, number_of_folds
from cabs_core.data.outcomes.table import Outcomes
from cabs_core.data.pool_files.config import ModelPool
from cabs_core.data.pool_files.sections import Split

#: share of labels that `noisy_oracle` exchanges
NOISE = 0.3


def split_under(outcomes: Outcomes, split: Split, condition: str = "none") -> np.ndarray:
    """Return the split of every query under a stress condition, `[n]` 'train' | 'validation' | 'test'.

    task_shift: the tasks in `split.test_tasks`, else a random half of all tasks, are the test split.
    severe_shift: the tasks in `split.test_tasks`, which must be given, are the test split. Every other
    condition: the split is that of `make_splits`.

    Raises:
        PoolError: the condition is severe_shift, and split.test_tasks is empty.
        PolicyError: the condition is unknown.
        DataError: a split is empty, or a task is unknown.
    """
    if not condition_that_changes(condition, "splits"):
        return make_splits(outcomes, split)
    if condition == "severe_shift" and not split.test_tasks:
        raise PoolError(
            "replay.condition 'severe_shift' needs split.test_tasks: the tasks, of another kind than the "
            "rest, that are held out for test"
        )
    train, validation, _ = split.fractions
    return shifted_splits(
        outcomes.tasks,
        np.unique(np.array(outcomes.prompts, dtype=object))[outcomes.split_groups],
        test_tasks=split.test_tasks,
        validation=validation / (train + validation),
        seed=split.split_seed,
    )


def splits_of_pool(outcomes: Outcomes, pool: ModelPool) -> list[np.ndarray]:
    """Return the splits of a pool, one per fold, each `[n]` 'train' | 'validation' | 'test'.

    One fold has the split of the pool's stress condition (`split_under`). Several folds are those of
    `make_folds`.

    Raises:
        PoolError, PolicyError, DataError: see `split_under` and `make_folds`.
    """
    folds = number_of_folds(outcomes, pool)
    if folds > 1:
        return make_folds(outcomes, pool.split, folds)
    return [split_under(outcomes, pool.split, pool.replay.condition)]


def outcomes_under(outcomes: Outcomes, split: np.ndarray, condition: str = "none", seed: int = 0) -> Outcomes:
    """Return the outcomes with the scores of the train and validation splits altered by a stress condition.

    If the condition alters no scores, the same object is returned.

    Raises:
        PolicyError: the condition is unknown.
    """
    if not condition_that_changes(condition, "labels"):
        return outcomes
    offline = np.flatnonzero(split != "test")
    scores = outcomes.scores.copy()
    known = scores[offline]
    if condition == "corrupted_oracle":
        scores[offline] = corrupted_scores(known)
    else:
        scores[offline] = noisy_scores(known, seed=seed)
    return replace(outcomes, scores=scores, report={**outcomes.report, "condition": condition})


def routed_outcomes(
    outcomes: Outcomes, split: np.ndarray, seed: int = 0
) -> tuple[Outcomes, np.ndarray | None]:
    """Return the outcomes that a router meets if models change, and the time of each query, `[n]`.

    A random half of the test queries, by the seed, is answered by the models' later versions and has time 1;
    all other queries have time 0. Latencies are left out unless both versions have them. If no model
    has a later version, the outcomes are returned unchanged and the times are None.
    """
    if outcomes.later_scores is None or outcomes.later_costs is None:
        return outcomes, None
    test = np.flatnonzero(split == "test")
    times = np.zeros(len(outcomes))
    times[_generator("later_models", seed).permutation(test)[: len(test) // 2]] = 1.0
    after = times[:, None] > 0
    latencies = None
    if outcomes.latencies is not None and outcomes.later_latencies is not None:
        latencies = np.where(after, outcomes.later_latencies, outcomes.latencies)
    changed = replace(
        outcomes,
        scores=np.where(after, outcomes.later_scores, outcomes.scores),
        costs=np.where(after, outcomes.later_costs, outcomes.costs),
        latencies=latencies,
    )
    return changed, times


def corrupted_scores(scores: np.ndarray) -> np.ndarray:
    """Return scores `[N, K]` with exchanged columns: the best arm gets those of the worst arm, and so on.

    Arms are ranked by mean score. The arm of rank k receives the column of rank K - 1 - k, so the result
    ranks the arms in reverse.
    """
    y = np.asarray(scores, dtype=np.float64)
    rank = np.argsort(y.mean(axis=0), kind="stable")
    out = np.empty_like(y)
    out[:, rank] = y[:, rank[::-1]]
    return out


def noisy_scores(scores: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return scores `[N, K]` with a random share `NOISE` of each arm's scores permuted among the queries.

    The arms' mean scores stay as they are, and the scores depend less on the prompts.
    """
    y = np.array(scores, dtype=np.float64)
    generator = _generator("noisy_oracle", seed)
    for j in range(y.shape[1]):
        chosen = np.flatnonzero(generator.random(len(y)) < NOISE)
        y[chosen, j] = y[generator.permutation(chosen), j]
    return y


def shifted_splits(
    tasks: Sequence[str] | np.ndarray,
    prompts: Any,
    *,
    test_tasks: Sequence[str] = (),
    validation: float = 0.125,
    seed: int = 0,
) -> np.ndarray:
    """Return splits with whole tasks in test, `[n]` 'train' | 'validation' | 'test'.

    Args:
        tasks: text `[n]`.
        prompts: text `[n]`. Rows of a prompt get one split, test if one of them is in a test task.
        test_tasks: tasks of the test split; if empty, a random half of the tasks (seeded).
        validation: share of the remaining prompts used for validation.
        seed: seed of the draws.

    Raises:
        DataError: a split would be empty, or a named task does not exist.
    """
    tasks = np.asarray(tasks, dtype=np.str_)
    prompts = np.asarray(prompts, dtype=object)
    names = np.unique(tasks)
    generator = _generator("task_shift", seed)
    chosen = set(test_tasks) or set(generator.permutation(names)[: max(1, len(names) // 2)].tolist())
    unknown = sorted(chosen - set(names.tolist()))
    if unknown or len(chosen) == len(names):
        raise DataError(
            f"task shift: test tasks {sorted(chosen)[:5]} (unknown: {unknown[:5]}) of {len(names)} tasks: "
            "expected some, but not all, of the tasks of the outcomes"
        )
    test = np.isin(tasks, list(chosen))
    split = np.where(test, "test", "train").astype("<U10")
    in_test = set(prompts[test])
    rest = sorted(set(prompts[~test]) - in_test)
    held_out = {rest[i] for i in generator.permutation(len(rest))[: round(validation * len(rest))]}
    for i in np.flatnonzero(~test):
        if prompts[i] in in_test:
            split[i] = "test"
        elif prompts[i] in held_out:
            split[i] = "validation"
    if not (split == "train").any() or not (split == "validation").any():
        raise DataError("task shift: the train or validation split is empty; choose fewer test tasks")
    return split


def _generator(name: str, seed: int) -> np.random.Generator:
    """Return the random generator of a purpose and a seed."""
    return np.random.Generator(np.random.PCG64(int(stream_key(name, int(seed))[0])))
