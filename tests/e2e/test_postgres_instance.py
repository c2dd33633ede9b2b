"""The Dagster instance on PostgreSQL: the shipped template against a server of the test's own, on
127.0.0.1."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from e2e_support import drop_pool, of_database, patience

from cabs_core.base.errors import CabsError
from cabs_core.pipeline.artifacts import ArtifactStore
from cabs_dagster.build import build_defs
from cabs_dagster.instance import open_instance, template
from cabs_dagster.instance.recover import PROCESS_TAG, process_tag, recover
from cabs_dagster.job_names import PREPARE
from cabs_dagster.sensors import watch_pool_files
from tests.postgres import Postgres, program

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    """The settings of a fresh PostgreSQL server."""
    pytest.importorskip("dagster_postgres", reason="extra [postgres] is not installed")
    if program("initdb") is None:
        pytest.skip("no initdb on this machine: install the PostgreSQL server to run this test")
    with Postgres(seconds=120 * patience()) as made:
        yield of_database(made)


@pytest.fixture
def on_postgres(server: dict[str, str], cabs_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CABS_HOME whose instance is on that server."""
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    (cabs_home / "dagster" / "dagster.yaml").write_text(template("postgres"))
    return cabs_home


def test_the_sensor_ticks_and_a_killed_run_is_marked(on_postgres: Path) -> None:
    drop_pool(on_postgres, "seen")
    with open_instance() as instance:
        context = dg.build_sensor_context(instance=instance, sensor_name="pool_files")
        tick = watch_pool_files(context, ArtifactStore())
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
