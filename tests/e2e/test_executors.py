"""The same bytes from the in-process and multiprocess executors, and from Ray nodes that share nothing but a
store."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from e2e_support import cabs, drop_pool, fingerprints, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]


def run_pool(home: Path, **more: str) -> dict[str, str]:
    """Fingerprints of what a part of a pool's chain gave."""
    drop_pool(home, "spread")
    cabs(
        home, "run", "--pool", "spread", "--rho", "777", "--policies", "random,lin_ucb", "--no-report", **more
    )
    return fingerprints(home, marts=False)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a run in one process, on a folder."""
    home = tmp_path_factory.mktemp("in_process")
    run_pool(home, CABS_EXECUTOR="in_process")
    return home


@pytest.fixture(scope="module")
def in_process(alone: Path) -> dict[str, str]:
    found = fingerprints(alone, marts=False)
    assert len(found) > 20
    return found


def test_multiprocess_gives_the_same_bytes(in_process, tmp_path: Path) -> None:
    assert run_pool(tmp_path, CABS_EXECUTOR="multiprocess", CABS_WORKERS="2") == in_process


class Cluster:
    """A Ray cluster of this machine alone: a head node that runs no step, with a job server on a free port of
    127.0.0.1, and other nodes."""

    def __init__(self, credentials: Mapping[str, str]):
        self.credentials = credentials
        with socket.socket() as free, socket.socket() as other:
            free.bind(("127.0.0.1", 0)), other.bind(("127.0.0.1", 0))
            dashboard, self.gcs = free.getsockname()[1], other.getsockname()[1]
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
    from benchmarks.object_store import Store

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
    alone: Path, cluster: Cluster, store: Any, tmp_path: Path
) -> None:
    """One is gone when the other begins."""
    from benchmarks.object_store import TIMED, folder_records

    drop_pool(tmp_path, "spread")
    places = {
        "CABS_HOME": "~/cabs",
        "CABS_POOLS_DIR": str(tmp_path / "pools"),
        "CABS_ARTIFACTS": "s3://cabs/team",
    }
    places |= {"HOME": str(tmp_path / "own"), "CABS_EXECUTOR": "ray", "RAY_ADDRESS": cluster.address}
    for node, policies in (("first", "random"), ("second", "random,lin_ucb")):
        cluster.start(f"--address=127.0.0.1:{cluster.gcs}", "--num-cpus=2", HOME=str(tmp_path / node))
        part = ("--rho", "777", "--policies", policies, "--no-report")
        cabs(tmp_path, "run", "--pool", "spread", *part, **places, **store.settings)
        assert (tmp_path / node / "cabs").is_dir()
        cluster.stop(first=1)
    assert len(cluster.nodes_that_worked()) == 2
    made, expected = store.records("team/"), folder_records(alone / "artifacts")
    assert len(made) >= 8
    assert made == {name: content for name, content in expected.items() if not name.startswith(TIMED)}
