"""Code versions: a hash of the modules that a stage or a policy can run, found by following imports.

The hash ignores comments, docstrings and layout, so that only changes of behaviour make results stale.
Imports under `if TYPE_CHECKING:` are not run and not followed; modules that are imported by a computed name
are not seen here, so `stages.py` or `LOADED_WHOLE` names them.
"""

import ast
import hashlib
import json
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import cache_from_source, find_spec
from pathlib import Path

from cabs_core.base.atomic import write_text
from cabs_core.base.errors import StorageError
from cabs_core.base.paths import PACKAGE_FOLDER

PACKAGE = "cabs_core"
#: folder of the package whose modules count
ROOT = PACKAGE_FOLDER
#: packages that import all their modules by name, so that whoever imports one of them runs all its modules
LOADED_WHOLE = ("cabs_core.data.logs.formats",)


@cache
def module_file(module: str) -> Path | None:
    """Return the file of a module of `cabs_core` without importing it.

    Return None if `cabs_core` has no such module, and for modules of other packages.
    """
    package, *rest = module.split(".")
    if package != PACKAGE:
        return None
    base = ROOT.joinpath(*rest)
    for candidate in (base.with_suffix(".py"), base / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def expand(module: str) -> Iterator[str]:
    """Yield the module itself, or for `package.*` the package and every module below it, sorted by path."""
    if not module.endswith(".*"):
        yield module
        return
    file = module_file(module[:-2])
    folder = file.parent if file else None
    for path in sorted(folder.rglob("*.py")) if folder else []:
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join((PACKAGE, *parts)).removesuffix(".__init__")


#: fields of a statement that hold statements, which are all places of docstrings, imports and
#: `if TYPE_CHECKING:`
_BLOCKS = ("body", "orelse", "handlers", "finalbody", "cases")


def _strip_and_yield_imports(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Drop docstrings and `if TYPE_CHECKING:` blocks below a node in place, and yield the remaining imports.

    An import is (module, name), with an empty name for `import module`. Relative imports are left out.
    """
    for name in _BLOCKS:
        block = getattr(node, name, None)
        if not isinstance(block, list):
            continue
        statements = [inner for child in block for inner in _without_types(child)]
        if name == "body" and isinstance(node, _DOCUMENTED) and _is_docstring(statements[:1]):
            del statements[0]
        for child in statements:
            if isinstance(child, ast.Import):
                yield from ((alias.name, "") for alias in child.names)
            elif isinstance(child, ast.ImportFrom) and child.module and child.level == 0:
                yield from ((child.module, alias.name) for alias in child.names)
            yield from _strip_and_yield_imports(child)
        block[:] = statements or [ast.Pass()] if block else []


_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _is_docstring(first: list[ast.AST]) -> bool:
    """Return whether a list begins with a statement that is a text alone."""
    if first and isinstance(first[0], ast.Expr):
        value = first[0].value
    else:
        value = None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _without_types(node: ast.AST) -> list[ast.AST]:
    """Return the statements that run: the statement itself, or the `else` of `if TYPE_CHECKING:`."""
    test = node.test if isinstance(node, ast.If) else None
    if isinstance(test, ast.Attribute):
        name = test.attr
    else:
        name = getattr(test, "id", "")
    return (node.orelse or [ast.Pass()]) if name == "TYPE_CHECKING" else [node]  # type: ignore[attr-defined]  # of an If


@dataclass(frozen=True)
class SourceCode:
    """A hash of the behaviour of a source file, and its imports of `cabs_core` as (module, name or "")."""

    behaviour: str
    imports: tuple[tuple[str, str], ...]


def read_source(path: Path) -> SourceCode:
    """Read a file as it is now. A version of a file is parsed once per process."""
    status = path.stat()
    return _parsed(path, (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino))


@cache
def _parsed(path: Path, stamp: tuple[int, ...]) -> SourceCode:
    """Parse a file, or return the result of an earlier process.

    Args:
        stamp: times of change, size and inode of the file, so that a changed file is parsed again.
    """
    source = path.read_bytes()
    key = hashlib.sha256(_reader() + source).hexdigest()
    known = _known()
    if key not in known:
        tree = ast.parse(source, filename=str(path))
        imports = tuple(dict.fromkeys(_strip_and_yield_imports(tree)))
        body = ast.dump(tree, annotate_fields=False)
        known[key] = hashlib.sha256(body.encode()).hexdigest(), imports
    behaviour, names = known[key]
    return SourceCode(behaviour, tuple((m, n) for m, n in names if m.partition(".")[0] == PACKAGE))


#: {hash of a file and of its reader: (its behaviour, its imports)}, newest last. Kept beside the compiled
#: modules: parsing the package is a third of what a run needs to start, and a chain starts many processes
_Known = dict[str, tuple[str, Sequence[tuple[str, str]]]]
_KNOWN = Path(cache_from_source(str(PACKAGE_FOLDER / "behaviour.py"))).with_suffix(".json")
_MOST_KNOWN = 2000


@cache
def _reader() -> bytes:
    """Return a hash of this module and of Python's version, on which the result of parsing depends."""
    return hashlib.sha256(Path(__file__).read_bytes() + sys.version.encode()).digest()


@cache
def _known() -> _Known:
    """Return {hash of a file and of its reader: its behaviour and imports} of what earlier processes parsed.

    This process adds to the dict what it parses itself.
    """
    try:
        known: _Known = json.loads(_KNOWN.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known


def _keep_known(before: int) -> None:
    """Write the parsed files to disk if there are more than `before` and Python may write bytecode."""
    known = _known()
    if len(known) > before and not sys.dont_write_bytecode:
        with suppress(StorageError):
            write_text(_KNOWN, json.dumps(dict([*known.items()][-_MOST_KNOWN:])))


def _origin(module: str, name: str) -> str:
    """Return the module that defines the name of `from module import name`, where packages pass names on."""
    if not name or module_file(f"{module}.{name}") is not None:
        if name:
            return f"{module}.{name}"
        return module
    path = module_file(module)
    if path is not None and path.name == "__init__.py":
        for inner, passed in read_source(path).imports:
            if passed == name and inner != module:
                return _origin(inner, name)
    return module


def closure(modules: Iterable[str], stop: Iterable[str] = ()) -> dict[str, Path]:
    """Return {module: file} of the modules of `cabs_core` that can be reached from `modules`.

    Args:
        modules: where to start, as names or as `package.*`. Modules of other packages are left out.
        stop: modules that are left out, with everything that only they import.

    Raises:
        LookupError: `cabs_core` lacks a starting module, or none was named. No change would then be noticed.
    """
    starts = list(modules)
    own = [module for module in starts if module.partition(".")[0] == PACKAGE]
    missing = [module for module in own if module_file(module.removesuffix(".*")) is None]
    if missing or not starts:
        raise LookupError(f"code version: no such module: {', '.join(missing) or 'none was named'}")
    queue = [name for module in own for name in expand(module)]
    excluded = {name for module in stop for name in expand(module)}
    reached: dict[str, Path] = {}
    while queue:
        module = queue.pop()
        if module in reached or module in excluded:
            path = None
        else:
            path = module_file(module)
        if path is not None:
            reached[module] = path
            queue.extend(_origin(*imported) for imported in read_source(path).imports)
            if module in LOADED_WHOLE:
                queue.extend(expand(f"{module}.*"))
    return reached


def code_version(
    modules: Collection[str], stop: Iterable[str] = (), files: Iterable[Path] = (), extra: object = None
) -> str:
    """Return twelve hex digits over the behaviour of every module that can be reached.

    Args:
        modules: where to start. Of a module of another package the bytes of its file count.
        stop: see `closure`.
        files: further files whose bytes count.
        extra: further value, whose `repr` counts.

    Raises:
        LookupError: `cabs_core` lacks a starting module, or none was named.
        ModuleNotFoundError: a starting module of another package does not exist or has no file.
    """
    digest = hashlib.sha256()
    before = len(_known())
    for name, path in sorted(closure(modules, stop).items()):
        digest.update(f"{name}={read_source(path).behaviour};".encode())
    _keep_known(before)
    others = [_file_elsewhere(module) for module in modules if module.partition(".")[0] != PACKAGE]
    for path in sorted([*files, *others]):
        digest.update(f"{path.name}=".encode() + hashlib.sha256(path.read_bytes()).digest())
    if extra is not None:
        digest.update(repr(extra).encode())
    return digest.hexdigest()[:12]


def _file_elsewhere(module: str) -> Path:
    """Return the file of a module of another package. The packages around the module are imported.

    Raises:
        ModuleNotFoundError: the module does not exist or has no file.
    """
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"code version: no such module: {module}", name=module)
    return Path(spec.origin)
