"""Planning: what is there, what is out of date and why.

`examine` is the only rule of freshness. It serves stages and replays, SQL models, pages and deployed routers,
which all are given as an `Artifact`. `Chain` holds the artifacts of one pool and decides when figures made
from them are of older data. The rule reads records and hashes files; it computes and launches nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol

from cabs_core.base.errors import PoolError, ProvenanceError
from cabs_core.data.pool_files import PoolFile
from cabs_core.pipeline.artifacts.provenance import Recipe, Record
from cabs_core.pipeline.artifacts.stages import POOL_STAGES, Target
from cabs_core.pipeline.artifacts.store import ArtifactStore

State = Literal["fresh", "stale", "missing", "waiting", "blocked"]


@dataclass(frozen=True)
class Finding:
    """State of one artifact.

    Attributes:
        state: fresh: nothing to do; stale: the artifact was made from something else, or is damaged; missing:
            there is none; waiting: an input has to be made first, so that nothing is known yet; blocked: an
            input failed a check.
        reasons: why the artifact is not fresh.
        recipe: recipe by which the artifact would be made now. None while it waits, is blocked or has no
            recipe because of a fault.
        record: record of the present artifact, if any.
    """

    state: State
    reasons: tuple[str, ...] = ()
    recipe: Recipe | None = None
    record: Record | None = None

    def __str__(self) -> str:
        """Return words such as `out of date (splits changed)`."""
        if self.state == "missing":
            return "not there"
        if len(self.reasons) > 3:
            more = f"; and {len(self.reasons) - 3} more"
        else:
            more = ""
        if self.reasons:
            return f"out of date ({'; '.join(self.reasons[:3])}{more})"
        return self.state


class Artifact(Protocol):
    """Something that can be made, as the rule of freshness sees it."""

    @property
    def name(self) -> str:
        """Name in messages and in records, such as `splits`, `marts/mart_aiq` or `report`."""

    @property
    def inputs(self) -> Sequence[Artifact]:
        """The artifacts that have to be up to date before this one can be made."""

    def record(self) -> Record | None:
        """Return the record of the present artifact, or None if nothing was made yet.

        Raises:
            ProvenanceError: the record cannot be read.
        """

    def recipe(self, inputs: Mapping[str, Record]) -> Recipe:
        """Return the recipe by which the artifact would be made now.

        Args:
            inputs: {name: record} of `inputs`, which are all up to date.

        Raises:
            ProvenanceError: a file that the artifact is made from was altered.
        """

    def faults(self, record: Record) -> list[str]:
        """Return why the artifact is out of date though its recipe did not change, such as a damaged file."""


def examine(artifact: Artifact, finding_of: Callable[[Artifact], Finding]) -> Finding:
    """Return the state of an artifact: the only rule of freshness.

    The first input that is blocked, failed a check or is not fresh makes the artifact blocked or waiting.
    Otherwise the artifact is stale if its recipe cannot be made, if its record cannot be read or names
    another recipe, or if it has faults. It is missing if there is no record, and fresh in all other cases.

    Args:
        finding_of: returns the state of an input. The caller may remember states.
    """
    try:
        record = artifact.record()
        unreadable = tuple[str, ...]()
    except ProvenanceError as error:
        record = None
        unreadable = (str(error),)
    inputs: dict[str, Record] = {}
    for source in artifact.inputs:
        found = finding_of(source)
        if found.state == "blocked":
            return Finding("blocked", found.reasons, record=record)
        if found.state != "fresh" or found.record is None:
            return Finding("waiting", (f"{source.name} has to be made first",), record=record)
        failed = found.record.summary.get("blocked")
        if failed:
            why = f"{source.name} failed a check ({'; '.join(failed)})"
            return Finding("blocked", (why,), record=record)
        inputs[source.name] = found.record
    try:
        recipe = artifact.recipe(inputs)
    except ProvenanceError as error:  # making it would say so, too
        return Finding("stale", (str(error),), record=record)
    if record is None:
        return Finding("stale" if unreadable else "missing", unreadable or ("not made yet",), recipe)
    reasons = recipe.outdated(record) or artifact.faults(record)
    return Finding("stale" if reasons else "fresh", tuple(reasons), recipe, record)


class Findings:
    """States of artifacts by name, each examined once. An object sees no later change on disk."""

    def __init__(self) -> None:
        self._known: dict[str, Finding] = {}

    def of(self, artifact: Artifact) -> Finding:
        """Return the state of an artifact, its inputs examined first."""
        if artifact.name not in self._known:
            self._known[artifact.name] = examine(artifact, self.of)
        return self._known[artifact.name]


@dataclass(frozen=True, kw_only=True)
class Status(Finding):
    """State of a stage or replay of a pool."""

    target: Target


@dataclass(frozen=True)
class OlderData:
    """Reasons why present figures are not of the data, settings and code at hand.

    No verdict rests on such figures.

    Attributes:
        reasons: what failed a check or changed.
        made: when the oldest artifact of these figures was made, UTC, ISO 8601, or `at an unknown time`.
        since: when a check failed, UTC, ISO 8601. Empty if something changed instead.
    """

    reasons: tuple[str, ...]
    made: str
    since: str = ""

    def __str__(self) -> str:
        """Return a sentence that says when the figures were made and why they are of older data."""
        if self.since:
            after = f"since {self.since}"
        else:
            after = "since then"
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
        """Return the chain of the same pool without the policies that are neither given nor tuned already.

        Tuning then waits for no other policy. A later run over all policies tunes the rest and keeps these.
        The chain itself is returned if no policies are given or none is left out.
        """
        if not policies:
            return self
        kept = tuple(p for p in self.pool.policies if p in policies or p in self.tuned)
        if kept == self.pool.policies:
            return self
        pool = self.pool.model_copy(update={"policies": kept})
        return Chain(self.store, replace(self.pool_file, pool=pool))

    @property
    def tuned(self) -> tuple[str, ...]:
        """The pool's policies that were tuned. Empty if there is no tuning that can be read."""
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
        """Return the target of a pool stage, also of one that the pool does not have."""
        return Target(name, self.pool)

    def replays(self, rhos: Iterable[float] = (), policies: Iterable[str] = ()) -> Iterator[Target]:
        """Yield the replay targets of every rho and policy of the pool, or of those given. A log has none."""
        if self.pool.logged:
            return
        chosen = tuple(policies) or self.pool.policies
        for rho in tuple(rhos) or self.pool.replay.rhos:
            for policy in chosen:
                yield Target("replay", self.pool, rho, policy)

    def status(self, target: Target) -> Status:
        """Return the state of a target, its inputs examined first."""
        if target.parts not in self._known:
            self._known[target.parts] = self._examine(target)
        return self._known[target.parts]

    def forget(self, target: Target) -> None:
        """Forget the state of a target and of all targets that may depend on it."""
        self.__dict__.pop("_older_figures", None)
        if target.policy is None:
            self._known.clear()
        else:
            self._known.pop(target.parts, None)  # nothing of the chain is made from a replay

    def _examine(self, target: Target) -> Status:
        """Return the state of a target, which is examined now."""
        return Status(target=target, **vars(examine(_OfPool(self, target), self._finding)))

    def _finding(self, artifact: Artifact) -> Finding:
        """Return the state of an input of a stage, from memory if it was examined before."""
        assert isinstance(artifact, _OfPool)  # a stage is made from stages alone
        return self.status(artifact.target)

    def require(self, target: Target) -> dict[str, Path]:
        """Return {input stage: folder} of a target, every input verified down to the bytes of its files.

        Raises:
            ProvenanceError: an input is missing, failed a check, was made from other inputs or settings than
                those at hand, or was altered; the message says what to correct or refresh, first things
                first.
        """
        status = self.status(target)
        if status.state == "blocked":
            raise ProvenanceError(
                f"{target.described} is not made, because {status.reasons[0]}. Correct the data or the pool."
            )
        return {source.stage: self.current(source, target.described) for source in target.inputs}

    def current(self, target: Target, needed_by: str) -> Path:
        """Return the folder of an artifact that is up to date, its files compared with its record.

        Args:
            needed_by: words for the artifact or router that needs this one.

        Raises:
            ProvenanceError: see `require`.
        """
        problem = self._first_problem(target)
        if problem is not None:
            raise ProvenanceError(
                f"{needed_by} needs {problem.target.described}, which is {problem}: `cabs run --pool "
                f"{self.pool.name}` makes it, as does materialising {problem.target.stage} in Dagster"
            )
        return self.verified(target)

    def made(self, target: Target) -> Record:
        """Return the record of a present artifact, up to date or not.

        Raises:
            ProvenanceError: there is none.
        """
        record = self.store.record(target.parts)
        if record is not None:
            return record
        raise ProvenanceError(
            f"pool {self.pool.name} has not been run yet, or not up to here ({target.stage}): `cabs run "
            f"--pool {self.pool.name}` first"
        )

    def verified(self, target: Target) -> Path:
        """Return the folder of a present artifact, stale or not, after comparing its files with its record.

        Raises:
            ProvenanceError: there is none, or a file was altered.
        """
        return self.store.verified(target.parts, self.made(target))

    def _first_problem(self, target: Target) -> Status | None:
        """Return the state of the first of a target's inputs, or of itself, that is not fresh, or None."""
        status = self.status(target)
        if status.state == "fresh":  # then all inputs are fresh, too
            return None
        problems = (self._first_problem(source) for source in target.inputs)
        return next((problem for problem in problems if problem is not None), status)

    def older_figures(self) -> OlderData | None:
        """Return why the figures in marts and report are of older data, or None if they are up to date.

        A stage that failed, a failed check, a missing table and a change after the last run all count, since
        earlier figures are not of the data, settings and code at hand. Policies and rhos that were not played
        yet do not count: a report says that it lacks them.
        """
        return self._older_figures

    @cached_property
    def _older_figures(self) -> OlderData | None:
        """The value of `older_figures`, remembered until `forget`.

        Figures are made from the stages `replay_problem` and `tuning` and from the replays of the tuned
        policies (of all policies if none is tuned), or from the stage `off_policy` of a pool that is a log.
        These artifacts and their inputs are examined, and no others.
        """
        if self.pool.logged:
            return self.older_data([self.stage("off_policy")])
        played = self.over(self.tuned)
        return played.older_data([played.stage("replay_problem"), played.stage("tuning"), *played.replays()])

    def older_data(self, targets: Iterable[Target]) -> OlderData | None:
        """Return why figures made from these artifacts are of older data, or None if all are up to date.

        Missing artifacts are passed over, since they have no figures.
        """
        reasons: dict[str, None] = {}
        made = ""
        since = ""
        for target in targets:
            try:
                record = self.store.record(target.parts)
                if record is None:
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
        if reasons:
            return OlderData(tuple(reasons), made or "at an unknown time", since)
        return None

    def require_current(self, targets: Iterable[Target]) -> None:
        """Check that none of the present ones of these artifacts is of older data.

        Raises:
            ProvenanceError: one is of older data; the message says why.
        """
        older = self.older_data(targets)
        if older is not None:
            raise ProvenanceError(f"pool {self.pool.name}: {older} `cabs run --pool {self.pool.name}` first")

    def overview(self, rhos: Iterable[float] = (), policies: Iterable[str] = ()) -> list[Status]:
        """Return the states of all stages and replays, in the order in which they are made.

        Args:
            rhos: rhos of the replays; default: all of the pool.
            policies: policies of the replays; default: all of the pool.
        """
        stages = [self.status(self.stage(name)) for name in self.stages]
        return stages + [self.status(target) for target in self.replays(rhos, policies)]


@dataclass(frozen=True)
class _OfPool:
    """A stage or replay of a pool as the rule of freshness sees it."""

    chain: Chain
    target: Target

    @property
    def name(self) -> str:
        return self.target.name

    @property
    def inputs(self) -> Sequence[Artifact]:
        return [_OfPool(self.chain, source) for source in self.target.inputs]

    def record(self) -> Record | None:
        return self.chain.store.record(self.target.parts)

    def recipe(self, inputs: Mapping[str, Record]) -> Recipe:
        target = self.target
        contents = target.definition.files(self.chain.pool_file)
        for name, record in inputs.items():
            contents[name] = record.content
            if target.policy is not None and POOL_STAGES[name].by_policy:  # its own policy's part only
                contents[name] = str(record.summary.get("parts", {}).get(target.policy, "none"))
        return Recipe(
            target.name,
            target.partition,
            target.code_version,
            target.config,
            contents,
            target.definition.volatile,
        )

    def faults(self, record: Record) -> list[str]:
        store = self.chain.store
        # the files of a remote artifact are compared with its record when they are read
        if store.remote:
            damage = []
        else:
            damage = store.damage(self.target.parts, record)
        if damage or not self.target.definition.goes_on:
            return damage
        return self.target.definition.summary(record).outdated(self.chain)
