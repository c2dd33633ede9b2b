"""Functions of `cabs_core.metrics` that SQL can call, so that marts and Python share one implementation.

They take Arrow columns: DuckDB hands over a chunk of rows at a time. A null or empty list gives NULL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import duckdb
import numpy as np
import pyarrow as pa
from duckdb.func import FunctionNullHandling, PythonUDFType

from cabs_core import metrics
from cabs_core.catalog import regime_of

_BLOCK = 256
Column: TypeAlias = pa.ChunkedArray


def register(connection: duckdb.DuckDBPyConnection) -> None:
    """Register every function with a DuckDB connection."""
    doubles, point = "DOUBLE[]", "STRUCT(cost DOUBLE, score DOUBLE)[]"
    error = "STRUCT(se DOUBLE, df DOUBLE, margin DOUBLE)"
    functions: tuple[tuple[str, Callable[..., Any], list[str], str], ...] = (
        ("bootstrap_se", _bootstrap_se, [doubles], "DOUBLE"),
        ("bootstrap_ratio_se", _bootstrap_ratio_se, [doubles, doubles], "DOUBLE"),
        ("hull", _hull, [doubles, doubles], point),
        ("aiq", _aiq, [doubles, doubles, "DOUBLE", "DOUBLE"], "DOUBLE"),
        ("aiq_bootstrap_se", _aiq_bootstrap_se, [doubles, doubles, doubles, *["DOUBLE"] * 3], "DOUBLE"),
        ("cost_at_score", _cost_at_score, [doubles, doubles, "DOUBLE"], "DOUBLE"),
        ("two_way_error", _two_way_error, ["DOUBLE", "DOUBLE", "BIGINT", "BIGINT"], error),
        ("two_sided_p_value", _two_sided_p_value, ["DOUBLE", "DOUBLE", "DOUBLE"], "DOUBLE"),
        ("holm", _holm, [doubles], doubles),
        ("regime_of", _regime_of, ["DOUBLE", doubles], "VARCHAR"),
    )
    for name, function, arguments, returned in functions:
        connection.create_function(
            name,
            function,
            list(arguments),
            returned,
            type=PythonUDFType.ARROW,
            null_handling=FunctionNullHandling.SPECIAL,
        )


def _lists(column: Column) -> Iterator[np.ndarray | None]:
    """Rows of a list column as float64 arrays, without going through Python numbers."""
    for chunk in column.chunks:
        offsets = chunk.offsets.to_numpy()
        values = chunk.values.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
        valid = chunk.is_valid().to_numpy(zero_copy_only=False)
        for i in range(len(chunk)):
            row = values[offsets[i] : offsets[i + 1]]
            yield row if valid[i] and row.size and not np.isnan(row).any() else None


def _numbers(column: Column) -> list[float]:
    return [float("nan") if v is None else v for v in column.to_pylist()]


def _each(function: Callable[..., float | None], *columns: Iterable[Any]) -> pa.Array:
    out = [None if any(v is None for v in row) else function(*row) for row in zip(*columns, strict=True)]
    return pa.array([None if v is None or not np.isfinite(v) else v for v in out], pa.float64())


def _bootstrap_se(values: Column) -> pa.Array:
    return _batched(list(_lists(values)), None)


def _bootstrap_ratio_se(numerators: Column, denominators: Column) -> pa.Array:
    return _batched(list(_lists(numerators)), list(_lists(denominators)))


def _batched(tops: list[Any], bottoms: list[Any] | None) -> pa.Array:
    """Standard errors of all rows; rows of one length are resampled together, in one matrix product."""
    found: list[float | None] = [None] * len(tops)
    groups: dict[int, list[int]] = {}
    for i, top in enumerate(tops):
        if top is not None and top.size > 1 and (bottoms is None or bottoms[i] is not None):
            groups.setdefault(top.size, []).append(i)
    for rows in groups.values():
        for start in range(0, len(rows), _BLOCK):
            block = rows[start : start + _BLOCK]
            below = None if bottoms is None else np.stack([bottoms[i] for i in block])
            replicates = metrics.bootstrap_ratio(np.stack([tops[i] for i in block]), below)
            for i, row in zip(block, replicates):
                row = row[np.isfinite(row)]
                found[i] = float(row.std(ddof=1)) if row.size > 1 else None
    return pa.array(found, pa.float64())


def _aiq(costs: Column, scores: Column, low: Column, high: Column) -> pa.Array:
    return _each(metrics.aiq, _lists(costs), _lists(scores), _numbers(low), _numbers(high))


def _aiq_bootstrap_se(
    costs: Column, scores: Column, plays: Column, points: Column, low: Column, high: Column
) -> pa.Array:
    return _each(
        _one_aiq_bootstrap, *map(_lists, (costs, scores, plays)), *map(_numbers, (points, low, high))
    )


def _one_aiq_bootstrap(
    costs: np.ndarray, scores: np.ndarray, plays: np.ndarray, points: float, low: float, high: float
) -> float:
    if costs.size % int(points):
        return float("nan")  # the settings of rho did not see the same queries
    shape = (int(points), -1)
    return metrics.aiq_bootstrap_se(
        costs.reshape(shape), scores.reshape(shape), low, high, plays=plays.reshape(shape)
    )


def _cost_at_score(costs: Column, scores: Column, target: Column) -> pa.Array:
    return _each(metrics.cost_at_score, _lists(costs), _lists(scores), _numbers(target))


def _hull(costs: Column, scores: Column) -> pa.Array:
    rows: list[list[dict[str, float]] | None] = []
    for c, s in zip(_lists(costs), _lists(scores), strict=True):
        if c is None or s is None:
            rows.append(None)
            continue
        x, y = metrics.non_decreasing_hull(c, s)
        rows.append([{"cost": float(a), "score": float(b)} for a, b in zip(x, y)])
    return pa.array(rows, pa.list_(pa.struct([("cost", pa.float64()), ("score", pa.float64())])))


def _two_way_error(se_trials: Column, se_queries: Column, trials: Column, queries: Column) -> pa.Array:
    """Each row's error; a null among the standard errors is one that is not known."""
    columns = (_numbers(se_trials), _numbers(se_queries), trials.to_pylist(), queries.to_pylist())
    rows = []
    for by_trial, by_query, count, size in zip(*columns, strict=True):
        found = metrics.two_way_error(by_trial, by_query, count or 0, size or 0)
        rows.append(None if np.isnan(found.se) else {"se": found.se, "df": found.df, "margin": found.margin})
    return pa.array(rows, pa.struct([(name, pa.float64()) for name in ("se", "df", "margin")]))


def _two_sided_p_value(differences: Column, errors: Column, freedom: Column) -> pa.Array:
    columns = map(_numbers, (differences, errors, freedom))
    return _each(lambda d, se, df: metrics.TwoWayError(se, df).p_value(d), *columns)


def _holm(p_values: Column) -> pa.Array:
    return pa.array(
        [None if p is None else metrics.holm(p).tolist() for p in _lists(p_values)], pa.list_(pa.float64())
    )


def _regime_of(rhos: Column, grids: Column) -> pa.Array:
    """Cost regime of each rho on its pool's grid; on the paper's where the grid is not known."""
    found = []
    for rho, grid in zip(rhos.to_pylist(), grids.to_pylist(), strict=True):
        known = grid if grid and rho in grid else None
        found.append(None if rho is None else regime_of(rho, known))
    return pa.array(found, pa.string())
