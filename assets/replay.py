"""Assets `replay/<policy>`: each policy routed online over the test split, per (pool, rho).

One multi-asset a family: one asset a policy, so that lineage and staleness are per policy, while a partition
costs one step a family. Policies that the pool does not name are left out of a run.
"""

from collections.abc import Iterator

import dagster as dg
from pydantic import Field

from cabs_core.catalog import all_policies, asset_name, families, split_name
from cabs_dagster import partitions, specs
from cabs_dagster.checks import check_results, recheck
from cabs_dagster.checks.results import REPRODUCIBLE, reproduced, result_check_specs
from cabs_dagster.checks.traces import trace_check_spec
from cabs_dagster.event_log import together
from cabs_dagster.making import StageConfig, guarded
from cabs_dagster.replaying import replay_target
from cabs_dagster.reporting import result
from cabs_dagster.resources import CabsResource
from cabs_dagster.stages import Target


class ReplayConfig(StageConfig):
    """Launchpad settings of a replay. Trials, seeds and rhos stand in the pool file."""

    policies: list[str] = Field(
        [],
        description="Replay these policies only, by name (cabs_d_linear@literal). Empty: all of the pool's.",
    )
    verdicts: bool = Field(
        False,
        description="Where checks run alone: let `reproducible` tell what it found last instead of playing the trial.",
    )


def replay_key(policy: str) -> dg.AssetKey:
    """Asset key of a policy's replay."""
    return dg.AssetKey(["replay", asset_name(policy)])


def _family(family: str, members: list[str]) -> dg.AssetsDefinition:
    by_key = {replay_key(policy): policy for policy in members}

    @dg.multi_asset(
        name=f"replay_{family}",
        specs=[
            specs.policy_spec(
                key,
                policy,
                {},
                deps=["replay_problem", "tuning"],
                skippable=True,
                partitions_def=partitions.pool_by_rho,
            )
            for key, policy in by_key.items()
        ],
        check_specs=[spec for key in by_key for spec in (trace_check_spec(key), *result_check_specs(key))],
        can_subset=True,
        description=f"Replays of the {family} policies of one pool at one rho.",
    )
    def replay_family(
        context: dg.AssetExecutionContext, config: ReplayConfig, cabs: CabsResource
    ) -> Iterator:
        pool, rho = partitions.split_key(context.partition_key)
        with guarded():
            chain = cabs.chain(pool)
            partitions.require_rho(chain.pool, rho)
        wanted = set(chain.pool.policies) & set(config.policies or chain.pool.policies)
        failed = {}
        for key, policy in by_key.items():
            checks = {c.name for c in context.selected_asset_check_keys if c.asset_key == key}
            if policy not in wanted:
                if key in context.selected_asset_keys:
                    context.log.info(f"{policy} is not among the policies of pool {pool}: left out")
                continue
            target = Target("replay", chain.pool, rho, policy)
            try:
                with guarded():
                    if key in context.selected_asset_keys:
                        made = replay_target(chain, target, force=config.force, run_id=context.run.run_id)
                        about = key, chain, target, made.record
                        # A trial that has to be played again comes later: nobody else can write while things are recorded.
                        later = set() if reproduced(made.record) else checks & {REPRODUCIBLE}
                        known = list(check_results(*about, checks - later))
                        with together(context.instance):
                            yield result(context, chain, made, asset_key=key)
                            yield from known  # not handed over with it: Dagster would evaluate each of them twice
                        yield from check_results(*about, later, kept=False)
                    elif checks:
                        yield from recheck(key, chain, target, checks, kept=config.verdicts)
            except dg.Failure as error:  # the other policies of the step still get their chance
                failed[policy] = error.description
                context.log.error(f"{policy}: {error.description}")
        if failed:
            text = "\n".join(f"{policy}: {reason}" for policy, reason in failed.items())
            raise dg.Failure(f"{len(failed)} of the policies failed:\n{text}", allow_retries=False)

    return replay_family


replay_families = [
    _family(family, [p for p in all_policies() if split_name(p)[0] in bases])
    for family, bases in families().items()
]
