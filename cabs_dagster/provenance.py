"""Provenance records: what an artifact was made from, by which code, and what it holds.

What belongs here: the record, hashing of files and of keys. What does not: where records lie (`storage.py`) and
which stage needs what (`stages.py`, `planning.py`).

The *key* is a hash of everything that determines an artifact: the stage, its code version, the settings that it
reads, and the content hashes of its inputs. Equal key, equal artifact: nothing needs to be computed again.
The *content* hash is over the files, and serves as Dagster's data version. A file that is listed as volatile
(wall-clock measurements) is hashed on its own but not part of the content.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import stat
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RECORD_NAME = "provenance.json"
FORMAT = 1
_PACKAGES = (
    "numpy",
    "scipy",
    "torch",
    "transformers",
    "scikit-learn",
    "numba",
    "pandas",
    "pyarrow",
    "duckdb",
)


def stable_hash(value: Any, digits: int = 16) -> str:
    """Hex SHA-256 of a JSON-able value, independent of the order of mapping keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


@lru_cache(maxsize=65536)
def _hash_file(path: str, size: int, mtime_ns: int, inode: int) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def hash_file(path: str | Path) -> str:
    """SHA-256 of a file; remembered within the process for as long as size and times stay the same."""
    return _hashed(str(path), os.stat(path))


def _hashed(path: str, status: os.stat_result) -> str:
    return _hash_file(path, status.st_size, status.st_mtime_ns, status.st_ino)


def hash_folder(folder: Path) -> dict[str, dict[str, Any]]:
    """{relative name: {"sha256", "bytes"}} of every file below `folder` but the record, sorted by name."""
    found = {}
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            try:
                status = os.stat(path)
            except OSError:  # a link to nowhere
                continue
            if name != RECORD_NAME and stat.S_ISREG(status.st_mode):  # not a socket
                entry = {"sha256": _hashed(path, status), "bytes": status.st_size}
                found[os.path.relpath(path, folder).replace(os.sep, "/")] = entry
    return dict(sorted(found.items()))


def content_hash(files: Mapping[str, Mapping[str, Any]], volatile: Iterable[str] = ()) -> str:
    """One hash over names and hashes of the files, the volatile ones left out."""
    skip = set(volatile)
    return stable_hash({name: entry["sha256"] for name, entry in files.items() if name not in skip}, 32)


@lru_cache(maxsize=1)
def package_versions() -> dict[str, str]:
    """Versions of the libraries that results may depend on."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


@dataclass(frozen=True)
class Record:
    """What is known of one artifact. Plain JSON on disk."""

    stage: str
    partition: str
    key: str
    content: str
    code_version: str
    config: dict[str, Any]
    inputs: dict[str, str]
    files: dict[str, dict[str, Any]]
    volatile: tuple[str, ...] = ()
    pruned: tuple[str, ...] = ()
    packages: dict[str, str] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    created: str = ""
    seconds: float = 0.0
    run_id: str = ""
    format: int = FORMAT

    @classmethod
    def parse(cls, data: bytes) -> Record:
        """From JSON bytes. Raises ValueError or TypeError when the format is another one."""
        loaded = json.loads(data)
        if loaded.get("format") != FORMAT:
            raise ValueError(f"record format {loaded.get('format')!r}, expected {FORMAT}")
        loaded["volatile"], loaded["pruned"] = tuple(loaded["volatile"]), tuple(loaded["pruned"])
        return cls(**loaded)

    def to_bytes(self) -> bytes:
        """JSON bytes, keys sorted."""
        return json.dumps(asdict(self), sort_keys=True, indent=1).encode()

    def describe(self) -> str:
        """Words for messages, such as `splits of pool demo`."""
        pool, _, rho = self.partition.partition("|")
        if not pool:
            return self.stage
        return f"{self.stage} of pool {pool}" + (f" at rho {float(rho):g}" if rho else "")

    def explain(
        self, *, code_version: str, config: Mapping[str, Any], inputs: Mapping[str, str]
    ) -> list[str]:
        """Reasons why the artifact is not what would be made now; empty when it is."""
        reasons = []
        for name in sorted(set(inputs) | set(self.inputs)):
            if name not in self.inputs:
                reasons.append(f"{name} is a new input")
            elif name not in inputs:
                reasons.append(f"{name} is no longer an input")
            elif inputs[name] != self.inputs[name]:
                reasons.append(f"{name} changed")
        for name in sorted(set(config) | set(self.config)):
            old, new = self.config.get(name), config.get(name)
            if old != new:
                reasons.append(f"setting {name}: {_short(old)} -> {_short(new)}")
        if code_version != self.code_version:
            reasons.append(f"code version {self.code_version} -> {code_version}")
        return reasons


def _short(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 80 else text[:77] + "..."


def make_key(stage: str, partition: str, code_version: str, config: Mapping, inputs: Mapping) -> str:
    """The key of an artifact, see the module's text."""
    return stable_hash([FORMAT, stage, partition, code_version, dict(config), dict(inputs)], 32)
