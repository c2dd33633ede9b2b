"""What tests of the server share: an application in this process, its log, the models of the small pool."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import requests
from starlette.testclient import TestClient
from tests_support import started

from cabs_core.data.events.log import EventLog
from cabs_server.app import make_app
from tests.gauntlet.stage import serve_command, wait
from tests.servers import free_port

MODELS = ["gpt-4-1106-preview", "gpt-3.5-turbo-1106", "claude-v1", "mistralai_mistral-7b-chat"]
JSON = {"content-type": "application/json"}
#: where applications of tests answer /metrics and the reasons of /readyz without a key
FIGURES = "http://127.0.0.1:9"
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "What is two plus two?"}]}


def client(place, **options) -> TestClient:
    """A client of a server with the bundle, upstreams and log in a folder."""
    app = make_app(
        place / "router",
        options.pop("upstreams", place / "upstreams.yaml"),
        log=str(place / "log.sqlite"),
        every=0.05,
        **{"metrics": FIGURES.removeprefix("http://"), **options},
    )
    return TestClient(app, base_url="http://127.0.0.1")


def log(place) -> EventLog:
    """The server's log."""
    return EventLog(place / "log.sqlite")


def settle(c: TestClient) -> None:
    """Wait for the ends of calls, which are logged while their answers go out."""
    c.app.state.forwarder.worker.wait_idle()


def figure(c: TestClient, name: str) -> float:
    """A figure of `/metrics`, summed over its labels."""
    lines = c.get(f"{FIGURES}/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))


@contextmanager
def serving(place: Path, *options: str, **variables: str):
    """(its process, its URL) of `cabs-router serve`."""
    port = free_port()
    command = serve_command(place / "router", place / "upstreams.yaml", port)
    command += ["--log", str(place / "log.sqlite"), *options]
    settings = {**os.environ, "CABS_HOME": str(place / "home"), **variables}
    with started(command, place / "output.txt", settings) as process:
        url = f"http://127.0.0.1:{port}"

        def lives() -> bool:
            with suppress(requests.RequestException):
                return requests.get(f"{url}/healthz", timeout=2).status_code == 200
            return False

        assert wait(lives, 240.0), (place / "output.txt").read_text()[-2000:]
        yield process, url
