"""Planning: what is there, what is out of date and why, and what can be made next.

One planner serves the command line, the sensor and the consumers that verify their inputs, so that all of them
agree. It reads provenance records only; nothing is computed and nothing is launched here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cabs_core.errors import ProvenanceError
from cabs_core.pools import PoolFile
from cabs_dagster.provenance import Record, hash_file, make_key
from cabs_dagster.stages import POOL_STAGES, Target
from cabs_dagster.storage import ArtifactStore

State = Literal["fresh", "stale", "missing", "waiting", "blocked"]


@dataclass(frozen=True)
class Status:
    """State of one target.

    Attributes:
        state: fresh: nothing to do; stale: there is one, made from something else; missing: there is none;
            waiting: an input has to be made first, so it cannot be said; blocked: an input failed a check.
        reasons: why it is not fresh.
        key: what a fresh artifact would have; empty while waiting.
        record: the record that is there, if any.
    """

    target: Target
    state: State
    reasons: tuple[str, ...] = ()
    key: str = ""
    record: Record | None = None
    inputs: dict[str, str] = field(default_factory=dict)


class Chain:
    """The chain of one pool over an artifact store.

    Statuses and which inputs were verified are remembered: make a new object to see changes on disk.
    """

    def __init__(self, store: ArtifactStore, pool_file: PoolFile):
        self.store = store
        self.pool_file = pool_file
        self.pool = pool_file.pool
        self._known: dict[tuple[str, ...], Status] = {}
        self._verified: dict[tuple[str, ...], tuple[Path, Record]] = {}

    def stage(self, name: str) -> Target:
        """Target of a pool stage."""
        return Target(name, self.pool)

    def replays(self, rhos: Iterable[float] = (), policies: Iterable[str] = ()) -> Iterator[Target]:
        """Replay targets: every rho and policy of the pool, or those given."""
        for rho in tuple(rhos) or self.pool.replay.rhos:
            for policy in tuple(policies) or self.pool.policies:
                yield Target("replay", self.pool, rho, policy)

    def status(self, target: Target) -> Status:
        """State of a target, its inputs examined first."""
        known = self._known.get(target.parts)
        if known is None:
            known = self._known[target.parts] = self._examine(target)
        return known

    def forget(self, target: Target) -> None:
        """Look at this target, and at whatever may depend on it, afresh."""
        self._known.clear() if target.policy is None else self._known.pop(target.parts, None)

    def _examine(self, target: Target) -> Status:
        record = self.store.record(target.parts)
        inputs: dict[str, str] = self.external_inputs(target)
        for source in target.inputs:
            status = self.status(source)
            if status.state == "blocked":
                return Status(target, "blocked", status.reasons, record=record)
            if status.state != "fresh" or status.record is None:
                return Status(target, "waiting", (f"{source.stage} has to be made first",), record=record)
            if status.record.summary.get("_blocked"):
                failed = "; ".join(status.record.summary["_blocked"])
                return Status(
                    target, "blocked", (f"{source.stage} failed a check ({failed})",), record=record
                )
            inputs[source.stage] = input_content(target, source, status.record)
        version, config = target.code_version, target.config
        key = make_key(target.name, target.partition, version, config, inputs)
        if record is None:
            return Status(target, "missing", ("not made yet",), key, None, inputs)
        if record.key != key:
            reasons = record.explain(code_version=version, config=config, inputs=inputs)
            return Status(
                target, "stale", tuple(reasons) or ("made by another version",), key, record, inputs
            )
        return Status(target, "fresh", (), key, record, inputs)

    def external_inputs(self, target: Target) -> dict[str, str]:
        """Content of files outside the store that a stage reads: the outcome table, or a local mirror."""
        if target.stage != "outcomes":
            return {}
        source = self.pool.source
        if source.kind == "file":
            return {"table": hash_file(self.pool_file.table_path())}
        folder = self.pool_file.mirror_path()
        if folder is not None:
            files = sorted(p for p in folder.rglob("*") if p.is_file()) if folder.is_dir() else []
            return {f"mirror/{p.relative_to(folder).as_posix()}": hash_file(p) for p in files}
        return {}

    def require(self, target: Target) -> dict[str, tuple[Path, Record]]:
        """{input stage: (folder, record)} of a target, every input verified once down to the bytes of its files.

        Raises:
            ProvenanceError: an input is missing, was made from other inputs or settings than those at hand, or
                was altered; the message says what to refresh, first things first.
        """
        own = self.status(target)
        if own.state == "blocked":
            raise ProvenanceError(
                f"{_words(target)} is not made, because {own.reasons[0]}. Correct the data or the pool."
            )
        found: dict[str, tuple[Path, Record]] = {}
        for source in target.inputs:
            problem = self._first_problem(source)
            if problem is not None:
                raise ProvenanceError(
                    f"{_words(target)} needs {_words(problem.target)}, which is {_state(problem)}. Materialise "
                    f"{problem.target.stage} for pool {self.pool.name} first (or `cabs run --pool {self.pool.name}`)."
                )
            record = self.status(source).record
            assert record is not None
            known = self._verified.get(source.parts)
            if known is None or known[1] is not record:
                known = self._verified[source.parts] = self.store.verify_files(source.parts, record), record
            found[source.stage] = known
        return found

    def verified(self, target: Target) -> Path:
        """Folder of an artifact that is there, its files compared with its record.

        Raises:
            ProvenanceError: there is none, or a file was altered.
        """
        record = self.store.record(target.parts)
        if record is None:
            raise ProvenanceError(f"there is no {_words(target)} yet: materialise it first")
        return self.store.verify_files(target.parts, record)

    def _first_problem(self, target: Target) -> Status | None:
        for source in target.inputs:
            problem = self._first_problem(source)
            if problem is not None:
                return problem
        status = self.status(target)
        return None if status.state == "fresh" else status

    def overview(self, rhos: Iterable[float] = (), policies: Iterable[str] = ()) -> list[Status]:
        """Statuses of all stages and replays, in the order in which they are made."""
        stages = [self.status(self.stage(name)) for name in POOL_STAGES]
        return stages + [self.status(target) for target in self.replays(rhos, policies)]


def input_content(target: Target, source: Target, record: Record) -> str:
    """What of an input matters to a target: of the tuning, a replay reads its own policy's part only."""
    if target.policy is not None and source.stage == "tuning":
        return str(record.summary.get("parts", {}).get(target.policy, "none"))
    return record.content


def _words(target: Target) -> str:
    return f"{target.name} of pool {target.pool.name}" + (
        f" at rho {target.rho:g}" if target.rho is not None else ""
    )


def _state(status: Status) -> str:
    if status.state == "missing":
        return "not there"
    more = f"; and {len(status.reasons) - 3} more" if len(status.reasons) > 3 else ""
    return f"out of date ({'; '.join(status.reasons[:3])}{more})"
