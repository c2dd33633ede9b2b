"""Finding and reading pool files: the shipped ones and the user's folder (`CABS_POOLS_DIR`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import yaml
from pydantic import ValidationError

from cabs_core.catalog import check_policy_name
from cabs_core.errors import PoolError
from cabs_core.paths import data_dir, pools_dir
from cabs_core.pools.config import ModelPool

SHIPPED = Path(__file__).parent / "shipped"
_SUFFIXES = (".yaml", ".yml")
_LARGEST = 1 << 20
#: libyaml's parser where it is compiled in: ten times as fast, and as safe.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class PoolFile:
    """A pool and the file it was read from."""

    pool: ModelPool
    path: Path
    shipped: bool

    def table_path(self) -> Path:
        """Absolute path of the outcome table of a `file` pool.

        A relative path is looked for in CABS_DATA_DIR, then beside the pool file.

        Raises:
            PoolError: the table is in neither place.
        """
        wanted = Path(self.pool.source.path or "").expanduser()
        if wanted.is_absolute():
            places = [wanted]
        else:
            places = [folder / wanted for folder in (data_dir(), self.path.parent) if folder is not None]
        for place in places:
            if place.is_file():
                return place.absolute()
        looked = " nor ".join(str(p) for p in places)
        hint = "" if data_dir() else " CABS_DATA_DIR is not set: set it to the folder that holds the table."
        raise PoolError(
            f"pool {self.pool.name!r} ({self.path}): source.path {str(wanted)!r} is not at {looked}.{hint}"
        )


def load_pool_file(path: Path) -> PoolFile:
    """Read and validate one pool file.

    Raises:
        PoolError: unreadable, not safe YAML, or not a valid pool; the message names file, field and value.
    """
    path = Path(path)
    if not path.is_file():
        raise PoolError(f"pool file {path} does not exist")
    if path.stat().st_size > _LARGEST:
        raise PoolError(f"pool file {path} is larger than 1 MiB: this is not a pool file")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise PoolError(f"pool file {path} is not plain YAML: {error}") from None
    return PoolFile(_parse(path, text), path.absolute(), path.absolute().parent == SHIPPED)


@lru_cache(maxsize=256)
def _parse(path: Path, text: str) -> ModelPool:
    try:
        data = yaml.load(text, Loader=_LOADER)
    except (yaml.YAMLError, RecursionError) as error:
        raise PoolError(f"pool file {path} is not plain YAML: {error}") from None
    if not isinstance(data, dict):
        raise PoolError(
            f"pool file {path}: expected a mapping of fields at the top, found {type(data).__name__}"
        )
    data.setdefault("name", path.stem)
    try:
        pool = ModelPool.model_validate(data)
    except ValidationError as error:
        raise PoolError(_explain(path, error)) from None
    except PoolError as error:  # of a name; pydantic lets it through as it is
        raise PoolError(f"pool file {path}: {error}") from None
    _check_policies(path, pool)
    return pool


def list_pools() -> tuple[list[PoolFile], list[PoolError]]:
    """All valid pools, shipped first, and the errors of the invalid files. A broken file hides no other."""
    found: dict[str, PoolFile] = {}
    errors: list[PoolError] = []
    for folder in (SHIPPED, pools_dir()):
        if not folder.is_dir():
            continue
        for path in sorted(
            p for p in folder.iterdir() if p.suffix in _SUFFIXES and not p.name.startswith(".")
        ):
            try:
                pool_file = load_pool_file(path)
                name = pool_file.pool.name
                if name in found:
                    raise PoolError(
                        f"pool file {path}: the name {name!r} is taken by {found[name].path}; rename it"
                    )
                found[name] = pool_file
            except PoolError as error:
                errors.append(error)
    return list(found.values()), errors


def find_pool(name: str) -> PoolFile:
    """The pool called `name`.

    Raises:
        PoolError: no such pool (the known ones are listed), or its file is invalid.
    """
    pools, errors = list_pools()
    for pool_file in pools:
        if pool_file.pool.name == name:
            return pool_file
    broken = [str(error) for error in errors if f"{name}.y" in str(error)]
    if broken:
        raise PoolError(broken[0])
    known = ", ".join(p.pool.name for p in pools)
    raise PoolError(f"no pool called {name!r}; known pools: {known}. Add one with `cabs pool add FILE`.")


def _explain(path: Path, error: ValidationError) -> str:
    lines = []
    for item in error.errors():
        place = ".".join(str(part) for part in item["loc"]) or "(top level)"
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            message = "unknown field; docs/model-pools.md lists those there are"
        found = "" if item["type"] in ("value_error", "missing") else f" (found {item.get('input')!r:.120})"
        lines.append(f"  {place}: {message}{found}")
    return f"pool file {path} is not a valid model pool:\n" + "\n".join(lines)


def _check_policies(path: Path, pool: ModelPool) -> None:
    for field, names in (("policies", pool.policies), ("reference_policy", (pool.reference_policy,))):
        for name in names:
            try:
                check_policy_name(name)
            except Exception as error:
                raise PoolError(f"pool file {path}: {field}: {error}") from None
