"""Replay problems of a study: a pool's splits under conditions on its data, built once and kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.study_plan import CONDITIONS, Setup
from cabs_core.algorithms.oracles.problems import build_problems
from cabs_core.algorithms.oracles.train import train_oracles
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.catalog.conditions import STREAM_CONDITIONS
from cabs_core.base.errors import PoolError
from cabs_core.base.paths import cabs_home
from cabs_core.data.encoders.embed import embed_prompts
from cabs_core.data.outcomes import load_outcomes, outcomes_under, split_under
from cabs_core.data.pool_files.config import ModelPool
from cabs_core.data.pool_files.rhos import PAPER_GRID
from cabs_core.data.pool_files.sections import Encoder
from cabs_core.data.pools.find import find_pool

#: condition `severe`: tasks of another kind of work, by pool (shell patterns); a pool's own split.test_tasks
#: go first
SEVERE_TASKS = {
    "openllm_lb_v2_carrot": ("mmlu_pro_*",),  # knowledge questions after BBH's puzzles
    "openllm_lb_v2_carrot_tfidf": ("mmlu_pro_*",),
    "routerbench_sub3": ("mbpp",),  # programs after multiple choice
    "zeroeval": ("crux",),  # reading code after mathematics
}

#: condition `upgrade`: how much better the new model is than the best one, as a share of all prompts
UPGRADE = 0.1

AS_IS = Setup()


def problem(
    work: Path, pool_name: str, condition: str, split_seed: int, setup: Setup = AS_IS, which: str = "test"
) -> ReplayProblem:
    """Return the problem of a pool under a condition, from DIR/problems or built there (encodes and trains
    oracles).

    Prompts are encoded once for all conditions of a split with the same train prompts, since the embeddings'
    store knows them.
    """
    data = "clean" if condition in (*STREAM_CONDITIONS, "upgrade") else condition
    folder = work / "problems" / pool_name / data / f"seed{split_seed}"
    if not (folder / which / "meta.json").is_file():
        _build(folder, pool_name, data, split_seed, setup)
    stored = ReplayProblem.load(folder / which, verify=False)
    return upgraded(stored, split_seed) if condition == "upgrade" else stored


def upgraded(test: ReplayProblem, seed: int) -> ReplayProblem:
    """Return the problem in which a better model replaced the middling one before the first round,
    unannounced.

    The middling model has the median mean train score. It now scores what the best model of the train split
    scores, and 1 on some of the prompts that this one fails, drawn at random: UPGRADE of all prompts, or half
    of the failed ones if these are fewer. Its costs, offline labels and predictions stay.
    """
    rank = np.argsort(test.offline_scores.mean(axis=0), kind="stable")
    arm = rank[len(rank) // 2 - 1]
    best = rank[-1]
    scores = test.scores.copy()
    failed = 1.0 - scores[:, best]
    share = min(0.5, UPGRADE / max(float(failed.mean()), 1e-9))
    right = np.random.default_rng([seed, 42]).random(test.n) < share
    scores[:, arm] = np.where(right, 1.0, scores[:, best])
    return dataclasses.replace(test, scores=scores)


def can_be_severe(pool_name: str) -> bool:
    """Return True if somebody has said which of a pool's tasks are another kind of work."""
    return pool_name in SEVERE_TASKS or bool(find_pool(pool_name).pool.split.test_tasks)


def severe_tasks(pool_name: str, tasks: Iterable[str]) -> tuple[str, ...]:
    """Return the tasks of another kind of work than the rest of a pool's, from `SEVERE_TASKS`.

    Raises:
        PoolError: nobody has said which tasks of this pool are another kind of work.
    """
    patterns = SEVERE_TASKS.get(pool_name, ())
    severe = tuple(sorted({t for t in tasks if any(fnmatchcase(t, p) for p in patterns)}))
    if not severe:
        raise PoolError(
            f"condition 'severe' on pool {pool_name!r}: which tasks are another kind of work cannot be read "
            "from their names; name them in the pool's split.test_tasks. Its tasks: "
            f"{', '.join(sorted(set(tasks))[:20])}"
        )
    return severe


def set_up(pool: ModelPool, setup: Setup) -> ModelPool:
    """Return the pool with the settings of the study."""
    update: dict[str, Any] = {}
    if setup.encoder is not None:
        kept = pool.encoder.model_dump(exclude={"name", "of"})
        update["encoder"] = Encoder(name=setup.encoder, **kept)
    if setup.oracle is not None:
        update["oracle"] = pool.oracle.model_copy(update={"kind": setup.oracle})
    if setup.mean_cost is not None and pool.replay.rhos != PAPER_GRID:
        update |= {"rescale_grand_mean_cost": setup.mean_cost, "rescale_mean_cost": {}}
    return pool.model_copy(update=update)


def thinned(split: np.ndarray, most: int | None, seed: int) -> np.ndarray:
    """Return the split with at most `most` test queries, drawn at random. The others belong to no part."""
    test = np.flatnonzero(split == "test")
    if most is None or len(test) <= most:
        return split
    out = split.astype(object)
    out[np.random.default_rng([seed, 22]).permutation(test)[most:]] = "unused"
    return out


def _build(folder: Path, pool_name: str, condition: str, split_seed: int, setup: Setup) -> None:
    """Build and save the problems of a pool under a condition."""
    file = find_pool(pool_name)
    file = dataclasses.replace(file, pool=set_up(file.pool, setup))
    outcomes = load_outcomes(file)
    update: dict[str, Any] = {"split_seed": split_seed}
    if condition == "severe" and not file.pool.split.test_tasks:
        update["test_tasks"] = severe_tasks(pool_name, outcomes.tasks.tolist())
    split_settings = file.pool.split.model_copy(update=update)
    pool = file.pool.model_copy(update={"split": split_settings})
    split = split_under(outcomes, split_settings, CONDITIONS[condition])
    if setup.rehearsal:
        outcomes = outcomes.take(np.flatnonzero(split != "test"))
        split = split_under(outcomes, split_settings, CONDITIONS[condition])
    split = thinned(split, setup.most, split_seed)
    outcomes = outcomes_under(outcomes, split, CONDITIONS[condition], split_seed)
    embeddings, _ = embed_prompts(
        outcomes.prompts,
        pool.encoder,
        store=cabs_home() / "embeddings",
        fit_prompts=[p for p, part in zip(outcomes.prompts, split, strict=True) if part == "train"],
    )
    oracles = train_oracles(embeddings, outcomes, split, pool.oracle, features=pool.features)
    for name, built in build_problems(outcomes, split, embeddings, oracles, pool).items():
        built.save(folder / name)
