"""Dead workers are told from busy ones; transient errors from lasting ones; SQLite connections are kept and released."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster._core.test_utils import create_run_for_test

from cabs_core.errors import CabsError, DataError
from cabs_dagster import executors, sqlite
from cabs_dagster.instance import open_instance, prepare_home, template
from cabs_dagster.launcher import WORKER_TAG, boot_id, process_start, recover, worker_alive, worker_tag
from cabs_dagster.making import guarded, is_transient

STARTED = dg.DagsterRunStatus.STARTED


def test_a_living_worker_is_alive_and_a_dead_or_recycled_one_is_not(cabs_home: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    tag = f"{boot_id()}:{child.pid}:{process_start(child.pid)}"
    with open_instance() as instance:
        mine = create_run_for_test(instance, "a", status=STARTED, tags={WORKER_TAG: worker_tag()})
        run = create_run_for_test(instance, "a", status=STARTED, tags={WORKER_TAG: tag})
        recycled = create_run_for_test(
            instance, "a", status=STARTED, tags={WORKER_TAG: f"{boot_id()}:{os.getpid()}:1"}
        )
        unknown = create_run_for_test(instance, "a", status=STARTED)
        gone = {WORKER_TAG: f"{boot_id()}:{os.getpid()}:1"}
        unborn = create_run_for_test(instance, "a", status=dg.DagsterRunStatus.NOT_STARTED, tags=gone)
        assert [worker_alive(instance, r) for r in (mine, run, recycled, unknown)] == [
            True,
            True,
            False,
            None,
        ]
        child.kill()
        child.wait()
        assert worker_alive(instance, run) is False
        assert set(recover(instance)) == {run.run_id, recycled.run_id, unborn.run_id}
        assert instance.get_run_by_id(run.run_id).status == dg.DagsterRunStatus.FAILURE
        assert instance.get_run_by_id(mine.run_id).status == STARTED
        assert recover(instance) == []


def test_a_run_that_is_executed_again_is_not_taken_for_the_dead_first_one(cabs_home: Path) -> None:
    gone = {WORKER_TAG: f"{boot_id()}:{os.getpid()}:1"}
    with open_instance() as instance:
        first = create_run_for_test(instance, "a", status=dg.DagsterRunStatus.FAILURE, tags=gone)
        family = {"parent_run_id": first.run_id, "root_run_id": first.run_id}
        again = create_run_for_test(instance, "a", status=dg.DagsterRunStatus.STARTING, tags=gone, **family)
        assert worker_alive(instance, again) is None and recover(instance) == []
        instance.add_run_tags(again.run_id, {WORKER_TAG: f"{boot_id()}:{os.getpid()}:2"})
        assert recover(instance) == [again.run_id]


def test_run_monitoring_asks_the_launcher(cabs_home: Path) -> None:
    with open_instance() as instance:
        launcher = instance.run_launcher
        assert launcher.supports_check_run_worker_health and instance.run_monitoring_enabled
        dead = create_run_for_test(
            instance, "a", status=STARTED, tags={WORKER_TAG: f"{boot_id()}:{os.getpid()}:1"}
        )
        assert launcher.check_run_worker_health(dead).status.value == "NOT_FOUND"
        mine = create_run_for_test(instance, "a", status=STARTED, tags={WORKER_TAG: worker_tag()})
        assert launcher.check_run_worker_health(mine).status.value == "RUNNING"


def test_slots_of_a_dead_run_are_freed(cabs_home: Path) -> None:
    with open_instance() as instance:
        dead = create_run_for_test(
            instance, "a", status=STARTED, tags={WORKER_TAG: f"{boot_id()}:{os.getpid()}:1"}
        )
        storage = instance.event_log_storage
        storage.set_concurrency_slots("duckdb", 1)
        storage.claim_concurrency_slot("duckdb", dead.run_id, "sql_models")
        assert storage.get_concurrency_info("duckdb").active_slot_count == 1
        recover(instance)
        assert storage.get_concurrency_info("duckdb").active_slot_count == 0


def test_only_errors_that_may_pass_are_retried() -> None:
    import requests

    answer = requests.Response()
    answer.status_code = 503
    for error in (
        ConnectionError(),
        TimeoutError(),
        requests.ConnectTimeout(),
        requests.HTTPError(response=answer),
    ):
        assert is_transient(error)
    answer = requests.Response()
    answer.status_code = 404
    for error in (
        DataError("bad row"),
        ValueError(),
        requests.HTTPError(response=answer),
        FileNotFoundError(),
    ):
        assert not is_transient(error)
    wrapped = DataError("download failed")
    wrapped.__cause__ = ConnectionError()
    assert is_transient(wrapped)
    with pytest.raises(dg.Failure) as failure, guarded():
        raise DataError("row 3: score 2")
    assert failure.value.description == "row 3: score 2" and not failure.value.allow_retries
    with pytest.raises(ConnectionError), guarded():
        raise ConnectionError


def test_the_instance_is_set_up_quietly_and_never_overwritten(cabs_home: Path) -> None:
    home = prepare_home()
    settings = yaml.safe_load((home / "dagster.yaml").read_text())
    assert settings["telemetry"] == {"enabled": False} and settings["nux"] == {"enabled": False}
    assert settings["concurrency"]["runs"]["max_concurrent_runs"] == 2
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    prepare_home()
    assert (home / "dagster.yaml").read_text() == "telemetry: {enabled: false}\n"


def test_the_postgres_template_names_no_secret() -> None:
    settings = yaml.safe_load(template("postgres"))
    database = settings["storage"]["postgres"]["postgres_db"]
    assert database["password"] == {"env": "CABS_PG_PASSWORD"}
    assert {k: v for k, v in settings.items() if k not in ("storage", "concurrency")} == {
        k: v for k, v in yaml.safe_load(template("sqlite")).items() if k != "concurrency"
    }


def test_connections_below_dagster_home_are_kept_and_released(cabs_home: Path, tmp_path: Path) -> None:
    with open_instance() as instance:
        create_run_for_test(instance, "a")
        assert any(str(cabs_home) in path for path in sqlite._KEPT)
    outside = sqlite3.connect(tmp_path / "other.db")
    sqlite._on_connect(outside, None)
    assert not any("other.db" in path for path in sqlite._KEPT)
    sqlite.release()
    assert not sqlite._KEPT


def test_the_executor_is_chosen_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CABS_EXECUTOR", raising=False)
    assert executors.executor_name() == "in_process"
    monkeypatch.setenv("CABS_EXECUTOR", "multiprocess")
    assert executors.executor().name.startswith("multi")
    monkeypatch.setenv("CABS_EXECUTOR", "dask")
    with pytest.raises(CabsError, match="in_process, multiprocess, ray"):
        executors.executor()
