"""Assets `staging/<model>` and `marts/<model>`: the SQL models of `dbt_like_sql`, run by DuckDB in one step.

Columns, tests and dependencies come from the SQL project itself, so that a new model is a new asset.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import dagster as dg

from cabs_core.pipeline.artifacts import POOL_STAGES, Made
from cabs_core.pipeline.artifacts.stages import REPLAY
from cabs_core.pipeline.chain_order import ESTIMATES, LEADERBOARD_INPUTS, REPORT_INPUTS, SOURCE_FILES
from cabs_core.pipeline.retention import remove_replays_of_other_versions
from cabs_dagster import partitions, specs
from cabs_dagster.checks import sql_check_specs, sql_results
from cabs_dagster.columns import lineage, schema
from cabs_dagster.metadata import figures, guarded, table
from cabs_dagster.names import Declared, declare, named, path_of, step
from cabs_dagster.names import key as key_of
from cabs_dagster.resources import CABS, TABLES, CabsResource, cabs_of
from cabs_dagster.specs import StageConfig
from dbt_like_sql.artifacts import (
    MARTS,
    POOL_FILES,
    REPLAY_FILES,
    STAGE_FILES,
    Marts,
    failed_tests,
    files_asset,
    model_code_version,
    sources_behind,
    used_sources,
)
from dbt_like_sql.runner import SqlModel, list_models
from dbt_like_sql.schema import Column

#: group of the nodes that only carry a data version
VERSIONS = "data_versions"
_MODELS = {model.name: model for model in list_models()}
#: {(source table as relation or as written, its column): columns of `outcomes` that the column is made of}
_ORIGINS = {
    (name, column.name): column.outcomes
    for source in used_sources()
    for name in (source.relation, f"{source.source}.{source.name}")
    for column in source.columns
}
#: {model: assets that carry the data versions of the files that it reads, itself or through other models}
_FILES_BEHIND = {
    model: sorted({files_asset(source) for source in sources}) for model, sources in sources_behind().items()
}


def models() -> dict[dg.AssetKey, SqlModel]:
    """Return {asset: SQL model} in the current location, each after those that it reads."""
    return {_key(name): model for name, model in _MODELS.items()}


def _key(name: str) -> dg.AssetKey:
    """Return the asset key of a model."""
    return key_of(f"{_MODELS[name].layer}/{name}")


def _declared(columns: Iterable[Column]) -> dict[str, Any]:
    """Return Dagster metadata with the schema of columns: name, type (or "unknown") and description."""
    return schema({c.name: (c.data_type or "unknown", c.description) for c in columns})


def _linked(model: SqlModel) -> dict[str, Any]:
    """Return metadata with a link to the SQL file of a model."""
    with specs.without_preview_warnings("code references"):
        reference = dg.LocalFileCodeReference(file_path=str(model.path), line_number=1, label=model.path.name)
        return {"dagster/code_references": dg.CodeReferencesMetadataValue(code_references=[reference])}


def _writers(*, of: str) -> list[dg.AssetKey]:
    """Return the stages whose files the data version of the asset `of` describes."""
    stages = {source.path.split("/")[0] for source in used_sources() if files_asset(source) == of}
    return [key_of(stage) for stage in (*POOL_STAGES, REPLAY.name) if stage in stages]


def _version_spec(
    path: str, deps: Iterable[dg.AssetKey], text: str, where: dg.PartitionsDefinition | None = None
) -> dg.AssetSpec:
    """Return the spec of an asset that has a data version and no content.

    Args:
        path: path of the asset's key.
        text: first sentence of the asset's description.
        where: the asset's partitions.
    """
    return dg.AssetSpec(
        **specs.common("marts", VERSIONS, "python", path=path),
        deps=list(deps),
        partitions_def=where,
        description=f"{text} A data version and nothing else: it changes when what reads it is to be made "
        "again. Dagster itself looks at no upstream asset with 100 partitions or more.",
    )


def _marts() -> list[dg.AssetKey]:
    """Return the asset keys of the marts."""
    return [key for key, model in models().items() if model.layer == "marts"]


shown_by_reports = Declared(
    lambda: _version_spec(
        REPORT_INPUTS,
        _marts(),
        "The marts' rows of a pool, and what its report shows beside them.",
        partitions.pools(),
    )
)


def _versions(context: dg.AssetExecutionContext, cabs: CabsResource) -> Iterator[dg.ObserveResult]:
    """Yield the present data version of each selected asset that has no partitions and no content."""
    versions = partitions.planner_in(context.instance, cabs.store()).versions()
    for (path, partition), version in versions.items():
        asset = key_of(path)
        if not partition and asset in context.selected_asset_keys:
            yield dg.ObserveResult(asset_key=asset, data_version=dg.DataVersion(version))


def _files() -> Callable[..., Any]:
    """Return Dagster's decorator of the step that observes the files behind the SQL models."""
    texts = {
        REPLAY_FILES: "The replays of all pools, the policies that are installed and the paper's figures, as "
        "the SQL models read them.",
        STAGE_FILES: "What oracles, tuning, routers and estimates of all pools left on disk for the SQL "
        "models.",
        POOL_FILES: "What the files of the active pools say of title, reference policy, rhos, policies and "
        "query orders, as the SQL models read it.",
    }
    writers = {path: _writers(of=path) for path in texts} | {POOL_FILES: [key_of("pool_file")]}
    return _observing("files", [_version_spec(path, writers[path], texts[path]) for path in texts])


def _verdicts() -> Callable[..., Any]:
    """Return Dagster's decorator of the step that observes what the leaderboard is made from."""
    text = "The marts of all pools and the verdicts of their reports."
    return _observing("verdicts", [_version_spec(LEADERBOARD_INPUTS, _marts(), text)])


def _observing(name: str, nodes: Sequence[dg.AssetSpec]) -> Callable[..., Any]:
    """Return Dagster's decorator of a step that observes assets which have nothing but a data version."""
    with specs.without_preview_warnings("observable sources"):
        decorator: Callable[..., Any] = dg.multi_observable_source_asset(
            required_resource_keys={named(CABS)}, name=step(name), specs=nodes, can_subset=True
        )
    return decorator


@declare(_files)
def files(context: dg.AssetExecutionContext) -> Iterator[dg.ObserveResult]:
    """Observe the files behind the SQL models, as the sensor partitions_of_pools and every run do, too."""
    with guarded():
        cabs = cabs_of(context)
        yield from _versions(context, cabs)


@declare(_verdicts)
def verdicts(context: dg.AssetExecutionContext) -> Iterator[dg.ObserveResult]:
    """Observe the asset whose data version changes with what the leaderboard is made from.

    The leaderboard is made from the marts of all pools and from the verdict of each pool, which is the answer
    that the pool's report gives.
    """
    with guarded():
        cabs = cabs_of(context)
        yield from _versions(context, cabs)


def _observe(context: dg.AssetExecutionContext, cabs: CabsResource, *, pending: bool) -> None:
    """Report pool settings and the data versions of the tables behind marts and pages to the instance.

    The steps that follow then see what changed.

    Args:
        pending: True if stages and replays that are due count as changes, too.
    """
    partitions.observe(
        context.instance, partitions.planner_in(context.instance, cabs.store()), pending=pending
    )


@declare(
    lambda: dg.asset(
        required_resource_keys={named(CABS)},
        **specs.common("marts", "marts", "python", path=SOURCE_FILES),
        # A backfill waits for every dependency. A pool without a log has no partition of the estimates.
        deps=[
            key for of in (REPLAY_FILES, STAGE_FILES) for key in _writers(of=of) if key != key_of(ESTIMATES)
        ],
        code_version="1",
        description="The list of the files of all pools that the SQL models read, taken before the models "
        "run. It tells Dagster the data versions in the group `data_versions`.",
    )
)
def source_files(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
    """List the files that the SQL models read, and report the data versions that the models depend on.

    Replays that another version of the project made and that no pool file names are removed first.
    """
    with guarded():
        cabs = cabs_of(context)
        for chain in partitions.planner_in(context.instance, cabs.store()).chains.values():
            for replay in remove_replays_of_other_versions(chain):
                context.log.info(f"{replay} is removed: another version made it, and no pool file names it")
        _observe(context, cabs, pending=False)
        rows = Marts(cabs.store()).files_in_words()
        return dg.MaterializeResult(
            # always the same: which models a change concerns is said by the group `data_versions`
            data_version=dg.DataVersion("seen"),
            metadata={"files": table(rows), "dagster/row_count": sum(row["files"] for row in rows)},
        )


def _spec(key: dg.AssetKey, model: SqlModel) -> dg.AssetSpec:
    """Return the asset spec of an SQL model."""
    if model.materialized == "view":
        kind = "view"
    else:
        kind = "parquet"
    spec = dg.AssetSpec(
        **specs.common("marts", "marts", "sql", "duckdb", kind, path=path_of(key)),
        deps=[
            *map(_key, model.depends_on),
            # those of other models too: Dagster marks what depends on changed files, not what depends on that
            *map(key_of, _FILES_BEHIND[model.name]),
            key_of(SOURCE_FILES),
        ],
        description=model.description or f"SQL model {model.name}.",
        code_version=model_code_version(model),
        metadata=_declared(model.columns) | _linked(model),
        skippable=True,
    )
    return spec.with_io_manager_key(named(TABLES))


def _sql_models() -> Callable[..., Any]:
    """Return Dagster's decorator of the step that runs the SQL models."""
    database = dg.AssetSpec(
        **specs.common("marts", "marts", "duckdb", path="database"),
        deps=list(models()),
        code_version="1",
        skippable=True,
        description="`marts/cabs.duckdb`: all marts as tables of one file, rebuilt from their parquet by one "
        "writer.",
    )
    return dg.multi_asset(
        required_resource_keys={named(CABS)},
        name=step("sql_models"),
        specs=[*(_spec(key, model) for key, model in models().items()), database],
        check_specs=[spec for key, model in models().items() for spec in sql_check_specs(key, model)],
        can_subset=True,
        pool="duckdb",
        description="Staging and mart models over the replays of all pools; cabs.duckdb is rebuilt at the "
        "end.",
    )


@declare(_sql_models)
def marts(context: dg.AssetExecutionContext, config: StageConfig) -> Iterator[Any]:
    """Run the selected models in order, and evaluate the selected tests of the others.

    A selected model that fails a test of severity error stops the models that read it, and the step fails at
    its end. If models were selected and none of them failed, `cabs.duckdb` is brought up to date.
    """
    with guarded():
        cabs = cabs_of(context)
        sql = Marts(cabs.store())
        for text in sql.left_out():
            context.log.warning(text)
        stopped: dict[str, str] = {}
        with sql.session() as session:
            for key, model in models().items():
                checks = {check.name for check in context.selected_asset_check_keys if check.asset_key == key}
                if key not in context.selected_asset_keys:
                    if checks:
                        yield from sql_results(key, sql.tests(model, session), checks)
                    continue
                broken = [name for name in model.depends_on if name in stopped]
                if broken:
                    stopped[model.name] = f"not made, because {', '.join(broken)} failed its tests"
                    continue
                made = sql.run(model, session, force=config.force, run_id=context.run.run_id)
                results = list(sql_results(key, made.record.summary["_tests"], checks))
                yield dg.MaterializeResult(
                    asset_key=key,
                    data_version=dg.DataVersion(made.record.content),
                    metadata=_metadata(cabs, model, made),
                    check_results=results,
                )
                failed = failed_tests(made.record)
                if failed:
                    stopped[model.name] = f"failed {', '.join(failed)}"
        if stopped:
            text = "\n".join(f"{name}: {reason}" for name, reason in stopped.items())
            raise dg.Failure(f"SQL tests failed:\n{text}", allow_retries=False)
        if context.selected_asset_keys:
            sql.finish()
            context.log.info(
                f"{len(context.selected_asset_keys)} SQL models are up to date in {sql.database}"
            )
            _observe(context, cabs, pending=False)
        if key_of("database") in context.selected_asset_keys:
            yield dg.MaterializeResult(
                asset_key=key_of("database"),
                data_version=dg.DataVersion("built"),
                metadata={"location": dg.MetadataValue.path(str(sql.database))},
            )


def origins_of(table_name: str, column: str) -> list[tuple[dg.AssetKey, str]]:
    """Return the columns that a column of a table comes from, as (asset, column).

    A column of an SQL model stands for itself. A column of a source table comes from columns of the asset
    `outcomes`, or from none that is known.
    """
    if table_name in _MODELS:
        return [(_key(table_name), column)]
    return [(key_of("outcomes"), origin) for origin in _ORIGINS.get((table_name, column), ())]


def _metadata(cabs: CabsResource, model: SqlModel, made: Made) -> dict[str, Any]:
    """Return the metadata of a model that was run: rows, columns, column lineage, places of table and SQL."""
    summary = made.record.summary
    places = {"SQL file": dg.MetadataValue.path(str(model.path))}
    for name in made.record.files:
        places["location"] = dg.MetadataValue.path(cabs.store().location((MARTS, name)))
    described = {c.name: c.description for c in model.columns}
    values = schema({name: (kind, described.get(name, "")) for name, kind in summary["_schema"]})
    if summary["_lineage"]:
        values |= lineage(
            {
                column: list(dict.fromkeys(o for up, name in parents for o in origins_of(up, name)))
                for column, parents in summary["_lineage"].items()
            }
        )
    if made.reused:
        computed = "reused, nothing changed"
    else:
        computed = "computed in this run"
    return values | places | {"computed": computed} | figures(summary)
