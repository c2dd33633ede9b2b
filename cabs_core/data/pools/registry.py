"""The registry of pools: adding a pool file to the user's folder, and the list of retired pools."""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cabs_core.base.atomic import write_bytes, write_text
from cabs_core.base.errors import PoolError
from cabs_core.base.paths import cabs_home, pools_dir
from cabs_core.data.pool_files import PoolFile, flatten
from cabs_core.data.pools.find import find_pool, list_pools, load_pool_file


def retired() -> set[str]:
    """Return the names of the retired pools, none if there is no `registry.json`.

    Raises:
        PoolError: `registry.json` in CABS_HOME cannot be read.
    """
    path = cabs_home() / "registry.json"
    try:
        names = json.loads(path.read_text(encoding="utf-8"))["retired"]
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            return set(names)
        problem = f"`retired` is {names!r}, expected a list of names"
    except FileNotFoundError:
        return set()
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"{type(error).__name__}: {error}"
    raise PoolError(f"{path} cannot be read ({problem}): correct it, or delete it to have all pools active")


@contextmanager
def edit_retired() -> Iterator[set[str]]:
    """Yield the names of the retired pools. Changes of the set are saved unless the block raises.

    A lock keeps other processes from editing at the same time.

    Raises:
        PoolError: `registry.json` in CABS_HOME cannot be read.
    """
    cabs_home().mkdir(parents=True, exist_ok=True)
    with open(cabs_home() / "registry.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        names = retired()
        yield names
        write_text(cabs_home() / "registry.json", json.dumps({"retired": sorted(names)}, indent=1))


def active_pools() -> tuple[list[PoolFile], list[PoolError]]:
    """Return all valid pools that are not retired, and the errors of invalid files.

    Raises:
        PoolError: `registry.json` in CABS_HOME cannot be read.
    """
    pools, errors = list_pools()
    gone = retired()
    return [p for p in pools if p.pool.name not in gone], errors


def active_pool(name: str) -> PoolFile:
    """Return the pool with a name.

    Raises:
        PoolError: there is no such pool, its file is invalid, or it is retired.
    """
    pool_file = find_pool(name)
    if name in retired():
        raise PoolError(f"pool {name!r} is retired: `cabs pool restore {name}` takes it back")
    return pool_file


@dataclass(frozen=True)
class Added:
    """A pool file that was copied into the pool folder.

    Attributes:
        pool_file: the copy.
        verb: `added` or `updated`.
        changes: settings that differ from the file before, or `nothing changed`. Empty for an added pool.
    """

    pool_file: PoolFile
    verb: str
    changes: list[str]


def add_pool(file: Path, today: str | None = None) -> Added:
    """Validate a pool file and copy it into the pool folder, atomically.

    Paths relative to the file are made absolute, so that they still hold after the copy.

    Args:
        file: the pool file.
        today: today's model, written into the copy as the field `today`. None adds no such field.

    Raises:
        PoolError: the file is not a valid pool, another pool file has its name, or `today` is not valid or
            cannot be added since the file is one `{...}` mapping. The pool folder is then as before.
    """
    given = load_pool_file(file)
    text = given.portable_text()
    if today is not None:
        if text.lstrip().startswith("{"):  # one flow mapping: a line after it is no field of it
            raise PoolError(f"{file}: the file is one {{...}} mapping: write today: {today} into it")
        text = f"{text.rstrip()}\ntoday: {json.dumps(today, ensure_ascii=False)}\n"
    name = given.pool.name
    known = {p.pool.name: p for p in list_pools()[0]}.get(name)
    target = pools_dir() / f"{name}.yaml"
    if known is not None and known.path != target.absolute():
        raise PoolError(f"{file}: the name {name!r} is taken by {known.path}; set another `name` in the file")
    earlier = target.read_bytes() if target.is_file() else None
    write_bytes(target, text.encode())
    try:
        added = load_pool_file(target)
    except PoolError:  # `today` is not valid
        if earlier is None:
            target.unlink()
        else:
            write_bytes(target, earlier)
        raise
    if known is None:
        return Added(added, "added", [])
    before, after = (p.pool.model_dump(mode="json") for p in (known, added))
    return Added(added, "updated", differences(before, after) or ["nothing changed"])


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return the changes between two pools' settings, such as `replay.trials: 10 -> 20`.

    A setting that is absent counts as null.
    """
    before = flatten(old)
    after = flatten(new)
    return [
        f"{name}: {_short(before.get(name))} -> {_short(after.get(name))}"
        for name in sorted(set(before) | set(after))
        if before.get(name) != after.get(name)
    ]


def _short(value: Any) -> str:
    """Return a value as JSON, cut to 100 characters that end in `...`."""
    text = json.dumps(value)
    if len(text) <= 100:
        return text
    return text[:97] + "..."
