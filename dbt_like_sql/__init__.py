"""A dbt project of SQL models over the partitioned parquet of the replays, with a runner that needs no dbt.
No Dagster here.

    staging/*.sql   one model a file: `{{ source('replay', 'trials') }}` made tidy
    marts/*.sql     one model a file: what people query and the report reads, `{{ ref('stg_...') }}`
    tests/*.sql     singular tests: queries that return the rows that are wrong
    */schema.yml    sources, descriptions, columns with types, tests, in dbt's grammar
    macros/*.sql    tests beside dbt's own
    schema.py       what a schema.yml may say
    runner.py       reads, orders, runs, tests and publishes the models
    artifacts.py    the models as artifacts of the planner: runs those that are due and keeps their records
    functions.py, lineage.py    SQL functions of this project; where columns come from
    dbt_project.yml, profiles.yml, dbt_plugin.py    what dbt reads beside the SQL (docs/dbt.md)

`artifacts_dir` is `$CABS_HOME/artifacts`. Errors are `cabs_core.base.errors.SqlModelError`. They name the
file, and the line where it is known.
"""
