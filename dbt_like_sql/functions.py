"""Functions of `cabs_core.evaluation.metrics` and `cabs_core.base.statistics` that SQL can call: one
implementation for both.

Functions over long lists take Arrow columns, a chunk of rows at a time. Where a list is null or empty or has
a null inside, the result is NULL.
"""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, TypeAlias

import duckdb
import numpy as np
import pyarrow as pa
from duckdb.func import FunctionNullHandling, PythonUDFType

from cabs_core.base.catalog.regimes import regime_of
from cabs_core.base.statistics import uncertainty
from cabs_core.base.threads import one_blas_thread
from cabs_core.evaluation.metrics import frontier

#: fields of a standard error in SQL. `half_width` is half of the 95 % interval by Student's t
_ERROR = ("se", "df", "clusters", "half_width")
Column: TypeAlias = pa.ChunkedArray


def register(connection: duckdb.DuckDBPyConnection) -> None:
    """Register every function and macro with a DuckDB connection."""
    number = "DOUBLE"
    doubles = "DOUBLE[]"
    point = "STRUCT(cost DOUBLE, score DOUBLE)[]"
    error = f"STRUCT({', '.join(f'{name} DOUBLE' for name in _ERROR)})"
    rows = PythonUDFType.NATIVE
    columns = PythonUDFType.ARROW
    functions: tuple[tuple[str, PythonUDFType, Callable[..., Any], list[str], str], ...] = (
        ("ratio_error", columns, _ratio_error, [doubles] * 3, error),
        ("aiq_bootstrap_se", columns, _aiq_bootstrap_se, [doubles] * 4 + [number] * 3, number),
        ("aiq", rows, _of_row(frontier.aiq), [doubles, doubles, number, number], number),
        ("hull", rows, _of_row(_hull), [doubles, doubles], point),
        ("cost_at_score", rows, _of_row(frontier.cost_at_score), [doubles, doubles, number], number),
        ("two_sided_p_value", rows, _two_sided_p_value, [number, error], number),
        ("holm", rows, _of_row(lambda p_values: uncertainty.holm(p_values).tolist()), [doubles], doubles),
        ("with_trials", rows, _with_trials, [error, number, "BIGINT"], error),
        ("two_way_error", rows, _two_way_error, [number, number, "BIGINT", "BIGINT"], error),
        ("regime_of", rows, _regime_of, [number, doubles], "VARCHAR"),
    )
    special = FunctionNullHandling.SPECIAL
    for name, kind, function, arguments, returned in functions:
        connection.create_function(name, function, [*arguments], returned, type=kind, null_handling=special)
    connection.execute("CREATE OR REPLACE MACRO standard_error_of(x) AS stddev_samp(x) / sqrt(count(x))")
    lists = ", ".join(f"list({column} ORDER BY query)" for column in ("top", "bottom", "cluster::DOUBLE"))
    connection.execute(
        f"CREATE OR REPLACE MACRO query_error(top, bottom, cluster, query) AS ratio_error({lists})"
    )


def _of_row(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of SQL values that calls a function of float64 arrays and numbers.

    The function returns None if an argument is null, is empty or has a null inside, or if its result is not
    finite.
    """

    @wraps(function)  # DuckDB counts its parameters
    def of_row(*arguments: Any) -> Any:
        values = [np.asarray(argument, dtype=np.float64) for argument in arguments]  # a null becomes nan
        if any(not value.size or np.isnan(value).any() for value in values):
            return None
        result = function(*(value if value.ndim else float(value) for value in values))
        if isinstance(result, float) and not np.isfinite(result):
            return None
        return result

    return of_row


def _lists(column: Column) -> Iterator[np.ndarray | None]:
    """Yield each row of a list column as a float64 array, or None if it is null, is empty or has a null."""
    for chunk in column.chunks:
        offsets = chunk.offsets.to_numpy()
        values = chunk.values.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
        valid = chunk.is_valid().to_numpy(zero_copy_only=False)
        for i in range(len(chunk)):
            row = values[offsets[i] : offsets[i + 1]]
            yield row if valid[i] and row.size and not np.isnan(row).any() else None


def _ratio_error(tops: Column, bottoms: Column, clusters: Column) -> pa.Array:
    """Return the standard error of sum(tops) / sum(bottoms) over clusters of queries, for every row.

    A row is a struct of the fields `_ERROR`. It is NULL if a list has no values or the error is not known.
    """
    rows = zip(*map(_lists, (tops, bottoms, clusters)))
    errors = [
        None if any(values is None for values in row) else _struct(uncertainty.ratio_error(*row))
        for row in rows
    ]
    return pa.array(errors, pa.struct([(name, pa.float64()) for name in _ERROR]))


def _struct(error: uncertainty.StandardError) -> dict[str, float] | None:
    """Return a standard error as {field of `_ERROR`: number}, or None if the error is not known."""
    if not error.is_known:
        return None
    numbers = (error.value, error.degrees, error.clusters, error.half_width())
    return dict(zip(_ERROR, numbers, strict=True))


def _error(struct: dict[str, float] | None) -> uncertainty.StandardError:
    """Return the standard error of an SQL struct, or `UNKNOWN` if the struct is NULL."""
    if not struct:
        return uncertainty.UNKNOWN
    return uncertainty.StandardError(struct["se"], struct["df"], struct["clusters"])


@one_blas_thread()
def _aiq_bootstrap_se(
    costs: Column,
    scores: Column,
    plays: Column,
    clusters: Column,
    points: Column,
    low: Column,
    high: Column,
) -> pa.Array:
    """Return the bootstrap standard error of AIQ for every row, or NULL if it is not known."""
    rows = zip(*map(_lists, (costs, scores, plays, clusters)), *(c.to_pylist() for c in (points, low, high)))
    return pa.array([_of_row(_one_aiq_bootstrap)(*row) for row in rows], pa.float64())


def _one_aiq_bootstrap(
    costs: np.ndarray,
    scores: np.ndarray,
    plays: np.ndarray,
    clusters: np.ndarray,
    points: float,
    low: float,
    high: float,
) -> float:
    """Return the bootstrap standard error of a policy's AIQ.

    Return NaN if the points cannot all have the same number of queries.

    Args:
        costs, scores, plays, clusters: values of every query, point after point.
        points: number of points of the curve, one for each rho.
        low, high: costs between which AIQ is taken.
    """
    if costs.size % int(points):
        return float("nan")  # the settings of rho did not see the same queries
    shape = (int(points), -1)
    return frontier.aiq_bootstrap_se(
        costs.reshape(shape),
        scores.reshape(shape),
        low,
        high,
        plays=plays.reshape(shape),
        clusters=clusters.reshape(shape)[0],
    )


def _hull(costs: np.ndarray, scores: np.ndarray) -> list[dict[str, float]]:
    """Return the vertices of the non-decreasing upper hull as {cost, score}, by rising cost."""
    x, y = frontier.non_decreasing_hull(costs, scores)
    return [{"cost": float(a), "score": float(b)} for a, b in zip(x, y)]


def _known(value: float | None) -> float:
    """Return the number, or NaN for NULL."""
    if value is None:
        return float("nan")
    return value


def _two_sided_p_value(difference: float | None, error: dict[str, float] | None) -> float | None:
    """Return the two-sided p-value of a difference with a standard error, or None if it is not known."""
    p_value = _error(error).p_value(_known(difference))
    if np.isnan(p_value):
        return None
    return p_value


def _with_trials(
    error: dict[str, float] | None, se_trials: float | None, trials: int | None
) -> dict[str, float] | None:
    """Return a standard error with the error over trials added. NULL stands for an unknown error.

    Nothing is added if `se_trials` is NULL or there are fewer than 2 trials. If `error` alone is NULL, the
    result is the error over trials.
    """
    return _struct(_error(error).with_trials(_known(se_trials), trials or 0))


def _two_way_error(
    se_trials: float | None, se_queries: float | None, trials: int | None, queries: int | None
) -> dict[str, float] | None:
    """Return the standard error over trials and queries together. NULL stands for an unknown error.

    An error is left out if it is NULL, or if its number of trials or queries is NULL or less than 2. If one
    of the two errors is left out, the result is the other one; if both are, the result is NULL.
    """
    return _struct(
        uncertainty.two_way_error(_known(se_trials), _known(se_queries), trials or 0, queries or 0)
    )


def _regime_of(rho: float | None, grid: list[float] | None) -> str | None:
    """Return the cost regime of a rho on its pool's grid, or None if the rho is NULL.

    The regime is `low`, `medium` or `high`, from small rhos to large ones. The regimes of the paper's grid
    have fixed limits, and any other grid is cut into thirds. The paper's grid is used if the pool's grid is
    NULL or does not hold the rho.
    """
    if rho is None:
        return None
    return regime_of(rho, grid if grid and rho in grid else None)
