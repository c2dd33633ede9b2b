"""The same bytes from the in-process, multiprocess and Ray executors."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

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
def in_process(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    found = run_pool(tmp_path_factory.mktemp("in_process"), CABS_EXECUTOR="in_process")
    assert len(found) > 20
    return found


def test_multiprocess_gives_the_same_bytes(in_process, tmp_path: Path) -> None:
    assert run_pool(tmp_path, CABS_EXECUTOR="multiprocess", CABS_WORKERS="2") == in_process


@pytest.fixture(scope="module")
def ray_address() -> Iterator[str]:
    """A Ray cluster of this machine alone, its job server on a free port of 127.0.0.1."""
    pytest.importorskip("dagster_ray", reason="needs the extra [ray]")
    tool = Path(sys.executable).with_name("ray")
    with socket.socket() as free, socket.socket() as other:
        free.bind(("127.0.0.1", 0)), other.bind(("127.0.0.1", 0))
        dashboard, gcs = free.getsockname()[1], other.getsockname()[1]
    # the nodes of a cluster must find the `dagster` command
    path = f"{tool.parent}{os.pathsep}{os.environ['PATH']}"
    quiet = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", "PATH": path}
    start = [
        str(tool), "start", "--head", "--node-ip-address=127.0.0.1", f"--port={gcs}", "--num-cpus=2",
        "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}", "--include-dashboard=true",
        "--object-store-memory=100000000", "--disable-usage-stats", "--block",
    ]  # fmt: skip
    process = subprocess.Popen(start, env=quiet, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{dashboard}"
    finally:
        os.killpg(process.pid, 15)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()


@pytest.mark.ray
def test_ray_gives_the_same_bytes(in_process, ray_address: str, tmp_path: Path) -> None:
    def answers() -> bool:
        try:
            return urllib.request.urlopen(f"{ray_address}/api/version", timeout=5).status == 200
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    wait_for("Ray's job server", answers, 120)
    assert run_pool(tmp_path, CABS_EXECUTOR="ray", RAY_ADDRESS=ray_address) == in_process
