"""The Dagster instance on PostgreSQL: the shipped template against a server of the test's own, on 127.0.0.1."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from e2e_support import cabs, drop_pool, patience

from cabs_core.errors import CabsError
from cabs_dagster.definitions import build_defs
from cabs_dagster.instance import open_instance, template
from cabs_dagster.instance.recover import PROCESS_TAG, process_tag, recover
from cabs_dagster.jobs import PREPARE
from cabs_dagster.resources import CabsResource
from cabs_dagster.sensors import pool_files

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]


def server_program(name: str) -> str:
    """Path of a program of the PostgreSQL server; Debian keeps them off the PATH. Skips without one."""
    places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    path = shutil.which(name) or (str(places[-1]) if places else None)
    if path is None:
        pytest.skip(f"no {name} on this machine: install the PostgreSQL server to run this test")
    return path


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    """The settings of a fresh PostgreSQL server (it refuses to run as root, so it runs as its own user then)."""
    pytest.importorskip("dagster_postgres", reason="extra [postgres] is not installed")
    initdb, pg_ctl = server_program("initdb"), server_program("pg_ctl")
    user = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}
    folder = Path(tempfile.mkdtemp(prefix="cabs-pg-"))  # a socket's path must be short
    password = folder / "password"
    password.write_text("only-for-this-test")
    if user:
        shutil.chown(folder, "postgres")
        shutil.chown(password, "postgres")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def call(*arguments: str) -> None:
        done = subprocess.run(
            arguments, capture_output=True, text=True, cwd=folder, timeout=120 * patience(),
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"}, **user,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    data = str(folder / "data")
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
    try:
        call(initdb, "-N", "-D", data, "-U", "cabs", "--auth=scram-sha-256", f"--pwfile={password}")
        call(pg_ctl, "-D", data, "-w", "-l", str(folder / "log"), "-o", options, "start")
        yield {
            "CABS_PG_HOST": "127.0.0.1",
            "CABS_PG_PORT": str(port),
            "CABS_PG_USER": "cabs",
            "CABS_PG_PASSWORD": password.read_text(),
            "CABS_PG_DB": "postgres",
        }
    finally:
        subprocess.run(
            [pg_ctl, "-D", data, "-w", "-m", "immediate", "stop"], capture_output=True, cwd=folder, **user
        )
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def on_postgres(server: dict[str, str], cabs_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CABS_HOME whose instance is on that server."""
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    (cabs_home / "dagster" / "dagster.yaml").write_text(template("postgres"))
    return cabs_home


def test_runs_are_kept_in_postgres(server: dict[str, str], on_postgres: Path) -> None:
    drop_pool(on_postgres, "kept")
    wanted = ("run", "--pool", "kept", "--rho", "777", "--policies", "random", "--no-report")
    for expected in ("2 runs in", "0 runs in"):
        assert expected in cabs(on_postgres, *wanted, **server)
    with open_instance() as instance:
        assert instance.get_materialized_partitions(dg.AssetKey("replay")) == {"kept|0777"}
        assert [run.status for run in instance.get_runs()] == [dg.DagsterRunStatus.SUCCESS] * 2
    assert not list((on_postgres / "dagster").rglob("*.db"))


def test_the_sensor_ticks_and_a_killed_run_is_marked(on_postgres: Path) -> None:
    drop_pool(on_postgres, "seen")
    with open_instance() as instance:
        context = dg.build_sensor_context(instance=instance, sensor_name="pool_files")
        tick = pool_files(context, cabs=CabsResource())
        assert [request.partition_key for request in tick.run_requests] == ["seen"]

        owner = process_tag().rpartition("/")[0] + "/another.lock"  # of a process that is no more
        job, started = build_defs().resolve_job_def(PREPARE), dg.DagsterRunStatus.STARTED
        instance.create_run_for_job(job, status=started, tags={PROCESS_TAG: process_tag()})
        dead = instance.create_run_for_job(job, status=started, tags={PROCESS_TAG: owner})
        assert recover(instance) == [dead.run_id]
        run = instance.get_run_by_id(dead.run_id)
        assert run is not None and run.status == dg.DagsterRunStatus.FAILURE


def test_what_is_missing_is_named(on_postgres: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CABS_PG_USER")
    with pytest.raises(CabsError, match="takes CABS_PG_USER from the environment"), open_instance():
        pass
    monkeypatch.setenv("CABS_PG_USER", "somebody")
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # the driver tries several times
    with pytest.raises(CabsError, match=r"dagster\.yaml cannot be opened: .*somebody"), open_instance():
        pass
