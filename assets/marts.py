"""Assets `staging/<model>` and `marts/<model>`: the SQL models of `dbt_like_sql`, run by DuckDB in one step.

Columns, tests and dependencies come from the SQL project itself, so that a new model is a new asset.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import dagster as dg

from cabs_core.artifacts import POOL_STAGES, Made
from cabs_dagster import specs
from cabs_dagster.checks import sql_check_specs, sql_results
from cabs_dagster.metadata import RETRY, figures, guarded, lineage, schema
from cabs_dagster.resources import CabsResource
from cabs_dagster.specs import StageConfig
from dbt_like_sql import SqlModel, list_models
from dbt_like_sql.freshness import Marts, failed_tests, model_code_version, used_sources
from dbt_like_sql.project import Column

MODELS = {dg.AssetKey([model.layer, model.name]): model for model in list_models()}
_KEYS = {model.name: key for key, model in MODELS.items()}
#: Asset keys by the names that column lineage uses: models, and source tables as relation and as written.
_NAMED = _KEYS | {
    name: dg.AssetKey(["sources", s.source, s.name])
    for s in used_sources()
    for name in (s.relation, f"{s.source}.{s.name}")
}


def _declared(columns: Iterable[Column]) -> dict[str, Any]:
    """Columns with types and descriptions; of a source also the columns of `outcomes` that they are made of."""
    columns = list(columns)
    made = {c.name: [("outcomes", origin) for origin in c.outcomes] for c in columns if c.outcomes}
    described = schema({c.name: (c.data_type or "unknown", c.description) for c in columns})
    return described | (lineage(made) if made else {})


def _linked(model: SqlModel) -> dict[str, Any]:
    """A link to the model's own file of SQL."""
    with specs.preview("code references"):
        reference = dg.LocalFileCodeReference(file_path=str(model.path), line_number=1, label=model.path.name)
        return {"dagster/code_references": dg.CodeReferencesMetadataValue(code_references=[reference])}


def _writers(path: str) -> list[str]:
    """The asset that writes the files of a source table; none for files of the package."""
    stage = path.split("/")[0]
    return [stage] if stage in (*POOL_STAGES, "replay") else []


#: The files that the models read, as tables: where column lineage ends.
source_specs = [
    dg.AssetSpec(
        _NAMED[source.relation],
        **specs.common("marts", "marts", "parquet" if source.path else "python"),
        deps=_writers(source.path),
        description=source.description or f"The files {source.path} of the artifacts, read as one table.",
        metadata=_declared(source.columns),
    )
    for source in used_sources()
]


def _spec(key: dg.AssetKey, model: SqlModel) -> dg.AssetSpec:
    writers = [writer for s in used_sources() if s.relation in model.sources for writer in _writers(s.path)]
    kind = "view" if model.materialized == "view" else "parquet"
    return dg.AssetSpec(
        key,
        **specs.common("marts", "marts", "sql", "duckdb", kind),
        deps=[
            *(_KEYS[n] for n in model.depends_on),
            *(_NAMED[n] for n in model.sources),
            *dict.fromkeys(writers),
        ],
        description=model.description or f"SQL model {model.name}.",
        code_version=model_code_version(model),
        metadata=_declared(model.columns) | _linked(model),
        skippable=True,
    )


@dg.multi_asset(
    name="sql_models",
    specs=[_spec(key, model) for key, model in MODELS.items()],
    check_specs=[spec for key, model in MODELS.items() for spec in sql_check_specs(key, model)],
    can_subset=True,
    pool="duckdb",
    retry_policy=RETRY,
    description="Staging and mart models over the replays of all pools; cabs.duckdb is rebuilt at the end.",
)
def marts(context: dg.AssetExecutionContext, config: StageConfig, cabs: CabsResource) -> Iterator[Any]:
    """Run the selected models in order; one whose tests fail stops those that read it."""
    with guarded():
        models = Marts(cabs.store())
        for text in models.left_out():
            context.log.warning(text)
    stopped: dict[str, str] = {}
    for key, model in MODELS.items():
        checks = {check.name for check in context.selected_asset_check_keys if check.asset_key == key}
        if key not in context.selected_asset_keys:
            if checks:
                with guarded():
                    yield from sql_results(key, models.tests(model), checks)
            continue
        broken = [name for name in model.depends_on if name in stopped]
        if broken:
            stopped[model.name] = f"not made, because {', '.join(broken)} failed its tests"
            continue
        with guarded():
            made = models.run(model, force=config.force, run_id=context.run.run_id)
        results = list(sql_results(key, made.record.summary["_tests"], checks))
        yield dg.MaterializeResult(
            asset_key=key,
            data_version=dg.DataVersion(made.record.content),
            metadata=_shown(model, made),
            check_results=results,
        )
        if failed := failed_tests(made.record):
            stopped[model.name] = f"failed {', '.join(failed)}"
    if stopped:
        text = "\n".join(f"{name}: {reason}" for name, reason in stopped.items())
        raise dg.Failure(f"SQL tests failed:\n{text}", allow_retries=False)
    if context.selected_asset_keys:
        with guarded():
            models.finish()
        context.log.info(f"{len(context.selected_asset_keys)} SQL models are up to date in {models.database}")


def _shown(model: SqlModel, made: Made) -> dict[str, Any]:
    """Row count, the schema that DuckDB reports, and column lineage of one run of a model."""
    summary = made.record.summary
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
    return values | {"computed": computed} | figures(summary)
