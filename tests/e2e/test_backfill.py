"""Backfills as the UI asks for them: they make what is missing and nothing else, and begin and end at once."""

from __future__ import annotations

import shutil
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest
from e2e_support import ROOT, Dev, command, drop_pool, environment, fingerprints, patience, wait_for

from cabs_dagster.bench.backfill import launch, runs_of, status

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

ASSETS = [["replay", policy] for policy in ("random", "best_single", "lin_ucb")]
PARTITIONS = ["refilled|0000", "refilled|0777"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A CABS_HOME whose pool was finished on the command line."""
    drop_pool(tmp_path / "home", "refilled")
    subprocess.run(
        command("run", "--pool", "refilled", "--no-report"),
        env=environment(tmp_path / "home"), cwd=ROOT, check=True, capture_output=True, timeout=300 * patience(),
    )  # fmt: skip
    return tmp_path / "home"


def records(home: Path) -> dict[str, bytes]:
    replays = home / "artifacts" / "replay" / "refilled"
    return {str(p.relative_to(replays)): p.read_bytes() for p in replays.rglob("provenance.json")}


def complete(dev: Dev, backfill: str) -> bool:
    return status(dev, backfill).startswith("COMPLETED")


def test_backfills_make_only_what_is_missing_and_do_not_wait(home: Path) -> None:
    finished, recorded = fingerprints(home), records(home)
    shutil.rmtree(home / "artifacts" / "replay" / "refilled" / "0777" / "lin_ucb")
    dev = Dev(home)
    try:
        dev.wait_ready()
        for _ in range(2):  # the second one comes right after the daemon looked, which it does every 30 s
            limit, began = 15 * patience(), time.time()
            backfill = launch(dev, ASSETS, PARTITIONS)
            wait_for("the backfill", partial(complete, dev, backfill), 120)
            ended, runs = time.time(), runs_of(dev, backfill)
            assert [run["status"] for run in runs] == ["SUCCESS", "SUCCESS"]
            assert min(run["creationTime"] for run in runs) - began < limit
            assert ended - max(run["endTime"] for run in runs) < limit
    finally:
        dev.stop()
    assert fingerprints(home) == finished
    again = records(home)
    (made,) = [name for name in recorded if again[name] != recorded[name]]
    assert made == "0777/lin_ucb/provenance.json" and again.keys() == recorded.keys()
