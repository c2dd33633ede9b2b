"""Replay results on disk: one folder per (pool, rho, policy), compact parquet, written as a whole or not at all.

Every file repeats `pool`, `rho` and `policy` as constant columns (a few bytes after run-length encoding), so
that a glob over all folders is one relation and needs no parsing of paths.

    run.parquet      1 row: settings, hashes, versions, seeds (see `RUN_FIELDS`)
    trials.parquet   1 row per trial: means over its rounds, latency and solver figures
    curves.parquet   ~100 checkpoints a trial: cumulative regret and utility
    queries.parquet  1 row per query: mean over its plays; the unit of the bootstrap over queries
    arms.parquet     1 row per (trial, arm): plays, mean score, mean cost
    rounds.parquet   1 row per round: the raw trace. Rows are in (query, trial) order, because the same query
                     earns the same reward in most trials and then compresses about tenfold better;
                     ORDER BY trial, round gives the trace as it happened. Under condition sessions also its cost,
                     which elsewhere is the problem's

Utilities are clipped to [0, 1] unless a column says otherwise; costs are USD per call; regret is against the
best arm of each query.

Of a table with gaps, all means rest on real answers: utility, score and cost are the doubly robust values of `problem.gaps`, whose
means are estimates and whose single values mean little; `observed` is the share of rounds whose answer is real. rounds.parquet has
what was played, predictions among it; so have the best arm of each query and the policy that plays it.
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
from cabs_core.catalog import ORACLE_BEST, REFERENCE, name_and_options, split_name, with_options
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
#: Pool sections that must be equal for two pools to be compared across encoders (`comparison_group`).
_ENCODER_FREE = ("source", "models", "tasks", "prices", "rescale_mean_cost", "missing", "split", "replay")


#: The columns of run.parquet after pool, rho and policy. Explicit, because a null has no type of its own.
RUN_FIELDS: dict[str, pa.DataType] = {
    "base_policy": pa.string(),
    "preset": pa.string(),
    "trials": pa.int32(),
    "rounds": pa.int32(),
    "queries": pa.int32(),
    "arms": pa.list_(pa.string()),
    "problem_hash": pa.string(),  # one problem = one stream of queries, features, oracles and outcomes
    "order_hash": pa.string(),
    "seed": pa.int64(),
    "latency_weight": pa.float64(),
    "options": pa.string(),  # JSON
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
    "comparison_group": pa.string(),  # hash of the sections in _ENCODER_FREE
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
    """Rounds (1-based) at which curves are kept: evenly spread, the last one always included, at most `count`."""
    return np.unique(np.ceil(np.linspace(0, rounds, min(count, rounds) + 1)[1:]).astype(np.int64))


def save_replay_result(
    result: ReplayResult, problem: ReplayProblem, folder: str | Path, *, pool: ModelPool | None = None
) -> dict[str, Any]:
    """Write one replay to `folder` atomically and return its `run` record.

    Args:
        result: `ReplayResult` (order, actions, propensities, rewards, best_rewards [trials, T], ...).
        problem: the `ReplayProblem` that was replayed; scores and costs of the played arms come from it.
        folder: target; an existing one is replaced as a whole.
        pool: `ModelPool`, for titles, encoder and hashes. None: only the result's own pool name is recorded.

    Raises:
        ResultError: arrays of different shapes, an order or action outside the problem, or rewards that are
            not the clipped utilities of the played arms (the result belongs to another problem).
    """
    traces = _Traces(result, problem)
    keys = {"pool": traces.pool, "rho": traces.rho, "policy": traces.policy}
    run = keys | _run_record(traces, result, problem, pool)
    tables = {
        "run": pa.Table.from_pylist([run], schema=_RUN_SCHEMA),
        "trials": _trials(traces, result, keys),
        "curves": _curves(traces, result, keys),
        "queries": _queries(traces, keys),
        "arms": _arms(traces, keys),
        "rounds": _rounds(traces, keys),
    }
    contents = Contents("a saved replay", "run.parquet", tuple(f"{name}.parquet" for name in tables))
    with atomic_directory(folder, contents) as temporary:
        for name, table in tables.items():
            _write(table, temporary / f"{name}.parquet", plain=name in ("run", "trials"))
    return run


def load_replay_result(folder: str | Path) -> StoredReplay:
    """Read a folder written by `save_replay_result`.

    Raises:
        ResultError: a file is missing or unreadable, or the rounds are not those that the run record promises.
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
            f"{folder}/rounds.parquet holds {len(table)} rows for {int(seen.sum())} different rounds, expected "
            f"each of {trials} trials x {rounds} rounds once; replay this partition again"
        )

    def shaped(column: str, dtype: type[np.generic]) -> np.ndarray:
        values = np.empty(trials * rounds, dtype=dtype)
        values[place] = raw[column]
        return values.reshape(trials, rounds)

    order, actions, propensities, rewards = (shaped(name, dtype) for name, dtype in _TRACE.items())
    return StoredTrace(
        run, order, actions, propensities, rewards, shaped("cost", np.float32) if costs else None
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
    """Small files: dictionaries for keys and text only, the bytes of measured floats split before compression."""
    names = table.column_names
    text = [f.name for f in table.schema if f.name in _KEYS or pa.types.is_string(f.type)]
    floats = [f.name for f in table.schema if pa.types.is_floating(f.type) and f.name not in _KEYS]
    pq.write_table(
        table, path, compression="zstd", compression_level=9, store_schema=False, write_statistics=not plain,
        use_dictionary=False if plain else [c for c in names if c not in floats] if "reward" in names else text,
        use_byte_stream_split=False if plain else floats,
    )  # fmt: skip


_KEYS = ("pool", "rho", "policy")
_RUN_SCHEMA = pa.schema(
    [("pool", pa.string()), ("rho", pa.float64()), ("policy", pa.string()), *RUN_FIELDS.items()]
)


class _Traces:
    """The arrays of one replay, checked against the problem, with scores and costs of the played arms."""

    def __init__(self, result: ReplayResult, problem: ReplayProblem) -> None:
        self.pool = str(getattr(result, "pool", "") or getattr(problem, "pool", "") or "")
        self.policy = str(result.policy)
        self.rho = float(result.rho)
        self.arms = [str(a) for a in problem.arms]
        self.order = np.asarray(result.order)
        self.actions = np.asarray(result.actions)
        self.propensities = np.asarray(result.propensities)
        self.rewards = np.asarray(result.rewards, dtype=np.float64)
        self.best = np.asarray(result.best_rewards, dtype=np.float64)
        where = f"replay of {self.policy!r} at rho={self.rho:g} on pool {self.pool!r}"
        shape = self.actions.shape
        for name in ("order", "propensities", "rewards", "best"):
            if getattr(self, name).shape != shape or len(shape) != 2 or 0 in shape:
                raise ResultError(
                    f"{where}: {name} has shape {getattr(self, name).shape}, actions {shape}; "
                    "expected [trials, T] for both"
                )
        n, k = problem.scores.shape
        for name, limit in (("order", n), ("actions", k)):
            values = getattr(self, name)
            if values.min() < 0 or values.max() >= limit:
                raise ResultError(
                    f"{where}: {name} holds {values.min()}..{values.max()}, expected 0..{limit - 1}"
                )
        self.n, self.k = n, k
        self.trials, self.rounds = shape
        self.scores = np.asarray(problem.scores)[self.order, self.actions].astype(np.float64)
        self.turns = getattr(result, "turns", None)
        # in conversations a call costs what the earlier turns make of it; all else is the table's
        costs = np.asarray(problem.costs)[self.order, self.actions] if self.turns is None else result.costs
        self.costs = np.asarray(costs, dtype=np.float64)
        self.latency_weight = float(getattr(result, "latency_weight", 0.0) or 0.0)
        latencies = np.asarray(problem.latencies)[self.order, self.actions] if self.latency_weight else None
        self.unclipped = utility(self.scores, self.costs, self.rho, latencies, self.latency_weight)
        off = np.abs(np.clip(self.unclipped, 0, 1) - self.rewards)
        if not off.max() < 1e-5:  # also catches NaN
            trial, t = np.unravel_index(np.nanargmax(np.where(np.isnan(off), np.inf, off)), shape)
            raise ResultError(
                f"{where}: reward {self.rewards[trial, t]:.6g} of trial {trial}, round {t} is not the clipped "
                f"utility {np.clip(self.unclipped[trial, t], 0, 1):.6g} of arm {self.arms[self.actions[trial, t]]!r} "
                "on that query: result and problem do not belong together"
            )
        self.values, self.observed = self.rewards, np.ones(shape)
        if problem.observed is not None:
            self._rest_on_real_cells(problem)
        self.regret = self.best - self.values

    def _rest_on_real_cells(self, problem: ReplayProblem) -> None:
        """Of a table with gaps: what means are taken of (`problem.gaps`). What looks at outcomes first stays as it was played."""
        assert problem.observed is not None  # see above
        self.observed = (problem.observed[self.order, self.actions] > 0).astype(np.float64)
        if split_name(self.policy)[0] == ORACLE_BEST:
            return
        cells = real_values(problem, self.rho)
        self.values, self.scores, self.costs = (
            found[self.order, self.actions] for found in (cells.utility, cells.score, cells.cost)
        )
        self.unclipped = utility(self.scores, self.costs, self.rho)


def _constant(keys: dict[str, Any], rows: int) -> dict[str, pa.Array]:
    return {name: pa.repeat(pa.scalar(value), rows) for name, value in keys.items()}


def _per_trial(result: ReplayResult, name: str, trials: int) -> np.ndarray | None:
    value = getattr(result, name, None)
    if value is None:
        return None
    found = np.asarray(value, dtype=np.float64)
    return np.full(trials, float(found) / trials) if found.ndim == 0 else found


def _trials(t: _Traces, result: ReplayResult, keys: dict[str, Any]) -> pa.Table:
    seconds = _per_trial(result, "seconds", t.trials)
    uncertified = _per_trial(result, "uncertified", t.trials)
    gaps = getattr(result, "gaps", None)
    nothing = pa.nulls(t.trials, pa.float64())
    columns = _constant(keys, t.trials) | {
        "trial": pa.array(np.arange(t.trials), pa.int32()),
        "rounds": pa.array(np.full(t.trials, t.rounds), pa.int32()),
        "utility": t.values.mean(axis=1),
        "utility_unclipped": t.unclipped.mean(axis=1),
        "score": t.scores.mean(axis=1),
        "cost": t.costs.mean(axis=1),
        "regret": t.regret.mean(axis=1),
        "best_utility": t.best.mean(axis=1),
        "observed": t.observed.mean(axis=1),
        "switch_rate": switch_rate(t.actions),
        "switches_per_session": nothing if t.turns is None else result.switches_per_session(),
        "effective_arms": effective_arms(arm_shares(t.actions, t.k)),
        "mean_propensity": t.propensities.mean(axis=1, dtype=np.float64),
        "seconds": nothing if seconds is None else seconds,
        "microseconds_per_round": nothing if seconds is None else seconds / t.rounds * 1e6,
        "solved_rounds": pa.array(
            np.zeros(t.trials) if gaps is None else np.isfinite(gaps).sum(axis=1), pa.int64()
        ),
        "uncertified": pa.array(np.zeros(t.trials) if uncertified is None else uncertified, pa.int64()),
        "max_gap": nothing if gaps is None else _finite(np.max, gaps),
        "mean_gap": nothing if gaps is None else _finite(np.mean, gaps),
    }
    return pa.table(columns)


def _finite(function: Callable[[np.ndarray], np.floating], gaps: np.ndarray) -> pa.Array:
    rows = [row[np.isfinite(row)] for row in np.asarray(gaps, dtype=np.float64)]
    return pa.array([float(function(row)) if row.size else None for row in rows], pa.float64())


def _curves(t: _Traces, result: ReplayResult, keys: dict[str, Any]) -> pa.Table:
    at = checkpoints(t.rounds)
    size = t.trials * len(at)
    weights = getattr(result, "meta_weights", None)
    second = None
    if weights is not None and np.ndim(weights) == 3:
        weights = np.asarray(weights)
        # one weight vector a round, or already one a checkpoint
        rows = (
            at - 1
            if weights.shape[1] == t.rounds
            else np.linspace(0, weights.shape[1] - 1, len(at)).astype(int)
        )
        second = weights[:, rows, :].reshape(size, -1)
    return pa.table(
        _constant(keys, size)
        | {
            "trial": pa.array(np.repeat(np.arange(t.trials), len(at)), pa.int32()),
            "round": pa.array(np.tile(at, t.trials), pa.int32()),
            "cumulative_regret": np.cumsum(t.regret, axis=1)[:, at - 1].reshape(-1),
            "cumulative_utility": np.cumsum(t.values, axis=1)[:, at - 1].reshape(-1),
            "expert_weights": pa.nulls(size, pa.list_(pa.float32()))
            if second is None
            else pa.array(list(second.astype(np.float32)), pa.list_(pa.float32())),
        }
    )


def _queries(t: _Traces, keys: dict[str, Any]) -> pa.Table:
    flat = t.order.reshape(-1)
    plays = np.bincount(flat, minlength=t.n)
    seen = np.flatnonzero(plays)

    def mean(values: np.ndarray) -> pa.Array:
        total = np.bincount(flat, weights=values.reshape(-1), minlength=t.n)
        return pa.array((total[seen] / plays[seen]).astype(np.float32))

    return pa.table(
        _constant(keys, len(seen))
        | {
            "query_index": pa.array(seen, pa.int32()),
            "plays": pa.array(plays[seen], pa.int32()),
            "utility": mean(t.values),
            "regret": mean(t.regret),
            "score": mean(t.scores),
            "cost": mean(t.costs),
        }
    )


def _arms(t: _Traces, keys: dict[str, Any]) -> pa.Table:
    size = t.trials * t.k
    cell = (np.arange(t.trials)[:, None] * t.k + t.actions).reshape(-1)
    plays = np.bincount(cell, minlength=size)
    safe = np.maximum(plays, 1)

    def mean(values: np.ndarray) -> pa.Array:
        total = np.bincount(cell, weights=values.reshape(-1), minlength=size)
        return pa.array(total / safe, mask=plays == 0)

    return pa.table(
        _constant(keys, size)
        | {
            "trial": pa.array(np.repeat(np.arange(t.trials), t.k), pa.int32()),
            "arm": pa.array(t.arms * t.trials, pa.string()),
            "plays": pa.array(plays, pa.int64()),
            "share": plays / t.rounds,
            "score": mean(t.scores),
            "cost": mean(t.costs),
            "observed": mean(t.observed),
        }
    )


def _rounds(t: _Traces, keys: dict[str, Any]) -> pa.Table:
    size = t.trials * t.rounds
    trial = np.repeat(np.arange(t.trials), t.rounds)
    query = t.order.reshape(-1)
    place = np.lexsort((trial, query))
    return pa.table(
        _constant(keys, size)
        | {
            "trial": pa.array(trial[place], pa.int16()),
            "round": pa.array(np.tile(np.arange(t.rounds), t.trials)[place], pa.int32()),
            "query_index": pa.array(query[place], pa.int32()),
            "action": pa.array(t.actions.reshape(-1)[place], pa.int16()),
            "propensity": pa.array(t.propensities.reshape(-1)[place].astype(np.float32)),
            "reward": pa.array(t.rewards.reshape(-1)[place].astype(np.float32)),
        }
        | ({} if t.turns is None else {"cost": t.costs.reshape(-1)[place].astype(np.float32)})
    )


def _run_record(
    t: _Traces, result: ReplayResult, problem: ReplayProblem, pool: ModelPool | None
) -> dict[str, Any]:
    base, preset = split_name(t.policy)
    preset = with_options(preset, name_and_options(t.policy)[1])  # `default@alpha=2`
    problem_hash = getattr(problem, "content_hash", None)
    problem_hash = problem_hash() if callable(problem_hash) else problem_hash
    record: dict[str, Any] = {
        "base_policy": base,
        "preset": preset,
        "trials": t.trials,
        "rounds": t.rounds,
        "queries": t.n,
        "arms": t.arms,
        "problem_hash": str(problem_hash or _digest(problem.scores, problem.costs)),
        "order_hash": _digest(t.order),
        "seed": int(getattr(result, "seed", 0) or 0),
        "latency_weight": t.latency_weight,
        "options": json.dumps(getattr(result, "options", None) or {}, sort_keys=True, default=str),
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": json.dumps(package_versions(), sort_keys=True),
        "python": platform.python_version(),
        "pool_title": t.pool,
        "pool_description": "",
        "synthetic": False,
        "paper_benchmark": None,
        "reference_policy": REFERENCE,
        "encoder": None,
        "condition": getattr(result, "condition", "none"),
        "split_kind": None,
        "split_seed": None,
        "oracle_seed": None,
        "order_seed": None,
        "pool_hash": None,
        "comparison_group": t.pool,
        "pool_settings": "{}",
    }
    if pool is not None and not isinstance(pool, str):
        record |= {
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
            "comparison_group": pool.content_hash(*_ENCODER_FREE),
            "pool_settings": json.dumps(pool.model_dump(mode="json"), sort_keys=True),
        }
    return record


def _digest(*arrays: np.ndarray) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        array = np.ascontiguousarray(array)
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(array.data)
    return digest.hexdigest()[:16]
