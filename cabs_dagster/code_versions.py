"""Code versions: a hash of the modules that a stage or a policy runs, found by following imports.

What belongs here: reading source files with `ast`, walking the import graph, hashing. Nothing is imported.
What does not: deciding which modules a stage starts from (see `stages.py`).

The hash ignores comments, docstrings and layout, so that only changes of behaviour make results stale.
Registries name every policy; following them would tie each policy to all others, so they are cut points.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Iterable
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path

from cabs_core.atomic import write_text
from cabs_core.paths import cabs_home

PACKAGES = ("cabs_core", "dbt_like_sql", "assets")


@lru_cache(maxsize=1)
def _roots() -> dict[str, Path]:
    found = {}
    for package in PACKAGES:
        spec = find_spec(package)
        locations = list(spec.submodule_search_locations or []) if spec else []
        if locations:
            found[package] = Path(locations[0])
    return found


def module_file(module: str) -> Path | None:
    """File of a project module, without importing it; None for anything outside the project."""
    package, *rest = module.split(".")
    root = _roots().get(package)
    return None if root is None else _file_below(root, tuple(rest))


@cache
def _file_below(root: Path, rest: tuple[str, ...]) -> Path | None:
    base = root.joinpath(*rest)
    for candidate in (base.with_suffix(".py"), base / "__init__.py"):
        if rest and candidate.is_file():
            return candidate
    init = base / "__init__.py"
    return init if init.is_file() else None


class _Strip(ast.NodeTransformer):
    """Drops docstrings, which say what code does but do not change it."""

    def _visit(self, node: ast.AST) -> ast.AST:
        self.generic_visit(node)
        body = node.body  # type: ignore[attr-defined]
        if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            if isinstance(body[0].value.value, str):
                node.body = body[1:] or [ast.Pass()]  # type: ignore[attr-defined]
        return node

    visit_Module = visit_ClassDef = visit_FunctionDef = visit_AsyncFunctionDef = _visit


def _store() -> Path:
    """Where results of `_parsed` are kept between processes. `ast.dump` differs between Python versions."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return cabs_home() / "cache" / f"parsed-sources-{version}-1.json"


@lru_cache(maxsize=1)
def _kept() -> dict[str, list]:
    """{path: [stamp, hash, names]} from earlier processes: parsing a hundred files takes most of a second."""
    try:
        return json.loads(_store().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


_new: dict[str, list] = {}


def remember() -> None:
    """Keep what was parsed in this process for the next one, if there is a CABS_HOME that can be written to."""
    if _new and cabs_home().is_dir():
        try:
            write_text(_store(), json.dumps(_kept() | _new))
        except OSError:
            return
        _kept().update(_new)
        _new.clear()


@cache
def _parsed(path: Path, stamp: tuple[int, ...]) -> tuple[str, tuple[str, ...]]:
    """(hash of the behaviour, dotted names of the project that the file may import)."""
    known = _kept().get(str(path))
    if known is not None and known[0] == list(stamp):
        return known[1], tuple(known[2])
    found = _read(path)
    _new[str(path)] = [list(stamp), *found]
    return found


def _read(path: Path) -> tuple[str, tuple[str, ...]]:
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.append(node.module)
            names.extend(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # Lazy registries name modules in strings ("cabs_core.policies.linear.policy:LinUCB").
            dotted = node.value.partition(":")[0]
            if dotted.startswith(tuple(f"{p}." for p in PACKAGES)) and dotted.replace(".", "").isidentifier():
                names.append(dotted)
    body = ast.dump(_Strip().visit(tree), annotate_fields=False)
    ours = tuple(dict.fromkeys(name for name in names if name.partition(".")[0] in PACKAGES))
    return hashlib.sha256(body.encode()).hexdigest(), ours


def _parse(path: Path) -> tuple[str, tuple[str, ...]]:
    status = path.stat()
    return _parsed(path, (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino))


def closure(modules: Iterable[str], stop: Iterable[str] = ()) -> dict[str, Path]:
    """{module: file} of the project modules reached from `modules`, not walking into those in `stop`.

    A stop entry names one module; an entry that ends in `.*` also names everything below it.
    """
    exact = {s for s in stop if not s.endswith(".*")}
    prefixes = tuple(s[:-1] for s in stop if s.endswith(".*"))
    found: dict[str, Path] = {}
    queue = list(modules)
    while queue:
        module = queue.pop()
        if module in found or module in exact or (prefixes and module.startswith(prefixes)):
            continue
        path = module_file(module)
        if path is None:
            continue
        found[module] = path
        queue.extend(_parse(path)[1])
    return found


def code_version(modules: Iterable[str], stop: Iterable[str] = (), files: Iterable[Path] = ()) -> str:
    """Twelve hex digits over the behaviour of every module reached, and the bytes of `files`.

    Raises:
        LookupError: a starting module does not exist, which would silently pin the version.
    """
    modules = list(modules)
    missing = [m for m in modules if module_file(m) is None]
    if missing:
        raise LookupError(f"code_version: no such project module: {', '.join(missing)}")
    digest = hashlib.sha256()
    for name, path in sorted(closure(modules, stop).items()):
        digest.update(f"{name}={_parse(path)[0]};".encode())
    for path in sorted(files):
        digest.update(f"{path.name}=".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]
