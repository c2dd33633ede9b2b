"""SQL models in dbt's shape, run by DuckDB over the partitioned parquet of the replays. No Dagster in here.

    staging/*.sql   one model a file: `{{ source('replay', 'trials') }}` made tidy
    marts/*.sql     one model a file: what people query and the report reads, `{{ ref('stg_...') }}`
    tests/*.sql     singular tests: queries that return the rows that are wrong
    schema.yml      sources, descriptions, columns with types, tests by dbt's names
    macros.sql      SQL functions that models share

Interface (everything takes the artifacts folder, `$CABS_HOME/artifacts`, explicitly):

    list_models() -> [SqlModel(name, layer, path, sql, compiled, depends_on, sources, description, columns,
                      tests, materialized)]  in dependency order; cheap and cached: no DuckDB, no data
    get_model(name) -> SqlModel
    run_model(name, artifacts_dir) -> ModelRun(name, rows, schema, column_lineage, seconds, path, bytes, content_hash)
        writes `marts/<name>.parquet` atomically (a model materialised as `view` writes nothing; what needs it
        inlines it). Everything it refs must have been run before. column_lineage is
        {column: [(upstream model or source, column), ...]}, or {} where sqlglot and DuckDB disagree on columns.
        content_hash is of the rows: equal content, equal hash (usable as data_version).
    run_tests(name, artifacts_dir) -> [TestResult(name, model, column, kind, passed, severity, failures, sample, sql,
        description)]; severity is 'error' or 'warn'; the names are those of `get_model(name).tests`, known at load.
    rebuild_database(artifacts_dir) -> Path   `marts/cabs.duckdb`, rebuilt whole from the parquet by one writer
        (file lock), replaced atomically; call it once after the marts of a run.
    build_all(artifacts_dir, database=True) -> {name: ModelRun}   all models in order, then the database.

All of them raise `cabs_core.errors.SqlModelError`; it names the file, and the line where DuckDB or sqlglot tells it.
"""

from dbt_like_sql.project import Column, SqlModel, SqlTest, get_model, list_models

__all__ = [
    "Column",
    "ModelRun",
    "SqlModel",
    "SqlTest",
    "TestResult",
    "build_all",
    "get_model",
    "list_models",
    "read_model",
    "rebuild_database",
    "run_model",
    "run_tests",
]

_LAZY = {
    "ModelRun": "execute",
    "run_model": "execute",
    "build_all": "execute",
    "read_model": "execute",
    "rebuild_database": "execute",
    "TestResult": "checks",
    "run_tests": "checks",
}


def __getattr__(name: str):
    """DuckDB is imported when something is run, not when models are listed."""
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"dbt_like_sql.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'dbt_like_sql' has no attribute {name!r}")
