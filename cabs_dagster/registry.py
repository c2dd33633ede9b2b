"""Which pools are known, what their settings were when last accepted, and which are retired.

What belongs here: `$CABS_HOME/registry.json`, adding, retiring and restoring pools. What does not: validation of
pool files (`cabs_core.pools`) and launching anything.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg

from cabs_core.atomic import write_bytes, write_text
from cabs_core.errors import PoolError
from cabs_core.paths import cabs_home, pools_dir
from cabs_core.pools import ModelPool, PoolFile, find_pool, list_pools, load_pool_file
from cabs_dagster import partitions
from cabs_dagster.stages import POOL_STAGES, REPLAY_SETTINGS, flatten
from cabs_dagster.storage import ArtifactStore

#: Folders of the store that belong to one pool each.
_POOL_FOLDERS = (*POOL_STAGES, "replay", "reports")


def _path() -> Path:
    return cabs_home() / "registry.json"


def _read() -> dict[str, Any]:
    try:
        return json.loads(_path().read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"pools": {}, "retired": []}


@contextmanager
def _edit() -> Iterator[dict[str, Any]]:
    cabs_home().mkdir(parents=True, exist_ok=True)
    with open(cabs_home() / "registry.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        data = _read()
        yield data
        write_text(_path(), json.dumps(data, indent=1, sort_keys=True))


def retired() -> set[str]:
    """Names of the retired pools."""
    return set(_read()["retired"])


def followed() -> set[str]:
    """Names of the pools that the sensor keeps up to date although they are not in the user's folder."""
    return set(_read().get("followed", []))


def follow(name: str) -> None:
    """Let the sensor keep a pool up to date."""
    if name not in followed():
        with _edit() as data:
            data["followed"] = sorted({*data.get("followed", []), name})


def active_pools() -> tuple[list[PoolFile], list[PoolError]]:
    """All valid pools that are not retired, and the errors of invalid files."""
    pools, errors = list_pools()
    gone = retired()
    return [p for p in pools if p.pool.name not in gone], errors


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """[(dotted field, old value, new value)] of two pools' settings."""
    before, after = flatten(old), flatten(new)
    return [
        (name, before.get(name), after.get(name))
        for name in sorted(set(before) | set(after))
        if before.get(name) != after.get(name)
    ]


def accept(pool: ModelPool) -> list[tuple[str, Any, Any]] | None:
    """Remember a pool's settings. Returns what changed since it was last accepted; None for a new pool."""
    settings = pool.model_dump(mode="json")
    if _read()["pools"].get(pool.name) == settings:
        return []
    with _edit() as data:
        known = data["pools"].get(pool.name)
        data["pools"][pool.name] = settings
    return None if known is None else differences(known, settings)


def affected_stages(changes: list[tuple[str, Any, Any]]) -> list[str]:
    """Stages that read one of the changed settings themselves; what follows them may change as well."""
    names = [name for name, _, _ in changes]
    found = []
    for stage in POOL_STAGES.values():
        if any(n == s or n.startswith(f"{s}.") for n in names for s in stage.settings):
            found.append(stage.name)
    replay = (*(f"replay.{s}" for s in REPLAY_SETTINGS), "replay.rhos", "policies")
    if any(n == s or n.startswith(f"{s}.") for n in names for s in replay):
        found.append("replay")
    return found


def describe_change(change: tuple[str, Any, Any]) -> str:
    """`replay.trials: 10 -> 20`."""
    name, old, new = change
    return f"{name}: {_short(old)} -> {_short(new)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else text[:97] + "..."


@dataclass(frozen=True)
class Added:
    """A pool file that was taken into the pool folder; `changes` in words when it replaced one of the same name."""

    pool_file: PoolFile
    verb: str
    changes: list[str]


def add_pool(file: Path) -> Added:
    """Validate a pool file and copy it into the pool folder, atomically.

    Paths relative to the file are made absolute, so that they still hold after the copy.

    Raises:
        PoolError: the file is not a valid pool, or a shipped pool has the name.
    """
    given = load_pool_file(file)
    name = given.pool.name
    known = {p.pool.name: p for p in list_pools()[0]}
    other = known.get(name)
    target = pools_dir() / f"{name}.yaml"
    if other is not None and other.path != target.absolute():
        raise PoolError(f"{file}: the name {name!r} is taken by {other.path}; set another `name` in the file")
    write_bytes(target, given.portable_text().encode())
    changes = accept(load_pool_file(target).pool)
    if changes is None:
        return Added(find_pool(name), "added", [])
    words = [describe_change(c) for c in changes] or ["nothing changed"]
    return Added(find_pool(name), "updated", words)


def retire_pool(
    name: str, store: ArtifactStore, instance: dg.DagsterInstance, *, delete: bool = False
) -> None:
    """Take a pool out of everything; its artifacts are moved to `retired/` in the store, or deleted.

    Raises:
        PoolError: there is no such pool.
    """
    if name not in _read()["pools"]:
        find_pool(name)
    with _edit() as data:
        data["retired"] = sorted({*data["retired"], name})
    for folder in _POOL_FOLDERS:
        if delete:
            store.delete((folder, name))
        else:
            store.move((folder, name), ("retired", folder, name))
    if instance.has_dynamic_partition(partitions.POOLS, name):
        instance.delete_dynamic_partition(partitions.POOLS, name)


def restore_pool(name: str, store: ArtifactStore, instance: dg.DagsterInstance) -> None:
    """Take a retired pool back, with the artifacts that were set aside.

    Raises:
        PoolError: it is not retired, or its file is gone.
    """
    if name not in retired():
        raise PoolError(
            f"pool {name!r} is not retired; retired are: {', '.join(sorted(retired())) or 'none'}"
        )
    pool_file = find_pool(name)
    for folder in _POOL_FOLDERS:
        store.move(("retired", folder, name), (folder, name))
    with _edit() as data:
        data["retired"] = sorted(set(data["retired"]) - {name})
    partitions.register(instance, [pool_file.pool])
