"""Assets `report` (one page per pool) and `leaderboard` (all pools): what people read."""

from datetime import timedelta
from typing import Any

import dagster as dg

from cabs_core.pipeline.artifacts import ArtifactStore, Made
from cabs_core.pipeline.chain_order import LEADERBOARD_INPUTS, REPORT_INPUTS
from cabs_core.pipeline.page_server import page_url
from cabs_core.pipeline.pages import PROFILE, make_leaderboard, make_report, page_code_version, page_parts
from cabs_dagster import partitions, specs
from cabs_dagster.metadata import figures, guarded, pool_of, provenance
from cabs_dagster.names import declare, key, named
from cabs_dagster.partitions import observe, planner_in
from cabs_dagster.resources import CABS, cabs_of
from cabs_dagster.specs import StageConfig
from dbt_like_sql.artifacts import Marts

with specs.without_preview_warnings("freshness policies"):
    _WEEKLY = dg.FreshnessPolicy.time_window(fail_window=timedelta(days=9), warn_window=timedelta(days=8))


@declare(
    lambda: dg.asset(
        required_resource_keys={named(CABS)},
        **specs.common("report", "results", "python", "html"),
        code_version=page_code_version(),
        partitions_def=partitions.pools(),
        deps=[key(a) for a in ("database", REPORT_INPUTS, "outcomes", "splits", "replay_problem")],
        freshness_policy=_WEEKLY,
        description="The comparison of a pool's routers as one self-contained HTML page: utility and "
        "regret by cost regime with uncertainty, the accuracy-cost frontier, arm shares, provenance."
        + specs.FRESHNESS,
    )
)
def report(context: dg.AssetExecutionContext, config: StageConfig) -> dg.MaterializeResult:
    with guarded():
        cabs = cabs_of(context)
        chain = cabs.chain(pool_of(context))
        made = make_report(chain, Marts(chain.store).database.parent, cabs.options(context, config.force))
        parts = page_parts(chain.pool.name)
        shown = page_metadata(made, chain.store, parts)
        if PROFILE in made.record.files:
            shown["profile of the data"] = _link(made, parts, PROFILE)
        observe(context.instance, planner_in(context.instance, chain.store), pending=False)
        context.log.info(f"report: {made.folder / 'index.html'}")
        return dg.MaterializeResult(data_version=dg.DataVersion(made.record.content), metadata=shown)


@declare(
    lambda: dg.asset(
        required_resource_keys={named(CABS)},
        **specs.common("leaderboard", "results", "python", "html"),
        code_version=page_code_version(),
        deps=[key("database"), key(LEADERBOARD_INPUTS), key("report")],
        description="All pools side by side, with links to their reports.",
    )
)
def leaderboard(context: dg.AssetExecutionContext, config: StageConfig) -> dg.MaterializeResult:
    with guarded():
        cabs = cabs_of(context)
        store = cabs.store()
        made = make_leaderboard(store, Marts(store).database.parent, cabs.options(context, config.force))
        shown = page_metadata(made, store, page_parts(None))
        observe(context.instance, planner_in(context.instance, store))
        return dg.MaterializeResult(data_version=dg.DataVersion(made.record.content), metadata=shown)


def page_metadata(made: Made, store: ArtifactStore, parts: tuple[str, ...]) -> dict[str, Any]:
    """Return the metadata of a page: its address, its text if it has one, its figures, plots and provenance.

    Args:
        parts: path of the page's folder in the store, such as ("reports", pool).
    """
    summary = made.record.summary
    values: dict[str, Any] = {"link": _link(made, parts)}
    if summary.get("_markdown"):
        values["summary"] = dg.MetadataValue.md(summary["_markdown"])
    return values | provenance(made, store.location(parts)) | figures(summary)


def _link(made: Made, parts: tuple[str, ...], name: str = "") -> dg.MetadataValue:
    """Return the address of a page or of a file beside it as metadata, or its path if reports are not served.

    The address is needed because Dagster's own page is served over HTTP and cannot link to a file.

    Args:
        parts: path of the page's folder in the store, such as ("reports", pool).
        name: name of a file in the folder. Empty for the page itself.
    """
    url = page_url(parts, name)
    if url:
        return dg.MetadataValue.url(url)
    return dg.MetadataValue.path(made.folder / (name or "index.html"))
