"""Runs whose process is gone are marked as failed here, because nothing else waits for them.

A process holds a file locked while it lives. `cabs run` names the file in the tags of its runs. The worker of
a run that a daemon launched locks a file named after the run: its code server would report its death, unless
the code server died as well (`cabs ui` ended, the machine restarted).
"""

import atexit
import os
import socket
import uuid
from functools import cache
from pathlib import Path

import dagster as dg
from filelock import FileLock, Timeout

from cabs_core.base.paths import cabs_home

PROCESS_TAG = "cabs/process"
_GONE = "The process of this run is gone: killed, or the machine was restarted."
_UNDER_WAY = [dg.DagsterRunStatus(s) for s in ("NOT_STARTED", "STARTING", "STARTED", "CANCELING")]


@cache
def _hold(path: Path) -> FileLock:
    """Lock a file until this process ends, and return the lock. The file is removed at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    lock.acquire()
    atexit.register(path.unlink, missing_ok=True)
    return lock


@cache
def _name() -> str:
    """Return the name of the file that this process locks for itself, the same at every call."""
    return f"{uuid.uuid4().hex}.lock"


def _own_lock() -> Path:
    """Lock this process's own file, if that was not done before, and return its path."""
    return Path(_hold(cabs_home() / "processes" / _name()).lock_file)


def _of_runs() -> str:
    """Return the ending of the names of the files that workers of runs lock on this machine."""
    return f"@{socket.gethostname()}.lock"


def hold_run(instance: dg.DagsterInstance, run_id: str) -> bool:
    """Lock a file for a run if this process is the run's worker, so that `recover` sees when it dies.

    Returns:
        True if the process is the worker. A process that only executes a step of the run is no worker.
    """
    events = instance.all_logs(run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
    pids = [event.get_dagster_event().engine_event_data.metadata.get("pid") for event in events]
    is_worker = dg.MetadataValue.text(str(os.getpid())) in pids
    if is_worker:
        _hold(cabs_home() / "processes" / f"{run_id}{_of_runs()}")
    return is_worker


def process_tag() -> str:
    """Return the tag of this process's runs, `<host>:<locked file>`.

    The file stays locked from the first call until the process ends.
    """
    return f"{socket.gethostname()}:{_own_lock()}"


def recover(instance: dg.DagsterInstance) -> list[str]:
    """Mark the runs of this machine's killed processes as failed, and return the ids of these runs.

    Slots of concurrency pools that ended runs still hold are freed, too.
    """
    ended = []
    for run in instance.get_runs(dg.RunsFilter(statuses=_UNDER_WAY)):
        host, _, path = run.tags.get(PROCESS_TAG, "").partition(":")
        here = path and host == socket.gethostname()  # others look after their own
        if here and not _is_locked(Path(path)):
            _end(instance, run, _GONE)
            Path(path).unlink(missing_ok=True)
            ended.append(run.run_id)
    for file in (cabs_home() / "processes").glob(f"*{_of_runs()}"):
        if not _is_locked(file):
            launched = instance.get_run_by_id(file.name.removesuffix(_of_runs()))
            if launched and launched.status in _UNDER_WAY:
                _end(instance, launched, _GONE)
                ended.append(launched.run_id)
            file.unlink(missing_ok=True)
    _free_slots_of_ended_runs(instance)
    return ended


def _free_slots_of_ended_runs(instance: dg.DagsterInstance) -> None:
    """Free the slots of concurrency pools that ended runs still hold.

    Such a run was stopped or deleted, or its worker died, while there was no daemon.
    """
    storage = instance.event_log_storage
    for run_id in storage.get_concurrency_run_ids() if storage.supports_global_concurrency_limits else ():
        run = instance.get_run_by_id(run_id)
        if run is None or run.is_finished:
            storage.free_concurrency_slots_for_run(run_id)


def _end(instance: dg.DagsterInstance, run: dg.DagsterRun, text: str) -> None:
    """Mark a run as failed, and free its slots of concurrency pools (gpu, duckdb).

    The next step would wait for the slots for ever. Dagster's daemon frees slots as well, but `cabs run`
    needs no daemon.
    """
    instance.report_run_failed(run, text)
    instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)


def _is_locked(path: Path) -> bool:
    """Return True if a file is there and a process, this one included, holds its lock."""
    if not path.is_file():
        return False
    try:
        with FileLock(path, timeout=0):
            return False
    except Timeout:
        return True


def cancel(instance: dg.DagsterInstance, run_id: str) -> None:
    """Mark a run whose process was interrupted as being cancelled, so that it ends as CANCELED.

    Only a run that is starting or started is marked. Without the mark Dagster takes an interrupt that nobody
    requested for a failure. That is so for a run within a run, such as the parts of `pool_chain`, and for a
    run whose `cabs ui` ends. A run whose tag names another process is left alone: this process executes a
    step of it, and the other process marks the run as failed. The mark could come after that and undo it.
    """
    run = instance.get_run_by_id(run_id)
    if run is None or run.status not in (dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED):
        return
    if PROCESS_TAG in run.tags and run.tags[PROCESS_TAG] != process_tag():
        return
    instance.report_run_canceling(run)


def end_own_runs(instance: dg.DagsterInstance) -> None:
    """Mark the unfinished runs of this interrupted process as failed, and remove its locked file."""
    mine = dg.RunsFilter(statuses=_UNDER_WAY, tags={PROCESS_TAG: process_tag()})
    for run in instance.get_runs(mine):
        _end(instance, run, "Interrupted.")
    _own_lock().unlink(missing_ok=True)
