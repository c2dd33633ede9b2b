"""Run `dagster dev` so that nothing of it is left behind, however it or its parent ends.

`dagster dev` starts a web server, a daemon and code servers. Killed by force it cannot stop them: they would
keep the port, and a second daemon would launch runs beside the first. On Linux the kernel signals such a
death; elsewhere this is a plain child process. Run workers are left alone: they finish, or are found dead and
launched again.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
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

    When this process dies, the command is interrupted as by Ctrl-C; when the command dies, its services are
    ended.

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

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        return process.wait()
    except KeyboardInterrupt:
        try:
            process.wait(_PATIENCE)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            process.kill()
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
        end_services()


def _orphans() -> list[int]:
    """Process ids of Dagster's services among the children of this process (Linux; else none)."""
    orphans = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            line = (folder / "cmdline").read_text(errors="replace")
        except (OSError, ValueError, IndexError):  # it ended meanwhile
            continue
        if parent == os.getpid() and any(name in line for name in _SERVICES):
            orphans.append(int(folder.name))
    return orphans


def end_services(patience: float = 10.0) -> None:
    """Terminate orphaned services, kill them after `patience` seconds. Ending one may orphan another."""
    end = time.monotonic() + patience
    while orphans := _orphans():
        for pid in orphans:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGTERM if time.monotonic() < end else signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.1)
