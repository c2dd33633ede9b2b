"""The real nginx with the file of deploy/nginx in front of `cabs serve`: strangers keep nobody waiting."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any

import pytest
import requests
from server_support import ASK, serving

from tests.servers import free_port, wait_for

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
FILE = Path(__file__).parents[2] / "deploy" / "nginx" / "nginx.conf"
KEY = "key-of-a-colleague"
HEADERS = {"authorization": f"Bearer {KEY}"}
#: key of a program that opens streams and does not read them
CARELESS = "key-of-a-careless-program"
#: model whose streams have large events
LARGE = "gpt-3.5-turbo-1106"
#: address that attacks; colleagues come from 127.0.0.1
STRANGER = "127.0.0.2"
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\ncontent-type: application/json\r\n"
pytestmark = [
    # .ci/run sets CI and installs nginx: without it these tests fail there
    pytest.mark.skipif(NGINX is None and "CI" not in os.environ, reason="needs nginx"),
    pytest.mark.e2e,
    pytest.mark.timeout(300),
]


@contextmanager
def proxied(place: Path, port: int) -> Iterator[str]:
    """URL of nginx in front of a port."""
    mine = free_port()
    places = "".join(
        f"  {name}_temp_path {place / name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    text = FILE.read_text("utf-8")
    text = text.replace("listen 80;", f"listen 127.0.0.1:{mine};")
    text = text.replace("127.0.0.1:8080", f"127.0.0.1:{port}").replace("http {\n", f"http {{\n{places}", 1)
    (place / "nginx.conf").write_text(text)
    directives = f"daemon off; pid {place / 'nginx.pid'}; error_log {place / 'nginx.log'};"
    if os.getuid() == 0:  # else its workers could not write to the test's folder
        directives += " user root;"
    process = subprocess.Popen(
        [str(NGINX), "-p", str(place), "-c", str(place / "nginx.conf"), "-g", directives]
    )
    try:
        wait_for(mine, 20.0)
        yield f"http://127.0.0.1:{mine}"
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture
def router(place: Path) -> Iterator[tuple[int, int]]:
    """(process id, port) of a server with two keys."""
    with serving(place, CABS_SERVER_KEYS=f"app={KEY},careless={CARELESS}") as (process, url):
        yield process.pid, int(url.rpartition(":")[2])


@pytest.fixture
def front(place: Path, router: tuple[int, int]) -> Iterator[str]:
    """URL of nginx in front of that server."""
    with proxied(place, router[1]) as address:
        yield address


def stranger(front: str) -> socket.socket:
    """A connection of a stranger."""
    port = int(front.rpartition(":")[2])
    return socket.create_connection(("127.0.0.1", port), timeout=5.0, source_address=(STRANGER, 0))


def bodies_that_never_come(front: str) -> list[socket.socket]:
    """A thousand heads that promise a body."""
    open_ = []
    for _ in range(1000):
        sock = stranger(front)
        sock.sendall(HEAD + b"content-length: 1000\r\n\r\n")
        open_.append(sock)
    return open_


def half_heads(front: str) -> list[socket.socket]:
    """A thousand heads that do not end."""
    open_ = []
    for _ in range(1000):
        sock = stranger(front)
        sock.sendall(HEAD)
        open_.append(sock)
    return open_


def slow_bodies(front: str) -> list[socket.socket]:
    """Bodies that come byte by byte."""
    open_ = []
    for _ in range(90):
        sock = stranger(front)
        sock.sendall(HEAD + b"content-length: 100000\r\n\r\n")
        open_.append(sock)
    for _ in range(10):
        for sock in open_:
            sock.sendall(b" ")
        time.sleep(0.2)
    return open_


def many_headers(front: str) -> list[socket.socket]:
    """Requests with 5,000 headers."""
    fields = b"".join(b"x-%d: 1\r\n" % i for i in range(5_000))
    for _ in range(50):
        with suppress(OSError), stranger(front) as sock:
            sock.sendall(HEAD + fields + b"\r\n")
            assert b" 400 " in sock.recv(100)
    return []


def too_large(front: str) -> list[socket.socket]:
    """Bodies above the limit."""
    for _ in range(50):
        with suppress(OSError), stranger(front) as sock:
            sock.sendall(HEAD + b"content-length: 30000000\r\n\r\n" + b"x" * 100_000)
            assert b" 413 " in sock.recv(100)
    return []


def too_large_in_chunks(front: str) -> list[socket.socket]:
    """Bodies above the limit whose length no header says."""
    chunk = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
    for _ in range(10):
        with suppress(OSError), stranger(front) as sock:
            sock.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunk * 21)
            assert b" 413 " in sock.recv(100)
    return []


def unread_streams(front: str) -> list[socket.socket]:
    """Thirty streams of large events, of which only the status is read."""
    body = json.dumps({**ASK, "model": LARGE, "stream": True}).encode()
    head = HEAD + f"authorization: Bearer {CARELESS}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    open_ = []
    for _ in range(30):
        sock = stranger(front)
        sock.sendall(head + body)
        assert b" 200 " in sock.recv(15)
        open_.append(sock)
    return open_


ATTACKS = (bodies_that_never_come, half_heads, slow_bodies, many_headers, too_large, too_large_in_chunks)


def check_colleagues(front: str, attack: Callable[[str], list[socket.socket]]) -> None:
    """Check that 19 of 20 requests of a colleague take less than 250 ms during an attack, and all succeed."""
    times: dict[str, list[float]] = {"/healthz": [], "/v1/chat/completions": []}
    statuses: set[int] = set()
    stop = threading.Event()

    def colleague() -> None:
        http = requests.Session()
        while not stop.wait(0.05):
            for path, seen in times.items():
                begin = time.monotonic()
                if path == "/healthz":
                    answer = http.get(f"{front}{path}", timeout=30)
                else:
                    answer = http.post(f"{front}{path}", json=ASK, headers=HEADERS, timeout=30)
                seen.append(time.monotonic() - begin)
                statuses.add(answer.status_code)

    colleague_at_work = threading.Thread(target=colleague)
    colleague_at_work.start()
    try:
        open_ = attack(front)
        time.sleep(2.0)
        for sock in open_:
            sock.close()
    finally:
        stop.set()
        colleague_at_work.join()
    assert statuses == {200}
    for path, seen in times.items():
        waits = sorted(seen)
        assert len(waits) >= 20 and waits[int(0.95 * len(waits))] < 0.25, (path, waits[-5:])


@pytest.mark.parametrize("attack", ATTACKS)
def test_colleagues_are_answered_while_a_stranger_attacks(
    front: str, attack: Callable[[str], list[socket.socket]]
) -> None:
    check_colleagues(front, attack)


class LargeEvents(StreamRequestHandler):
    """An upstream that streams events of 7 MB until nobody takes them; other requests get a short answer."""

    def handle(self) -> None:
        size = 0
        while line := self.rfile.readline().strip().lower():
            if line.startswith(b"content-length:"):
                size = int(line.split(b":")[1])
        is_stream = json.loads(self.rfile.read(size)).get("stream")
        choice = {"index": 0, "finish_reason": None if is_stream else "stop"}
        message = {"role": "assistant", "content": "x" * (7 << 20) if is_stream else "four"}
        choice["delta" if is_stream else "message"] = message
        data = json.dumps({"id": "large", "choices": [choice]}).encode()
        kind = "text/event-stream" if is_stream else "application/json"
        with suppress(OSError):
            self.wfile.write(f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n".encode())
            while is_stream:
                self.wfile.write(b"data: " + data + b"\n\n")
            self.wfile.write(data)


@pytest.fixture
def large_events(place: Path, write_upstreams: Any) -> Iterator[None]:
    """Have such an upstream behind one of the models."""
    with ThreadingTCPServer(("127.0.0.1", 0), LargeEvents) as upstream:
        upstream.daemon_threads = True
        threading.Thread(target=upstream.serve_forever, daemon=True).start()
        write_upstreams({LARGE: {"url": f"http://127.0.0.1:{upstream.server_address[1]}/v1"}})
        yield
        upstream.shutdown()


def memory(process: int) -> int:
    """MB that a process has in memory."""
    pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE") >> 20


@pytest.mark.usefixtures("large_events")
def test_colleagues_are_answered_and_memory_is_spared_while_nobody_reads_streams_of_large_events(
    front: str, router: tuple[int, int]
) -> None:
    most = memory(router[0]) + 100  # a half of what one event of each stream would take
    taken = []

    def attack(front: str) -> list[socket.socket]:
        open_ = unread_streams(front)
        time.sleep(1.0)
        taken.append(memory(router[0]))
        return open_

    check_colleagues(front, attack)
    assert taken[0] < most


def test_streams_pass_as_they_come_and_large_bodies_pass(front: str, write_upstreams: Any) -> None:
    write_upstreams({m: {"model": f"{m}-drips"} for m in ("gpt-3.5-turbo-1106",)})
    time.sleep(1.5)  # the server reads the file again
    body = {**ASK, "model": "gpt-3.5-turbo-1106", "stream": True}
    times = []
    with requests.post(f"{front}/v1/chat/completions", json=body, headers=HEADERS, stream=True) as answer:
        for line in answer.iter_lines():
            if line.startswith(b"data:"):
                times.append(time.monotonic())
    assert len(times) > 3 and times[-1] - times[0] > 0.2
    large = {"messages": [{"role": "user", "content": "two plus two? " + "x" * (15 << 20)}]}
    answer = requests.post(f"{front}/v1/chat/completions", json=large, headers=HEADERS, timeout=60)
    assert answer.status_code == 200


def test_errors_have_the_form_of_the_clients_dialect(front: str, tmp_path: Path) -> None:
    for path, is_anthropic in (("/v1/chat/completions", False), ("/v1/messages", True)):
        large = requests.post(f"{front}{path}", data=b"x" * (21 << 20), headers=HEADERS, timeout=60)
        assert large.status_code == 413 and large.headers["content-type"] == "application/json"
        assert (large.json().get("type") == "error") is is_anthropic and "20 MiB" in large.text
        long = requests.post(f"{front}{path}", headers={**HEADERS, "x": "a" * 65_536}, timeout=5)
        assert long.status_code == 400 and "head" in long.text
        assert (long.json().get("type") == "error") is is_anthropic
    for path in (
        "/metrics",
        "/readyz",
        "/v1/%2e%2e/metrics",
        "//metrics",
        "/METRICS",
        "/chat/completions",
        "/v1",
    ):
        unknown = requests.get(f"{front}{path}", allow_redirects=False, timeout=5)
        assert unknown.status_code == 404 and "/v1/" in unknown.json()["error"]["message"]
    for head in (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n"):
        with stranger(front) as sock:
            sock.sendall(head)
            assert b" 400 " in sock.recv(100)
    (tmp_path / "down").mkdir()
    with proxied(tmp_path / "down", free_port()) as nobody:
        for path, is_anthropic in (("/v1/chat/completions", False), ("/v1/messages", True)):
            away = requests.post(f"{nobody}{path}", json=ASK, headers=HEADERS, timeout=10)
            assert away.status_code == 503 and away.headers["retry-after"] == "1"
            assert (away.json().get("type") == "error") is is_anthropic and "try again" in away.text


def test_a_server_without_keys_refuses_what_nginx_sends(place: Path) -> None:
    with serving(place) as (_, url), proxied(place, int(url.rpartition(":")[2])) as front:
        answer = requests.post(f"{front}/v1/chat/completions", json=ASK, timeout=10)
        assert answer.status_code == 403 and "docs/nginx.md" in answer.text


def test_the_files_for_compose_and_kubernetes_say_what_the_plain_file_says() -> None:
    import yaml

    ingress = yaml.safe_load((FILE.parent / "ingress.yaml").read_text("utf-8"))
    prefix = "nginx.ingress.kubernetes.io/"
    notes = {k.removeprefix(prefix): v for k, v in ingress["metadata"]["annotations"].items()}
    plain = FILE.read_text("utf-8")
    assert f"client_max_body_size {notes['proxy-body-size']};" in plain
    assert f"proxy_read_timeout {notes['proxy-read-timeout']}s;" in plain
    assert f"limit_conn cabs_connections {notes['limit-connections']};" in plain
    assert f"rate={notes['limit-rps']}r/s" in plain
    for name in ("proxy-request-buffering", "proxy-buffering", "proxy-next-upstream"):
        assert f"{name.replace('-', '_')} {notes[name]};" in plain
    compose = yaml.safe_load((FILE.parent / "compose.yaml").read_text("utf-8"))
    assert "router" in compose["services"]["nginx"]["depends_on"]
    assert json.dumps(compose).count("127.0.0.1:8080") == 1
