"""The runner of the SQL models: it reads, orders, runs, tests and publishes them.

`load_project` reads text alone. DuckDB (3 s, 115 MB) and sqlglot are imported when the first model is run, so
that whoever needs only the names of models does not wait for them.

Models are run one after the other in one DuckDB connection in memory (`open_session`), because opening one
takes longer than a small model. Rows of a model are written to `<artifacts>/marts/<model>.parquet`, the
source of truth. `<artifacts>/marts/cabs.duckdb` has the models of both layers as tables, except views; one
writer rebuilds that file from the parquet files.

The grammar is dbt's: `{{ ref('model') }}`, `{{ source('name', 'table') }}` and `{{ config(...) }}` in SQL,
and the classes of `schema.py`. `tests/e2e/test_dbt.py` compares tables and tests with those that dbt makes.
"""

from __future__ import annotations

import glob
import json
import re
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from filelock import FileLock

from cabs_core.base.atomic import atomic_path
from cabs_core.base.catalog.policies import policy_table
from cabs_core.base.errors import SqlModelError
from cabs_core.base.hashing import hash_file
from dbt_like_sql.schema import (
    ARTIFACTS,
    Column,
    DescribedModel,
    Schema,
    Source,
    SourceTable,
    read_schema,
)

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

ROOT = Path(__file__).parent
LAYERS = ("staging", "marts")
DATABASE = "cabs.duckdb"
MEMORY = "3GB"
#: wrong rows that a failed test shows
SAMPLE = 5
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


@dataclass(frozen=True)
class SqlTest:
    """A test of one model.

    Attributes:
        name: unique among all tests, letters, digits and `_` (usable as the name of an asset check).
        model: name of the model whose run evaluates the test.
        severity: `error` or `warn`.
        sql: the query that returns the rows that are wrong.
        refs: the models that it reads.
        path: the file in which the test is written.
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
    """A model: a query in a file of its own, and what schema.yml says about it.

    Attributes:
        layer: `staging` or `marts`.
        sql: the file as written.
        compiled: the query with references replaced by names of relations, on the same lines.
        depends_on: the models that it reads.
        sources: the relations of the source tables that it reads.
        materialized: `table` (a parquet file) or `view`.
    """

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
    """A project of SQL models.

    Attributes:
        models: {name: model}, each after the models that it reads.
        sources: {relation: source table}.
    """

    models: dict[str, SqlModel]
    sources: dict[str, SourceTable]


@dataclass(frozen=True)
class ModelRun:
    """Result of running a model.

    Attributes:
        rows: number of rows of a table; None for a view, which is not counted.
        schema: [(column, DuckDB type)].
        column_lineage: {column: [(upstream model or source, column), ...]}; empty where sqlglot and DuckDB
            disagree on the columns.
        path: the parquet file; None for a view.
        content_hash: hash of the parquet file; empty for a view.
    """

    name: str
    rows: int | None
    schema: list[tuple[str, str]]
    column_lineage: dict[str, list[tuple[str, str]]]
    path: Path | None
    content_hash: str


@dataclass(frozen=True)
class TestResult:
    """Result of one test.

    Attributes:
        failures: number of rows that the test's query returned.
        sample: the first `SAMPLE` wrong rows as {column: value}.
        description: text of the test in schema.yml or in its SQL file, may be empty.
    """

    __test__ = False  # not a pytest class

    name: str
    severity: str
    passed: bool
    failures: int
    sample: list[dict[str, Any]]
    description: str


def list_models(root: Path | None = None) -> list[SqlModel]:
    """Return all models, each after those that it reads."""
    return list(load_project(root).models.values())


def get_model(name: str, root: Path | None = None) -> SqlModel:
    """Return the model with this name.

    Raises:
        SqlModelError: no model has it; the message lists the names.
    """
    return _named(load_project(root), name)


def _named(project: Project, name: str) -> SqlModel:
    """Return the model of a project with this name, see `get_model`."""
    models = project.models
    if name not in models:
        raise SqlModelError(f"no SQL model called {name!r}; there are: {', '.join(sorted(models))}")
    return models[name]


def model_path(name: str, artifacts_dir: str | Path) -> Path:
    """Return the path of a model's parquet file, which exists once the model was run as a table."""
    return Path(artifacts_dir) / "marts" / f"{name}.parquet"


def load_project(root: Path | None = None) -> Project:
    """Read the project in `root` (default: this package). The result is cached until a file changes.

    Raises:
        SqlModelError: a file is wrong; the message names the file, and the line where it is known.
    """
    root = Path(root or ROOT)
    files = [p for folder in (*LAYERS, "tests", "macros") for p in sorted((root / folder).glob("*.sql"))]
    files += [root / layer / "schema.yml" for layer in LAYERS if (root / layer / "schema.yml").is_file()]
    return _load(root, tuple((p, p.stat().st_mtime_ns, p.stat().st_size) for p in files))


def run_model(name: str, session: Session) -> ModelRun:
    """Run one model, and write its parquet file unless the model is a view.

    Raises:
        SqlModelError: unknown model, broken SQL (file and line), a table that is read without ref() or
            source(), or a model that it reads is a table and was not run yet.
    """
    from dbt_like_sql.lineage import column_lineage

    model = session.model(name)
    _check_references(model)
    if model.materialized == "view":
        path = None
    else:
        path = model_path(name, session.artifacts_dir)
    content_hash = ""
    rows = None
    session.create_view(model)
    schema = session.columns(name)
    upstream = {r: session.columns(r) for r in (*model.sources, *model.depends_on)}
    if path is not None:
        with atomic_path(path) as temporary:
            copy = f"COPY (FROM {name}) TO {_quote(temporary)} (FORMAT parquet, COMPRESSION zstd)"
            rows = session.value(copy, model)
        content_hash = hash_file(path)[:16]
    written = {s.relation: f"{s.source}.{s.name}" for s in session.project.sources.values()}
    origins = column_lineage(model.compiled, upstream, [column for column, _ in schema])
    lineage = {
        column: [(written.get(relation, relation), origin) for relation, origin in parents]
        for column, parents in origins.items()
    }
    return ModelRun(name, rows, schema, lineage, path, content_hash)


def run_tests(name: str, session: Session) -> list[TestResult]:
    """Run all tests of a model.

    A table model is tested on its parquet file. A view model is computed anew and need not have been run.

    Raises:
        SqlModelError: the model is unknown, the model or another that a test reads is a table and was not run
            yet, or a test's own SQL is broken.
    """
    model = session.model(name)
    results = []
    for relation in dict.fromkeys((name, *(ref for test in model.tests for ref in test.refs))):
        session.open(relation)
    for test in model.tests:
        failures = session.value(f"SELECT count(*) FROM ({test.sql}\n)", test)
        wrong = session.execute(f"FROM ({test.sql}\n) LIMIT {SAMPLE if failures else 0}", test)
        columns = [column[0] for column in wrong.description]
        rows = json.loads(json.dumps(wrong.fetchall(), default=str))
        sample = [dict(zip(columns, row, strict=True)) for row in rows]
        results.append(TestResult(test.name, test.severity, not failures, failures, sample, test.description))
    return results


def rebuild_database(artifacts_dir: str | Path, *, root: Path | None = None) -> Path:
    """Write `marts/cabs.duckdb` anew and return its path.

    The file holds a table, with its description, for each table model that was run. Models that are views
    stay out, because they would point at files of this machine. One process writes at a time; readers keep
    the file that they opened.
    """
    import duckdb

    target = model_path("", artifacts_dir).with_name(DATABASE)
    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        FileLock(target.with_name(f".{DATABASE}.lock")),
        atomic_path(target) as temporary,
        duckdb.connect(str(temporary)) as connection,
    ):
        for model in list_models(root):
            path = model_path(model.name, artifacts_dir)
            if model.materialized == "table" and path.is_file():
                connection.execute(f"CREATE TABLE {model.name} AS FROM read_parquet({_quote(path)})")
                connection.execute(f"COMMENT ON TABLE {model.name} IS {_quote(model.description)}")
        connection.execute("CHECKPOINT")
    return target


def packaged_table(name: str) -> pa.Table:
    """Return the rows of a source table that comes with the package, by its name as `source.table`.

    Raises:
        SqlModelError: the package has no table of this name.
    """
    import pyarrow as pa
    import pyarrow.csv

    if name == "catalog.policies":
        return pa.Table.from_pylist(policy_table())
    if name == "paper.published":
        with (resources.files("cabs_core.algorithms.paper") / "published.csv").open("rb") as file:
            return pyarrow.csv.read_csv(file)
    raise SqlModelError(
        f"source {name}: the package has no such table; remove `plugin`, or give an external_location"
    )


# ---- reading, rendering and ordering


@dataclass
class _Rendered:
    """A rendered file of SQL, with the references and settings found in it, in their order."""

    sql: str = ""
    refs: dict[str, None] = field(default_factory=dict)
    sources: dict[str, None] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)

    def ref(self, name: str) -> str:
        """Note that the file reads a model, and return the relation's name."""
        self.refs[name] = None
        return name

    def configure(self, **settings: Any) -> str:
        """Note settings of the file, and return the empty text that takes their place."""
        self.config |= settings
        return ""


@lru_cache(maxsize=8)
def _load(root: Path, stamps: tuple[tuple[Path, int, int], ...]) -> Project:
    """Read a project, see `load_project`.

    Args:
        stamps: (path, time of change, size) of every file, so that a changed file is read again.
    """
    paths = [path for path, _, _ in stamps]
    schemas = {path: read_schema(path) for path in paths if path.name == "schema.yml"}
    sources = {
        table.relation: table
        for path, schema in schemas.items()
        for source in schema.sources
        for table in _located_tables(source, path)
    }
    macro_texts = [path.read_text(encoding="utf-8") for path in paths if path.parent.name == "macros"]
    macros = dict(vars(_JINJA.from_string("\n".join([_BUILTIN_TESTS, *macro_texts])).make_module()))
    described = _described_models(schemas)
    models: dict[str, SqlModel] = {}
    singular_tests: list[SqlTest] = []
    for path in paths:
        if path.suffix != ".sql" or path.parent.name == "macros":
            continue
        text = path.read_text(encoding="utf-8")
        rendered = _render(text, path, sources, macros)
        if path.parent.name == "tests":
            singular_tests.append(_singular_test(path, rendered))
            continue
        if not path.stem.isidentifier() or path.stem in models:
            raise SqlModelError(f"{path}: a model's name must be letters, digits and '_', and no other's")
        entry, schema_path = described.pop(path.stem, (DescribedModel(name=path.stem), path))
        tests = _generic_tests(entry, schema_path, macros)
        models[path.stem] = _model(path, text, rendered, entry, tests)
    for name, (_, path) in described.items():
        raise SqlModelError(f"{path}: describes model {name!r}, which has no SQL file")
    ordered = {name: models[name] for name in _in_order(models)}
    _add_singular_tests(ordered, singular_tests)
    times = Counter(test.name for model in ordered.values() for test in model.tests)
    repeated = sorted(name for name, count in times.items() if count > 1)
    if repeated:
        raise SqlModelError(f"{root}: tests with the same name: {repeated}; give one a `name` in schema.yml")
    return Project(ordered, sources)


def _described_models(schemas: Mapping[Path, Schema]) -> dict[str, tuple[DescribedModel, Path]]:
    """Return {model: (its entry, the schema.yml with the entry)}."""
    return {entry.name: (entry, path) for path, schema in schemas.items() for entry in schema.models}


def _model(
    path: Path, text: str, rendered: _Rendered, entry: DescribedModel, tests: tuple[SqlTest, ...]
) -> SqlModel:
    """Return the model of an SQL file and its entry in schema.yml.

    Raises:
        SqlModelError: `materialized` is neither `table` nor `view`.
    """
    materialized = rendered.config.get("materialized", "table")
    if materialized not in ("table", "view"):
        raise SqlModelError(f"{path}: materialized is {materialized!r}: expected 'table' or 'view'")
    return SqlModel(
        name=path.stem,
        layer=path.parent.name,
        path=path,
        sql=text,
        compiled=rendered.sql,
        depends_on=tuple(rendered.refs),
        sources=tuple(rendered.sources),
        description=entry.description,
        columns=entry.columns,
        tests=tests,
        materialized=materialized,
    )


def _located_tables(source: Source, path: Path) -> list[SourceTable]:
    """Return the tables of a source, each with the place of its files.

    A place that is given for the whole source names the table as `{name}`.

    Raises:
        SqlModelError: a table has neither a place below the artifacts folder nor a plug-in.
    """
    tables = []
    for table in source.tables:
        metas = [table.config.meta, source.config.meta]
        written = next((meta.external_location for meta in metas if meta.external_location), "")
        location = _JINJA.from_string(written).render(env_var=lambda name, default="": f"${name}")
        located = table.model_copy(
            update={"source": source.name, "location": location.replace("{name}", table.name)}
        )
        if not located.path and not any(meta.plugin for meta in metas):
            raise SqlModelError(
                f"{path}: source {source.name}.{table.name}: external_location is {written!r}: expected a "
                "table function over files below {{ env_var('CABS_HOME') }}/artifacts, or a plugin"
            )
        tables.append(located)
    return tables


def _render(
    text: str, path: Path, sources: Mapping[str, SourceTable], macros: Mapping[str, Any]
) -> _Rendered:
    """Render a file of SQL; its lines keep their numbers.

    Raises:
        SqlModelError: Jinja does not understand a line, or the line names a source that schema.yml lacks.
    """
    rendered = _Rendered()

    def source(name: str, table: str) -> str:
        relation = sources[f"{name}__{table}"].relation
        rendered.sources[relation] = None
        return relation

    names = {**macros, "ref": rendered.ref, "source": source, "config": rendered.configure}
    try:
        rendered.sql = _JINJA.from_string(text).render(names)
    except (jinja2.TemplateError, KeyError, TypeError) as error:
        frames = traceback.extract_tb(error.__traceback__)
        inside = [frame.lineno for frame in frames if frame.filename == "<template>"]
        line = getattr(error, "lineno", None) or (inside[0] if inside else None) or 1
        known = ", ".join(f"{s.source}.{s.name}" for s in sources.values())
        raise SqlModelError(
            f"{path}:{line}: {text.splitlines()[line - 1].strip()} is not understood ({error}); expected "
            "ref('model'), config(key='value') or source('source', 'table') with one of schema.yml: "
            f"{known}"
        ) from None
    return rendered


def _generic_tests(
    entry: DescribedModel, path: Path, macros: Mapping[str, Callable[..., str]]
) -> tuple[SqlTest, ...]:
    """Return the tests that schema.yml gives a model and its columns.

    Raises:
        SqlModelError: a kind of test is unknown, or its arguments are wrong.
    """
    tests: list[SqlTest] = []
    times = Counter[str]()
    holders: list[tuple[str, DescribedModel | Column]] = [("", entry)]
    holders += [(column.name, column) for column in entry.columns]
    for column, holder in holders:
        where = f"{path}: model {entry.name}" + (f", column {column}" if column else "")
        for kind, written in (pair for item in holder.data_tests for pair in item.items()):
            if f"test_{kind}" not in macros:
                known = sorted(name.removeprefix("test_") for name in macros if name.startswith("test_"))
                raise SqlModelError(f"{where}: unknown test {kind!r}; expected one of {', '.join(known)}")
            given = {"model": entry.name} | ({"column_name": column} if column else {})
            try:
                sql, refs = _generic_query(macros[f"test_{kind}"], given | written.arguments)
            except (jinja2.TemplateError, TypeError) as error:
                raise SqlModelError(
                    f"{where}: test {kind} with arguments {written.arguments}: {error}"
                ) from None
            default_name = "_".join(filter(None, (kind, entry.name, column)))
            times[default_name] += 1
            if times[default_name] > 1:
                default_name = f"{default_name}_{times[default_name]}"
            tests.append(
                SqlTest(
                    name=written.name or default_name,
                    model=entry.name,
                    severity=written.config.severity,
                    description=written.description,
                    sql=sql,
                    refs=refs,
                    path=path,
                )
            )
    return tuple(tests)


def _generic_query(macro: Callable[..., str], arguments: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Return the query of a test, and the models that its argument `to` refers to."""
    references = _Rendered()
    if "to" in arguments:
        arguments["to"] = _JINJA.compile_expression(arguments["to"])(ref=references.ref)
    return macro(**arguments).strip(), tuple(references.refs)


def _singular_test(path: Path, rendered: _Rendered) -> SqlTest:
    """Return the test of a file in tests/, whose comments are the description. Its model is set later.

    Raises:
        SqlModelError: the file refers to no model.
    """
    if not rendered.refs:
        raise SqlModelError(f"{path}: a test must ref('...') at least one model")
    comments = [line.strip("- ") for line in rendered.sql.splitlines() if line.startswith("--")]
    return SqlTest(
        name=path.stem,
        model="",
        severity=rendered.config.get("severity", "error"),
        description=" ".join(comments),
        sql=rendered.sql,
        refs=tuple(rendered.refs),
        path=path,
    )


def _add_singular_tests(models: dict[str, SqlModel], tests: list[SqlTest]) -> None:
    """Add each test to the last of the models that the test reads, so that all of them are run before it.

    Raises:
        SqlModelError: a test refers to an unknown model.
    """
    position = {name: index for index, name in enumerate(models)}
    for test in tests:
        unknown = [name for name in test.refs if name not in models]
        if unknown:
            raise SqlModelError(f"{test.path}: refers to unknown models {unknown}")
        owner = models[max(test.refs, key=position.__getitem__)]
        models[owner.name] = replace(owner, tests=(*owner.tests, replace(test, model=owner.name)))


def _in_order(models: Mapping[str, SqlModel]) -> list[str]:
    """Return the models' names, each after those that the model reads, staging before marts.

    Raises:
        SqlModelError: a reference to no model or from staging to a mart, or references in a circle.
    """
    for model in models.values():
        for ref in model.depends_on:
            if ref not in models:
                raise SqlModelError(
                    f"{model.path}:{_line_of(model.sql, ref)}: ref('{ref}') names no model; there are: "
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


def _check_references(model: SqlModel) -> None:
    """Check that every table that the SQL reads comes through ref() or source().

    Raises:
        SqlModelError: the SQL names a table directly, which lineage and order would miss.
    """
    from dbt_like_sql.lineage import tables_read

    for name in sorted(tables_read(model.compiled) - {*model.depends_on, *model.sources}):
        raise SqlModelError(
            f"{model.path}:{_line_of(model.sql, name)}: reads {name!r} directly; write "
            f"{{{{ ref('{name}') }}}} or a source, so that it is run before and shows in the lineage"
        )


def _line_of(text: str, word: str) -> int:
    """Return the line of the first occurrence of a word, counted from 1, and 1 if there is none."""
    return text.count("\n", 0, max(text.find(word), 0)) + 1


# ---- running in DuckDB


class Session:
    """A DuckDB connection in memory, in which opened models and sources are views under their names.

    Attributes:
        project: the SQL models and their sources.
        artifacts_dir: folder of the artifacts, with the files of the sources and of the models.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, project: Project, artifacts_dir: str | Path):
        self.connection = connection
        self.project = project
        self.artifacts_dir = artifacts_dir
        self._opened_sources: set[str] = set()

    def model(self, name: str) -> SqlModel:
        """Return the model of the project with this name.

        Raises:
            SqlModelError: no model has it; the message lists the names.
        """
        return _named(self.project, name)

    def execute(self, sql: str, owner: SqlModel | SqlTest) -> duckdb.DuckDBPyConnection:
        """Run a statement of a model or a test.

        Raises:
            SqlModelError: DuckDB's error with the owner's file, and its line where that is known.
        """
        import duckdb

        try:
            return self.connection.execute(sql)
        except duckdb.Error as error:
            if isinstance(owner, SqlModel):
                text = owner.compiled
            else:
                text = owner.sql
            kind = "model" if isinstance(owner, SqlModel) else "test"
            place = str(owner.path)
            # only a statement with the whole text of a file has the file's line numbers
            line = re.search(r"LINE (\d+):", str(error))
            if line and text in sql and owner.path.suffix == ".sql":
                place = f"{place}:{line[1]}"
            raise SqlModelError(f"{place}: {kind} {owner.name} failed: {error}") from None

    def value(self, sql: str, owner: SqlModel | SqlTest) -> int:
        """Return the only value of a statement's result as a whole number."""
        ((number,),) = self.execute(sql, owner).fetchall()
        return int(number)

    def columns(self, relation: str) -> list[tuple[str, str]]:
        """Return [(column, type)] of an opened relation.

        Columns of a source are the declared ones: DuckDB would read the footers of all its files.
        """
        if relation in self.project.sources:
            return [(column.name, column.data_type) for column in self.project.sources[relation].columns]
        return [(row[0], row[1]) for row in self.connection.execute(f"DESCRIBE {relation}").fetchall()]

    def open(self, relation: str) -> None:
        """Make a source or a model available as a view under its name.

        The rows of a table model are those of its parquet file. A view model is computed anew from what it
        reads, and need not have been run.

        Raises:
            SqlModelError: a table model was not run, or DuckDB cannot read the files of the source.
        """
        if relation in self.project.sources:
            if relation not in self._opened_sources:
                self._open_source(self.project.sources[relation])
                self._opened_sources.add(relation)
            return
        model = self.project.models[relation]
        if model.materialized == "view":
            self.create_view(model)
            return
        path = model_path(relation, self.artifacts_dir)
        if not path.is_file():
            raise SqlModelError(
                f"{model.path}: {relation} has not been run: {path} does not exist. Run it first "
                f"(marts/{relation})."
            )
        self.execute(f"CREATE OR REPLACE TEMP VIEW {relation} AS FROM read_parquet({_quote(path)})", model)

    def create_view(self, model: SqlModel) -> None:
        """Open what a model reads, and create a view of its query under its name."""
        for relation in (*model.sources, *model.depends_on):
            self.open(relation)
        # on the query's own first line, so that DuckDB's line numbers are those of the file
        self.execute(f"CREATE OR REPLACE TEMP VIEW {model.name} AS {model.compiled}", model)

    def _open_source(self, source: SourceTable) -> None:
        """Make a source available by name with its declared columns, empty if it has no files.

        Raises:
            SqlModelError: DuckDB cannot read the files, or finds none of those that are there.
        """
        import duckdb

        if not source.location:
            rows = packaged_table(f"{source.source}.{source.name}")
            self.connection.register(source.relation, rows.select([c.name for c in source.columns]))
            return
        # A stage that was not run has no files, and an older file lacks newer columns. A row-less table with
        # the columns and types of schema.yml gives both all columns.
        nothing = ", ".join(f"NULL::{c.data_type} AS {c.name}" for c in source.columns)
        self._check_found(source)
        location = source.location.replace(ARTIFACTS, self._folder_in_patterns.replace("'", "''"))
        rows = f"SELECT {nothing} WHERE false UNION ALL BY NAME FROM {location}"
        query = f"SELECT {', '.join(c.name for c in source.columns)} FROM ({rows})"
        try:
            self.connection.execute(f"CREATE OR REPLACE TEMP VIEW {source.relation} AS {query}")
        except duckdb.Error as error:
            raise SqlModelError(
                f"source {source.source}.{source.name} ({source.path} below {self.artifacts_dir}): {error}"
            ) from None

    @property
    def _folder_in_patterns(self) -> str:
        """The folder of the artifacts as part of a glob pattern, in which each character means itself."""
        return glob.escape(str(self.artifacts_dir))

    def _check_found(self, source: SourceTable) -> None:
        """Check that DuckDB finds a file of a source by a pattern, if the source has files.

        A pattern that matches no file gives a table without rows and no error.

        Raises:
            SqlModelError: DuckDB does not find the file.
        """
        first = next(glob.iglob(source.path, root_dir=self.artifacts_dir), None)
        if first is None:
            return
        # a path without a wildcard is opened as it is, whatever DuckDB's patterns can match
        pattern = f"{self._folder_in_patterns}/{glob.escape(first[:-1])}[{first[-1]}]"
        found = self.connection.execute(f"SELECT count(*) FROM glob({_quote(pattern)})").fetchone()
        if found != (1,):
            raise SqlModelError(
                f"source {source.source}.{source.name}: {first} is in {self.artifacts_dir}, but no pattern "
                "of DuckDB finds it: a folder's name on the way has a character that no pattern can name, "
                "such as a backslash. Move CABS_HOME to a folder without it"
            )


@contextmanager
def open_session(artifacts_dir: str | Path, *, root: Path | None = None) -> Iterator[Session]:
    """Open a connection in memory with the functions that models call, and close it after the block.

    Args:
        artifacts_dir: folder of the artifacts.
        root: folder of the SQL project. None: this package.

    Raises:
        SqlModelError: see `load_project`.
    """
    import duckdb

    from dbt_like_sql.functions import register

    project = load_project(root)
    with tempfile.TemporaryDirectory(prefix="cabs-duckdb-") as spill:
        with duckdb.connect(config={"temp_directory": spill, "memory_limit": MEMORY}) as connection:
            # One thread: sums in a fixed order, so equal inputs give equal bytes.
            connection.execute(
                "SET threads = 1; SET enable_progress_bar = false; SET autoinstall_known_extensions = false; "
                "SET parquet_metadata_cache = true"  # thousands of small files, each opened several times
            )
            register(connection)
            yield Session(connection, project, artifacts_dir)


def _quote(value: Any) -> str:
    """Return the text of a value as a string literal of SQL, also if the value is a number or a path."""
    return "'" + str(value).replace("'", "''") + "'"
