"""Finding pools: the shipped files and those of the user's folder (`CABS_POOLS_DIR`)."""

from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name

from cabs_core.base.catalog.policies import name_and_options, policy_record
from cabs_core.base.errors import PolicyError, PoolError, did_you_mean
from cabs_core.base.paths import pools_dir
from cabs_core.data.pool_files.messages import pool_error, shown_path
from cabs_core.data.pool_files.read import PoolFile, read_pool_file

SHIPPED = Path(__file__).parent / "shipped"
_SUFFIXES = (".yaml", ".yml")


def load_pool_file(path: Path) -> PoolFile:
    """Return one validated pool file.

    If the source reads a table and the file sets no rhos, the rhos are computed from the costs in the table
    (`rhos_for_table`). If the costs cannot be read, remembered rhos or the paper's are taken, and
    `PoolFile.rhos_from` is the reason.

    Raises:
        PoolError: the file cannot be read, is not plain YAML, or is not a valid pool. The message names the
            file, the field and the value, and the line if it is known, in at most 500 characters.
    """
    pool_file = read_pool_file(path)
    pool_file = replace(
        pool_file, shipped=pool_file.path.parent == SHIPPED, problems=_check_options(pool_file)
    )
    if pool_file.rhos_from == "file":
        return pool_file
    from cabs_core.data.pools.rhos_from_costs import rhos_for_table  # noqa: PLC0415  (pandas: few pools)

    rhos, reason = rhos_for_table(pool_file)
    replay = pool_file.pool.replay.model_copy(update={"rhos": rhos})
    pool = pool_file.pool.model_copy(update={"replay": replay})
    return replace(pool_file, pool=pool, rhos_from=reason or "costs")


def _check_options(pool_file: PoolFile) -> tuple[str, ...]:
    """Check the options of the pool's policies against the policies' classes.

    Policies without options are not imported.

    Returns:
        A sentence for each policy whose module cannot be imported. The pool stays valid, since the fault lies
        in another package.

    Raises:
        PoolError: a policy has no such option, or refuses its value.
    """
    pool = pool_file.pool
    problems: list[str] = []
    for name in filter(None, (*pool.policies, pool.reference_policy, pool.router.policy)):
        if not name_and_options(name)[1]:
            continue
        try:
            policy = resolve_name(policy_record(name).path)  # compiles: for pools with options only
        except Exception as error:  # whatever a module of another package raises
            problems.append(f"policy {name} cannot be imported: {type(error).__name__}: {error}")
            continue
        try:
            policy.parse(name, {})
        except PolicyError as error:
            raise pool_error(pool_file.path, None, f"policies: {error}") from None
    return tuple(dict.fromkeys(problems))


def list_pools() -> tuple[list[PoolFile], list[PoolError]]:
    """Return all valid pools, shipped ones first, and the errors of invalid files and unreadable folders.

    A file whose pool has the name of an earlier one counts as invalid.
    """
    pool_files: dict[str, PoolFile] = {}
    errors: list[PoolError] = []
    for folder in (SHIPPED, pools_dir()):
        try:
            paths = sorted(p for p in folder.iterdir() if p.suffix in _SUFFIXES and p.name[0] != ".")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            errors.append(PoolError(f"pool folder {shown_path(folder)} cannot be read: {error.strerror}"))
            continue
        for path in paths:
            try:
                pool_file = load_pool_file(path)
                name = pool_file.pool.name
                if name in pool_files:
                    taken = pool_error(
                        path, None, f"the name {name!r} is taken by {shown_path(pool_files[name].path)}"
                    )
                    taken.path = path
                    raise taken
                pool_files[name] = pool_file
            except PoolError as error:
                errors.append(error)
    return list(pool_files.values()), errors


def find_pool(name: str) -> PoolFile:
    """Return the pool with a name.

    Raises:
        PoolError: there is no such pool (the closest and the known ones are named), or its file is invalid.

    Examples:
        >>> from cabs_core import find_pool
        >>> find_pool("demo").pool.source.kind
        'synthetic'
    """
    pools, errors = list_pools()
    for pool_file in pools:
        if pool_file.pool.name == name:
            return pool_file
    for error in errors:
        if error.path is not None and error.path.stem == name:
            raise error
    names = [p.pool.name for p in pools]
    raise PoolError(
        f"no pool called {name!r:.100}.{did_you_mean(name, names)} Known pools: {', '.join(names)}. Add one "
        "with `cabs pool add FILE`."
    )
