"""Running models with DuckDB: parquet in, one parquet a model out, and the database rebuilt from them.

Parquet under `<artifacts>/marts/` is the source of truth. Every model runs in a connection of its own, in memory,
so that models can run in any process; `cabs.duckdb` is only ever rebuilt whole, by one writer at a time.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
from filelock import FileLock

from cabs_core.atomic import atomic_path
from cabs_core.catalog import policy_table
from cabs_core.errors import SqlModelError
from dbt_like_sql.functions import register
from dbt_like_sql.lineage import column_lineage, tables_read
from dbt_like_sql.project import Project, SourceTable, SqlModel, get_model, line_of, load_project, refs_of

DATABASE = "cabs.duckdb"
MEMORY = "3GB"
Connection = duckdb.DuckDBPyConnection


@dataclass(frozen=True)
class ModelRun:
    """What a run of a model gave.

    Attributes:
        schema: [(column, DuckDB type)].
        column_lineage: {column: [(upstream model or source, column), ...]}; empty where sqlglot and DuckDB disagree
            on the columns.
        path: the parquet file; None for a view. content_hash: of its bytes; empty for a view.
    """

    name: str
    rows: int
    schema: list[tuple[str, str]]
    column_lineage: dict[str, list[tuple[str, str]]]
    path: Path | None
    content_hash: str


def model_path(name: str, artifacts_dir: str | Path) -> Path:
    """Parquet file of a model that is materialised as a table."""
    return Path(artifacts_dir) / "marts" / f"{name}.parquet"


def run_model(name: str, artifacts_dir: str | Path, *, root: Path | None = None) -> ModelRun:
    """Run one model and write its parquet.

    Raises:
        SqlModelError: unknown model, broken SQL (file and line), or something it refs has not been run.
    """
    project, model = load_project(root), get_model(name, root)
    check_dependencies(model)
    with connected(project) as connection:
        upstream = open_relations(connection, project, model, artifacts_dir)
        create_view(connection, model)
        schema = describe(connection, name)
        path, digest = None, ""
        if model.materialized == "table":
            path = model_path(name, artifacts_dir)
            with atomic_path(path) as temporary:
                copy = f"COPY (FROM {name}) TO {_quote(temporary)} (FORMAT parquet, COMPRESSION zstd)"
                _execute(connection, model, copy)
            digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        counted = name if path is None else f"read_parquet({_quote(path)})"
        rows = _execute(connection, model, f"SELECT count(*) FROM {counted}").fetchall()[0][0]
    read = tuple((relation, tuple(columns.items())) for relation, columns in sorted(upstream.items()))
    written = {s.relation: f"{s.source}.{s.name}" for s in project.sources.values()}
    origins = {
        column: [(written.get(relation, relation), origin) for relation, origin in found]
        for column, found in column_lineage(model.compiled, read, tuple(c for c, _ in schema))
    }
    return ModelRun(name, rows, schema, origins, path, digest)


def build_all(
    artifacts_dir: str | Path, *, database: bool = True, root: Path | None = None
) -> dict[str, ModelRun]:
    """Run every model in dependency order, then rebuild the database."""
    runs = {name: run_model(name, artifacts_dir, root=root) for name in load_project(root).models}
    if database:
        rebuild_database(artifacts_dir, root=root)
    return runs


def rebuild_database(artifacts_dir: str | Path, *, root: Path | None = None) -> Path:
    """Rebuild `marts/cabs.duckdb` from the marts' parquet: a table a model that has been run, with comments.

    Views over the raw traces stay out: they would point at files of this machine. One writer at a time; readers
    keep the file they opened.
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


def read_model(
    name: str, artifacts_dir: str | Path, where: str = "", parameters: dict[str, Any] | None = None
) -> pd.DataFrame:
    """Rows of a model, read from its parquet.

    Args:
        where: SQL condition with $name parameters, e.g. "pool = $pool".

    Raises:
        SqlModelError: it has not been run.
    """
    path = model_path(name, artifacts_dir)
    if not path.is_file():
        raise SqlModelError(f"{path} does not exist: run the SQL model {name!r} first (marts/{name})")
    with duckdb.connect() as connection:
        query = f"FROM read_parquet({_quote(path)})" + (f" WHERE {where}" if where else "")
        return connection.execute(query, parameters or {}).df()


@contextmanager
def open_project(
    artifacts_dir: str | Path, model: SqlModel, root: Path | None = None
) -> Iterator[Connection]:
    """A connection in which everything that `model` and its tests read, and its own result, exist by name."""
    project = load_project(root)
    others = {name for test in model.tests for name in refs_of(test)}
    with connected(project) as connection:
        for name in dict.fromkeys((*model.depends_on, *sorted(others), model.name)):
            _open_model(connection, project, project.models[name], artifacts_dir)
        yield connection


def check_dependencies(model: SqlModel) -> None:
    """Every table that the SQL reads must come through ref() or source().

    Raises:
        SqlModelError: a table is named directly; lineage and order would not know of it.
    """
    for name in sorted(tables_read(model.compiled) - {*model.depends_on, *model.sources}):
        raise SqlModelError(
            f"{model.path}:{line_of(model.sql, name)}: reads {name!r} directly; write {{{{ ref('{name}') }}}} or a "
            "source, so that it is run before and shows in the lineage"
        )


def open_relations(
    connection: Connection, project: Project, model: SqlModel, artifacts_dir: str | Path
) -> dict[str, dict[str, str]]:
    """Make everything the model reads available by name; returns {relation: {column: type}}."""
    for source in model.sources:
        _open_source(connection, project.sources[source], artifacts_dir)
    for ref in model.depends_on:
        _open_model(connection, project, project.models[ref], artifacts_dir)
    return {r: dict(describe(connection, r)) for r in (*model.sources, *model.depends_on)}


def create_view(connection: Connection, model: SqlModel) -> None:
    """Create the model's query as a view; a broken query is reported with file and line."""
    # On the query's own first line, so that DuckDB's line numbers are those of the file.
    _execute(connection, model, f"CREATE OR REPLACE TEMP VIEW {model.name} AS {model.compiled}")


def describe(connection: Connection, relation: str) -> list[tuple[str, str]]:
    """[(column, type)] as DuckDB sees it."""
    return [(row[0], row[1]) for row in connection.execute(f"DESCRIBE {relation}").fetchall()]


def _open_model(connection: Connection, project: Project, model: SqlModel, artifacts_dir: str | Path) -> None:
    if model.materialized == "view":
        open_relations(connection, project, model, artifacts_dir)
        create_view(connection, model)
        return
    path = model_path(model.name, artifacts_dir)
    if not path.is_file():
        raise SqlModelError(
            f"{model.path}: {model.name} has not been run: {path} does not exist. Run it first (marts/{model.name})."
        )
    connection.execute(f"CREATE OR REPLACE TEMP VIEW {model.name} AS FROM read_parquet({_quote(path)})")


def source_files(source: SourceTable, artifacts_dir: str | Path) -> list[Path]:
    """Files of a source, sorted. Hidden folders (half-written ones) are never matched."""
    if source.format == "catalog":
        return []
    if source.path.startswith("package:"):
        package, _, pattern = source.path.removeprefix("package:").partition("/")
        return sorted(Path(str(resources.files(package))).glob(pattern))
    folder = Path(artifacts_dir)
    files = (p for p in folder.glob(source.path) if not re.search(r"(^|/)\.", str(p.relative_to(folder))))
    return sorted(files)


def catalog_rows(source: SourceTable) -> list[dict[str, Any]]:
    """Rows of a source table of format `catalog`.

    Raises:
        SqlModelError: the catalog has no such table.
    """
    if source.path != "policies":
        raise SqlModelError(f"source {source.source}.{source.name}: the catalog has no table {source.path!r}")
    return policy_table()


def _open_source(connection: Connection, source: SourceTable, artifacts_dir: str | Path) -> None:
    if source.format == "catalog":
        rows = pa.Table.from_pylist(catalog_rows(source))
        connection.register(source.relation, rows.select([c.name for c in source.columns]))
        return
    files = source_files(source, artifacts_dir)
    listed, names = f"[{', '.join(map(_quote, files))}]", ", ".join(f'"{c.name}"' for c in source.columns)
    types = ", ".join(f"{_quote(c.name)}: {_quote(c.data_type)}" for c in source.columns)
    query = {
        "text": f"SELECT filename, content FROM read_text({listed})",
        "csv": f"FROM read_csv({listed}, header = true, columns = {{{types}}})",
        # by name: of a pool that was not run since a column came, that column is empty
        "parquet": f"SELECT {names} FROM read_parquet({listed}, union_by_name = true)",
    }[source.format]
    if not files:
        query = f"SELECT {', '.join(f'NULL::{c.data_type} AS {c.name}' for c in source.columns)} WHERE false"
    try:
        connection.execute(f"CREATE OR REPLACE TEMP VIEW {source.relation} AS {query}")
    except duckdb.Error as error:
        raise SqlModelError(
            f"source {source.source}.{source.name} ({source.path} below {artifacts_dir}, {len(files)} files): {error}"
        ) from None


def _execute(connection: Connection, model: SqlModel, sql: str) -> Connection:
    try:
        return connection.execute(sql)
    except duckdb.Error as error:
        # only the statement that holds the query itself has its line numbers
        line = re.search(r"LINE (\d+):", str(error)) if model.compiled in sql else None
        place = f"{model.path}{f':{line[1]}' if line else ''}"
        raise SqlModelError(f"{place}: model {model.name} failed: {error}") from None


@contextmanager
def connected(project: Project) -> Iterator[Connection]:
    """A connection in memory with the functions and macros of the project."""
    with tempfile.TemporaryDirectory(prefix="cabs-duckdb-") as spill:
        with duckdb.connect(config={"temp_directory": spill, "memory_limit": MEMORY}) as connection:
            # One thread: sums in a fixed order, so equal inputs give equal bytes.
            connection.execute(
                "SET threads = 1; SET enable_progress_bar = false; SET autoinstall_known_extensions = false"
            )
            register(connection)
            if project.macros:
                connection.execute(project.macros)
            yield connection


def _quote(value: Any) -> str:
    return "'" + str(value).replace("'", "''") + "'"
