"""Run workers forked from a process that has everything imported.

A new Python process spends two seconds importing Dagster and loading the definitions before it looks at its run.
The warm server (`python -m cabs_dagster.warm`) does that once and forks: each run has a process of its own, as
before, which can be killed or interrupted without touching others. The server holds no database connection and no
thread, so a fork is safe. When a source file changes, the launcher starts another server, so that a run executes
the code that is on disk when it is launched. Linux only; elsewhere Dagster's own way is used.

What belongs here: the server, its client. What does not: which runs are launched this way (`launcher.py`).
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

DEFINITIONS = "cabs_dagster.definitions"
_PACKAGES = ("assets", "cabs_core", "cabs_dagster", "dbt_like_sql")
_SOURCES = (".py", ".sql", ".yml", ".yaml")
_REAP_SECONDS = 2.0
#: Modules that a run imports late.
_EVERY_RUN = (
    "cabs_core.pools.files",
    "cabs_core.replay",
    "cabs_dagster.compute_logs",
    "dagster._core.execution.plan.active",
    "dagster._core.executor.in_process",
    "dagster._core.instance.factory",
    "dagster._core.storage.root",
    "dagster._core.storage.sqlite_storage",
    "dagster._core.workspace.autodiscovery",
    "dagster._grpc.impl",
    "dagster._utils.hosted_user_process",
    "sqlalchemy.dialects.sqlite",
    "threadpoolctl",
    "upath.implementations.local",
)


def source_stamp() -> str:
    """Changes whenever a source file of the project, or `.env`, is edited, added or removed."""
    digest = hashlib.sha256()
    files = [Path(".env")] if Path(".env").is_file() else []
    for package in _PACKAGES:
        spec = find_spec(package)
        for root in (spec.submodule_search_locations or []) if spec else []:
            files += [p for p in sorted(Path(root).rglob("*")) if p.suffix in _SOURCES]
    for path in files:
        with suppress(FileNotFoundError):
            status = path.stat()
            digest.update(f"{path}:{status.st_mtime_ns}:{status.st_size};".encode())
    return digest.hexdigest()


class WarmServer:
    """The launcher's side: starts the server when it is first needed, and again when the sources changed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen | None = None
        self._stamp = ""

    def launch(self, run_id: str, instance_ref: str) -> int | None:
        """Process id of a new worker for a run; None when the server cannot be used.

        Args:
            instance_ref: the instance's reference as Dagster serialises it.
        """
        with self._lock:
            stamp = source_stamp()
            if self._process is None or self._process.poll() is not None or stamp != self._stamp:
                self._stop()
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "cabs_dagster.warm"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
                self._stamp = stamp
            assert self._process.stdin is not None and self._process.stdout is not None
            request = json.dumps({"run_id": run_id, "instance_ref": instance_ref})
            try:
                self._process.stdin.write(request.encode() + b"\n")
                self._process.stdin.flush()
                answer = self._process.stdout.readline()
            except OSError:
                answer = b""
            if not answer:
                self._stop()
                return None
            return int(json.loads(answer)["pid"])

    def _stop(self) -> None:
        """Let it end: it does so when its input closes. Its workers go on."""
        process, self._process = self._process, None
        if process is not None:
            for stream in (process.stdin, process.stdout):
                with suppress(OSError):
                    if stream is not None:
                        stream.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)

    def close(self) -> None:
        """End the server; its workers go on."""
        with self._lock:
            self._stop()


def _preload() -> None:
    """Import what runs need. Nothing here may open a database or start a thread (BLAS stops its own to fork)."""
    from dagster._core.secrets.env_file import get_env_var_dict

    for name, value in get_env_var_dict(os.getcwd()).items():
        os.environ.setdefault(name, value)

    for name in _EVERY_RUN:
        importlib.import_module(name)

    from cabs_core.catalog import families
    from cabs_core.compiled.jit import load_compiled
    from cabs_core.policies.registry import policy_class
    from cabs_dagster.definitions import defs
    from cabs_dagster.event_log import read_history
    from cabs_dagster.running import keep_out_of_collections

    defs.get_repository_def().get_all_jobs()
    read_history()

    for family, names in families().items():
        if family != "neural":  # which import torch
            for name in names:
                policy_class(name)
    load_compiled()
    keep_out_of_collections()  # so that the workers' collections do not copy the server's memory


def _reap(children: set[int]) -> None:
    for pid in list(children):
        with suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue
        children.discard(pid)


def serve(requests: int, answers: int) -> dict[str, Any] | None:
    """Fork a worker a request line until the input ends. Returns in each worker with its request.

    Args:
        requests, answers: file descriptors to read JSON lines from and to write `{"pid": n}` to.

    Returns:
        The request in a forked worker; None in the server, at the end.
    """
    children: set[int] = set()
    buffer = b""
    while True:
        ready, _, _ = select.select([requests], [], [], _REAP_SECONDS if children else None)
        _reap(children)
        if not ready:
            continue
        data = os.read(requests, 65536)
        if not data:
            return None
        buffer += data
        while b"\n" in buffer:
            line, _, buffer = buffer.partition(b"\n")
            pid = os.fork()
            if pid == 0:
                os.close(requests)
                os.close(answers)
                return json.loads(line)
            children.add(pid)
            os.write(answers, json.dumps({"pid": pid}).encode() + b"\n")


def execute(request: dict[str, Any]) -> None:
    """Execute one run, as `dagster api execute_run` does, in this process."""
    from dagster import DagsterInstance
    from dagster._core.definitions.reconstruct import ReconstructableJob
    from dagster._core.events import EngineEventData
    from dagster._core.instance.ref import InstanceRef
    from dagster._core.origin import JobPythonOrigin
    from dagster._grpc.impl import core_execute_run
    from dagster._serdes import deserialize_value
    from dagster._utils.hosted_user_process import recon_job_from_origin
    from dagster._utils.interrupts import capture_interrupts

    from cabs_dagster import sqlite

    sqlite.install()
    reference = deserialize_value(request["instance_ref"], InstanceRef)
    with capture_interrupts(), DagsterInstance.from_ref(reference) as instance:
        run = instance.get_run_by_id(request["run_id"])
        if run is None:
            raise LookupError(f"run {request['run_id']} was deleted before it started")
        origin = run.job_code_origin
        assert isinstance(origin, JobPythonOrigin)
        job: ReconstructableJob = recon_job_from_origin(origin)
        instance.report_engine_event(
            f"Started process for run (pid: {os.getpid()}).", run, EngineEventData.in_process(os.getpid())
        )
        # Whatever goes wrong is in the event log before it is raised.
        with suppress(Exception, KeyboardInterrupt):
            for _ in core_execute_run(job, run, instance, inject_env_vars=True):
                pass
        instance.report_engine_event(f"Process for run exited (pid: {os.getpid()}).", run)


def main() -> None:
    """The server, and, after a fork, a worker."""
    requests, answers = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what the imports or a run print must not get between the answers
    # Ctrl-C reaches the whole group: runs end by themselves, the server when the daemon closes its input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _preload()
    request = serve(requests, answers)
    if request is not None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        execute(request)


if __name__ == "__main__":
    main()
