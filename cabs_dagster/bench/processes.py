"""A `dagster dev` of its own for measurements and end-to-end tests.

What belongs here: starting and stopping it, asking it by GraphQL, counting its processor time. What does not: what is
measured (`backfill.py`).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cabs_core.errors import CabsError

_READY_SECONDS = 120


class DevServer:
    """A `cabs ui` with its own DAGSTER_HOME, on a free port of 127.0.0.1, in a process group of its own.

    Args:
        home: folder of its log; made when it is not there.
        environment: of the process; default: this one's, with `home` as DAGSTER_HOME.
    """

    def __init__(self, home: Path, environment: Mapping[str, str] | None = None):
        home.mkdir(parents=True, exist_ok=True)
        self.home, self.log = home, home / "dev.log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        code = "from cabs_dagster.cli import main; main()"
        with open(self.log, "ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code, "ui", "--port", str(port)],
                env=environment
                or {**os.environ, "DAGSTER_HOME": str(home), "DAGSTER_DISABLE_TELEMETRY": "1"},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # a background shell starts its commands deaf to SIGINT, by which this one is ended
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )

    def query(self, text: str, **variables: Any) -> dict[str, Any]:
        """The data of a GraphQL query.

        Raises:
            CabsError: Dagster answered with errors.
        """
        body = json.dumps({"query": text, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            found = json.load(answer)
        if "errors" in found:
            raise CabsError(f"dagster dev at {self.url} refused a query: {found['errors'][0]['message']}")
        return found["data"]

    def ready(self) -> bool:
        """Whether the code location is loaded.

        Raises:
            CabsError: it ended; the message holds the end of its log.
        """
        if self.process.poll() is not None:
            raise CabsError(f"dagster dev ended; its log ends with:\n{self._tail()}")
        try:
            found = self.query("{ repositoriesOrError { ... on RepositoryConnection { nodes { name } } } }")
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
        return bool(found["repositoriesOrError"].get("nodes"))

    def wait_ready(self) -> None:
        """Until the code location is loaded.

        Raises:
            CabsError: it ended or took too long; the message holds the end of its log.
        """
        end = time.monotonic() + _READY_SECONDS
        while not self.ready():
            if time.monotonic() > end:
                raise CabsError(
                    f"dagster dev did not become ready in {_READY_SECONDS} s; its log ends with:\n{self._tail()}"
                )
            time.sleep(0.5)

    def _tail(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-4000:]

    def processor_seconds(self) -> dict[str, float]:
        """{role: user + system seconds so far}: webserver, daemon, code server, run workers, other.

        All processes that carry this DAGSTER_HOME in their environment count, with the children that they waited
        for. Linux only.
        """
        marker = f"DAGSTER_HOME={self.home}".encode()
        found: dict[str, float] = {}
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                if marker not in (folder / "environ").read_bytes().split(b"\0"):
                    continue
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it ended, or belongs to somebody else
                continue
            own, children = (sum(map(int, fields[i : i + 2])) / os.sysconf("SC_CLK_TCK") for i in (11, 13))
            role = _role(line)
            found[role] = found.get(role, 0.0) + own
            # What a server waited for were run workers; what `dagster dev` waited for were servers.
            late = "run workers" if role in ("code server", "warm server") else role
            found[late] = found.get(late, 0.0) + children
        return found

    def stop(self) -> None:
        """End it as Ctrl-C does, and by force when that does not help."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


def _role(line: str) -> str:
    roles = {
        "cabs_dagster.warm": "warm server",
        "dagster_webserver": "webserver",
        "dagster._daemon": "daemon",
        "multiprocessing.spawn": "run workers",
        "api grpc": "code server",
        "code-server": "code server",
    }
    return next((role for part, role in roles.items() if part in line), "other")


@contextmanager
def dev_server(home: Path) -> Iterator[DevServer]:
    """A ready `dagster dev` that is ended at the end."""
    server = DevServer(home)
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()
