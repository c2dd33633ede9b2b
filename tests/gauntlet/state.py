"""State: databases that go away, disks that are full, servers that are killed."""

from __future__ import annotations

import importlib.util
import os
import resource
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import requests

from benchmarks.postgres import PASSWORD, Postgres, program

from .play import Seen, Skip, behaviour
from .stage import Server, Stage, user, wait


class Load(threading.Thread):
    """Requests one after the other until `ended` is set: statuses, and decisions that were acknowledged."""

    def __init__(self, server: Server):
        super().__init__(daemon=True)
        self.server = server
        self.seen, self.decided, self.ended = Counter[str](), list[str](), threading.Event()

    def run(self) -> None:
        """Ask."""
        http = requests.Session()
        http.trust_env = False
        i = 0
        while not self.ended.is_set():
            i += 1
            try:
                body = {"model": "cabs", "messages": user(f"Load {i}")}
                answer = http.post(f"{self.server.url}/v1/chat/completions", json=body, timeout=60.0)
                self.seen[str(answer.status_code)] += 1
                if name := answer.headers.get("x-cabs-decision"):
                    self.decided.append(name)
            except requests.RequestException as error:
                self.seen[type(error).__name__] += 1
                time.sleep(0.05)

    def __enter__(self) -> Load:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.join(90.0)


def _postgres(stage: Stage) -> Postgres:
    if importlib.util.find_spec("psycopg2") is None or program("initdb") is None:
        raise Skip("needs psycopg2 and a PostgreSQL server")
    database = Postgres()
    database.__enter__()
    stage.later(lambda: database.__exit__(None, None, None))
    return database


@behaviour("psycopg2")
def postgres_restarts(stage: Stage) -> Seen:
    """PostgreSQL holds the log and is restarted under load, gently and as in a crash -> every request is
    answered, each decision kept"""
    database = _postgres(stage)
    server = stage.fresh(log=database.url)
    with Load(server) as one, Load(server) as two:
        for mode in ("fast", "immediate"):
            time.sleep(1.5)
            database.stop(mode)
            time.sleep(1.5)
            database.start()
        time.sleep(2.0)
    back = wait(lambda: "x-cabs-decision" in server.ask().headers and not server.problems())
    seen, decided = one.seen + two.seen, one.decided + two.decided
    lost = set(decided) - {d.id for d in server.rows()}
    leak = PASSWORD in server.output() or str(database.port) in server.output()
    good = set(seen) == {"200"} and back and not lost and not leak
    return (
        good,
        f"{dict(seen)}, {len(lost)} of {len(decided)} decisions lost, routed again: {bool(back)}, "
        f"URL in the output: {leak}",
    )


def _small_disk(stage: Stage) -> tuple[Path, Callable[[Server], None], Callable[[Server], None]] | None:
    """(folder on a disk of 8 MB, how it is filled, how space returns); None: this machine mounts nothing."""
    place = stage.folder / "small"
    place.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)], capture_output=True)
    if done.returncode != 0:
        return None
    stage.later(lambda: subprocess.run(["umount", "-l", str(place)], capture_output=True))

    def fill(_: Server) -> None:
        with open(place / "filler", "wb", buffering=0) as out:
            try:
                while True:
                    out.write(b"x" * 4096)
            except OSError:
                return

    return place, fill, lambda _: (place / "filler").unlink()


@behaviour()
def full_disk(stage: Stage) -> Seen:
    """The disk of the log is full, then has space again -> every request is answered, /readyz says so,
    decisions are logged again"""
    made = _small_disk(stage)
    if made is None:  # a limit of the size of files instead

        def fill(server: Server) -> None:
            largest = max(p.stat().st_size for p in server.folder.glob("log.sqlite*"))
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))

        def free(server: Server) -> None:
            resource.prlimit(
                server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            )

        how, server = "a limit of file sizes", stage.fresh()
    else:
        how, (place, fill, free) = "a full tmpfs", made
        server = stage.fresh(log=str(place / "log.sqlite"))
    decided = [server.ask().headers["x-cabs-decision"] for _ in range(3)]
    fill(server)
    answers = [server.ask(user(f"While it is full, {i}: {'word ' * 500}")) for i in range(60)]
    seen = Counter(a.status_code for a in answers)
    unrouted, problems = server.metrics().get("cabs_unrouted_total", 0.0), wait(server.problems)
    free(server)
    back = wait(lambda: server.ask().headers.get("x-cabs-decision"))
    kept = {d.id for d in server.rows()}
    decided += [a.headers["x-cabs-decision"] for a in answers if "x-cabs-decision" in a.headers]
    lost = set(decided) - kept
    good = set(seen) == {200} and unrouted > 0 and back in kept and not lost and bool(problems)
    return (
        good,
        f"{how}: {dict(seen)}, {unrouted:.0f} by the fallback, {len(lost)} of {len(decided)} decisions lost, "
        f"logged again: {back in kept}; problems: {problems[:1]}",
    )


@behaviour()
def asked_to_stop(stage: Stage) -> Seen:
    """SIGTERM while a stream runs -> the stream ends whole, the server stops by itself"""
    server = stage.fresh()
    server.behave(dict.fromkeys(range(4), "drips"))
    body = {"model": "cabs", "messages": user("A somewhat longer question to stream."), "stream": True}
    answer = server.http.post(f"{server.url}/v1/chat/completions", json=body, stream=True)
    lines = answer.iter_lines()
    first = next(lines)
    assert server.process is not None
    server.process.send_signal(signal.SIGTERM)
    rest = [first, *lines]
    code = server.process.wait(60)
    return b"data: [DONE]" in rest, f"ended whole: {b'data: [DONE]' in rest}, exit code {code}"


def _workers(server: Server) -> list[int]:
    """Process ids of the server's workers (Linux)."""
    assert server.process is not None
    tasks = Path(f"/proc/{server.process.pid}/task").iterdir()
    started = [int(p) for task in tasks for p in (task / "children").read_text().split()]
    return [p for p in started if b"spawn_main" in Path(f"/proc/{p}/cmdline").read_bytes()]


@behaviour(short=True)
def a_worker_hangs(stage: Stage) -> Seen:
    """One of two workers gets no processor for 8 s -> it is not killed, no request is lost"""
    server = stage.server("two workers", options=("--workers", "2"))
    before = _workers(server)
    with Load(server) as one, Load(server) as two, Load(server) as three, Load(server) as four:
        time.sleep(1.0)
        os.kill(before[0], signal.SIGSTOP)
        time.sleep(8.0)
        os.kill(before[0], signal.SIGCONT)
        time.sleep(1.0)
    seen = one.seen + two.seen + three.seen + four.seen
    good = set(seen) == {"200"} and _workers(server) == before
    return good, f"{dict(seen)}, the same workers: {_workers(server) == before}"


@behaviour(short=True)
def a_worker_dies(stage: Stage) -> Seen:
    """One of two workers is killed with -9 -> the other answers at once, a new one is started"""
    server = stage.server("two workers", options=("--workers", "2"))
    before = _workers(server)
    os.kill(before[0], signal.SIGKILL)
    time.sleep(0.5)
    seen = [
        server.post("/v1/decision", {"text": f"Question {i}"}, headers={"connection": "close"}).status_code
        for i in range(10)
    ]
    again = wait(lambda: len(_workers(server)) == 2 and set(_workers(server)) != set(before))
    good = set(seen) == {200} and bool(again)
    return good, f"{seen.count(200)} of 10 answered, two workers again: {bool(again)}"
