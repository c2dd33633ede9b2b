"""What behaviours need: servers in processes of their own, a stand-in upstream, PostgreSQL, and what stands
in their logs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import requests

from cabs_core.data.events.log import EventLog
from cabs_core.data.events.rows import Logged
from cabs_core.router.bundle import read_manifest
from tests.servers import free_port, start_provider

ROOT = Path(__file__).parents[2]
#: USD of a usual call of the stand-in, 10 tokens in and 5 out, at these prices
PRICE = {"input": 100.0, "output": 200.0}
USUAL = (10 * PRICE["input"] + 5 * PRICE["output"]) / 1e6
TEXT = "What is two plus two?"


def wait(test: Callable[[], Any], seconds: float = 60.0) -> Any:
    """The first true value of `test`; what it said last where none came in time.

    A minute: what takes a moment on an idle machine takes many on a busy one.
    """
    end = time.monotonic() + seconds
    while not (value := test()) and time.monotonic() < end:
        time.sleep(0.05)
    return value


def serve_command(router: Path, upstreams: Path, port: int) -> list[str]:
    """`cabs-router serve` by this interpreter."""
    command = [sys.executable, "-c", "from cabs_server.main import main; main()", "serve"]
    return [*command, "--router", str(router), "--upstreams", str(upstreams), "--port", str(port)]


def user(content: Any) -> list[dict[str, Any]]:
    """A conversation of one message."""
    return [{"role": "user", "content": content}]


class Server:
    """`cabs-router serve` in a process of its own, before the stand-in upstream.

    Args:
        folder: for all that it writes. router: folder of the bundle. provider: port of the stand-in.
        whole: fields of the upstreams file.
        log: its place; None: a file of its own. options: of the command. environment: variables.
    """

    def __init__(
        self,
        folder: Path,
        router: Path,
        provider: int,
        *,
        whole: Mapping[str, Any] | None = None,
        log: str | None = None,
        options: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
    ):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.router, self.port = folder, router, free_port()
        #: where figures and the reasons of /readyz are read
        self.figures = f"127.0.0.1:{free_port()}"
        self.arms = read_manifest(router, verify=False).names
        #: of its models at the stand-in, in the order of `arms`
        self.names = [f"{folder.name}-{i}" for i in range(len(self.arms))]
        self.provider, self.url = f"http://127.0.0.1:{provider}", f"http://127.0.0.1:{self.port}"
        self.log = log or str(folder / "log.sqlite")
        self.process: subprocess.Popen[bytes] | None = None
        self.http = requests.Session()
        self.http.trust_env = False
        common = {
            "url": f"{self.provider}/v1",
            "price": PRICE,
            "speaks": ["chat", "completions", "responses", "messages"],
        }
        models = {arm: {**common, "model": name} for arm, name in zip(self.arms, self.names, strict=True)}
        file = {
            "breaker": {"cooldown": 0.1},
            "embeddings": {"embed": {"url": f"{self.provider}/v1", "price": PRICE}},
            **(whole or {}),
        }
        (folder / "upstreams.yaml").write_text(json.dumps({"models": models, **file}))
        self.options, self.environment = options, dict(environment or {})
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = serve_command(self.router, self.folder / "upstreams.yaml", self.port)
        keep = {k: v for k, v in os.environ.items() if not k.startswith("CABS_")}
        more = {
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "CABS_HOME": str(self.folder / "home"),
            "CABS_LOG": self.log,  # a URL with a password is taken from here only
            **self.environment,
        }
        with open(self.folder / "output.txt", "ab") as out:
            self.process = subprocess.Popen(
                [*command, "--metrics", self.figures, *self.options],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=keep | more,
                start_new_session=True,
            )
        if not wait(self._lives, 120.0):
            raise RuntimeError(f"it did not start: {self.output()[-1500:]}")

    def _lives(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self.output()[-1500:]
        with suppress(requests.RequestException):
            return self.http.get(f"{self.url}/healthz", timeout=5.0).status_code == 200
        return False

    def kill(self) -> None:
        """End it with all its workers."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(60)

    def output(self) -> str:
        """What it wrote to its standard streams."""
        return (self.folder / "output.txt").read_text("utf-8", "replace")

    def behave(self, words: Mapping[int, str]) -> None:
        """Have models behave as the words of the stand-in say; '' behaves well."""
        self.http.post(f"{self.provider}/behave", json={self.names[i]: w for i, w in words.items()})

    def post(self, path: str, body: Any, **options: Any) -> requests.Response:
        """POST of JSON."""
        return self.http.post(f"{self.url}{path}", json=body, timeout=90.0, **options)

    # -- the stand-in upstream

    @contextmanager
    def behaving(self, words: str | Mapping[int, str], *, but: int | None = None) -> Iterator[None]:
        """All models (but one), or those that are numbered, behave so; afterwards well again, and none is
        left alone."""
        numbers = range(len(self.arms))
        chosen = {i: words for i in numbers if i != but} if isinstance(words, str) else words
        self.behave(chosen)
        try:
            yield
        finally:
            self.behave(dict.fromkeys(numbers, ""))
            wait(lambda: not self.problems())
            for i in chosen:  # the trial that closes a breaker
                self.ask(model=self.arms[i])

    def bill(self) -> list[tuple[int, int, int]]:
        """(calls, tokens in, tokens out) that the stand-in charged for each model."""
        bill = self.http.get(f"{self.provider}/bill").json()
        accounts = [bill.get(name, dict.fromkeys(("charged", "input", "output"), 0)) for name in self.names]
        return [(account["charged"], account["input"], account["output"]) for account in accounts]

    # -- asking

    def ask(
        self, messages: Any = None, *, headers: Mapping[str, str] | None = None, **body: Any
    ) -> requests.Response:
        """One chat completion."""
        sent = {"model": "cabs", "messages": messages or user(TEXT), **body}
        return self.post("/v1/chat/completions", sent, headers=dict(headers or {}))

    def get(self, path: str, **options: Any) -> requests.Response:
        """GET."""
        return self.http.get(f"{self.url}{path}", timeout=60.0, **options)

    def problems(self) -> list[str]:
        """What `/readyz` finds wrong."""
        return list(self.http.get(f"http://{self.figures}/readyz", timeout=60.0).json()["problems"])

    def metrics(self) -> dict[str, float]:
        """{name: its sum over labels} of the figures, and {'name{labels}': value} of each."""
        figures: dict[str, float] = {}
        for line in self.http.get(f"http://{self.figures}/metrics", timeout=60.0).text.splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                figures[name] = float(value)
                if "{" in name:
                    family = name.partition("{")[0]
                    figures[family] = figures.get(family, 0.0) + float(value)
        return figures

    # -- its log

    def rows(self) -> list[Logged]:
        """The log, once every call has ended."""
        events = EventLog(self.log, read_only=not self.log.startswith("postgres"))
        rows: list[Logged] = []

        def ended() -> bool:
            rows[:] = events.decisions()
            return all(d.status != "decided" for d in rows)

        try:
            wait(ended)
            return rows
        finally:
            events.close()


class Stage:
    """Servers, kept for the tests of a module.

    Args:
        folder: for all that is written. routers: {policy: folder of its bundle}.

    Attributes:
        ends: what is done when the module ends, last first.
    """

    def __init__(self, folder: Path, routers: Mapping[str, Path]):
        self.folder, self.routers, self.ends = folder, routers, ExitStack()
        process, self.provider = start_provider()
        self.provider_pid = process.pid
        self.ends.callback(process.wait)
        self.ends.callback(process.kill)
        self._number = 0

    def fresh(self, router: str = "carrot", **options: Any) -> Server:
        """A server of its own."""
        self._number += 1
        made = Server(self.folder / f"s{self._number}", self.routers[router], self.provider, **options)
        self.ends.callback(made.kill)
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.ends.close()
