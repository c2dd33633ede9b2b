"""Columns of the tables that a replay is stored as (`storage`).

`PlayedArrays` checks a result against its problem. The other functions make one table each from it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from cabs_core.algorithms.problem.gaps import real_values
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.catalog.policies import split_name
from cabs_core.base.catalog.roles import ORACLE_BEST
from cabs_core.base.errors import ResultError
from cabs_core.base.utility import utility
from cabs_core.evaluation.metrics.routing import arm_shares, effective_arms, switch_rate
from cabs_core.evaluation.replay.result import ReplayResult

#: largest number of rounds at which curves are kept
CHECKPOINTS = 100


def checkpoints(rounds: int) -> np.ndarray:
    """Rounds `[m]` at which curves are kept, counted from 1: evenly spread, with the last round.

    There are `CHECKPOINTS` of them, or all rounds if there are fewer.
    """
    return np.unique(np.ceil(np.linspace(0, rounds, min(CHECKPOINTS, rounds) + 1)[1:]).astype(np.int64))


class PlayedArrays:
    """The arrays `[trials, T]` of one replay, checked against its problem.

    Attributes:
        result: the replay.
        arms, query_ids: names of the problem's arms and queries.
        clusters: `[n]` equal values for queries that depend on each other.
        n, k, trials, rounds: numbers of queries, arms, trials and rounds.
        scores, costs: of the played arms, costs in USD. If the table has gaps, both are the estimates of
            `problem.gaps`, of which only means can be interpreted.
        rewards: clipped utilities that the policy learned from.
        values: clipped utilities that figures are made of, which are estimates if the table has gaps.
        unclipped: utilities without clipping.
        observed: 1 if the answer is real, 0 if it is a prediction.
        regret: utility of the best arm less `values`.

    Raises:
        ResultError: the result does not belong to the problem.
    """

    def __init__(self, result: ReplayResult, problem: ReplayProblem) -> None:
        self.result = result
        self.arms = problem.arms
        self.query_ids = problem.query_ids
        if problem.clusters is None:
            self.clusters = np.arange(problem.n)
        else:
            self.clusters = problem.clusters
        self.n, self.k = problem.scores.shape
        where = f"replay of {result.policy!r} at rho={result.rho:g} on pool {result.pool!r}"
        _check_places(result, self.n, self.k, where)
        self.trials, self.rounds = result.actions.shape
        at = result.order, result.actions
        self.scores = problem.scores[at]
        if result.turns is None:
            self.costs: np.ndarray = problem.costs[at]
        else:  # in conversations the cost of a call depends on the earlier turns
            self.costs = np.asarray(result.costs, dtype=np.float64)
        if problem.latencies is None:
            latencies = None
        else:
            latencies = problem.latencies[at]
        self.unclipped = utility(self.scores, self.costs, result.rho, latencies, result.latency_weight)
        self.rewards = np.asarray(result.rewards, dtype=np.float64)
        self._check_rewards(where)
        self.values = self.rewards
        self.observed = np.ones(result.actions.shape)
        if problem.observed is not None:
            self._rest_on_real_cells(problem, problem.observed[at])
        self.regret = result.best_rewards - self.values

    def _check_rewards(self, where: str) -> None:
        """Raise ResultError if a reward is not the clipped utility of its arm and query, up to 1e-5.

        Args:
            where: words that name the replay; the message begins with them.
        """
        clipped = np.clip(self.unclipped, 0, 1)
        off = np.abs(clipped - self.rewards)
        if off.max() < 1e-5:  # False if a value is NaN
            return
        trial, t = np.unravel_index(np.nanargmax(np.where(np.isnan(off), np.inf, off)), off.shape)
        arm = self.arms[self.result.actions[trial, t]]
        raise ResultError(
            f"{where}: reward {self.rewards[trial, t]:.6g} of trial {trial}, round {t} is not the clipped "
            f"utility {clipped[trial, t]:.6g} of arm {arm!r} on that query: result and problem do not belong "
            "together"
        )

    def _rest_on_real_cells(self, problem: ReplayProblem, observed: np.ndarray) -> None:
        """Set `values`, `unclipped`, `scores` and `costs` to the estimates of a table with gaps.

        The estimates are those of `problem.gaps.real_values`. The attribute `observed` is set to 1 where the
        played answer is real, and to 0 elsewhere. `oracle_best` looks at outcomes before it plays, so nothing
        but its `observed` is set. `rewards` stay for every policy.

        Args:
            problem: the problem that was replayed, which has gaps.
            observed: `[trials, T]`, above 0 where the played answer is real.
        """
        self.observed = (observed > 0).astype(np.float64)
        if split_name(self.result.policy)[0] == ORACLE_BEST:
            return
        cells = real_values(problem, self.result.rho)
        at = self.result.order, self.result.actions
        self.values = cells.utility[at]
        self.scores = cells.score[at]
        self.costs = cells.cost[at]
        self.unclipped = utility(self.scores, self.costs, self.result.rho)


def _check_places(result: ReplayResult, n: int, k: int, where: str) -> None:
    """Raise ResultError if arrays differ in shape, or hold a query or an arm that the problem does not
    have.
    """
    shape = result.actions.shape
    for name in ("order", "propensities", "rewards", "best_rewards"):
        dimensions = getattr(result, name).shape
        if dimensions != shape or len(shape) != 2 or 0 in shape:
            raise ResultError(
                f"{where}: {name} has shape {dimensions}, actions {shape}; expected [trials, T] for both"
            )
    for name, values, limit in (("order", result.order, n), ("actions", result.actions, k)):
        if values.min() < 0 or values.max() >= limit:
            raise ResultError(
                f"{where}: {name} holds {values.min()}..{values.max()}, expected 0..{limit - 1}"
            )


def trials(p: PlayedArrays) -> dict[str, Any]:
    """Columns with one row a trial: means over the trial's rounds, times and figures of the solver."""
    result = p.result
    seconds = result.seconds
    gaps = result.gaps
    uncertified = result.uncertified
    nothing = pa.nulls(p.trials, pa.float64())
    zeros = np.zeros(p.trials)
    return {
        "trial": pa.array(np.arange(p.trials), pa.int32()),
        "rounds": pa.array(np.full(p.trials, p.rounds), pa.int32()),
        "utility": p.values.mean(axis=1),
        "utility_unclipped": p.unclipped.mean(axis=1),
        "score": p.scores.mean(axis=1),
        "cost": p.costs.mean(axis=1),
        "regret": p.regret.mean(axis=1),
        "best_utility": result.best_rewards.mean(axis=1),
        "observed": p.observed.mean(axis=1),
        "switch_rate": switch_rate(result.actions),
        "switches_per_session": nothing if result.turns is None else result.switches_per_session(),
        "effective_arms": effective_arms(arm_shares(result.actions, p.k)),
        "mean_propensity": result.propensities.mean(axis=1, dtype=np.float64),
        "seconds": nothing if seconds is None else seconds,
        "microseconds_per_round": nothing if seconds is None else seconds / p.rounds * 1e6,
        "solved_rounds": pa.array(zeros if gaps is None else np.isfinite(gaps).sum(axis=1), pa.int64()),
        "uncertified": pa.array(zeros if uncertified is None else uncertified, pa.int64()),
        "max_gap": nothing if gaps is None else _finite(np.max, gaps),
        "mean_gap": nothing if gaps is None else _finite(np.mean, gaps),
    }


def _finite(function: Callable[[np.ndarray], np.floating], gaps: np.ndarray) -> pa.Array:
    """Apply a function to the finite certificate gaps of each trial; null for a trial without any."""
    rows = [row[np.isfinite(row)] for row in np.asarray(gaps, dtype=np.float64)]
    return pa.array([float(function(row)) if row.size else None for row in rows], pa.float64())


def curves(p: PlayedArrays) -> dict[str, Any]:
    """Columns with one row a trial and checkpoint: cumulative regret and utility, and weights of experts.

    Rounds are counted from 1. The weights are null if the policy has no experts.
    """
    at = checkpoints(p.rounds)
    size = p.trials * len(at)
    weights = p.result.meta_weights
    kind = pa.list_(pa.float32())
    expert_weights = pa.nulls(size, kind)
    if weights is not None:
        expert_weights = pa.array(list(weights[:, at - 1].reshape(size, -1).astype(np.float32)), kind)
    return {
        "trial": pa.array(np.repeat(np.arange(p.trials), len(at)), pa.int32()),
        "round": pa.array(np.tile(at, p.trials), pa.int32()),
        "cumulative_regret": np.cumsum(p.regret, axis=1)[:, at - 1].ravel(),
        "cumulative_utility": np.cumsum(p.values, axis=1)[:, at - 1].ravel(),
        "expert_weights": expert_weights,
    }


def queries(p: PlayedArrays) -> dict[str, Any]:
    """Columns with one row a query that was played: number of plays, means over them, and the cluster."""
    flat = p.result.order.ravel()
    plays = np.bincount(flat, minlength=p.n)
    seen = np.flatnonzero(plays)

    def mean(values: np.ndarray) -> pa.Array:
        total = np.bincount(flat, weights=values.ravel(), minlength=p.n)
        return pa.array((total[seen] / plays[seen]).astype(np.float32))

    return {
        "query_index": pa.array(seen, pa.int32()),
        "query_id": pa.array(p.query_ids[seen].tolist(), pa.string()),
        "cluster": pa.array(p.clusters[seen], pa.int32()),
        "plays": pa.array(plays[seen], pa.int32()),
        "utility": mean(p.values),
        "regret": mean(p.regret),
        "score": mean(p.scores),
        "cost": mean(p.costs),
    }


def arms(p: PlayedArrays) -> dict[str, Any]:
    """Columns with one row a trial and arm: number of plays and means over them, null without plays."""
    size = p.trials * p.k
    cell = (np.arange(p.trials)[:, None] * p.k + p.result.actions).ravel()
    plays = np.bincount(cell, minlength=size)

    def mean(values: np.ndarray) -> pa.Array:
        total = np.bincount(cell, weights=values.ravel(), minlength=size)
        return pa.array(total / np.maximum(plays, 1), mask=plays == 0)

    return {
        "trial": pa.array(np.repeat(np.arange(p.trials), p.k), pa.int32()),
        "arm": pa.array(p.arms * p.trials, pa.string()),
        "plays": pa.array(plays, pa.int64()),
        "share": plays / p.rounds,
        "score": mean(p.scores),
        "cost": mean(p.costs),
        "observed": mean(p.observed),
    }


def rounds(p: PlayedArrays) -> dict[str, Any]:
    """Columns with one row a round, sorted by query and trial. Rounds are counted from 0.

    The column of costs is there only if the replay was over conversations.
    """
    trial = np.repeat(np.arange(p.trials), p.rounds)
    query = p.result.order.ravel()
    place = np.lexsort((trial, query))

    def sorted_by_query(values: np.ndarray, kind: type[np.generic]) -> np.ndarray:
        return values.ravel()[place].astype(kind)

    columns = {
        "trial": sorted_by_query(trial, np.int16),
        "round": sorted_by_query(np.tile(np.arange(p.rounds), p.trials), np.int32),
        "query_index": sorted_by_query(query, np.int32),
        "action": sorted_by_query(p.result.actions, np.int16),
        "propensity": sorted_by_query(p.result.propensities, np.float32),
        "reward": sorted_by_query(p.rewards, np.float32),
    }
    if p.result.turns is not None:
        columns["cost"] = sorted_by_query(p.costs, np.float32)
    return columns
