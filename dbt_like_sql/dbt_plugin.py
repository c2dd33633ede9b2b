"""Plug-in of dbt-duckdb: functions that the SQL models call, and tables that come with the package."""

from typing import Any

import pyarrow as pa
from dbt.adapters.duckdb.plugins import BasePlugin

from dbt_like_sql.functions import register
from dbt_like_sql.runner import packaged_table


class Plugin(BasePlugin):
    """Plug-in that profiles.yml names, and that loads the sources whose `meta` says `plugin: cabs`."""

    def configure_connection(self, conn: Any) -> None:
        """Register the functions that the SQL models call with a DuckDB connection."""
        register(conn)

    def load(self, source_config: Any) -> pa.Table:
        """Return the rows of a source table that comes with the package."""
        return packaged_table(f"{source_config.schema}.{source_config.name}")
