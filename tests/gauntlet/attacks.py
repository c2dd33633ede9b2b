"""Attacks: what a stranger, one key and an upstream do to the memory, the waits, the counts and the scores of the others."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer

import requests

from cabs_core.router import EventLog

from .attacker import ATTACKS, KEY
from .play import Seen, behaviour
from .stage import PRICE, ROOT, TEXT, USUAL, Server, Stage, near, user

HONEST = {f"honest{i}": f"key-of-honest-{i:02d}" for i in range(20)}
KEYS = {"CABS_SERVER_KEYS": ",".join(f"{n}={k}" for n, k in {**HONEST, "mallory": KEY}.items())}
#: what an attack may do: MB of memory, seconds that another key waits longer
MEMORY, WAIT = 100.0, 0.25


class _Hostile(StreamRequestHandler):
    """An upstream on a raw socket whose answer of 1 MB unpacks to 1 GB."""

    bomb = b""

    def handle(self) -> None:
        with suppress(OSError, ValueError):
            while line := self.rfile.readline().lower():
                size = 0
                while line.strip():
                    if line.startswith(b"content-length:"):
                        size = int(line.split(b":")[1])
                    line = self.rfile.readline().lower()
                self.rfile.read(size)
                head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\ncontent-length: {len(self.bomb)}\r\n\r\n"  # fmt: skip
                self.wfile.write(head.encode() + self.bomb)


def _hostile(stage: Stage) -> int:
    """Start it; its port."""
    if not _Hostile.bomb:
        _Hostile.bomb = b"".join(gzip.compress(bytes(1 << 20), 9) * 8 for _ in range(128))
    ThreadingTCPServer.allow_reuse_address = ThreadingTCPServer.daemon_threads = True
    server = ThreadingTCPServer(("127.0.0.1", 0), _Hostile)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def end() -> None:
        server.shutdown()
        server.server_close()

    stage.later(end)
    return int(server.server_address[1])


class Clients:
    """Twenty honest clients, each with a key and a session: how long they wait, what went wrong, what they paid."""

    def __init__(self, server: Server):
        self.server, self.waits, self.errors = server, list[float](), list[str]()
        self.answers = dict.fromkeys(HONEST, 0)
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=pair, daemon=True) for pair in HONEST.items()
        ]

    def _run(self, name: str, key: str) -> None:
        http = requests.Session()
        http.trust_env = False
        headers = {"authorization": f"Bearer {key}", "x-session-id": name.replace("honest", "honest-")}
        while not self._stop.wait(0.5):
            begin = time.perf_counter()
            try:
                body = {"model": "cabs", "messages": user(TEXT)}
                answer = http.post(
                    f"{self.server.url}/v1/chat/completions", json=body, headers=headers, timeout=60.0
                )
                if answer.status_code == 200:
                    self.answers[name] += 1
                else:
                    self.errors.append(f"{answer.status_code}: {answer.text[:80]}")
            except requests.RequestException as error:
                self.errors.append(type(error).__name__)
            self.waits.append(time.perf_counter() - begin)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def slowest(self) -> float:
        """Seconds within which 19 of 20 were answered since the last call."""
        waits, self.waits = sorted(self.waits), []
        return waits[int(0.95 * len(waits))] if waits else 0.0

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)


def _memory(pid: int) -> float:
    """MB that a process has in memory."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", text)[1]) / 1024  # type: ignore[index]


def _served(stage: Stage) -> Server:
    """A server with the keys, a cap, and a hostile upstream behind its last model."""
    if not stage.has("attacked"):
        port = _hostile(stage)
        stage.server(
            "attacked", environment=KEYS, options=("--budget-cap-per-day", "1000"),
            whole={"embeddings": {"bomb": {"url": f"http://127.0.0.1:{port}/v1", "price": PRICE}}},
        )  # fmt: skip
    return stage.server("attacked")


def attacked(stage: Stage, name: str, seconds: float) -> Seen:
    """Honest clients alone, then beside twenty hostile ones."""
    server = _served(stage)
    assert server.process is not None
    clients, rows = Clients(server), len(server.rows())
    clients.start()
    time.sleep(2.0)
    alone, before = clients.slowest(), _memory(server.process.pid)
    most = before
    command = [sys.executable, "-m", "tests.gauntlet.attacker", name, str(server.port), str(seconds), "20"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL) as hostile:
        while hostile.poll() is None:
            time.sleep(0.02)
            most = max(most, _memory(server.process.pid))
    busy = max(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0)  # clients and attackers share this machine
    beside = clients.slowest()
    clients.stop()
    time.sleep(1.0)
    found = server.rows()[rows:]
    mine = [d for d in found if d.caller in HONEST]
    counted = {n: sum(d.caller == n and d.status == "answered" for d in mine) for n in HONEST}
    costs = all(near(d.cost, USUAL) for d in mine if d.status == "answered")
    own = {d.session for d in mine}.isdisjoint(d.session for d in found if d.caller == "mallory")
    log = EventLog(server.log, read_only=True)
    scored = {r.decision_id for r in log.rewards()} & {d.id for d in mine}
    log.close()
    good = (
        not clients.errors and most - before <= MEMORY and beside - alone <= WAIT * busy and counted == clients.answers
        and costs and own and not scored
    )  # fmt: skip
    return good, (
        f"{most - before:.0f} MB, waits {alone * 1e3:.0f} to {beside * 1e3:.0f} ms at load {busy:.1f}, {len(mine)} honest calls, "
        f"errors {clients.errors[:2]}, counts {'equal' if counted == clients.answers else 'differ'}"
    )


def _declare(name: str, what: str) -> None:
    def play(stage: Stage) -> Seen:
        return attacked(stage, name, 3.0)

    play.__name__ = play.__qualname__ = name
    says = (
        f"{what}, 20 at once -> at most {MEMORY:.0f} MB, 19 of 20 calls of others wait at most {WAIT * 1e3:.0f} ms (times the load) longer, "
        "without an error, with their own counts and costs"
    )  # fmt: skip
    behaviour(short=True, says=says)(play)


for _name, (_what, _) in ATTACKS.items():
    _declare(_name, _what)


@behaviour()
def ten_minutes(stage: Stage) -> Seen:
    """All attacks at once for 10 minutes, beside 20 honest clients -> the same"""
    return attacked(stage, "all", 600.0)
