"""State: databases that go away, disks that are full, servers that are killed."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
import requests

from tests.postgres import Postgres, program

from .stage import Server, Stage, user, wait

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1200)]


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


def test_postgres_restarts_under_load_gently_and_as_in_a_crash(stage: Stage) -> None:
    """Every request is answered and each decision kept."""
    pytest.importorskip("psycopg2", reason="extra [postgres] is not installed")
    if program("initdb") is None:
        pytest.skip("no initdb on this machine: install the PostgreSQL server to run this test")
    database = stage.ends.enter_context(Postgres())
    server = stage.fresh(log=database.url)
    with Load(server) as one, Load(server) as two:
        for mode in ("fast", "immediate"):
            time.sleep(1.5)
            database.stop(mode)
            time.sleep(1.5)
            database.start()
        time.sleep(2.0)
    assert wait(lambda: "x-cabs-decision" in server.ask().headers and not server.problems())
    assert set(one.seen + two.seen) == {"200"}
    assert set(one.decided + two.decided) <= {d.id for d in server.rows()}
    assert not database.is_told_by(server.output())


def small_disk(stage: Stage) -> Path | None:
    """A folder on a disk of 8 MB; None: this machine mounts nothing."""
    place = stage.folder / "small"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)], capture_output=True)
    if done.returncode != 0:
        return None
    stage.ends.callback(subprocess.run, ["umount", "-l", str(place)], capture_output=True)
    return place


def limit_files(server: Server, size: int) -> None:
    assert server.process is not None
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_a_full_disk_loses_no_request_and_decisions_are_logged_again_afterwards(stage: Stage) -> None:
    """A small disk, or a limit of the size of files where nothing can be mounted."""
    place = small_disk(stage)
    server = stage.fresh(log=None if place is None else str(place / "log.sqlite"))
    decided = [server.ask().headers["x-cabs-decision"] for _ in range(3)]
    if place is None:
        limit_files(server, max(p.stat().st_size for p in server.folder.glob("log.sqlite*")))
    else:
        with pytest.raises(OSError), open(place / "filler", "wb", buffering=0) as out:
            while True:
                out.write(b"x" * 4096)
    answers = [server.ask(user(f"While it is full, {i}: {'word ' * 500}")) for i in range(60)]
    assert {a.status_code for a in answers} == {200}
    assert server.metrics()["cabs_unrouted_total"] > 0 and wait(server.problems)
    if place is None:
        limit_files(server, resource.RLIM_INFINITY)
    else:
        (place / "filler").unlink()
    decided += [a.headers["x-cabs-decision"] for a in answers if "x-cabs-decision" in a.headers]
    decided.append(wait(lambda: server.ask().headers.get("x-cabs-decision")))
    assert set(decided) <= {d.id for d in server.rows()}


def test_a_stream_ends_whole_though_the_server_is_asked_to_stop(stage: Stage) -> None:
    server = stage.fresh()
    server.behave(dict.fromkeys(range(4), "drips"))
    body = {"model": "cabs", "messages": user("A somewhat longer question to stream."), "stream": True}
    answer = server.http.post(f"{server.url}/v1/chat/completions", json=body, stream=True)
    lines = answer.iter_lines()
    next(lines)
    assert server.process is not None
    server.process.send_signal(signal.SIGTERM)
    assert b"data: [DONE]" in list(lines)
    server.process.wait(60)


@pytest.fixture(scope="module")
def pair(stage: Stage) -> Server:
    """A server of two workers."""
    return stage.fresh(options=("--workers", "2"))


def workers(server: Server) -> list[int]:
    """Process ids of the server's workers (Linux)."""
    assert server.process is not None
    tasks = Path(f"/proc/{server.process.pid}/task").iterdir()
    started = [int(p) for task in tasks for p in (task / "children").read_text().split()]
    return [p for p in started if b"spawn_main" in Path(f"/proc/{p}/cmdline").read_bytes()]


def test_a_worker_that_gets_no_processor_for_8_s_is_not_killed_and_no_request_is_lost(pair: Server) -> None:
    before = workers(pair)
    with Load(pair) as one, Load(pair) as two, Load(pair) as three, Load(pair) as four:
        time.sleep(1.0)
        os.kill(before[0], signal.SIGSTOP)
        time.sleep(8.0)
        os.kill(before[0], signal.SIGCONT)
        time.sleep(1.0)
    assert set(one.seen + two.seen + three.seen + four.seen) == {"200"}
    assert workers(pair) == before


def test_where_a_worker_is_killed_the_other_answers_and_a_new_one_is_started(pair: Server) -> None:
    before = workers(pair)
    os.kill(before[0], signal.SIGKILL)
    time.sleep(0.5)
    for i in range(10):
        body = {"text": f"Question {i}"}
        assert pair.post("/v1/decision", body, headers={"connection": "close"}).status_code == 200
    assert wait(lambda: len(workers(pair)) == 2 and set(workers(pair)) != set(before))
