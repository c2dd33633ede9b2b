"""kill -9 in every stage: the next `cabs run` goes on, runs and slots are freed, results are the same bytes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import ROOT, command, drop_pool, environment, patience

from cabs_dagster.provenance import hash_folder
from cabs_dagster.stages import REPLAY_VOLATILE

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

#: line of the output after which the process is killed, and how many seconds later
MOMENTS = {
    "outcomes": ("outcomes", 0.4),
    "embedding": ("prompt_embeddings", 0.3),
    "training": ("oracles", 0.3),
    "replay": ("1/2 rho", 0.5),
    "second replay": ("2/2 rho", 0.2),
    "marts": ("marts", 0.5),
}


def run_pool(home: Path, timeout: float = 600) -> str:
    done = subprocess.run(
        command("run", "--pool", "chaos"), env=environment(home), cwd=ROOT, capture_output=True, text=True,
        timeout=timeout * patience(),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_and_kill(home: Path, word: str, delay: float) -> str:
    """Start a run, wait until a line of its output begins with `word`, kill it and all it started."""
    process = subprocess.Popen(
        command("run", "--pool", "chaos"), env=environment(home, PYTHONUNBUFFERED="1"), cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    seen = b""
    os.set_blocking(process.stdout.fileno(), False)
    end = time.monotonic() + 300 * patience()
    while time.monotonic() < end and process.poll() is None:
        seen += process.stdout.read() or b""
        lines = seen.decode(errors="replace").splitlines()
        if any(line.strip().startswith(word) or (word == "marts" and " marts" in line) for line in lines):
            time.sleep(delay)
            break
        time.sleep(0.02)
    killed = process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert killed, f"the run ended before it could be killed in {word}:\n{seen.decode(errors='replace')}"
    return seen.decode(errors="replace")


def fingerprints(home: Path) -> dict[str, str]:
    """{file: hash} of everything but records and wall-clock measurements."""
    volatile = {*REPLAY_VOLATILE, "timing.json", "provenance.json", "cabs.duckdb", "index.html"}
    timed = (
        "mart_decision_latency",
        "mart_provenance",
        "mart_solver",
        "stg_pools",
        "stg_replay_runs",
        "stg_replay_summary",
    )
    found = {}
    for stage in (
        "outcomes",
        "splits",
        "prompt_embeddings",
        "oracles",
        "replay_problem",
        "tuning",
        "replay",
        "marts",
    ):
        for name, entry in hash_folder(home / "artifacts" / stage).items():
            last = name.rsplit("/", 1)[-1]
            if last not in volatile and not last.startswith(timed) and "records/" not in name:
                found[f"{stage}/{name}"] = entry["sha256"]
    return found


def test_kill_in_every_stage_and_resume(tmp_path: Path) -> None:
    import dagster as dg

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for home in (whole, broken):
        drop_pool(home, "chaos")
    run_pool(whole)
    outputs = []
    for moment, (word, delay) in MOMENTS.items():
        outputs.append(run_and_kill(broken, word, delay))
        assert word in outputs[-1], moment
    outputs.append(run_pool(broken))
    recovered = sum(output.count("had been killed") for output in outputs)
    assert recovered >= len(MOMENTS) // 2  # a kill between two runs leaves none to recover
    again = run_pool(broken)
    assert "0 runs in" in again

    expected, found = fingerprints(whole), fingerprints(broken)
    assert len(expected) > 60
    assert sorted(found) == sorted(expected)
    assert [name for name in expected if found[name] != expected[name]] == []

    with dg.DagsterInstance.from_config(str(broken / "dagster")) as instance:
        unfinished = instance.get_runs(
            dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.STARTING])
        )
        assert not unfinished
        for key in ("gpu", "duckdb"):
            assert not instance.event_log_storage.get_concurrency_info(key).active_slot_count
    assert not list((broken / "artifacts").rglob(".*.tmp"))
