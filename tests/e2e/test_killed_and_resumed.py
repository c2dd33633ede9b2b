"""kill -9 at many moments: the next `cabs run` goes on, the killed runs are marked, results are the same
bytes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import dagster as dg
import pytest
from e2e_support import ROOT, at_work, cabs, command, drop_pool, environment, fingerprints, patience

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

#: Folders of the artifacts in which something half-written shows that a stage is at work, in the order of the
#: chain.
MOMENTS = (
    "outcomes",
    "prompt_embeddings",
    "oracles",
    "router",
    "replay/chaos/0000",
    "replay/chaos/0777",
    "marts",
)


def run_and_kill(home: Path, folder: str) -> str:
    """Start a run, wait until a stage is at work, kill it and all it started. Returns its output."""
    log = home / "killed.log"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command("run", "--pool", "chaos"),
            env=environment(home, PYTHONUNBUFFERED="1"),
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    before = set((home / "artifacts").rglob(".*.tmp"))
    for old in before:  # of the process killed before; the run removes them too
        shutil.rmtree(old, ignore_errors=True)
    end = time.monotonic() + 300 * patience()
    while time.monotonic() < end and process.poll() is None and not at_work(home, folder):
        time.sleep(0.005)
    killed = process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert killed, f"the run ended before it could be killed in {folder}:\n{log.read_text()}"
    return log.read_text()


def test_kill_in_every_stage_and_resume(finished_once: Path, tmp_path: Path) -> None:
    drop_pool(tmp_path, "chaos")
    outputs = [run_and_kill(tmp_path, folder) for folder in MOMENTS]
    outputs.append(cabs(tmp_path, "run", "--pool", "chaos"))
    for moment, output in zip(MOMENTS, outputs[1:], strict=True):
        assert "had been killed" in output, f"after the kill in {moment}:\n{output}"
    assert "0 runs in" in cabs(tmp_path, "run", "--pool", "chaos")

    expected, found = fingerprints(finished_once), fingerprints(tmp_path)
    assert len(expected) > 60
    assert found == expected
    with dg.DagsterInstance.from_config(str(tmp_path / "dagster")) as instance:
        ended = {dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE}
        assert {run.status for run in instance.get_runs()} == ended
    assert not list((tmp_path / "artifacts").rglob(".*.tmp"))
