"""Finding models: SQL files, schema.yml, references, order. Cheap: parses text, opens no data.

What belongs here: everything that can be known without DuckDB. What does not: running (execute.py), column lineage
(lineage.py).
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from cabs_core.errors import SqlModelError

ROOT = Path(__file__).parent
LAYERS = ("staging", "marts")
#: {test: (the argument that it cannot do without, the query for the rows that are wrong)}; column is empty for a whole model
TESTS = {
    "not_null": ("", "FROM {model} WHERE {column} IS NULL"),
    "unique": ("", "SELECT {column}, count(*) AS times FROM {model} GROUP BY {column} HAVING count({column}) > 1"),
    "unique_combination": ("columns", "SELECT {columns}, count(*) AS times FROM {model} GROUP BY {columns} HAVING times > 1"),
    "accepted_values": ("values", "FROM {model} WHERE CAST({column} AS VARCHAR) NOT IN ({values})"),
    "relationships": ("to", "FROM {model} WHERE {column} NOT IN (SELECT {field} FROM {to} WHERE {field} IS NOT NULL) AND {column} IS NOT NULL"),
    "expression": ("expression", "FROM {model} WHERE NOT ({column} {expression})"),
}  # fmt: skip
_JINJA = re.compile(r"\{\{\s*(?:(ref|source|config)\((.*?)\))?.*?\}\}")
_WORD = re.compile(r"['\"](\w+)['\"]")
_SETTING = re.compile(r"(\w+)\s*=\s*['\"](\w+)['\"]")
_YamlLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Entry(BaseModel):
    """What every entry of schema.yml has."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    description: str = ""

    @field_validator("description")
    @classmethod
    def _one_line(cls, text: str) -> str:
        return " ".join(text.split())


class Column(_Entry):
    """A column; `data_type` is DuckDB's name of the type."""

    data_type: str = ""
    tests: tuple[Any, ...] = ()


class SourceTable(_Entry):
    """What models read that no model makes.

    `path` is a glob below the artifacts folder, `package:<package>/<glob>`, or of format `catalog` the name of a table of
    `cabs_core.catalog`, which has no file.
    """

    source: str = ""
    path: str
    format: Literal["parquet", "csv", "text", "catalog"] = "parquet"
    columns: tuple[Column, ...] = Field(min_length=1)

    @property
    def relation(self) -> str:
        """Name of the relation in compiled SQL."""
        return f"{self.source}__{self.name}"


class _Source(_Entry):
    tables: tuple[SourceTable, ...]


class _Described(_Entry):
    columns: tuple[Column, ...] = ()
    tests: tuple[Any, ...] = ()


class _Schema(BaseModel):
    model_config = ConfigDict(extra="forbid")
    version: int = 2
    sources: tuple[_Source, ...] = ()
    models: tuple[_Described, ...] = ()


@dataclass(frozen=True)
class SqlTest:
    """One test of one model.

    Attributes:
        name: unique among all tests, letters, digits and `_` (usable as the name of an asset check).
        sql: the query that returns the rows that are wrong.
        refs: the models that it reads.
    """

    name: str
    model: str
    severity: str
    description: str
    sql: str
    refs: tuple[str, ...]
    path: Path


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
    """All models in dependency order, all sources by relation, and the macros."""

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
    schema = _read_schema(root / "schema.yml")
    tables = [t.model_copy(update={"source": s.name}) for s in schema.sources for t in s.tables]
    sources = {table.relation: table for table in tables}
    described = {entry.name: entry for entry in schema.models}
    models, singular = dict[str, SqlModel](), list[SqlTest]()
    for path in (path for path, _, _ in stamps if path.parent != root):
        text, name, layer = path.read_text(encoding="utf-8"), path.stem, path.parent.name
        compiled, refs, used, config = _compile(text, path, sources)
        if layer == "tests":
            singular.append(_singular(path, compiled, refs, config))
            continue
        if not name.isidentifier() or name in models:
            raise SqlModelError(f"{path}: a model's name must be letters, digits and '_', and no other's")
        materialized = config.get("materialized", "table")
        if materialized not in ("table", "view"):
            raise SqlModelError(f"{path}: materialized is {materialized!r}: expected 'table' or 'view'")
        entry = described.pop(name, _Described(name=name))
        models[name] = SqlModel(
            name, layer, path, text, compiled, refs, used, entry.description, entry.columns,
            _tests(entry, root / "schema.yml"), materialized,
        )  # fmt: skip
    if described:
        raise SqlModelError(
            f"{root / 'schema.yml'}: describes model {', '.join(map(repr, described))}, which has no SQL file"
        )
    order = _order(models)
    for test in singular:
        if unknown := [name for name in test.refs if name not in models]:
            raise SqlModelError(f"{test.path}: refers to unknown models {unknown}")
        owner = models[test.model or max(test.refs, key=order.index)]
        models[owner.name] = replace(owner, tests=(*owner.tests, replace(test, model=owner.name)))
    names = [t.name for m in models.values() for t in m.tests]
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise SqlModelError(f"{root / 'schema.yml'}: tests with the same name: {twice}; give one a `name`")
    macros = root / "macros.sql"
    return Project({n: models[n] for n in order}, sources, macros.read_text() if macros.is_file() else "")


def line_of(text: str, word: str) -> int:
    """Line of the first occurrence of a word, counted from 1."""
    return text.count("\n", 0, max(text.find(word), 0)) + 1


def _compile(
    text: str, path: Path, sources: dict[str, SourceTable]
) -> tuple[str, tuple[str, ...], tuple[str, ...], dict[str, str]]:
    """Replace references, keeping line numbers; returns (sql, refs, sources, config).

    Raises:
        SqlModelError: a reference that is not understood, or a source that schema.yml does not have; with the line.
    """
    refs, used, config = dict[str, None](), dict[str, None](), dict[str, str]()

    def replaced(match: re.Match[str]) -> str:
        kind, words = match[1], _WORD.findall(match[2] or "")
        relation = "__".join(words)
        if kind == "config":
            config.update(_SETTING.findall(match[2]))
            return ""
        if kind == "ref" and len(words) == 1:
            refs[relation] = None
            return relation
        if kind == "source" and relation in sources:
            used[relation] = None
            return relation
        line = text.count("\n", 0, match.start()) + 1
        raise SqlModelError(
            f"{path}:{line}: {match[0]} is not understood; expected ref('model'), config(key='value') or source('source', "
            f"'table') with one of schema.yml: {', '.join(f'{s.source}.{s.name}' for s in sources.values())}"
        )

    return _JINJA.sub(replaced, text), tuple(refs), tuple(used), config


def _read_schema(path: Path) -> _Schema:
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_YamlLoader) if path.is_file() else None
        return _Schema.model_validate(data or {})
    except yaml.YAMLError as error:
        raise SqlModelError(f"{path} is not plain YAML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise SqlModelError(f"{path}: {place}: {first['msg']}, found {first['input']!r}"[:1000]) from None


def _tests(entry: _Described, path: Path) -> tuple[SqlTest, ...]:
    """The tests of a model and of its columns."""
    found, times = list[SqlTest](), Counter[str]()
    holders: list[tuple[str, _Described | Column]] = [("", entry), *((c.name, c) for c in entry.columns)]
    for column, holder in holders:
        where = f"{path}: model {entry.name}" + (f", column {column}" if column else "")
        for written in holder.tests:
            kind, given = next(iter(written.items())) if isinstance(written, dict) else (written, {})
            if kind not in TESTS:
                raise SqlModelError(f"{where}: unknown test {kind!r}; expected one of {', '.join(TESTS)}")
            needed, query = TESTS[kind]
            values = {"field": column} | (given if isinstance(given, dict) else {needed: given})
            severity = values.get("severity", "error")
            if severity not in ("error", "warn") or (needed and needed not in values):
                raise SqlModelError(
                    f"{where}: test {kind} needs {needed or 'no arguments'}, severity error or warn"
                )
            refs = tuple(_WORD.findall(str(values.get("to", ""))))
            values |= {
                "to": "".join(refs),
                "columns": ", ".join(values.get("columns", ())),
                "values": ", ".join("'" + str(v).replace("'", "''") + "'" for v in values.get("values", ())),
            }
            name = "_".join(filter(None, (kind, entry.name, column)))
            times[name] += 1
            name = values.get("name", name if times[name] == 1 else f"{name}_{times[name]}")
            sql = query.format_map({**values, "model": entry.name, "column": column})
            found.append(SqlTest(name, entry.name, severity, values.get("description", ""), sql, refs, path))
    return tuple(found)


def _singular(path: Path, compiled: str, refs: tuple[str, ...], config: dict[str, str]) -> SqlTest:
    if not refs:
        raise SqlModelError(f"{path}: a test must ref('...') at least one model")
    comment = " ".join(line.strip("- ") for line in compiled.splitlines() if line.startswith("--"))
    model, severity = config.get("model", ""), config.get("severity", "error")
    return SqlTest(path.stem, model, severity, comment, compiled, refs, path)


def _order(models: dict[str, SqlModel]) -> list[str]:
    """Names of the models, each after those that it refers to, staging before marts."""
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
        return sorted(sorter.static_order(), key=lambda name: LAYERS.index(models[name].layer))
    except CycleError as error:
        chain = " -> ".join(str(models[name].path) for name in reversed(error.args[1]))
        raise SqlModelError(f"SQL models depend on each other in a cycle: {chain}") from None
