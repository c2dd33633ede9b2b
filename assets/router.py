"""Assets `router`, the bundle that a pool would deploy, `deployed_router`, replaced when that one is not
worse, and `off_policy`, what the pool's policies would have earned on the traffic that was logged.
"""

from collections.abc import Iterator
from typing import Any

import dagster as dg
from pydantic import Field

from cabs_core.base.errors import DataError
from cabs_core.pipeline.artifacts.stages import JOINED_BY, stage_code_version
from cabs_dagster import partitions, specs
from cabs_dagster.checks import checked, deployment_results, router_results
from cabs_dagster.jobs import DEPLOY, JOIN
from cabs_dagster.metadata import figures, guarded, observe_nothing, of_job, pool_of, stage_result
from cabs_dagster.names import key
from cabs_dagster.resources import CABS, cabs_of
from cabs_dagster.specs import DEPLOYS, EVALUATES, JOINS, StageConfig


@checked(
    "router",
    **specs.stage("router", "deployment", "python", "numpy"),
    description="The policy that the pool names, or else the best on validation, with everything "
    "from a prompt's text to a decision: what `cabs export` hands out. Also the time of single "
    "decisions of all policies.",
)
def router(context: dg.AssetExecutionContext, config: StageConfig) -> Iterator[Any]:
    """One step for the asset and its checks; the checks can also run alone, on the files."""
    with guarded():
        from cabs_core.pipeline.stages.router import RouterSummary, examine_again  # here: loading stays quick

        cabs = cabs_of(context)
        names = {check.name for check in context.selected_asset_check_keys}
        if not context.selected_asset_keys:
            yield from router_results(examine_again(cabs.chain(pool_of(context))), names)
            return
        chain, made, result = stage_result(context, cabs, "router", config.force)
        summary = RouterSummary.of(made.record)
        shown: dict[str, Any] = {
            "export": dg.MetadataValue.md(f"`cabs export --pool {chain.pool.name} --out router`")
        }
        if summary.card:
            shown["model card"] = dg.MetadataValue.md(summary.card)
            shown["model card file"] = dg.MetadataValue.path(made.folder / "bundle" / "README.md")
        yield result._replace(
            metadata={**(result.metadata or {}), **shown}, check_results=list(router_results(summary, names))
        )


class DeployConfig(dg.Config):
    """Launchpad settings of `deployed_router`."""

    deploy: bool = Field(
        False, description="Promote the new router if it is not worse. The job deploy_pool does so by itself."
    )


@checked(
    "deployed_router",
    **specs.common("deployed_router", "deployment", "python"),
    code_version=stage_code_version("router"),
    deps=[key(name) for name in ("router", *JOINED_BY)],
    description="The router at `$CABS_HOME/routers/<pool>/router`, for `cabs serve`. In the job "
    "deploy_pool (or with `deploy: true` in the config) the newly trained one takes its place "
    "unless it is worse on held-out prompts beyond noise; `cabs rollback` takes that back. In job "
    f"{JOIN} models that the pool gained join it, where the pool says `add_models`, as soon as the "
    "table has their answers. Its materialisations are promotions and joins; any other run observes what "
    "would be done.",
    partitions_def=partitions.pools,
    skippable=True,
)
def deployed_router(context: dg.AssetExecutionContext, config: DeployConfig) -> Iterator[Any]:
    """One step for the asset and its checks; the checks alone compare and promote nothing."""
    with guarded():
        cabs = cabs_of(context)
        from cabs_core.pipeline.stages.deployment import deploy, take_in  # here: loading stays quick

        if of_job(context, JOINS):
            joined = take_in(cabs.chain(pool_of(context)))
            if not joined:
                observe_nothing(context, "deployed_router", "no model joined: it chooses all of the pool's")
                return
            rest = "figures and report are of the models of before until they are made again"
            context.log.info(f"joined: {', '.join(joined)}; {rest}")
            found = {"joined, with so many scored prompts": joined}
            yield dg.MaterializeResult(asset_key=key("deployed_router"), metadata=figures(found))
            return
        names = {check.name for check in context.selected_asset_check_keys}
        promotes = bool(context.selected_asset_keys) and (config.deploy or of_job(context, DEPLOYS))
        deployment = deploy(cabs.chain(pool_of(context)), only_compare=not promotes)
        results = [result for result in deployment_results(deployment) if result.check_name in names]
        if promotes and deployment["promoted"]:
            context.log.info(deployment["reason"])
            yield dg.MaterializeResult(
                asset_key=key("deployed_router"),
                data_version=dg.DataVersion(deployment["challenger"]),
                metadata=figures(deployment),
                check_results=results,
            )
            return
        if context.selected_asset_keys:
            why = deployment["reason"]
            if not promotes:
                why = f"only the job {DEPLOY} promotes a router. Of the new one: {why}"
            observe_nothing(context, "deployed_router", why, figures(deployment))
        yield from results


@dg.asset(
    required_resource_keys={CABS},
    **specs.stage("off_policy", "deployment", "python", "parquet"),
    output_required=False,
    description="What the pool's policies would have earned on logged traffic, per rho, with 95 % "
    "intervals: doubly robust, SNIPS and others, from the log that is the pool's source or that it names, "
    "or the deployed router's. Where there is none to estimate from, it observes the reason.",
)
def off_policy(context: dg.AssetExecutionContext, config: StageConfig) -> Iterator[Any]:
    with guarded():
        cabs = cabs_of(context)
        try:
            yield stage_result(context, cabs, "off_policy", config.force)[2]
        except dg.Failure as failure:
            logged = cabs.chain(pool_of(context)).pool.logged
            if logged or of_job(context, EVALUATES) or not isinstance(failure.__cause__, DataError):
                raise
            observe_nothing(context, "off_policy", str(failure.__cause__))
