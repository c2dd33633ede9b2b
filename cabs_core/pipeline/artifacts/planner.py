"""Planning: what is there, what is out of date and why, and what can be made next.

One planner serves the command line, the sensor and the consumers that verify their inputs, so that all of
them agree. It reads records and hashes files; nothing is computed and nothing is launched here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from cabs_core.base.errors import PoolError, ProvenanceError
from cabs_core.data.pool_files import PoolFile
from cabs_core.pipeline.artifacts.provenance import Recipe, Record
from cabs_core.pipeline.artifacts.stages import POOL_STAGES, Target
from cabs_core.pipeline.artifacts.store import ArtifactStore

State = Literal["fresh", "stale", "missing", "waiting", "blocked"]


@dataclass(frozen=True)
class Status:
    """State of one target.

    Attributes:
        state: fresh: nothing to do; stale: there is one, made from something else, or damaged; missing: there
            is none; waiting: an input has to be made first, so that nothing is known yet; blocked: an input
            failed a check.
        reasons: why it is not fresh.
        recipe: what it would be made from; None while waiting or blocked.
        record: the record that is there, if any.
    """

    target: Target
    state: State
    reasons: tuple[str, ...] = ()
    recipe: Recipe | None = None
    record: Record | None = None

    def __str__(self) -> str:
        """Words such as `out of date (splits changed)`."""
        if self.state == "missing":
            return "not there"
        more = f"; and {len(self.reasons) - 3} more" if len(self.reasons) > 3 else ""
        return f"out of date ({'; '.join(self.reasons[:3])}{more})" if self.reasons else self.state


@dataclass(frozen=True)
class OlderData:
    """Why figures that are there are not those of the data, settings and code at hand: no verdict rests on
    them.

    Attributes:
        reasons: what failed a check or changed.
        made: when the figures' artifacts were made; since: when a check failed, empty where something
            changed. Both UTC, ISO 8601.
    """

    reasons: tuple[str, ...]
    made: str
    since: str = ""

    def __str__(self) -> str:
        """A sentence or two."""
        after = f"since {self.since}" if self.since else "since then"
        return f"The figures are of older data, made {self.made}; {after}: {'; '.join(self.reasons)}."


class Chain:
    """The chain of one pool over an artifact store.

    Statuses are remembered: make a new object to see changes on disk.
    """

    def __init__(self, store: ArtifactStore, pool_file: PoolFile):
        self.store = store
        self.pool_file = pool_file
        self.pool = pool_file.pool
        self._known: dict[tuple[str, ...], Status] = {}

    def over(self, policies: Collection[str]) -> Chain:
        """The chain cut to the given policies and those that are tuned already; none given: the whole chain.

        Tuning then waits for no other policy. A later run over all policies tunes the rest and keeps these.
        """
        if not policies:
            return self
        kept = tuple(p for p in self.pool.policies if p in policies or p in self.tuned)
        pool = self.pool.model_copy(update={"policies": kept})
        return Chain(self.store, replace(self.pool_file, pool=pool))

    @property
    def tuned(self) -> tuple[str, ...]:
        """The pool's policies that were tuned; none where there is no tuning that can be read."""
        try:
            record = self.store.record(self.stage("tuning").parts)
        except ProvenanceError:
            return ()
        return tuple(p for p in self.pool.policies if record and f"policy {p}" in record.config)

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages that the pool has, in the order in which they are made."""
        return tuple(s.name for s in POOL_STAGES.values() if s.only in ("", self.pool.source.kind))

    def stage(self, name: str) -> Target:
        """Target of a pool stage, also of one that is made on request only."""
        return Target(name, self.pool)

    def replays(self, rhos: Iterable[float] = (), policies: Iterable[str] = ()) -> Iterator[Target]:
        """Replay targets: every rho and policy of the pool, or those given; none of a log."""
        for rho in () if self.pool.logged else tuple(rhos) or self.pool.replay.rhos:
            for policy in tuple(policies) or self.pool.policies:
                yield Target("replay", self.pool, rho, policy)

    def status(self, target: Target) -> Status:
        """State of a target, its inputs examined first."""
        if target.parts not in self._known:
            self._known[target.parts] = self._examine(target)
        return self._known[target.parts]

    def forget(self, target: Target) -> None:
        """Look at this target, and at whatever may depend on it, afresh."""
        self._known.clear() if target.policy is None else self._known.pop(target.parts, None)

    def _examine(self, target: Target) -> Status:
        try:
            record, unreadable = self.store.record(target.parts), tuple[str, ...]()
        except ProvenanceError as error:
            record, unreadable = None, (str(error),)
        inputs = target.definition.files(self.pool_file)
        for source in target.inputs:
            status = self.status(source)
            if status.state == "blocked":
                return Status(target, "blocked", status.reasons, record=record)
            if status.state != "fresh" or status.record is None:
                return Status(target, "waiting", (f"{source.stage} has to be made first",), record=record)
            if failed := status.record.summary.get("blocked"):
                why = f"{source.stage} failed a check ({'; '.join(failed)})"
                return Status(target, "blocked", (why,), record=record)
            inputs[source.stage] = status.record.content
            if target.policy is not None and source.definition.by_policy:  # its own policy's part only
                inputs[source.stage] = str(status.record.summary.get("parts", {}).get(target.policy, "none"))
        volatile = target.definition.volatile
        recipe = Recipe(target.name, target.partition, target.code_version, target.config, inputs, volatile)
        if record is None:
            state: State = "stale" if unreadable else "missing"
            return Status(target, state, unreadable or ("not made yet",), recipe)
        reasons = recipe.outdated(record)
        if not reasons and not self.store.remote:  # a remote one is looked at when it is read
            reasons = self.store.damage(target.parts, record)
        if not reasons and target.definition.goes_on:
            reasons = target.definition.summary(record).outdated(self)
        return Status(target, "stale" if reasons else "fresh", tuple(reasons), recipe, record)

    def require(self, target: Target) -> dict[str, Path]:
        """{input stage: folder} of a target, every input verified down to the bytes of its files.

        Raises:
            ProvenanceError: an input is missing, was made from other inputs or settings than those at hand,
                or was altered; the message says what to refresh, first things first.
        """
        status = self.status(target)
        if status.state == "blocked":
            raise ProvenanceError(
                f"{target.described} is not made, because {status.reasons[0]}. Correct the data or the pool."
            )
        return {source.stage: self.current(source, target.described) for source in target.inputs}

    def current(self, target: Target, needed_by: str) -> Path:
        """Folder of an artifact that is up to date, its files compared with its record.

        Raises:
            ProvenanceError: see `require`; `needed_by` says whose input it is.
        """
        if (problem := self._first_problem(target)) is not None:
            raise ProvenanceError(
                f"{needed_by} needs {problem.target.described}, which is {problem}: `cabs run --pool "
                f"{self.pool.name}` makes it, as does materialising {problem.target.stage} in Dagster"
            )
        return self.verified(target)

    def made(self, target: Target) -> Record:
        """The record of an artifact that is there. Raises ProvenanceError where there is none."""
        if record := self.store.record(target.parts):
            return record
        raise ProvenanceError(
            f"pool {self.pool.name} has not been run yet, or not up to here ({target.stage}): `cabs run "
            f"--pool {self.pool.name}` first"
        )

    def verified(self, target: Target) -> Path:
        """Folder of an artifact that is there, its files compared with its record.

        Raises:
            ProvenanceError: there is none, or a file was altered.
        """
        return self.store.verified(target.parts, self.made(target))

    def _first_problem(self, target: Target) -> Status | None:
        status = self.status(target)
        if status.state == "fresh":  # so is whatever it is made from
            return None
        problems = (self._first_problem(source) for source in target.inputs)
        return next((problem for problem in problems if problem is not None), status)

    def older_data(self, targets: Iterable[Target]) -> OlderData | None:
        """Why figures made from these artifacts are of older data; None where all that are there are up to
        date.

        An artifact that is not there has no figures, so it is passed over.
        """
        reasons, made, since = dict[str, None](), "", ""
        for target in targets:
            try:
                if (record := self.store.record(target.parts)) is None:
                    continue
                problem = self._first_problem(target)
            except (PoolError, ProvenanceError) as error:  # its table is gone, say, or its record is damaged
                reasons[str(error)] = None
                continue
            if problem is None:
                continue
            made = min(made or record.created, record.created)
            if problem.state != "blocked":
                reasons[f"{problem.target.described} is {problem}"] = None
                continue
            reasons |= dict.fromkeys(problem.reasons)
            for source in problem.target.inputs:
                failed = self.status(source).record
                if failed is not None and failed.summary.get("blocked"):
                    since = failed.created
        return OlderData(tuple(reasons), made or "at an unknown time", since) if reasons else None

    def require_current(self, targets: Iterable[Target]) -> None:
        """Raises ProvenanceError where one of these artifacts is there and of older data."""
        if older := self.older_data(targets):
            raise ProvenanceError(f"pool {self.pool.name}: {older} `cabs run --pool {self.pool.name}` first")

    def overview(self, rhos: Iterable[float] = (), policies: Iterable[str] = ()) -> list[Status]:
        """Statuses of all stages and replays, in the order in which they are made."""
        stages = [self.status(self.stage(name)) for name in self.stages]
        return stages + [self.status(target) for target in self.replays(rhos, policies)]
