"""A stand-in provider on a port of its own, and pools that ask it."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from aiohttp import web

from cabs_core.data.pool_files import PoolFile, read_pool_file
from cabs_server.stand_in import StandIn, make_prompts, upstreams_text

MODELS = ("tiny", "coder", "writer", "grand")
JUDGE = {
    "kind": "judge",
    "model": "judge",
    "rubric": "The answer must end on the right result.",
    "max_usd": 5,
}
CONTAINS = {"kind": "contains", "column": "answer"}


class Running:
    """A stand-in that is served: its port, and the object with its counts."""

    def __init__(self, port: int, stand_in: StandIn):
        self.port, self.stand_in = port, stand_in

    def counts(self) -> dict[str, Any]:
        """What it counted."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/counts", timeout=10) as reply:
            return json.load(reply)


@contextmanager
def serving(delay: float = 0.0) -> Iterator[Running]:
    """A stand-in in a thread of this process."""
    stand_in, ready, ended = StandIn(delay), threading.Event(), {}

    def run() -> None:
        async def work() -> None:
            runner = web.AppRunner(stand_in.app())
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            ended.update(loop=asyncio.get_running_loop(), stop=asyncio.Event(), port=runner.addresses[0][1])
            ready.set()
            await ended["stop"].wait()
            await runner.cleanup()

        asyncio.run(work())

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(10)
    try:
        yield Running(ended["port"], stand_in)
    finally:
        ended["loop"].call_soon_threadsafe(ended["stop"].set)
        thread.join(10)


def write_pool(
    folder: Path,
    port: int,
    *,
    n: int = 40,
    seed: int = 0,
    models: tuple[str, ...] = MODELS,
    scores: list[dict[str, Any]] | None = None,
    rest: dict[str, Any] | None = None,
    **collect: Any,
) -> PoolFile:
    """A pool file with its prompts and upstreams in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(make_prompts(n, seed)).to_csv(folder / "prompts.csv", index=False)
    asked = tuple(dict.fromkeys((*models, "judge")))
    (folder / "upstreams.yaml").write_text(upstreams_text(port, asked), encoding="utf-8")
    data = {
        "name": "asked",
        "source": {"kind": "collect", "path": "prompts.csv", "columns": {"task": "kind"}},
        "models": list(models),
        "collect": {
            "upstreams": "upstreams.yaml",
            "max_usd": 5,
            "params": {"max_tokens": 100},
            "scores": scores or [CONTAINS],
            **collect,
        },
        "replay": {"rhos": [0, 100], "trials": 2},
        **(rest or {}),
    }
    path = folder / "asked.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return read_pool_file(path)
