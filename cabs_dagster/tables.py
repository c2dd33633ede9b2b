"""Tables of the chain as DataFrames in a team's own assets.

@dg.asset(ins={"board": dg.AssetIn(key=["marts", "mart_policy_leaderboard"])})
def best(board: pd.DataFrame) -> None: ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from cabs_core.base.errors import CabsError, ProvenanceError
from cabs_core.pipeline.artifacts import Chain
from cabs_core.pipeline.retention import TRACE_FILE
from cabs_dagster.names import Location, path_of
from cabs_dagster.partitions import split_key
from cabs_dagster.resources import CabsResource
from dbt_like_sql.artifacts import Marts
from dbt_like_sql.runner import get_model

if TYPE_CHECKING:
    import pandas as pd


class CabsTables(dg.ConfigurableIOManager):
    """IO manager that reads SQL models, outcomes and replays as DataFrames, and writes nothing.

    Every file is compared with its record before it is read. Several partitions become one DataFrame, whose
    columns name the pool and, for replays, the rho and the policy.

    Attributes:
        cabs: where the artifacts lie.
        prefix: parts before the asset keys of the chain.
    """

    cabs: CabsResource
    prefix: list[str] = Field([], description="Parts before the asset keys of the chain.")

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Refuse to write: the chain writes its artifacts itself.

        Raises:
            CabsError: always.
        """
        raise CabsError(
            f"{context.asset_key.to_user_string()}: CabsTables reads tables of the chain and writes nothing. "
            "Give your asset another `io_manager_key`"
        )

    def load_input(self, context: dg.InputContext) -> pd.DataFrame:
        """Return the table of the asset that an input names.

        Raises:
            CabsError: the asset is no table. ProvenanceError: the table is not made yet, a file was altered,
                or the rounds of a replay were pruned.
        """
        with Location(prefix=tuple(self.prefix), places=self.cabs.places).active():
            return self._table(context)

    def _table(self, context: dg.InputContext) -> pd.DataFrame:
        """Return the table of the asset that an input names, after `load_input` has set the place to read.

        The table of an SQL model has no partitions. Outcomes and replays are joined over all partitions of
        the input.

        Raises:
            CabsError, ProvenanceError: see `load_input`.
        """
        import pandas as pd  # noqa: PLC0415  (loading the code location stays quick)

        name = path_of(context.asset_key)
        if name.startswith(("marts/", "staging/")):
            return self._sql_table(name)
        tables = {"outcomes": self._outcomes, "replay": self._replays}
        if name not in tables:
            raise CabsError(
                f"{name} is no table that CabsTables reads: take outcomes, replay or a mart, or name the "
                "asset in `deps` instead of `ins`"
            )
        return pd.concat([tables[name](key) for key in context.asset_partition_keys], ignore_index=True)

    def _sql_table(self, name: str) -> pd.DataFrame:
        """Return the table of an SQL model, its file compared with its record."""
        return _read(Marts(self.cabs.store()).verified(get_model(name.partition("/")[2])))

    def _outcomes(self, pool: str) -> pd.DataFrame:
        """Return the outcomes of a pool with the columns of its queries."""
        chain = self.cabs.chain(pool)
        folder = chain.verified(chain.stage("outcomes"))
        table = _read(folder / "outcomes.parquet").merge(_read(folder / "queries.parquet"), on="query_id")
        table.insert(0, "pool", pool)
        return table

    def _replays(self, partition: str) -> pd.DataFrame:
        """Return the rounds of all policies of a partition `pool|rho`, empty if the pool lacks that rho."""
        import pandas as pd  # noqa: PLC0415  (loading the code location stays quick)

        pool, rho = split_key(partition)
        chain = self.cabs.chain(pool)
        if rho not in chain.pool.replay.rhos:
            return pd.DataFrame()  # the grid has cells of a pool at the rhos of other pools
        return pd.concat([self._rounds(chain, rho, policy) for policy in chain.pool.policies])

    def _rounds(self, chain: Chain, rho: float, policy: str) -> pd.DataFrame:
        """Return the rounds of one policy at one rho."""
        (target,) = chain.replays([rho], [policy])
        record = chain.made(target)
        if TRACE_FILE in record.pruned:
            raise ProvenanceError(
                f"{target.described}: its rounds were pruned. `cabs run --pool {chain.pool.name} --force` "
                "writes them again; the marts have their summaries"
            )
        return _read(chain.verified(target) / TRACE_FILE)


def _read(path: Any) -> pd.DataFrame:
    """Return a parquet file as a DataFrame."""
    import pyarrow.parquet as pq  # noqa: PLC0415  (loading the code location stays quick)

    # not by its folder, whose names pyarrow would take for partitions
    table: pd.DataFrame = pq.ParquetFile(path).read().to_pandas()
    return table
