"""Finding models: SQL files, schema.yml, references, order. Cheap: parses text, opens no data.

The grammar is dbt's: `{{ ref('model') }}`, `{{ source('name', 'table') }}` and `{{ config(...) }}` in SQL,
and in the `schema.yml` of a folder `data_tests` with `arguments` and `config`, and `meta.external_location`
of sources. What dbt has beyond that is an error here, so that runner and dbt read alike.

What belongs here: everything that can be known without DuckDB. What does not: running (execute.py), column
lineage (lineage.py).
"""

import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Literal

import jinja2
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from cabs_core.base.errors import SqlModelError

ROOT = Path(__file__).parent
LAYERS = ("staging", "marts")
#: how `external_location` begins, once its env_var is filled in: files below the artifacts folder
ARTIFACTS = "$CABS_HOME/artifacts"
#: dbt's own generic tests; those of the project stand in macros/
_BUILTIN_TESTS = """
{% macro test_not_null(model, column_name) %}
SELECT * FROM {{ model }} WHERE {{ column_name }} IS NULL
{% endmacro %}
{% macro test_unique(model, column_name) %}
SELECT {{ column_name }}, count(*) AS times FROM {{ model }}
GROUP BY {{ column_name }} HAVING count({{ column_name }}) > 1
{% endmacro %}
{% macro test_accepted_values(model, column_name, values) %}
SELECT * FROM {{ model }} WHERE CAST({{ column_name }} AS VARCHAR) NOT IN (
{%- for value in values %}'{{ value | string | replace("'", "''") }}'{{ ", " if not loop.last }}{% endfor %})
{% endmacro %}
{% macro test_relationships(model, column_name, to, field) %}
SELECT * FROM {{ model }}
WHERE {{ column_name }} NOT IN (SELECT {{ field }} FROM {{ to }} WHERE {{ field }} IS NOT NULL)
  AND {{ column_name }} IS NOT NULL
{% endmacro %}
"""
_JINJA = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
_YamlLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Meta(_Closed):
    """`plugin`: the table comes with the package.

    `outcomes`: columns of the asset `outcomes` that a source's column is made of.
    """

    external_location: str = ""
    plugin: str = ""
    outcomes: tuple[str, ...] = ()


class _Config(_Closed):
    severity: Literal["error", "warn"] = "error"
    meta: _Meta = _Meta()


class _Entry(_Closed):
    """What every entry of schema.yml has."""

    name: str
    description: str = ""
    config: _Config = _Config()

    @field_validator("description")
    @classmethod
    def _one_line(cls, text: str) -> str:
        return " ".join(text.split())


class _Written(_Closed):
    """What a test says beside its kind."""

    name: str = ""
    description: str = ""
    arguments: dict[str, Any] = {}
    config: _Config = _Config()


class _Tested(_Entry):
    data_tests: tuple[dict[str, _Written], ...] = ()

    @field_validator("data_tests", mode="before")
    @classmethod
    def _with_settings(cls, items: Any) -> Any:
        """A test that needs no arguments may be written as its name alone."""
        return [{item: {}} if isinstance(item, str) else item for item in items or ()]


class Column(_Tested):
    """A column; `data_type` is DuckDB's name of the type."""

    data_type: str = ""

    @property
    def outcomes(self) -> tuple[str, ...]:
        """Columns of the asset `outcomes` that it is made of."""
        return self.config.meta.outcomes


class SourceTable(_Entry):
    """What models read that no model makes.

    `location` is the table function that reads its files, with `ARTIFACTS` for the folder, and `path` the
    glob in it; both are empty for a table that comes with the package.
    """

    source: str = ""
    location: str = ""
    columns: tuple[Column, ...] = Field(min_length=1)

    @property
    def relation(self) -> str:
        """Name of the relation in compiled SQL."""
        return f"{self.source}__{self.name}"

    @property
    def path(self) -> str:
        return self.location.partition(f"{ARTIFACTS}/")[2].partition("'")[0]


class _Source(_Entry):
    tables: tuple[SourceTable, ...]


class _Described(_Tested):
    columns: tuple[Column, ...] = ()


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
    """All models in dependency order, and all sources by relation."""

    models: dict[str, SqlModel]
    sources: dict[str, SourceTable]


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
    files = [p for folder in (*LAYERS, "tests", "macros") for p in sorted((root / folder).glob("*.sql"))]
    files += [root / layer / "schema.yml" for layer in LAYERS if (root / layer / "schema.yml").is_file()]
    return _load(root, tuple((p, p.stat().st_mtime_ns, p.stat().st_size) for p in files))


@lru_cache(maxsize=8)
def _load(root: Path, stamps: tuple[tuple[Path, int, int], ...]) -> Project:
    schemas = {path: _read_schema(path) for path, _, _ in stamps if path.name == "schema.yml"}
    sources = {
        table.relation: table
        for path, schema in schemas.items()
        for source in schema.sources
        for table in _located(source, path)
    }
    described = {entry.name: (entry, path) for path, schema in schemas.items() for entry in schema.models}
    texts = [path.read_text(encoding="utf-8") for path, _, _ in stamps if path.parent.name == "macros"]
    macros = dict(vars(_JINJA.from_string("\n".join([_BUILTIN_TESTS, *texts])).make_module()))
    models, singular = dict[str, SqlModel](), list[SqlTest]()
    for path in (path for path, _, _ in stamps if path.suffix == ".sql" and path.parent.name != "macros"):
        text, name, layer = path.read_text(encoding="utf-8"), path.stem, path.parent.name
        read = _compile(text, path, sources, macros)
        if layer == "tests":
            singular.append(_singular(path, read))
            continue
        if not name.isidentifier() or name in models:
            raise SqlModelError(f"{path}: a model's name must be letters, digits and '_', and no other's")
        materialized = read.config.get("materialized", "table")
        if materialized not in ("table", "view"):
            raise SqlModelError(f"{path}: materialized is {materialized!r}: expected 'table' or 'view'")
        entry, place = described.pop(name, (_Described(name=name), path))
        models[name] = SqlModel(
            name,
            layer,
            path,
            text,
            read.sql,
            tuple(read.refs),
            tuple(read.sources),
            entry.description,
            entry.columns,
            _tests(entry, place, macros),
            materialized,
        )
    for name, (_, path) in described.items():
        raise SqlModelError(f"{path}: describes model {name!r}, which has no SQL file")
    order = _order(models)
    for test in singular:
        if unknown := [name for name in test.refs if name not in models]:
            raise SqlModelError(f"{test.path}: refers to unknown models {unknown}")
        owner = models[max(test.refs, key=order.index)]
        models[owner.name] = replace(owner, tests=(*owner.tests, replace(test, model=owner.name)))
    names = Counter(t.name for m in models.values() for t in m.tests)
    if twice := sorted(name for name, times in names.items() if times > 1):
        raise SqlModelError(f"{root}: tests with the same name: {twice}; give one a `name` in schema.yml")
    return Project({n: models[n] for n in order}, sources)


def _located(source: _Source, path: Path) -> list[SourceTable]:
    """The tables of a source with the place of their files, which may stand at the source and name `{name}`.

    Raises:
        SqlModelError: neither a place below the artifacts folder nor a plug-in.
    """
    tables = []
    for table in source.tables:
        meta = [entry.config.meta for entry in (table, source)]
        written = next((m.external_location for m in meta if m.external_location), "")
        location = _JINJA.from_string(written).render(env_var=lambda name, default="": f"${name}")
        located = table.model_copy(
            update={"source": source.name, "location": location.replace("{name}", table.name)}
        )
        if not located.path and not any(m.plugin for m in meta):
            raise SqlModelError(
                f"{path}: source {source.name}.{table.name}: external_location is {written!r}: expected a "
                "table function "
                "over files below {{ env_var('CABS_HOME') }}/artifacts, or a plugin"
            )
        tables.append(located)
    return tables


def line_of(text: str, word: str) -> int:
    """Line of the first occurrence of a word, counted from 1."""
    return text.count("\n", 0, max(text.find(word), 0)) + 1


@dataclass
class _Compiled:
    """A file of SQL as rendered, and what it referred to and set on the way; dicts keep the order."""

    sql: str = ""
    refs: dict[str, None] = field(default_factory=dict)
    sources: dict[str, None] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)

    def ref(self, name: str) -> str:
        self.refs[name] = None
        return name

    def configure(self, **settings: Any) -> str:
        self.config |= settings
        return ""


def _compile(
    text: str, path: Path, sources: Mapping[str, SourceTable], macros: Mapping[str, Any]
) -> _Compiled:
    """Render a file of SQL, keeping line numbers.

    Raises:
        SqlModelError: a reference that is not understood, or no source of schema.yml; with the line.
    """
    compiled = _Compiled()

    def source(name: str, table: str) -> str:
        relation = sources[f"{name}__{table}"].relation
        compiled.sources[relation] = None
        return relation

    names = {**macros, "ref": compiled.ref, "source": source, "config": compiled.configure}
    try:
        compiled.sql = _JINJA.from_string(text).render(names)
    except (jinja2.TemplateError, KeyError, TypeError) as error:
        frames = traceback.extract_tb(error.__traceback__)
        inside = [frame.lineno for frame in frames if frame.filename == "<template>"]
        line = getattr(error, "lineno", None) or (inside[0] if inside else None) or 1
        raise SqlModelError(
            f"{path}:{line}: {text.splitlines()[line - 1].strip()} is not understood ({error}); expected "
            "ref('model'), "
            "config(key='value') or source('source', 'table') with one of schema.yml: "
            f"{', '.join(f'{s.source}.{s.name}' for s in sources.values())}"
        ) from None
    return compiled


def _read_schema(path: Path) -> _Schema:
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_YamlLoader)
        return _Schema.model_validate(data or {})
    except yaml.YAMLError as error:
        raise SqlModelError(f"{path} is not plain YAML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise SqlModelError(f"{path}: {place}: {first['msg']}, found {first['input']!r}"[:1000]) from None


def _tests(entry: _Described, path: Path, macros: Mapping[str, Callable[..., str]]) -> tuple[SqlTest, ...]:
    """The tests of a model and of its columns."""
    tests, times = list[SqlTest](), Counter[str]()
    holders: list[tuple[str, _Described | Column]] = [("", entry), *((c.name, c) for c in entry.columns)]
    for column, holder in holders:
        where = f"{path}: model {entry.name}" + (f", column {column}" if column else "")
        for kind, written in (pair for item in holder.data_tests for pair in item.items()):
            if f"test_{kind}" not in macros:
                known = sorted(name.removeprefix("test_") for name in macros if name.startswith("test_"))
                raise SqlModelError(f"{where}: unknown test {kind!r}; expected one of {', '.join(known)}")
            reads, arguments = _Compiled(), dict(written.arguments)
            try:
                if "to" in arguments:
                    arguments["to"] = _JINJA.compile_expression(arguments["to"])(ref=reads.ref)
                of_column = {"column_name": column} if column else {}
                sql = macros[f"test_{kind}"](model=entry.name, **of_column, **arguments).strip()
            except (jinja2.TemplateError, TypeError) as error:
                raise SqlModelError(
                    f"{where}: test {kind} with arguments {written.arguments}: {error}"
                ) from None
            name = "_".join(filter(None, (kind, entry.name, column)))
            times[name] += 1
            name = written.name or (name if times[name] == 1 else f"{name}_{times[name]}")
            severity = written.config.severity
            tests.append(
                SqlTest(name, entry.name, severity, written.description, sql, tuple(reads.refs), path)
            )
    return tuple(tests)


def _singular(path: Path, read: _Compiled) -> SqlTest:
    if not read.refs:
        raise SqlModelError(f"{path}: a test must ref('...') at least one model")
    comment = " ".join(line.strip("- ") for line in read.sql.splitlines() if line.startswith("--"))
    severity = read.config.get("severity", "error")
    return SqlTest(path.stem, "", severity, comment, read.sql, tuple(read.refs), path)


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
