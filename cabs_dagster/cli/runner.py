"""Running the chain of a pool for `cabs run` and `cabs deploy`, in the process of the command."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import click
import dagster as dg

from cabs_core.base.atomic import remove_leftovers
from cabs_core.base.drawing import drawing_process
from cabs_core.evaluation.replay.compile_ahead import stop_compiling
from cabs_dagster.chain_runner import ChainRunner
from cabs_dagster.cli.interrupt import until_interrupted
from cabs_dagster.instance import PACKAGES, open_instance
from cabs_dagster.instance.recover import end_own_runs, recover
from cabs_dagster.job_names import RESULTS

#: config of a run that prints by the logger `progress` alone
QUIET: dict[str, Any] = {"loggers": {"progress": {}}}


@cache
def job(name: str) -> dg.JobDefinition:
    """Return a job of the project's code location. Processes that execute a part of a job call this, too."""
    from cabs_dagster.definitions import defs  # with the definitions in `defs/`

    return defs.resolve_job_def(name)


def run_until_interrupted(work: Callable[[CommandRunner], None]) -> CommandRunner:
    """Call `work` with a runner on this machine's Dagster instance, and return the runner.

    Runs of killed processes are marked as failed first, and temporary files that ended processes left in the
    artifact store are deleted. Figures are drawn by a process beside this one. SIGINT and SIGTERM mark the
    runner's runs as failed and end the process.
    """

    def say(text: str) -> None:
        click.echo(f"  {text}", err=True)

    with open_instance() as instance, drawing_process():
        for run_id in recover(instance):
            say(f"run {run_id} had been killed: marked as failed")
        runner = CommandRunner(instance, notify=say)
        remove_leftovers(runner.store.root)

        def tidy() -> None:
            stop_compiling()
            end_own_runs(instance)

        until_interrupted(lambda: work(runner), tidy)
    return runner


class CommandRunner(ChainRunner):
    """Runner of a chain in the process of a command, or on the executor that `CABS_EXECUTOR` names."""

    def make_results(self, first: str = "") -> None:
        """Make the SQL models, reports and the leaderboard that can be made now, as `ChainRunner` does.

        Before that, all objects that exist are hidden from Python's garbage collector (`gc.freeze`), because
        the search through them at the end of the process takes 2.5 s. The objects are not hidden if DuckDB is
        loaded already, since DuckDB prints a warning if its objects are not searched.

        Args:
            first: the pool whose report is made although other parts of the pool are due or under way. Empty:
                no pool comes first.

        Raises:
            RunFailed: a run failed.
        """
        if "duckdb" not in sys.modules:
            gc.freeze()
        super().make_results(first)

    def _executed(
        self,
        name: str,
        partition: str,
        assets: list[dg.AssetKey],
        config: Mapping[str, Any],
        tags: Mapping[str, str],
    ) -> dg.JobExecutionResult:
        """Execute the assets' steps of a job, and return the result, failed or not.

        The job's executor may start processes, which build the job by `job`. The script of the pages is made
        beside the SQL models.

        Args:
            name: name of the job.
            partition: partition of the job, or "" for a run without a partition.
            assets: the assets to make.
            config: run config, which is added to `QUIET`.
            tags: further tags of the run.
        """
        if name == RESULTS:
            from cabs_core.report.plots.page import bundle_ahead

            bundle_ahead()
        recipe = dg.build_reconstructable_job(
            "cabs_dagster.cli.runner",
            "job",
            reconstructable_kwargs={"name": name},
            reconstructor_working_directory=str(PACKAGES),  # else the current directory goes on sys.path
        )
        definition = job(name).partitions_def
        assert definition is not None
        # results of all pools have no partition if no pool is left
        if partition:
            of_partition = definition.get_tags_for_partition_key(partition)
        else:
            of_partition = {}
        return dg.execute_job(
            recipe,
            instance=self.instance,
            asset_selection=assets,
            tags={**tags, **of_partition},
            run_config=QUIET | dict(config),
        )
