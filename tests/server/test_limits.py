"""What a stranger, a key and their bodies may cost is bounded before it is read: `server.limits`."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import re
import socket
import threading
import time
import tracemalloc
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from server_support import ASK, JSON, client, log
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from benchmarks.speed.servers import free_port, wait_for
from cabs_core.data.endpoints.person_text import LONGEST
from cabs_server import bodies, limits, streams
from cabs_server.attempt import read_reply
from cabs_server.call import Answer
from cabs_server.callers import Refused
from cabs_server.completions import response_of
from cabs_server.gate import Gate, Room
from cabs_server.protocol import BoundedProtocol
from cabs_server.streams import Events, written_in

ROOT = Path(__file__).parents[2]
POST = b"POST / HTTP/1.1\r\nhost: x\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


async def answer(request):
    """The length of the body, after a while where the query asks for it."""
    size = len(await request.body())
    await asyncio.sleep(float(request.query_params.get("wait", "0")))
    return PlainTextResponse(f"{size} bytes")


@pytest.fixture
def port():
    """Of a server that bounds its connections, in this process."""
    app = Starlette(routes=[Route("/", answer, methods=["GET", "POST"])])
    settings = uvicorn.Config(app, port=free_port(), http=BoundedProtocol, ws="none", log_config=None)
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_for(settings.port)
    yield settings.port
    server.should_exit = True
    thread.join(10)


@contextmanager
def connected(port):
    with closing(socket.create_connection(("127.0.0.1", port), timeout=10)) as sock:
        yield sock


def pour(sock, data: bytes, most: int = 8 << 20) -> tuple[int, bytes]:
    """Send the same data again and again until the server has enough; (bytes that were sent, its answer)."""
    sent = 0
    try:
        while sent < most:
            sock.sendall(data)
            sent += len(data)
    except OSError:
        pass
    return sent, read(sock)


def read(sock, end: bytes = b"") -> bytes:
    """What comes until the connection ends, or until `end` came."""
    got = b""
    try:
        while not (end and end in got) and (data := sock.recv(65536)):
            got += data
    except ConnectionError:
        pass
    return got


#: what never ends -> (how it begins, what follows again and again)
ENDLESS = {
    "fields": (GET[:-2], b"a:\r\n" * 4096),
    "a long field": (GET[:-2] + b"a: ", b"x" * 16384),
    "a long path": (b"GET /", b"x" * 16384),
    "empty lines": (b"", b"\r\n" * 8192),
    "trailers": (CHUNKED + b"1\r\nx\r\n0\r\n", b"a:\r\n" * 4096),
    "a long trailer": (CHUNKED + b"1\r\nx\r\n0\r\na: ", b"x" * 16384),
    "an extension of a chunk": (CHUNKED + b"1;", b"x" * 16384),
}


@pytest.mark.parametrize("part", ENDLESS)
def test_a_head_without_an_end_is_cut_off(port, part):
    first, more = ENDLESS[part]
    with connected(port) as sock:
        sock.sendall(first)
        sent, _ = pour(sock, more)
        assert sent < 8 << 20  # most of it is what the system buffers
    with connected(port) as sock:
        sock.sendall(GET)
        assert b"0 bytes" in read(sock, b"bytes")


def test_a_large_head_is_told_so(port):
    with connected(port) as sock:
        sock.sendall(GET[:-2] + b"".join(b"x-%d: %s\r\n" % (i, b"y" * 7000) for i in range(10)) + b"\r\n")
        assert read(sock).startswith(b"HTTP/1.1 431 ")
    with connected(port) as sock:
        sock.sendall(GET[:-2] + b"a: " + b"x" * 60_000 + b"\r\n\r\n")
        assert b"0 bytes" in read(sock, b"bytes")


def test_half_a_head_is_not_kept(port, monkeypatch):
    monkeypatch.setattr(limits, "HEAD_SECONDS", 0.2)
    for first in (b"", GET[:-2], b"\r\n"):
        with connected(port) as sock:
            sock.sendall(first)
            got = read(sock)
            assert got == b"" or got.startswith(b"HTTP/1.1 408 ")


def test_what_is_honest_goes_on(port, monkeypatch):
    monkeypatch.setattr(limits, "HEAD_SECONDS", 0.2)
    large = b"x" * (5 << 20)
    with connected(port) as sock:
        for _ in range(3):
            sock.sendall(POST + b"content-length: %d\r\n\r\n" % len(large) + large)
            assert b"%d bytes" % len(large) in read(sock, b"bytes")
        # a slow answer, and an empty line after a body as some clients send it
        sock.sendall(POST.replace(b"POST /", b"POST /?wait=0.6") + b"content-length: 1\r\n\r\nx\r\n")
        assert b"1 bytes" in read(sock, b"bytes")
    with connected(port) as sock:
        sock.sendall(GET * 5)
        got = b""
        while got.count(b"0 bytes") < 5:
            got += sock.recv(65536)


def test_requests_ahead_of_answers_are_bounded(port):
    with connected(port) as sock:
        _, got = pour(sock, GET.replace(b"GET /", b"GET /?wait=0.1") + GET * 1000, most=1)
        assert got.count(b"bytes") <= limits.AHEAD + 1


def test_the_connection_that_waited_longest_makes_room(port, monkeypatch):
    monkeypatch.setattr(limits, "connections", lambda: 5)
    idle = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(5)]
    try:
        for sock in idle[:-1]:
            sock.sendall(GET[:-2])
        time.sleep(0.2)
        for _ in range(3):
            with connected(port) as sock:
                sock.sendall(GET)
                assert b"0 bytes" in read(sock, b"bytes")
        assert read(idle[0]) == b""
    finally:
        for sock in idle:
            sock.close()


# -- bodies --------------------------------------------------------------------------------------------------

texts = st.text(st.sampled_from('a,"\\[]{}:é€😀\n'), max_size=8)
values = st.recursive(
    st.one_of(st.none(), st.integers(), texts),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=20,
)


def counted(value, depth=1) -> tuple[int, int]:
    """(commas and opening brackets, depth) of a value's JSON, the plain way."""
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
    if inner is None:
        return 0, 0
    below = [counted(v) for v in inner]
    return 1 + max(len(inner) - 1, 0) + sum(n for n, _ in below), 1 + max((d for _, d in below), default=0)


@given(values, st.integers(0, 30), st.integers(1, 6))
def test_values_are_counted_outside_of_texts(value, most, depth):
    content = json.dumps(value, ensure_ascii=False).encode()
    count, deep = counted(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "VALUES", most)
        patch.setattr(limits, "DEPTH", depth)
        if count > most or deep > depth:
            with pytest.raises(Refused) as refused:
                bodies.check_values(content)
            assert refused.value.status == 400
        else:
            bodies.check_values(content)


def body_of(content):
    """What a request with this body says."""
    return bodies.parse_body([bodies.bounded(bytearray(content))])


@given(st.dictionaries(texts, values), st.booleans(), st.integers(0, 3))
def test_a_body_is_read_as_it_stands(value, ascii_only, escaped):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "SMALL_BODY", 1)
        patch.setattr(limits, "ESCAPED", escaped)
        assert body_of(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


def test_bodies_that_nobody_can_afford():
    wide = '{"a": "' + "😀a" * 20_000 + "x" * (12 << 20) + '"}'
    for content, status in (
        (b'{"messages": [' + b"{}," * 100_000 + b"{}]}", 400),
        (b'{"a":' * 300 + b"1" + b"}" * 300, 400),
        (b'{"a": "' + b'","":"' * 500_000 + b'"}', 400),
        (b'{"a": "' + b"x" * (5 << 20) + b'\\u00e9"}', 413),
        (b'{"a": "\\"\xc3\xa9' + b"x" * (5 << 20) + b'"}', 413),
        (wide.encode(), 413),
        (b"[" * 1_000_000, 400),
        (b"\xff", 400),
    ):
        with pytest.raises(Refused) as refused:
            body_of(content)
        assert refused.value.status == status
    few = json.dumps({"a": "x" * (12 << 20), "b": "😀 and ’"}, ensure_ascii=False).encode()
    assert body_of(few)["b"] == "😀 and ’"
    accents = json.dumps(["é" * (1 << 20)] * 4, ensure_ascii=False).encode()
    assert bodies.bounded(accents) is accents  # escaped it would be three times as long


def test_values_of_a_body_count_for_their_key():
    assert bodies.parsed_size(b'{"a": "%s"}' % (b"x" * 100_000)) < 101_000
    assert bodies.parsed_size(b"[" + b'{"a":1},' * 49_000 + b"1]") > 49_000 * 200
    text = "é" * 100_000  # one character beyond the BMP makes each of them four bytes
    assert bodies.parsed_size(f'["{text}😀"]'.encode()) > 400_000


def test_numbers_that_no_double_holds_are_no_fault_of_the_server(place):
    """Of JSON, rho, a budget, a score; a long integer in a body that goes on is the provider's to judge."""
    paths = {
        '{"text": "two?", "rho": %s}': "/v1/decision",
        '{"text": "two?", "budget": %s}': "/v1/decision",
        '{"id": "a", "score": %s}': "/v1/feedback",
        '{"model": "cabs", "messages": [], "temperature": %s}': "/v1/chat/completions",
    }
    with client(place) as c:
        for number, body in itertools.product(("NaN", "-Infinity", "1e999", "9" * 400), paths):
            reply = c.post(paths[body], content=body % number, headers=JSON)
            goes_on = "temperature" in body and number.isdecimal()
            assert reply.status_code == 200 if goes_on else 400 <= reply.status_code < 500, reply.text


def test_a_packed_body_is_refused_in_words(place):
    with client(place) as c:
        fields = {**JSON, "content-encoding": "gzip"}
        reply = c.post("/v1/decision", content=gzip.compress(b'{"text": "two?"}'), headers=fields)
    assert reply.status_code == 415 and "content-encoding" in reply.json()["error"]["message"]


def test_a_decision_reads_what_a_chat_reads(place):
    with client(place) as c:
        one = c.post("/v1/decision", json={"text": "word " * 100_000}).json()["id"]
        assert log(place).decision(id=one).prompt_length == LONGEST
        too_many = c.post("/v1/chat/completions", json={**ASK, "stop": [[]] * limits.VALUES})
        assert too_many.status_code == 400 and "100000 values" in too_many.json()["error"]["message"]


# -- shares --------------------------------------------------------------------------------------------------


def test_a_key_has_its_share_of_requests(monkeypatch):
    monkeypatch.setattr(limits, "REQUESTS_BY_KEY", 2)
    gate = Gate()
    with gate.request("a"), gate.request("a"):
        with gate.request("b"), pytest.raises(Refused) as refused, gate.request("a"):
            pass
        assert (refused.value.status, refused.value.retry_after) == (429, 1)
    assert not gate.requests


@pytest.fixture
def ten_bytes(monkeypatch):
    """A key has ten bytes, and waits for more for .3 s."""
    monkeypatch.setattr(limits, "BYTES_BY_KEY", 10)
    monkeypatch.setattr(limits, "BODY_SECONDS", 0.3)


def run_on_gate(work):
    """work(gate, room), with room(key) for a request whose client stays, and none left afterwards."""

    async def run():
        gate, stays = Gate(), asyncio.Event().wait
        await work(gate, lambda key: Room(gate, key, stays))
        async with asyncio.timeout(5):
            for key in "ab":
                await Room(gate, key, stays).hold("body", 11)
        gate.close()

    asyncio.run(run())


def test_large_bodies_of_a_key_wait_in_turn(ten_bytes):
    order = []

    async def one(room, name, size, seconds):
        try:
            await room.hold("body", size)
            order.append(name)
            await asyncio.sleep(seconds)
        except Refused as error:
            order.append((name, error.status))
        finally:
            room.close()

    async def work(gate, room):
        calls = [("a", 1, 8, 0.1), ("a", 2, 8, 0.9), ("a", 3, 2, 0), ("a", 4, 9, 0), ("b", 5, 8, 0)]
        await asyncio.gather(*(one(room(key), *rest) for key, *rest in calls))

    run_on_gate(work)
    assert order == [1, 5, 2, 3, (4, 429)]


def test_no_more_than_some_requests_of_a_key_wait(ten_bytes, monkeypatch):
    monkeypatch.setattr(limits, "WAITING_BY_KEY", 1)

    async def work(gate, room):
        first, second, third = room("a"), room("a"), room("a")
        await first.hold("body", 8)
        waits = asyncio.create_task(second.hold("body", 8))
        await asyncio.sleep(0)
        with pytest.raises(Refused, match="1 large requests of the key wait"):
            await third.hold("body", 8)
        first.close()
        await waits
        second.close()

    run_on_gate(work)


def test_requests_that_wait_for_more_do_not_wait_for_each_other(ten_bytes):
    """Two bodies that fill the share, and an answer for each: one has it, then the other; nobody before."""
    order = []

    async def work(gate, room):
        async def one(name, body, answer):
            mine = room("a")
            await mine.hold("body", body)
            await asyncio.sleep(0.01)
            await mine.hold("answer", answer)
            order.append(name)
            await asyncio.sleep(0.01)
            mine.close()

        await asyncio.gather(one(1, 5, 20), one(2, 5, 20), one(3, 1, 0))

    run_on_gate(work)
    assert order == [1, 2, 3]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8))
@settings(max_examples=30, deadline=None)
def test_of_answers_that_grow_one_goes_beyond_the_share(sizes):
    """In turns all of them would: twenty of 32 MiB each have grown to 8 when the first one ends."""
    most = 0

    async def work(gate, room):
        async def one(size):
            nonlocal most
            mine = room("a")
            for bytes_so_far in range(1, size + 1):
                await mine.hold("answer", bytes_so_far, 40)
                most = max(most, gate.shares["a"].bytes)
                await asyncio.sleep(0)
            mine.close()

        await asyncio.gather(*map(one, sizes))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "BYTES_BY_KEY", 10)
        patch.setattr(limits, "STEP", 1)
        run_on_gate(work)
    assert most <= 10 + 40


def test_a_client_that_leaves_waits_no_more(ten_bytes, monkeypatch):
    monkeypatch.setattr(limits, "BODY_SECONDS", 60.0)

    async def work(gate, room):
        first, left = room("a"), asyncio.Event()
        await first.hold("body", 8)

        async def receive():
            await left.wait()
            return {"type": "http.disconnect"}

        second = Room(gate, "a", receive)
        second.read = True
        waits = asyncio.create_task(second.hold("answer", 8))
        await asyncio.sleep(0.01)
        left.set()
        with pytest.raises(Refused):
            await asyncio.wait_for(waits, 5)
        first.close()

    run_on_gate(work)


def test_memory_of_large_requests_goes_back_to_the_system(monkeypatch):
    given_back, goes_on = [], threading.Event()

    def give_back():
        given_back.append(goes_on.wait(10))

    monkeypatch.setattr(limits, "give_back_memory", give_back)

    async def work(gate, room):
        for size in (1, limits.STEP + 1, limits.STEP + 1, limits.STEP + 1):
            mine = room("a")
            await mine.hold("body", size)
            mine.close()
        goes_on.set()

    run_on_gate(work)
    assert given_back == [True]  # once for all that ended meanwhile


parts = st.lists(st.tuples(st.sampled_from(["body", "values", "answer"]), st.integers(1, 12)), max_size=3)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), parts, st.integers(0, 3)), max_size=12))
def test_shares_come_back_whatever_is_raised(calls):
    async def work(gate, room):
        async def one(key, parts, how):
            mine = room(key)
            with gate.request(key):
                try:
                    for part, size in parts:
                        await mine.hold(part, size)
                        await asyncio.sleep(0)
                    if how == 1:
                        raise ValueError
                    if how == 2:
                        raise asyncio.CancelledError
                finally:
                    mine.close()

        ends = await asyncio.gather(*(one(*call) for call in calls), return_exceptions=True)
        assert not gate.requests and not any(isinstance(e, Refused) for e in ends)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "BYTES_BY_KEY", 10)
        run_on_gate(work)


# -- what upstreams write ------------------------------------------------------------------------------------


@given(texts, texts)
def test_what_a_model_wrote_is_counted_as_it_came(content, role):
    answer = {"id": role, "choices": [{"message": {"role": role, "content": content}}], "text": role}
    assert written_in(json.dumps(answer).encode()) == len(json.dumps(content)) + len(json.dumps(role)) - 4


def test_a_large_answer_is_counted_within_its_size():
    answer = b'{"content": "%s"}' % (rb"a\n " * (1 << 19))
    tracemalloc.start()
    try:
        assert written_in(answer) == 4 << 19
        assert tracemalloc.get_traced_memory()[1] < 4 * len(answer)
    finally:
        tracemalloc.stop()


def test_a_large_reply_is_in_memory_twice_at_most():
    size, response = 8 << 20, SimpleNamespace(status=200, headers={})
    tracemalloc.start()
    try:
        text = json.dumps({"id": "r", "choices": [{"message": {"content": "x" * size}}]}).encode()
        holder, before = [text], hash(text)
        del text
        tracemalloc.reset_peak()
        reply = read_reply(holder, response, "chat")
        assert tracemalloc.get_traced_memory()[1] < 2.2 * size
    finally:
        tracemalloc.stop()
    assert (reply.id, reply.wrong, reply.written, hash(reply.content)) == ("r", None, size, before)


def test_a_large_answer_is_sent_as_its_client_takes_it():
    body, sent = bytes(range(256)) * 4096, list[dict]()

    async def send(message):
        sent.append(message)

    async def stays():
        await asyncio.Event().wait()

    response = response_of(Answer(200, {"content-type": "application/json"}, body))
    asyncio.run(response({"type": "http", "asgi": {"spec_version": "2.4"}}, stays, send))
    pieces = [message["body"] for message in sent[1:]]
    assert b"".join(pieces) == body and max(map(len, pieces)) <= limits.SMALL_BODY
    assert dict(sent[0]["headers"])[b"content-length"] == b"%d" % len(body)


@given(st.lists(st.tuples(texts, st.sampled_from(["\n\n", "\r\n\r\n", "\r\r"])), max_size=6), st.data())
def test_events_are_the_same_in_any_pieces(events, data):
    wire = "".join(f"data: {json.dumps(text)}{end}" for text, end in events).encode() + b"data: [DONE]"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=8)))
    whole, pieces = Events("chat"), Events("chat")
    parts = [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)])]
    assert [e for part in parts for e in pieces.feed(part)] == whole.feed(wire)
    assert pieces.end() == whole.end() == b"data: [DONE]" and pieces.seen == len(events) + 1


@pytest.mark.parametrize(
    "pieces", [[b"x" * 1000] * 1000, [b"data: x\n\n" * 50_000], [b"data: x\r\n\r\n" * 50_000]]
)
def test_every_byte_of_a_stream_is_looked_at_about_once(monkeypatch, pieces):
    """A long event in small pieces, and many events in one."""
    looked = 0

    class Counting:
        def search(self, data, begin):
            nonlocal looked
            mark = pattern.search(data, begin)
            looked += (mark.end() if mark else len(data)) - begin
            return mark

    pattern = streams._EMPTY_LINE
    monkeypatch.setattr(streams, "_EMPTY_LINE", Counting())
    events = Events("chat")
    for piece in pieces:
        events.feed(piece)
    assert looked < 3 * sum(map(len, pieces))


def test_the_page_says_what_the_limits_are():
    page = (ROOT / "SECURITY.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| ([\d.,]+(?: (?:KiB|MiB|s))?) \|", page, re.MULTILINE))
    units = {"KiB": 1 << 10, "MiB": 1 << 20, "s": 1.0}
    printed = {
        name: float(text.split()[0].replace(",", "")) * units.get(text.split()[-1], 1)
        for name, text in rows.items()
    }
    expected = {n: float(v) for n, v in vars(limits).items() if n.isupper() and not n.startswith("_")}
    assert printed == expected
