"""Terminate: an interrupted run ends as CANCELED, is not retried, and the next run goes on from there."""

from __future__ import annotations

import os
import signal
import threading
from types import SimpleNamespace

import dagster as dg
import pytest

from cabs_dagster import metadata
from cabs_dagster.instance import terminate
from cabs_dagster.metadata import RETRIES, guarded

TRIED: list[str] = []


@dg.op
def interrupted() -> None:
    with guarded():
        TRIED.append("interrupted")
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(5)


@dg.op(config_schema={"error": str})
def failing(context) -> None:
    with guarded():
        TRIED.append("failing")
        raise {"transient": ConnectionError("the store is away"), "wrong": ValueError("bad data")}[
            context.op_config["error"]
        ]


@dg.job
def interrupted_job() -> None:
    interrupted()


@dg.job
def failing_job() -> None:
    failing()


@pytest.fixture(autouse=True)
def _nothing_tried(monkeypatch):
    TRIED.clear()
    monkeypatch.setattr(metadata, "RETRY_SECONDS", 0)


def test_an_interrupted_step_is_not_tried_again_and_its_run_is_cancelled() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        result = interrupted_job.execute_in_process(instance=instance, raise_on_error=False)
        assert TRIED == ["interrupted"]
        assert instance.get_run_by_id(result.run_id).status == dg.DagsterRunStatus.CANCELED


@pytest.mark.parametrize(("error", "attempts"), [("transient", RETRIES + 1), ("wrong", 1)])
def test_only_transient_errors_are_tried_again(error: str, attempts: int) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        config = {"ops": {"failing": {"config": {"error": error}}}}
        result = failing_job.execute_in_process(instance=instance, raise_on_error=False, run_config=config)
        assert len(TRIED) == attempts and not result.success


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_that_a_native_call_holds_is_ended_with_its_process(monkeypatch, finished: bool) -> None:
    """The signal is seen although Python's own handler has no turn."""
    said: list[str] = []
    ended = threading.Event()
    run = SimpleNamespace(is_finished=finished)
    instance = SimpleNamespace(
        get_run_by_id=lambda run_id: run,
        report_engine_event=lambda text, run: said.append(text),
        report_run_canceled=lambda run, text: said.append("cancelled"),
        event_log_storage=SimpleNamespace(free_concurrency_slots_for_run=said.append),
    )
    monkeypatch.setattr(terminate, "PATIENCE", 0.01)
    monkeypatch.setattr(terminate.os, "_exit", lambda code: ended.set())
    read, write = os.pipe()
    os.write(write, bytes([signal.SIGTERM, signal.SIGINT]))
    terminate.end_held_run(instance, "a-run", read)
    assert ended.is_set() is not finished
    assert bool(said) is not finished and (finished or "native call" in said[0])
