"""Stress conditions of the stream (`base.catalog.conditions`): what happens during a replay of any problem.

Regret under arms_* is against the best arm that was available. Conditions that change the data before
anything is trained are in `cabs_core.data.outcomes.conditions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from cabs_core.algorithms.policies.play import Stream
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.catalog.conditions import condition_record
from cabs_core.base.compiled.rng import query_order
from cabs_core.base.errors import PolicyError
from cabs_core.base.streams import stream_key
from cabs_core.data.pool_files.sessions import Sessions
from cabs_core.evaluation.replay.sessions import Turns, in_conversations, kept_costs

if TYPE_CHECKING:
    from cabs_core.data.pool_files.sections import Replay

MAX_DELAY = 200
LOST = 0.1


@dataclass(frozen=True)
class StreamPlan:
    """Orders and arrivals of the lanes (see `policies.play.Lane`); turns: their conversations, if any."""

    orders: list[np.ndarray]
    arrivals: list[np.ndarray | None]
    turns: list[Turns] | None = None


def stream_condition(
    name: str,
    problem: ReplayProblem,
    stream: Stream,
    orders: list[np.ndarray],
    trials: Sequence[int],
    *,
    seed: int,
    pool: str,
    rounds: int | None = None,
    sessions: Sessions | None = None,
) -> StreamPlan:
    """Apply a condition: orders, arrivals and conversations of all lanes; arm windows are set on `stream`.

    Data-level names change nothing here: the problem at hand was built under them.

    Raises:
        PolicyError: rounds are not within an order.
    """
    condition_record(name)
    n = len(orders[0])
    if rounds is not None and not 1 <= rounds <= n:
        raise PolicyError(f"replay: rounds {rounds} must be between 1 and the {n} rounds of an order")
    if name == "drift":
        orders = [
            in_time(drift_order(o, problem.tasks, _generator(name, seed, pool, i)), problem.times)
            for o, i in zip(orders, trials)
        ]
    turns = None
    if name == "sessions":
        orders, turns = _conversations(
            problem, orders, trials, sessions or Sessions(), seed, pool, rounds or n
        )
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
    return StreamPlan(orders, arrivals, turns)


def _conversations(
    problem: ReplayProblem,
    orders: list[np.ndarray],
    trials: Sequence[int],
    options: Sessions,
    seed: int,
    pool: str,
    rounds: int,
) -> tuple[list[np.ndarray], list[Turns]]:
    """(orders, turns) of the first rounds of every trial."""
    played = [
        in_conversations(o, problem.tasks, problem.times, options, _generator("sessions", seed, pool, i))
        for o, i in zip(orders, trials, strict=True)
    ]
    return [o for o, _ in played], [
        Turns(turns.number[:rounds], turns.in_tools[:rounds]) for _, turns in played
    ]


def with_kept_costs(problem: ReplayProblem, pool: str, settings: Replay) -> ReplayProblem:
    """The problem with the costs that each model has where it alone answers the conversations of replays."""
    trials, n = range(settings.trials), problem.n
    orders = [in_time(query_order(settings.order_seed, pool, i, n), problem.times) for i in trials]
    rounds = settings.rounds or n
    orders, turns = _conversations(
        problem, orders, trials, settings.sessions, settings.order_seed, pool, rounds
    )
    costs = kept_costs(problem, [o[:rounds] for o in orders], turns, settings.sessions)
    return replace(problem, costs=costs)


def _generator(name: str, seed: int, pool: str, trial: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(int(stream_key(name, int(seed), str(pool), int(trial))[0])))


def in_time(order: np.ndarray, times: np.ndarray | None) -> np.ndarray:
    """An order sorted by the queries' times `[n]`, ties in the order's sequence; None: the order as it is."""
    return order if times is None else order[np.argsort(times[order], kind="stable")]


def drift_order(order: np.ndarray, tasks: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """The queries `[n]` of an order, rearranged so that early rounds are mostly of one half of the tasks
    (random per trial), late rounds mostly of the other: a query's time is Beta(1, 3) or Beta(3, 1)."""
    names = np.unique(tasks)
    late = set(generator.permutation(names)[: len(names) // 2].tolist())
    is_late = np.isin(tasks[order], list(late))
    u = generator.random(len(order))
    # the largest or the smallest of three uniforms, through its inverse distribution function
    when = np.where(is_late, u ** (1.0 / 3.0), 1.0 - u ** (1.0 / 3.0))
    return order[np.argsort(when, kind="stable")]


def delayed_arrivals(total: int, generator: np.random.Generator) -> np.ndarray:
    """int64 [A, 2]: (round at whose end the reward arrives, round it belongs to), sorted; none lost."""
    rounds = np.arange(total)
    arrive = rounds + generator.integers(1, MAX_DELAY + 1, size=total)
    keep = (generator.random(total) >= LOST) & (arrive < total)
    pairs = np.stack([arrive[keep], rounds[keep]], axis=1)
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))].astype(np.int64)
