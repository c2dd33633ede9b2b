"""Replay results on disk: one folder per (pool, rho, policy), compact parquet, whole or not at all.

Every file repeats `pool`, `rho` and `policy` as constant columns (a few bytes after run-length encoding), so
that a glob over all folders is one relation and needs no parsing of paths.

    run.parquet      1 row: settings, hashes, versions, seeds (see `RUN_FIELDS`)
    trials.parquet   1 row per trial: means over its rounds, latency and solver figures
    curves.parquet   ~100 checkpoints a trial: cumulative regret and utility
    queries.parquet  1 row per query: its identifier, mean over its plays, and its cluster (the independent
                     observation that it belongs to)
    arms.parquet     1 row per (trial, arm): plays, mean score, mean cost
    rounds.parquet   1 row per round: the raw trace. Rows are in (query, trial) order, because the same query
                     earns the same reward in most trials and then compresses about tenfold better;
                     ORDER BY trial, round gives the trace as it happened. Under condition sessions also its
                     cost, which elsewhere is the problem's

Utilities are clipped to [0, 1] unless a column says otherwise; costs are USD per call; regret is against the
best arm of each query.

Of a table with gaps, all means rest on real answers: utility, score and cost are the doubly robust values of
`problem.gaps`, whose means are estimates and whose single values mean little; `observed` is the share of
rounds whose answer is real. rounds.parquet has what was played, predictions among it; so have the best arm of
each query and the policy that plays it.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cabs_core.atomic import Contents, atomic_directory
from cabs_core.catalog import ORACLE_BEST, name_and_options, split_name, with_options
from cabs_core.errors import ResultError
from cabs_core.metrics.routing import arm_shares, effective_arms, switch_rate
from cabs_core.problem.gaps import real_values
from cabs_core.problem.replay_problem import ReplayProblem
from cabs_core.replay.result import ReplayResult
from cabs_core.utility import utility
from cabs_core.versions import package_versions

if TYPE_CHECKING:
    from cabs_core.pool_files import ModelPool

CHECKPOINTS = 100
#: Columns of rounds.parquet and their types in memory.
_TRACE: dict[str, type[np.generic]] = {
    "query_index": np.int64,
    "action": np.int64,
    "propensity": np.float32,
    "reward": np.float32,
}
FILES = ("run", "trials", "curves", "queries", "arms", "rounds")

#: The columns of run.parquet after pool, rho and policy. Explicit, because a null has no type of its own.
RUN_FIELDS: dict[str, pa.DataType] = {
    "base_policy": pa.string(),
    "preset": pa.string(),
    "trials": pa.int32(),
    "rounds": pa.int32(),
    "queries": pa.int32(),
    "independent": pa.int32(),  # of the queries: prompts with their near-copies, or conversations
    "arms": pa.list_(pa.string()),
    "problem_hash": pa.string(),  # one problem = one stream of queries, features, oracles and outcomes
    "order_hash": pa.string(),
    "seed": pa.int64(),
    "latency_weight": pa.float64(),
    "options": pa.string(),  # JSON
    "smallest_propensity": pa.float64(),
    "small_propensities": pa.float64(),  # share of the rounds whose propensity is below .01
    "created_at": pa.string(),  # UTC, ISO 8601
    "versions": pa.string(),  # JSON, package -> version
    "python": pa.string(),
    "pool_title": pa.string(),
    "pool_description": pa.string(),
    "synthetic": pa.bool_(),
    "paper_benchmark": pa.string(),
    "reference_policy": pa.string(),
    "encoder": pa.string(),
    "condition": pa.string(),
    "split_kind": pa.string(),
    "split_seed": pa.int64(),
    "oracle_seed": pa.int64(),
    "order_seed": pa.int64(),
    "pool_hash": pa.string(),
    "comparison_group": pa.string(),  # equal for pools with the same outcomes, splits and replay settings
    "pool_settings": pa.string(),  # JSON
}


@dataclass(frozen=True)
class StoredTrace:
    """What was played, read back from a replay's folder.

    Attributes:
        run: settings and hashes, as a dict.
        order, actions: [trials, T] integers; propensities, rewards: [trials, T] floats (single precision).
        costs: the same, of a replay under condition sessions; else None, they are the problem's.
    """

    run: dict[str, Any]
    order: np.ndarray
    actions: np.ndarray
    propensities: np.ndarray
    rewards: np.ndarray
    costs: np.ndarray | None


@dataclass(frozen=True)
class StoredReplay(StoredTrace):
    """A replay read back from its folder, with its summary tables trials, curves, queries and arms."""

    trials: pa.Table
    curves: pa.Table
    queries: pa.Table
    arms: pa.Table


def checkpoints(rounds: int, count: int = CHECKPOINTS) -> np.ndarray:
    """Rounds (1-based) at which curves are kept: evenly spread, the last included, at most `count`."""
    return np.unique(np.ceil(np.linspace(0, rounds, min(count, rounds) + 1)[1:]).astype(np.int64))


def save_replay_result(
    result: ReplayResult, problem: ReplayProblem, folder: str | Path, *, pool: ModelPool
) -> dict[str, Any]:
    """Write one replay to `folder` atomically and return its `run` record.

    Args:
        problem: what was replayed; scores and costs of the played arms come from it.
        folder: target; an existing one is replaced as a whole.
        pool: titles, encoder and settings of the record come from it.

    Raises:
        ResultError: arrays of different shapes, an order or action outside the problem, or rewards that are
            not the clipped utilities of the played arms (the result belongs to another problem).
    """
    played = _Played(result, problem)
    keys = {"pool": result.pool or problem.pool, "rho": float(result.rho), "policy": result.policy}
    run = keys | _run_record(result, problem, pool)
    columns = {
        "trials": _trials(played),
        "curves": _curves(played),
        "queries": _queries(played),
        "arms": _arms(played),
        "rounds": _rounds(played),
    }
    tables = {"run": pa.Table.from_pylist([run], schema=_RUN_SCHEMA)} | {
        name: _table(keys, found) for name, found in columns.items()
    }
    contents = Contents("a saved replay", "run.parquet", tuple(f"{name}.parquet" for name in tables))
    with atomic_directory(folder, contents) as temporary:
        for name, table in tables.items():
            _write(table, temporary / f"{name}.parquet", plain=name in ("run", "trials"))
    return run


def load_replay_result(folder: str | Path) -> StoredReplay:
    """Read a folder written by `save_replay_result`.

    Raises:
        ResultError: a file is missing or unreadable, or the rounds are not those that the run record
            promises.
    """
    folder = Path(folder)
    tables = {name: _read(folder, name) for name in ("trials", "curves", "queries", "arms")}
    return StoredReplay(**vars(load_trace(folder)), **tables)


def load_trace(folder: str | Path, run: dict[str, Any] | None = None) -> StoredTrace:
    """Read only what was played; raises as `load_replay_result` does.

    Args:
        run: the run record, as `save_replay_result` returned it; None: read from the folder.
    """
    folder = Path(folder)
    run = run or _read(folder, "run").to_pylist()[0]
    trials, rounds = run["trials"], run["rounds"]
    costs = ["cost"] if run["condition"] == "sessions" else []
    table = _read(folder, "rounds", [*_TRACE, *costs, "trial", "round"])
    raw = {name: table[name].to_numpy() for name in table.column_names}
    place = raw["trial"].astype(np.int64) * rounds + raw["round"]
    inside = (raw["round"] >= 0) & (raw["round"] < rounds) & (raw["trial"] >= 0) & (raw["trial"] < trials)
    seen = np.zeros(trials * rounds, dtype=bool)
    seen[place if inside.all() else place[inside]] = True
    if len(table) != trials * rounds or not seen.all():
        raise ResultError(
            f"{folder}/rounds.parquet holds {len(table)} rows for {int(seen.sum())} different rounds, "
            f"expected each of {trials} trials x {rounds} rounds once; replay this partition again"
        )

    def shaped(column: str, dtype: type[np.generic]) -> np.ndarray:
        values = np.empty(trials * rounds, dtype=dtype)
        values[place] = raw[column]
        return values.reshape(trials, rounds)

    order, actions, propensities, rewards = (shaped(name, dtype) for name, dtype in _TRACE.items())
    return StoredTrace(
        run, order, actions, propensities, rewards, shaped("cost", np.float32) if costs else None
    )


def trace_of(result: ReplayResult, problem: ReplayProblem, folder: str | Path) -> StoredTrace:
    """What `load_trace` would read, of a replay that was played again because its rounds were pruned."""
    played = _Played(result, problem)
    costs = None if result.turns is None else played.costs.astype(np.float32)
    arrays = (result.order, result.actions, result.propensities, played.rewards)
    order, actions, propensities, rewards = (
        array.astype(kind) for array, kind in zip(arrays, _TRACE.values(), strict=True)
    )
    return StoredTrace(
        _read(Path(folder), "run").to_pylist()[0], order, actions, propensities, rewards, costs
    )


def _read(folder: Path, name: str, columns: list[str] | None = None) -> pa.Table:
    path = folder / f"{name}.parquet"
    try:
        with pq.ParquetFile(path) as file:  # a few rows: a thread costs more than it reads
            return file.read(columns, use_threads=False)
    except (OSError, pa.ArrowInvalid) as error:
        raise ResultError(
            f"{path}: cannot be read as a replay result ({error}); replay this partition again"
        ) from None


def _write(table: pa.Table, path: Path, *, plain: bool) -> None:
    """Small files: dictionaries for keys and text only, the bytes of measured floats split."""
    names = table.column_names
    text = [f.name for f in table.schema if f.name in _KEYS or pa.types.is_string(f.type)]
    floats = [f.name for f in table.schema if pa.types.is_floating(f.type) and f.name not in _KEYS]
    keyed = [name for name in names if name not in floats] if "reward" in names else text
    pq.write_table(
        table,
        path,
        compression="zstd",
        compression_level=9,
        store_schema=False,
        write_statistics=not plain,
        use_dictionary=False if plain else keyed,
        use_byte_stream_split=False if plain else floats,
    )


_KEYS = ("pool", "rho", "policy")
_RUN_SCHEMA = pa.schema(
    [("pool", pa.string()), ("rho", pa.float64()), ("policy", pa.string()), *RUN_FIELDS.items()]
)


class _Played:
    """The arrays `[trials, T]` of one replay, checked against the problem, with scores and costs of the
    played arms.

    values: clipped utilities, of a table with gaps those of `problem.gaps`; unclipped: without the limits;
    observed: 1 where the answer is real. n, k, trials, rounds: numbers of queries, arms, trials and rounds.
    """

    def __init__(self, result: ReplayResult, problem: ReplayProblem) -> None:
        self.result, self.arms, self.query_ids = result, problem.arms, problem.query_ids
        self.clusters = np.arange(problem.n) if problem.clusters is None else problem.clusters
        self.n, self.k = problem.scores.shape
        where = f"replay of {result.policy!r} at rho={result.rho:g} on pool {result.pool!r}"
        _check_places(result, self.n, self.k, where)
        self.trials, self.rounds = result.actions.shape
        at = result.order, result.actions
        self.scores = problem.scores[at]
        # in conversations a call costs what the earlier turns make of it; all else is the table's
        costs = problem.costs[at] if result.turns is None else np.asarray(result.costs, dtype=np.float64)
        self.costs: np.ndarray = costs
        weight = result.latency_weight
        latencies = problem.latencies[at] if weight and problem.latencies is not None else None
        self.unclipped = utility(self.scores, self.costs, result.rho, latencies, weight)
        self.rewards = np.asarray(result.rewards, dtype=np.float64)
        self._check_rewards(where)
        self.values, self.observed = self.rewards, np.ones(result.actions.shape)
        if problem.observed is not None:
            self._rest_on_real_cells(problem, problem.observed[at])
        self.regret = result.best_rewards - self.values

    def _check_rewards(self, where: str) -> None:
        clipped = np.clip(self.unclipped, 0, 1)
        off = np.abs(clipped - self.rewards)
        if off.max() < 1e-5:  # not so with a NaN
            return
        trial, t = np.unravel_index(np.nanargmax(np.where(np.isnan(off), np.inf, off)), off.shape)
        arm = self.arms[self.result.actions[trial, t]]
        raise ResultError(
            f"{where}: reward {self.rewards[trial, t]:.6g} of trial {trial}, round {t} is not the clipped "
            f"utility {clipped[trial, t]:.6g} of arm {arm!r} on that query: result and problem do not belong "
            "together"
        )

    def _rest_on_real_cells(self, problem: ReplayProblem, observed: np.ndarray) -> None:
        """Of a table with gaps: what means are taken of (`problem.gaps`).

        What looks at outcomes first stays as it was played.
        """
        self.observed = (observed > 0).astype(np.float64)
        if split_name(self.result.policy)[0] == ORACLE_BEST:
            return
        cells, at = real_values(problem, self.result.rho), (self.result.order, self.result.actions)
        self.values, self.scores, self.costs = cells.utility[at], cells.score[at], cells.cost[at]
        self.unclipped = utility(self.scores, self.costs, self.result.rho)


def _check_places(result: ReplayResult, n: int, k: int, where: str) -> None:
    """ResultError where arrays differ in shape, or name a query or an arm that the problem does not have."""
    shape = result.actions.shape
    for name in ("order", "propensities", "rewards", "best_rewards"):
        found = getattr(result, name).shape
        if found != shape or len(shape) != 2 or 0 in shape:
            raise ResultError(
                f"{where}: {name} has shape {found}, actions {shape}; expected [trials, T] for both"
            )
    for name, values, limit in (("order", result.order, n), ("actions", result.actions, k)):
        if values.min() < 0 or values.max() >= limit:
            raise ResultError(
                f"{where}: {name} holds {values.min()}..{values.max()}, expected 0..{limit - 1}"
            )


def _table(keys: dict[str, Any], columns: dict[str, Any]) -> pa.Table:
    """The columns after the constant ones of the keys."""
    rows = len(next(iter(columns.values())))
    return pa.table({name: pa.repeat(pa.scalar(value), rows) for name, value in keys.items()} | columns)


def _trials(p: _Played) -> dict[str, Any]:
    result, nothing = p.result, pa.nulls(p.trials, pa.float64())
    seconds, gaps, uncertified = result.seconds, result.gaps, result.uncertified
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
    rows = [row[np.isfinite(row)] for row in np.asarray(gaps, dtype=np.float64)]
    return pa.array([float(function(row)) if row.size else None for row in rows], pa.float64())


def _curves(p: _Played) -> dict[str, Any]:
    at = checkpoints(p.rounds)
    size, weights = p.trials * len(at), p.result.meta_weights
    listed = pa.list_(pa.float32())
    return {
        "trial": pa.array(np.repeat(np.arange(p.trials), len(at)), pa.int32()),
        "round": pa.array(np.tile(at, p.trials), pa.int32()),
        "cumulative_regret": np.cumsum(p.regret, axis=1)[:, at - 1].reshape(-1),
        "cumulative_utility": np.cumsum(p.values, axis=1)[:, at - 1].reshape(-1),
        "expert_weights": pa.nulls(size, listed)
        if weights is None
        else pa.array(list(weights[:, at - 1].reshape(size, -1).astype(np.float32)), listed),
    }


def _queries(p: _Played) -> dict[str, Any]:
    flat = p.result.order.reshape(-1)
    plays = np.bincount(flat, minlength=p.n)
    seen = np.flatnonzero(plays)

    def mean(values: np.ndarray) -> pa.Array:
        total = np.bincount(flat, weights=values.reshape(-1), minlength=p.n)
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


def _arms(p: _Played) -> dict[str, Any]:
    size = p.trials * p.k
    cell = (np.arange(p.trials)[:, None] * p.k + p.result.actions).reshape(-1)
    plays = np.bincount(cell, minlength=size)

    def mean(values: np.ndarray) -> pa.Array:
        total = np.bincount(cell, weights=values.reshape(-1), minlength=size)
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


def _rounds(p: _Played) -> dict[str, Any]:
    trial = np.repeat(np.arange(p.trials), p.rounds)
    query = p.result.order.reshape(-1)
    place = np.lexsort((trial, query))

    def sorted_by_query(values: np.ndarray, kind: type[np.generic]) -> np.ndarray:
        return values.reshape(-1)[place].astype(kind)

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


def _run_record(result: ReplayResult, problem: ReplayProblem, pool: ModelPool) -> dict[str, Any]:
    base, preset = split_name(result.policy)
    return {
        "base_policy": base,
        "preset": with_options(preset, name_and_options(result.policy)[1]),  # `default@alpha=2`
        "trials": result.trials,
        "rounds": result.rounds,
        "queries": problem.n,
        "independent": problem.independent,
        "arms": problem.arms,
        "problem_hash": problem.content_hash(),
        "order_hash": _digest(result.order),
        "seed": result.seed,
        "latency_weight": result.latency_weight,
        "options": json.dumps(result.options, sort_keys=True, default=str),
        "smallest_propensity": float(result.propensities.astype(np.float32).min()),
        "small_propensities": float((result.propensities.astype(np.float32) < 0.01).mean()),
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": json.dumps(package_versions(), sort_keys=True),
        "python": platform.python_version(),
        "pool_title": pool.title or pool.name,
        "pool_description": pool.description,
        "synthetic": bool(pool.synthetic),
        "paper_benchmark": pool.paper_benchmark,
        "reference_policy": pool.reference_policy,
        "encoder": pool.encoder.name,
        "condition": pool.replay.condition,
        "split_kind": pool.split.kind,
        "split_seed": pool.split.split_seed,
        "oracle_seed": pool.oracle.oracle_seed,
        "order_seed": pool.replay.order_seed,
        "pool_hash": pool.content_hash(),
        "comparison_group": f"{problem.outcomes_hash()}-{pool.content_hash('replay')}",
        "pool_settings": json.dumps(pool.model_dump(mode="json"), sort_keys=True),
    }


def _digest(array: np.ndarray) -> str:
    array = np.ascontiguousarray(array)
    digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    digest.update(array.data)
    return digest.hexdigest()[:16]
