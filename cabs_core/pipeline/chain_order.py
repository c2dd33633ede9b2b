"""The order of a chain: what is due of a pool, what can be made now, and what waits for it.

The commands `run`, `plan` and `check`, the sensors, the schedules, the job `pool_chain` and the data versions
that tell Dagster's UI what is stale all ask a `Planner`. The rule of freshness itself stands in
`artifacts/planner.py`. SQL models are handed in (`SqlModels`), because `cabs_core` imports no SQL project.

Results are SQL models, reports and the leaderboard. They are made once, when no chain is under way. A chain
that ended early counts as ended: stage failed, check failed, table gone, run cancelled or never started. Then
`Chain.older_figures` gives the reason, and the pool's report is due for it to state that reason.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol

from cabs_core.base.errors import CabsError, ProvenanceError, counted
from cabs_core.base.hashing import stable_hash
from cabs_core.base.paths import deployed_folder
from cabs_core.data.pool_files import PoolFile, rho_key
from cabs_core.pipeline.artifacts import ArtifactStore, Chain, Status
from cabs_core.pipeline.artifacts.planner import Artifact, Findings
from cabs_core.pipeline.artifacts.provenance import Recipe, Record
from cabs_core.pipeline.artifacts.stages import JOINED_BY, POOL_STAGES, REPLAY, Stage
from cabs_core.pipeline.pages import OLDER_DATA, REPORTS, Leaderboard, Report
from cabs_core.pipeline.standing import verdicts

Kind = Literal["collect", "join", "stages", "replay", "estimates", "results"]
#: in the order in which a pool's chain is made
KINDS: tuple[Kind, ...] = ("collect", "join", "stages", "replay", "estimates", "results")
#: the kind that the other kinds do not wait for
JOINING: tuple[Kind, ...] = ("join",)
#: the stage that estimates from a log, in place of the replays where the pool's source is a log
ESTIMATES = "off_policy"
#: the asset that a pool's new models join
DEPLOYED = "deployed_router"
#: the asset that looks at the files of the SQL models' sources, before any model is made
SOURCE_FILES = "source_files"
#: assets that carry the data versions of what reports and the leaderboard are made from
REPORT_INPUTS = "versions/report_inputs"
LEADERBOARD_INPUTS = "versions/leaderboard_inputs"
#: assets that are made with any SQL model: the first before, the second after
MARTS_AROUND = (SOURCE_FILES, "database")


class SqlModels(Protocol):
    """The SQL models over a store, as the package with the SQL project gives them."""

    @property
    def marts(self) -> Path:
        """Folder of the models' parquet files."""

    def artifacts(self) -> Sequence[Artifact]:
        """Return every model, each after those that it reads. Names are asset keys, `marts/mart_aiq`."""

    def stages_behind(self, model: str) -> Collection[str]:
        """Return the stages whose files make a model due when they change.

        The model, or a model that it reads, reads tables of some assets of files. All stages of these assets
        (`stages_of_files`) are returned, also a stage of which no such table is read.
        """

    def stages_of_files(self) -> Mapping[str, Collection[str]]:
        """Return {asset that carries the version of source tables: the stages that write their files}."""

    def files_version(self, asset: str) -> str:
        """Return a hash of what all source tables of an asset hold now.

        Raises:
            ProvenanceError: one of its files was altered.
        """

    def left_out(self) -> list[str]:
        """Return a line for each pool and policy whose replays the models leave out."""


@dataclass(frozen=True)
class Entry:
    """A line of a plan: an artifact, mart or page of a pool with its state.

    Attributes:
        target: name of the artifact. partition: the pool, `pool|rho`, or empty if it is of all pools.
        state, reasons: as in `Finding`.
    """

    target: str
    partition: str
    state: str
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """A part of a pool's chain that can be made now.

    Attributes:
        pool: the pool; empty for results where no pool is left.
        kind: stages that pay for calls, models that join the pool's deployed router with the stages that
            this needs, the other stages, the replays at one rho, the estimates from a log, or results (marts,
            report, leaderboard).
        assets: keys of the assets to make, `a/b` for nested ones. rho: of a replay.
        state: hash of the reasons why the part is due, by which no part is requested twice. why: the reasons
            in words.
        due: the artifacts of the store that are due; of results none.
    """

    pool: str
    kind: Kind
    assets: tuple[str, ...]
    state: str
    rho: float | None = None
    why: str = ""
    due: tuple[Status, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Wanted:
    """A request for parts of a pool's chain. The defaults are the request of a sensor.

    Attributes:
        rhos, policies: rhos and policies to make. Empty: all of the pool's.
        force: True if fresh artifacts are made, too.
        pays: True if stages that pay for calls are made. If not, nothing is made while one of them is due.
        alone: True if one pool is requested. An artifact that a failed check blocks is then due, too, for its
            run to say so, and reports of other pools are made only if they give figures of older data as
            current.
        known: returns True if an instance knows an asset (and its partition, if it has some). An unknown
            asset is due, too, because the instance's UI would not show it.
    """

    rhos: tuple[float, ...] = ()
    policies: tuple[str, ...] = ()
    force: bool = False
    pays: bool = False
    alone: bool = False
    known: Callable[[str, str | None], bool] = lambda asset, partition: True

    def due(self, fresh: bool, asset: str, partition: str | None) -> bool:
        """Return True if an asset is to be made: it is forced, not fresh, or not known to the instance."""
        return self.force or not fresh or not self.known(asset, partition)


ALL = Wanted()


def kind_of(stage: Stage) -> Kind:
    """Return the kind of part that makes a pool stage: collect, estimates or stages."""
    if stage.pays:
        return "collect"
    if stage.name == ESTIMATES:
        return "estimates"
    return "stages"


def is_due(status: Status) -> bool:
    """Return True if an artifact is to be made, now or later: it is neither fresh nor blocked by a check."""
    return status.state not in ("fresh", "blocked")


class Planner:
    """Plan of what is due over a store. Each pool is examined once, so a new object sees changes on disk.

    Args:
        pool_files: the pools that are looked at.
        sql: opens the SQL models over the store. Called when they are needed first.
    """

    def __init__(
        self, store: ArtifactStore, pool_files: Iterable[PoolFile], sql: Callable[[ArtifactStore], SqlModels]
    ):
        self.store = store
        self.chains = {pool_file.pool.name: Chain(store, pool_file) for pool_file in pool_files}
        self._open_sql = sql
        self._pending: dict[str, list[Status]] = {}
        self._results = Findings()
        self._pages: dict[str | None, list[str]] = {}

    @cached_property
    def sql(self) -> SqlModels:
        """The SQL models over the store."""
        return self._open_sql(self.store)

    @cached_property
    def begun(self) -> list[str]:
        """The pools that have answers or outcomes, the first stages of a chain."""
        first = [stage.name for stage in POOL_STAGES.values() if not stage.inputs]
        there = {pool for stage in first for pool in self.store.children((stage,))}
        return [name for name in self.chains if name in there]

    def pending(self, pool: str) -> list[Status]:
        """Return the stages of a pool that are due, then the replays that are due, if they wait for no stage.

        Raises:
            CabsError: the pool cannot be examined, because its table is missing, say.
        """
        if pool not in self._pending:
            chain = self.chains[pool]
            stages = [s for s in (chain.status(chain.stage(name)) for name in chain.stages) if is_due(s)]
            due = list(stages)
            if not any(s.target.stage in REPLAY.inputs for s in stages):
                due += [s for s in map(chain.status, chain.replays()) if is_due(s)]
            self._pending[pool] = due
        return self._pending[pool]

    @cached_property
    def models(self) -> Mapping[str, list[str]]:
        """{SQL model: why it is to be run}."""
        found = {model.name: self._results.of(model) for model in self.sql.artifacts()}
        return {name: list(finding.reasons) for name, finding in found.items() if finding.state != "fresh"}

    def report(self, pool: str) -> Report:
        """Return the report of a pool as an artifact."""
        return Report(self.store, self.sql.marts, self.chains[pool])

    @cached_property
    def leaderboard(self) -> Leaderboard:
        """The leaderboard as an artifact."""
        return Leaderboard(self.store, self.sql.marts, verdicts(self.store, self.chains))

    def page(self, pool: str | None) -> list[str]:
        """Return why the report of a pool (None: the leaderboard) is to be made; empty if it is fresh."""
        if pool not in self._pages:
            page: Report | Leaderboard
            if pool:
                page = self.report(pool)
            else:
                page = self.leaderboard
            self._pages[pool] = list(Findings().of(page).reasons)
        return self._pages[pool]

    def next_parts(self, pool: str, done: Collection[Kind] = (), wanted: Wanted = ALL) -> list[Part]:
        """Return the parts of a pool that can be made now, all of the first kind in `KINDS` with such parts.

        The list is empty if that kind is `collect` and `wanted` does not pay.

        Args:
            done: kinds that the caller has been through, which are not looked at again.

        Raises:
            CabsError: the pool cannot be examined, because its table is missing, say.
        """
        for kind in KINDS:
            if kind in done:
                continue
            if kind == "results":
                parts = self.next_results(pool, wanted)
            else:
                parts = self._parts(kind, pool, wanted)
            if parts:
                if wanted.pays or kind != "collect":
                    return parts
                return []
        return []

    def stopped(self, pool: str) -> tuple[str, ...]:
        """Return the reasons of the failed check that keeps a pool from having figures.

        Empty if there is no such check, or if there is a report, which is made again to say so.

        Raises:
            CabsError: see `pending`.
        """
        chain = self.chains[pool]
        statuses = (chain.status(chain.stage(name)) for name in chain.stages)
        failed = next((status.reasons for status in statuses if status.state == "blocked"), ())
        # a report that is damaged is there, too, and is made again
        if self._has_report(pool):
            return ()
        return failed

    def _has_report(self, pool: str) -> bool:
        """Return True if a report of the pool is there, damaged or not."""
        return pool in self.store.children((REPORTS,))

    def is_complete(self, pool: str) -> bool:
        """Return True if results are all that is left to be made of a pool.

        Return False if a failed check keeps the pool from having figures, or if it cannot be examined.
        """
        try:
            return not self.pending(pool) and not self.stopped(pool)
        except CabsError:  # its table is gone, say: it concerns this pool alone
            return False

    def _reports_due(self, first: str, wanted: Wanted, under_way: Collection[str]) -> list[str]:
        """Return the pools whose report is due and can be made now, `first` before the others.

        A report of `first` is due when anything that it shows changed. So is that of any pool whose chain is
        complete, unless `wanted.alone`. Where a chain is neither complete nor under way, it ended early: the
        report is due while it gives figures of older data as current.
        """
        due = []
        for pool in sorted(self.begun, key=lambda name: name != first):
            if pool in under_way:
                continue
            if pool == first and self._can_report(pool):
                is_stale = wanted.due(not self.page(pool), "report", pool)
            elif self.is_complete(pool):
                is_stale = not wanted.alone and bool(self.page(pool))
            else:
                is_stale = False
            if is_stale or self._misleads(pool):
                due.append(pool)
        return due

    def _misleads(self, pool: str) -> bool:
        """Return True if the figures are of older data and the report that is there does not say so.

        If the figures are of older data, a report whose record cannot be read counts, too, since nobody knows
        what it says. Return False if the figures are up to date, whatever the report, or if there is none.
        """
        older = self.chains[pool].older_figures()
        if older is None:
            return False
        try:
            record = self.report(pool).record()
        except ProvenanceError:
            return True
        return record is not None and record.config.get(OLDER_DATA) != str(older)

    def _can_report(self, pool: str) -> bool:
        """Return True if no failed check keeps the pool from having figures, or if there is a report.

        Return False if the pool cannot be examined.
        """
        try:
            return not self.stopped(pool)
        except CabsError:  # its table is gone: a report that is there is to say so, see `_misleads`
            return False

    def next_results(
        self, first: str = "", wanted: Wanted = ALL, under_way: Collection[str] = ()
    ) -> list[Part]:
        """Return the results that can be made now.

        If SQL models are due, the list has one part with the models of all pools and at most one report. If
        no models and several reports are due, the list has a part for each report but the last. A later call
        returns the last report with the leaderboard, in one part. So the leaderboard is made only when no
        other report is due.

        The list is empty if nothing is due, if `first` is empty and no pool has figures yet, or if the pool
        `first` has no report and either failed a check or cannot be examined.

        Args:
            first: the pool that a command made, whose report is made although other parts of the pool are
                due. Empty: no pool comes first.
            under_way: pools whose chain goes on, so that their reports are not made yet.
        """
        complete = [pool for pool in self.begun if pool not in under_way and self.is_complete(pool)]
        if first and not (self._can_report(first) or self._has_report(first)):
            return []
        if not first and not complete and not self.store.children((REPORTS,)) and not self.sql.marts.is_dir():
            return []  # no pool has figures yet
        models = [m.name for m in self.sql.artifacts() if wanted.due(m.name not in self.models, m.name, None)]
        reports = self._reports_due(first, wanted, under_way)
        if models:
            if first and self._can_report(first):
                shown = [first]
            else:
                shown = [*reports, *complete]
            pool = next(iter([*shown, *self.begun]), "")
            return [self._results_part(pool, models, report=pool in shown, board=len(reports) <= 1)]
        if len(reports) > 1:
            return [self._results_part(pool, report=True, board=False) for pool in reports[:-1]]
        board = bool(reports) or wanted.due(not self.page(None), "leaderboard", None)
        if not board:
            return []
        pool = next(iter([*reports, *filter(None, [first]), *self.begun]), "")
        return [self._results_part(pool, report=bool(reports))]

    def _results_part(
        self, pool: str, models: Sequence[str] = (), *, report: bool, board: bool = True
    ) -> Part:
        """Return the part that makes SQL models and, if asked, a pool's report and the leaderboard."""
        pages = [*(["report"] if report else []), *(["leaderboard"] if board else [])]
        assets = (*models, *(MARTS_AROUND if models else ()), *pages)
        why: list[object] = [{name: self.models.get(name, []) for name in models}]
        if report:
            why.append(self.page(pool))
        if board:
            why.append(self.page(None))
        words = ", ".join([*([counted(len(models), "SQL model")] if models else []), *pages])
        return Part(pool, "results", assets, stable_hash(why), why=words)

    def unpaid(self, pool: str) -> list[str]:
        """Return the stages of a pool that are due and pay for calls."""
        return [s.target.stage for s in self.pending(pool) if s.target.definition.pays]

    def _parts(self, kind: Kind, pool: str, wanted: Wanted) -> list[Part]:
        """Return the parts of one kind, other than results, that are due of a pool."""
        if kind == "replay":
            return self._replays(pool, wanted)
        if kind == "join":
            return self._joining(pool)
        chain = self.chains[pool].over(wanted.policies)
        due: list[Status] = []
        for stage in (POOL_STAGES[name] for name in chain.stages):
            if kind_of(stage) == kind and not (wanted.policies and stage.chooses):
                status = chain.status(chain.stage(stage.name))
                fresh = not is_due(status) and not (wanted.alone and status.state == "blocked")
                if wanted.due(fresh, stage.name, pool):
                    due.append(status)
        if due:
            return [_part(pool, kind, [s.target.stage for s in due], due)]
        return []

    def _replays(self, pool: str, wanted: Wanted) -> list[Part]:
        """Return a part for each rho at which replays are due. A pool whose source is a log has none."""
        chain = self.chains[pool].over(wanted.policies)
        if chain.pool.logged:
            return []
        parts: list[Part] = []
        for rho in wanted.rhos or chain.pool.replay.rhos:
            statuses = [chain.status(target) for target in chain.replays([rho], wanted.policies)]
            due = [s for s in statuses if is_due(s) or (wanted.alone and s.state == "blocked")]
            if wanted.due(not due, REPLAY.name, f"{pool}|{rho_key(rho)}"):
                why = f"{len(due)} of {len(statuses)} policies"
                parts.append(_part(pool, "replay", [REPLAY.name], due, rho=rho, why=why))
        return parts

    def _joining(self, pool: str) -> list[Part]:
        """Return the part in which models join the pool's deployed router, as a list of at most one.

        The part has the stages that joining needs, as far as they are due, and the router. A pool that names
        no models may have new ones whenever its table is read anew. If a check failed, no model joins.
        """
        chain = self.chains[pool]
        if not self._takes_models(pool):
            return []
        statuses = [chain.status(chain.stage(name)) for name in JOINED_BY]
        due = [status for status in statuses if is_due(status)]
        why = self._lacks(pool)
        if chain.pool.arm_names() is None and due and not why:
            why = [f"the table of {pool} is read anew, and models that it gained join"]
        if not why or any(status.state == "blocked" for status in statuses):
            return []
        part = _part(pool, "join", [s.target.stage for s in due], due, why="; ".join(why))
        return [replace(part, assets=(*part.assets, DEPLOYED), state=stable_hash([part.state, why]))]

    def _takes_models(self, pool: str) -> bool:
        """Return True if a pool has a deployed router that models which it gains are to join."""
        chosen = self.chains[pool].pool
        return chosen.router.add_models and not chosen.logged and deployed_folder(pool).is_dir()

    def _lacks(self, pool: str) -> list[str]:
        """Return a reason for each model that is to join a pool's deployed router."""
        if not self._takes_models(pool):
            return []
        return list(Findings().of(_DeployedRouter(self.chains[pool])).reasons)

    def plan(self, pool: str) -> list[Entry]:
        """Return all that `cabs run` would look at of a pool, also a deployed router that models may join."""
        entries = [
            Entry(s.target.name, s.target.partition, s.state, s.reasons) for s in self.chains[pool].overview()
        ]
        waits = self._waits(pool)
        for model in self.sql.artifacts():
            first = sorted({*self.sql.stages_behind(model.name)} & set(waits))
            entries.append(_entry(model.name, "", first, self.models.get(model.name, [])))
        first = [*waits, *(["marts"] if self.models else [])]
        stopped = self.stopped(pool)
        if stopped:
            entries.append(Entry("report", pool, "blocked", stopped))
        else:
            entries.append(_entry("report", pool, first, [] if first else self.page(pool)))
        entries.append(_entry("leaderboard", "", first, [] if first else self.page(None)))
        if self._takes_models(pool):
            entries.insert(0, self._deployed(pool, waits))
        return entries

    def _deployed(self, pool: str, waits: Mapping[str, list[str]]) -> Entry:
        """Return the entry of a deployed router that models may join.

        The router is stale while models are to join, or waits for the stages that joining needs. Otherwise it
        is fresh. If replays are due, or wait, a reason of the fresh router says that figures and report are
        not of its models and the present data yet.

        Args:
            waits: {stage: why it waits}, as `_waits` returns it.
        """
        first = [name for name in JOINED_BY if name in waits]
        lacks = self._lacks(pool)
        if lacks:
            return Entry(DEPLOYED, pool, "waiting" if first else "stale", (*lacks, *_made_first(first)))
        behind = ("figures and report are not of its models and this data yet",)
        return Entry(DEPLOYED, pool, "fresh", behind if REPLAY.name in waits else ())

    def in_words(self, pool: str) -> str:
        """Return what is due of a pool in one line, for people.

        Raises:
            CabsError: see `pending`.
        """
        if pool not in self.begun:
            return "all of it: it was not run yet"
        stopped = self.stopped(pool)
        if stopped:
            return f"nothing: {'; '.join(stopped)}"
        pending = self.pending(pool)
        if pending:
            stages = [s.target.stage for s in pending if s.target.policy is None]
            replays = len(pending) - len(stages)
            if self._lacks(pool):
                first = [DEPLOYED, *stages]
            else:
                first = stages
            if replays:
                first = [*first, counted(replays, "replay")]
            if any(name in REPLAY.inputs for name in stages):
                waits = "replays, "
            else:
                waits = ""
            return f"{', '.join(first)}, then {waits}marts, report, leaderboard"
        reasons = {
            counted(len(self.models), "SQL model"): self.models,
            "report": self.page(pool),
            "leaderboard": self.page(None),
            DEPLOYED: self._lacks(pool),
        }
        return ", ".join(name for name, reason in reasons.items() if reason) or "nothing"

    def versions(self, *, pending: bool = True) -> dict[tuple[str, str], str]:
        """Return {(source asset, partition): data version} of the sources of marts, reports and leaderboard.

        A version changes when `cabs run` would make what reads it.

        Args:
            pending: True if due stages and replays change the versions, too, before they are made.
        """
        if pending:
            waits = {pool: self._waits(pool) for pool in self.begun}
        else:
            waits = {}
        versions = {}
        for asset, stages in self.sql.stages_of_files().items():
            try:
                version = self.sql.files_version(asset)
            except CabsError as error:
                version = str(error)
            here = {
                pool: {stage: reasons[stage] for stage in sorted(stages) if stage in reasons}
                for pool, reasons in waits.items()
            }
            here = {pool: reasons for pool, reasons in here.items() if reasons}
            versions[asset, ""] = stable_hash([version, here], 32)
        models = dict(self.models) if pending else {}
        for pool in self.begun:
            parts = [self._recipe(pool), waits.get(pool, {}), models]
            versions[REPORT_INPUTS, pool] = stable_hash(parts, 32)
        unmade = {pool: reasons for pool, reasons in waits.items() if reasons}
        versions[LEADERBOARD_INPUTS, ""] = stable_hash([self._recipe(None), unmade, models], 32)
        return versions

    def _recipe(self, pool: str | None) -> str:
        """Return the key of the recipe of a pool's report (None: the leaderboard), or why it has none."""
        try:
            return (self.report(pool) if pool else self.leaderboard).recipe().key
        except CabsError as error:
            return str(error)

    def _waits(self, pool: str) -> dict[str, list[str]]:
        """Return {stage: why its artifacts are not known yet} of a pool's stages that are due or follow."""
        try:
            pending = self.pending(pool)
        except CabsError as error:
            pending = []
            waits = {"outcomes": [str(error)]}
        else:
            waits = {}
        for s in pending:
            waits.setdefault(s.target.stage, []).extend([s.target.partition, s.target.name, *s.reasons])
        return self.behind(pool, waits)

    def behind(self, pool: str, waits: Mapping[str, list[str]]) -> dict[str, list[str]]:
        """Return {stage: why it waits} of the given stages of a pool and of all that is made from them."""
        chain = self.chains[pool]
        waits = dict(waits)
        for name in chain.stages:
            before = [source.stage for source in chain.stage(name).inputs if source.stage in waits]
            if before:
                waits[name] = [*waits.get(name, []), *before]
        before = [name for name in REPLAY.inputs if name in waits and not chain.pool.logged]
        if before:
            waits[REPLAY.name] = [*waits.get(REPLAY.name, []), *before]
        return waits


@dataclass(frozen=True)
class _DeployedRouter:
    """The deployed router of a pool that takes new models, as an artifact.

    The router goes on learning, so no change of a setting or of data makes it anew. The router is out of date
    only while a model of the pool is still to join it.
    """

    chain: Chain
    name = DEPLOYED

    @property
    def inputs(self) -> Sequence[Artifact]:
        """Empty: `Planner` decides which stages joining needs, see `JOINED_BY`."""
        return ()

    def recipe(self, inputs: Mapping[str, Record]) -> Recipe:
        """Return a recipe that never changes."""
        return Recipe(self.name, self.chain.pool.name, "")

    def record(self) -> Record:
        """Return the record of that recipe."""
        return Record(**vars(self.recipe({})))

    def faults(self, record: Record) -> list[str]:
        """Return a line for each model of the pool that is still to join the router.

        A model that `remove-model` or `rollback` took out of the router has no line.
        """
        from cabs_core.pipeline.stages.deployment import lacking  # noqa: PLC0415  (numba takes seconds)

        return [f"the deployed router does not choose {model} yet" for model in lacking(self.chain)]


def _entry(target: str, partition: str, first: Iterable[str], reasons: Iterable[str]) -> Entry:
    """Return the entry of a mart or a page: it waits, is stale, or is fresh.

    Args:
        first: what has to be made before it. reasons: why it is stale if nothing comes first.
    """
    waits = _made_first(first)
    if waits:
        return Entry(target, partition, "waiting", waits)
    stale = tuple(reasons)
    return Entry(target, partition, "stale" if stale else "fresh", stale)


def _made_first(names: Iterable[str]) -> tuple[str, ...]:
    """Return the reason `NAME has to be made first` for each of the names."""
    return tuple(f"{name} has to be made first" for name in names)


def _part(
    pool: str,
    kind: Kind,
    assets: list[str],
    due: list[Status],
    *,
    rho: float | None = None,
    why: str = "",
) -> Part:
    """Return a part that makes these assets, whose state is a hash of the due artifacts and their recipes."""
    state = stable_hash([[s.target.parts, s.state, s.recipe.key if s.recipe else s.reasons] for s in due])
    return Part(pool, kind, tuple(assets), state, rho, why or "; ".join(due[0].reasons[:3]), tuple(due))
