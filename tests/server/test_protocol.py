"""Bytes of a connection as proxies and clients send them: where a request ends, and what comes next."""

from __future__ import annotations

import json
import socket
import time
from contextlib import suppress

import pytest
from server_support import ASK, serving

UPGRADES = [
    b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n",  # Java's client
    b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n",
]


def post(body: bytes, fields: bytes = b"") -> bytes:
    """A request for a chat completion."""
    line = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return line + fields + b"content-length: %d\r\n\r\n" % len(body) + body


def statuses(url: str, pieces: list[bytes]) -> list[int]:
    """Statuses of the answers on one connection to which these pieces are sent."""
    host, port = url.removeprefix("http://").split(":")
    came = b""
    with socket.create_connection((host, int(port)), timeout=2.0) as sock, suppress(TimeoutError):
        for piece in pieces:
            sock.sendall(piece)
            time.sleep(0.05)
        while chunk := sock.recv(65536):
            came += chunk
    return [int(part[:3]) for part in came.split(b"HTTP/1.1 ")[1:]]


@pytest.mark.e2e
def test_a_request_for_an_upgrade_is_answered_by_http_1_and_its_body_is_no_request(place) -> None:
    body = json.dumps(ASK).encode()
    hidden = b"GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    with serving(place) as (_, url):
        for upgrade in UPGRADES:
            asked = post(body, upgrade)
            assert statuses(url, [asked]) == [200]
            assert statuses(url, [asked[: -len(body)], body]) == [200]
            assert statuses(url, [asked + post(body) + asked]) == [200] * 3
            asked = post(hidden, upgrade)
            assert statuses(url, [asked[: -len(hidden)], hidden]) == [400]
        assert statuses(url, [b"CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n"]) == [400]
