"""Replay results on disk: one folder of Parquet files for each pool, rho and policy, written atomically.

docs/results.md lists the files. Each file repeats `pool`, `rho` and `policy` as constant columns, so that SQL
reads all folders as one relation without parsing paths. Rounds are sorted by query and trial: a query earns
the same reward in most trials, so the file is about ten times smaller.

Utilities are clipped to [0, 1] unless a column says otherwise; costs are USD per call; regret is against the
best arm of each query.

If a table has gaps, utility, score and cost are the doubly robust values of `problem.gaps`. Their means are
estimates that rest on real answers, and single values mean little. `observed` is the share of rounds whose
answer is real. rounds.parquet holds the played values, predictions among them, and so do the best arm of each
query and the policy that plays the best arm.
"""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cabs_core.algorithms.problem.problem_files import array_hash
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.atomic import Contents, atomic_directory
from cabs_core.base.catalog.policies import name_and_options, split_name, with_options
from cabs_core.base.errors import ResultError
from cabs_core.base.versions import package_versions
from cabs_core.evaluation.replay import played as columns_of
from cabs_core.evaluation.replay.played import PlayedArrays
from cabs_core.evaluation.replay.result import ReplayResult

if TYPE_CHECKING:
    from cabs_core.data.pool_files import ModelPool

#: columns of rounds.parquet and their types in memory
_TRACE: dict[str, type[np.generic]] = {
    "query_index": np.int64,
    "action": np.int64,
    "propensity": np.float32,
    "reward": np.float32,
}
FILES = ("run", "trials", "curves", "queries", "arms", "rounds")

#: types of the columns of run.parquet that are no text; a null has no type of its own
_RUN_TYPES: dict[str, pa.DataType] = {
    "rho": pa.float64(),
    "arms": pa.list_(pa.string()),
    "synthetic": pa.bool_(),
    **dict.fromkeys(("trials", "rounds", "queries", "independent"), pa.int32()),
    **dict.fromkeys(("seed", "split_seed", "oracle_seed", "order_seed"), pa.int64()),
    **dict.fromkeys(("latency_weight", "smallest_propensity", "small_propensities"), pa.float64()),
}


@dataclass(frozen=True)
class StoredTrace:
    """The rounds of a replay, read from its folder.

    Attributes:
        run: settings and hashes.
        order: `[trials, T]` query of each round.
        actions: `[trials, T]` arm that was played.
        propensities, rewards: `[trials, T]` in single precision.
        costs: `[trials, T]` USD under condition `sessions`, otherwise None because they are the problem's.
    """

    run: dict[str, Any]
    order: np.ndarray
    actions: np.ndarray
    propensities: np.ndarray
    rewards: np.ndarray
    costs: np.ndarray | None


@dataclass(frozen=True)
class StoredReplay(StoredTrace):
    """A replay that was read from its folder, with its tables of means."""

    trials: pa.Table
    curves: pa.Table
    queries: pa.Table
    arms: pa.Table


def save_replay_result(
    result: ReplayResult, problem: ReplayProblem, folder: str | Path, *, pool: ModelPool
) -> dict[str, Any]:
    """Write one replay to `folder` atomically and return its `run` record.

    Args:
        result: the replay.
        problem: the problem that was replayed, which has the scores and costs of the played arms.
        folder: folder to write. An existing replay in it is replaced as a whole.
        pool: pool file, of which the record has titles, encoder and settings.

    Raises:
        ResultError: arrays of different shapes, an order or action outside the problem, or rewards that are
            not the clipped utilities of the played arms (the result belongs to another problem).
        StorageError: the folder holds other files than a replay's.
    """
    played = PlayedArrays(result, problem)
    keys = {"pool": result.pool or problem.pool, "rho": float(result.rho), "policy": result.policy}
    run = keys | _run_record(result, problem, pool)
    columns = {
        "trials": columns_of.trials(played),
        "curves": columns_of.curves(played),
        "queries": columns_of.queries(played),
        "arms": columns_of.arms(played),
        "rounds": columns_of.rounds(played),
    }
    schema = pa.schema([(name, _RUN_TYPES.get(name, pa.string())) for name in run])
    tables = {"run": pa.Table.from_pylist([run], schema=schema)} | {
        name: _table(keys, values) for name, values in columns.items()
    }
    contents = Contents("a saved replay", "run.parquet", tuple(f"{name}.parquet" for name in tables))
    with atomic_directory(folder, contents) as temporary:
        for name, table in tables.items():
            _write(table, temporary / f"{name}.parquet", plain=name in ("run", "trials"))
    return run


def load_replay_result(folder: str | Path) -> StoredReplay:
    """Read a folder written by `save_replay_result`.

    Raises:
        ResultError: a file is missing or unreadable, or rounds.parquet does not hold every round of every
            trial in the run record exactly once. Hashes are not compared.
    """
    folder = Path(folder)
    tables = {name: _read(folder, name) for name in ("trials", "curves", "queries", "arms")}
    return StoredReplay(**vars(load_trace(folder)), **tables)


def load_trace(folder: str | Path, run: dict[str, Any] | None = None) -> StoredTrace:
    """Read only the rounds of a replay.

    Args:
        folder: folder that `save_replay_result` wrote.
        run: the record that `save_replay_result` returned. None reads it from the folder.

    Raises:
        ResultError: as in `load_replay_result`.
    """
    folder = Path(folder)
    run = run or _read_run(folder)
    trials = run["trials"]
    rounds = run["rounds"]
    if run["condition"] == "sessions":
        costs = ["cost"]
    else:
        costs = []
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

    arrays = {name: shaped(name, dtype) for name, dtype in _TRACE.items()}
    return StoredTrace(
        run=run,
        order=arrays["query_index"],
        actions=arrays["action"],
        propensities=arrays["propensity"],
        rewards=arrays["reward"],
        costs=shaped("cost", np.float32) if costs else None,
    )


def trace_of(result: ReplayResult, problem: ReplayProblem, folder: str | Path) -> StoredTrace:
    """Return what `load_trace` would read, for a replay that was repeated because its rounds were deleted.

    The run record is read from `folder`; the rounds are those of `result`.

    Raises:
        ResultError: the result does not belong to the problem, or the run record cannot be read.
    """
    played = PlayedArrays(result, problem)
    if result.turns is None:
        costs = None
    else:
        costs = played.costs.astype(np.float32)
    arrays = (result.order, result.actions, result.propensities, played.rewards)
    order, actions, propensities, rewards = (
        array.astype(kind) for array, kind in zip(arrays, _TRACE.values(), strict=True)
    )
    return StoredTrace(_read_run(Path(folder)), order, actions, propensities, rewards, costs)


def _read(folder: Path, name: str, columns: list[str] | None = None) -> pa.Table:
    """Read one table of a replay's folder, or raise ResultError.

    Args:
        columns: names of the columns that are needed. None reads all.
    """
    path = folder / f"{name}.parquet"
    try:
        with pq.ParquetFile(path) as file:  # threads take longer than reading a few rows
            table = file.read(columns, use_threads=False)
    except (OSError, pa.ArrowInvalid) as error:
        raise _unreadable(path, str(error)) from None
    missing = set(columns or ()) - set(table.column_names)
    if missing:
        raise _unreadable(path, f"without the columns {', '.join(sorted(missing))}")
    return table


def _read_run(folder: Path) -> dict[str, Any]:
    """Read the run record of a replay's folder, or raise ResultError."""
    rows: list[dict[str, Any]] = _read(folder, "run").to_pylist()
    if len(rows) != 1 or not {"trials", "rounds", "condition"} <= rows[0].keys():
        raise _unreadable(folder / "run.parquet", f"{len(rows)} rows, expected one with the run's settings")
    return rows[0]


def _unreadable(path: Path, reason: str) -> ResultError:
    """Return the error of a file that is no part of a saved replay."""
    return ResultError(f"{path}: cannot be read as a replay result ({reason}); replay this partition again")


def _write(table: pa.Table, path: Path, *, plain: bool) -> None:
    """Write a table as a small file: dictionaries for keys and text, split bytes for floats.

    In rounds.parquet the integer columns have dictionaries too.

    Args:
        plain: True for tables of few rows, which need neither dictionaries nor split bytes.
    """
    names = table.column_names
    text = [f.name for f in table.schema if f.name in _KEYS or pa.types.is_string(f.type)]
    floats = [f.name for f in table.schema if pa.types.is_floating(f.type) and f.name not in _KEYS]
    if "reward" in names:
        keyed = [name for name in names if name not in floats]
    else:
        keyed = text
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


def _table(keys: dict[str, Any], columns: dict[str, Any]) -> pa.Table:
    """Make a table of constant columns for the keys and of further columns."""
    rows = len(next(iter(columns.values())))
    return pa.table({name: pa.repeat(pa.scalar(value), rows) for name, value in keys.items()} | columns)


def _run_record(result: ReplayResult, problem: ReplayProblem, pool: ModelPool) -> dict[str, Any]:
    """Columns of run.parquet besides the keys: settings of a replay and hashes of its inputs."""
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
        "order_hash": array_hash(result.order)[:16],
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
        # equal for pools with the same outcomes, splits and replay settings
        "comparison_group": f"{problem.outcomes_hash()}-{pool.content_hash('replay')}",
        "pool_settings": json.dumps(pool.model_dump(mode="json"), sort_keys=True),
    }
