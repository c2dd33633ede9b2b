"""Settings of the active pool files as a source table of the SQL models.

A replay stores the settings with which it was made. What is compared is said by the pool file as it is now: a
rho or policy that was taken out of the file stays on disk and stands in no mart.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from cabs_core.base.atomic import atomic_path
from cabs_core.data.pool_files import ModelPool
from cabs_core.data.pools.registry import active_pools
from dbt_like_sql.runner import load_project

TABLE = "pool_files__settings"


def settings_of_pools(names: Collection[str]) -> list[dict[str, Any]]:
    """Return a row for each active pool of these names, sorted by name, with the columns of schema.yml.

    A pool without a valid file has no row, and neither has a log, which is not replayed.

    Raises:
        PoolError: `registry.json` in CABS_HOME cannot be read.
    """
    pools = [pool_file.pool for pool_file in active_pools()[0]]
    chosen = [pool for pool in pools if pool.name in names and not pool.logged]
    return [settings_row(pool) for pool in sorted(chosen, key=lambda pool: pool.name)]


def settings_row(pool: ModelPool) -> dict[str, Any]:
    """Return what a pool's file says, {column of schema.yml: value}."""
    return {
        "pool": pool.name,
        "title": pool.title or pool.name,
        "description": pool.description,
        "synthetic": bool(pool.synthetic),
        "paper_benchmark": pool.paper_benchmark,
        "reference_policy": pool.reference_policy,
        "rhos": list(pool.replay.rhos),
        "policies": list(pool.policies),
        "trials": pool.replay.trials,
        "order_seed": pool.replay.order_seed,
        "condition": pool.replay.condition,
        "latency_weight": pool.replay.latency_weight,
    }


def settings_path(artifacts_dir: Path) -> Path:
    """Return the path of the file with the settings, below the folder of the artifacts."""
    pattern = load_project().sources[TABLE].path
    return artifacts_dir / pattern.replace("[.]", ".")


def write_settings(artifacts_dir: Path, rows: list[dict[str, Any]]) -> None:
    """Write the rows of `settings_of_pools` for the SQL models, unless the file holds them already."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = settings_path(artifacts_dir)
    try:
        if pq.read_table(path).to_pylist() == rows:
            return
    except (OSError, pa.ArrowInvalid):  # there is none yet, or it was damaged
        pass
    columns = load_project().sources[TABLE].columns
    kinds = {
        "VARCHAR": pa.string(),
        "BOOLEAN": pa.bool_(),
        "INTEGER": pa.int32(),
        "BIGINT": pa.int64(),
        "DOUBLE": pa.float64(),
        "DOUBLE[]": pa.list_(pa.float64()),
        "VARCHAR[]": pa.list_(pa.string()),
    }
    schema = pa.schema([(column.name, kinds[column.data_type]) for column in columns])
    with atomic_path(path) as temporary:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), temporary)
