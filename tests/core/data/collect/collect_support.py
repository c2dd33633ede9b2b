"""A stand-in provider on a port of its own, and pools that ask it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import uvicorn
import yaml

from cabs_core.data.pool_files import PoolFile, read_pool_file
from tests.stand_in.models import make_prompts, upstreams_text
from tests.stand_in.server import StandIn

MODELS = ("tiny", "coder", "writer", "grand")
JUDGE = {
    "kind": "judge",
    "model": "judge",
    "rubric": "The answer must end on the right result.",
    "max_usd": 5,
}
CONTAINS = {"kind": "contains", "column": "answer"}


class Running:
    """A stand-in that is served: its port, and its bill."""

    def __init__(self, port: int, stand_in: StandIn):
        self.port, self.bill = port, stand_in.bill

    def requests(self) -> dict[str, int]:
        """Requests by model."""
        return {model: account.requests for model, account in self.bill.items()}

    def again(self) -> int:
        """Calls that were charged, whose prompt the model had been charged for before."""
        return sum(account.again for account in self.bill.values())

    def answered(self) -> int:
        """Pairs of model and prompt that were charged."""
        return sum(account.charged for account in self.bill.values()) - self.again()


@contextmanager
def serving(delay: float = 0.0) -> Iterator[Running]:
    """A stand-in in a thread of this process."""
    stand_in = StandIn(delay)
    server = uvicorn.Server(uvicorn.Config(stand_in.app, access_log=False, log_level="critical"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield Running(listening.getsockname()[1], stand_in)
        finally:
            server.should_exit = True
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
