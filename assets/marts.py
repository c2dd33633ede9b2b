"""Assets `staging/<model>` and `marts/<model>`: the SQL models of `dbt_like_sql`, run by DuckDB in one step.

Columns, tests and dependencies come from the SQL project itself, so that a new model is a new asset.
"""

from collections.abc import Iterator

import dagster as dg

from assets.replay import replay_key
from cabs_core.catalog import all_policies
from cabs_dagster import specs
from cabs_dagster.external import results_observations
from cabs_dagster.making import RETRY, StageConfig, guarded
from cabs_dagster.resources import CabsResource
from cabs_dagster.sql import (
    SqlFreshness,
    column_metadata,
    duckdb_schema,
    model_code_version,
    model_key,
    source_key,
    sql_models,
    sql_sources,
    test_results,
    test_specs,
)
from cabs_dagster.stages import POOL_STAGES

_MODELS = {model_key(model): model for model in sql_models()}
_POLICIES = [replay_key(policy) for policy in all_policies()]


def _writers(path: str) -> list[dg.AssetKey]:
    """The assets that write the files of a source table; none for files of the package."""
    stage = path.split("/")[0]
    return _POLICIES if stage == "replay" else [dg.AssetKey(stage)] if stage in POOL_STAGES else []


#: The files that the models read, as tables: where column lineage ends.
sql_source_specs = [
    dg.AssetSpec(
        source_key(source.source, source.name),
        deps=_writers(source.path),
        description=source.description or f"The files {source.path} of the artifacts, read as one table.",
        metadata=duckdb_schema(source.columns),
        kinds={"python" if source.format == "catalog" else "parquet"},
        group_name="marts",
        owners=specs.OWNERS,
        tags={specs.STAGE_TAG: "sources"},
        code_version="1",
    )
    for source in sql_sources()
]


def _spec(key: dg.AssetKey, model) -> dg.AssetSpec:
    upstream = [model_key(_by_name(name)) for name in model.depends_on]
    sources = [source_key(*source.split("__", 1)) for source in model.sources]
    writers = [w for s in sql_sources() if s.relation in model.sources for w in _writers(s.path)]
    return dg.AssetSpec(
        key,
        deps=[*upstream, *sources, *dict.fromkeys(writers)],
        description=model.description or f"SQL model {model.name}.",
        code_version=model_code_version(model),
        metadata=duckdb_schema(model.columns),
        skippable=False,
        **(
            specs.common("marts")
            | {"kinds": {"sql", "duckdb", "view" if model.materialized == "view" else "parquet"}}
        ),
    )


def _by_name(name: str):
    return next(model for model in sql_models() if model.name == name)


@dg.multi_asset(
    name="sql_models",
    specs=[_spec(key, model) for key, model in _MODELS.items()],
    check_specs=[spec for model in _MODELS.values() for spec in test_specs(model)],
    can_subset=True,
    pool="duckdb",
    retry_policy=RETRY,
    description="Staging and mart models over the replays of all pools; cabs.duckdb is rebuilt at the end.",
)
def marts(context: dg.AssetExecutionContext, config: StageConfig, cabs: CabsResource) -> Iterator:
    from dbt_like_sql import rebuild_database

    freshness = SqlFreshness(cabs.store())
    stopped: dict[str, str] = {}
    for key, model in _MODELS.items():
        checks = {check.name for check in context.selected_asset_check_keys if check.asset_key == key}
        if key not in context.selected_asset_keys:
            if checks:
                with guarded():
                    tests = freshness.tests(model)
                yield from (r for r in test_results(model, tests) if r.check_name in checks)
            continue
        broken = [name for name in model.depends_on if name in stopped]
        if broken:
            stopped[model.name] = f"not made, because {', '.join(broken)} failed its tests"
            continue
        with guarded():
            made = freshness.run(model, force=config.force, run_id=context.run.run_id)
        results = test_results(model, made.record.summary["_tests"])
        yield dg.MaterializeResult(
            asset_key=key,
            data_version=dg.DataVersion(made.record.content),
            metadata=column_metadata(model, made),
            check_results=[r for r in results if r.check_name in checks],
        )
        if any(not r.passed and r.severity == dg.AssetCheckSeverity.ERROR for r in results):
            stopped[model.name] = "; ".join(r.description or "" for r in results if not r.passed)
    if any(text.startswith("not made") for text in stopped.values()):
        text = "\n".join(f"{name}: {reason}" for name, reason in stopped.items())
        raise dg.Failure(f"some models were not made:\n{text}", allow_retries=False)
    if not context.selected_asset_keys:
        return
    if freshness.changed or not freshness.database.is_file():
        with guarded():
            path = rebuild_database(freshness.folder)
            freshness.publish()
        context.log.info(f"rebuilt {path}")
    for event in results_observations(context.instance, cabs.store()):
        context.log_event(event)
