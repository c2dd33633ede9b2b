"""Running the chain of a pool against the instance, stage after stage, making only what is not there.

What belongs here: turning the planner's answers into runs of the jobs. What does not: printing (see `cli`).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from cabs_core.errors import CabsError
from cabs_core.pools import PoolFile
from cabs_dagster import jobs
from cabs_dagster.checks.again import due_again, play_again
from cabs_dagster.checks.results import PLAUSIBLE, REPRODUCIBLE
from cabs_dagster.checks.traces import TRACE
from cabs_dagster.executors import executor_name
from cabs_dagster.external import observe, results_observations
from cabs_dagster.launcher import WORKER_TAG, worker_tag
from cabs_dagster.partitions import grid_key, register
from cabs_dagster.planning import Chain
from cabs_dagster.specs import STAGE_TAG
from cabs_dagster.stages import POOL_STAGES, Target
from cabs_dagster.storage import ArtifactStore

#: Seconds after which long work says how far it is.
_SILENCE = 10.0
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


class RunFailed(CabsError):
    """A run did not finish; the message holds what the failing steps said."""


@dataclass(frozen=True)
class Step:
    """One run to be launched."""

    job: str
    partition: str | dg.MultiPartitionKey | None
    assets: tuple[dg.AssetKey, ...]
    text: str


@dataclass
class Progress:
    """What happened, for the caller to print. `notify` gets (event, text, seconds)."""

    notify: Callable[[str, str, float], None] = lambda event, text, seconds: None
    launched: list[Step] = field(default_factory=list)
    run_ids: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


def reconstruct(name: str, assets: list[list[str]], verify: bool = False) -> dg.JobDefinition:
    """The job `name` cut to some assets, for the processes of the multiprocess and Ray executors."""
    from cabs_dagster.build import build_defs

    return _subset(build_defs(), name, tuple(dg.AssetKey(key) for key in assets), verify)


def _subset(
    defs: dg.Definitions, name: str, assets: tuple[dg.AssetKey, ...], verify: bool
) -> dg.JobDefinition:
    """The job cut to some assets with their checks; replays with the one that plays a trial again if `verify`."""
    job = defs.resolve_job_def(name)
    if not assets:
        return job
    checks = None
    if name == jobs.REPLAY and not verify:
        checks = {dg.AssetCheckKey(key, check) for key in assets for check in (TRACE, PLAUSIBLE)}
    return job.get_subset(asset_selection=set(assets), asset_check_selection=checks)


def keep_out_of_collections() -> None:
    """Leave what lives as long as this process (definitions, modules) out of garbage collections from now on.

    Every full collection of a run would look at all of them again. What a run allocates is mostly freed without any:
    collections are rarer, too.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


class Runner:
    """Launches runs of one code location in this process.

    Args:
        defs: definitions; default: freshly built.
        store: artifact store of the planner; must be where the definitions' resource writes.
        verify: play one trial of every replay again (check `reproducible`) unless that was done. With the executor
            `in_process` that comes after the replays, several trials at once; with others it is part of their runs.
    """

    def __init__(
        self,
        instance: dg.DagsterInstance,
        *,
        defs: dg.Definitions | None = None,
        store: ArtifactStore | None = None,
        progress: Progress | None = None,
        verify: bool = True,
    ):
        if defs is None:
            from cabs_dagster.build import build_defs

            defs = build_defs()
        self.defs, self.instance, self.verify = defs, instance, verify
        self.store = store or ArtifactStore()
        self.progress = progress or Progress()
        self._subsets: dict[tuple, dg.JobDefinition] = {}

    def run_pool(
        self,
        pool_file: PoolFile,
        *,
        rhos: Iterable[float] = (),
        policies: Iterable[str] = (),
        force: bool = False,
        report: bool = True,
        tags: dict[str, str] | None = None,
    ) -> Progress:
        """Make whatever of the pool's chain is missing or out of date.

        Raises:
            RunFailed: a run failed; what was finished before stays finished.
        """
        pool = pool_file.pool
        rhos, policies = tuple(rhos) or pool.replay.rhos, tuple(policies) or pool.policies
        register(self.instance, [pool])
        observe(self.instance, Chain(self.store, pool_file))
        tags = {"cabs/pool": pool.name, **(tags or {})}
        with self._timed("prepare"):
            self._prepare(pool_file, force, tags)
        failures, different = [], []
        with self._timed("replay"):
            for number, rho in enumerate(rhos, 1):
                try:
                    self._replay(pool_file, rho, policies, force, tags, f"{number}/{len(rhos)}")
                except RunFailed as error:  # the other partitions do not depend on this one
                    failures.append(str(error))
                    self.progress.notify("failed", _first_lines(str(error)), 0.0)
        if self.verify:
            with self._timed("one trial of each again"):
                different = self._play_again(pool_file, rhos, policies, tags)
        if report:
            with self._timed("marts and report"):
                self._marts(tags)
                self._pages(pool_file, tags)
        texts = []
        if failures:
            texts.append(f"{len(failures)} of {len(rhos)} partitions are incomplete:\n" + "\n".join(failures))
        if different:
            lines = "\n".join(f"  {text}" for text in different)
            texts.append(f"{len(different)} failed when one trial was played again:\n{lines}")
        if texts:
            raise RunFailed("\n".join(texts))
        return self.progress

    def _prepare(self, pool_file: PoolFile, force: bool, tags: dict[str, str]) -> None:
        chain = Chain(self.store, pool_file)
        names = list(POOL_STAGES)
        states = [chain.status(chain.stage(name)) for name in names]
        recorded = [self._recorded(dg.AssetKey(name), pool_file.pool.name) for name in names]
        first = next(
            (i for i, (s, r) in enumerate(zip(states, recorded)) if force or s.state != "fresh" or not r),
            None,
        )
        if first is None:
            self.progress.notify("fresh", f"{', '.join(names)}: nothing changed", 0.0)
            return
        for name in names[first:]:  # one run a stage: each starts from what the one before really made
            status = Chain(self.store, pool_file).status(chain.stage(name))
            if (
                status.state == "fresh"
                and self._recorded(dg.AssetKey(name), pool_file.pool.name)
                and not force
            ):
                continue
            why = "; ".join(status.reasons[:3]) or (
                "forced" if force else "not recorded in this Dagster instance"
            )
            step = Step(jobs.PREPARE, pool_file.pool.name, (dg.AssetKey(name),), f"{name} ({why})")
            self._launch(step, tags, [name] if force else [])

    def _replay(
        self, pool_file, rho: float, policies, force: bool, tags: dict[str, str], number: str
    ) -> None:
        chain = Chain(self.store, pool_file)
        partition = grid_key(pool_file.pool.name, rho)
        stale = []
        for target in chain.replays([rho], policies):
            key = dg.AssetKey(target.name.split("/"))
            if force or chain.status(target).state != "fresh" or not self._recorded(key, str(partition)):
                stale.append(key)
        if not stale:
            self.progress.notify(
                "fresh", f"{number} rho {rho:g}: {len(policies)} policies, nothing changed", 0.0
            )
            return
        text = f"{number} rho {rho:g}: {len(stale)} of {len(policies)} policies"
        families = sorted(set(self._replay_ops(stale)))
        self._launch(Step(jobs.REPLAY, partition, tuple(stale), text), tags, families if force else [])

    def _play_again(self, pool_file: PoolFile, rhos, policies, tags: dict[str, str]) -> list[str]:
        """Play one trial of each replay again; returns what was not the same."""
        chain = Chain(self.store, pool_file)
        due = due_again(self.instance, chain, rhos, policies)
        if not due:
            return []
        started = said = time.perf_counter()
        self.progress.notify("start", f"one trial of {len(due)} replays again", 0.0)
        done, problems = 0, []
        for played, failed in play_again(chain, due):
            problems += failed
            if played:
                problems += self._verdicts([target for target, _ in played], tags)
            done += len(played) + len(failed)
            if time.perf_counter() - said > _SILENCE and done < len(due):
                said = time.perf_counter()
                self.progress.notify("progress", str(done), 0.0)
        self.progress.notify("done", f"{len(due)} replays", time.perf_counter() - started)
        return problems

    def _verdicts(self, targets: list[Target], tags: dict[str, str]) -> list[str]:
        """A run that tells Dagster what the records of one partition's replays hold; returns what did not pass."""
        keys = {dg.AssetCheckKey(target.key, REPRODUCIBLE) for target in targets}
        ops = {name: {"config": {"verdicts": True}} for name in self._replay_ops(t.key for t in targets)}
        partition = targets[0].partition
        run_id, events, failures = self.run_checks(jobs.REPLAY, partition, keys, tags, {"ops": ops})
        self.progress.run_ids.append(run_id)
        wanted = dg.DagsterEventType.ASSET_CHECK_EVALUATION.value
        found = [e.asset_check_evaluation_data for e in events if e.event_type_value == wanted]
        return [
            f"{one.asset_key.to_user_string()} [{partition}]: {one.description}"
            for one in found
            if not one.passed
        ] + ([] if len(found) == len(keys) else [text.strip() for text in failures])

    def _replay_ops(self, keys: Iterable[dg.AssetKey]) -> Iterator[str]:
        from cabs_core.catalog import policy_name, policy_record

        for key in keys:
            yield f"replay_{policy_record(policy_name(key.path[-1])).family}"

    def _marts(self, tags: dict[str, str]) -> None:
        from cabs_dagster.sql import SqlFreshness, model_key, sql_models

        freshness = SqlFreshness(self.store)
        stale = freshness.stale()
        models = {model.name: model_key(model) for model in sql_models()}
        unrecorded = [
            n for n, key in models.items() if self.instance.get_latest_materialization_event(key) is None
        ]
        if not stale and not unrecorded and freshness.database.is_file():
            for event in results_observations(self.instance, self.store):
                self.instance.report_runless_asset_event(event)
            self.progress.notify("fresh", f"{len(models)} marts: nothing changed", 0.0)
            return
        self._launch(
            Step(jobs.MARTS, None, (), f"{len(set(stale) | set(unrecorded))} of {len(models)} marts"),
            tags,
            [],
        )

    def _pages(self, pool_file: PoolFile, tags: dict[str, str]) -> None:
        from cabs_dagster.pages import page_fresh

        name = pool_file.pool.name
        for job, asset, partition in ((jobs.REPORT, "report", name), (jobs.LEADERBOARD, "leaderboard", None)):
            if page_fresh(self.store, partition) and self._recorded(dg.AssetKey(asset), partition):
                self.progress.notify("fresh", f"{asset}: nothing changed", 0.0)
                continue
            self._launch(Step(job, partition, (dg.AssetKey(asset),), asset), tags, [])

    def _recorded(self, key: dg.AssetKey, partition: str | None) -> bool:
        """Whether the instance knows of a materialization, so that the UI shows what is on disk."""
        if partition is None:
            return self.instance.get_latest_materialization_event(key) is not None
        return partition in self._materialized(key)

    def _materialized(self, key: dg.AssetKey) -> set[str]:
        return self.instance.get_materialized_partitions(key)

    def _launch(self, step: Step, tags: dict[str, str], forced_ops: list[str]) -> None:
        started = time.perf_counter()
        self.progress.notify("start", step.text, 0.0)
        config: dict[str, Any] = dict(QUIET)
        if forced_ops:
            config["ops"] = {name: {"config": {"force": True}} for name in forced_ops}
        tags = {**tags, WORKER_TAG: worker_tag()}
        if executor_name() == "in_process":
            run_id, failures = self._in_process(step, tags, config)
        else:
            run_id, failures = self._spawned(step, tags, config)
        seconds = time.perf_counter() - started
        self.progress.launched.append(step)
        self.progress.run_ids.append(run_id)
        if failures:
            text = "\n".join(failures)
            raise RunFailed(f"run {run_id} of {step.job} ({step.text}) failed:\n{text}")
        self.progress.notify("done", step.text, seconds)

    def _in_process(self, step: Step, tags, config) -> tuple[str, list[str]]:
        identity = (step.job, step.assets)
        if identity not in self._subsets:
            self._subsets[identity] = _subset(self.defs, step.job, step.assets, verify=False)
        partition = None if step.partition is None else str(step.partition)
        run_id, _, failures = self._here(self._subsets[identity], partition, tags, config)
        return run_id, failures

    def run_checks(
        self,
        job: str,
        partition: str | None,
        keys: set[dg.AssetCheckKey],
        tags: dict[str, str],
        config: dict[str, Any] | None = None,
    ):
        """(run id, events, what failing steps said) of a run of nothing but these checks, in this process."""
        identity = (job, frozenset(keys))
        if identity not in self._subsets:
            whole = self.defs.resolve_job_def(job)
            self._subsets[identity] = whole.get_subset(asset_selection=set(), asset_check_selection=keys)
        tags = {**tags, STAGE_TAG: "checks", WORKER_TAG: worker_tag()}
        return self._here(self._subsets[identity], partition, tags, {**QUIET, **(config or {})})

    def _here(self, job: dg.JobDefinition, partition: str | None, tags, config):
        """(run id, events, what failing steps said) of a run in this process."""
        result = job.execute_in_process(
            run_config=config,
            instance=self.instance,
            partition_key=partition,
            raise_on_error=False,
            tags=tags,
        )
        return result.run_id, result.all_events, [] if result.success else failure_texts(result.all_events)

    def _spawned(self, step: Step, tags, config) -> tuple[str, list[str]]:
        job = dg.build_reconstructable_job(
            "cabs_dagster.running",
            "reconstruct",
            reconstructable_kwargs={
                "name": step.job,
                "assets": [list(key.path) for key in step.assets],
                "verify": self.verify,
            },
        )
        if step.partition is not None:
            definition = self.defs.resolve_job_def(step.job).partitions_def
            assert definition is not None
            tags = tags | dict(definition.get_tags_for_partition_key(str(step.partition)))
        with dg.execute_job(job, instance=self.instance, run_config=config, tags=tags) as result:
            return result.run_id, [] if result.success else failure_texts(result.all_events)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.progress.seconds[name] = self.progress.seconds.get(name, 0.0) + time.perf_counter() - started


def failure_texts(events) -> list[str]:
    """What the failing steps of a run said, without stack traces."""
    texts = []
    for event in events:
        if event.is_step_failure:
            data = event.step_failure_data
            description = getattr(data.user_failure_data, "description", None)
            if not description and data.error is not None:
                cause = data.error
                while cause.cause is not None:
                    cause = cause.cause
                description = _first_lines(cause.message)
            texts.append(f"  {event.step_key}: {description}")
        elif event.is_job_failure and not texts and event.job_failure_data.error:
            texts.append(f"  {event.job_failure_data.error.message.strip()}")
    return texts or ["  the run failed without saying why; see it in the UI"]


def _first_lines(text: str, count: int = 12) -> str:
    lines = text.strip().splitlines()
    return "\n    ".join(lines[:count] + (["..."] if len(lines) > count else []))
