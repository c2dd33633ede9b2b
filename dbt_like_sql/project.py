"""Finding models: SQL files, schema.yml, references, order. Cheap: parses text, opens no data.

What belongs here: everything that can be known without DuckDB. What does not: running (execute.py), tests
(checks.py), column lineage (lineage.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import yaml

from cabs_core.errors import SqlModelError

ROOT = Path(__file__).parent
LAYERS = ("staging", "marts")
COLUMN_TESTS = ("not_null", "unique", "accepted_values", "relationships", "expression")
MODEL_TESTS = ("expression", "unique_combination")
#: formats of source tables; `catalog`: a table of `cabs_core.catalog`, which has no file
FORMATS = ("parquet", "csv", "text", "catalog")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_JINJA = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_REF = re.compile(r"ref\(\s*(['\"])(\w+)\1\s*\)")
_SOURCE = re.compile(r"source\(\s*(['\"])(\w+)\1\s*,\s*(['\"])(\w+)\3\s*\)")
_CONFIG = re.compile(r"config\((.*)\)", re.DOTALL)
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
def _load(root: Path, stamps: tuple) -> Project:
    schema = _read_schema(root / "schema.yml")
    sources = _sources(schema, root / "schema.yml")
    described = {}
    for entry in schema.get("models") or []:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not name or name in described:
            raise SqlModelError(f"{root / 'schema.yml'}: models: entry {name!r} has no name or stands twice")
        described[name] = entry
    raw: dict[str, SqlModel] = {}
    tests: list[SqlTest] = []
    for path, _, _ in stamps:
        if path.suffix != ".sql" or path.name == "macros.sql":
            continue
        text = path.read_text(encoding="utf-8")
        compiled, refs, used, config = _compile(text, path, sources)
        if path.parent.name == "tests":
            tests.append(_singular(path, compiled, refs, config))
            continue
        if not _NAME.fullmatch(path.stem):
            raise SqlModelError(f"{path}: a model's file name must be letters, digits and '_'")
        if path.stem in raw:
            raise SqlModelError(f"{path}: the name {path.stem!r} is taken by {raw[path.stem].path}")
        entry = described.get(path.stem, {})
        materialized = config.get("materialized", "table")
        if materialized not in ("table", "view"):
            raise SqlModelError(f"{path}: materialized is {materialized!r}: expected 'table' or 'view'")
        raw[path.stem] = SqlModel(
            name=path.stem,
            layer=path.parent.name,
            path=path,
            sql=text,
            compiled=compiled,
            depends_on=refs,
            sources=used,
            description=" ".join(str(entry.get("description", "")).split()),
            columns=_columns(entry),
            tests=_tests(entry, path.stem, root / "schema.yml"),
            materialized=materialized,
        )
    _check_known(raw, described, root)
    order = _order(raw)
    place = {name: i for i, name in enumerate(order)}
    for test in tests:
        unknown = [r for r in test.arguments["refs"] if r not in raw]
        if unknown:
            raise SqlModelError(f"{test.path}: refers to unknown models {unknown}")
        owner = test.model or max(test.arguments["refs"], key=place.__getitem__)
        model = raw[owner]
        placed = SqlTest(**{**test.__dict__, "model": owner})
        raw[owner] = SqlModel(**{**model.__dict__, "tests": (*model.tests, placed)})
    names = [t.name for m in raw.values() for t in m.tests]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise SqlModelError(f"{root / 'schema.yml'}: tests with the same name: {twice}; give one a `name`")
    macros = root / "macros.sql"
    return Project(root, {n: raw[n] for n in order}, sources, macros.read_text() if macros.is_file() else "")


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _compile(text: str, path: Path, sources: dict[str, SourceTable]):
    """Replace references, keeping line numbers; returns (sql, refs, sources, config)."""
    refs: dict[str, None] = {}
    used: dict[str, None] = {}
    config: dict[str, Any] = {}

    def replace(match: re.Match) -> str:
        inside = match.group(1).strip()
        lines = "\n" * match.group(0).count("\n")
        if ref := _REF.fullmatch(inside):
            refs[ref.group(2)] = None
            return ref.group(2) + lines
        if source := _SOURCE.fullmatch(inside):
            relation = f"{source.group(2)}__{source.group(4)}"
            if relation not in sources:
                raise SqlModelError(
                    f"{path}:{_line(text, match.start())}: source {source.group(2)}.{source.group(4)} is not in "
                    f"schema.yml; it has: {', '.join(f'{s.source}.{s.name}' for s in sources.values())}"
                )
            used[relation] = None
            return relation + lines
        if setting := _CONFIG.fullmatch(inside):
            for part in filter(None, (p.strip() for p in setting.group(1).split(","))):
                key, _, value = part.partition("=")
                config[key.strip()] = value.strip().strip("'\"")
            return lines
        raise SqlModelError(
            f"{path}:{_line(text, match.start())}: {{{{ {inside} }}}} is not understood; expected ref('model'), "
            "source('source', 'table') or config(key='value')"
        )

    return _JINJA.sub(replace, text), tuple(refs), tuple(used), config


def _read_schema(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_YamlLoader)
    except yaml.YAMLError as error:
        raise SqlModelError(f"{path} is not plain YAML: {error}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise SqlModelError(f"{path}: expected a mapping with `sources` and `models`")
    return data


def _columns(entry: dict[str, Any]) -> tuple[Column, ...]:
    return tuple(
        Column(c["name"], str(c.get("data_type", "")), " ".join(str(c.get("description", "")).split()))
        for c in entry.get("columns") or []
    )


def _sources(schema: dict[str, Any], path: Path) -> dict[str, SourceTable]:
    found = {}
    for source in schema.get("sources") or []:
        for table in source.get("tables") or []:
            item = SourceTable(
                source["name"], table["name"], table.get("path", ""), table.get("format", "parquet"),
                _columns(table), str(table.get("description", "")),
            )  # fmt: skip
            if not item.path or not item.columns or item.format not in FORMATS:
                raise SqlModelError(
                    f"{path}: source {item.source}.{item.name} needs path, columns and a format among "
                    f"{', '.join(FORMATS)}"
                )
            found[item.relation] = item
    return found


def _tests(entry: dict[str, Any], model: str, path: Path) -> tuple[SqlTest, ...]:
    found = []
    places = [(None, entry)] + [(c["name"], c) for c in entry.get("columns") or []]
    for column, holder in places:
        for written in holder.get("tests") or []:
            kind, arguments = next(iter(written.items())) if isinstance(written, dict) else (written, {})
            allowed = MODEL_TESTS if column is None else COLUMN_TESTS
            where = f"{path}: model {model}" + (f", column {column}" if column else "")
            if kind not in allowed:
                raise SqlModelError(f"{where}: unknown test {kind!r}; expected one of {', '.join(allowed)}")
            arguments = dict(arguments) if isinstance(arguments, dict) else {"value": arguments}
            severity = arguments.pop("severity", "error")
            needed = {"accepted_values": "values", "relationships": "to", "unique_combination": "columns"}
            needed["expression"] = "expression"
            if "value" in arguments and kind in needed:
                arguments = {needed[kind]: arguments["value"]}
            if severity not in ("error", "warn") or (kind in needed and needed[kind] not in arguments):
                raise SqlModelError(
                    f"{where}: test {kind} needs {needed.get(kind, 'no arguments')}, severity error or warn"
                )
            number = sum(t.kind == kind and t.column == column for t in found)
            default = "_".join(filter(None, (kind, model, column, str(number + 1) if number else "")))
            found.append(
                SqlTest(
                    name=str(arguments.pop("name", default)),
                    model=model,
                    kind=kind,
                    column=column,
                    severity=severity,
                    description=str(arguments.pop("description", "")),
                    arguments=arguments,
                    path=path,
                )
            )
    return tuple(found)


def _singular(path: Path, compiled: str, refs: tuple[str, ...], config: dict[str, Any]) -> SqlTest:
    if not refs:
        raise SqlModelError(f"{path}: a test must ref('...') at least one model")
    comment = [
        line.strip().removeprefix("--").strip() for line in compiled.splitlines() if line.startswith("--")
    ]
    return SqlTest(
        name=path.stem,
        model=config.get("model", ""),
        kind="singular",
        severity=config.get("severity", "error"),
        description=" ".join(comment),
        arguments={"refs": refs},
        sql=compiled,
        path=path,
    )


def _check_known(models: dict[str, SqlModel], described: dict[str, Any], root: Path) -> None:
    for name in described:
        if name not in models:
            raise SqlModelError(f"{root / 'schema.yml'}: describes model {name!r}, which has no SQL file")
    for model in models.values():
        for ref in model.depends_on:
            if ref not in models:
                at = re.search(rf"ref\(\s*['\"]{ref}['\"]", model.sql)
                raise SqlModelError(
                    f"{model.path}:{_line(model.sql, at.start()) if at else 1}: ref('{ref}') names no model; there "
                    f"are: {', '.join(sorted(models))}"
                )


def _order(models: dict[str, SqlModel]) -> list[str]:
    sorter = TopologicalSorter({name: m.depends_on for name, m in models.items()})
    try:
        order = list(sorter.static_order())
    except CycleError as error:
        chain = list(reversed(error.args[1]))
        paths = ", ".join(str(models[n].path) for n in dict.fromkeys(chain))
        raise SqlModelError(
            f"SQL models depend on each other in a cycle: {' -> '.join(chain)} ({paths})"
        ) from None
    layer = {name: LAYERS.index(models[name].layer) for name in models}
    depth: dict[str, int] = {}
    for name in order:
        depth[name] = 1 + max((depth[d] for d in models[name].depends_on), default=0)
    return sorted(order, key=lambda n: (layer[n] if _layered(models) else 0, depth[n], n))


def _layered(models: dict[str, SqlModel]) -> bool:
    """Staging never depends on a mart, so that the order by layer is also an order by dependency."""
    for model in models.values():
        for ref in model.depends_on:
            if model.layer == "staging" and models[ref].layer == "marts":
                raise SqlModelError(
                    f"{model.path}: a staging model refers to the mart {ref!r}; turn it round"
                )
    return True
