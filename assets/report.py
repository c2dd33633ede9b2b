"""Assets `report` (one page a pool) and `leaderboard` (all pools): what people read."""

from datetime import timedelta

import dagster as dg

from assets.marts import _MODELS as SQL_MODELS
from cabs_core.paths import cabs_home
from cabs_dagster import partitions, specs
from cabs_dagster.external import POOL_RESULTS
from cabs_dagster.features import preview
from cabs_dagster.making import StageConfig, guarded
from cabs_dagster.pages import make_leaderboard, make_report, page_code_version
from cabs_dagster.reporting import result
from cabs_dagster.resources import CabsResource

#: What reports and leaderboard read.
report_marts = [key for key, model in SQL_MODELS.items() if model.layer == "marts"]

with preview("freshness policies"):
    _WEEKLY = dg.FreshnessPolicy.time_window(fail_window=timedelta(days=9), warn_window=timedelta(days=8))


@dg.asset(
    **specs.common("report"),
    code_version=page_code_version(),
    partitions_def=partitions.pools,
    deps=[POOL_RESULTS],
    freshness_policy=_WEEKLY,
    description="The comparison of a pool's routers as one self-contained HTML page: utility and regret by cost "
    "regime with uncertainty, the accuracy-cost frontier, arm shares, provenance.",
)
def report(
    context: dg.AssetExecutionContext, config: StageConfig, cabs: CabsResource
) -> dg.MaterializeResult:
    chain = cabs.chain(context.partition_key)
    with guarded():
        made, summary = make_report(chain, force=config.force, run_id=context.run.run_id)
    return result(context, chain, made, metadata=summary)


@dg.asset(
    **specs.common("leaderboard"),
    code_version=page_code_version(),
    deps=report_marts,
    description="All pools side by side, with links to their reports.",
)
def leaderboard(
    context: dg.AssetExecutionContext, config: StageConfig, cabs: CabsResource
) -> dg.MaterializeResult:
    with guarded():
        made, summary = make_leaderboard(cabs.store(), force=config.force, run_id=context.run.run_id)
    return dg.MaterializeResult(
        data_version=dg.DataVersion(made.record.content),
        metadata=summary | {"made at": made.record.created, "home": dg.MetadataValue.path(str(cabs_home()))},
    )
