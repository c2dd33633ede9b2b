"""The same bytes from the in-process and multiprocess executors, and from Ray nodes that share nothing but a
store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from e2e_support import cabs, drop_pool, fingerprints, wait_for

from tests.servers import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_multiprocess_gives_the_same_bytes(finished_once: Path, tmp_path: Path) -> None:
    drop_pool(tmp_path, "chaos")
    part = ("--rho", "777", "--policies", "random,lin_ucb", "--no-report")
    cabs(tmp_path, "run", "--pool", "chaos", *part, CABS_EXECUTOR="multiprocess", CABS_WORKERS="2")
    made = fingerprints(tmp_path, marts=False)
    assert len(made) > 20 and made.items() <= fingerprints(finished_once).items()


class Cluster:
    """A Ray cluster of this machine alone: a head node that runs no step, with a job server on a free port of
    127.0.0.1, and other nodes."""

    def __init__(self, credentials: Mapping[str, str]):
        self.credentials = credentials
        dashboard, self.gcs = free_port(), free_port()
        self.address = f"http://127.0.0.1:{dashboard}"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.start(
            "--head",
            f"--port={self.gcs}",
            "--dashboard-host=127.0.0.1",
            f"--dashboard-port={dashboard}",
            "--include-dashboard=true",
            "--num-cpus=0",
        )
        wait_for("Ray's job server", lambda: self.answers("/api/version"), 120)

    def start(self, *words: str, **more: str) -> None:
        """Start a node with more environment variables."""
        tool = Path(sys.executable).with_name("ray")
        # the nodes of a cluster must find the `dagster` command
        path = f"{tool.parent}{os.pathsep}{os.environ['PATH']}"
        env = {
            **os.environ,
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            "PATH": path,
            **self.credentials,
            **more,
        }
        line = [
            str(tool),
            "start",
            "--node-ip-address=127.0.0.1",
            "--object-store-memory=100000000",
            "--disable-usage-stats",
            "--block",
            *words,
        ]
        self.processes.append(
            subprocess.Popen(line, env=env, start_new_session=True, stdout=subprocess.DEVNULL)
        )

    def answers(self, path: str) -> Any:
        """What the job server says, or None."""
        try:
            with urllib.request.urlopen(f"{self.address}{path}", timeout=5) as answer:
                return json.load(answer)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None

    def nodes_that_worked(self) -> set[str]:
        """Ids of the nodes that ran a job."""
        return {job["driver_node_id"] for job in self.answers("/api/jobs/")}

    def stop(self, first: int = 0) -> None:
        """End the nodes, those that were started after the first so many."""
        while len(self.processes) > first:
            process = self.processes.pop()
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture(scope="module")
def store() -> Iterator[Any]:
    """An object store, whose credentials the cluster's nodes have."""
    pytest.importorskip("moto", reason="needs moto[server]")
    from tests.object_store import Store

    with Store() as made:
        yield made


@pytest.fixture(scope="module")
def cluster(store: Any) -> Iterator[Cluster]:
    pytest.importorskip("dagster_ray", reason="needs the extra [ray]")
    made = Cluster(store.settings)
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.ray
def test_two_nodes_with_homes_of_their_own_share_a_store(
    finished_once: Path, cluster: Cluster, store: Any, tmp_path: Path
) -> None:
    """One is gone when the other begins."""
    from tests.object_store import folder_records

    drop_pool(tmp_path, "chaos")
    places = {
        "CABS_HOME": "~/cabs",
        "CABS_POOLS_DIR": str(tmp_path / "pools"),
        "CABS_ARTIFACTS": "s3://cabs/team",
    }
    places |= {"HOME": str(tmp_path / "own"), "CABS_EXECUTOR": "ray", "RAY_ADDRESS": cluster.address}
    for node, policies in (("first", "random"), ("second", "random,lin_ucb")):
        cluster.start(f"--address=127.0.0.1:{cluster.gcs}", "--num-cpus=2", HOME=str(tmp_path / node))
        part = ("--rho", "777", "--policies", policies, "--no-report")
        cabs(tmp_path, "run", "--pool", "chaos", *part, **places, **store.settings)
        assert (tmp_path / node / "cabs").is_dir()
        cluster.stop(first=1)
    assert len(cluster.nodes_that_worked()) == 2
    made, expected = store.records("team/"), folder_records(finished_once / "artifacts")
    assert {"tuning/chaos", "replay/chaos/0777/random", "replay/chaos/0777/lin_ucb"} <= made.keys()
    assert made.items() <= expected.items()
