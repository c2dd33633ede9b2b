"""Running the chain of a pool for `cabs run`: ask the planner what is stale, and let Dagster execute that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import click
import dagster as dg

from cabs_core.artifacts import POOL_STAGES, ArtifactStore, Chain
from cabs_core.atomic import remove_leftovers
from cabs_core.chain.pages import page_parts
from cabs_core.errors import CabsError
from cabs_core.pool_files import PoolFile
from cabs_core.replay.compile_ahead import start_compiling, stop_compiling
from cabs_dagster import jobs
from cabs_dagster.cli.interrupt import until_interrupted
from cabs_dagster.due import MARTS_AROUND
from cabs_dagster.failures import run_texts
from cabs_dagster.instance import PACKAGES, open_instance
from cabs_dagster.instance.recover import PROCESS_TAG, end_own_runs, process_tag, recover
from cabs_dagster.names import key as key_of
from cabs_dagster.names import step
from cabs_dagster.partitions import due_in, grid_key, observe, register
from cabs_dagster.sensors import POOL_TAG
from dbt_like_sql import list_models

QUIET: dict[str, Any] = {"loggers": {"progress": {}}}


class RunFailed(CabsError):
    """A run did not finish; the message holds what the failing steps said."""


def job(name: str) -> dg.JobDefinition:
    """A job of the code location, for every process that executes a part of it."""
    from cabs_dagster.definitions import defs

    return defs.resolve_job_def(name)


def run_until_interrupted(work: Callable[[Runner], None]) -> Runner:
    """Let a runner work in the instance of this machine. SIGINT and SIGTERM mark its runs as failed, and end
    the process.
    """

    def say(text: str) -> None:
        click.echo(f"  {text}", err=True)

    with open_instance() as instance:
        for run_id in recover(instance):
            say(f"run {run_id} had been killed: marked as failed")
        runner = Runner(instance, notify=say)
        remove_leftovers(runner.store.root)

        def tidy() -> None:
            stop_compiling()
            end_own_runs(instance)

        until_interrupted(lambda: work(runner), tidy)
    return runner


class Runner:
    """Executes jobs of the code location in this process (or by the executor that `CABS_EXECUTOR` names).

    Attributes:
        launched: (job, partition, assets) of every run.
    """

    #: whether calls that are missing are paid for
    pays = True

    def __init__(
        self,
        instance: dg.DagsterInstance,
        *,
        notify: Callable[[str], None] = lambda text: None,
        store: ArtifactStore | None = None,
    ):
        self.instance, self.notify, self.store = instance, notify, store or ArtifactStore()
        self.launched: list[tuple[str, str, tuple[str, ...]]] = []

    def run_pool(
        self,
        pool_file: PoolFile,
        *,
        rhos: Iterable[float] = (),
        policies: Iterable[str] = (),
        force: bool = False,
        report: bool = True,
    ) -> None:
        """Make whatever of the pool's chain is missing or out of date.

        Raises:
            RunFailed: a run failed; what was finished before stays finished.
        """
        name, policies = pool_file.pool.name, tuple(policies)
        register(self.instance, self.store, name)
        for change in observe(self.instance, due_in(self.instance, self.store)).get(name, ()):
            self.notify(f"changed since the last run: {change}")
        try:
            self._stages(pool_file, policies, force)
        except RunFailed:
            self._old_results(name, report)
            raise
        rhos = () if pool_file.pool.logged else tuple(rhos) or pool_file.pool.replay.rhos
        failures = []
        for number, rho in enumerate(rhos, 1):
            try:
                self._replay(pool_file, rho, policies, force, f"{number}/{len(rhos)}")
            except RunFailed as error:  # the other rhos do not depend on this one
                failures.append(str(error))
        if failures:
            self._old_results(name, report)
            texts = "\n".join(failures)
            raise RunFailed(
                f"{len(failures)} of {len(rhos)} rhos are incomplete, so there is no new verdict:\n{texts}"
            )
        if report:
            self._results(name)

    def _old_results(self, pool: str, report: bool) -> None:
        """A report that is there says that its figures are of older data now, and no longer gives a
        verdict.
        """
        if report and self.store.record(page_parts(pool)) is not None:
            with suppress(RunFailed):  # what failed first is told
                self._results(pool)

    def deploy_pool(self, pool_file: PoolFile) -> dict[str, Any]:
        """Make the pool's stages as far as they are out of date, then `deployed_router`; what it found.

        Raises:
            RunFailed: a run failed.
        """
        name = pool_file.pool.name
        register(self.instance, self.store, name)
        self._stages(pool_file, (), False)
        self.execute(jobs.DEPLOY, name, ["deployed_router"], {})
        made = dg.AssetRecordsFilter(key_of("deployed_router"), asset_partitions=[name])
        (record,) = self.instance.fetch_materializations(made, limit=1).records
        event = record.asset_materialization
        assert event is not None
        return {key: value.value for key, value in event.metadata.items()}

    def _stages(self, pool_file: PoolFile, policies: Sequence[str], force: bool) -> None:
        chain, name = Chain(self.store, pool_file).over(policies), pool_file.pool.name
        wanted = [s for s in chain.stages if not (policies and POOL_STAGES[s].chooses)]
        statuses = {s: chain.status(chain.stage(s)) for s in wanted}
        due = [s for s in wanted if self._due(s, name, statuses[s].state == "fresh", force)]
        if not due:
            self.notify(f"{', '.join(chain.stages)}: nothing changed")
            return
        if "tuning" in due:
            pool = pool_file.pool
            start_compiling(policies or pool.policies, len(pool.arm_names() or ()), self.notify)
        why = "; ".join(statuses[due[0]].reasons[:3])
        self.notify(
            f"{', '.join(due)} ({why or ('forced' if force else 'not recorded in this Dagster instance')})"
        )
        config: dict[str, dict[str, Any]] = {op: {"force": True} for op in due if force}
        if policies and "tuning" in due:
            config.setdefault("tuning", {})["policies"] = list(policies)
        for named, part in (
            (jobs.COLLECT, [s for s in due if s in jobs.COLLECTED]),
            (jobs.PREPARE, [s for s in due if s not in jobs.COLLECTED]),
        ):
            if part and named == jobs.COLLECT and not self.pays:
                raise RunFailed(
                    f"{', '.join(part)} of pool {name} are due, and calls cost money: the job "
                    f"{jobs.COLLECT} or `cabs collect {name}` pays for them"
                )
            if part:
                ops = {step(op): {"config": c} for op, c in config.items() if op in part}
                self.execute(named, name, part, {"ops": ops})

    def _replay(
        self, pool_file: PoolFile, rho: float, policies: Sequence[str], force: bool, number: str
    ) -> None:
        chain, key = Chain(self.store, pool_file).over(policies), grid_key(pool_file.pool.name, rho)
        stale = sum(chain.status(target).state != "fresh" for target in chain.replays([rho], policies))
        if not self._due("replay", str(key), not stale, force):
            self.notify(f"{number} rho {rho:g}: nothing changed")
            return
        self.notify(f"{number} rho {rho:g}: {stale} of {len(policies or pool_file.pool.policies)} policies")
        config = {"policies": list(policies), "force": force}
        self.execute(jobs.REPLAY, key, ["replay"], {"ops": {step("replay"): {"config": config}}})

    def _results(self, pool: str) -> None:
        due = due_in(self.instance, self.store)
        observe(self.instance, due, pending=False)
        models = [
            key
            for m in list_models()
            if self._due(key := f"{m.layer}/{m.name}", None, m.name not in due.models)
        ]
        pages = [
            page
            for page, partition in (("report", pool), ("leaderboard", None))
            if models or self._due(page, partition, not due.page(partition))
        ]
        if models or pages:
            self.notify(", ".join([f"{len(models)} SQL models", *pages]))
            self.execute(jobs.RESULTS, pool, [*models, *(MARTS_AROUND if models else ()), *pages], {})
            return
        for text in due.marts.left_out():
            self.notify(text)
        self.notify("marts, report, leaderboard: nothing changed")

    def _due(self, asset: str, partition: str | None, fresh: bool, force: bool = False) -> bool:
        """Whether an asset is to be made: it is not fresh, or not known in this instance, whose UI would not
        show it.
        """
        if force or not fresh:
            return True
        key = key_of(asset)
        if partition is None:
            return self.instance.get_latest_materialization_event(key) is None
        return partition not in self.instance.get_materialized_partitions(key)

    def execute(
        self,
        name: str,
        partition: str | dg.MultiPartitionKey,
        assets: Iterable[str],
        config: Mapping[str, Any],
    ) -> None:
        """One run of a job, cut to some of its assets.

        Raises:
            RunFailed: with what the failing steps said.
        """
        assets = tuple(assets)
        self.launched.append((name, str(partition), assets))
        tags = {POOL_TAG: str(partition).split("|")[0], PROCESS_TAG: process_tag()}
        with self._executed(
            name, str(partition), [key_of(asset) for asset in assets], config, tags
        ) as result:
            if not result.success:
                texts = [f"  {text}\n" for text in run_texts(result.all_events)]
                raise RunFailed("".join(texts) + f"  (run {result.run_id} of {name} [{partition}])")

    def _executed(
        self,
        name: str,
        partition: str,
        assets: list[dg.AssetKey],
        config: Mapping[str, Any],
        tags: Mapping[str, str],
    ) -> AbstractContextManager[dg.JobExecutionResult | dg.ExecuteInProcessResult]:
        recipe = dg.build_reconstructable_job(
            "cabs_dagster.cli.runner",
            "job",
            reconstructable_kwargs={"name": name},
            reconstructor_working_directory=str(PACKAGES),  # else the current directory goes on sys.path
        )
        definition = job(name).partitions_def
        assert definition is not None
        return dg.execute_job(
            recipe,
            instance=self.instance,
            asset_selection=assets,
            tags={**tags, **definition.get_tags_for_partition_key(partition)},
            run_config=QUIET | dict(config),
        )


class InRun(Runner):
    """Executes jobs of the code location within a step of another run, each as a run of its own in the same
    process.
    """

    pays = False

    def __init__(self, context: dg.OpExecutionContext, store: ArtifactStore):
        super().__init__(context.instance, notify=context.log.info, store=store)
        self._within = {"cabs/within": context.run_id}

    def _executed(
        self,
        name: str,
        partition: str,
        assets: list[dg.AssetKey],
        config: Mapping[str, Any],
        tags: Mapping[str, str],
    ) -> AbstractContextManager[dg.JobExecutionResult | dg.ExecuteInProcessResult]:
        result = job(name).execute_in_process(
            instance=self.instance,
            partition_key=partition,
            asset_selection=assets,
            run_config=dict(config),
            tags={**tags, **self._within},
            raise_on_error=False,
        )
        return nullcontext(result)
