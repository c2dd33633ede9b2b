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

from cabs_core.base.errors import CabsError

_SET_DEATH_SIGNAL, _SET_SUBREAPER = 1, 36  # prctl(2)
_SERVICES = ("dagster_webserver", "dagster._daemon", "dagster\0code-server", "dagster\0api\0grpc")
_PATIENCE = 30.0


def require_free(port: int) -> None:
    """Check that a port of 127.0.0.1 is free.

    Raises:
        CabsError: something listens on it; the message says what to do.
    """
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        raise CabsError(
            f"port {port} of 127.0.0.1 cannot be used ({error.strerror}): end what listens there, or name "
            f"another one: cabs ui --port {port + 1} (make ui PORT={port + 1})"
        ) from None


def serve(command: list[str], beside: Callable[[], None] | None = None) -> int:
    """Run a command, and `beside` in a thread, until the command ends.

    When this process dies, the command is interrupted as by Ctrl-C; when the command ends, so do its services
    and the runs that they launched.

    Returns:
        The command's exit code, or 130 after Ctrl-C or SIGTERM.
    """
    prctl: Any = ctypes.CDLL(None).prctl if sys.platform == "linux" else lambda *arguments: None
    prctl(_SET_SUBREAPER, 1, 0, 0, 0)  # orphaned services become children of this process

    def prepare() -> None:
        # a shell starts background commands with SIGINT ignored, and that is inherited
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        prctl(_SET_DEATH_SIGNAL, int(signal.SIGINT), 0, 0, 0)

    process = subprocess.Popen(command, preexec_fn=prepare)
    if beside:  # after the fork, which threads would make unsafe
        threading.Thread(target=beside, daemon=True).start()

    def interrupt(_number: int, _frame: Any) -> None:
        process.send_signal(signal.SIGINT)
        raise KeyboardInterrupt

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, interrupt)}
    try:
        return process.wait()
    except KeyboardInterrupt:
        try:
            process.wait(_PATIENCE)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            process.kill()
        return 130
    finally:
        # whoever asks a second time does not leave behind what the first time began to end
        before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end_services()
        end_runs()
        for number, handler in before.items():
            signal.signal(number, handler)


def _descendants() -> dict[int, tuple[int, str]]:
    """{process id: (its parent's, its command line)} of the descendants of this process (Linux; else none).

    Not of its children alone: one that is ending has lost its name before its own children come to us.
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
    for pid in pids:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, number)
            os.waitpid(pid, os.WNOHANG)


def end_services(patience: float = 10.0) -> None:
    """Terminate the services that are left, kill them after `patience` seconds."""
    end = time.monotonic() + patience
    while services := [p for p, (_, line) in _descendants().items() if any(s in line for s in _SERVICES)]:
        _end(services, signal.SIGTERM if time.monotonic() < end else signal.SIGKILL)
        time.sleep(0.1)


def end_runs(patience: float = 30.0) -> None:
    """Interrupt the runs, which are children of this process once the services are gone; kill those that go
    on for more than `patience` seconds.
    """
    end, interrupted = time.monotonic() + patience, set[int]()
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
