"""Attacks: what strangers, one key and an upstream do to memory, waits, counts and scores of the others."""

from __future__ import annotations

import gzip
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer

import pytest
import requests

from cabs_core.data.events.log import EventLog

from .attacker import ATTACKS, KEY
from .stage import PRICE, ROOT, TEXT, USUAL, Server, Stage, user, wait

HONEST = {f"honest{i}": f"key-of-honest-{i:02d}" for i in range(20)}
KEYS = {"CABS_SERVER_KEYS": ",".join(f"{n}={k}" for n, k in {**HONEST, "mallory": KEY}.items())}
pytestmark = pytest.mark.timeout(1200)
#: what an attack may take: MB of memory, and seconds of another key
MEMORY, WAIT = 150.0, 0.25


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
                fields = ["content-type: application/json", "content-encoding: gzip"]
                fields.append(f"content-length: {len(self.bomb)}")
                head = "\r\n".join(["HTTP/1.1 200 OK", *fields]).encode()
                self.wfile.write(head + b"\r\n\r\n" + self.bomb)


@pytest.fixture(scope="module")
def hostile() -> Iterator[int]:
    """The port of that upstream."""
    _Hostile.bomb = b"".join(gzip.compress(bytes(1 << 20), 9) * 8 for _ in range(128))
    ThreadingTCPServer.allow_reuse_address = ThreadingTCPServer.daemon_threads = True
    with ThreadingTCPServer(("127.0.0.1", 0), _Hostile) as upstream:
        threading.Thread(target=upstream.serve_forever, daemon=True).start()
        yield int(upstream.server_address[1])
        upstream.shutdown()


@pytest.fixture(scope="module")
def servers(stage: Stage, hostile: int) -> list[Server]:
    """Two servers with the keys, a cap, and the hostile upstream behind their model of embeddings."""
    bomb = {"url": f"http://127.0.0.1:{hostile}/v1", "price": PRICE}
    options = ("--budget-cap-per-day", "1000000")
    whole = {"embeddings": {"bomb": bomb}}
    return [stage.fresh(environment=KEYS, options=options, whole=whole) for _ in range(2)]


class Clients:
    """Twenty honest clients, each with a key and a session: how long they wait, what went wrong, what they
    paid."""

    def __init__(self, server: Server, provider: int):
        assert server.process is not None
        self.server, self.pid, self.errors = server, server.process.pid, list[str]()
        #: the threads of the stand-in upstream
        self.others = _threads(provider)
        #: (when a call began, seconds that it took without those for which the machine was busy with others)
        self.calls: list[tuple[float, float]] = []
        self.answers = dict.fromkeys(HONEST, 0)
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=pair, daemon=True) for pair in HONEST.items()
        ]

    def _run(self, name: str, key: str) -> None:
        http = requests.Session()
        http.trust_env = False
        headers = {"authorization": f"Bearer {key}", "x-session-id": name.replace("honest", "honest-")}
        body = {"model": "cabs", "messages": user(TEXT)}
        while not self._stop.wait(0.5):
            threads = [
                *_threads(self.pid),
                *self.others,
                Path(f"/proc/self/task/{threading.get_native_id()}"),
            ]
            begin, before = time.monotonic(), _delays(threads)
            try:
                answer = http.post(
                    f"{self.server.url}/v1/chat/completions", json=body, headers=headers, timeout=60.0
                )
                if answer.status_code == 200:
                    self.answers[name] += 1
                else:
                    self.errors.append(f"{answer.status_code}: {answer.text[:80]}")
            except requests.RequestException as error:
                self.errors.append(type(error).__name__)
            seconds = time.monotonic() - begin
            self.calls.append((begin, max(seconds - _lost(before, _delays(threads)), 0.0)))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def slowest(self, begin: float, end: float) -> float:
        """Seconds within which 19 of 20 calls of a time were answered."""
        waits = sorted(seconds for at, seconds in self.calls if begin <= at < end)
        return waits[int(0.95 * len(waits))] if waits else 0.0

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)


def _memory(pid: int) -> float:
    """MB that a process has in memory."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", text)[1]) / 1024  # type: ignore[index]


def _threads(pid: int) -> list[Path]:
    """Threads of a process."""
    return list(Path(f"/proc/{pid}/task").iterdir())


def _delays(threads: list[Path]) -> dict[Path, int]:
    """{thread: nanoseconds for which it was ready to go on and the machine, busy with others, gave it no
    core}."""
    delays = {}
    for thread in threads:
        with suppress(OSError, IndexError):  # it has just ended, or the kernel does not say
            delays[thread] = int((thread / "schedstat").read_text().split()[1])
    return delays


def _lost(before: dict[Path, int], after: dict[Path, int]) -> float:
    """Seconds that a call has lost to other work on the machine: of each process that it went through the
    thread that lost most."""
    most = Counter[Path]()
    for thread, delay in after.items():
        process = thread.parent.parent
        most[process] = max(most[process], delay - before.get(thread, delay))
    return sum(most.values()) / 1e9


def attacked(servers: list[Server], provider: int, name: str, plan: list[tuple[bool, float]]) -> None:
    """Twenty honest clients of a server, while twenty hostile ones attack it, and while they attack another
    one.

    All of them share this machine with both servers, so calls beside an attack are compared with calls beside
    the same
    attack on a server that the honest clients do not ask, and the time for which a call waited for a core is
    taken off: what is left is what the attack does within their server.

    Args:
        provider: process id of the stand-in upstream. name: of the attack, or `all`.
        plan: (whether their server is attacked, seconds), one after the other.
    """
    server, decoy = servers
    clients, rows = Clients(server, provider), len(server.rows())
    clients.start()
    # what a fresh server takes for its first calls is its own
    wait(lambda: min(clients.answers.values()) >= 2)
    before = most = _memory(clients.pid)
    command = [sys.executable, "-m", "tests.gauntlet.attacker", name, "20"]
    for hit, seconds in plan:
        command += [str(seconds), str((server if hit else decoy).port)]
    times, ended = [time.monotonic()], threading.Event()
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE
    ) as hostile:

        def note() -> None:
            for _ in hostile.stdout or ():
                times.append(time.monotonic())
            ended.set()

        threading.Thread(target=note, daemon=True).start()
        while not ended.wait(0.02):
            most = max(most, _memory(clients.pid))
    spans = list(zip(times[1::2], times[2::2], strict=True))
    clients.stop()
    waits = {
        hit: statistics.median(
            clients.slowest(*span) for (at, _), span in zip(plan, spans, strict=True) if at is hit
        )
        for hit in (True, False)
    }
    time.sleep(1.0)
    since = server.rows()[rows:]
    honest = [d for d in since if d.caller in HONEST]
    assert most - before <= MEMORY and waits[True] - waits[False] <= WAIT
    assert not clients.errors
    counted = {n: sum(d.caller == n and d.status == "answered" for d in honest) for n in HONEST}
    assert counted == clients.answers
    costs = {d.cost for d in honest if d.status == "answered"}
    assert all(cost == pytest.approx(USUAL) for cost in costs)
    assert {d.session for d in honest}.isdisjoint(d.session for d in since if d.caller == "mallory")
    with closing(EventLog(server.log, read_only=True)) as log:
        assert {r.decision_id for r in log.rewards()}.isdisjoint(d.id for d in honest)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_by_twenty_takes_little_memory_and_time_of_others(
    stage: Stage, servers: list[Server], name: str
) -> None:
    """And nothing of their own counts, costs, sessions and scores."""
    attacked(servers, stage.provider_pid, name, [(False, 2.0), (True, 2.0)] * 3)


def test_all_attacks_at_once_for_ten_minutes(stage: Stage, servers: list[Server]) -> None:
    attacked(servers, stage.provider_pid, "all", [(False, 60.0), (True, 600.0), (False, 60.0)])
