"""Plug-in of dbt-duckdb: functions that the models call, and tables that come with the package."""

from typing import Any

import pyarrow as pa
from dbt.adapters.duckdb.plugins import BasePlugin

from dbt_like_sql.functions import register
from dbt_like_sql.runner import packaged_table


class Plugin(BasePlugin):
    """Named in profiles.yml; sources whose `meta` says `plugin: cabs` are loaded by it."""

    def configure_connection(self, conn: Any) -> None:
        register(conn)

    def load(self, source_config: Any) -> pa.Table:
        return packaged_table(f"{source_config.schema}.{source_config.name}")
