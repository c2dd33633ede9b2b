"""The event log in PostgreSQL: the same rows, answers and order as in SQLite, also with several writers."""

from __future__ import annotations

import threading
from urllib.parse import quote

import numpy as np
import pytest
from test_postgres_instance import server  # noqa: F401  (a fixture)

from cabs_core.errors import RouterError
from cabs_core.router.events import EventLog

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]


def row(name: str) -> dict:
    return {
        "id": name, "ts": 1.0, "bundle": "b", "arm": "x", "p": 0.25, "pmf": np.array([0.25, 0.75]),
        "target": np.array([0.0, 1.0]), "available": np.array([True, False]), "rho": 300.0, "mode": "route",
        "expected_cost": None, "prompt_hash": "h", "prompt_length": 3.0, "prompt": None,
        "embedding": np.array([0.1, 0.2], dtype=np.float32), "decision": "{}", "call_id": f"call {name}",
    }  # fmt: skip


def story(log: EventLog) -> list:
    """What a log answers to the same events."""
    log.add_decisions([row("one"), row("two")])
    log.finish("one", status="answered", cost=1e-3, response_id="r1")
    said = [
        log.add_reward("one", 1.0, 1e-3, "user", "k1"), log.add_reward("one", 1.0, 1e-3, "user", "k1"),
        log.add_reward("one", 0.0, 1e-3, "user", "k1"), log.add_reward("one", 0.5, 1e-3, "judge", "k2"),
    ]  # fmt: skip
    made = log.decision(response_id="r1")
    said += [
        made.id,
        made.pmf.tolist(),
        made.available.tolist(),
        made.embedding.tolist(),
        made.cost,
        made.status,
    ]
    said += [(r.decision_id, r.score, r.source, r.teaches) for r in log.rewards()]
    said += [
        log.played(0, ["b"])[1],
        log.played(0, ["other"])[1],
        log.counts(),
        log.decision(call_id="nobody"),
    ]
    said += [log.take_lease("a", 60.0), log.take_lease("b", 60.0), log.lease()[0]]
    return said


def test_as_in_sqlite_and_in_order_with_several_writers(server) -> None:  # noqa: F811
    password = quote(server["CABS_PG_PASSWORD"])
    url = f"postgresql://cabs:{password}@127.0.0.1:{server['CABS_PG_PORT']}/postgres"
    log = EventLog(url)
    assert story(log) == story(EventLog(":memory:"))
    logs = [EventLog(url) for _ in range(3)]
    seen: list[int] = []
    done = threading.Event()

    def write(mine: EventLog, name: str) -> None:
        for i in range(60):
            mine.add_decisions([row(f"{name}-{i}")])
            mine.add_reward(f"{name}-{i}", 1.0, 0.0, "user", f"{name}-{i}")

    def read() -> None:
        while not done.is_set() or log.last_reward() > (seen[-1] if seen else 2):
            seen.extend(r.seq for r in log.rewards(seen[-1] if seen else 2))

    writers = [threading.Thread(target=write, args=(mine, f"w{i}")) for i, mine in enumerate(logs)]
    reader = threading.Thread(target=read)
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    # a reader that follows the numbers misses none
    assert len(seen) == 180 and seen == sorted(set(seen))
    for each in (log, *logs):
        each.close()
    with pytest.raises(RouterError, match="cannot be opened"):
        EventLog("postgresql://cabs:wrong@127.0.0.1:1/postgres")
