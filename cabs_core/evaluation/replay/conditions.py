"""Stress conditions that change the stream of a replay (`base.catalog.conditions`).

Under `arms_arrive` and `arms_disappear` regret is against the best arm that was available. Conditions that
change the data before anything is trained are in `cabs_core.data.outcomes.conditions`.
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

#: longest delay of a reward in rounds
MAX_DELAY = 200
#: share of rewards that never arrive
LOST = 0.1


@dataclass(frozen=True)
class StreamPlan:
    """The streams of all trials under a condition.

    Attributes:
        orders: `[T]` queries of each trial.
        arrivals: rounds in which rewards arrive, for each trial `[A, 2]` (`delayed_arrivals`), or None in
            each place if rewards arrive at once.
        turns: conversations of each trial, or None if the condition is not `sessions`.
    """

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
    """Apply a condition to the orders of all trials.

    Under `arms_arrive`, the best third of the arms (by mean offline utility) can be played only in the second
    half of the rounds, under `arms_disappear` only in the first half; these rounds are set on `stream`. Under
    `drift` and `sessions` the orders are rearranged, within the order of time if the problem has times. Under
    `delayed_rewards` arrivals are drawn. Conditions that change data change nothing here, since the problem
    was already made under them.

    Args:
        name: the condition.
        stream: data that all trials play, changed in place.
        orders: `[n]` queries of each trial.
        trials: numbers of the trials.
        seed, pool: keys of the random streams.
        rounds: number of rounds to play. None plays whole orders.
        sessions: settings of conversations. None takes the defaults.

    Raises:
        PolicyError: the condition is unknown, or rounds are not within an order.
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
    """Arrange every trial as conversations; return orders of all rounds and turns of the first `rounds`."""
    played = [
        in_conversations(o, problem.tasks, problem.times, options, _generator("sessions", seed, pool, i))
        for o, i in zip(orders, trials, strict=True)
    ]
    arranged = [order for order, _ in played]
    first_turns = [Turns(turns.number[:rounds], turns.in_tools[:rounds]) for _, turns in played]
    return arranged, first_turns


def with_kept_costs(problem: ReplayProblem, pool: str, settings: Replay) -> ReplayProblem:
    """Return the problem with the costs of models that each answer all turns of a conversation.

    A cost is the mean over the trials, whose orders and conversations follow from `settings` as under the
    condition `sessions`. A query that no trial plays keeps its cost (`kept_costs`).
    """
    trials = range(settings.trials)
    n = problem.n
    orders = [in_time(query_order(settings.order_seed, pool, i, n), problem.times) for i in trials]
    rounds = settings.rounds or n
    orders, turns = _conversations(
        problem, orders, trials, settings.sessions, settings.order_seed, pool, rounds
    )
    costs = kept_costs(problem, [o[:rounds] for o in orders], turns, settings.sessions)
    return replace(problem, costs=costs)


def _generator(name: str, seed: int, pool: str, trial: int) -> np.random.Generator:
    """Return the random generator of one trial under the condition `name`."""
    return np.random.Generator(np.random.PCG64(int(stream_key(name, int(seed), str(pool), int(trial))[0])))


def in_time(order: np.ndarray, times: np.ndarray | None) -> np.ndarray:
    """Sort an order by the queries' times `[n]`, with ties as they are; None returns the order unchanged."""
    if times is None:
        return order
    return order[np.argsort(times[order], kind="stable")]


def drift_order(order: np.ndarray, tasks: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Rearrange an order `[n]` so that one half of the tasks mostly comes early, the other half late.

    The halves are drawn at random. A query's time is drawn from Beta(1, 3) or Beta(3, 1), by the half of its
    task.
    """
    names = np.unique(tasks)
    late = set(generator.permutation(names)[: len(names) // 2].tolist())
    is_late = np.isin(tasks[order], list(late))
    u = generator.random(len(order))
    # the largest or the smallest of three uniforms, through its inverse distribution function
    when = np.where(is_late, u ** (1.0 / 3.0), 1.0 - u ** (1.0 / 3.0))
    return order[np.argsort(when, kind="stable")]


def delayed_arrivals(total: int, generator: np.random.Generator) -> np.ndarray:
    """Draw the arrivals of delayed rewards in `total` rounds, int64 `[A, 2]`, sorted.

    The columns are the round at whose end a reward arrives, and the round to which it belongs. A reward is
    lost with probability `LOST`, otherwise 1 to `MAX_DELAY` rounds late. Rewards that are lost, or would
    arrive after the last round, are left out.
    """
    rounds = np.arange(total)
    arrive = rounds + generator.integers(1, MAX_DELAY + 1, size=total)
    keep = (generator.random(total) >= LOST) & (arrive < total)
    pairs = np.stack([arrive[keep], rounds[keep]], axis=1)
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))].astype(np.int64)
