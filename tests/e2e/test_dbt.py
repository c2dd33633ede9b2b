"""dbt itself builds the models of `dbt_like_sql`: the same tables as the embedded runner, row for row, and
the same tests."""

import json
import os
import re
import subprocess
from pathlib import Path

import duckdb
import pytest
from fake_replays import build_artifacts

from cabs_core.base.paths import project_root
from dbt_like_sql.runner import ROOT, list_models, model_path

DBT = project_root() / "build/dbt/bin/dbt"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.skipif(not DBT.is_file(), reason="dbt is not installed: make dbt"),
]


#: `dbt` takes seconds to start: one process for all commands of a home
PROGRAM = """
import sys
from dbt.cli.main import dbtRunner
for command in sys.argv[1:]:
    done = dbtRunner().invoke(["--no-use-colors", *command.split()])
    assert done.success, (command, done.exception)
"""


def dbt(home: Path, *commands: str) -> None:
    places = {
        "CABS_HOME": str(home),
        "DBT_TARGET_PATH": str(home / "target"),
        "DBT_LOG_PATH": str(home / "logs"),
    }
    done = subprocess.run(
        [DBT.with_name("python"), "-c", PROGRAM, *commands],
        cwd=ROOT,
        env={**os.environ, **places},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-1000:]


@pytest.fixture(scope="module")
def homes(tmp_path_factory):
    """Two homes in which dbt has built: one with replays, one without anything."""
    full, empty = tmp_path_factory.mktemp("full"), tmp_path_factory.mktemp("empty")
    build_artifacts(full / "artifacts")
    for home in (full, empty):
        dbt(home, "build")
    return full, empty


def test_its_tables_are_those_of_the_runner_row_for_row(homes):
    full, _ = homes
    tables = [model.name for model in list_models() if model.materialized == "table"]
    with duckdb.connect(str(full / "dbt.duckdb"), read_only=True) as connection:
        for name in tables:
            ours = f"FROM read_parquet('{model_path(name, full / 'artifacts')}')"
            theirs, expected = connection.sql(f"FROM {name}"), connection.sql(ours)
            assert (theirs.columns, theirs.types) == (expected.columns, expected.types), name
            assert theirs.fetchall() == expected.fetchall(), name


def test_an_empty_home_has_every_table_and_no_rows(homes):
    _, empty = homes
    with duckdb.connect(str(empty / "dbt.duckdb"), read_only=True) as connection:
        tables = {
            name: connection.sql(f"FROM {name}").fetchall()
            for (name,) in connection.sql("SHOW TABLES").fetchall()
        }
    assert {name for name, rows in tables.items() if rows} == {"policies", "published"} & tables.keys()
    assert {model.name for model in list_models() if model.materialized == "table"} <= tables.keys()


def test_it_runs_the_same_tests(homes):
    full, _ = homes
    results = json.loads((full / "target/run_results.json").read_text())["results"]
    passed = [r for r in results if r["unique_id"].startswith("test.")]
    assert len(passed) == sum(len(model.tests) for model in list_models())
    assert {r["status"] for r in passed} == {"pass"}


def test_the_commands_of_the_page_run(homes):
    """What docs/dbt.md tells people to type, in order."""
    full, _ = homes
    page = (project_root() / "docs/dbt.md").read_text(encoding="utf-8")
    commands = re.findall(r"^    dbt (.+?)(?: {2,}#.*)?$", page, re.MULTILINE)
    assert len(commands) > 4
    # the fixture has built
    dbt(full, *(command for command in commands if command not in ("build", "docs serve")))
