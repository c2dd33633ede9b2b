"""Assets `router`, the bundle that a pool would deploy, `deployed_router`, replaced when that one is not worse, and
`off_policy`, what the pool's policies would have earned on the traffic that was logged.
"""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from cabs_core.artifacts.stages import stage_code_version
from cabs_dagster import partitions, specs
from cabs_dagster.checks import check_specs, deployment_results, router_results
from cabs_dagster.metadata import figures, guarded, left_out, stage_result, table
from cabs_dagster.resources import CabsResource
from cabs_dagster.specs import StageConfig


@dg.multi_asset(
    name="router",
    specs=[
        dg.AssetSpec(
            "router",
            **specs.stage("router", "deployment", "python", "numpy"),
            description="The policy that the pool names, or else the best on validation, with everything from a prompt's "
            "text to a decision: what `cabs export` hands out. Also the time of single decisions of all policies.",
        )
    ],
    check_specs=check_specs("router"),
    partitions_def=partitions.pools,
    can_subset=True,
)
def router(context: dg.AssetExecutionContext, config: StageConfig, cabs: CabsResource) -> Iterator[Any]:
    """One step for the asset and its checks; the checks can also run alone, on the files."""
    names = {check.name for check in context.selected_asset_check_keys}
    if not context.selected_asset_keys:
        from cabs_core.chain.router import examine_again  # here: loading the code location stays quick

        with guarded():
            found = examine_again(cabs.chain(context.partition_key))
        yield from router_results(found, names)
        return
    chain, made, result = stage_result(context, cabs, "router", config.force)
    summary = made.record.summary
    shown: dict[str, Any] = {
        "export": dg.MetadataValue.md(f"`cabs export --pool {chain.pool.name} --out router`")
    }
    if "_budgets" in summary:
        shown["budgets, USD a request"] = table(summary["_budgets"])
    if "_card" in summary:
        shown["model card"] = dg.MetadataValue.md(summary["_card"])
        shown["model card file"] = dg.MetadataValue.path(made.folder / "bundle" / "README.md")
    yield result._replace(
        metadata={**(result.metadata or {}), **shown}, check_results=list(router_results(summary, names))
    )


@dg.asset(
    **specs.common("deployed_router", "deployment", "python"),
    code_version=stage_code_version("router"),
    deps=["router"],
    partitions_def=partitions.pools,
    check_specs=check_specs("deployed_router"),
    description="The router at `$CABS_HOME/routers/<pool>/router`, for `cabs serve`. The newly trained one takes its place unless "
    "it is worse on held-out prompts beyond noise; `cabs rollback` takes that back.",
)
def deployed_router(context: dg.AssetExecutionContext, cabs: CabsResource) -> dg.MaterializeResult:
    from cabs_core.chain.deployment import deploy  # here: loading the code location stays quick

    with guarded():
        found = deploy(cabs.chain(context.partition_key))
    context.log.info(found["reason"])
    return dg.MaterializeResult(metadata=figures(found), check_results=deployment_results(found))


@dg.asset(
    **specs.stage("off_policy", "deployment", "python", "parquet", after=["deployed_router"]),
    partitions_def=partitions.pools,
    description="What the pool's policies would have earned on logged traffic, per rho, with 95 % intervals: doubly robust, "
    "SNIPS and others, from the log that is the pool's source or that it names, or the deployed router's. A refusal gives its reason.",
)
def off_policy(
    context: dg.AssetExecutionContext, config: StageConfig, cabs: CabsResource
) -> dg.MaterializeResult:
    return left_out(context, cabs, "off_policy") or stage_result(context, cabs, "off_policy", config.force)[2]
