"""The planner of a store with the project's SQL models. No Dagster is imported: `cabs plan` is quick."""

from collections.abc import Iterable

from cabs_core.data.pool_files import PoolFile
from cabs_core.pipeline.artifacts import ArtifactStore
from cabs_core.pipeline.chain_order import Planner
from dbt_like_sql.artifacts import Marts


def planner_of(store: ArtifactStore, pool_files: Iterable[PoolFile]) -> Planner:
    """Return the planner of these pools over a store.

    A planner finds the stages, replays, SQL models and report pages that are due, because their artifacts are
    missing or not up to date. It runs none of them.
    """
    return Planner(store, pool_files, Marts)
