"""A run whose process was killed is marked as failed by the next command; one whose process lives is left
alone."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from cabs_core.base.paths import cabs_home
from cabs_core.pipeline.artifacts import ArtifactStore
from cabs_dagster.cli.runner import QUIET
from cabs_dagster.definitions import defs
from cabs_dagster.failures import run_texts
from cabs_dagster.instance import open_instance
from cabs_dagster.instance.recover import PROCESS_TAG, cancel, end_own_runs, process_tag, recover
from cabs_dagster.job_names import PREPARE
from cabs_dagster.progress import progress_logger, waiting_for
from cabs_dagster.sensors import keep_partitions

_OWNER = """import sys
from cabs_dagster.instance.recover import process_tag
print(process_tag(), flush=True)
sys.stdin.read()"""


_WORKER = """import os, sys
from types import SimpleNamespace as Record
import dagster as dg
from cabs_dagster.instance.recover import hold_run
pid = dg.MetadataValue.text(str(os.getpid() if sys.argv[2] == "worker" else 1))
started = Record(engine_event_data=Record(metadata={"pid": pid}))
event = Record(get_dagster_event=lambda: started)
hold_run(Record(all_logs=lambda run_id, of_type: [event]), sys.argv[1])
print("held", flush=True)
sys.stdin.read()"""


STARTED = dg.DagsterRunStatus.STARTED


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        yield instance


def new_run(instance: dg.DagsterInstance, status=STARTED, process: str = "") -> dg.DagsterRun:
    """A run of the first part of a chain, of this process where one is named."""
    tags = {PROCESS_TAG: process} if process else None
    return instance.create_run_for_job(defs.resolve_job_def(PREPARE), status=status, tags=tags)


@pytest.mark.parametrize(("kind", "status"), [("worker", "FAILURE"), ("step of another process", "STARTED")])
def test_a_launched_run_whose_code_server_died_with_it_ends(kind: str, status: str, instance) -> None:
    """After a restart of the machine Dagster's monitor knows nothing of its worker: the run and its slot were
    under way for ever.
    """
    run = new_run(instance)
    code = [sys.executable, "-c", _WORKER, run.run_id, kind]
    worker = subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None and worker.stdout.readline() == "held\n"
    assert recover(instance) == []
    worker.kill()
    worker.wait()
    assert recover(instance) == ([run.run_id] if kind == "worker" else [])
    assert instance.get_runs()[0].status.value == status
    assert not list(cabs_home().glob(f"processes/{run.run_id}*"))


def test_the_sensor_that_is_on_from_the_start_finds_the_dead_and_frees_their_slots(
    tmp_path: Path, instance, monkeypatch
) -> None:
    """Parts of the job `pool_chain` are of no process that a daemon looks after."""
    monkeypatch.setenv("CABS_HOME", str(tmp_path))
    storage = instance.event_log_storage
    storage.set_concurrency_slots("gpu", 1)
    dead = new_run(instance, process=f"{socket.gethostname()}:{tmp_path / 'gone.lock'}")
    assert storage.claim_concurrency_slot("gpu", dead.run_id, "oracles").is_claimed
    assert not storage.claim_concurrency_slot("gpu", "next", "oracles").is_claimed
    keep_partitions(dg.build_sensor_context(instance=instance), ArtifactStore())
    assert instance.get_runs()[0].status == dg.DagsterRunStatus.FAILURE
    assert storage.claim_concurrency_slot("gpu", "next", "oracles").is_claimed


def test_a_stopped_run_gives_back_its_slot_and_a_live_one_keeps_it(instance) -> None:
    storage, live = instance.event_log_storage, new_run(instance)
    for pool, status in (("gpu", "CANCELED"), ("duckdb", "FAILURE")):
        storage.set_concurrency_slots(pool, 2)
        ended = new_run(instance, dg.DagsterRunStatus(status))
        for run in (ended, live):
            assert storage.claim_concurrency_slot(pool, run.run_id, "step").is_claimed
        assert recover(instance) == []
        assert [slot.run_id for slot in storage.get_concurrency_info(pool).claimed_slots] == [live.run_id]


@dg.op(pool="gpu", ins={"start": dg.In(dg.Nothing)})
def computes() -> None:
    pass


@dg.job(logger_defs={"progress": progress_logger}, executor_def=dg.in_process_executor)
def busy() -> None:
    computes()


def test_a_run_that_waits_for_a_slot_says_who_holds_it(tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    with open_instance() as instance:
        storage = instance.event_log_storage
        storage.set_concurrency_slots("gpu", 1)
        live = new_run(instance)
        assert storage.claim_concurrency_slot("gpu", live.run_id, "oracles").is_claimed
        holder = f"waiting for a slot of pool gpu, held by run {live.run_id} of prepare_pool (started)"
        assert waiting_for("gpu").startswith(holder)
        storage.set_concurrency_slots("gpu", 2)
        killed = new_run(instance, process=f"{socket.gethostname()}:{tmp_path / 'killed.lock'}")
        assert storage.claim_concurrency_slot("gpu", killed.run_id, "oracles").is_claimed
        assert waiting_for("gpu").startswith(f"{holder}: this goes on"), "who was killed later holds nothing"
        storage.set_concurrency_slots("gpu", 1)

        def is_waited_for() -> bool:
            """Return True once the event is there. A step is pending before, and may not have to wait yet."""
            engine_event = dg.DagsterEventType.ENGINE_EVENT
            return any(
                "pool" in entry.get_dagster_event().engine_event_data.metadata
                for run in instance.get_runs(dg.RunsFilter(job_name=busy.name))
                for entry in instance.all_logs(run.run_id, of_type=engine_event)
            )

        def free_it_once_it_is_waited_for() -> None:
            while not is_waited_for():
                time.sleep(0.1)
            storage.free_concurrency_slots_for_run(live.run_id)

        end = threading.Thread(target=free_it_once_it_is_waited_for)
        end.start()
        with dg.execute_job(dg.reconstructable(busy), instance=instance, run_config=QUIET) as result:
            assert result.success
        end.join()
    lines = [line for line in capfd.readouterr().err.splitlines() if "dagster - DEBUG" not in line]
    assert any("waiting for a slot of pool gpu" in line for line in lines)
    assert not any("STEP_" in line for line in lines), "of what a step does, only what it says is shown"


@dg.op
def breaks() -> None:
    raise dg.Failure("a cell is no number")


@dg.job(logger_defs={"progress": progress_logger})
def broken() -> None:
    computes(start=breaks())


def test_what_follows_from_a_failed_step_is_left_to_the_error(capfd) -> None:
    result = broken.execute_in_process(run_config=QUIET, raise_on_error=False)
    assert run_texts(result.all_events) == ["breaks: a cell is no number"]
    assert "STEP_FAILURE" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("status", "owner", "expected"),
    [
        ("STARTED", "nobody", "CANCELING"),
        ("STARTING", "this process", "CANCELING"),
        ("STARTED", "this process", "CANCELING"),
        ("STARTED", "another process", "STARTED"),
        ("FAILURE", "this process", "FAILURE"),
    ],
)
def test_an_interrupted_step_cancels_its_run_unless_another_process_ends_it(
    status: str, owner: str, expected: str, instance
) -> None:
    """A step of `cabs run` with the executor `multiprocess` cancelled the run that the command had ended."""
    tags = {"nobody": "", "this process": process_tag(), "another process": f"{socket.gethostname()}:/other"}
    run = new_run(instance, dg.DagsterRunStatus(status), tags[owner])
    cancel(instance, run.run_id)
    assert instance.get_runs()[0].status.value == expected


def test_runs_of_the_dead_are_marked(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with dg.DagsterInstance.ephemeral() as instance:
        assert owner.stdout is not None
        killed = new_run(instance, process=owner.stdout.readline().strip())
        of_this_process = new_run(instance, process=process_tag())
        launched = new_run(instance)
        elsewhere = new_run(instance, process="another-host:/gone")
        assert recover(instance) == []
        owner.kill()
        owner.wait()
        assert recover(instance) == [killed.run_id]
        assert recover(instance) == []
        end_own_runs(instance)
        status = {run.run_id: run.status for run in instance.get_runs()}
    assert status[killed.run_id] == status[of_this_process.run_id] == dg.DagsterRunStatus.FAILURE
    assert status[launched.run_id] == status[elsewhere.run_id] == STARTED
