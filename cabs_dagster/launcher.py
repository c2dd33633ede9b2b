"""A run launcher for one machine that can tell a dead run worker from a busy one.

Dagster's default launcher cannot, so a run whose process was killed stays `STARTED` and keeps its pool slots.
With this one, run monitoring finds it. Runs that `cabs run` executes in its own process are covered too. Workers
are forked from a warm process (see `warm.py`) where that is possible.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

from dagster import DagsterEventType, DagsterInstance, DagsterRun, DagsterRunStatus, Field, RunsFilter
from dagster._core.launcher.base import CheckRunHealthResult, LaunchRunContext, WorkerStatus
from dagster._core.launcher.default_run_launcher import DefaultRunLauncher
from dagster._core.storage.tags import HIDDEN_TAG_PREFIX
from dagster._serdes import ConfigurableClassData, serialize_value

from cabs_dagster import sqlite
from cabs_dagster.warm import DEFINITIONS, WarmServer

#: Tag that names the process of a run: "<boot id>:<pid>:<start time of the process>". Not shown in the UI.
WORKER_TAG = f"{HIDDEN_TAG_PREFIX}cabs_worker"
#: Tag of runs in a forked worker, which are interrupted by a signal; `cabs run` is not.
FORKED_TAG = f"{HIDDEN_TAG_PREFIX}cabs_forked"


def boot_id() -> str:
    """Changes with every start of the machine; empty where the system does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as handle:
            return handle.read().strip()
    except OSError:
        return ""


def process_start(pid: int) -> str | None:
    """Start time of a process in clock ticks since boot; None when there is no such (living) process."""
    try:
        with open(f"/proc/{pid}/stat") as handle:
            fields = handle.read().rpartition(")")[2].split()
        return None if fields[0] in ("Z", "X") else fields[19]
    except FileNotFoundError:
        if os.path.isdir("/proc/self"):
            return None
    except (OSError, IndexError):
        pass
    try:  # systems without /proc: only whether it lives
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "?"


def worker_tag(pid: int | None = None) -> str:
    """The tag's value for a process; default: the current one."""
    pid = pid or os.getpid()
    return f"{boot_id()}:{pid}:{process_start(pid)}"


def worker_alive(instance: DagsterInstance, run: DagsterRun) -> bool | None:
    """Whether the process that executes a run lives; None when the run does not say which one it is."""
    tag = _own_worker(instance, run)
    if tag:
        boot, _, rest = tag.partition(":")
        pid, _, started = rest.partition(":")
        return boot == boot_id() and process_start(int(pid)) == started
    for record in instance.get_records_for_run(run.run_id, of_type=DagsterEventType.ENGINE_EVENT).records:
        event = record.event_log_entry.dagster_event
        if event is None or not (event.message or "").startswith("Started process for run (pid: "):
            continue
        pid = int(event.message.split("pid: ")[1].split(")")[0])
        return process_start(pid) is not None and _started_before(pid, record.event_log_entry.timestamp)
    return None


def _own_worker(instance: DagsterInstance, run: DagsterRun) -> str | None:
    """The tag that names the process of a run; None when it has none, or only a copy of its parent's.

    Dagster gives a run that is executed again the tags of the first one.
    """
    tag = run.tags.get(WORKER_TAG)
    parent = instance.get_run_by_id(run.parent_run_id) if tag and run.parent_run_id else None
    return None if parent is not None and parent.tags.get(WORKER_TAG) == tag else tag


def _started_before(pid: int, timestamp: float) -> bool:
    """False when the process id was given to another process after the event was written."""
    start = process_start(pid)
    if start in (None, "?"):
        return start == "?"
    try:
        with open("/proc/uptime") as handle:
            uptime = float(handle.read().split()[0])
        began = time.time() - uptime + int(start or 0) / os.sysconf("SC_CLK_TCK")
        return began <= timestamp + 2
    except OSError:
        return True


class LocalRunLauncher(DefaultRunLauncher):
    """Dagster's default launcher, with a health check of the worker process and workers that start warm.

    Args:
        warm: fork workers from a process with everything imported. Only on Linux, and only for runs of this
            project's own code location; others are started as Dagster does.
    """

    def __init__(self, inst_data: ConfigurableClassData | None = None, warm: bool = True):
        super().__init__(inst_data)
        sqlite.install()  # webserver and daemon load no definitions, but they do load the launcher
        self._server = WarmServer() if warm and sys.platform == "linux" else None

    @property
    def supports_check_run_worker_health(self) -> bool:
        return True

    def launch_run(self, context: LaunchRunContext) -> None:
        run = context.dagster_run
        if self._server is not None and _is_ours(run):
            pid = self._server.launch(run.run_id, serialize_value(self._instance.get_ref()))
            if pid is not None:
                tags = {WORKER_TAG: worker_tag(pid), FORKED_TAG: "yes"}
                self._instance.add_run_tags(run.run_id, tags)
                self._run_ids.add(run.run_id)
                return
        super().launch_run(context)

    def terminate(self, run_id: str) -> bool:
        run = self._instance.get_run_by_id(run_id)
        if run is None or FORKED_TAG not in run.tags:
            return super().terminate(run_id)
        if run.is_finished:
            return False
        self._instance.report_run_canceling(run)
        if not worker_alive(self._instance, run):
            return False
        os.kill(int(run.tags[WORKER_TAG].split(":")[1]), signal.SIGINT)
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        alive = worker_alive(self._instance, run)
        if alive is False:
            return CheckRunHealthResult(WorkerStatus.NOT_FOUND, "The process that executed this run is gone.")
        return CheckRunHealthResult(WorkerStatus.RUNNING)

    def dispose(self) -> None:
        if self._server is not None:
            self._server.close()

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        return {
            "warm": Field(
                bool,
                is_required=False,
                default_value=True,
                description="Fork run workers from a process that has everything imported (Linux).",
            )
        }

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData, config_value: Mapping[str, Any]
    ) -> LocalRunLauncher:
        return cls(inst_data=inst_data, warm=config_value.get("warm", True))


def _is_ours(run: DagsterRun) -> bool:
    """Whether a run's definitions are this project's, loaded by this interpreter."""
    origin = run.job_code_origin
    if origin is None:
        return False
    repository = origin.repository_origin
    module = getattr(repository.code_pointer, "module", None)
    return module == DEFINITIONS and repository.executable_path == sys.executable


def recover(instance: DagsterInstance) -> list[str]:
    """Mark runs whose process is gone as failed and free their pool slots. Returns their ids.

    The daemon does the same through run monitoring; this is for the command line, where no daemon runs.
    """
    # A run may be killed before its first event; without a worker's tag such a run is left alone.
    states = [
        DagsterRunStatus.NOT_STARTED,
        DagsterRunStatus.STARTING,
        DagsterRunStatus.STARTED,
        DagsterRunStatus.CANCELING,
    ]
    recovered = []
    for run in instance.get_runs(RunsFilter(statuses=states)):
        if worker_alive(instance, run) is False:
            instance.report_run_failed(
                run, "The process that executed this run is gone (killed or machine restarted)."
            )
            instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
            recovered.append(run.run_id)
    return recovered


__all__ = ["FORKED_TAG", "WORKER_TAG", "LocalRunLauncher", "recover", "worker_alive", "worker_tag"]
