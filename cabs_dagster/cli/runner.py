"""Running the chain of a pool for `cabs run`: ask the planner what is stale, and let Dagster execute that."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import click
import dagster as dg

from cabs_core.base.atomic import remove_leftovers
from cabs_core.base.errors import CabsError
from cabs_core.data.pool_files import PoolFile
from cabs_core.evaluation.replay.compile_ahead import start_compiling, stop_compiling
from cabs_core.pipeline.artifacts import POOL_STAGES, ArtifactStore
from cabs_core.pipeline.chain_order import DEPLOYED, KINDS, SOURCE_FILES, Kind, Part, Wanted
from cabs_dagster import jobs
from cabs_dagster.cli.interrupt import until_interrupted
from cabs_dagster.failures import run_texts
from cabs_dagster.instance import PACKAGES, open_instance
from cabs_dagster.instance.recover import PROCESS_TAG, end_own_runs, process_tag, recover
from cabs_dagster.metadata import FOUND
from cabs_dagster.names import Location, current, named, step, tag
from cabs_dagster.names import key as key_of
from cabs_dagster.partitions import grid_key, observe, planner_in, register
from cabs_dagster.sensors import POOL_TAG, under_way

#: the kinds of parts that belong to one pool alone
MADE: tuple[Kind, ...] = tuple(kind for kind in KINDS if kind != "results")
_NAMES: dict[Kind, str] = {"stages": "stages", "replay": "replays"}
QUIET: dict[str, Any] = {"loggers": {"progress": {}}}


class RunFailed(CabsError):
    """A run did not finish; the message holds what the failing steps said."""


def job(name: str) -> dg.JobDefinition:
    """Return a job of the current location, for every process that executes a part of it."""
    return _definitions(current()).resolve_job_def(named(name))


@cache
def _definitions(location: Location) -> dg.Definitions:
    if location == Location():
        from cabs_dagster.definitions import defs  # with what is in `defs/`

        return defs
    from cabs_dagster.build import build_defs

    return build_defs()


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
        wanted = Wanted(tuple(rhos), tuple(policies), force, self.pays, alone=True, known=self._known)
        try:
            self._make(pool_file, wanted, MADE)
        except CabsError:
            self._observe()  # what is made from a part that failed waits for it
            if report:
                with suppress(CabsError):  # the first failure is reported
                    self.make_results()
            raise
        if report:
            self.make_results(name)

    def make_results(self, first: str = "") -> None:
        """Make the SQL models, reports and the leaderboard that can be made now.

        Args:
            first: the pool whose parts were made before; see `Planner.next_results`.

        Raises:
            RunFailed: a run failed.
        """
        wanted = Wanted(alone=True, known=self._known)
        requested: set[tuple[str, str]] = set()
        while True:
            planner = planner_in(self.instance, self.store)
            busy = under_way(self.instance, chains=True) - {first}
            parts = planner.next_results(first, wanted, busy)
            parts = [part for part in parts if (part.pool, part.state) not in requested]
            if not any(SOURCE_FILES in part.assets for part in parts):
                observe(self.instance, planner, pending=False)
            if not parts:
                break
            requested |= {(part.pool, part.state) for part in parts}
            if failures := [text for part in parts if (text := self._made(part, None, wanted, ""))]:
                raise RunFailed("\n".join(failures))
        if not requested:
            for text in planner.sql.left_out():
                self.notify(text)
            self.notify("marts, report, leaderboard: nothing changed")

    def deploy_pool(self, pool_file: PoolFile) -> dict[str, Any]:
        """Make the pool's stages as far as they are out of date, compare and promote its router, and return
        what the comparison found.

        Raises:
            RunFailed: a run failed.
        """
        name = pool_file.pool.name
        register(self.instance, self.store, name)
        wanted = Wanted(pays=self.pays, alone=True, known=self._known)
        self._make(pool_file, wanted, ("collect", "stages"))
        events = self.execute(jobs.DEPLOY, name, [DEPLOYED], {})
        (event,) = (e for e in events if e.event_type == dg.DagsterEventType.ASSET_OBSERVATION)
        found = event.asset_observation_data.asset_observation.metadata
        return {key: value.value for key, value in found.items() if key != FOUND}

    def _make(self, pool_file: PoolFile, wanted: Wanted, kinds: Sequence[Kind]) -> None:
        """Make what is due of these kinds, in their order.

        Raises:
            RunFailed: a run failed, or calls would have to be paid for.
        """
        name = pool_file.pool.name
        done = {kind for kind in KINDS if kind not in kinds}
        unpaid: list[str] = []
        if not self.pays and kinds == MADE:
            unpaid = planner_in(self.instance, self.store).unpaid(name)
        if unpaid:
            raise RunFailed(
                f"{', '.join(unpaid)} of pool {name} are due, and calls cost money: the job "
                f"{named(jobs.COLLECT)} or `cabs collect {name}` pays for them"
            )
        not_joined = ""
        while len(done) < len(KINDS):
            parts = planner_in(self.instance, self.store).next_parts(name, done, wanted)
            next_kind = KINDS.index(parts[0].kind) if parts else len(KINDS)
            idle = [kind for kind in KINDS[:next_kind] if kind not in done]
            done |= {*idle, *KINDS[next_kind : next_kind + 1]}
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
        return observe(self.instance, planner_in(self.instance, self.store), sources=sources)

    def _made(self, part: Part, pool_file: PoolFile | None, wanted: Wanted, number: str) -> str:
        """Run a part of a chain and return what failed; empty if it succeeded.

        Args:
            pool_file: the pool of the part; None for results, which are of all pools.
            number: such as `1/3 `, of replays.
        """
        config: dict[str, dict[str, Any]] = {}
        partition: str | dg.MultiPartitionKey = part.pool
        what = part.why
        if part.rho is not None:
            partition = grid_key(part.pool, part.rho)
            config["replay"] = {"policies": list(wanted.policies), "force": wanted.force}
            what = f"{number}rho {part.rho:g}: {part.why}"
        elif part.due:
            why = part.why or ("forced" if wanted.force else "not recorded in this Dagster instance")
            what = f"{', '.join(part.assets)} ({why})"
            stages = [status.target.stage for status in part.due]
            config = {stage: {"force": True} for stage in stages if wanted.force}
            if by_policy := [stage for stage in stages if POOL_STAGES[stage].by_policy]:
                assert pool_file is not None  # results have no stages
                models = len(pool_file.pool.arm_names() or ())
                start_compiling(wanted.policies or pool_file.pool.policies, models, self.notify)
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
    ) -> Sequence[dg.DagsterEvent]:
        """Run a job, cut to some of its assets, and return its events.

        Args:
            partition: empty where all of the assets are unpartitioned.

        Raises:
            RunFailed: with what the failing steps said.
        """
        assets = tuple(assets)
        self.launched.append((name, str(partition), assets))
        tags = {tag(POOL_TAG): str(partition).split("|")[0], PROCESS_TAG: process_tag()}
        result = self._executed(name, str(partition), [key_of(asset) for asset in assets], config, tags)
        if not result.success:
            texts = [f"  {text}\n" for text in run_texts(result.all_events)]
            raise RunFailed("".join(texts) + f"  (run {result.run_id} of {name} [{partition}])")
        return result.all_events

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
        # results of all pools have no partition where no pool is left
        of_partition = definition.get_tags_for_partition_key(partition) if partition else {}
        return dg.execute_job(
            recipe,
            instance=self.instance,
            asset_selection=assets,
            tags={**tags, **of_partition},
            run_config=QUIET | dict(config),
        )


class InRun(Runner):
    """Executes jobs within a step of another run, each as a run of its own in the same process."""

    pays = False

    def __init__(self, context: dg.OpExecutionContext, store: ArtifactStore):
        super().__init__(context.instance, notify=context.log.info, store=store)
        # nothing runs a part again by itself: the run that it is within does
        self._within = {"cabs/within": context.run_id, "dagster/max_retries": "0"}

    def _executed(
        self,
        name: str,
        partition: str,
        assets: list[dg.AssetKey],
        config: Mapping[str, Any],
        tags: Mapping[str, str],
    ) -> dg.JobExecutionResult | dg.ExecuteInProcessResult:
        run_id = str(uuid.uuid4())
        result = job(name).execute_in_process(
            instance=self.instance,
            partition_key=partition or None,
            asset_selection=assets,
            run_config=dict(config),
            tags={**tags, **self._within},
            raise_on_error=False,
            run_id=run_id,
        )
        run = self.instance.get_run_by_id(run_id)
        if run is not None and run.status == dg.DagsterRunStatus.CANCELED:
            # Dagster ended the part and goes on; the interrupt was for the whole chain
            raise dg.DagsterExecutionInterruptedError
        return result
