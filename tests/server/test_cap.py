"""The cap of a day: one count in the log, at most one call above it, however many ask."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from server_support import ASK, JSON, client, settle
from tests_support import event_row

from cabs_core.data.events import reservations
from cabs_core.data.events.log import EventLog
from cabs_server.cap import Cap
from tests.postgres import Postgres, program

USD, DEAR = 1.0, 0.125


@pytest.fixture(
    params=["sqlite", pytest.param("postgres", marks=[pytest.mark.slow, pytest.mark.e2e])],
)
def logs(request, tmp_path) -> Iterator[list[EventLog]]:
    """Four connections to one log, as four processes have them."""
    with ExitStack() as stack:
        place: str | Path = tmp_path / "log.sqlite"
        if request.param == "postgres":
            pytest.importorskip("psycopg2", reason="extra [postgres] is not installed")
            if program("initdb") is None:
                pytest.skip("no initdb on this machine: install the PostgreSQL server to run this test")
            place = stack.enter_context(Postgres(seconds=240.0)).url
        yield [stack.enter_context(closing(EventLog(place))) for _ in range(4)]


def test_several_connections_share_one_cap(logs):
    caps = [Cap(USD) for _ in logs]
    with ThreadPoolExecutor(30) as pool:
        begun = list(pool.map(lambda i: caps[i % 4].begin(logs[i % 4], f"call {i}", DEAR), range(30)))
    assert sum(begun) == 8  # as many as may spend the whole, whoever holds them
    for i in range(30):
        caps[i % 4].end(logs[i % 4], f"call {i}")
    assert all(not cap.held for cap in caps)

    def spend(number: int) -> int:
        """Call after call until the cap is reached; how many."""
        cap, log, costs, made = caps[number % 4], logs[number % 4], random.Random(number), 0
        while not cap.reached():
            name = f"{number}-{made}"
            if not cap.begin(log, name, DEAR):
                time.sleep(0.002)
                continue
            log.add_decisions([event_row(name, ts=time.time(), kept=name)])
            log.finish(name, status="answered", cost=DEAR * costs.uniform(0.2, 1.0))
            cap.end(log, name)
            made += 1
        return made

    with ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(spend, range(8)))
    assert USD <= logs[0].spent() < USD + DEAR
    assert sum(counts) == len(logs[0].decisions())
    reserved = logs[0].database.transaction(lambda run: run("SELECT COUNT(*) FROM reserved").fetchone())
    assert reserved[0] == 0


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


def test_free_requests_take_nothing_of_the_day(place):
    """What cannot be passed on is a 400, and nothing of it stays under way."""
    with client(place, budget_cap_per_day=1.0) as c:
        deep = '{"model": "cabs", "messages": [{"role": "user", "content": "Hi"}], "stop": %s1%s}'
        for depth in (150, 400, *range(955, 970)):
            content = deep % ("[" * depth, "]" * depth)
            answer = c.post("/v1/chat/completions", content=content, headers=JSON)
            assert answer.status_code == (200 if depth < 190 else 400), (depth, answer.text[:200])
        settle(c)
        assert c.app.state.cap.held == {}
        assert c.post("/v1/chat/completions", json=ASK).status_code == 200
