"""What is due: what `cabs run` would make of a pool, in which order, and why.

One place for the commands `run` and `plan`, the sensors and the job `pool_chain`, and for the data versions
that tell Dagster's UI what is stale. It reads records and hashes files; it imports no Dagster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from cabs_core.artifacts import ArtifactStore, Chain, Status
from cabs_core.artifacts.stages import POOL_STAGES, REPLAY
from cabs_core.chain.pages import page_problems, page_recipe
from cabs_core.errors import CabsError, counted
from cabs_core.hashing import stable_hash
from cabs_core.pool_files import PoolFile
from dbt_like_sql import list_models
from dbt_like_sql.freshness import Marts, sources_behind, used_sources
from dbt_like_sql.project import SourceTable

Kind = Literal["stages", "replay", "results"]


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
        kind: the pool's stages, its replays at one rho, or results: marts, report, leaderboard.
        assets: keys of the assets to make, `a/b` for nested ones. rho: of a replay.
        state: hash of why it is due, so that the same is asked for once.
    """

    kind: Kind
    assets: tuple[str, ...]
    state: str
    rho: float | None = None


def is_due(status: Status) -> bool:
    """Whether `cabs run` would make it, now or after what it waits for; what a failed check blocks is not
    made.
    """
    return status.state not in ("fresh", "blocked")


class Due:
    """What is due over one artifact store; each pool is examined once. Make a new object to see changes on
    disk.
    """

    def __init__(self, store: ArtifactStore, pool_files: Iterable[PoolFile]):
        self.store = store
        self.chains = {found.pool.name: Chain(store, found) for found in pool_files}
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
        """Why the report of a pool (None: the leaderboard) is to be made; empty where it shows what there
        is.
        """
        chain = self.chains[pool] if pool else None
        try:
            return page_problems(self.store, self.marts.database.parent, chain, self.chains)
        except CabsError as error:  # there are no marts, say
            return [str(error)]

    def next_parts(self, pool: str) -> list[Part]:
        """What can be made now of a pool: what is left of its stages, else of its replays, else its results.

        Stages that pay for calls are left to those who ask for them. Where a check failed, the report is due:
        it says so.
        """
        pending = self.pending(pool)
        if any(s.target.definition.pays for s in pending):
            return []
        if stages := [s for s in pending if s.target.policy is None]:
            return [_part("stages", [s.target.stage for s in stages], stages)]
        cells: dict[float | None, list[Status]] = {}
        for status in pending:
            cells.setdefault(status.target.rho, []).append(status)
        return [_part("replay", ["replay"], due, rho) for rho, due in cells.items()] or self._results(pool)

    def _results(self, pool: str) -> list[Part]:
        """Marts for all pools at once with one report; where they are up to date a report; the leaderboard
        comes last.
        """
        models = {f"{m.layer}/{m.name}": self.models[m.name] for m in list_models() if m.name in self.models}
        report, board = self.page(pool), self.page(None)
        why = [models, report]
        if models:
            assets = [*models, *MARTS_AROUND, "report", "leaderboard"]
        elif report:
            others = any(self.page(other) for other in self.begun if other != pool)
            assets = ["report"] if others else ["report", "leaderboard"]
        elif board:
            assets, why = ["leaderboard"], [board]
        else:
            return []
        return [Part("results", tuple(assets), stable_hash(why))]

    def plan(self, pool: str) -> list[Entry]:
        """All that `cabs run` would look at of a pool, with its state: stages, replays, marts, report,
        leaderboard.
        """
        entries = [
            Entry(s.target.name, s.target.partition, s.state, s.reasons) for s in self.chains[pool].overview()
        ]
        waits, behind = self._waits(pool), sources_behind()
        for model in list_models():
            first = sorted({_stage(source) for source in behind[model.name]} & set(waits))
            entries.append(_entry(f"{model.layer}/{model.name}", "", first, self.models.get(model.name, [])))
        first = [*waits, *(["marts"] if self.models else [])]
        for name, partition in (("report", pool), ("leaderboard", "")):
            entries.append(_entry(name, partition, first, [] if first else self.page(partition or None)))
        return entries

    def in_words(self, pool: str) -> str:
        """What is due of a pool in one line, for people.

        Raises:
            CabsError: see `pending`.
        """
        if pool not in self.begun:
            return "all of it: it was not run yet"
        if pending := self.pending(pool):
            stages = [s.target.stage for s in pending if s.target.policy is None]
            replays = len(pending) - len(stages)
            first = [*stages, *([counted(replays, "replay")] if replays else [])]
            waits = any(name in REPLAY.inputs for name in stages)
            return f"{', '.join(first)}, then {'replays, ' * waits}marts, report, leaderboard"
        words = [*([counted(len(self.models), "SQL model")] if self.models else [])]
        words += ["report"] * bool(self.page(pool)) + ["leaderboard"] * bool(self.page(None))
        return ", ".join(words) or "nothing"

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
        """{stage: why nobody knows yet what its artifacts will be} of what is due of a pool and what follows
        from it.
        """
        try:
            pending = self.pending(pool)
        except CabsError as error:
            pending, waits = [], {"outcomes": [str(error)]}
        else:
            waits = {}
        for s in pending:
            waits.setdefault(s.target.stage, []).extend([s.target.partition, s.target.name, *s.reasons])
        chain = self.chains[pool]
        for name in chain.stages:
            before = [source.stage for source in chain.stage(name).inputs if source.stage in waits]
            if before:
                waits.setdefault(name, []).extend(before)
        if before := [name for name in REPLAY.inputs if name in waits and not chain.pool.logged]:
            waits.setdefault(REPLAY.name, []).extend(before)
        return waits


#: assets that are made with any SQL model: what looks at the sources' files before, and the database after
MARTS_AROUND = ("source_files", "database")


def _stage(source: SourceTable) -> str:
    """The stage that writes the files of a source table."""
    return source.path.split("/")[0]


def _entry(target: str, partition: str, first: Iterable[str], reasons: Iterable[str]) -> Entry:
    """A mart or a page: it waits for what has to be made `first`, or is stale for these reasons, or fresh."""
    waits = tuple(f"{name} has to be made first" for name in first)
    stale = tuple(reasons)
    return Entry(target, partition, "waiting" if waits else "stale" if stale else "fresh", waits or stale)


def _part(kind: Kind, assets: list[str], due: list[Status], rho: float | None = None) -> Part:
    state = stable_hash([[s.target.parts, s.state, s.recipe.key if s.recipe else s.reasons] for s in due])
    return Part(kind, tuple(assets), state, rho)
