"""What is due: what `cabs run` would make of a pool, in which order, and why.

One place for the commands `run`, `plan` and `check`, the sensors and the job `pool_chain`, and for the data
versions that tell Dagster's UI what is stale. It reads records and hashes files; it imports no Dagster.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from cabs_core.base.errors import CabsError, counted
from cabs_core.base.hashing import stable_hash
from cabs_core.base.paths import deployed_folder
from cabs_core.data.pool_files import PoolFile, rho_key
from cabs_core.pipeline.artifacts import ArtifactStore, Chain, Status
from cabs_core.pipeline.artifacts.stages import JOINED_BY, POOL_STAGES, REPLAY
from cabs_core.pipeline.pages import REPORTS, page_problems, page_recipe
from dbt_like_sql.freshness import Marts, sources_behind, used_sources
from dbt_like_sql.project import SourceTable, list_models

Kind = Literal["collect", "join", "stages", "replay", "results"]
#: in the order in which a pool's chain is made
KINDS: tuple[Kind, ...] = ("collect", "join", "stages", "replay", "results")
#: what the other parts do not wait for
JOINING: tuple[Kind, ...] = ("join",)


@dataclass(frozen=True)
class Entry:
    """One line of a plan: `state` and `reasons` are those of `Status`, of marts and pages too."""

    target: str
    partition: str
    state: str
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """A part of a pool's chain that can be made now.

    Attributes:
        kind: stages that pay for calls, models that join the pool's deployed router with the stages that
            this needs, the other stages, the replays at one rho, or results (marts, report, leaderboard).
        assets: keys of the assets to make, `a/b` for nested ones. rho: of a replay.
        state: hash of why it is due, so that the same is asked for once; why: the same for people.
        due: the artifacts of the store that are due; of results none.
    """

    kind: Kind
    assets: tuple[str, ...]
    state: str
    rho: float | None = None
    why: str = ""
    due: tuple[Status, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Wanted:
    """What is to be made of a pool; as it stands, what a sensor asks for.

    Attributes:
        rhos, policies: these only; empty: all of the pool's.
        force: also what is fresh.
        pays: also stages that pay for calls; else nothing is made while one of them is due.
        alone: of this pool and nobody else's: what a failed check stops is due, too, for its run to say so,
            and the leaderboard does not wait for the reports of other pools.
        known: whether an instance knows an asset (and its partition, if it has some); what it does not know
            is due, too, for its UI would not show it.
    """

    rhos: tuple[float, ...] = ()
    policies: tuple[str, ...] = ()
    force: bool = False
    pays: bool = False
    alone: bool = False
    known: Callable[[str, str | None], bool] = lambda asset, partition: True

    def due(self, fresh: bool, asset: str, partition: str | None) -> bool:
        """Whether an asset is to be made."""
        return self.force or not fresh or not self.known(asset, partition)


ALL = Wanted()


def is_due(status: Status) -> bool:
    """Whether `cabs run` would make it, now or later; what a failed check blocks is not made."""
    return status.state not in ("fresh", "blocked")


class Due:
    """What is due over a store; each pool is examined once. A new object sees changes on disk."""

    def __init__(self, store: ArtifactStore, pool_files: Iterable[PoolFile]):
        self.store = store
        self.chains = {pool_file.pool.name: Chain(store, pool_file) for pool_file in pool_files}
        self._pending: dict[str, list[Status]] = {}

    @cached_property
    def marts(self) -> Marts:
        """The SQL models over the store."""
        return Marts(self.store)

    @cached_property
    def begun(self) -> list[str]:
        """The pools of which something is there."""
        first = [stage.name for stage in POOL_STAGES.values() if not stage.inputs]
        there = {pool for stage in first for pool in self.store.children((stage,))}
        return [name for name in self.chains if name in there]

    def pending(self, pool: str) -> list[Status]:
        """Stages of a pool that are due, then its replays that are; not those that wait for a stage.

        Raises:
            CabsError: its table is missing, say.
        """
        if pool not in self._pending:
            chain = self.chains[pool]
            stages = [s for s in (chain.status(chain.stage(name)) for name in chain.stages) if is_due(s)]
            first = any(s.target.stage in REPLAY.inputs for s in stages)
            replays = [] if first else [s for s in map(chain.status, chain.replays()) if is_due(s)]
            self._pending[pool] = stages + replays
        return self._pending[pool]

    @cached_property
    def models(self) -> Mapping[str, list[str]]:
        """{SQL model: why it is to be run}."""
        return self.marts.outdated()

    def page(self, pool: str | None) -> list[str]:
        """Why the report of a pool (None: the leaderboard) is to be made; empty where it is up to date."""
        chain = self.chains[pool] if pool else None
        try:
            return page_problems(self.store, self.marts.database.parent, chain, self.chains)
        except CabsError as error:  # there are no marts, say
            return [str(error)]

    def next_parts(self, pool: str, done: Collection[Kind] = (), wanted: Wanted = ALL) -> list[Part]:
        """What can be made now of a pool: what is left of its stages, else of its replays, else its results.

        The one order of command, sensors and schedules. Where a check failed, a report that is there is due:
        it says so.

        Args:
            done: kinds that the caller has been through, which are not looked at again.
        """
        for kind in KINDS:
            parts = [] if kind in done else self._parts(kind, pool, wanted)
            if parts:
                return parts if wanted.pays or kind != "collect" else []
        return []

    def stopped(self, pool: str) -> tuple[str, ...]:
        """The check that keeps a pool from having figures; empty where none does, or a report is there that
        is to say so."""
        chain = self.chains[pool]
        statuses = (chain.status(chain.stage(name)) for name in chain.stages)
        failed = next((status.reasons for status in statuses if status.state == "blocked"), ())
        # a report that is damaged is there, too, and is made again
        return () if pool in self.store.children((REPORTS,)) else failed

    def _ready(self, pool: str) -> bool:
        """Whether results are all that is left to be made of a pool."""
        try:
            return not self.pending(pool) and not self.stopped(pool)
        except CabsError:  # its table is gone, say: it concerns this pool alone
            return False

    def next_results(self, pool: str) -> dict[str, list[Part]]:
        """{pool: parts} of the results that can be made now, of whichever pools wait for nothing else.

        One run makes the SQL models for all, that of `pool` where it is ready; the other reports follow it,
        and the leaderboard comes once.
        """
        ready = [name for name in self.begun if self._ready(name)]
        results = {name: parts for name in ready if (parts := self.next_parts(name, JOINING))}
        if not results:  # of a chain that began with another part than models that join
            return {name: parts for name in ready if (parts := self.next_parts(name))}
        reports = {name: parts for name, parts in results.items() if parts[0].assets[0] == "report"}
        if reports and not self.models:
            return reports
        first = pool if self.models and pool in results else next(iter(results), "")
        return {first: results[first]} if first else {}

    def unpaid(self, pool: str) -> list[str]:
        """Stages of a pool that are due and pay for calls."""
        return [s.target.stage for s in self.pending(pool) if s.target.definition.pays]

    def _parts(self, kind: Kind, pool: str, wanted: Wanted) -> list[Part]:
        if kind == "results":
            return self._results(pool, wanted)
        if kind == "replay":
            return self._replays(pool, wanted)
        if kind == "join":
            return self._joining(pool)
        chain, due = self.chains[pool].over(wanted.policies), list[Status]()
        for stage in (POOL_STAGES[name] for name in chain.stages):
            if stage.pays == (kind == "collect") and not (wanted.policies and stage.chooses):
                status = chain.status(chain.stage(stage.name))
                fresh = not is_due(status) and not (wanted.alone and status.state == "blocked")
                if wanted.due(fresh, stage.name, pool):
                    due.append(status)
        return [_part(kind, [s.target.stage for s in due], due)] if due else []

    def _replays(self, pool: str, wanted: Wanted) -> list[Part]:
        """Those at each rho."""
        chain, parts = self.chains[pool].over(wanted.policies), list[Part]()
        for rho in () if chain.pool.logged else wanted.rhos or chain.pool.replay.rhos:
            statuses = [chain.status(target) for target in chain.replays([rho], wanted.policies)]
            due = [s for s in statuses if is_due(s) or (wanted.alone and s.state == "blocked")]
            if wanted.due(not due, REPLAY.name, f"{pool}|{rho_key(rho)}"):
                why = f"{len(due)} of {len(statuses)} policies"
                parts.append(_part("replay", [REPLAY.name], due, rho, why))
        return parts

    def _joining(self, pool: str) -> list[Part]:
        """The stages that models need to join the deployed router, as far as they are due, and that asset.

        A pool that names no models may have new ones wherever its table is read anew. Where a check failed,
        nobody joins.
        """
        chain = self.chains[pool]
        if not self._takes_models(pool):
            return []
        statuses = [chain.status(chain.stage(name)) for name in JOINED_BY]
        due, why = [status for status in statuses if is_due(status)], self._lacks(pool)
        if chain.pool.arm_names() is None and due and not why:
            why = [f"the table of {pool} is read anew, and models that it gained join"]
        if not why or any(status.state == "blocked" for status in statuses):
            return []
        part = _part("join", [s.target.stage for s in due], due, why="; ".join(why))
        return [replace(part, assets=(*part.assets, DEPLOYED), state=stable_hash([part.state, why]))]

    def _takes_models(self, pool: str) -> bool:
        """Whether a pool has a deployed router that models which it gains are to join."""
        chosen = self.chains[pool].pool
        return chosen.router.add_models and not chosen.logged and deployed_folder(pool).is_dir()

    def _lacks(self, pool: str) -> list[str]:
        """Why models are to join a pool's deployed router."""
        if not self._takes_models(pool):
            return []
        from cabs_core.pipeline.stages.deployment import lacking  # noqa: PLC0415  (numba takes seconds)

        return [f"the deployed router does not choose {model} yet" for model in lacking(self.chains[pool])]

    def _results(self, pool: str, wanted: Wanted) -> list[Part]:
        """Marts for all pools with one report; where they are up to date a report; last the leaderboard."""
        if self.stopped(pool):
            return []
        names = {f"{m.layer}/{m.name}": m.name for m in list_models()}
        models = [key for key, name in names.items() if wanted.due(name not in self.models, key, None)]
        report, board = self.page(pool), self.page(None)
        pages = ["report"] if models or wanted.due(not report, "report", pool) else []
        others = self.begun if pages and not models and not wanted.alone else []
        if not any(self.page(begun) for begun in others if begun != pool and self._ready(begun)):
            pages += ["leaderboard"] if pages or wanted.due(not board, "leaderboard", None) else []
        assets = (*models, *(MARTS_AROUND if models else ()), *pages)
        why = [{key: self.models.get(names[key], []) for key in models}, report, board]
        words = ", ".join([*([counted(len(models), "SQL model")] if models else []), *pages])
        return [Part("results", assets, stable_hash(why), why=words)] if assets else []

    def plan(self, pool: str) -> list[Entry]:
        """All that `cabs run` would look at of a pool, and a deployed router that models may join."""
        entries = [
            Entry(s.target.name, s.target.partition, s.state, s.reasons) for s in self.chains[pool].overview()
        ]
        waits, behind = self._waits(pool), sources_behind()
        for model in list_models():
            first = sorted({_stage(source) for source in behind[model.name]} & set(waits))
            entries.append(_entry(f"{model.layer}/{model.name}", "", first, self.models.get(model.name, [])))
        first = [*waits, *(["marts"] if self.models else [])]
        if stopped := self.stopped(pool):
            entries.append(Entry("report", pool, "blocked", stopped))
        else:
            entries.append(_entry("report", pool, first, [] if first else self.page(pool)))
        entries.append(_entry("leaderboard", "", first, [] if first else self.page(None)))
        if self._takes_models(pool):
            entries.insert(0, self._deployed(pool, waits))
        return entries

    def _deployed(self, pool: str, waits: Mapping[str, list[str]]) -> Entry:
        """Of the deployed router that models may join; where they did, whom the report does not know yet."""
        first, lacks = [name for name in JOINED_BY if name in waits], self._lacks(pool)
        if lacks:
            return Entry(DEPLOYED, pool, "waiting" if first else "stale", (*lacks, *_made_first(first)))
        behind = ("figures and report are not of its models and this data yet",)
        return Entry(DEPLOYED, pool, "fresh", behind if REPLAY.name in waits else ())

    def in_words(self, pool: str) -> str:
        """What is due of a pool in one line, for people.

        Raises:
            CabsError: see `pending`.
        """
        if pool not in self.begun:
            return "all of it: it was not run yet"
        if stopped := self.stopped(pool):
            return f"nothing: {'; '.join(stopped)}"
        if pending := self.pending(pool):
            stages = [s.target.stage for s in pending if s.target.policy is None]
            replays = len(pending) - len(stages)
            first = [DEPLOYED, *stages] if self._lacks(pool) else stages
            if replays:
                first = [*first, counted(replays, "replay")]
            waits = "replays, " if any(name in REPLAY.inputs for name in stages) else ""
            return f"{', '.join(first)}, then {waits}marts, report, leaderboard"
        reasons = {
            counted(len(self.models), "SQL model"): self.models,
            "report": self.page(pool),
            "leaderboard": self.page(None),
            DEPLOYED: self._lacks(pool),
        }
        return ", ".join(name for name, reason in reasons.items() if reason) or "nothing"

    def versions(self, *, pending: bool = True) -> dict[tuple[str, str], str]:
        """{(source asset, partition): data version} of what marts, reports and the leaderboard are made from.

        A version changes when `cabs run` would make what reads it.

        Args:
            pending: also where stages or replays are due, of which nobody knows yet what will come out.
        """
        waits = {pool: self._waits(pool) for pool in self.begun} if pending else {}
        versions = {}
        for source in used_sources():
            try:
                version = self.marts.source_hash(source)
            except CabsError as error:
                version = str(error)
            stage = _stage(source)
            here = {pool: reasons[stage] for pool, reasons in waits.items() if stage in reasons}
            versions[f"sources/{source.source}/{source.name}", ""] = stable_hash([version, here], 32)
        models = dict(self.models) if pending else {}
        for pool in self.begun:
            parts = [self._recipe(pool), waits.get(pool, {}), models]
            versions["pages/reports", pool] = stable_hash(parts, 32)
        unmade = {pool: reasons for pool, reasons in waits.items() if reasons}
        versions["pages/verdicts", ""] = stable_hash([self._recipe(None), unmade, models], 32)
        return versions

    def _recipe(self, pool: str | None) -> str:
        chain = self.chains[pool] if pool else None
        try:
            return page_recipe(self.store, self.marts.database.parent, chain, self.chains).key
        except CabsError as error:
            return str(error)

    def _waits(self, pool: str) -> dict[str, list[str]]:
        """{stage: why nobody knows yet what its artifacts will be} of what is due of a pool or follows."""
        try:
            pending = self.pending(pool)
        except CabsError as error:
            pending, waits = [], {"outcomes": [str(error)]}
        else:
            waits = {}
        for s in pending:
            waits.setdefault(s.target.stage, []).extend([s.target.partition, s.target.name, *s.reasons])
        return self.behind(pool, waits)

    def behind(self, pool: str, waits: Mapping[str, list[str]]) -> dict[str, list[str]]:
        """{stage: why it waits} of a pool's stages that wait and of all that is made from them."""
        chain, waits = self.chains[pool], dict(waits)
        for name in chain.stages:
            before = [source.stage for source in chain.stage(name).inputs if source.stage in waits]
            if before:
                waits[name] = [*waits.get(name, []), *before]
        if before := [name for name in REPLAY.inputs if name in waits and not chain.pool.logged]:
            waits[REPLAY.name] = [*waits.get(REPLAY.name, []), *before]
        return waits


#: what a pool's new models join
DEPLOYED = "deployed_router"
#: what looks at the files of the SQL models' sources, before any model is made
SOURCE_FILES = "source_files"
#: assets that are made with any SQL model: that before, and the database after
MARTS_AROUND = (SOURCE_FILES, "database")


def _stage(source: SourceTable) -> str:
    """The stage that writes the files of a source table."""
    return source.path.split("/")[0]


def _entry(target: str, partition: str, first: Iterable[str], reasons: Iterable[str]) -> Entry:
    """A mart or a page: it waits for what has to be made `first`, or is stale for these reasons, or fresh."""
    waits = _made_first(first)
    stale = tuple(reasons)
    return Entry(target, partition, "waiting" if waits else "stale" if stale else "fresh", waits or stale)


def _made_first(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{name} has to be made first" for name in names)


def _part(kind: Kind, assets: list[str], due: list[Status], rho: float | None = None, why: str = "") -> Part:
    state = stable_hash([[s.target.parts, s.state, s.recipe.key if s.recipe else s.reasons] for s in due])
    return Part(kind, tuple(assets), state, rho, why or "; ".join(due[0].reasons[:3]), tuple(due))
