"""The event log in PostgreSQL: the same rows, answers and order as in SQLite, also with several writers."""

from __future__ import annotations

import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from e2e_support import patience
from tests_support import event_row

from cabs_core.base.errors import RouterError
from cabs_core.data.events.log import EventLog
from cabs_core.data.events.retention import compact, retract
from cabs_core.router.doctor import examine
from cabs_core.router.options import RouterOptions
from cabs_core.router.router import Router
from tests.postgres import Postgres, program

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A fresh server."""
    pytest.importorskip("psycopg2", reason="extra [postgres] is not installed")
    if program("initdb") is None:
        pytest.skip("no initdb on this machine: install the PostgreSQL server to run this test")
    with Postgres(seconds=120 * patience()) as made:
        yield made


def row(name: str) -> dict:
    arms = {"pmf": np.array([0.25, 0.75]), "target": np.eye(2)[1], "available": np.array([True, False])}
    text = {"embedding": np.array([0.1, 0.2], dtype=np.float32), "call_id": f"call {name}"}
    return event_row(name, ts=1.0, p=0.25, rho=300.0, prompt_length=3.0, **arms, **text)


def story(log: EventLog) -> list:
    """What a log answers to the same events."""
    log.add_decisions([row("one"), row("two") | {"q": 0.5, "marked": 1}])
    log.finish("one", status="answered", cost=1e-3, response_id="r1")
    answers = [
        log.add_reward("one", 1.0, 1e-3, "user", "k1"),
        log.add_reward("one", 1.0, 1e-3, "user", "k1"),
        log.add_reward("one", 0.0, 1e-3, "user", "k1"),
        log.add_reward("one", 0.5, 1e-3, "judge", "k2"),
    ]
    made = log.decision(response_id="r1")
    answers += [
        made.id,
        made.pmf.tolist(),
        made.available.tolist(),
        made.embedding.tolist(),
        made.cost,
        made.status,
    ]
    answers += [(r.decision_id, r.score, r.source, r.teaches) for r in log.rewards()]
    answers += [
        log.played(0, ["b"])[1],
        log.played(0, ["other"])[1],
        log.counts(),
        log.reward_count(),
        log.spent(),
        log.decision(call_id="nobody"),
        [d.id for d, _ in log.scored()],
        [(d.id, d.q, d.marked) for d in log.to_score(5)],
        [d.id for d in log.to_score(5, caller="nobody")],
        [outcome[-1] for outcome in log.outcomes("b")],
        log.lessons(0, 10, ["b"])[1:],
    ]
    log.add_decisions([row("one") | {"id": "turn", "kept": "one", "session": "s"}])
    answers += [log.decision(session="s").kept, log.played(0, ["b"]), len(list(log.outcomes("b")))]
    answers += [len(retract(log, "one", source="user")), [r.teaches for r in log.rewards()], log.revision]
    answers += [
        compact(log, 2.0),
        log.played(0, ["b"]),
        log.counts(),
        log.bundles(),
        log.calls_since("b", 0.0),
    ]
    answers += [log.take_lease("a", 60.0), log.take_lease("b", 60.0), log.lease()[0]]
    return answers


def test_as_in_sqlite_and_in_order_with_several_writers(server: Postgres) -> None:
    url = server.url
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


def messages(call) -> str:
    """Everything that an error says, causes included."""
    with pytest.raises(RouterError) as caught:
        call()
    error: BaseException | None = caught.value
    parts = []
    while error is not None:
        parts.append(repr(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return " ".join(parts)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://cabs:pass-word@127.0.0.1:1/postgres",
        "postgresql://cabs:pass/word@127.0.0.1:1/x",
        "postgresql://cabs:pass word@[::1",
    ],
)
def test_no_error_shows_where_the_database_is(url: str) -> None:
    text = messages(lambda: EventLog(url))
    assert (
        "pass" not in text.replace("password@host", "").replace("the password", "")
        and "127.0.0.1" not in text
    )


def test_a_router_serves_from_postgres_and_survives_its_restart(
    server: Postgres, make_bundle: Callable[..., Path], caplog
) -> None:
    bundle = make_bundle("hier_mix", epsilon=0.1)
    router = Router.load(bundle, log=server.url)
    made = [router.route(f"What is {i} times {i + 1}?", call_id=f"c{i}") for i in range(5)]
    router.finish(made[0].id, cost=1e-4, response_id="r0", latency=0.1)
    assert router.feedback(made[0].id, score=1.0) == "recorded"
    message = messages(lambda: router.feedback("nobody", score=1.0))
    assert "postgresql" not in message and not server.is_told_by(message)

    for mode in ("fast", "immediate"):
        server.stop(mode)
        begin = time.monotonic()
        for _ in range(3):
            message = messages(lambda: router.route("while the database is away"))
            assert "LogError" in message and not server.is_told_by(message)
        assert time.monotonic() - begin < 2.0 * patience()  # callers are not held up
        server.start()
        time.sleep(0.3)
        again = router.route("and back", call_id="back")  # by itself
        assert router.feedback_by(call_id="back", score=0.5) == "recorded"
        assert router.log.decision(id=again.id).arm == again.model
        server.restart(mode)  # connections that were cut while nobody asked: not one call fails
        assert router.route("at once") and router.follow() == 0
    report = examine(bundle, server.url)
    assert report["decisions"] == 9 and report["rewards"] == 3 and report["log"] == "the PostgreSQL log"
    assert router.retract(made[0].id) == 1 and router.learner.learnt == 2
    text = "odd \x00 \ud800 text"
    odd = Router.load(bundle, RouterOptions(keep_prompts=True), log=server.url)
    assert odd.route(text, call_id="\x00").model in odd.arms
    kept = odd.log.decision(id=odd.route("la même question, 同じ質問", call_id="é").id)
    assert (kept.prompt, kept.call_id) == ("la même question, 同じ質問", "é")
    rng = np.random.default_rng(0)  # an index takes 2,704 bytes; what repeats is packed and fits
    long = b64encode(rng.bytes(3_000)).decode()
    made = [odd.route("a long name", call_id=long + end, session=long + end) for end in "ab"]
    odd.finish(made[0].id, status="answered", cost=1e-4, response_id=long)
    assert odd.log.decision(response_id=long).cost == 1e-4 and odd.named(call_id=long + "b").id == made[1].id
    assert odd.feedback(made[0].id, score=1.0, key=long) == "recorded"
    assert not server.is_told_by(caplog.text)
    for each in (router, odd):
        each.log.close()
