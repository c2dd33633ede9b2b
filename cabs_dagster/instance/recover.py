"""Mark the runs of killed `cabs run` commands as failed: nothing waits for them. Returns their ids."""

import atexit
import socket
import uuid
from functools import cache
from pathlib import Path

import dagster as dg
from filelock import FileLock, Timeout

from cabs_core.base.paths import cabs_home

PROCESS_TAG = "cabs/process"
_UNDER_WAY = [dg.DagsterRunStatus(s) for s in ("NOT_STARTED", "STARTING", "STARTED", "CANCELING")]


@cache
def _lock_in(home: Path) -> FileLock:
    path = home / "processes" / f"{uuid.uuid4().hex}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    lock.acquire()
    atexit.register(path.unlink, missing_ok=True)
    return lock


def _own_lock() -> Path:
    return Path(_lock_in(cabs_home()).lock_file)


def process_tag() -> str:
    """`<host>:<locked file>` of this process, which holds the lock from the first call until it ends."""
    return f"{socket.gethostname()}:{_own_lock()}"


def recover(instance: dg.DagsterInstance) -> list[str]:
    """Mark the runs of killed `cabs run` commands as failed, so that nothing waits for them. Returns their
    ids.
    """
    ended = []
    for run in instance.get_runs(dg.RunsFilter(statuses=_UNDER_WAY)):
        host, _, path = run.tags.get(PROCESS_TAG, "").partition(":")
        here = path and host == socket.gethostname()  # others look after their own
        if here and not _is_locked(Path(path)):
            _end(instance, run, "The process of this run is gone: killed, or the machine was restarted.")
            Path(path).unlink(missing_ok=True)
            ended.append(run.run_id)
    _free_slots_of_ended_runs(instance)
    return ended


def _free_slots_of_ended_runs(instance: dg.DagsterInstance) -> None:
    """Give back what a run held that was stopped, or whose worker died, while no daemon was there."""
    storage = instance.event_log_storage
    for run_id in storage.get_concurrency_run_ids() if storage.supports_global_concurrency_limits else ():
        run = instance.get_run_by_id(run_id)
        if run is None or run.is_finished:
            storage.free_concurrency_slots_for_run(run_id)


def _end(instance: dg.DagsterInstance, run: dg.DagsterRun, text: str) -> None:
    """Mark a run as failed and give back its steps' slots of pools (gpu, duckdb): else the next step waits
    for ever.

    Dagster's daemon gives slots back as well, but `cabs run` needs no daemon.
    """
    instance.report_run_failed(run, text)
    instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)


def _is_locked(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        with FileLock(path, timeout=0):
            return False
    except Timeout:
        return True


def end_own_runs(instance: dg.DagsterInstance) -> None:
    """Mark what this process was running as failed, for when it is interrupted and about to exit."""
    mine = dg.RunsFilter(statuses=_UNDER_WAY, tags={PROCESS_TAG: process_tag()})
    for run in instance.get_runs(mine):
        _end(instance, run, "Interrupted.")
    _own_lock().unlink(missing_ok=True)
