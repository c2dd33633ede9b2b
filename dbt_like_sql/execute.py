"""Running models with DuckDB: parquet in, one parquet a model out, and the database rebuilt from them.

Parquet under `<artifacts>/marts/` is the source of truth. Every model runs in a connection of its own, in memory,
so that models can run in any process; `cabs.duckdb` is only ever rebuilt whole, by one writer at a time.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import duckdb

from cabs_core.atomic import atomic_path
from cabs_core.catalog import policy_table
from cabs_core.errors import SqlModelError
from dbt_like_sql import lineage as _lineage
from dbt_like_sql.functions import register
from dbt_like_sql.project import Project, SourceTable, SqlModel, load_project

DATABASE = "cabs.duckdb"
MEMORY = "3GB"


@dataclass(frozen=True)
class ModelRun:
    """What a run of a model gave. `path` is None for a view; `schema` is [(column, DuckDB type)]."""

    name: str
    rows: int
    schema: list[tuple[str, str]]
    column_lineage: dict[str, list[tuple[str, str]]]
    seconds: float
    path: Path | None
    bytes: int
    content_hash: str
    notes: list[str] = field(default_factory=list)


def marts_dir(artifacts_dir: str | Path) -> Path:
    """Folder of the marts' parquet."""
    return Path(artifacts_dir) / "marts"


def model_path(name: str, artifacts_dir: str | Path) -> Path:
    """Parquet file of a model that is materialised as a table."""
    return marts_dir(artifacts_dir) / f"{name}.parquet"


def run_model(name: str, artifacts_dir: str | Path, *, root: Path | None = None) -> ModelRun:
    """Run one model and write its parquet.

    Raises:
        SqlModelError: unknown model, broken SQL (file and line), or something it refs has not been run.
    """
    project = load_project(root)
    model = _known(project, name)
    _lineage.check_dependencies(model)
    started = time.perf_counter()
    with _connection(project, artifacts_dir) as connection:
        upstream = open_relations(connection, project, model, artifacts_dir)
        create_view(connection, model)
        schema = describe(connection, model.name)
        path, size = None, 0
        if model.materialized == "table":
            path = model_path(name, artifacts_dir)
            with atomic_path(path) as temporary:
                _execute(
                    connection,
                    model,
                    f"COPY (FROM {name}) TO {_quote(temporary)} (FORMAT parquet, COMPRESSION zstd)",
                )
                size = temporary.stat().st_size
            digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
            rows = connection.execute(f"SELECT count(*) FROM read_parquet({_quote(path)})").fetchone()[0]
        else:
            rows = _execute(connection, model, f"SELECT count(*) FROM {name}").fetchone()[0]
            digest = _files_digest(project, model, artifacts_dir)
    columns = _lineage.column_lineage(model, upstream, [c for c, _ in schema])
    notes = [] if columns else ["column lineage left out: sqlglot and DuckDB name different columns"]
    return ModelRun(
        name, rows, schema, _shown(columns, project), time.perf_counter() - started, path, size, digest, notes
    )


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
    project = load_project(root)
    folder = marts_dir(artifacts_dir)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / DATABASE
    with _lock(folder / f".{DATABASE}.lock"), atomic_path(target) as temporary:
        connection = duckdb.connect(str(temporary))
        try:
            for model in project.models.values():
                path = model_path(model.name, artifacts_dir)
                if model.materialized != "table" or not path.is_file():
                    continue
                connection.execute(f"CREATE TABLE {model.name} AS FROM read_parquet({_quote(path)})")
                if model.description:
                    connection.execute(f"COMMENT ON TABLE {model.name} IS {_quote(model.description)}")
            connection.execute("CHECKPOINT")
        finally:
            connection.close()
    return target


def read_model(
    name: str, artifacts_dir: str | Path, where: str = "", parameters: dict[str, Any] | None = None
):
    """Rows of a model as a pandas DataFrame, read from its parquet.

    Args:
        where: SQL condition with $name parameters, e.g. "pool = $pool".

    Raises:
        SqlModelError: it has not been run.
    """
    path = model_path(name, artifacts_dir)
    if not path.is_file():
        raise SqlModelError(f"{path} does not exist: run the SQL model {name!r} first (marts/{name})")
    connection = duckdb.connect()
    try:
        query = f"SELECT * FROM read_parquet({_quote(path)})" + (f" WHERE {where}" if where else "")
        return connection.execute(query, parameters or {}).df()
    finally:
        connection.close()


@contextmanager
def open_project(artifacts_dir: str | Path, model: SqlModel, *, root: Path | None = None) -> Iterator[Any]:
    """A connection in which everything that `model` reads, and its own result, exist by name (for tests)."""
    project = load_project(root)
    with _connection(project, artifacts_dir) as connection:
        for name in _refs(model):
            _open_model(connection, project, project.models[name], artifacts_dir)
        _open_model(connection, project, model, artifacts_dir)
        yield connection


def _refs(model: SqlModel) -> list[str]:
    found = dict.fromkeys(model.depends_on)
    for test in model.tests:
        found |= dict.fromkeys(test.arguments.get("refs", ()))
        if target := re.search(r"ref\(\s*['\"](\w+)['\"]", str(test.arguments.get("to", ""))):
            found[target.group(1)] = None
    return [name for name in found if name != model.name]


def open_relations(connection, project: Project, model: SqlModel, artifacts_dir) -> dict[str, dict[str, str]]:
    """Make everything the model reads available by name; returns {relation: {column: type}}."""
    for source in model.sources:
        _open_source(connection, project.sources[source], artifacts_dir)
    for ref in model.depends_on:
        _open_model(connection, project, project.models[ref], artifacts_dir)
    return {r: dict(describe(connection, r)) for r in (*model.sources, *model.depends_on)}


def create_view(connection, model: SqlModel) -> None:
    """Create the model's query as a view; a broken query is reported with file and line."""
    # On the query's own first line, so that DuckDB's line numbers are those of the file.
    _execute(connection, model, f"CREATE OR REPLACE TEMP VIEW {model.name} AS {model.compiled}")


def describe(connection, relation: str) -> list[tuple[str, str]]:
    """[(column, type)] as DuckDB sees it."""
    return [(row[0], row[1]) for row in connection.execute(f"DESCRIBE {relation}").fetchall()]


def _open_model(connection, project: Project, model: SqlModel, artifacts_dir) -> None:
    if model.materialized == "view":
        open_relations(connection, project, model, artifacts_dir)
        create_view(connection, model)
        return
    path = model_path(model.name, artifacts_dir)
    if not path.is_file():
        raise SqlModelError(
            f"{model.path}: {model.name} has not been run: {path} does not exist. Run it first (marts/{model.name})."
        )
    connection.execute(
        f"CREATE OR REPLACE TEMP VIEW {model.name} AS SELECT * FROM read_parquet({_quote(path)})"
    )


def source_files(source: SourceTable, artifacts_dir: str | Path) -> list[Path]:
    """Files of a source, sorted. Hidden folders (half-written ones) are never matched."""
    if source.format == "catalog":
        return []
    if source.path.startswith("package:"):
        package, _, pattern = source.path.removeprefix("package:").partition("/")
        return sorted(Path(str(resources.files(package))).glob(pattern))
    return sorted(
        p
        for p in Path(artifacts_dir).glob(source.path)
        if not any(part.startswith(".") for part in p.relative_to(artifacts_dir).parts)
    )


def catalog_rows(source: SourceTable) -> list[dict[str, Any]]:
    """Rows of a source table of format `catalog`.

    Raises:
        SqlModelError: the catalog has no such table.
    """
    if source.path != "policies":
        raise SqlModelError(f"source {source.source}.{source.name}: the catalog has no table {source.path!r}")
    return policy_table()


def _open_source(connection, source: SourceTable, artifacts_dir) -> None:
    files = source_files(source, artifacts_dir)
    empty = ", ".join(f"NULL::{c.data_type} AS {c.name}" for c in source.columns)
    query = f"SELECT {empty} WHERE false"
    if source.format == "catalog":
        rows = ", ".join(
            "(" + ", ".join(_quote(row[c.name]) for c in source.columns) + ")" for row in catalog_rows(source)
        )
        query = f"SELECT * FROM (VALUES {rows}) AS t({', '.join(c.name for c in source.columns)})"
    elif files:
        listed = "[" + ", ".join(_quote(f) for f in files) + "]"
        if source.format == "text":
            query = f"SELECT filename, content FROM read_text({listed})"
        elif source.format == "csv":
            types = "{" + ", ".join(f"{_quote(c.name)}: {_quote(c.data_type)}" for c in source.columns) + "}"
            query = f"SELECT * FROM read_csv({listed}, header = true, columns = {types})"
        else:
            names = ", ".join(f'"{c.name}"' for c in source.columns)
            query = f"SELECT {names} FROM read_parquet({listed})"
    try:
        connection.execute(f"CREATE OR REPLACE TEMP VIEW {source.relation} AS {query}")
    except duckdb.Error as error:
        raise SqlModelError(
            f"source {source.source}.{source.name} ({source.path} below {artifacts_dir}, {len(files)} files): {error}"
        ) from None


def _execute(connection, model: SqlModel, sql: str):
    try:
        return connection.execute(sql)
    except duckdb.Error as error:
        # Only the statement that holds the query itself has its line numbers.
        line = re.search(r"LINE (\d+):", str(error)) if model.compiled in sql else None
        place = f"{model.path}:{line.group(1)}" if line else str(model.path)
        raise SqlModelError(f"{place}: model {model.name} failed: {error}") from None


@contextmanager
def _connection(project: Project, artifacts_dir) -> Iterator[Any]:
    spill = tempfile.mkdtemp(prefix="cabs-duckdb-")
    connection = duckdb.connect(
        config={"memory_limit": MEMORY, "temp_directory": spill, "autoinstall_known_extensions": "false"}
    )
    try:
        # One thread: sums in a fixed order, so equal inputs give equal bytes.
        connection.execute("SET threads = 1; SET enable_progress_bar = false")
        register(connection)
        if project.macros:
            connection.execute(project.macros)
        yield connection
    finally:
        connection.close()
        shutil.rmtree(spill, ignore_errors=True)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with open(path, "a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)


def _files_digest(project: Project, model: SqlModel, artifacts_dir) -> str:
    """Hash of what a view reads: names, sizes and times of its files (its rows are too many to hash)."""
    digest = hashlib.sha256(model.compiled.encode())
    for source in model.sources:
        for path in source_files(project.sources[source], artifacts_dir):
            stat = path.stat()
            digest.update(f"{path.name}:{stat.st_size}:{stat.st_mtime_ns};".encode())
    for ref in model.depends_on:
        path = model_path(ref, artifacts_dir)
        digest.update(path.read_bytes() if path.is_file() else ref.encode())
    return digest.hexdigest()[:16]


def _shown(columns: dict[str, list[tuple[str, str]]], project: Project) -> dict[str, list[tuple[str, str]]]:
    """Sources by their written name: `replay__trials` -> `replay.trials`."""
    names = {s.relation: f"{s.source}.{s.name}" for s in project.sources.values()}
    return {c: [(names.get(r, r), u) for r, u in origins] for c, origins in columns.items()}


def _known(project: Project, name: str) -> SqlModel:
    if name not in project.models:
        raise SqlModelError(f"no SQL model called {name!r}; there are: {', '.join(sorted(project.models))}")
    return project.models[name]


def _quote(value: Any) -> str:
    return "'" + str(value).replace("'", "''") + "'"
