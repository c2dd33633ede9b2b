"""The job `pool_chain`: the whole chain of one pool as a step that runs other jobs, one after the other."""

import uuid
from collections.abc import Mapping
from typing import Any

import dagster as dg
from pydantic import Field

from cabs_core.pipeline.artifacts import ArtifactStore
from cabs_dagster.chain_runner import ChainRunner
from cabs_dagster.metadata import guarded
from cabs_dagster.names import named
from cabs_dagster.resources import cabs_of


class PoolChainConfig(dg.Config):
    """Launchpad settings of `pool_chain`."""

    pool: str = Field("demo", description="Name of the pool; a shipped one is chosen by this.")
    rhos: list[float] = Field([], description="These cost sensitivities only. Empty: all of the pool's.")
    policies: list[str] = Field([], description="These policies only. Empty: all of the pool's.")
    force: bool = Field(False, description="Compute everything again although nothing changed.")


def play_chain(context: dg.OpExecutionContext, config: PoolChainConfig) -> None:
    """Make what is missing or out of date of a pool's chain, from its table to its report.

    Each part is a run of its own, as with `cabs run`. With `force` the parts that are up to date are made
    again, too. Nothing is promoted. A pool of which calls must still be paid for is refused.
    """
    from cabs_core.data.pools.registry import active_pool  # noqa: PLC0415  (loading stays quick)
    from cabs_core.pipeline.commands.options import chosen_policies, parse_rhos  # noqa: PLC0415  (quick loading)

    with guarded():
        pool_file = active_pool(config.pool)
        runner = NestedRunner(context, cabs_of(context).store())
        runner.run_pool(
            pool_file,
            rhos=parse_rhos(",".join(map(str, config.rhos)), pool_file.pool.replay.rhos),
            policies=chosen_policies(config.policies, pool_file.pool),
            force=config.force,
        )
    context.add_output_metadata({"runs": len(runner.launched), "pool": config.pool})


class NestedRunner(ChainRunner):
    """Runner of a chain within a step of another run: each job is a run of its own in the same process.

    The jobs are those of the code location that the step belongs to. A chain with calls that are not paid for
    yet is refused.
    """

    pays = False

    def __init__(self, context: dg.OpExecutionContext, store: ArtifactStore):
        super().__init__(context.instance, notify=context.log.info, store=store)
        self._repository = context.repository_def
        # nothing runs a part again by itself: the run around the part does
        self._tags = {"cabs/within": context.run_id, "dagster/max_retries": "0"}

    def _executed(
        self,
        name: str,
        partition: str,
        assets: list[dg.AssetKey],
        config: Mapping[str, Any],
        tags: Mapping[str, str],
    ) -> dg.ExecuteInProcessResult:
        """Execute a job of the code location in this process, with a tag that names the run around it.

        A job that fails raises nothing: the result says so.

        Args:
            name: short name of the job.
            partition: key of the partition, or '' for none.
            assets: keys of the assets to make.
            config: run configuration.
            tags: further tags of the run.

        Raises:
            DagsterExecutionInterruptedError: the job's run was canceled.
        """
        run_id = str(uuid.uuid4())
        result = self._repository.get_job(named(name)).execute_in_process(
            instance=self.instance,
            partition_key=partition or None,
            asset_selection=assets,
            run_config=dict(config),
            tags={**tags, **self._tags},
            raise_on_error=False,
            run_id=run_id,
        )
        run = self.instance.get_run_by_id(run_id)
        if run is not None and run.status == dg.DagsterRunStatus.CANCELED:
            # Dagster ended the part and goes on; the interrupt was for the whole chain
            raise dg.DagsterExecutionInterruptedError
        return result
