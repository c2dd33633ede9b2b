"""Whatever is raised in a call, and wherever: its cap, breaker, row, span and stream end, and its bill is
right."""

from __future__ import annotations

import asyncio
import errno
import gc
import gzip
import json
import threading
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from server_support import MODELS, client

from cabs_core.base.errors import LogError, RouterError
from cabs_core.data.endpoints.request import ChatRequest
from cabs_core.data.endpoints.upstreams import Upstream
from cabs_server import attempt, call, limits
from cabs_server.breaker import Breaker
from cabs_server.call import Call
from cabs_server.cap import Cap
from cabs_server.forwarding import Forwarder
from cabs_server.metrics import Counters
from cabs_server.streams import Events
from cabs_server.tracing import Span, Tracer

#: places of a call at which something is raised, before and after they do their work
PLACES = [
    (owner, name)
    for owner, names in (
        (Breaker, "begin"),
        (Tracer, "start"),
        (Span, "headers end"),
        (Upstream, "headers body bill most_usd"),
        (Counters, "call add observe"),
        (Events, "feed end"),
        (attempt, "encoded read_reply judge meaning check_answer error_event"),
        (call, "estimate_tokens"),
        (aiohttp.ClientSession, "post"),
        (aiohttp.ClientResponse, "release"),
        (Call, "answer failed"),
        (Cap, "begin add"),
        (ChatRequest, "read"),
        (Forwarder, "_settle _failure fit"),
    )
    for name in names.split()
]
RAISED = [
    *(ValueError, KeyError, RuntimeError, TimeoutError, MemoryError, RecursionError, AssertionError),
    *(aiohttp.ClientError, asyncio.CancelledError, RouterError, LogError, ConnectionResetError),
]
USAGE = {"prompt_tokens": 10, "completion_tokens": 5}
#: USD of an answer that reports this usage, at the prices of `place`
USUAL = (10 * 100 + 5 * 200) / 1e6
CHOICE: dict[str, Any] = {
    "index": 0,
    "message": {"role": "assistant", "content": "ok"},
    "finish_reason": "stop",
}
GOOD = json.dumps({"id": "r", "choices": [CHOICE], "usage": USAGE}).encode()
EVENTS = (
    b"".join(
        b"data: %s\n\n"
        % json.dumps({"id": "r", "choices": [{"index": 0, "delta": {"content": c}}], **more}).encode()
        for c, more in (("a", {}), ("b", {}), ("", {"usage": USAGE}))
    )
    + b"data: [DONE]\n\n"
)

names = st.text("abcXYZ-_09", min_size=1, max_size=8).map(lambda name: f"x-ratelimit-{name}")
headers = st.dictionaries(
    names | st.sampled_from(["x-request-id", "content-type", "openai-version"]),
    st.text(st.characters(blacklist_characters="\r\n\0", blacklist_categories=("Cs",)), max_size=8),
    max_size=3,
)
answers = st.one_of(
    st.just((200, GOOD)),
    st.just((200, EVENTS)),
    st.tuples(st.sampled_from([200, 204, 302, 400, 429, 500, 600, 999]), st.binary(max_size=40)),
)
bodies = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=5)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


class Upstreams:
    """An upstream on a raw socket that answers as it is told; `sent` counts answers that went out whole."""

    def __init__(self) -> None:
        self.status, self.headers, self.body = 200, dict[str, str](), GOOD
        self.asked = 0

    async def serve(self, reader, writer):
        with suppress(Exception):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                fields = dict(line.split(b":", 1) for line in head.lower().split(b"\r\n") if b":" in line)
                size = int(fields.get(b"content-length", 0))
                await reader.readexactly(size)
                self.asked += 1
                kind = "text/event-stream" if self.body.startswith(b"data:") else "application/json"
                fields = {"content-type": kind, "content-length": str(len(self.body)), **self.headers}
                lines = [f"HTTP/1.1 {self.status} Said".encode()] + [
                    f"{k}: {v}".encode() for k, v in fields.items()
                ]
                writer.write(b"\r\n".join(lines) + b"\r\n\r\n" + self.body)
                await writer.drain()
        writer.close()


@pytest.fixture
def served(place, write_upstreams):
    """call(work) runs work(app, upstream) in an event loop that the server lives in."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    upstream = Upstreams()

    @asynccontextmanager
    async def living():
        server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        write_upstreams(
            {m: {"url": url, "timeout": 5.0} for m in MODELS}, breaker={"failures": 1, "cooldown": 0.0}
        )
        app = client(place, budget_cap_per_day=1e6).app
        async with app.router.lifespan_context(app):
            app.state.forwarder.own_breaker = Breaker(failures=10**6)
            yield app
        server.close()

    manager = living()

    def call(work):
        return asyncio.run_coroutine_threadsafe(work, loop).result(60)

    app = call(manager.__aenter__())
    yield lambda work: call(work(app, upstream))
    call(manager.__aexit__(None, None, None))
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)


async def ask(
    app,
    body: dict[str, Any],
    *,
    leaves: int | None = None,
    takes: asyncio.Event | None = None,
    sent: dict[str, str] | None = None,
):
    """A request as uvicorn hands it over; its answer's messages.

    Args:
        leaves: the client leaves before it takes so many messages. takes: set where it takes any.
    """
    content = json.dumps(
        {"model": "cabs", "messages": [{"role": "user", "content": "two plus two?"}], **body}
    ).encode()
    fields = {
        "host": "127.0.0.1",
        "content-type": "application/json",
        "content-length": str(len(content)),
        **(sent or {}),
    }
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "raw_path": b"",
        "scheme": "http",
        "root_path": "",
        "query_string": b"",
        "headers": [(k.encode(), v.encode()) for k, v in fields.items()],
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "state": {},
    }
    messages: list[dict[str, Any]] = []
    left, was_sent = asyncio.Event(), False

    async def receive():
        nonlocal was_sent
        if not was_sent:
            was_sent = True
            return {"type": "http.request", "body": content, "more_body": False}
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        if takes is not None:
            await takes.wait()
        if leaves is not None and len(messages) >= leaves:
            left.set()
            await asyncio.sleep(0)
            raise OSError("the client went away")
        messages.append(message)

    with suppress(Exception, asyncio.CancelledError):
        await app(scope, receive, send)
    return messages


async def ended(app, after: int = 0) -> list[Any]:
    """Rows of the log, once what was handed to the thread is done, when nothing is under way any more."""
    state = app.state
    log = state.keeper.router.log
    for _ in range(200):
        await asyncio.to_thread(state.forwarder.worker.wait_idle)
        rows = log.decisions(after)
        if all(row.status != "decided" for row in rows):
            break
        await asyncio.sleep(0.01)
    reserved = log.database.transaction(lambda run: run("SELECT COUNT(*) FROM reserved").fetchone())
    assert [row.status for row in rows if row.status == "decided"] == []
    assert (state.cap.held, reserved[0], dict(state.slots.under_way)) == ({}, 0, {})
    for breaker in state.forwarder.breakers.values():
        assert breaker.state != "half-open" or breaker.allows()
    return rows


@pytest.mark.parametrize(("owner", "name"), PLACES)
def test_every_place_where_an_error_is_raised_exists(owner, name):
    assert callable(getattr(owner, name))


def raising(patch, place, error, number, *, after):
    """Have a function raise at its call of this number, before or after its work."""
    holder, name = place
    original, count = getattr(holder, name), iter(range(10**6))

    def wrapped(*arguments, **keywords):
        here = next(count) == number
        if here and not after:
            raise error("on purpose")
        result = original(*arguments, **keywords)
        if here:
            if asyncio.iscoroutine(result) or name == "post":
                result.close()  # nobody will await it
            raise error("on purpose")
        return result

    patch.setattr(holder, name, staticmethod(wrapped) if name == "read" else wrapped)


plans = st.fixed_dictionaries(
    {
        "place": st.none() | st.sampled_from(PLACES),
        "error": st.sampled_from(RAISED),
        "number": st.integers(0, 2),
        "after": st.booleans(),
        "leaves": st.none() | st.integers(0, 3),
        "answer": answers,
        "headers": headers,
        "stream": st.booleans(),
        "body": st.dictionaries(st.sampled_from(["tools", "stop", "user", "metadata"]), bodies, max_size=2),
    }
)


def check(served, plan):
    async def work(app, upstream):
        upstream.status, upstream.body = plan["answer"]
        upstream.headers = plan["headers"]
        log = app.state.keeper.router.log
        last, bill = log.played(0, [])[0], upstream.asked
        with pytest.MonkeyPatch.context() as patch:
            if plan["place"] is not None:
                raising(patch, plan["place"], plan["error"], plan["number"], after=plan["after"])
            messages = await ask(app, {**plan["body"], "stream": plan["stream"]}, leaves=plan["leaves"])
            rows = await ended(app, last)
        asked = upstream.asked - bill
        assert sum(row.cost is not None for row in rows) <= asked  # what was not sent costs nothing
        whole = upstream.status == 200 and (
            upstream.body == EVENTS if plan["stream"] else upstream.body == GOOD
        )
        if whole and plan["place"] is None and "content-type" not in plan["headers"]:
            (row,) = rows
            assert plan["leaves"] is not None or messages[0]["status"] == 200
            if row.status == "answered":
                assert row.cost == pytest.approx(USUAL) and asked == 1
        for message in messages[:1]:
            assert 200 <= message["status"] < 600
            for name, value in message["headers"]:
                assert name.decode("ascii") and not set(value) & (set(range(32)) - {9})

    served(work)


@settings(max_examples=60, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(plans)
def test_whatever_is_raised_every_begin_has_an_end(served, plan):
    check(served, plan)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=1_500, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(plans)
def test_many_times(served, plan):
    check(served, plan)


def test_an_answer_with_odd_headers_and_status_comes_through(served):
    async def work(app, upstream):
        upstream.headers = {"x-request-id": "€uro", "x-ratelimit-left": "1\x01", "openai-version": "é"}
        (start, *_) = await ask(app, {})
        assert start["status"] == 200 and dict(start["headers"])[b"openai-version"] == "é".encode("latin-1")
        assert b"x-upstream-request-id" not in dict(start["headers"])
        upstream.headers = {}
        for status in (600, 999):
            upstream.status = status
            (start, *_) = await ask(app, {})
            assert start["status"] == 502
        await ended(app)

    served(work)


def test_a_large_answer_keeps_others_of_the_key_waiting_until_it_was_sent(served, monkeypatch):
    monkeypatch.setattr(limits, "COUNTED", 1)

    async def work(app, upstream):
        app.state.slots.answers.most = len(GOOD)
        takes = asyncio.Event()
        first = asyncio.create_task(ask(app, {}, takes=takes))
        while not upstream.asked:
            await asyncio.sleep(0.01)
        second = asyncio.create_task(ask(app, {}))
        done, _ = await asyncio.wait({first, second}, timeout=0.5)
        assert not done
        takes.set()
        answers = await asyncio.gather(first, second)
        assert [start["status"] for start, *_ in answers] == [200, 200]

    served(work)


@contextmanager
def uncollected(kind: type):
    """Gives a function: objects of a class that were made inside and that only a collection would free."""
    gc.freeze()  # those of other tests are not looked at
    gc.disable()
    try:
        yield lambda: [o for o in gc.get_objects() if type(o) is kind]
    finally:
        gc.enable()
        gc.unfreeze()


def test_a_request_that_has_ended_is_not_kept(served):
    async def work(app, upstream):
        for body in ({}, {"stream": True}):
            upstream.body = EVENTS if body else GOOD
            with uncollected(call.ClientRequest) as asks:
                await ask(app, body)
                await ended(app)
                assert not asks()

    served(work)


def test_an_answer_that_unpacks_to_too_much_is_not_kept(served, monkeypatch):
    monkeypatch.setattr(limits, "ANSWER", 1 << 20)

    async def work(app, upstream):
        upstream.headers, upstream.body = {"content-encoding": "gzip"}, gzip.compress(b" " * (64 << 20))
        (start, *_) = await ask(app, {})
        rows = await ended(app)
        assert start["status"] == 502 and all(r.reason and r.status == "error" for r in rows)
        upstream.body = gzip.compress(b'{"choices": [' + b"{}," * 50_000 + b"{}]}")
        (start, *_) = await ask(app, {})
        assert start["status"] == 502

    served(work)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM, errno.EADDRNOTAVAIL])
def test_what_this_machine_lacks_opens_no_breaker_and_costs_nothing(served, monkeypatch, number):
    async def work(app, upstream):
        async def without(self, *arguments, **keywords):
            key = aiohttp.client_reqrep.ConnectionKey("h", 80, False, True, None, None, None)
            raise aiohttp.ClientConnectorError(key, OSError(number, "no more"))

        monkeypatch.setattr(aiohttp.ClientSession, "post", without)
        for _ in range(5):
            (start, *_) = await ask(app, {})
            assert start["status"] == 503
        rows = await ended(app)
        assert {(r.status, r.cost) for r in rows} == {("error", None)} and upstream.asked == 0
        assert {b.state for b in app.state.forwarder.breakers.values()} == {"closed"}

    served(work)
