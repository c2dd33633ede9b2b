"""Finding models: SQL files, schema.yml, references, order. Cheap: parses text, opens no data.

What belongs here: everything that can be known without DuckDB. What does not: running (execute.py), tests
(checks.py), column lineage (lineage.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import yaml

from cabs_core.errors import SqlModelError

ROOT = Path(__file__).parent
LAYERS = ("staging", "marts")
#: {kind of test: the argument that it cannot do without}, of a column and of a model as a whole
COLUMN_TESTS = {
    "not_null": "", "unique": "", "accepted_values": "values", "relationships": "to", "expression": "expression",
}  # fmt: skip
MODEL_TESTS = {"expression": "expression", "unique_combination": "columns"}
#: formats of source tables; `catalog`: a table of `cabs_core.catalog`, which has no file
FORMATS = ("parquet", "csv", "text", "catalog")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_JINJA = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_CALL = re.compile(r"(ref|source|config)\((.*)\)", re.DOTALL)
_REF = re.compile(r"ref\(\s*['\"](\w+)['\"]\s*\)")
_WORD = re.compile(r"(?:(\w+)\s*=\s*)?(['\"])(\w+)\2")
_YamlLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Column:
    """A column as schema.yml declares it; `data_type` is DuckDB's name of the type."""

    name: str
    data_type: str = ""
    description: str = ""


@dataclass(frozen=True)
class SqlTest:
    """One test of one model.

    Attributes:
        name: unique among all tests, letters, digits and `_` (usable as the name of an asset check).
        kind: one of COLUMN_TESTS / MODEL_TESTS, or `singular` for a file in tests/.
        arguments: of the test, e.g. {'values': [...]}.
        sql: singular tests: the compiled query.
    """

    name: str
    model: str
    kind: str
    column: str | None = None
    severity: str = "error"
    description: str = ""
    arguments: dict[str, Any] = field(default_factory=dict, hash=False)
    sql: str = ""
    path: Path | None = None


@dataclass(frozen=True)
class SourceTable:
    """What models read that no model makes, and its columns.

    `path` is a glob below the artifacts folder, `package:<package>/<glob>`, or the name of a catalog table.
    """

    source: str
    name: str
    path: str
    format: str
    columns: tuple[Column, ...]
    description: str = ""

    @property
    def relation(self) -> str:
        """Name of the relation in compiled SQL."""
        return f"{self.source}__{self.name}"


@dataclass(frozen=True)
class SqlModel:
    """One SQL file. `sql` as written, `compiled` with references replaced (same line numbers)."""

    name: str
    layer: str
    path: Path
    sql: str
    compiled: str
    depends_on: tuple[str, ...]
    sources: tuple[str, ...]
    description: str
    columns: tuple[Column, ...]
    tests: tuple[SqlTest, ...]
    materialized: str = "table"


@dataclass(frozen=True)
class Project:
    """All models in dependency order, all sources, and the macros."""

    root: Path
    models: dict[str, SqlModel]
    sources: dict[str, SourceTable]
    macros: str


def list_models(root: Path | None = None) -> list[SqlModel]:
    """All models, every one after what it depends on."""
    return list(load_project(root).models.values())


def get_model(name: str, root: Path | None = None) -> SqlModel:
    """The model called `name`.

    Raises:
        SqlModelError: there is none; the known ones are listed.
    """
    models = load_project(root).models
    if name not in models:
        raise SqlModelError(f"no SQL model called {name!r}; there are: {', '.join(sorted(models))}")
    return models[name]


def load_project(root: Path | None = None) -> Project:
    """Read the project in `root` (default: this package). Cached until a file changes."""
    root = Path(root or ROOT)
    files = [p for layer in (*LAYERS, "tests") for p in sorted((root / layer).glob("*.sql"))]
    files += [p for p in (root / "schema.yml", root / "macros.sql") if p.is_file()]
    return _load(root, tuple((p, p.stat().st_mtime_ns, p.stat().st_size) for p in files))


@lru_cache(maxsize=8)
def _load(root: Path, stamps: tuple[tuple[Path, int, int], ...]) -> Project:
    described_in = root / "schema.yml"
    schema = _read_schema(described_in)
    sources, described = _sources(schema, described_in), dict[str, dict[str, Any]]()
    for entry in schema.get("models") or []:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not name or name in described:
            raise SqlModelError(f"{described_in}: models: entry {name!r} has no name or stands twice")
        described[name] = entry
    raw, tests = dict[str, SqlModel](), list[SqlTest]()
    for path in (path for path, _, _ in stamps if path.parent != root):
        text, name = path.read_text(encoding="utf-8"), path.stem
        compiled, refs, used, config = _compile(text, path, sources)
        if path.parent.name == "tests":
            tests.append(_singular(path, compiled, refs, config))
            continue
        if not _NAME.fullmatch(name):
            raise SqlModelError(f"{path}: a model's file name must be letters, digits and '_'")
        if name in raw:
            raise SqlModelError(f"{path}: the name {name!r} is taken by {raw[name].path}")
        materialized = config.get("materialized", "table")
        if materialized not in ("table", "view"):
            raise SqlModelError(f"{path}: materialized is {materialized!r}: expected 'table' or 'view'")
        entry = described.get(name, {})
        raw[name] = SqlModel(
            name, path.parent.name, path, text, compiled, refs, used, _text(entry), _columns(entry),
            _tests(entry, name, described_in), materialized,
        )  # fmt: skip
    order = _order(raw, described, root)
    for test in tests:
        if unknown := [name for name in refs_of(test) if name not in raw]:
            raise SqlModelError(f"{test.path}: refers to unknown models {unknown}")
        owner = raw[test.model or max(refs_of(test), key=order.index)]
        raw[owner.name] = replace(owner, tests=(*owner.tests, replace(test, model=owner.name)))
    names = [t.name for m in raw.values() for t in m.tests]
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise SqlModelError(f"{described_in}: tests with the same name: {twice}; give one a `name`")
    macros = root / "macros.sql"
    return Project(root, {n: raw[n] for n in order}, sources, macros.read_text() if macros.is_file() else "")


def refs_of(test: SqlTest) -> tuple[str, ...]:
    """The other models that a test reads."""
    found: tuple[str, ...] = test.arguments.get("refs") or tuple(
        _REF.findall(str(test.arguments.get("to", "")))
    )
    return found


def line_of(text: str, word: str) -> int:
    """Line of the first occurrence of a word, counted from 1."""
    found = re.search(rf"\b{re.escape(word)}\b", text)
    return text.count("\n", 0, found.start()) + 1 if found else 1


def _compile(
    text: str, path: Path, sources: dict[str, SourceTable]
) -> tuple[str, tuple[str, ...], tuple[str, ...], dict[str, str]]:
    """Replace references, keeping line numbers; returns (sql, refs, sources, config)."""
    refs, used, config = dict[str, None](), dict[str, None](), dict[str, str]()

    def replaced(match: re.Match[str]) -> str:
        place = f"{path}:{text.count(chr(10), 0, match.start()) + 1}"
        call, lines = _CALL.fullmatch(match[1].strip()), "\n" * match[0].count("\n")
        kind, words = (call[1], _WORD.findall(call[2])) if call else ("", [])
        if kind == "config":
            config.update((key, value) for key, _, value in words)
            return lines
        if kind == "ref" and len(words) == 1:
            refs[words[0][2]] = None
            return str(words[0][2]) + lines
        if kind == "source" and len(words) == 2:
            relation, name = "__".join(w[2] for w in words), ".".join(w[2] for w in words)
            if relation not in sources:
                known = ", ".join(f"{s.source}.{s.name}" for s in sources.values())
                raise SqlModelError(f"{place}: source {name} is not in schema.yml; it has: {known}")
            used[relation] = None
            return relation + lines
        raise SqlModelError(
            f"{place}: {{{{ {match[1].strip()} }}}} is not understood; expected ref('model'), source('source', 'table') "
            "or config(key='value')"
        )

    return _JINJA.sub(replaced, text), tuple(refs), tuple(used), config


def _read_schema(path: Path) -> dict[str, Any]:
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_YamlLoader) if path.is_file() else None
    except yaml.YAMLError as error:
        raise SqlModelError(f"{path} is not plain YAML: {error}") from None
    if not isinstance(data, dict | None):
        raise SqlModelError(f"{path}: expected a mapping with `sources` and `models`")
    return data or {}


def _text(entry: dict[str, Any]) -> str:
    return " ".join(str(entry.get("description", "")).split())


def _columns(entry: dict[str, Any]) -> tuple[Column, ...]:
    return tuple(Column(c["name"], str(c.get("data_type", "")), _text(c)) for c in entry.get("columns") or [])


def _sources(schema: dict[str, Any], path: Path) -> dict[str, SourceTable]:
    found = {}
    for source in schema.get("sources") or []:
        for table in source.get("tables") or []:
            item = SourceTable(
                source["name"], table["name"], table.get("path", ""), table.get("format", "parquet"),
                _columns(table), _text(table),
            )  # fmt: skip
            if not item.path or not item.columns or item.format not in FORMATS:
                raise SqlModelError(
                    f"{path}: source {item.source}.{item.name} needs path, columns and a format among "
                    f"{', '.join(FORMATS)}"
                )
            found[item.relation] = item
    return found


def _tests(entry: dict[str, Any], model: str, path: Path) -> tuple[SqlTest, ...]:
    found: list[SqlTest] = []
    for column, holder in [(None, entry), *((c["name"], c) for c in entry.get("columns") or [])]:
        kinds = MODEL_TESTS if column is None else COLUMN_TESTS
        where = f"{path}: model {model}" + (f", column {column}" if column else "")
        for written in holder.get("tests") or []:
            kind, given = next(iter(written.items())) if isinstance(written, dict) else (written, {})
            if kind not in kinds:
                raise SqlModelError(f"{where}: unknown test {kind!r}; expected one of {', '.join(kinds)}")
            needed = kinds[kind]
            arguments = dict(given) if isinstance(given, dict) else {needed: given}
            severity = arguments.pop("severity", "error")
            if severity not in ("error", "warn") or (needed and needed not in arguments):
                raise SqlModelError(
                    f"{where}: test {kind} needs {needed or 'no arguments'}, severity error or warn"
                )
            if kind == "relationships" and len(_REF.findall(str(arguments["to"]))) != 1:
                raise SqlModelError(f"{where}: `to` must be ref('model'), found {arguments['to']!r}")
            number = sum(t.kind == kind and t.column == column for t in found)
            default = "_".join(filter(None, (kind, model, column, str(number + 1) if number else "")))
            name, text = str(arguments.pop("name", default)), str(arguments.pop("description", ""))
            found.append(SqlTest(name, model, kind, column, severity, text, arguments, path=path))
    return tuple(found)


def _singular(path: Path, compiled: str, refs: tuple[str, ...], config: dict[str, str]) -> SqlTest:
    if not refs:
        raise SqlModelError(f"{path}: a test must ref('...') at least one model")
    comment = " ".join(line.strip("- ") for line in compiled.splitlines() if line.startswith("--"))
    return SqlTest(
        path.stem, config.get("model", ""), "singular", None, config.get("severity", "error"), comment,
        {"refs": refs}, compiled, path,
    )  # fmt: skip


def _order(models: dict[str, SqlModel], described: dict[str, Any], root: Path) -> list[str]:
    """Names of the models, each after those that it refers to, staging before marts."""
    for name in described:
        if name not in models:
            raise SqlModelError(f"{root / 'schema.yml'}: describes model {name!r}, which has no SQL file")
    for model in models.values():
        for ref in model.depends_on:
            if ref not in models:
                raise SqlModelError(
                    f"{model.path}:{line_of(model.sql, ref)}: ref('{ref}') names no model; there are: "
                    f"{', '.join(sorted(models))}"
                )
            if (model.layer, models[ref].layer) == LAYERS:
                raise SqlModelError(
                    f"{model.path}: a staging model refers to the mart {ref!r}; turn it round"
                )
    sorter = TopologicalSorter({name: sorted(models[name].depends_on) for name in sorted(models)})
    try:
        order = list(sorter.static_order())
    except CycleError as error:
        chain = list(reversed(error.args[1]))
        paths = ", ".join(str(models[n].path) for n in dict.fromkeys(chain))
        raise SqlModelError(
            f"SQL models depend on each other in a cycle: {' -> '.join(chain)} ({paths})"
        ) from None
    return sorted(order, key=lambda name: LAYERS.index(models[name].layer))
