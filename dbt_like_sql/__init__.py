"""A dbt project of SQL models over the partitioned parquet of the replays, with a runner that needs no dbt.
No Dagster here.

    staging/*.sql   one model a file: `{{ source('replay', 'trials') }}` made tidy
    marts/*.sql     one model a file: what people query and the report reads, `{{ ref('stg_...') }}`
    tests/*.sql     singular tests: queries that return the rows that are wrong
    */schema.yml    sources, descriptions, columns with types, tests, in dbt's grammar
    macros/*.sql    tests beside dbt's own
    dbt_project.yml, profiles.yml, dbt_plugin.py    what dbt reads beside that (docs/dbt.md)

`artifacts_dir` is `$CABS_HOME/artifacts`. Errors are of `cabs_core.base.errors.SqlModelError`, which names
the file, and the line where it is known. `freshness.Marts` runs only what changed, and keeps records.
"""

from importlib import import_module
from typing import Any

from dbt_like_sql.project import SqlModel, SqlTest, get_model, list_models

#: of the module that imports DuckDB, only when it is used
_EXECUTE = ("ModelRun", "TestResult", "build_all", "read_model", "rebuild_database", "run_model", "run_tests")
__all__ = ["SqlModel", "SqlTest", "get_model", "list_models", *_EXECUTE]


def __getattr__(name: str) -> Any:
    if name in _EXECUTE:
        return getattr(import_module("dbt_like_sql.execute"), name)
    raise AttributeError(f"module 'dbt_like_sql' has no attribute {name!r}")
