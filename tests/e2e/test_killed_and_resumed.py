"""kill -9 in every stage: the next `cabs run` goes on, runs and slots are freed, results are the same bytes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from e2e_support import ROOT, at_work, command, drop_pool, environment, fingerprints, patience

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

#: moment: folder of the artifacts in which something half-written shows that the stage is at work
MOMENTS = {
    "outcomes": "outcomes",
    "embedding": "prompt_embeddings",
    "training": "oracles",
    "timing": "decision_latency",
    "replay": "replay/chaos/0000",
    "second replay": "replay/chaos/0777",
    "marts": "marts",
}


def run_pool(home: Path, timeout: float = 600) -> str:
    done = subprocess.run(
        command("run", "--pool", "chaos"), env=environment(home), cwd=ROOT, capture_output=True, text=True,
        timeout=timeout * patience(),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_and_kill(home: Path, folder: str) -> str:
    """Start a run, wait until a stage is at work, kill it and all it started. Returns its output."""
    log = home / "killed.log"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command("run", "--pool", "chaos"), env=environment(home, PYTHONUNBUFFERED="1"), cwd=ROOT,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
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


def test_kill_in_every_stage_and_resume(tmp_path: Path) -> None:
    import dagster as dg

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for home in (whole, broken):
        drop_pool(home, "chaos")
    run_pool(whole)
    outputs = []
    for folder in MOMENTS.values():
        outputs.append(run_and_kill(broken, folder))
    outputs.append(run_pool(broken))
    for moment, output in zip(MOMENTS, outputs[1:], strict=True):
        assert "had been killed" in output, f"after the kill in {moment}:\n{output}"
    again = run_pool(broken)
    assert "0 runs in" in again

    expected, found = fingerprints(whole), fingerprints(broken)
    assert len(expected) > 60
    assert sorted(found) == sorted(expected)
    assert [name for name in expected if found[name] != expected[name]] == []

    with dg.DagsterInstance.from_config(str(broken / "dagster")) as instance:
        unfinished = instance.get_runs(
            dg.RunsFilter(
                statuses=[
                    dg.DagsterRunStatus.NOT_STARTED,
                    dg.DagsterRunStatus.STARTING,
                    dg.DagsterRunStatus.STARTED,
                ]
            )
        )
        assert not unfinished
        for key in ("gpu", "duckdb"):
            assert not instance.event_log_storage.get_concurrency_info(key).active_slot_count
    assert not list((broken / "artifacts").rglob(".*.tmp"))
