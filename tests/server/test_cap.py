"""The cap of a day: one count in the log, at most one call above it, however many ask."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from server_support import ASK, client, settle

from benchmarks.postgres import Postgres, program
from cabs_core.data.events import reservations
from cabs_core.data.events.log import EventLog
from cabs_server.cap import Cap

USD, DEAR = 1.0, 0.125

#: a worker without a server: it spends as long as it may, several calls at once; prints how often
WORKER = """
import sys, time, uuid, random
from concurrent.futures import ThreadPoolExecutor
from cabs_core import EventLog
from cabs_server.cap import Cap

place, usd, dear = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
log, cap = EventLog(place), Cap(usd)

def spend(number):
    made = 0
    while not cap.reached():
        name = uuid.uuid4().hex
        if not cap.begin(log, name, dear):
            time.sleep(0.002)
            continue
        cost = dear * random.uniform(0.2, 1.0)
        row = {"id": name, "ts": time.time(), "bundle": "b", "arm": "x", "p": 1.0, "rho": 0.0,
               "mode": "named", "prompt_hash": "", "prompt_length": 0.0, "kept": name}
        time.sleep(0.002)
        log.add_decisions([row])
        log.finish(name, status="answered", cost=cost)
        cap.end(log, name)
        made += 1
    return made

with ThreadPoolExecutor(4) as pool:
    print(sum(pool.map(spend, range(4))))
log.close()
"""


def spending(place: str, workers: int) -> None:
    """Several processes with four calls at once each spend the cap, and at most one call more."""
    command = [sys.executable, "-c", WORKER, place, str(USD), str(DEAR)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(workers)]
    counts = [int(p.communicate(timeout=300)[0]) for p in running]
    with closing(EventLog(place)) as log:
        assert USD <= log.spent() < USD + DEAR
        assert sum(counts) == len(log.decisions())
        assert log.database.transaction(lambda run: run("SELECT COUNT(*) FROM reserved").fetchone())[0] == 0


@pytest.mark.slow
@pytest.mark.e2e
def test_several_processes_share_one_cap_in_postgres():
    pytest.importorskip("psycopg2", reason="extra [postgres] is not installed")
    if program("initdb") is None:
        pytest.skip("no initdb on this machine: install the PostgreSQL server to run this test")
    with Postgres(seconds=240.0) as server:
        spending(server.url, 3)


def test_several_connections_share_one_cap(tmp_path):
    logs = [EventLog(tmp_path / "log.sqlite") for _ in range(4)]
    caps = [Cap(USD) for _ in logs]
    with ThreadPoolExecutor(30) as pool:
        begun = list(pool.map(lambda i: caps[i % 4].begin(logs[i % 4], f"call {i}", DEAR), range(30)))
    assert sum(begun) == 8  # as many as may spend the whole, whoever holds them
    for i in range(30):
        caps[i % 4].end(logs[i % 4], f"call {i}")
    assert all(not cap.held for cap in caps)
    assert caps[0].begin(logs[0], "call 30", DEAR)
    for log in logs:
        log.close()


def test_what_a_dead_process_reserved_comes_back(tmp_path, monkeypatch):
    with closing(EventLog(tmp_path / "log.sqlite")) as log:
        now = [1e9]
        monkeypatch.setattr(EventLog, "clock", lambda self, run: now[0])
        assert reservations.reserve(log, "a", 1.0, usd=1.0, day=0) == (True, 0.0)
        assert reservations.reserve(log, "a", 1.0, usd=1.0, day=0) == (True, 0.0)  # done again
        assert not reservations.reserve(log, "b", 1.0, usd=1.0, day=0)[0]
        now[0] += reservations.STANDS - 1
        reservations.renew(log, ["a"])
        now[0] += reservations.STANDS - 1
        assert not reservations.reserve(log, "b", 1.0, usd=1.0, day=0)[0]
        now[0] += 2
        assert reservations.reserve(log, "b", 1.0, usd=1.0, day=0)[0]
        now[0] -= 10 * reservations.STANDS  # a clock that was ahead holds nobody off
        assert reservations.reserve(log, "c", 1.0, usd=1.0, day=0)[0]


def test_where_the_log_is_away_a_worker_counts_alone(tmp_path, monkeypatch):
    with closing(EventLog(tmp_path / "log.sqlite")) as log:
        cap = Cap(1.0)
        assert cap.begin(log, "a", 0.6)
        log.close()
        assert cap.begin(log, "b", 0.6)
        assert not cap.begin(log, "c", 0.6)


def test_free_requests_take_nothing_of_the_day(place):
    """What cannot be passed on is a 400, and nothing of it stays under way."""
    with client(place, budget_cap_per_day=1.0) as c:
        deep = '{"model": "cabs", "messages": [{"role": "user", "content": "Hi"}], "stop": %s1%s}'
        for depth in (150, 400, 900, *range(955, 970)):
            content = deep % ("[" * depth, "]" * depth)
            answer = c.post(
                "/v1/chat/completions", content=content, headers={"content-type": "application/json"}
            )
            assert answer.status_code == (200 if depth < 190 else 400), (
                depth,
                json.dumps(answer.json())[:200],
            )
        settle(c)
        assert c.app.state.cap.held == {}
        assert c.post("/v1/chat/completions", json=ASK).status_code == 200
