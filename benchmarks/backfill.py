"""`python -m benchmarks.backfill`: how long a stock `dagster dev` takes for a backfill that has nothing to
compute.

The backfill is requested over GraphQL, as Dagster's page does it. Dagster's daemon looks for backfills every
30 s, and every partition is a run.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import requests

from benchmarks.script import Script, write_figures
from cabs_core.base.errors import CabsError
from cabs_core.data.pools.registry import active_pool
from cabs_core.pipeline.artifacts import ArtifactStore, Chain

_LAUNCH = """mutation($p: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $p) {
  __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""
_PROGRESS = """query($id: String!) { partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill {
  status runs { status creationTime endTime } } } }"""
_READY = "{ repositoriesOrError { ... on RepositoryConnection { nodes { name } } } }"
_LONGEST = 1800.0


class DevServer:
    """`cabs ui` in a process group of its own, on free ports of 127.0.0.1; its log is `dev.log` in `home`."""

    def __init__(self, home: Path, environment: Mapping[str, str]):
        home.mkdir(parents=True, exist_ok=True)
        self.home, self.log = home, home / "dev.log"
        with socket.socket() as free, socket.socket() as other:
            free.bind(("127.0.0.1", 0))
            other.bind(("127.0.0.1", 0))
            port, beside = free.getsockname()[1], other.getsockname()[1]
        self.url, self.reports = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{beside}"
        code = f"from cabs_dagster.cli import main; main(['ui', '--port', '{port}'])"
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                env={**environment, "CABS_REPORTS_URL": self.reports},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def query(self, text: str, **variables: Any) -> dict[str, Any]:
        """The data of a GraphQL query. Raises CabsError when Dagster answers with errors."""
        body: dict[str, Any] = {"query": text, "variables": variables}
        answer = requests.post(f"{self.url}/graphql", json=body, timeout=60).json()
        if "errors" in answer:
            raise CabsError(f"{self.url} refused a query: {answer['errors'][0]['message']}")
        data: dict[str, Any] = answer["data"]
        return data

    def ready(self) -> bool:
        """Whether the code location is loaded. Raises CabsError when the server ended."""
        if self.process.poll() is not None:
            raise CabsError(f"dagster dev ended:\n{self.log.read_text(errors='replace')[-4000:]}")
        try:
            return bool(self.query(_READY)["repositoriesOrError"].get("nodes"))
        except requests.RequestException:
            return False

    def backfill(self, asset: str, partitions: Sequence[str]) -> str:
        """Ask for a backfill of one asset; returns its id. Raises CabsError when it is refused."""
        params = {"assetSelection": [{"path": asset.split("/")}], "partitionNames": list(partitions)}
        answer = self.query(_LAUNCH, p=params)["launchPartitionBackfill"]
        if "backfillId" not in answer:
            raise CabsError(f"the backfill was refused: {answer}")
        return str(answer["backfillId"])

    def runs_of(self, backfill: str) -> list[dict[str, Any]]:
        """Status and times (seconds since 1970) of a backfill's runs; an empty list until the backfill has
        ended."""
        progress = self.query(_PROGRESS, id=backfill)["partitionBackfillOrError"]
        return progress["runs"] if progress["status"].startswith(("COMPLETED", "FAILED", "CANCELED")) else []

    def stop(self) -> None:
        """Send SIGTERM, wait up to a minute, then kill what is left of the process group."""
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=60)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def measure(pool: str) -> dict[str, Any]:
    """Seconds of one backfill of `replay` over all rhos of a finished pool: from the request to its
    completion (`whole_s`), and from the first run's creation to the last one's end (`runs_s`).

    Raises:
        CabsError: the pool is not finished, or the backfill failed or took longer than half an hour.
    """
    pool_file = active_pool(pool)
    chain = Chain(ArtifactStore(), pool_file)
    if any(chain.status(target).state != "fresh" for target in chain.replays()):
        raise CabsError(f"pool {pool} is not finished: run `cabs run --pool {pool}` first")
    partitions = list(dict.fromkeys(target.partition for target in chain.replays()))
    with tempfile.TemporaryDirectory(prefix="cabs-bench-") as home:
        server = DevServer(Path(home), {**os.environ, "DAGSTER_HOME": home})
        try:
            while not server.ready():
                time.sleep(0.5)
            began = time.time()
            backfill = server.backfill("replay", partitions)
            while not (runs := server.runs_of(backfill)) and time.time() < began + _LONGEST:
                time.sleep(0.5)
            whole = time.time() - began
        finally:
            server.stop()
    if [run["status"] for run in runs] != ["SUCCESS"] * len(partitions):
        raise CabsError(f"{len(partitions)} runs should have succeeded within {_LONGEST:.0f} s: {runs}")
    took = max(run["endTime"] for run in runs) - min(run["creationTime"] for run in runs)
    return {"pool": pool, "partitions": len(partitions), "whole_s": round(whole, 2), "runs_s": round(took, 2)}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure and print."""
    parser = Script(__file__, __doc__)
    parser.add_argument("--pool", default="demo", help="a pool that is finished (default: demo)")
    options = parser.parse_args(argv)
    figures = measure(options.pool)
    print(
        f"{figures['partitions']} partitions: complete {figures['whole_s']:.1f} s after the request; "
        f"{figures['runs_s']:.1f} s from the first run's creation to the last one's end"
    )
    write_figures(figures, options.json)
    return figures


if __name__ == "__main__":
    main()
