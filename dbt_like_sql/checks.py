"""Tests of models, with dbt's names and meaning: a test is a query for the rows that are wrong."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from cabs_core.errors import SqlModelError
from dbt_like_sql.execute import Connection, open_project
from dbt_like_sql.project import SqlModel, SqlTest, get_model, refs_of

SAMPLE = 5


@dataclass(frozen=True)
class TestResult:
    """Outcome of one test: `failures` wrong rows (or values), the first few as `sample`."""

    __test__ = False  # not a pytest class

    name: str
    severity: str
    failures: int
    sample: list[dict[str, Any]] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether no row is wrong."""
        return not self.failures


def run_tests(name: str, artifacts_dir: str | Path, *, root: Path | None = None) -> list[TestResult]:
    """Run all tests of a model that has been run.

    Raises:
        SqlModelError: unknown model, not run yet, or a test's own SQL is broken.
    """
    model = get_model(name, root)
    if not model.tests:
        return []
    with open_project(artifacts_dir, model, root) as connection:
        return [_run(connection, model, test) for test in model.tests]


def failing_rows(model: SqlModel, test: SqlTest) -> str:
    """The query that returns the rows that fail the test."""
    column, arguments = test.column, test.arguments
    where = f" AND ({arguments['where']})" if arguments.get("where") else ""
    present = f"{column} IS NOT NULL" if column else "true"
    if test.kind == "not_null":
        return f"FROM {model.name} WHERE {column} IS NULL{where}"
    if test.kind in ("unique", "unique_combination"):
        keys = column or ", ".join(arguments["columns"])
        counted = f"SELECT {keys}, count(*) AS times FROM {model.name}"
        return f"{counted} WHERE {present}{where} GROUP BY {keys} HAVING count(*) > 1"
    if test.kind == "accepted_values":
        values = ", ".join("'" + str(v).replace("'", "''") + "'" for v in arguments["values"])
        return f"FROM {model.name} WHERE {present} AND CAST({column} AS VARCHAR) NOT IN ({values}){where}"
    if test.kind == "relationships":
        (target,), key = refs_of(test), arguments.get("field", column)
        known = f"SELECT {key} FROM {target} WHERE {key} IS NOT NULL"
        return f"FROM {model.name} WHERE {present}{where} AND {column} NOT IN ({known})"
    if test.kind == "expression":
        return f"FROM {model.name} WHERE NOT ({column or ''} {arguments['expression']}){where}"
    return test.sql


def _run(connection: Connection, model: SqlModel, test: SqlTest) -> TestResult:
    query = failing_rows(model, test)
    try:
        failures = connection.execute(f"SELECT count(*) FROM ({query}\n)").fetchall()[0][0]
        wrong = connection.execute(f"FROM ({query}\n) LIMIT {SAMPLE}") if failures else None
        names = [column[0] for column in wrong.description or ()] if wrong else []
        sample = [dict(zip(names, row)) for row in wrong.fetchall()] if wrong else []
    except duckdb.Error as error:
        line = re.search(r"LINE (\d+):", str(error)) if test.kind == "singular" else None
        place = f"{test.path}{f':{line[1]}' if line else ''}"
        raise SqlModelError(f"{place}: test {test.name} cannot be run: {error}") from None
    return TestResult(test.name, test.severity, failures, sample)
