"""A PostgreSQL server of one's own for a while, on 127.0.0.1: for tests and benchmarks that restart it.

with Postgres() as server:
    log = EventLog(server.url)
    server.restart()
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cabs_core.base.errors import CabsError

PASSWORD = "only-for-this/test"


def program(name: str) -> str | None:
    """Path of a program of the PostgreSQL server, which Debian keeps off the PATH; None: it is not
    installed."""
    places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(places[-1]) if places else None)


class Postgres:
    """A fresh server while the `with` block runs; it runs as user `postgres` where this process is root.

    Attributes:
        settings: host, port, user, password, dbname. url: the same as a URL.

    Raises:
        CabsError: PostgreSQL's server is not installed, or does not start.
    """

    def __init__(self, *, seconds: float = 120.0):
        programs = [program(name) for name in ("initdb", "pg_ctl")]
        if None in programs:
            raise CabsError("no initdb and pg_ctl on this machine: install the PostgreSQL server")
        self.initdb, self.pg_ctl = (str(name) for name in programs)
        self.seconds = seconds
        self.user: dict[str, Any] = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}

    def is_told_by(self, text: str) -> bool:
        """Return True if a text tells the password, also as it stands in the URL, or the port.

        Digits of the port within a word do not count, since they may be part of an id.
        """
        password = PASSWORD.split("/")[0]
        return password in text or re.search(rf"\b{self.port}\b", text) is not None

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="cabs-pg-"))  # a socket's path must be short
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.settings = {
            "host": "127.0.0.1",
            "port": str(self.port),
            "user": "cabs",
            "password": PASSWORD,
            "dbname": "postgres",
        }
        self.url = f"postgresql://cabs:{PASSWORD.replace('/', '%2F')}@127.0.0.1:{self.port}/postgres"
        password = self.folder / "password"
        password.write_text(PASSWORD)
        if self.user:
            shutil.chown(self.folder, "postgres")
            shutil.chown(password, "postgres")
        try:
            data = str(self.folder / "data")
            self._call(
                self.initdb, "-N", "-D", data, "-U", "cabs", "--auth=scram-sha-256", f"--pwfile={password}"
            )
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        command = [self.pg_ctl, "-D", str(self.folder / "data"), "-w", "-m", "immediate", "stop"]
        subprocess.run(command, capture_output=True, cwd=self.folder, **self.user)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        """Start it and wait until it answers."""
        options = (
            f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self.folder} "
            "-c fsync=off"
        )
        self._call(
            self.pg_ctl,
            "-D",
            str(self.folder / "data"),
            "-w",
            "-l",
            str(self.folder / "log"),
            "-o",
            options,
            "start",
        )

    def stop(self, mode: str = "fast") -> None:
        """Stop it: 'fast' cuts connections and rolls back, 'immediate' is like a crash."""
        self._call(self.pg_ctl, "-D", str(self.folder / "data"), "-w", "-m", mode, "stop")

    def restart(self, mode: str = "fast") -> None:
        """Stop and start."""
        self.stop(mode)
        self.start()

    def _call(self, *arguments: str) -> None:
        done = subprocess.run(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            timeout=self.seconds,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            **self.user,
        )
        if done.returncode != 0:
            raise CabsError(f"{Path(arguments[0]).name} failed: {done.stdout}")
