"""kill -9 against a stock `dagster dev`: a run's process is launched again; of the services nothing is left behind."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from e2e_support import Dev, drop_pool, fingerprints, listening, processes, wait_for

from cabs_dagster.instance import template

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]


def caught(home: Path, folder: str) -> int | None:
    """Process id of the run that writes into this folder of the artifacts now; it is stopped, so that it stays there."""
    for path in (home / "artifacts").glob(f"{folder}/.*.tmp"):
        pid = int(path.name.split(".")[-3])
        try:
            os.kill(pid, signal.SIGSTOP)
        except ProcessLookupError:  # left by one that was killed before
            continue
        return pid
    return None


def test_a_killed_run_is_marked_launched_again_and_finished(finished_once: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "dagster").mkdir(parents=True)
    settings = template("sqlite").replace("poll_interval_seconds: 15", "poll_interval_seconds: 2")
    (home / "dagster" / "dagster.yaml").write_text(settings)
    drop_pool(home, "chaos")
    dev = Dev(home)
    try:
        wait_for("dagster dev", dev.ready, 90)
        assert listening(home) == {"127.0.0.1"}
        dev.switch_on("pool_files", "next_part")
        for folder in ("oracles", "replay/chaos/*"):
            pid = wait_for(folder, lambda folder=folder: caught(home, folder), 180, 0.005)
            os.kill(pid, signal.SIGKILL)

        def report() -> bool:
            runs = [run for run in dev.runs() if run["jobName"] == "build_results"]
            return bool(runs) and runs[0]["status"] == "SUCCESS"

        wait_for("the report", report, 240)
        runs = dev.runs()
    finally:
        dev.stop()
    failed = {run["runId"] for run in runs if run["status"] == "FAILURE"}
    parents = {run["tags"].get("dagster/parent_run_id") for run in runs if run["status"] == "SUCCESS"}
    assert len(failed) == 2 and failed <= parents, runs
    assert fingerprints(home) == fingerprints(finished_once)


@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere nobody tells a child that its parent was killed"
)
@pytest.mark.parametrize("victim", ["-m dagster dev", "cabs_dagster.cli", "dagster._daemon"])
def test_nothing_is_left_of_it_when_a_part_is_killed(victim: str, tmp_path: Path) -> None:
    dev = Dev(tmp_path)
    try:
        wait_for("dagster dev", dev.ready, 90)
        alive = processes(tmp_path)
        [pid] = [pid for pid, line in alive.items() if victim in line]
        assert len(alive) >= 4, alive
        os.kill(pid, signal.SIGKILL)
        wait_for("the end of all", lambda: not processes(tmp_path), 60)
        dev.process.wait()
    finally:
        dev.stop()
