"""Hostile clients on raw sockets, in a process of their own: keys, and strangers without one.

What strangers do to connections is nginx's to end (`tests/server/test_nginx.py`).

`python -m tests.gauntlet.attacker ATTACK AT_ONCE SECONDS PORT [SECONDS PORT ...]` attacks one port after the
other, with a pause
between them, and prints a port when its attack begins and 0 when it ends.
"""

from __future__ import annotations

import json
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any

#: the key that attacks; the others are in `attacks`
KEY = "key-of-mallory"
LARGE = 19 << 20
#: seconds between two attacks
PAUSE = 0.5
_CHAT = "/v1/chat/completions"


def _post(path: str, body: bytes, *, key: str | None = KEY, length: int | None = None) -> tuple[bytes, bytes]:
    """(head, body) of a request."""
    fields = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json"]
    fields += [f"content-length: {len(body) if length is None else length}"]
    if key:
        fields.append(f"authorization: Bearer {key}")
    return "\r\n".join(fields).encode() + b"\r\n\r\n", body


def _chat(*texts: str, **more: object) -> bytes:
    messages = [{"role": "user", "content": text} for text in texts]
    return json.dumps({"model": "cabs", "messages": messages, **more}, ensure_ascii=False).encode()


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


@cache
def _body(kind: str) -> bytes:
    """A body that is sent; made once, so that the attackers leave the machine to the server."""
    text = {
        "text": lambda: "word " * (LARGE // 5),
        "wide": lambda: "x" * LARGE + "😀" * 100,
        "wider": lambda: ("x" * 700 + "😀") * (LARGE // 704),
    }
    if kind in text:
        return _chat(text[kind]())
    if kind == "texts":  # below every limit of one text
        return _chat(*[("漢" * 900_000 + "x" * 100_000)] * 6)
    if kind == "accents":
        return _chat(*["é" * (2 << 20)] * 4)
    if kind == "objects":  # below every limit of one body
        return b'{"model": "cabs", "messages": [' + b'{"a":1},' * 49_000 + b"{}]}"
    if kind == "many":
        return b'{"model": "cabs", "messages": [' + b"{}," * (LARGE // 3) + b"{}]}"
    if kind == "decision":
        return json.dumps({"text": "word " * (LARGE // 5)}).encode()
    deep = b"[" * 963 + b"]" * 963
    return b'{"model": "cabs", "messages": [{"role": "user", "content": "Hi"}], "stop": ' + deep + b"}"


def _asks(kind: str, path: str = "/v1/chat/completions", **options: Any) -> Callable[[], Iterator[bytes]]:
    """An attack that sends one body and waits for the answer."""
    return lambda: iter(_post(path, _body(kind), **options))


#: who attacks and how -> what a connection sends
ATTACKS: dict[str, Callable[[], Iterator[bytes]]] = {
    "a stranger sends large bodies": _asks("many", key=None),
    "a key sends six million values": _asks("many"),
    "a key sends 49,000 objects": _asks("objects"),
    "a key sends bodies 963 deep": _asks("deep"),
    "a key sends 19 MB of text": _asks("text"),
    "a key sends 19 MB of text with some wide characters": _asks("wide"),
    "a key sends 19 MB of text with many wide characters": _asks("wider"),
    "a key sends six texts of 3 MB of Chinese": _asks("texts"),
    "a key sends four texts of 4 MB of accented letters": _asks("accents"),
    "a key asks for decisions on 19 MB of text": _asks("decision", "/v1/decision"),
    "a key's bodies arrive byte by byte": lambda: _drip(b"".join(_post(_CHAT, b"{", length=LARGE))),
    "a key opens streams and does not read them": lambda: _held(
        b"".join(_post(_CHAT, _chat("word " * 2_000, stream=True)))
    ),
    "a key has large texts repeated and does not read the answers": lambda: _held(
        b"".join(_post(_CHAT, _body("text")))
    ),
    "a key asks the model whose answer unpacks to 1 GB": lambda: iter(
        _post("/v1/embeddings", b'{"model": "bomb", "input": "Hi"}')
    ),
    "a key names others' sessions, responses and calls": lambda: iter(
        [piece for path, body in _names() for piece in _post(path, body)]
    ),
}


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
            for piece in ATTACKS[name]():
                sock.sendall(piece)
                if time.monotonic() > end:
                    break
            sock.settimeout(max(min(2.0, end - time.monotonic()), 0.1))
            while sock.recv(65536) and time.monotonic() < end:
                pass


def main() -> None:
    """Attack with so many clients at once, of each kind one at least."""
    name, count = sys.argv[1], int(sys.argv[2])
    names = list(ATTACKS) if name == "all" else [name]
    for kind in names:
        next(ATTACKS[kind]())  # what is sent is made once, before the attack
    for seconds, port in zip(sys.argv[3::2], sys.argv[4::2], strict=True):
        print(port, flush=True)
        clients = [
            threading.Thread(
                target=attack, args=(names[i % len(names)], int(port), float(seconds)), daemon=True
            )
            for i in range(max(count, len(names)))
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        print(0, flush=True)
        time.sleep(PAUSE)


if __name__ == "__main__":
    main()
