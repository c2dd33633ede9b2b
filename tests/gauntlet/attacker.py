"""A hostile client on raw sockets, in a process of its own: `python -m tests.gauntlet.attacker ATTACK PORT SECONDS AT_ONCE`."""

from __future__ import annotations

import json
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

#: the key that attacks; the others are in `attacks`
KEY = "key-of-mallory"
LARGE = 19 << 20
_GET = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n"
_CHUNKED = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"


def _post(path: str, body: bytes, *, key: str | None = KEY, length: int | None = None) -> bytes:
    fields = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json"]
    fields += [f"content-length: {len(body) if length is None else length}"]
    if key:
        fields.append(f"authorization: Bearer {key}")
    return "\r\n".join(fields).encode() + b"\r\n\r\n" + body


def _chat(text: str, **more: object) -> bytes:
    return json.dumps({"model": "cabs", "messages": [{"role": "user", "content": text}], **more}, ensure_ascii=False).encode()  # fmt: skip


def _endless(first: bytes, piece: bytes) -> Iterator[bytes]:
    yield first
    while True:
        yield piece


def _once(*parts: bytes) -> Iterator[bytes]:
    yield from parts


def _held(first: bytes) -> Iterator[bytes]:
    yield first
    while True:
        time.sleep(0.5)
        yield b""


def _drip(first: bytes) -> Iterator[bytes]:
    yield first
    while True:
        time.sleep(0.2)
        yield b"x"


_MANY = b'{"model": "cabs", "messages": [' + b"{}," * (LARGE // 3) + b"{}]}"
_DEEP = (
    b'{"model": "cabs", "messages": [{"role": "user", "content": "Hi"}], "stop": '
    + b"[" * 963
    + b"]" * 963
    + b"}"
)
#: name -> (who attacks and how -> what a connection sends)
ATTACKS: dict[str, tuple[str, Callable[[], Iterator[bytes]]]] = {
    "fields": ("a stranger's headers never end", lambda: _endless(_GET, b"a:\r\n" * 16384)),
    "field": ("a stranger's header never ends", lambda: _endless(_GET + b"a: ", b"x" * 65536)),
    "path": ("a stranger's path never ends", lambda: _endless(b"GET /", b"x" * 65536)),
    "trailers": ("a stranger's trailers never end", lambda: _endless(_CHUNKED, b"a:\r\n" * 16384)),
    "half": ("a stranger keeps half a head", lambda: _held(_GET)),
    "ahead": ("a stranger does not wait for answers", lambda: _endless(b"", (_GET + b"\r\n") * 1000)),
    "keyless": ("a stranger sends large bodies", lambda: _once(_post("/v1/chat/completions", _MANY, key=None))),
    "values": ("a key sends six million values", lambda: _once(_post("/v1/chat/completions", _MANY))),
    "deep": ("a key sends bodies 963 deep", lambda: _once(_post("/v1/chat/completions", _DEEP))),
    "text": ("a key sends 19 MB of text", lambda: _once(_post("/v1/chat/completions", _chat("word " * (LARGE // 5))))),
    "wide": ("a key sends 19 MB of text with some wide characters", lambda: _once(_post("/v1/chat/completions", _chat("x" * LARGE + "😀" * 100)))),
    "wider": ("a key sends 19 MB of text with many wide characters", lambda: _once(_post("/v1/chat/completions", _chat(("x" * 700 + "😀") * (LARGE // 704))))),
    "decision": ("a key asks for decisions on 19 MB of text", lambda: _once(_post("/v1/decision", json.dumps({"text": "word " * (LARGE // 5)}).encode()))),
    "slow": ("a key's bodies arrive byte by byte", lambda: _drip(_post("/v1/chat/completions", b"{", length=LARGE))),
    "streams": ("a key opens streams and does not read them", lambda: _held(_post("/v1/chat/completions", _chat("word " * 2_000, stream=True)))),
    "bombs": ("a key asks the model whose answer unpacks to 1 GB", lambda: _once(_post("/v1/embeddings", b'{"model": "bomb", "input": "Hi"}'))),
    "names": ("a key names others' sessions, responses and calls", lambda: _once(*(_post(p, b) for p, b in _names()))),
}  # fmt: skip


def _names() -> Iterator[tuple[str, bytes]]:
    """Requests that name what honest clients have named, or will."""
    session = f"honest-{random.randrange(20)}"
    yield "/v1/chat/completions", _chat("Hi", metadata={"session_id": session})
    yield (
        "/v1/responses",
        json.dumps({"model": "cabs", "input": "Hi", "previous_response_id": session}).encode(),
    )
    for path, more in (("/v1/feedback", {"score": 0.0}), ("/v1/feedback/retract", {})):
        for name in ("session", "call_id", "response_id"):
            yield path, json.dumps({name: session, **more}).encode()


def attack(name: str, port: int, seconds: float) -> None:
    """One hostile client: connection after connection until the time is up."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5.0) as sock:
            for piece in ATTACKS[name][1]():
                sock.sendall(piece)
                if time.monotonic() > end:
                    break
            sock.settimeout(max(min(2.0, end - time.monotonic()), 0.1))
            while sock.recv(65536) and time.monotonic() < end:
                pass


def main() -> None:
    """Attack with so many clients at once."""
    name, port, seconds, count = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    names = list(ATTACKS) if name == "all" else [name]
    clients = [
        threading.Thread(target=attack, args=(names[i % len(names)], port, seconds), daemon=True) for i in range(count)
    ]  # fmt: skip
    for client in clients:
        client.start()
    for client in clients:
        client.join()


if __name__ == "__main__":
    main()
