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
