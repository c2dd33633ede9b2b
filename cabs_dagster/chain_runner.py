"""Running the chain of a pool: a planner names the parts that are due, and Dagster executes their jobs.

`cabs run` and the job `pool_chain` execute jobs in different ways, so each has a subclass of `ChainRunner`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import dagster as dg

from cabs_core.base.errors import CabsError
from cabs_core.data.pool_files import PoolFile
from cabs_core.pipeline.artifacts import POOL_STAGES, ArtifactStore
from cabs_core.pipeline.chain_order import DEPLOYED, KINDS, SOURCE_FILES, Kind, Part, Planner, Wanted
from cabs_dagster import job_names
from cabs_dagster.chain_runs import POOL_TAG, under_way
from cabs_dagster.failures import run_texts
from cabs_dagster.instance.recover import PROCESS_TAG, process_tag
from cabs_dagster.metadata import FOUND, plain_values
from cabs_dagster.names import key as key_of
from cabs_dagster.names import named, step, tag
from cabs_dagster.partitions import grid_key, observe, planner_in, register

#: the kinds of parts that belong to one pool alone
OF_ONE_POOL: tuple[Kind, ...] = tuple(kind for kind in KINDS if kind != "results")
#: words for the kinds of parts of which the user is told that nothing changed
_NAMES: dict[Kind, str] = {"stages": "stages", "replay": "replays"}


class RunFailed(CabsError):
    """Error of a failed run, with the messages of its failed steps, or of due calls that are not paid for."""


@dataclass(frozen=True)
class _Request:
    """The run that makes a part of a chain: its partition, the config of its steps, and a line for the user.

    Attributes:
        config: {asset: settings of its step}.
        partition: empty if none of the assets has partitions.
    """

    partition: str | dg.MultiPartitionKey
    config: Mapping[str, Mapping[str, Any]]
    text: str


class ChainRunner(ABC):
    """Runner of the parts of a pool's chain, in their order. A subclass says how a job is executed.

    Attributes:
        launched: (job, partition, assets) of every run.
        notify: called with each line for the user.
    """

    #: True if the runner pays for calls that are missing
    pays = True

    def __init__(
        self,
        instance: dg.DagsterInstance,
        *,
        notify: Callable[[str], None] = lambda text: None,
        store: ArtifactStore | None = None,
    ):
        self.instance = instance
        self.notify = notify
        self.store = store or ArtifactStore()
        self.launched: list[tuple[str, str, tuple[str, ...]]] = []

    @abstractmethod
    def _executed(
        self,
        name: str,
        partition: str,
        assets: list[dg.AssetKey],
        config: Mapping[str, Any],
        tags: Mapping[str, str],
    ) -> dg.JobExecutionResult | dg.ExecuteInProcessResult:
        """Run a job, cut to some of its assets, and return its result, failed or not.

        Args:
            name: one of the names in `job_names`, without the location's name before it.
            partition: empty if none of the assets has partitions.
        """

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

        Args:
            rhos, policies: replay these only. Empty: all of the pool's.
            force: make also what is up to date.
            report: make marts, report and leaderboard as well.

        Raises:
            RunFailed: a run failed; what was finished before stays finished.
        """
        name = pool_file.pool.name
        register(self.instance, self.store, name)
        for change in self._observe(sources=False).get(name, ()):
            self.notify(f"changed since the last run: {change}")
        wanted = Wanted(tuple(rhos), tuple(policies), force, self.pays, alone=True, known=self._is_known)
        try:
            self._make(pool_file, wanted, OF_ONE_POOL)
        except CabsError:
            self._observe()  # so that the UI shows what waits for the part that failed
            if report:
                with suppress(CabsError):  # the first failure is reported
                    self.make_results()
            raise
        if report:
            self.make_results(name)

    def make_results(self, first: str = "") -> None:
        """Make the SQL models, reports and the leaderboard that can be made now.

        Args:
            first: the pool whose report is made although other parts of the pool are due or under way. Empty:
                no pool comes first.

        Raises:
            RunFailed: a run failed.
        """
        wanted = Wanted(alone=True, known=self._is_known)
        requested: set[tuple[str, str]] = set()
        while True:
            planner = self._planner()
            busy = under_way(self.instance, chains=True) - {first}
            parts = planner.next_results(first, wanted, busy)
            parts = [part for part in parts if (part.pool, part.state) not in requested]
            if not any(SOURCE_FILES in part.assets for part in parts):
                observe(self.instance, planner, pending=False)
            if not parts:
                break
            requested |= {(part.pool, part.state) for part in parts}
            failures = self._make_parts(parts, None, wanted)
            if failures:
                raise RunFailed("\n".join(failures))
        if not requested:
            for text in planner.sql.left_out():
                self.notify(text)
            self.notify("marts, report, leaderboard: nothing changed")

    def deploy_pool(self, pool_file: PoolFile) -> dict[str, Any]:
        """Make what is due of the pool's collection and stages, then compare and deploy its router.

        The new router takes the place of the deployed one unless it is worse. Calls that the collection lacks
        are paid for if `pays` is True.

        Returns:
            The findings of the comparison, as `stages.deployment.deploy` gives them.

        Raises:
            RunFailed: a run failed.
        """
        name = pool_file.pool.name
        register(self.instance, self.store, name)
        wanted = Wanted(pays=self.pays, alone=True, known=self._is_known)
        self._make(pool_file, wanted, ("collect", "stages"))
        events = self.execute(job_names.DEPLOY, name, [DEPLOYED], {})
        (event,) = (e for e in events if e.event_type == dg.DagsterEventType.ASSET_OBSERVATION)
        found = event.asset_observation_data.asset_observation.metadata
        return {key: value for key, value in plain_values(found).items() if key != FOUND}

    def _planner(self) -> Planner:
        """Return a new planner, which sees the artifacts that are there now."""
        return planner_in(self.instance, self.store)

    def _observe(self, *, sources: bool = True) -> dict[str, list[str]]:
        """Report settings and data versions to the Dagster instance, and return {pool: changed settings}.

        Args:
            sources: False if the sources of marts and pages, which are about to change, are left out.
        """
        return observe(self.instance, self._planner(), sources=sources)

    def _make(self, pool_file: PoolFile, wanted: Wanted, kinds: Sequence[Kind]) -> None:
        """Make what is due of these kinds, in their order.

        A failed part ends the work once the parts beside it were run. After a failed join, the other kinds
        are made first.

        Raises:
            RunFailed: a run failed; or `kinds` is `OF_ONE_POOL`, and calls are due for which the runner does
                not pay.
        """
        if not self.pays and kinds == OF_ONE_POOL:
            self._require_nothing_to_pay(pool_file.pool.name)
        done = {kind for kind in KINDS if kind not in kinds}
        not_joined: list[str] = []
        while len(done) < len(KINDS):
            parts = self._planner().next_parts(pool_file.pool.name, done, wanted)
            done |= self._pass_idle_kinds(parts, done)
            failures = self._make_parts(parts, pool_file, wanted)
            if failures and parts[0].kind == "join":  # the rest does not depend on it
                not_joined = failures
                continue
            if failures and parts[0].kind == "replay":
                rhos = len(wanted.rhos or pool_file.pool.replay.rhos)
                head = f"{len(failures)} of {rhos} rhos are incomplete, so there is no new verdict:"
                failures = [head, *failures]
            if failures:
                raise RunFailed("\n".join([*not_joined, *failures]))
        if not_joined:
            raise RunFailed("\n".join(not_joined))

    def _require_nothing_to_pay(self, pool: str) -> None:
        """Check that no stage of a pool that pays for calls is due.

        Raises:
            RunFailed: one is due; the message says which and who pays.
        """
        unpaid = self._planner().unpaid(pool)
        if unpaid:
            raise RunFailed(
                f"{', '.join(unpaid)} of pool {pool} are due, and calls cost money: the job "
                f"{named(job_names.COLLECT)} or `cabs collect {pool}` pays for them"
            )

    def _pass_idle_kinds(self, parts: Sequence[Part], done: set[Kind]) -> set[Kind]:
        """Tell the user if nothing is due of stages or replays, the kinds in `_NAMES`.

        Args:
            parts: the parts that are made next, all of one kind. Empty: nothing is due.
            done: kinds that were looked at before.

        Returns:
            The kind of the parts and all kinds before it that are not in `done`. The caller adds them to
            `done`.
        """
        if parts:
            next_kind = KINDS.index(parts[0].kind)
        else:
            next_kind = len(KINDS)
        idle = [kind for kind in KINDS[:next_kind] if kind not in done]
        names = [_NAMES[kind] for kind in idle if kind in _NAMES]
        if names:
            self.notify(f"{', '.join(names)}: nothing changed")
        return {*idle, *KINDS[next_kind : next_kind + 1]}

    def _make_parts(self, parts: Sequence[Part], pool_file: PoolFile | None, wanted: Wanted) -> list[str]:
        """Run all parts, also after one has failed, and return a text for each part that failed.

        Args:
            pool_file: the pool of the parts. None for results, which are of all pools.
        """
        failures = []
        for number, part in enumerate(parts, 1):
            request = self._request(part, pool_file, wanted, f"{number}/{len(parts)}")
            self.notify(request.text)
            ops = {step(asset): {"config": settings} for asset, settings in request.config.items()}
            config = {"ops": ops} if ops else {}
            try:
                self.execute(job_names.JOB_OF[part.kind], request.partition, part.assets, config)
            except RunFailed as error:  # other rhos do not depend on this one
                failures.append(str(error))
        return failures

    def _request(self, part: Part, pool_file: PoolFile | None, wanted: Wanted, number: str) -> _Request:
        """Return the partition, the config and the line for the user of a part's run.

        The policies' kernels begin to compile if a due stage of the part is made policy by policy.

        Args:
            number: number of the part among those that are made together, such as `1/3`.
        """
        policies = list(wanted.policies)
        if part.rho is not None:
            settings = {"policies": policies, "force": wanted.force}
            text = f"{number} rho {part.rho:g}: {part.why}"
            return _Request(grid_key(part.pool, part.rho), {"replay": settings}, text)
        if not part.due:
            return _Request(part.pool, {}, part.why)
        config: dict[str, dict[str, Any]] = {}
        for status in part.due:
            stage = status.target.stage
            settings = {"force": True} if wanted.force else {}
            if policies and POOL_STAGES[stage].by_policy:
                settings["policies"] = policies
            if settings:
                config[stage] = settings
        if any(POOL_STAGES[status.target.stage].by_policy for status in part.due):
            from cabs_core.evaluation.replay.compile_ahead import (  # noqa: PLC0415  (numba takes seconds)
                start_compiling,
            )

            assert pool_file is not None  # results have no stages
            models = len(pool_file.pool.arm_names() or ())
            start_compiling(policies or pool_file.pool.policies, models, self.notify)
        why = part.why or ("forced" if wanted.force else "not recorded in this Dagster instance")
        return _Request(part.pool, config, f"{', '.join(part.assets)} ({why})")

    def _is_known(self, asset: str, partition: str | None) -> bool:
        """Return True if the instance has a materialization of an asset, which its UI shows."""
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
            name: one of the names in `job_names`.
            partition: empty if none of the assets has partitions.

        Raises:
            RunFailed: the run failed; the message holds the messages of the failed steps and checks.
        """
        assets = tuple(assets)
        self.launched.append((name, str(partition), assets))
        tags = {tag(POOL_TAG): str(partition).split("|")[0], PROCESS_TAG: process_tag()}
        keys = [key_of(asset) for asset in assets]
        result = self._executed(name, str(partition), keys, config, tags)
        if not result.success:
            texts = [f"  {text}\n" for text in run_texts(result.all_events)]
            raise RunFailed("".join(texts) + f"  (run {result.run_id} of {name} [{partition}])")
        return result.all_events
