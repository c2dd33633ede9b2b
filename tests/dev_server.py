"""Dagster's UI and daemon in processes of their own, asked over GraphQL: for tests and benchmarks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import requests

from cabs_core.base.errors import CabsError
from tests.servers import free_port

_LAUNCH = """mutation($p: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $p) {
  __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""
_PROGRESS = """query($id: String!) { partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill {
  status runs { status creationTime endTime } } } }"""
_READY = "{ repositoriesOrError { ... on RepositoryConnection { nodes { name } } } }"


class DevServer:
    """`cabs ui` in a process group of its own, on free ports of 127.0.0.1; its log is `dev.log` in `home`."""

    def __init__(self, home: Path, environment: Mapping[str, str]):
        home.mkdir(parents=True, exist_ok=True)
        self.home, self.log = home, home / "dev.log"
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.reports = f"http://127.0.0.1:{free_port()}"
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
