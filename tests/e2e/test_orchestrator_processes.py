"""What `deploy/` starts, started: code server, webserver and daemon as processes of an environment that holds
the wheel, with PostgreSQL and an object store; a run asked for over GraphQL; pages that answer."""

from __future__ import annotations

import json
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml
from e2e_support import BACKFILL, ROOT, drop_pool, environment, of_database, patience, wait_for
from fresh_environments import call, environment_of_its_own, install
from tests_support import started

from tests.postgres import Postgres, program
from tests.servers import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]
DEPLOY = ROOT / "deploy"
SERVICES = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]
SCRIPT = """#!{python}
from importlib.metadata import entry_points
(found,) = entry_points(group="console_scripts", name="{name}")
found.load()()
"""
RUNS = "{ runsOrError { ... on Runs { results { status tags { key value } } } } }"
LOCATIONS = "{ repositoriesOrError { ... on RepositoryConnection { nodes { name } } } }"


@pytest.fixture(scope="module")
def programs(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bin` of a fresh environment with the wheel and Dagster's commands."""
    folder = tmp_path_factory.mktemp("image")
    python = environment_of_its_own(folder / "venv")
    install(python, *(built / "dist").glob("*.whl"), cwd=folder)
    for name in ("dagster", "dagster-webserver", "dagster-daemon"):
        python.with_name(name).write_text(SCRIPT.format(python=python, name=name))
        python.with_name(name).chmod(0o755)
    return python.parent


def of_dockerfile(name: str) -> list[str]:
    """The words of the image's CMD."""
    lines = (DEPLOY / name / "Dockerfile").read_text(encoding="utf-8").splitlines()
    words: list[str] = json.loads([line for line in lines if line.startswith("CMD ")][-1][4:])
    return words


def test_a_run_goes_through_the_processes_of_compose(programs: Path, tmp_path: Path) -> None:
    store_of = pytest.importorskip("tests.object_store", reason="needs the extras s3 and dev").Store
    pytest.importorskip("dagster_postgres", reason="extra [postgres] is not installed")
    if program("initdb") is None:
        pytest.skip("no initdb on this machine: install the PostgreSQL server to run this test")
    data, code, web = tmp_path / "data", str(free_port()), str(free_port())
    drop_pool(data, "team")
    workspace = (DEPLOY / "dagster" / "workspace.yaml").read_text(encoding="utf-8")
    workspace = workspace.replace("host: code", "host: 127.0.0.1").replace("4000", code)
    (data / "workspace.yaml").write_text(workspace)
    here = {
        "0.0.0.0": "127.0.0.1",
        "4000": code,
        "3000": web,
        "/data/workspace.yaml": str(data / "workspace.yaml"),
    }

    def words(command: list[str]) -> list[object]:
        return [programs / command[0], *(here.get(w, w) for w in command[1:])]

    with ExitStack() as stack:
        store = stack.enter_context(store_of())
        server = stack.enter_context(Postgres(seconds=120 * patience()))
        database = of_database(server)
        printed: dict[str, str] = SERVICES["code"]["environment"]
        assert {k for k in printed if k.startswith("CABS_PG")} == set(database)
        # the file's own, this machine's addresses
        settings = environment(data, **{**printed, **database, **store.settings})
        settings.pop("PYTHONPATH")

        store.client.delete_bucket(Bucket="cabs")  # compose makes it
        bucket = SERVICES["bucket"]["command"]
        subprocess.run([programs / "python", *bucket[1:]], env=settings, check=True, timeout=120 * patience())
        assert [b["Name"] for b in store.client.list_buckets()["Buckets"]] == ["cabs"]
        template = call(programs / "cabs", "instance", "--postgres", cwd=tmp_path)
        (data / "dagster").mkdir()
        (data / "dagster" / "dagster.yaml").write_text(template)

        stack.enter_context(started(words(of_dockerfile("dagster")), data / "dagster.txt", settings))
        health = words(SERVICES["code"]["healthcheck"]["test"][1:])
        wait_for(
            "the code server",
            lambda: subprocess.run(health, env=settings, capture_output=True).returncode == 0,
            120,
        )
        for name in ("webserver", "daemon"):
            stack.enter_context(started(words(SERVICES[name]["command"]), data / f"{name}.txt", settings))

        def ask(text: str, **variables: Any) -> dict[str, Any]:
            body = {"query": text, "variables": variables}
            answer: dict[str, Any] = requests.post(
                f"http://127.0.0.1:{web}/graphql", json=body, timeout=120
            ).json()
            return answer["data"]

        def loaded() -> bool:
            with suppress(requests.RequestException):
                return bool(ask(LOCATIONS)["repositoriesOrError"].get("nodes"))
            return False

        wait_for("the webserver", loaded, 120)
        assert "__NEXT_DATA__" in requests.get(f"http://127.0.0.1:{web}/runs", timeout=120).text
        params = {"assetSelection": [{"path": ["outcomes"]}], "partitionNames": ["team"]}
        # the daemon's sensor registers the pool as a partition first
        wait_for(
            "the backfill to be taken",
            lambda: "backfillId" in ask(BACKFILL, p=params)["launchPartitionBackfill"],
            150,
            step=5,
        )

        def ended() -> list[str]:
            runs = ask(RUNS)["runsOrError"]["results"]
            states = [run["status"] for run in runs]
            assert not {"FAILURE", "CANCELED"} & set(states), (data / "dagster.txt").read_text()[-3000:]
            return states if states and set(states) == {"SUCCESS"} else []

        wait_for("the run", ended, 240, step=2)
        assert "outcomes/team" in store.records("artifacts/")
    assert not (data / "artifacts").exists() and not list((data / "dagster").rglob("*.db"))
