"""The same bytes from the in-process, multiprocess and Ray executors."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_support import ROOT, command, drop_pool, environment, patience

from cabs_dagster.provenance import hash_folder
from cabs_dagster.stages import REPLAY_VOLATILE, TIMES

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]


def run_pool(home: Path, **more: str) -> None:
    drop_pool(home, "spread")
    done = subprocess.run(
        command("run", "--pool", "spread", "--rho", "777", "--policies", "random,lin_ucb", "--no-report"),
        env=environment(home, **more), cwd=ROOT, capture_output=True, text=True, timeout=900 * patience(),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def contents(home: Path) -> dict[str, str]:
    skip = {*REPLAY_VOLATILE, TIMES, "timing.json"}
    found = {name: entry["sha256"] for name, entry in hash_folder(home / "artifacts").items()}
    return {n: h for n, h in found.items() if n.rsplit("/", 1)[-1] not in {*skip, "provenance.json"}}


@pytest.fixture(scope="module")
def in_process(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    home = tmp_path_factory.mktemp("in_process")
    run_pool(home, CABS_EXECUTOR="in_process")
    found = contents(home)
    assert len(found) > 20
    return found


def test_multiprocess_gives_the_same_bytes(in_process, tmp_path: Path) -> None:
    run_pool(tmp_path, CABS_EXECUTOR="multiprocess", CABS_WORKERS="2")
    assert contents(tmp_path) == in_process


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
    import urllib.error
    import urllib.request

    from e2e_support import wait_for

    def answers() -> bool:
        try:
            return urllib.request.urlopen(f"{ray_address}/api/version", timeout=5).status == 200
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    wait_for("Ray's job server", answers, 120)
    run_pool(tmp_path, CABS_EXECUTOR="ray", RAY_ADDRESS=ray_address)
    assert contents(tmp_path) == in_process
