"""Run `dagster dev` so that nothing of it is left behind, however it or its parent ends.

`dagster dev` starts a web server, a daemon and code servers. Killed by force it cannot stop them: they would
keep the port, and a second daemon would launch runs beside the first. On Linux the kernel signals such a
death; elsewhere this is a plain child process. Runs end as by Ctrl-C in a terminal, for no page could end one
whose code server is gone: they are marked as failed, and the next daemon launches them again.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from cabs_core.base.errors import CabsError

#: options of prctl(2)
_SET_DEATH_SIGNAL = 1
_SET_SUBREAPER = 36
#: {words of a service's command line: the name of the service, for people}
_SERVICES = {
    "dagster_webserver": "Dagster's web server",
    "dagster._daemon": "Dagster's daemon, which runs sensors, schedules and queued runs,",
    "dagster\0code-server": "Dagster's code server, which holds the definitions,",
}
#: words in the command line of a process that a code server starts anew when definitions are reloaded
_CODE = "dagster\0api\0grpc"
#: seconds that an interrupted command may take to end
_PATIENCE = 30.0
#: seconds between two looks at the services
_LOOK = 1.0


def require_free(port: int) -> None:
    """Check that a port of 127.0.0.1 is free.

    Raises:
        CabsError: the port cannot be used, for instance because something listens on it. The message says
            what to do.
    """
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        raise CabsError(
            f"port {port} of 127.0.0.1 cannot be used ({error.strerror}): end what listens there, or name "
            f"another one: cabs ui --port {port + 1} (make ui PORT={port + 1})"
        ) from None


def serve(command: list[str], beside: Callable[[], None] | None = None) -> int:
    """Run a command, and `beside` in a thread, until the command or one of its services ends.

    When this process dies, the command is interrupted as by Ctrl-C; when the command ends, so do its services
    and the runs that they launched. Where a service ends, a line on standard error names it.

    Returns:
        The command's exit code, 1 if a service ended, or 130 after Ctrl-C, SIGTERM or a closed terminal.
    """
    prctl: Any = ctypes.CDLL(None).prctl if sys.platform == "linux" else lambda *arguments: None
    prctl(_SET_SUBREAPER, 1, 0, 0, 0)  # orphaned services become children of this process

    def prepare() -> None:
        # A shell starts background commands with SIGINT ignored, and that is inherited. In a group of its own
        # the command gets one interrupt, from here, where a terminal would send it a second one.
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        prctl(_SET_DEATH_SIGNAL, int(signal.SIGINT), 0, 0, 0)

    process = subprocess.Popen(command, preexec_fn=prepare)
    if beside:  # after the fork, which threads would make unsafe
        threading.Thread(target=beside, daemon=True).start()

    def interrupt(_number: int, _frame: Any) -> None:
        process.send_signal(signal.SIGINT)
        raise KeyboardInterrupt

    ending = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # `nohup` ignores a closed terminal
        ending.append(signal.SIGHUP)
    # for SIGINT too: Python keeps an inherited SIG_IGN, under which `kill -INT` does nothing
    before = {number: signal.signal(number, interrupt) for number in ending}
    try:
        return _watched(process)
    except KeyboardInterrupt:
        _wait_or_kill(process)
        return 130
    finally:
        # whoever asks a second time does not leave behind what the first time began to end
        for number in ending:
            signal.signal(number, signal.SIG_IGN)
        end_services()
        end_runs()
        for number, handler in before.items():
            signal.signal(number, handler)


def _watched(process: subprocess.Popen[bytes]) -> int:
    """Wait until a command or one of its services ends, and return the exit code of `serve`."""
    seen: dict[str, int] = {}
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(_LOOK)
        ended = _ended_service(seen)
        if ended:
            click.echo(
                f"{ended} has ended, so the rest is ended too. Runs that were under way are "
                "launched again by the next `cabs ui`",
                err=True,
            )
            process.send_signal(signal.SIGINT)
            _wait_or_kill(process)
            return 1


def _ended_service(seen: dict[str, int]) -> str:
    """Return the service that has ended, in words, or an empty text.

    Args:
        seen: {key of `_SERVICES`: process id} of the services that were seen running, which this completes.
    """
    for name, pid in seen.items():
        if not _is_running(pid):
            return _SERVICES[name]
    if len(seen) < len(_SERVICES):
        for pid, (_, line) in sorted(_descendants().items()):  # a process before those that it forks
            for name in _SERVICES:
                if name in line:
                    seen.setdefault(name, pid)
    return ""


def _is_running(pid: int) -> bool:
    """Return True if a process runs. A process that ended and was not reaped yet (a zombie) does not run."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def _wait_or_kill(process: subprocess.Popen[bytes]) -> None:
    """Wait for a command that was interrupted, and kill it after `_PATIENCE` seconds or a second signal."""
    try:
        process.wait(_PATIENCE)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()


def _descendants() -> dict[int, tuple[int, str]]:
    """Return {process id: (its parent's id, its command line)} of the descendants of this process.

    Children alone are not enough: a child that is ending has lost its name before its own children come to
    this process. Empty on systems other than Linux.
    """
    there = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            there[int(folder.name)] = parent, (folder / "cmdline").read_text(errors="replace")
        except (OSError, ValueError, IndexError):  # it ended meanwhile
            continue

    def descends(pid: int) -> bool:
        parent = there[pid][0] if pid in there else 0
        return parent == os.getpid() or (parent > 1 and descends(parent))

    return {pid: entry for pid, entry in there.items() if descends(pid)}


def _end(pids: Iterable[int], number: int) -> None:
    """Send a signal to processes, and collect those that ended."""
    for pid in pids:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, number)
            os.waitpid(pid, os.WNOHANG)


def end_services(patience: float = 10.0) -> None:
    """Terminate the services that are left, and kill them after `patience` seconds."""
    end = time.monotonic() + patience
    names = (*_SERVICES, _CODE)
    while True:
        services = [p for p, (_, line) in _descendants().items() if any(name in line for name in names)]
        if not services:
            return
        _end(services, signal.SIGTERM if time.monotonic() < end else signal.SIGKILL)
        time.sleep(0.1)


def end_runs(patience: float = 30.0) -> None:
    """Interrupt all children of this process, and kill those that go on for more than `patience` seconds.

    Once the services are gone, the children are the runs.
    """
    end = time.monotonic() + patience
    interrupted = set[int]()
    with suppress(ChildProcessError):  # none is left
        while True:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            children = {pid for pid, (parent, _) in _descendants().items() if parent == os.getpid()}
            if time.monotonic() < end:
                _end(children - interrupted, signal.SIGINT)
            else:
                _end(children, signal.SIGKILL)
            interrupted |= children
            time.sleep(0.1)
