"""A local HTTP server that speaks enough of the model hub (and of a raw-file host) to download from."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class HubState:
    """What the server has and how it misbehaves.

    Faults count down: each request that meets one uses it up.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    commit: str = COMMIT
    cut_after: list[int] = field(default_factory=list)  #: GETs that send only so many bytes, then hang up
    refuse: list[int] = field(default_factory=list)  #: statuses to answer first, to any request
    missing_code: str = "EntryNotFound"
    ignore_ranges: bool = False
    tokens: set[str | None] = field(default_factory=set)  #: Authorization headers seen
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)  #: method, path, Range


class HubServer:
    """Use as a context manager; `url` is the endpoint."""

    def __init__(self) -> None:
        self.state = HubState()
        state = self.state

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: object) -> None:
                pass

            def do_HEAD(self) -> None:
                self.answer(body=False)

            def do_GET(self) -> None:
                self.answer(body=True)

            def answer(self, body: bool) -> None:
                span = self.headers.get("Range")
                state.requests.append((self.command, self.path, span))
                state.tokens.add(self.headers.get("Authorization"))
                if state.refuse:
                    self.plain(state.refuse.pop(0), {"Retry-After": "0"})
                    return
                content = state.files.get(self.path.split("?")[0])
                for revision in (
                    "main",
                    state.commit,
                ):  # hub paths name a revision; both are the same content
                    content = content or state.files.get(
                        self.path.replace(f"/resolve/{revision}/", "/resolve/*/")
                    )
                if content is None:
                    self.plain(404, {"X-Error-Code": state.missing_code})
                    return
                start = 0
                if span and not state.ignore_ranges:
                    start = int(span.removeprefix("bytes=").split("-")[0])
                    if start >= len(content):
                        self.plain(416, {"Content-Range": f"bytes */{len(content)}"})
                        return
                part = content[start:]
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(part)))
                self.send_header("Accept-Ranges", "bytes")
                self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
                self.send_header("X-Repo-Commit", state.commit)
                if start:
                    self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
                self.end_headers()
                if not body:
                    return
                if state.cut_after:
                    self.wfile.write(part[: state.cut_after.pop(0)])
                    self.wfile.flush()
                    self.close_connection = True
                    self.connection.close()
                else:
                    self.wfile.write(part)

            def plain(self, status: int, headers: dict[str, str]) -> None:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # hanging up on the client is part of the tests

        self._server = Quiet(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    def put(self, repo: str, name: str, content: bytes) -> None:
        """A file of a dataset repository, at every revision."""
        self.state.files[f"/datasets/{repo}/resolve/*/{name}"] = content

    def put_raw(self, path: str, content: bytes) -> None:
        """A file of the raw-file host."""
        self.state.files[path] = content

    def gets(self) -> list[tuple[str, str | None]]:
        """Path and Range of the GET requests so far."""
        return [(path, span) for method, path, span in self.state.requests if method == "GET"]

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> HubServer:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
