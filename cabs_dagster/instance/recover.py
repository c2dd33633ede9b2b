"""Runs of a `cabs run` that was killed: nothing but the next command would ever say that they ended.

A run of `cabs run` names its process in a tag. Runs that the daemon launched are looked after by Dagster.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import dagster as dg

PROCESS_TAG = "cabs/process"
_UNDER_WAY = [
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


def process_tag(pid: int | None = None) -> str:
    """`<host>:<pid>:<boot id>:<start time>` of a process (default: this one); equal for the same living process."""
    pid = pid or os.getpid()
    host = f"{socket.gethostname().replace(':', '-')}:{pid}"
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        status = (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        )
    except FileNotFoundError:
        return f"{host}:-:{'?' if _alive(pid) else 'gone'}"  # a system without /proc, or no such process
    return f"{host}:{boot}:{'gone' if status[0] in ('Z', 'X') else status[19]}"


def _alive(pid: int) -> bool:
    if Path("/proc/self").exists():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def recover(instance: dg.DagsterInstance) -> list[str]:
    """Mark the runs of killed `cabs run` commands as failed, so that nothing waits for them. Returns their ids."""
    ended = []
    for run in instance.get_runs(dg.RunsFilter(statuses=_UNDER_WAY)):
        tag = run.tags.get(PROCESS_TAG, "")
        host, _, rest = tag.partition(":")
        ours = host == process_tag().partition(":")[0]  # others look after their own in a shared instance
        if tag and ours and tag != process_tag(int(rest.split(":")[0])):
            instance.report_run_failed(
                run, "The process of this run is gone: killed, or the machine was restarted."
            )
            ended.append(run.run_id)
    return ended


def end_own_runs(instance: dg.DagsterInstance) -> None:
    """Mark what this process was running as failed, for when it is interrupted and about to exit."""
    mine = dg.RunsFilter(statuses=_UNDER_WAY, tags={PROCESS_TAG: process_tag()})
    for run in instance.get_runs(mine):
        instance.report_run_failed(run, "Interrupted.")
