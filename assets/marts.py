"""Assets `staging/<model>` and `marts/<model>`: the SQL models of `dbt_like_sql`, run by DuckDB in one step.

Columns, tests and dependencies come from the SQL project itself, so that a new model is a new asset.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import dagster as dg

from cabs_core.pipeline.artifacts import POOL_STAGES, Made
from cabs_core.pipeline.chain_order import SOURCE_FILES
from cabs_core.pipeline.retention import remove_replays_of_other_versions
from cabs_dagster import partitions, specs
from cabs_dagster.checks import sql_check_specs, sql_results
from cabs_dagster.columns import lineage, schema
from cabs_dagster.metadata import figures, guarded
from cabs_dagster.names import key as key_of
from cabs_dagster.names import path_of, step
from cabs_dagster.resources import CABS, TABLES, CabsResource, cabs_of
from cabs_dagster.specs import StageConfig
from dbt_like_sql.artifacts import (
    MARTS,
    Marts,
    failed_tests,
    model_code_version,
    sources_behind,
    used_sources,
)
from dbt_like_sql.runner import SqlModel, list_models
from dbt_like_sql.schema import Column

MODELS = {key_of(f"{model.layer}/{model.name}"): model for model in list_models()}
_KEYS = {model.name: key for key, model in MODELS.items()}
#: Asset keys by the names that column lineage uses: models, and source tables as relation and as written.
_NAMED = _KEYS | {
    name: key_of(f"sources/{s.source}/{s.name}")
    for s in used_sources()
    for name in (s.relation, f"{s.source}.{s.name}")
}


_BEHIND = sources_behind()


def _declared(columns: Iterable[Column]) -> dict[str, Any]:
    """Columns with types and descriptions; of a source also the columns of `outcomes` behind them."""
    columns = list(columns)
    made = {c.name: [("outcomes", origin) for origin in c.outcomes] for c in columns if c.outcomes}
    described = schema({c.name: (c.data_type or "unknown", c.description) for c in columns})
    return described | (lineage(made) if made else {})


def _linked(model: SqlModel) -> dict[str, Any]:
    """A link to the model's own file of SQL."""
    with specs.preview("code references"):
        reference = dg.LocalFileCodeReference(file_path=str(model.path), line_number=1, label=model.path.name)
        return {"dagster/code_references": dg.CodeReferencesMetadataValue(code_references=[reference])}


def _writers(path: str) -> list[dg.AssetKey]:
    """The asset that writes the files of a source table; none for files of the package."""
    stage = path.split("/")[0]
    return [key_of(stage)] if stage in (*POOL_STAGES, "replay") else []


#: The files that the models read, as tables: where column lineage ends.
def _source_specs() -> list[dg.AssetSpec]:
    return [
        dg.AssetSpec(
            **specs.common(
                "marts",
                "marts",
                "parquet" if source.path else "python",
                path=f"sources/{source.source}/{source.name}",
            ),
            deps=_writers(source.path),
            description=source.description or f"The files {source.path} of the artifacts, read as one table.",
            metadata=_declared(source.columns),
        )
        for source in used_sources()
    ]


def _page_spec(name: str, text: str, where: dg.PartitionsDefinition | None) -> dg.AssetSpec:
    return dg.AssetSpec(
        **specs.common("marts", "marts", "parquet", path=f"pages/{name}"),
        deps=[key for key, model in MODELS.items() if model.layer == "marts"],
        partitions_def=where,
        description=f"{text} Its data version changes when what reads it is to be made again.",
    )


shown_by_reports = _page_spec(
    "reports", "The marts' rows of a pool, and what its report shows beside them.", partitions.pools
)


def _versions(context: dg.AssetExecutionContext, cabs: CabsResource) -> Iterator[dg.ObserveResult]:
    versions = partitions.planner_in(context.instance, cabs.store()).versions()
    for (path, partition), version in versions.items():
        asset = key_of(path)
        if not partition and asset in context.selected_asset_keys:
            yield dg.ObserveResult(asset_key=asset, data_version=dg.DataVersion(version))


with specs.preview("observable sources"):

    @dg.multi_observable_source_asset(
        required_resource_keys={CABS}, name=step("sources"), specs=_source_specs(), can_subset=True
    )
    def sources(context: dg.AssetExecutionContext) -> Iterator[dg.ObserveResult]:
        """Looks at what the models are made from; the sensor partitions_of_pools and every run do so, too."""
        with guarded():
            cabs = cabs_of(context)
            yield from _versions(context, cabs)

    @dg.multi_observable_source_asset(
        required_resource_keys={CABS},
        name=step("verdicts"),
        specs=[_page_spec("verdicts", "The marts of all pools and the verdicts of their reports.", None)],
        can_subset=True,
    )
    def verdicts(context: dg.AssetExecutionContext) -> Iterator[dg.ObserveResult]:
        """Looks at what the leaderboard is made from."""
        with guarded():
            cabs = cabs_of(context)
            yield from _versions(context, cabs)


def _observe(context: dg.AssetExecutionContext, cabs: CabsResource, *, pending: bool) -> None:
    """Tell the instance the data versions of the sources, for the steps that follow."""
    partitions.observe(
        context.instance, partitions.planner_in(context.instance, cabs.store()), pending=pending
    )


@dg.asset(
    required_resource_keys={CABS},
    **specs.common("marts", "marts", "python", path=SOURCE_FILES),
    # a backfill waits for every dependency, and would wait for ever for one that is skipped (`off_policy`)
    deps=list(
        dict.fromkeys(
            writer
            for source in used_sources()
            for writer in _writers(source.path)
            if writer != key_of("off_policy")
        )
    ),
    code_version="1",
    description="The files of all pools that the SQL models read, looked at before the models run: Dagster "
    "is told their data versions, as assets `sources/...`. It holds nothing itself.",
)
def source_files(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
    with guarded():
        cabs = cabs_of(context)
        for chain in partitions.planner_in(context.instance, cabs.store()).chains.values():
            for replay in remove_replays_of_other_versions(chain):
                context.log.info(f"{replay} is removed: another version made it, and no pool file names it")
        _observe(context, cabs, pending=False)
        return dg.MaterializeResult(data_version=dg.DataVersion("seen"))


def _spec(key: dg.AssetKey, model: SqlModel) -> dg.AssetSpec:
    kind = "view" if model.materialized == "view" else "parquet"
    spec = dg.AssetSpec(
        **specs.common("marts", "marts", "sql", "duckdb", kind, path=path_of(key)),
        deps=[
            *(_KEYS[n] for n in model.depends_on),
            # those of other models too: Dagster marks what depends on a changed source, not what depends on
            # that
            *(_NAMED[source.relation] for source in _BEHIND[model.name]),
            key_of(SOURCE_FILES),
        ],
        description=model.description or f"SQL model {model.name}.",
        code_version=model_code_version(model),
        metadata=_declared(model.columns) | _linked(model),
        skippable=True,
    )
    return spec.with_io_manager_key(TABLES)


@dg.multi_asset(
    required_resource_keys={CABS},
    name=step("sql_models"),
    specs=[
        *(_spec(key, model) for key, model in MODELS.items()),
        dg.AssetSpec(
            **specs.common("marts", "marts", "duckdb", path="database"),
            deps=list(MODELS),
            code_version="1",
            skippable=True,
            description="`marts/cabs.duckdb`: all marts as tables of one file, rebuilt from their parquet "
            "by one writer.",
        ),
    ],
    check_specs=[spec for key, model in MODELS.items() for spec in sql_check_specs(key, model)],
    can_subset=True,
    pool="duckdb",
    description="Staging and mart models over the replays of all pools; cabs.duckdb is rebuilt at the end.",
)
def marts(context: dg.AssetExecutionContext, config: StageConfig) -> Iterator[Any]:
    """Run the selected models in order; one whose tests fail stops those that read it."""
    with guarded():
        cabs = cabs_of(context)
        models = Marts(cabs.store())
        for text in models.left_out():
            context.log.warning(text)
        stopped: dict[str, str] = {}
        for key, model in MODELS.items():
            checks = {check.name for check in context.selected_asset_check_keys if check.asset_key == key}
            if key not in context.selected_asset_keys:
                if checks:
                    yield from sql_results(key, models.tests(model), checks)
                continue
            broken = [name for name in model.depends_on if name in stopped]
            if broken:
                stopped[model.name] = f"not made, because {', '.join(broken)} failed its tests"
                continue
            made = models.run(model, force=config.force, run_id=context.run.run_id)
            results = list(sql_results(key, made.record.summary["_tests"], checks))
            yield dg.MaterializeResult(
                asset_key=key,
                data_version=dg.DataVersion(made.record.content),
                metadata=_metadata(cabs, model, made),
                check_results=results,
            )
            if failed := failed_tests(made.record):
                stopped[model.name] = f"failed {', '.join(failed)}"
        if stopped:
            text = "\n".join(f"{name}: {reason}" for name, reason in stopped.items())
            raise dg.Failure(f"SQL tests failed:\n{text}", allow_retries=False)
        if context.selected_asset_keys:
            models.finish()
            context.log.info(
                f"{len(context.selected_asset_keys)} SQL models are up to date in {models.database}"
            )
            _observe(context, cabs, pending=False)
        if key_of("database") in context.selected_asset_keys:
            yield dg.MaterializeResult(
                asset_key=key_of("database"),
                data_version=dg.DataVersion("built"),
                metadata={"location": dg.MetadataValue.path(str(models.database))},
            )


def _metadata(cabs: CabsResource, model: SqlModel, made: Made) -> dict[str, Any]:
    """Row count, the schema that DuckDB reports, column lineage, table and SQL file of one run of a model."""
    summary = made.record.summary
    places = {"SQL file": dg.MetadataValue.path(str(model.path))}
    for name in made.record.files:
        places["location"] = dg.MetadataValue.path(cabs.store().location((MARTS, name)))
    described = {c.name: c.description for c in model.columns}
    values = schema({name: (kind, described.get(name, "")) for name, kind in summary["_schema"]})
    if summary["_lineage"]:
        values |= lineage(
            {
                column: [(_NAMED[up], name) for up, name in parents if up in _NAMED]
                for column, parents in summary["_lineage"].items()
            }
        )
    computed = "reused, nothing changed" if made.reused else "computed in this run"
    return values | places | {"computed": computed} | figures(summary)
