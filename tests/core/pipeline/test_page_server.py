"""Reports over HTTP: finished pages are served, to this machine alone, and nothing else."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from email.message import Message
from pathlib import Path

import pytest

from cabs_core.base.errors import CabsError
from cabs_core.pipeline.artifacts import ArtifactStore
from cabs_core.pipeline.artifacts.materialize import produce
from cabs_core.pipeline.artifacts.provenance import Recipe
from cabs_core.pipeline.page_server import page_server, page_url, reports_url
from cabs_core.pipeline.pages import page_parts
from tests.servers import free_port


@pytest.fixture
def port(cabs_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Port of a server of a report of `tiny` and a leaderboard, and files that are none of its business."""
    store = ArtifactStore()

    def write(parts: tuple[str, ...], text: str) -> None:
        def build(folder: Path) -> dict:
            (folder / "index.html").write_text(text, encoding="utf-8")
            (folder / "verdict.json").write_text("{}")
            return {}

        produce(store, parts, Recipe("report", "", ""), build)

    write(page_parts("tiny"), "<p>the report, café</p>")
    write(page_parts(None), "<p>the leaderboard</p>")
    write(("notes",), "<p>a page of no pool</p>")
    write(("splits", "tiny"), "secret")
    produce(
        store,
        ("data",),
        Recipe("data", "", ""),
        lambda folder: (folder / "t.csv").write_text("secret") and {},
    )
    (store.root / "reports" / "secret.txt").write_text("secret")
    (store.root / "reports" / "tiny" / "unlisted.txt").write_text("secret")
    (store.root / "reports" / "half").mkdir()
    (store.root / "reports" / "half" / "index.html").write_text("secret: not published yet")
    (cabs_home / "secret.txt").write_text("secret")
    number = free_port()
    monkeypatch.setenv("CABS_REPORTS_URL", f"http://127.0.0.1:{number}")
    server = page_server(store)
    assert server is not None and server.server_address == ("127.0.0.1", number)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield number
    server.shutdown()
    server.server_close()
    thread.join()


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, Message, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    parts = answer.status, answer.headers, answer.read().decode("utf-8")
    connection.close()
    return parts


def test_pages_and_the_files_beside_them(port: int) -> None:
    status, headers, text = ask(port, "/tiny/")
    assert (status, text) == (200, "<p>the report, café</p>")
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert int(headers["Content-Length"]) == len(text.encode())
    for path in ("/tiny/index.html", "/tiny/?theme=dark", "/%74iny/"):
        assert ask(port, path)[2] == text
    for path in ("/", "/index.html"):
        assert ask(port, path)[2] == "<p>the leaderboard</p>"
    assert ask(port, "/_notes/")[2] == "<p>a page of no pool</p>"
    status, headers, text = ask(port, "/tiny/verdict.json")
    assert (status, text, headers["Content-Type"]) == (200, "{}", "application/json; charset=utf-8")
    status, headers, text = ask(port, "/tiny/", "HEAD")
    assert status == 200 and text == "" and int(headers["Content-Length"]) > 0


@pytest.mark.parametrize(
    "path",
    [
        "/secret.txt",
        "/tiny/unlisted.txt",
        "/tiny/provenance.json",
        "/half/",
        "/half/index.html",
        "/unknown/",
        "/../../secret.txt",
        "/tiny/../secret.txt",
        "/tiny/%2e%2e/secret.txt",
        "/%2e%2e/%2e%2e/secret.txt",
        "/tiny/..%2fsecret.txt",
        "//etc/passwd",
        "/tiny//etc/passwd",
        "/..",
        "/.",
        "/tiny/..",
        "/%00",
        "/tiny/%00",
        "/tiny\\..\\secret.txt",
        "/reports/tiny/",
        "/tiny/index.html/",
        "/_/",
        "/_splits/tiny/",
        "/_splits/tiny/index.html",
        "/_splits/",
        "/_../",
        "/_notes",
        "/__notes/",
        "/splits/",
        "/_data/t.csv",
    ],
)
def test_nothing_else_is_served(port: int, path: str) -> None:
    status, _, text = ask(port, path)
    assert status == 404 and "secret" not in text and "root:" not in text


def test_only_names_of_this_machine_are_answered(port: int) -> None:
    """A page elsewhere may point a name of its own at 127.0.0.1 and read what it finds."""
    for host in ("127.0.0.1", f"127.0.0.1:{port}", f"localhost:{port}"):
        assert ask(port, "/tiny/", Host=host)[0] == 200
    for host in (
        "evil.example",
        f"evil.example:{port}",
        f"127.0.0.1.evil.example:{port}",
        "",
        "localhost@evil",
    ):
        status, _, text = ask(port, "/tiny/", Host=host)
        assert status == 403 and "the report" not in text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_it_only_reads(port: int, method: str) -> None:
    assert ask(port, "/tiny/", method)[0] == 501


def test_a_busy_port_is_refused_with_what_to_do(port: int) -> None:
    with pytest.raises(CabsError, match=f"port {port} .*CABS_REPORTS_URL=http://127.0.0.1:{port + 1}"):
        page_server(ArtifactStore())


def test_where_reports_are_found(monkeypatch: pytest.MonkeyPatch, cabs_home: Path) -> None:
    monkeypatch.delenv("CABS_REPORTS_URL", raising=False)
    tiny, own = page_parts("tiny"), reports_url()
    assert page_url(tiny) == f"{own}/tiny/" and page_url(page_parts(None)) == f"{own}/"
    assert page_url(("notes",)) == f"{own}/_notes/"
    assert page_url(tiny, "profile.html") == f"{own}/tiny/profile.html"
    monkeypatch.setenv("CABS_REPORTS_URL", "http://127.0.0.1:8080/routing")
    assert page_server(ArtifactStore()) is None
    monkeypatch.setenv("CABS_REPORTS_URL", "https://reports.example.org/routing/")
    assert page_url(tiny) == "https://reports.example.org/routing/tiny/"
    assert page_server(ArtifactStore()) is None
    monkeypatch.setenv("CABS_REPORTS_URL", "")
    assert page_url(tiny) == "" and page_server(ArtifactStore()) is None
    for bad in (
        "javascript:alert(1)",
        "127.0.0.1:3033",
        "http://",
        "http://127.0.0.1:port",
        "http://h:99999",
    ):
        monkeypatch.setenv("CABS_REPORTS_URL", bad)
        with pytest.raises(CabsError, match="CABS_REPORTS_URL is"):
            reports_url()


def test_every_home_has_an_address_of_its_own_that_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CABS_REPORTS_URL", raising=False)
    found = []
    for name in ("first", "second", "first"):
        monkeypatch.setenv("CABS_HOME", str(tmp_path / name))
        found.append(reports_url())
    assert found[0] == found[2] != found[1]
    ports = [int(url.rpartition(":")[2]) for url in found]
    assert all(1024 < port < 32_768 for port in ports)  # no root needed, and none that clients are given
