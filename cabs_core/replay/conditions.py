"""Stress conditions, so that a claim about a policy can be put to the test.

Data-level conditions change the problem before anything is trained or predicted. They are functions of outcomes
and splits, applied by whoever builds problems:

    task_shift        half of the tasks appear in test only            (`shifted_splits`)
    severe_shift      named tasks, a different kind of work, are test  (`shifted_splits` with `test_tasks`)
    corrupted_oracle  every offline label reversed in rank             (`corrupted_scores`)
    noisy_oracle      offline labels exchanged at random               (`noisy_scores`)

Stream-level conditions change what happens during the replay, on any problem (`replay(condition=...)`):

    drift             the mix of tasks moves from one half of the tasks to the other in the course of the stream
    arms_arrive       the best third of the arms (mean offline utility) can be played from the middle on only
    arms_disappear    the best third of the arms cannot be played any more from the middle on
    delayed_rewards   rewards come 1 to 200 rounds late, uniformly, and one in ten never

Regret under arms_* is against the best arm that was available.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cabs_core.compiled.rng import stream_key
from cabs_core.errors import DataError, PolicyError
from cabs_core.policies.lanes import Stream

STREAM_CONDITIONS = ("drift", "arms_arrive", "arms_disappear", "delayed_rewards")
DATA_CONDITIONS = ("task_shift", "severe_shift", "corrupted_oracle", "noisy_oracle")
CONDITIONS = ("none", *DATA_CONDITIONS, *STREAM_CONDITIONS)
MAX_DELAY = 200
LOST = 0.1
NOISE = 0.3


def check_condition(name: str) -> str:
    """Return `name` if it is a condition, else raise PolicyError with the known ones."""
    if name not in CONDITIONS:
        raise PolicyError(f"unknown stress condition {name!r}. Known: {', '.join(CONDITIONS)}.")
    return name


# -- data level -------------------------------------------------------------------------------------------------


def corrupted_scores(scores: np.ndarray) -> np.ndarray:
    """Offline scores `[N, K]` with the arms' labels exchanged so that the best arm gets the worst one's, and so on.

    Arms are ranked by mean score; the arm of rank k receives the column of rank K - 1 - k. Everything learnt
    offline from them is wrong, while every column remains a real one.
    """
    y = np.asarray(scores, dtype=np.float64)
    rank = np.argsort(y.mean(axis=0), kind="stable")
    out = np.empty_like(y)
    out[:, rank] = y[:, rank[::-1]]
    return out


def noisy_scores(scores: np.ndarray, share: float = NOISE, seed: int = 0) -> np.ndarray:
    """Offline scores `[N, K]` with a random `share` of each arm's labels permuted among the queries.

    The arms' mean scores stay as they are; what the labels say about the prompts is diluted.
    """
    if not 0.0 <= share <= 1.0:
        raise DataError(f"noisy_scores: share {share} must be in [0, 1]")
    y = np.array(scores, dtype=np.float64)
    generator = np.random.Generator(np.random.PCG64(int(stream_key("noisy_oracle", int(seed))[0])))
    for j in range(y.shape[1]):
        chosen = np.flatnonzero(generator.random(len(y)) < share)
        y[chosen, j] = y[generator.permutation(chosen), j]
    return y


def shifted_splits(tasks, prompts, *, test_tasks=(), validation: float = 0.125, seed: int = 0) -> np.ndarray:
    """Splits `[n]` ('train', 'validation', 'test') with whole tasks in test.

    Args:
        tasks: text `[n]`; prompts: text `[n]`; rows of one prompt stay together outside test.
        test_tasks: tasks of the test split; empty: a random half of the tasks (seeded).
        validation: share of the remaining prompts used for validation.

    Raises:
        DataError: a split would be empty, or a named task does not exist.
    """
    tasks = np.asarray(tasks, dtype=np.str_)
    prompts = np.asarray(prompts, dtype=object)
    names = np.unique(tasks)
    generator = np.random.Generator(np.random.PCG64(int(stream_key("task_shift", int(seed))[0])))
    chosen = set(test_tasks) or set(generator.permutation(names)[: max(1, len(names) // 2)].tolist())
    unknown = sorted(chosen - set(names.tolist()))
    if unknown or len(chosen) == len(names):
        raise DataError(
            f"task shift: test tasks {sorted(chosen)[:5]} (unknown: {unknown[:5]}) of {len(names)} tasks: expected "
            "some, but not all, of the tasks of the outcomes"
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


# -- stream level -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StreamPlan:
    """Orders and arrivals of the lanes (see `policies.streams.Lane`)."""

    orders: list[np.ndarray]
    arrivals: list[np.ndarray | None]


def stream_condition(name, problem, stream: Stream, orders, trials, *, seed, pool, rounds=None) -> StreamPlan:
    """Apply a condition: the orders and arrivals of all lanes; arm windows are set on `stream`.

    Data-level names change nothing here: the problem at hand was built under them.
    """
    check_condition(name)
    n = len(orders[0])
    if rounds is not None and not 1 <= rounds <= n:
        raise PolicyError(f"replay: rounds {rounds} must be between 1 and the {n} rounds of an order")
    if name == "drift":
        orders = [
            drift_order(o, problem.tasks, _generator(name, seed, pool, i)) for o, i in zip(orders, trials)
        ]
    orders = [np.ascontiguousarray(o[: rounds or n]) for o in orders]
    total = len(orders[0])
    if name in ("arms_arrive", "arms_disappear"):
        means = stream.offline.utilities.mean(axis=0)
        best = np.argsort(-means, kind="stable")[: max(1, len(means) // 3)]
        if len(best) < len(means):
            if name == "arms_arrive":
                stream.active_from[best] = total // 2
            else:
                stream.active_until[best] = total // 2
    arrivals: list[np.ndarray | None] = [None] * len(orders)
    if name == "delayed_rewards":
        arrivals = [delayed_arrivals(total, _generator(name, seed, pool, i)) for i in trials]
    return StreamPlan(orders, arrivals)


def _generator(name: str, seed: int, pool: str, trial: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(int(stream_key(name, int(seed), str(pool), int(trial))[0])))


def drift_order(order: np.ndarray, tasks: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """The queries of an order, rearranged so that early rounds are mostly of one half of the tasks (random per
    trial), late rounds mostly of the other: a query's time is Beta(1, 3) or Beta(3, 1)."""
    names = np.unique(tasks)
    late = set(generator.permutation(names)[: len(names) // 2].tolist())
    is_late = np.isin(tasks[order], list(late))
    u = generator.random(len(order))
    # the largest or the smallest of three uniforms, through its inverse distribution function
    when = np.where(is_late, u ** (1.0 / 3.0), 1.0 - u ** (1.0 / 3.0))
    return order[np.argsort(when, kind="stable")]


def delayed_arrivals(
    total: int, generator: np.random.Generator, most: int = MAX_DELAY, lost: float = LOST
) -> np.ndarray:
    """int64 [A, 2]: (round at whose end the reward arrives, round it belongs to), sorted; lost ones left out."""
    rounds = np.arange(total)
    arrive = rounds + generator.integers(1, most + 1, size=total)
    keep = (generator.random(total) >= lost) & (arrive < total)
    pairs = np.stack([arrive[keep], rounds[keep]], axis=1)
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))].astype(np.int64)
