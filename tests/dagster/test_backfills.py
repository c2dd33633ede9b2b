"""The backfill daemon's pause ends when a backfill needs it, and otherwise when its time has come."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.storage.tags import BACKFILL_ID_TAG
from dagster._core.test_utils import create_run_for_test
from dagster._daemon.daemon import BackfillDaemon

from cabs_dagster import backfills
from cabs_dagster.backfills import Pause
from cabs_dagster.instance import prepare_home, template

LONG, SHORT = 20.0, 0.4


@pytest.fixture
def instance(monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    monkeypatch.setattr(backfills, "_LOOK", 0.05)
    with dg.DagsterInstance.ephemeral() as found:
        yield found


def ask(instance: dg.DagsterInstance, name: str) -> PartitionBackfill:
    """A backfill as the web server puts it into the storage."""
    found = PartitionBackfill(
        backfill_id=name, status=BulkActionStatus.REQUESTED, from_failure=False, tags={}, backfill_timestamp=time.time()
    )  # fmt: skip
    instance.add_backfill(found)
    return found


def launch(instance: dg.DagsterInstance, backfill: str) -> str:
    tags = {BACKFILL_ID_TAG: backfill}
    return create_run_for_test(instance, job_name="a", tags=tags, status=dg.DagsterRunStatus.STARTED).run_id


def end(instance: dg.DagsterInstance, run_id: str) -> None:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    instance.report_run_failed(run)


def paused(pause: Pause, seconds: float) -> float:
    begin = time.perf_counter()
    assert pause.wait(seconds) is False
    return time.perf_counter() - begin


def test_nothing_to_do_is_waited_out(instance: dg.DagsterInstance) -> None:
    assert paused(Pause(threading.Event(), instance), SHORT) >= SHORT


def test_a_new_backfill_ends_one_pause(instance: dg.DagsterInstance) -> None:
    pause = Pause(threading.Event(), instance)
    ask(instance, "one")
    assert paused(pause, LONG) < LONG / 2
    assert paused(pause, SHORT) >= SHORT
    ask(instance, "two")
    assert paused(pause, LONG) < LONG / 2
    assert paused(pause, SHORT) >= SHORT


def test_the_end_of_all_its_runs_ends_one_pause(instance: dg.DagsterInstance) -> None:
    pause = Pause(threading.Event(), instance)
    ask(instance, "one")
    paused(pause, LONG)
    first, second = launch(instance, "one"), launch(instance, "one")
    launch(instance, "another")
    end(instance, first)
    assert paused(pause, SHORT) >= SHORT
    end(instance, second)
    assert paused(pause, LONG) < LONG / 2
    assert paused(pause, SHORT) >= SHORT
    end(instance, launch(instance, "one"))  # the daemon launched what follows, and that ended, too
    assert paused(pause, LONG) < LONG / 2


def test_canceling_ends_a_pause_and_what_is_over_none(instance: dg.DagsterInstance) -> None:
    pause = Pause(threading.Event(), instance)
    backfill = ask(instance, "one")
    paused(pause, LONG)
    instance.update_backfill(backfill.with_status(BulkActionStatus.CANCELING))
    assert paused(pause, LONG) < LONG / 2
    instance.update_backfill(backfill.with_status(BulkActionStatus.CANCELED))
    assert paused(pause, SHORT) >= SHORT


def test_the_end_of_the_daemon_ends_a_pause(instance: dg.DagsterInstance) -> None:
    shutdown = threading.Event()
    threading.Timer(0.1, shutdown.set).start()
    begin = time.perf_counter()
    assert Pause(shutdown, instance).wait(LONG) is True
    assert time.perf_counter() - begin < LONG / 2
    assert Pause(shutdown, instance).wait(0) is True


def test_a_busy_database_is_asked_later() -> None:
    class Busy:
        def get_backfills(self, **_: Any) -> None:
            raise TimeoutError("database is locked")

    busy: Any = Busy()
    assert paused(Pause(threading.Event(), busy), 0.1) >= 0.1


def test_the_daemon_gets_such_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BackfillDaemon, "core_loop", BackfillDaemon.core_loop)  # put back afterwards
    got: list[Any] = []
    monkeypatch.setattr(backfills, "_loop", lambda daemon, context, shutdown: got.append(shutdown))
    backfills.install()

    class Context:
        instance = None

    with BackfillDaemon(settings={"use_threads": False}) as daemon:
        daemon.core_loop(Context(), threading.Event())  # type: ignore[arg-type]
    assert isinstance(got[0], Pause)


@pytest.mark.parametrize("name", ["sqlite", "postgres"])
def test_the_settings_name_the_scheduler_that_prepares_daemons(name: str) -> None:
    assert yaml.safe_load(template(name))["scheduler"] == {
        "module": "cabs_dagster.scheduler",
        "class": "LocalScheduler",
    }


def test_opening_the_instance_prepares_daemons(cabs_home: Path) -> None:
    prepare_home()
    code = (
        "from dagster import DagsterInstance; DagsterInstance.get()\n"
        "from dagster._daemon.daemon import BackfillDaemon; print(BackfillDaemon.core_loop.__module__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "cabs_dagster.backfills"
