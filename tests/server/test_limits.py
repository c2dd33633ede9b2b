"""Limits: what one request, one key and one upstream may take, and in which order work is done."""

from __future__ import annotations

import asyncio
import gc
import gzip
import itertools
import json
import re
import sys
import threading
import tracemalloc
import weakref
import zlib
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_support import ASK, JSON, client, log
from starlette.requests import Request

from cabs_core.data.endpoints.person_text import LONGEST
from cabs_core.data.endpoints.upstreams import Upstreams
from cabs_server import bodies, limits, streams, unpacking
from cabs_server.attempt import read_reply
from cabs_server.call import Answer
from cabs_server.callers import LOCAL, Caller, Refused
from cabs_server.completions import response_of
from cabs_server.connections import Connections
from cabs_server.limits import FairWorker, KeyedBytes, Limits, RequestSlots
from cabs_server.streams import Events, written_in

ROOT = Path(__file__).parents[2]

# -- bodies --------------------------------------------------------------------------------------------------

texts = st.text(st.sampled_from('a,"\\[]{}:é€😀\n'), max_size=8)
values = st.recursive(
    st.one_of(st.none(), st.integers(), texts),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=20,
)


def counted(value, depth=1) -> tuple[int, int]:
    """(objects and lists, depth) of a value, the plain way."""
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
    if inner is None:
        return 0, 0
    below = [counted(v) for v in inner]
    return 1 + sum(n for n, _ in below), 1 + max((d for _, d in below), default=0)


@given(values, st.integers(0, 30), st.integers(1, 6), st.integers(1, 9))
def test_values_are_counted_outside_of_texts(value, most, depth, piece):
    content = json.dumps(value, ensure_ascii=False).encode()
    count, deep = counted(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "_PIECE", piece)
        patch.setattr(limits, "FEWEST_VALUES", most)
        patch.setattr(limits, "BYTES_A_VALUE", 10**9)
        patch.setattr(limits, "DEPTH", depth)
        if count > most or deep > depth:
            with pytest.raises(Refused) as refused:
                bodies.check_values(content)
            assert refused.value.status == 400
        else:
            bodies.check_values(content)


@given(st.dictionaries(texts, values, max_size=5), st.integers(1, 6), st.booleans())
def test_colons_within_texts_name_no_field_twice(body, piece, ascii_only):
    content = json.dumps(body, ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "_PIECE", piece)
        assert bodies.parse_body(content) == body
        if body:
            name = json.dumps(next(iter(body)), ensure_ascii=ascii_only).encode()
            with pytest.raises(Refused, match="twice"):
                bodies.parse_body(b"{%b: 0, %b" % (name, content[1:]))


@given(values, st.integers(0, 40))
def test_values_are_skimmed_as_they_are_but_for_long_texts(value, most):
    content = json.dumps(value, ensure_ascii=False).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "COUNTED", most)
        patch.setattr(bodies, "_BEGINNING", 10)

        def cut(read, whole):
            if isinstance(whole, dict):
                assert read.keys() == whole.keys()
                for name, inner in whole.items():
                    cut(read[name], inner)
            elif isinstance(whole, list):
                assert len(read) == len(whole)
                for one, other in zip(read, whole, strict=True):
                    cut(one, other)
            elif isinstance(whole, str) and len(json.dumps(whole, ensure_ascii=False).encode()) > most:
                assert isinstance(read, str)
            else:
                assert read == whole

        cut(bodies.skimmed(content), value)


def test_an_answer_with_a_long_text_takes_no_memory_beside_its_bytes():
    """A wide character made each of its characters four bytes long."""
    message = {"role": "assistant", "content": "x" * (4 << 20) + "😀"}
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    content = json.dumps({"id": "r", "choices": choices, "usage": usage}, ensure_ascii=False).encode()
    tracemalloc.start()
    try:
        reply = read_reply(content, 200, {}, "chat")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert reply is not None and reply.wrong is None and reply.id == "r" and reply.usage == usage
    assert reply.written > 4 << 20
    failed = content.replace(b'"stop"', b'"error"')
    assert read_reply(failed, 200, {}, "chat").wrong == "broke off (error)"


@pytest.mark.parametrize("value", ["257", '"ab"', "1.5", '{"a": 1}', "[]", '"k%d": 1'])
def test_a_body_of_short_values_takes_little_memory(value):
    """Before a limit held for every size, 20 MiB of numbers became 230 MB, and of short texts 320."""
    count = (4 << 20) // len(value)
    items = ", ".join(value % i if "%" in value else value for i in range(count)).encode()
    content = b'{"a": {%b}}' % items if "%" in value else b'{"a": [%b]}' % items
    tracemalloc.start()
    try:
        with pytest.raises(Refused):
            bodies.parse_body(content)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_body_may_have_as_many_values_as_the_longest_prompts_have_tokens():
    tokens = list(range(300_000))
    assert bodies.parse_body(json.dumps({"input": [tokens]}).encode()) == {"input": [tokens]}


@given(st.dictionaries(texts, values), st.booleans())
def test_fields_that_are_not_changed_go_on_byte_for_byte(value, ascii_only):
    content = json.dumps(value, ensure_ascii=ascii_only, indent=1).encode()
    assert bodies.parse_body(content) == value
    fields = bodies.top_fields(content)
    assert {name: bodies.value_of(field) for name, field in fields.items()} == value
    sent = bodies.encoded(fields | {"model": "small"})
    assert json.loads(sent) == value | {"model": "small"}
    for field in fields.values():
        assert bytes(field) in sent


def test_numbers_and_halves_of_characters_go_on_as_they_came():
    content = b'{"model": "cabs", "n": 1.50, "big": 123456789012345678901234567890}'
    sent = bodies.encoded(bodies.top_fields(content) | {"model": "small"})
    assert b"1.50" in sent and b"123456789012345678901234567890" in sent
    half = b'{"model": "cabs", "stop": "\\ud83d"}'
    assert json.loads(bodies.encoded(bodies.top_fields(half)))["stop"] == "\ud83d"


def test_bodies_with_more_values_than_their_size_warrants():
    for content in (
        b'{"messages": [' + b"{}," * 16_000 + b"{}]}",
        b'{"a":' * 300 + b"1" + b"}" * 300,
        b"[" * 1_000_000,
        b"\xff",
        b"[]",
    ):
        with pytest.raises(Refused) as refused:
            bodies.parse_body(content)
        assert refused.value.status == 400
    tools = [{"type": "function", "function": {"name": f"f{i}", "parameters": {}}} for i in range(2_000)]
    assert bodies.parse_body(json.dumps({"tools": tools}).encode())


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
            goes_on = "temperature" in body and number[0].isdecimal()
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
        too_many = c.post("/v1/chat/completions", json={**ASK, "stop": [[]] * 10_000})
        assert too_many.status_code == 400 and "objects and lists" in too_many.json()["error"]["message"]
        long = c.post(
            "/v1/chat/completions", json={"messages": [{"role": "user", "content": "x" * (21 << 20)}]}
        )
        assert long.status_code == 413 and "20 MiB" in long.json()["error"]["message"]


# -- requests at once ----------------------------------------------------------------------------------------


def test_a_key_and_the_process_have_so_many_requests_at_once():
    async def work():
        slots = RequestSlots(Limits(requests_by_key=2, requests=4))
        with slots.request("a"), slots.request("a"):
            with slots.request("b"), pytest.raises(Refused) as refused, slots.request("a"):
                pass
            assert (refused.value.status, refused.value.retry_after) == (429, 1)
            with slots.request("b"), slots.request("c"):
                with pytest.raises(Refused, match="this worker has 4") as refused, slots.request("d"):
                    pass
            assert (refused.value.status, refused.value.retry_after) == (429, 1)
        with slots.request(LOCAL), slots.request(LOCAL), slots.request(LOCAL):  # without keys: of the process
            pass
        assert not slots.under_way

    asyncio.run(work())


def test_connections_to_upstreams_stay_open_until_cancelled_requests_have_ended():
    """Otherwise the row of a stream says that its upstream broke off, though the server was stopped."""

    async def work():
        connections = Connections(Upstreams(models={}))
        seen = []

        async def stream():
            with connections.slots.request("a"):
                try:
                    await asyncio.sleep(30)
                finally:
                    await asyncio.sleep(0.05)
                    seen.append(connections.client.closed)

        streaming = asyncio.create_task(stream())
        await asyncio.sleep(0)
        streaming.cancel()
        await connections.close()
        assert seen == [False] and connections.client.closed

    asyncio.run(work())


def test_the_lives_check_needs_no_place(place):
    with client(place, requests=1) as c, c.app.state.slots.request("somebody"):
        assert c.post("/v1/chat/completions", json=ASK).status_code == 429
        assert c.get("/healthz").status_code == 200


def test_large_bodies_of_a_key_wait_in_turn_and_others_do_not(monkeypatch):
    async def work():
        room = KeyedBytes(10)
        order = []

        async def one(key, size, name):
            async with room.take(key, size):
                order.append(name)
                await asyncio.sleep(0.02)

        await asyncio.gather(one("a", 30, "first"), one("a", 6, "second"), one("b", 6, "other"))
        assert order == ["first", "other", "second"] and not room.taken
        monkeypatch.setattr(limits, "BODY_SECONDS", 0.05)
        async with room.take("a", 10):
            with pytest.raises(Refused) as refused:
                async with room.take("a", 1):
                    pass
        assert (refused.value.status, refused.value.retry_after) == (429, 1)
        assert not room.taken

    asyncio.run(work())


def test_a_key_may_fill_its_room_to_the_last_byte_and_a_refusal_names_the_room(monkeypatch):
    monkeypatch.setattr(limits, "BODY_SECONDS", 0.05)

    async def work():
        room = KeyedBytes(3 << 20)
        async with room.take("a", 2 << 20), room.take("a", 1 << 20):
            assert room.taken["a"] == 3 << 20
            with pytest.raises(Refused, match="under way have 3 MiB"):
                async with room.take("a", 1):
                    pass

    asyncio.run(work())


@pytest.mark.parametrize("name", ["text", "messages"])
def test_a_large_decision_waits_for_the_thread_of_large_bodies_and_a_small_one_does_not(place, name):
    free = threading.Event()

    def decision(text):
        return {"text": text} if name == "text" else {"messages": [{"role": "user", "content": text}]}

    with client(place) as c, ThreadPoolExecutor(1) as pool:
        c.app.state.forwarder.reader.submit("somebody", free.wait)
        try:
            large = pool.submit(c.post, "/v1/decision", json=decision("word " * 10_000))
            assert c.post("/v1/decision", json=decision("Hi")).status_code == 200
            wait([large], 0.2)
            assert not large.done()
        finally:
            free.set()
        assert large.result().status_code == 200


class Content:
    """Stand-in for the bytes of a body, to which there are no weak references."""


def test_work_is_done_of_each_key_in_turn():
    worker, order, go = FairWorker("test"), list[str](), threading.Event()
    worker.submit("a", go.wait)
    for i in range(3):
        worker.submit("a", lambda i=i: order.append(f"a{i}"))
    given_up = worker.submit("a", lambda: order.append("given up"))
    worker.submit("b", lambda: order.append("b0"))
    broken = worker.submit("b", lambda: 1 / 0)
    given_up.cancel()
    go.set()
    worker.wait_idle()
    assert order.index("b0") <= 1 and [name for name in order if name != "b0"] == ["a0", "a1", "a2"]
    assert isinstance(broken.exception(), ZeroDivisionError)
    worker.close()
    with pytest.raises(RuntimeError):
        worker.submit("a", bool)


def test_what_failed_work_had_read_is_let_go_before_garbage_is_collected():
    content = Content()
    held = weakref.ref(content)

    def refuse(content):
        raise Refused(400, f"{content} has too many values")

    async def work(content):
        worker = FairWorker("test")
        with pytest.raises(Refused):
            await worker.run("a", refuse, content)
        worker.close()

    gc.disable()
    try:
        asyncio.run(work(content))
        del content
        assert held() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_a_process_has_threads_take_turns_often_and_glibc_give_freed_blocks_of_a_mib_back(
    monkeypatch, platform
):
    intervals, settings = list[float](), list[tuple[int, int]]()
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(sys, "setswitchinterval", intervals.append)
    libc = SimpleNamespace(mallopt=lambda *setting: settings.append(setting))
    monkeypatch.setattr(limits.ctypes, "CDLL", lambda name: libc)
    limits.prepare_process()
    assert intervals == [0.001]
    assert settings == ([(-3, 1 << 20)] if platform == "linux" else [])  # M_MMAP_THRESHOLD of malloc.h


# -- what upstreams write ------------------------------------------------------------------------------------


class Body:
    """The body of a response, in chunks."""

    def __init__(self, chunks, encoding):
        self.chunks, self.headers = chunks, {"content-encoding": encoding}
        self.content = SimpleNamespace(iter_any=self._iterate)

    async def _iterate(self):
        for chunk in self.chunks:
            yield chunk


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [("identity", bytes), ("gzip", gzip.compress), ("deflate", zlib.compress)],
)
def test_no_piece_of_an_answer_is_larger_than_a_piece(encoding, pack):
    text = bytes(range(256)) * 5_000 + bytes(1 << 20)

    async def work():
        packed = pack(text)
        body = Body([packed[i : i + 7_000] for i in range(0, len(packed), 7_000)], encoding)
        return [piece async for piece in unpacking.Unpacked(body)]

    pieces = asyncio.run(work())
    assert b"".join(pieces) == text and max(map(len, pieces)) <= limits.PIECE


@pytest.mark.parametrize("size", [1, 19, 20, 21, 10_000])
@pytest.mark.parametrize(
    "texts", [(b"a", b"b"), (b"", b"b"), (b"", b"", b"c", b""), (b"", b""), (bytes(limits.PIECE), b"b")]
)
def test_a_body_of_several_packed_parts_is_unpacked_whole_also_where_parts_are_empty(texts, size):
    packed = b"".join(map(gzip.compress, texts))
    chunks = [packed[i : i + size] for i in range(0, len(packed), size)]

    async def work():
        return [piece async for piece in unpacking.Unpacked(Body(chunks, "gzip"))]

    assert b"".join(asyncio.run(work())) == b"".join(texts)


def test_others_get_turns_while_a_small_answer_becomes_a_large_one():
    packed = gzip.compress(bytes(8 << 20))
    turns = itertools.count()

    async def others():
        while True:
            next(turns)
            await asyncio.sleep(0)

    async def work():
        working = asyncio.create_task(others())
        async with AsyncExitStack() as resources:
            body = Body([packed], "gzip")
            body.content_length = len(packed)
            answers = KeyedBytes(limits.BYTES_BY_KEY)
            content = await unpacking.read_whole(body, answers, "key", resources)
        working.cancel()
        return content

    assert asyncio.run(work()) == bytes(8 << 20)
    assert next(turns) > 100


def test_a_large_answer_takes_its_size_while_it_is_read():
    pieces = [bytes(limits.PIECE)] * 128

    async def work():
        async with AsyncExitStack() as resources:
            body = Body(pieces, "identity")
            body.content_length = 8 << 20
            return await unpacking.read_whole(body, KeyedBytes(limits.BYTES_BY_KEY), "key", resources)

    assert most_memory(work) < 10 << 20


def test_a_large_body_takes_its_size_while_it_is_read():
    chunks = [{"type": "http.request", "body": bytes(limits.PIECE), "more_body": i < 127} for i in range(128)]

    async def work():
        waiting = iter(chunks)

        async def receive():
            return next(waiting)

        async with AsyncExitStack() as large:
            app = SimpleNamespace(state=SimpleNamespace(slots=RequestSlots()))
            state = {"caller": Caller("key"), "large": large}
            scope = {"type": "http", "method": "POST", "headers": [], "app": app, "state": state}
            return await bodies.read_body(Request(scope, receive))

    assert most_memory(work) < 10 << 20


def most_memory(work) -> int:
    """Most bytes that a coroutine that returns 8 MiB has had."""

    async def measured():
        tracemalloc.start()
        try:
            content = await work()
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert content == bytes(8 << 20)
        return most

    return asyncio.run(measured())


@pytest.mark.parametrize(("encoding", "content"), [("br", b"x"), ("gzip", b"not packed")])
def test_an_answer_that_is_packed_otherwise_is_no_answer(encoding, content):
    async def work():
        return [piece async for piece in unpacking.Unpacked(Body([content], encoding))]

    with pytest.raises(ValueError, match="packed"):
        asyncio.run(work())


def test_a_long_event_passes_on_in_pieces_and_the_events_after_it_are_read():
    events = Events("chat")
    long = b'data: {"choices": [], "error": "' + b"x" * (7 << 20) + b'"}\n\n'
    after = b'data: {"id": "r", "choices": [], "usage": {"prompt_tokens": 1}}\n\n'
    wire, passed, held = long + after + b"data: [DONE]\n\n", [], 0
    for begin in range(0, len(wire), limits.PIECE):
        passed += events.feed(wire[begin : begin + limits.PIECE])
        held = max(held, len(events._rest))
    assert b"".join(passed) == wire and held <= limits.EVENT + limits.PIECE
    assert events.done and events.error is None and events.usage == {"prompt_tokens": 1} and events.seen == 3


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


def test_a_large_answer_is_sent_as_its_client_takes_it():
    body, sent = bytes(range(256)) * 4096, list[dict]()

    async def send(message):
        sent.append(message)

    async def stays():
        await asyncio.Event().wait()

    response = response_of(Answer(200, {"content-type": "application/json"}, body))
    asyncio.run(response({"type": "http", "asgi": {"spec_version": "2.4"}}, stays, send))
    pieces = [message["body"] for message in sent[1:]]
    assert b"".join(pieces) == body and max(map(len, pieces)) <= limits.PIECE
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

    def counting(data, begin):
        nonlocal looked
        cut = end_of(data, begin)
        looked += (cut if cut >= 0 else len(data)) - begin
        return cut

    end_of = streams._end
    monkeypatch.setattr(streams, "_end", counting)
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
    numbers = {n: v for n, v in vars(limits).items() if n.isupper() and isinstance(v, int | float)}
    expected = {name: float(value) for name, value in {**numbers, **vars(Limits())}.items()}
    expected = {name: value for name, value in expected.items() if not name.startswith("_")}
    assert printed == expected
