"""Running the chain of a pool for `cabs run`: ask the planner what is stale, and let Dagster execute that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import click
import dagster as dg

from cabs_core.base.atomic import remove_leftovers
from cabs_core.base.errors import CabsError
from cabs_core.data.pool_files import PoolFile
from cabs_core.evaluation.replay.compile_ahead import start_compiling, stop_compiling
from cabs_core.pipeline.artifacts import POOL_STAGES, ArtifactStore
from cabs_core.pipeline.pages import page_parts
from cabs_dagster import jobs
from cabs_dagster.cli.interrupt import until_interrupted
from cabs_dagster.due import KINDS, SOURCE_FILES, Kind, Part, Wanted
from cabs_dagster.failures import run_texts
from cabs_dagster.instance import PACKAGES, open_instance
from cabs_dagster.instance.recover import PROCESS_TAG, end_own_runs, process_tag, recover
from cabs_dagster.names import key as key_of
from cabs_dagster.names import step
from cabs_dagster.partitions import due_in, grid_key, observe, register
from cabs_dagster.sensors import POOL_TAG

#: what is made of one pool, and what is made of all
MADE, RESULTS = KINDS[:-1], KINDS[-1:]
_NAMES: dict[Kind, str] = {"stages": "stages", "replay": "replays", "results": "marts, report, leaderboard"}
QUIET: dict[str, Any] = {"loggers": {"progress": {}}}


class RunFailed(CabsError):
    """A run did not finish; the message holds what the failing steps said."""


def job(name: str) -> dg.JobDefinition:
    """A job of the code location, for every process that executes a part of it."""
    from cabs_dagster.definitions import defs

    return defs.resolve_job_def(name)


def run_until_interrupted(work: Callable[[Runner], None]) -> Runner:
    """Let a runner work in this machine's instance. SIGINT and SIGTERM fail its runs and end the process."""

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
        name = pool_file.pool.name
        register(self.instance, self.store, name)
        for change in self._observe(sources=False).get(name, ()):
            self.notify(f"changed since the last run: {change}")
        wanted = Wanted(tuple(rhos), tuple(policies), force, self.pays, True, self._known)
        results = Wanted(alone=True, known=self._known)
        try:
            self._make(pool_file, wanted, MADE)
        except RunFailed:
            self._observe()  # what is made from a part that failed waits for it
            # a report that is there says that its figures are of older data now, and gives no verdict
            if report and self.store.record(page_parts(name)) is not None:
                with suppress(RunFailed):  # what failed first is told
                    self._make(pool_file, results, RESULTS)
            raise
        if report:
            self._make(pool_file, results, RESULTS)

    def deploy_pool(self, pool_file: PoolFile) -> dict[str, Any]:
        """Make the pool's stages as far as they are out of date, then `deployed_router`; what it found.

        Raises:
            RunFailed: a run failed.
        """
        name = pool_file.pool.name
        register(self.instance, self.store, name)
        self._make(pool_file, Wanted(pays=self.pays, alone=True, known=self._known), ("collect", "stages"))
        self.execute(jobs.DEPLOY, name, ["deployed_router"], {})
        made = dg.AssetRecordsFilter(key_of("deployed_router"), asset_partitions=[name])
        (record,) = self.instance.fetch_materializations(made, limit=1).records
        event = record.asset_materialization
        assert event is not None
        return {key: value.value for key, value in event.metadata.items()}

    def _make(self, pool_file: PoolFile, wanted: Wanted, kinds: Sequence[Kind]) -> None:
        """Make what is due of these kinds, in their order.

        Raises:
            RunFailed: a run failed, or calls would have to be paid for.
        """
        name, done = pool_file.pool.name, {kind for kind in KINDS if kind not in kinds}
        unpaid = due_in(self.instance, self.store).unpaid(name) if MADE == kinds and not self.pays else []
        if unpaid:
            raise RunFailed(
                f"{', '.join(unpaid)} of pool {name} are due, and calls cost money: the job "
                f"{jobs.COLLECT} or `cabs collect {name}` pays for them"
            )
        not_joined = ""
        while len(done) < len(KINDS):
            due = due_in(self.instance, self.store)
            parts = due.next_parts(name, done, wanted)
            if kinds == RESULTS and not any(SOURCE_FILES in part.assets for part in parts):
                observe(self.instance, due, pending=False)
            next_kind = KINDS.index(parts[0].kind) if parts else len(KINDS)
            idle = [kind for kind in KINDS[:next_kind] if kind not in done]
            done |= {*idle, *KINDS[next_kind : next_kind + 1]}
            for text in due.marts.left_out() if "results" in idle else ():
                self.notify(text)
            if names := [_NAMES[kind] for kind in idle if kind in _NAMES]:
                self.notify(f"{', '.join(names)}: nothing changed")
            of = {part: f"{number}/{len(parts)} " for number, part in enumerate(parts, 1)}
            failures = [text for part in parts if (text := self._made(part, pool_file, wanted, of[part]))]
            if failures and parts[0].kind == "join":  # the rest does not depend on it
                not_joined = "\n".join(failures)
                continue
            if failures and parts[0].kind == "replay":
                rhos = len(wanted.rhos or pool_file.pool.replay.rhos)
                head = f"{len(failures)} of {rhos} rhos are incomplete, so there is no new verdict:"
                failures = [head, *failures]
            if failures:
                raise RunFailed("\n".join(filter(None, [not_joined, *failures])))
        if not_joined:
            raise RunFailed(not_joined)

    def _observe(self, *, sources: bool = True) -> dict[str, list[str]]:
        return observe(self.instance, due_in(self.instance, self.store), sources=sources)

    def _made(self, part: Part, pool_file: PoolFile, wanted: Wanted, number: str) -> str:
        """Run a part of a pool's chain; empty, or what failed. number: such as `1/3 `, of replays."""
        pool, config = pool_file.pool, dict[str, dict[str, Any]]()
        partition: str | dg.MultiPartitionKey = pool.name
        what = part.why
        if part.rho is not None:
            partition = grid_key(pool.name, part.rho)
            config["replay"] = {"policies": list(wanted.policies), "force": wanted.force}
            what = f"{number}rho {part.rho:g}: {part.why}"
        elif part.due:
            why = part.why or ("forced" if wanted.force else "not recorded in this Dagster instance")
            what = f"{', '.join(part.assets)} ({why})"
            stages = [status.target.stage for status in part.due]
            config = {stage: {"force": True} for stage in stages if wanted.force}
            if by_policy := [stage for stage in stages if POOL_STAGES[stage].by_policy]:
                start_compiling(wanted.policies or pool.policies, len(pool.arm_names() or ()), self.notify)
            for stage in by_policy if wanted.policies else ():
                config.setdefault(stage, {})["policies"] = list(wanted.policies)
        self.notify(what)
        ops = {step(asset): {"config": settings} for asset, settings in config.items()}
        try:
            self.execute(jobs.JOB_OF[part.kind], partition, part.assets, {"ops": ops} if ops else {})
        except RunFailed as error:  # other rhos do not depend on this one
            return str(error)
        return ""

    def _known(self, asset: str, partition: str | None) -> bool:
        """Whether the instance has seen an asset made: else its UI would not show it."""
        key = key_of(asset)
        if partition is None:
            return self.instance.get_latest_materialization_event(key) is not None
        return partition in self.instance.get_materialized_partitions(key)

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
        result = self._executed(name, str(partition), [key_of(asset) for asset in assets], config, tags)
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
    ) -> dg.JobExecutionResult | dg.ExecuteInProcessResult:
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
    """Executes jobs within a step of another run, each as a run of its own in the same process."""

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
    ) -> dg.JobExecutionResult | dg.ExecuteInProcessResult:
        return job(name).execute_in_process(
            instance=self.instance,
            partition_key=partition,
            asset_selection=assets,
            run_config=dict(config),
            tags={**tags, **self._within},
            raise_on_error=False,
        )
