"""Provenance: everything that an artifact is made from (`Recipe`), and the record of a made one (`Record`).

The *key* is a hash of everything that determines an artifact: the stage, the pool and rho, the version of the
code, the settings that the stage reads, and the content hashes of its inputs. Artifacts with equal keys are
equal, so an artifact whose key has not changed is not made again. The *content* hash is over the files, and
serves as Dagster's data version. A file that is listed as volatile (wall-clock measurements) is hashed on its
own but is no part of the content.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from cabs_core.base.hashing import stable_hash
from cabs_core.base.versions import package_versions

RECORD_NAME = "provenance.json"
FORMAT = 4
#: why an artifact is out of date whose record another version wrote; see `OtherVersionRecord`
EARLIER = "made by an earlier version; `cabs run` makes it again"
LATER = "made by a later version; `cabs run` makes it again"


def content_hash(files: Mapping[str, Mapping[str, Any]], volatile: Iterable[str] = ()) -> str:
    """Return one hash over names and hashes of files. Volatile files are left out."""
    skip = set(volatile)
    return stable_hash({name: entry["sha256"] for name, entry in files.items() if name not in skip}, 32)


def described(name: str, partition: str) -> str:
    """Return words for an artifact, such as `replay/lin_ucb of pool demo at rho 300`."""
    pool, _, rho = partition.partition("|")
    return name + (f" of pool {pool}" if pool else "") + (f" at rho {float(rho):g}" if rho else "")


def _short(value: Any) -> str:
    """Return a value as JSON of at most 80 characters."""
    text = json.dumps(value, sort_keys=True)
    if len(text) <= 80:
        return text
    return text[:77] + "..."


@dataclass(frozen=True)
class Recipe:
    """Everything that determines an artifact: a stage of a pool, a replay, a mart or a page.

    Attributes:
        name, partition: the identity of the artifact.
        code_version: hash of the code that makes it.
        config: {setting: value} of the settings that it reads.
        inputs: {name: content hash} of what it is made from.
        volatile: files with wall-clock measurements, which are no part of the content.
    """

    name: str
    partition: str
    code_version: str
    config: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    volatile: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Hash of name, partition, code version, settings and inputs, which determine the artifact."""
        parts = [FORMAT, self.name, self.partition, self.code_version, dict(self.config), dict(self.inputs)]
        return stable_hash(parts, 32)

    @property
    def described(self) -> str:
        """Words for messages, such as `splits of pool demo`."""
        return described(self.name, self.partition)

    def outdated(self, record: Record) -> list[str]:
        """Return the reasons why a record's artifact differs from what this recipe makes now, if any."""
        if record.other_version:
            return [record.other_version]
        if record.key == self.key:
            return []
        reasons = []
        for name in sorted(set(self.inputs) | set(record.inputs)):
            if name not in record.inputs:
                reasons.append(f"{name} is a new input")
            elif name not in self.inputs:
                reasons.append(f"{name} is no longer an input")
            elif self.inputs[name] != record.inputs[name]:
                reasons.append(f"{name} changed")
        for name in sorted(set(self.config) | set(record.config)):
            old = record.config.get(name)
            new = self.config.get(name)
            if old != new:
                reasons.append(f"setting {name}: {_short(old)} -> {_short(new)}")
        if self.code_version != record.code_version:
            reasons.append(f"code version {record.code_version} -> {self.code_version}")
        return reasons or [EARLIER]

    def record(
        self,
        files: Mapping[str, Mapping[str, Any]],
        summary: Mapping[str, Any],
        *,
        content: str = "",
        seconds: float = 0.0,
        run_id: str = "",
    ) -> Record:
        """Return the record of the artifact that was just made by this recipe.

        Args:
            files: as `hash_folder` gives them.
            summary: findings of the stage, as JSON values.
            content: hash of the content if it differs from the hash of the files. Empty takes the latter.
            seconds: how long the work took.
            run_id: the run that made the artifact.
        """
        return Record(
            **vars(self),
            content=content or content_hash(files, self.volatile),
            files={name: dict(entry) for name, entry in files.items()},
            packages=package_versions(),
            summary=dict(summary),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=round(seconds, 3),
            run_id=run_id,
        )


@dataclass(frozen=True)
class Record(Recipe):
    """A recipe that was followed, and the artifact that it gave. A record is kept on disk as JSON.

    Attributes:
        content: hash of the artifact's files without the volatile ones; key of the recipe for an SQL view.
        files: {name: {"sha256", "bytes"}}.
        pruned: names of files that were deleted since.
        packages: {package: version} at the time.
        summary: findings of the stage, as JSON values.
        created: time in UTC, ISO 8601; seconds: how long the work took.
        run_id: Dagster's run that made the artifact, empty outside of Dagster.
    """

    content: str = ""
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    pruned: tuple[str, ...] = ()
    packages: dict[str, str] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    created: str = ""
    seconds: float = 0.0
    run_id: str = ""

    @property
    def other_version(self) -> str:
        """Reason why this version cannot use the artifact. Empty if this version wrote the record."""
        return ""

    @staticmethod
    def parse(data: bytes) -> Record:
        """Return the record from the bytes of `to_bytes`.

        A record that another version wrote gives an `OtherVersionRecord`: its artifact is out of date, and
        not damaged.

        Raises:
            ValueError: the bytes are no record, or something in it was changed since it was written.
        """
        loaded = json.loads(data)
        if not isinstance(loaded, dict) or not isinstance(loaded.get("format"), int):
            raise ValueError("it is no record")
        seal = loaded.pop("seal", None)
        is_other_format = loaded["format"] != FORMAT
        # the first formats had no seal
        if seal != stable_hash(loaded, 32) and not (is_other_format and seal is None):
            raise ValueError("it was altered since it was written")
        if is_other_format:
            return _of_other_version(loaded, EARLIER if loaded["format"] < FORMAT else LATER)
        if loaded.keys() - {"format"} != {entry.name for entry in fields(Record)}:
            return _of_other_version(loaded, EARLIER)
        del loaded["format"]
        return Record(**loaded | {name: tuple(loaded[name]) for name in ("volatile", "pruned")})

    def to_bytes(self) -> bytes:
        """Return the record as JSON, keys sorted, with a hash over all of it as `seal`."""
        values = json.loads(json.dumps(asdict(self) | {"format": FORMAT}))
        return json.dumps(values | {"seal": stable_hash(values, 32)}, sort_keys=True, indent=1).encode()


@dataclass(frozen=True)
class OtherVersionRecord(Record):
    """A record in the format of another version, of which only identity, code version and time are read.

    Its artifact is there and out of date. Its files are not compared with the record, and none is used.

    Attributes:
        reason: why the artifact is out of date.
    """

    reason: str = EARLIER

    @property
    def other_version(self) -> str:
        return self.reason


def _of_other_version(loaded: Mapping[str, Any], reason: str) -> OtherVersionRecord:
    """Return the record that another version wrote, reduced to its identity, code version and time."""
    return OtherVersionRecord(
        name=str(loaded.get("name", "")),
        partition=str(loaded.get("partition", "")),
        code_version=str(loaded.get("code_version", "")),
        created=str(loaded.get("created", "")),
        reason=reason,
    )
