"""Running models with DuckDB: parquet in, one parquet a model out, and the database rebuilt from them.

Parquet under `<artifacts>/marts/` is the source of truth. Every model runs in a connection of its own, in
memory, so that models can run in any process; `cabs.duckdb` is only ever rebuilt whole, by one writer.
"""

import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
from filelock import FileLock

from cabs_core.base.atomic import atomic_path
from cabs_core.base.errors import SqlModelError
from cabs_core.base.hashing import hash_file
from dbt_like_sql.functions import register
from dbt_like_sql.lineage import column_lineage, tables_read
from dbt_like_sql.packaged import packaged_table
from dbt_like_sql.project import (
    ARTIFACTS,
    Project,
    SourceTable,
    SqlModel,
    SqlTest,
    get_model,
    line_of,
    load_project,
)

DATABASE = "cabs.duckdb"
MEMORY = "3GB"
SAMPLE = 5


@dataclass(frozen=True)
class ModelRun:
    """What a run of a model gave.

    Attributes:
        rows: of a table; None for a view, whose rows nobody counts: they are those of all replays.
        schema: [(column, DuckDB type)].
        column_lineage: {column: [(upstream model or source, column), ...]}; empty where sqlglot and DuckDB
            disagree on the columns.
        path: the parquet file; None for a view. content_hash: of its bytes; empty for a view.
    """

    name: str
    rows: int | None
    schema: list[tuple[str, str]]
    column_lineage: dict[str, list[tuple[str, str]]]
    path: Path | None
    content_hash: str


@dataclass(frozen=True)
class TestResult:
    """Outcome of one test: `failures` wrong rows (or values), the first few as `sample`; description: what
    it looks at, where the schema says so."""

    __test__ = False  # not a pytest class

    name: str
    severity: str
    passed: bool
    failures: int
    sample: list[dict[str, Any]]
    description: str


def model_path(name: str, artifacts_dir: str | Path) -> Path:
    """Parquet file of a model that is materialised as a table."""
    return Path(artifacts_dir) / "marts" / f"{name}.parquet"


def run_model(name: str, artifacts_dir: str | Path, *, root: Path | None = None) -> ModelRun:
    """Run one model and write its parquet.

    Raises:
        SqlModelError: unknown model, broken SQL (file and line), or something it refs has not been run.
    """
    project, model = load_project(root), get_model(name, root)
    _check_dependencies(model)
    path, digest, rows = None if model.materialized == "view" else model_path(name, artifacts_dir), "", None
    with _session(project, artifacts_dir) as session:
        session.create_view(model)
        schema = session.columns(name)
        upstream = {r: session.columns(r) for r in (*model.sources, *model.depends_on)}
        if path is not None:
            with atomic_path(path) as temporary:
                copy = f"COPY (FROM {name}) TO {_quote(temporary)} (FORMAT parquet, COMPRESSION zstd)"
                rows = session.value(copy, model)
            digest = hash_file(path)[:16]
    names = {s.relation: f"{s.source}.{s.name}" for s in project.sources.values()}
    origins = {
        column: [(names.get(relation, relation), origin) for relation, origin in parents]
        for column, parents in column_lineage(model.compiled, upstream, [c for c, _ in schema]).items()
    }
    return ModelRun(name, rows, schema, origins, path, digest)


def run_tests(name: str, artifacts_dir: str | Path, *, root: Path | None = None) -> list[TestResult]:
    """Run all tests of a model that has been run.

    Raises:
        SqlModelError: unknown model, not run yet, or a test's own SQL is broken.
    """
    model, results = get_model(name, root), []
    with _session(load_project(root), artifacts_dir) as session:
        for relation in dict.fromkeys((name, *(ref for test in model.tests for ref in test.refs))):
            session.open(relation)
        for test in model.tests:
            failures = session.value(f"SELECT count(*) FROM ({test.sql}\n)", test)
            wrong = session.execute(f"FROM ({test.sql}\n) LIMIT {SAMPLE if failures else 0}", test)
            names = [column[0] for column in wrong.description]
            sample = [dict(zip(names, row)) for row in json.loads(json.dumps(wrong.fetchall(), default=str))]
            results.append(
                TestResult(test.name, test.severity, not failures, failures, sample, test.description)
            )
    return results


def rebuild_database(artifacts_dir: str | Path, *, root: Path | None = None) -> Path:
    """Rebuild `marts/cabs.duckdb` from the marts' parquet: a table a model that has been run, with comments.

    Views over the raw traces stay out: they would point at files of this machine. One writer at a time;
    readers keep the file they opened.
    """
    target = model_path("", artifacts_dir).with_name(DATABASE)
    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        FileLock(target.with_name(f".{DATABASE}.lock")),
        atomic_path(target) as temporary,
        duckdb.connect(str(temporary)) as connection,
    ):
        for model in load_project(root).models.values():
            path = model_path(model.name, artifacts_dir)
            if model.materialized == "table" and path.is_file():
                connection.execute(f"CREATE TABLE {model.name} AS FROM read_parquet({_quote(path)})")
                connection.execute(f"COMMENT ON TABLE {model.name} IS {_quote(model.description)}")
        connection.execute("CHECKPOINT")
    return target


class _Session:
    """A DuckDB connection in memory, in which models and sources are there by name once they are opened."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, project: Project, artifacts_dir: str | Path):
        self.connection, self.project, self.artifacts_dir = connection, project, artifacts_dir

    def execute(self, sql: str, owner: SqlModel | SqlTest) -> duckdb.DuckDBPyConnection:
        """Run a statement of a model or a test; an error names its file, and its line where it is known."""
        try:
            return self.connection.execute(sql)
        except duckdb.Error as error:
            text = owner.compiled if isinstance(owner, SqlModel) else owner.sql
            # only a statement with the whole text of a file has the file's line numbers
            line = (
                re.search(r"LINE (\d+):", str(error)) if text in sql and owner.path.suffix == ".sql" else None
            )
            place = f"{owner.path}{f':{line[1]}' if line else ''}"
            kind = "model" if isinstance(owner, SqlModel) else "test"
            raise SqlModelError(f"{place}: {kind} {owner.name} failed: {error}") from None

    def value(self, sql: str, owner: SqlModel | SqlTest) -> int:
        """The only value of a statement's result."""
        ((number,),) = self.execute(sql, owner).fetchall()
        return int(number)

    def columns(self, relation: str) -> list[tuple[str, str]]:
        """[(column, type)] as DuckDB sees it; of a source as declared: that reads no footers."""
        if relation in self.project.sources:
            return [(column.name, column.data_type) for column in self.project.sources[relation].columns]
        return [(row[0], row[1]) for row in self.connection.execute(f"DESCRIBE {relation}").fetchall()]

    def open(self, relation: str) -> None:
        """Make a source, or a model that has been run, available by name."""
        if relation in self.project.sources:
            self._open_source(self.project.sources[relation])
            return
        model, path = self.project.models[relation], model_path(relation, self.artifacts_dir)
        if model.materialized == "view":
            self.create_view(model)
            return
        if not path.is_file():
            raise SqlModelError(
                f"{model.path}: {relation} has not been run: {path} does not exist. Run it first "
                f"(marts/{relation})."
            )
        self.execute(f"CREATE OR REPLACE TEMP VIEW {relation} AS FROM read_parquet({_quote(path)})", model)

    def create_view(self, model: SqlModel) -> None:
        """Open what a model reads, and create its query as a view."""
        for relation in (*model.sources, *model.depends_on):
            self.open(relation)
        # on the query's own first line, so that DuckDB's line numbers are those of the file
        self.execute(f"CREATE OR REPLACE TEMP VIEW {model.name} AS {model.compiled}", model)

    def _open_source(self, source: SourceTable) -> None:
        if not source.location:
            rows = packaged_table(f"{source.source}.{source.name}")
            self.connection.register(source.relation, rows.select([c.name for c in source.columns]))
            return
        # A stage that has not run has no files, an older file lacks newer columns: all are there, as
        # schema.yml types them.
        nothing = ", ".join(f"NULL::{c.data_type} AS {c.name}" for c in source.columns)
        location = source.location.replace(ARTIFACTS, str(self.artifacts_dir).replace("'", "''"))
        rows = f"SELECT {nothing} WHERE false UNION ALL BY NAME FROM {location}"
        query = f"SELECT {', '.join(c.name for c in source.columns)} FROM ({rows})"
        try:
            self.connection.execute(f"CREATE OR REPLACE TEMP VIEW {source.relation} AS {query}")
        except duckdb.Error as error:
            raise SqlModelError(
                f"source {source.source}.{source.name} ({source.path} below {self.artifacts_dir}): {error}"
            ) from None


@contextmanager
def _session(project: Project, artifacts_dir: str | Path) -> Iterator[_Session]:
    """A connection in memory with the functions that models call."""
    with tempfile.TemporaryDirectory(prefix="cabs-duckdb-") as spill:
        with duckdb.connect(config={"temp_directory": spill, "memory_limit": MEMORY}) as connection:
            # One thread: sums in a fixed order, so equal inputs give equal bytes.
            connection.execute(
                "SET threads = 1; SET enable_progress_bar = false; SET autoinstall_known_extensions = false; "
                "SET parquet_metadata_cache = true"  # thousands of small files, each opened several times
            )
            register(connection)
            yield _Session(connection, project, artifacts_dir)


def _check_dependencies(model: SqlModel) -> None:
    """Every table that the SQL reads must come through ref() or source().

    Raises:
        SqlModelError: a table is named directly; lineage and order would not know of it.
    """
    for name in sorted(tables_read(model.compiled) - {*model.depends_on, *model.sources}):
        raise SqlModelError(
            f"{model.path}:{line_of(model.sql, name)}: reads {name!r} directly; "
            f"write {{{{ ref('{name}') }}}} or a "
            "source, so that it is run before and shows in the lineage"
        )


def _quote(value: Any) -> str:
    return "'" + str(value).replace("'", "''") + "'"
