"""Assets `router`, `deployed_router` and `off_policy`.

`router` is the bundle that a pool would deploy. `deployed_router` is replaced if the new one is not worse.
`off_policy` says what the pool's policies would have earned on the traffic that was logged.
"""

from collections.abc import Callable, Iterator
from typing import Any

import dagster as dg

from cabs_core.base.errors import DataError
from cabs_core.base.paths import deployed_folder
from cabs_core.pipeline.artifacts.stages import JOINED_BY, stage_code_version
from cabs_core.pipeline.chain_order import DEPLOYED, ESTIMATES
from cabs_dagster import partitions, specs
from cabs_dagster.checks import check_specs, checked, deployment_results, router_results
from cabs_dagster.job_names import DEPLOY, JOIN
from cabs_dagster.metadata import FOUND, figures, guarded, observe_nothing, pool_of, runs_in_job, stage_result
from cabs_dagster.names import declare, key, named, step
from cabs_dagster.resources import CABS, cabs_of
from cabs_dagster.specs import DEPLOYS, EVALUATES, JOINS, StageConfig


@declare(
    lambda: checked(
        "router",
        **specs.stage("router", "deployment", "python", "numpy"),
        description="The policy that the pool names, or else the best on validation, with everything "
        "from a prompt's text to a decision: what `cabs export` hands out. Also the time of single "
        "decisions of all policies.",
    )
)
def router(context: dg.AssetExecutionContext, config: StageConfig) -> Iterator[Any]:
    """Make the asset and evaluate its checks. The checks can also run alone, on the files."""
    with guarded():
        from cabs_core.pipeline.stages.router import examine_again  # here: loading stays quick
        from cabs_core.pipeline.stages.router_summary import RouterSummary

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


def _observed_asset() -> Callable[..., Any]:
    """Return Dagster's decorator of the step that observes, replaces and extends the deployed router."""
    with specs.without_preview_warnings("observable sources"):
        decorator: Callable[..., Any] = dg.multi_observable_source_asset(
            required_resource_keys={named(CABS)},
            name=step(DEPLOYED),
            specs=[
                dg.AssetSpec(
                    **specs.common(DEPLOYED, "deployment", "python"),
                    code_version=stage_code_version("router"),
                    deps=[key(name) for name in ("router", *JOINED_BY)],
                    description="The router at `$CABS_HOME/routers/<pool>/router`, for `cabs serve`. It is "
                    f'observed, and no "Materialize" makes it: the job {named(DEPLOY)} lets the newly '
                    "trained router "
                    "take its place unless that one is worse on held-out prompts beyond noise, and `cabs "
                    f"rollback` takes that back. In the job {named(JOIN)} models that the pool gained join "
                    "it, where the pool says `add_models`, as soon as the table has their answers. Its "
                    "materialisations are promotions and joins; an observation says which router is "
                    "deployed, and what was found.",
                    partitions_def=partitions.pools(),
                )
            ],
            check_specs=check_specs(DEPLOYED),
            can_subset=True,
        )
    return decorator


@declare(_observed_asset)
def deployed_router(context: dg.AssetExecutionContext) -> Iterator[Any]:
    """Let models join the deployed router in the job that joins, and compare the new router in any other job.

    Only the job that deploys promotes the new router. Checks that run alone promote nothing.
    """
    with guarded():
        if runs_in_job(context, JOINS):
            yield _joined(context)
        else:
            yield from _compared(context)


def _joined(context: dg.AssetExecutionContext) -> dg.ObserveResult:
    """Let the models that the pool gained join its deployed router, and return an observation of it."""
    from cabs_core.pipeline.stages.deployment import take_in  # here: loading stays quick

    chain = cabs_of(context).chain(pool_of(context))
    joined = take_in(chain)
    if not joined:
        return _observed(context, "no model joined: the router chooses all models of the pool", {})
    why = (
        f"joined: {', '.join(joined)}; figures and report are of the models of before until they are made "
        "again"
    )
    found = figures({"joined, with so many scored prompts": joined})
    _record_change(context, found)
    return _observed(context, why, found)


def _compared(context: dg.AssetExecutionContext) -> Iterator[Any]:
    """Compare the new router with the deployed one, and yield an observation with the results of the checks.

    In the job that deploys, the new router is promoted unless it is worse. Without the asset in the run, only
    the results of the checks are yielded.
    """
    from cabs_core.pipeline.stages.deployment import deploy  # here: loading stays quick

    checks = {check.name for check in context.selected_asset_check_keys}
    promotes = bool(context.selected_asset_keys) and runs_in_job(context, DEPLOYS)
    deployment = deploy(cabs_of(context).chain(pool_of(context)), only_compare=not promotes)
    results = [result for result in deployment_results(deployment) if result.check_name in checks]
    if not context.selected_asset_keys:
        yield from results
        return
    found = figures(deployment)
    why = deployment["reason"]
    if deployment["promoted"]:
        _record_change(context, found)
    elif not promotes:
        why = f"only the job {named(DEPLOY)} promotes a router. Of the new one: {why}"
    yield _observed(context, why, found)._replace(check_results=results)


def _deployed_id(pool: str) -> str:
    """Return the id of a pool's deployed router, empty if there is none."""
    from cabs_core.router.bundle import HEADER, read_manifest  # here: loading stays quick

    place = deployed_folder(pool)
    if (place / HEADER).is_file():
        return read_manifest(place, verify=False).id
    return ""


def _record_change(context: dg.AssetExecutionContext, found: dict[str, Any]) -> None:
    """Record a promotion or a join as a materialization of the deployed router."""
    pool = pool_of(context)
    tags = {partitions.DATA_VERSION_TAG: _deployed_id(pool)}
    event = dg.AssetMaterialization(key(DEPLOYED), partition=pool, metadata=found, tags=tags)
    context.log_event(event)


def _observed(context: dg.AssetExecutionContext, why: str, found: dict[str, Any]) -> dg.ObserveResult:
    """Return an observation of the deployed router with what the run found.

    The data version is the id of the router, or `none` if no router is deployed.
    """
    context.log.info(why)
    deployed = _deployed_id(pool_of(context))
    return dg.ObserveResult(
        asset_key=key(DEPLOYED),
        data_version=dg.DataVersion(deployed or "none"),
        metadata={FOUND: why, **found},
    )


@declare(
    lambda: dg.asset(
        required_resource_keys={named(CABS)},
        **specs.stage(ESTIMATES, "deployment", "python", "parquet", where=partitions.pools_with_log()),
        output_required=False,
        description="What the pool's policies would have earned on logged traffic, per rho, with 95 % "
        "intervals: doubly robust, SNIPS and others, from the log that is the pool's source or that it "
        "names, or the deployed router's. Its partitions are the pools that have such a log. Where the log "
        "is too small to estimate from, it observes the reason.",
    )
)
def off_policy(context: dg.AssetExecutionContext, config: StageConfig) -> Iterator[Any]:
    """Make the asset, or observe the DataError of a log that cannot be used, such as one that is too small.

    The run fails instead if the log is the pool's source, in the job that evaluates the router's log, or with
    another error than a DataError.
    """
    with guarded():
        cabs = cabs_of(context)
        try:
            yield stage_result(context, cabs, ESTIMATES, config.force)[2]
        except dg.Failure as failure:
            logged = cabs.chain(pool_of(context)).pool.logged
            if logged or runs_in_job(context, EVALUATES) or not isinstance(failure.__cause__, DataError):
                raise
            observe_nothing(context, ESTIMATES, str(failure.__cause__))
