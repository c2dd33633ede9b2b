"""Tests of models, with dbt's names and meaning: a test is a query for the rows that are wrong."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from cabs_core.errors import SqlModelError
from dbt_like_sql.execute import open_project
from dbt_like_sql.project import SqlModel, SqlTest, load_project

SAMPLE = 5


@dataclass(frozen=True)
class TestResult:
    """Outcome of one test: `failures` wrong rows (or values), the first few as `sample`."""

    __test__ = False  # not a pytest class

    name: str
    model: str
    kind: str
    column: str | None
    passed: bool
    severity: str
    failures: int
    sample: list[dict[str, Any]] = field(default_factory=list)
    sql: str = ""
    description: str = ""


def run_tests(name: str, artifacts_dir: str | Path, *, root: Path | None = None) -> list[TestResult]:
    """Run all tests of a model that has been run.

    Raises:
        SqlModelError: unknown model, not run yet, or a test's own SQL is broken.
    """
    project = load_project(root)
    if name not in project.models:
        raise SqlModelError(f"no SQL model called {name!r}; there are: {', '.join(sorted(project.models))}")
    model = project.models[name]
    if not model.tests:
        return []
    with open_project(artifacts_dir, model, root=root) as connection:
        return [_run(connection, model, test) for test in model.tests]


def failing_rows(model: SqlModel, test: SqlTest) -> str:
    """The query that returns the rows that fail the test."""
    column, arguments = test.column, test.arguments
    where = f" AND ({arguments['where']})" if arguments.get("where") else ""
    if test.kind == "not_null":
        return f"SELECT * FROM {model.name} WHERE {column} IS NULL{where}"
    if test.kind in ("unique", "unique_combination"):
        keys = column or ", ".join(arguments["columns"])
        present = f"{column} IS NOT NULL" if column else "true"
        return (
            f"SELECT {keys}, count(*) AS times FROM {model.name} WHERE {present}{where} "
            f"GROUP BY {keys} HAVING count(*) > 1"
        )
    if test.kind == "accepted_values":
        values = ", ".join("'" + str(v).replace("'", "''") + "'" for v in arguments["values"])
        return f"SELECT * FROM {model.name} WHERE {column} IS NOT NULL AND CAST({column} AS VARCHAR) NOT IN ({values}){where}"
    if test.kind == "relationships":
        target = re.search(r"ref\(\s*['\"](\w+)['\"]", str(arguments["to"]))
        if not target:
            raise SqlModelError(
                f"{test.path}: test {test.name}: `to` must be ref('model'), found {arguments['to']!r}"
            )
        field_ = arguments.get("field", column)
        return (
            f"SELECT * FROM {model.name} WHERE {column} IS NOT NULL{where} "
            f"AND {column} NOT IN (SELECT {field_} FROM {target.group(1)} WHERE {field_} IS NOT NULL)"
        )
    if test.kind == "expression":
        written = arguments["expression"]
        condition = f"{column} {written}" if column else written
        return f"SELECT * FROM {model.name} WHERE NOT ({condition}){where}"
    return test.sql


def _run(connection, model: SqlModel, test: SqlTest) -> TestResult:
    query = failing_rows(model, test)
    try:
        failures = connection.execute(f"SELECT count(*) FROM ({query}\n)").fetchone()[0]
        sample = []
        if failures:
            cursor = connection.execute(f"SELECT * FROM ({query}\n) LIMIT {SAMPLE}")
            names = [d[0] for d in cursor.description]
            sample = [dict(zip(names, row)) for row in cursor.fetchall()]
    except duckdb.Error as error:
        line = re.search(r"LINE (\d+):", str(error))
        place = f"{test.path}:{line.group(1)}" if line and test.kind == "singular" else f"{test.path}"
        raise SqlModelError(f"{place}: test {test.name} cannot be run: {error}") from None
    return TestResult(
        test.name, model.name, test.kind, test.column, failures == 0, test.severity, failures, sample, query,
        test.description,
    )  # fmt: skip
