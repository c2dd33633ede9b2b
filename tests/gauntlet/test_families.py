"""The harness finds what it should find, and its quick part finds nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from cabs_core.base.errors import PolicyError

from . import runner

ROOT = Path(__file__).resolve().parents[2]
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def _refused():
    raise PolicyError("no")


@pytest.mark.slow
@needs_fork
def test_every_kind_of_failure_is_found():
    def crash(tally):
        os.kill(os.getpid(), signal.SIGKILL)

    def hang(tally):
        time.sleep(600)

    def traceback(tally):
        tally.tried(lambda: 1 / 0)

    def accepted(tally):
        tally.tried(lambda: 1, must_fail="a thing")

    def refused(tally):
        tally.sound(_refused)

    def leaves(tally):
        raise SystemExit(3)

    def fine(tally):
        tally.tried(_refused)
        tally.sound(lambda: 1)

    for step, expected in (
        (crash, "crash"),
        (hang, "hang"),
        (traceback, "traceback"),
        (accepted, "nonsense"),
        (refused, "nonsense"),
        (leaves, "traceback"),
    ):
        summary = runner.run(
            "fake", types.SimpleNamespace(probe=lambda t, r, x, s=step: s(t)), seed=0, count=2, limit=1.0
        )
        assert summary["outcomes"] == {expected: 2} and len(summary["failures"]) == 2, summary
        assert summary["failures"][1]["probe"] == "fake:1"
    summary = runner.run("fake", types.SimpleNamespace(probe=lambda t, r, x: fine(t)), seed=0, count=3)
    assert (
        summary["failures"] == []
        and summary["calls"] == {"refused": 3, "ok": 3}
        and summary["outcomes"] == {"fine": 3}
    )


def played(folder: Path, *arguments: str, seconds: float) -> str:
    """What `python -m tests.gauntlet --quick` prints, in a process of its own; no probe may fail."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.gauntlet", "--quick", *arguments],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@needs_fork
def test_the_quick_part_finds_nothing(tmp_path):
    lines = played(tmp_path, seconds=550).splitlines()
    assert [line.partition(":")[0] for line in lines] == runner.quick_names()
    assert not any(" 0 probes" in line for line in lines)


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(1800)
@needs_fork
def test_a_part_of_the_whole_runs_finds_nothing(tmp_path):
    """Kills, signals, altered files and the rest of what takes a `cabs run`: a few of each."""
    families = sorted(set(runner.names()) - set(runner.quick_names()))
    assert families
    played(tmp_path, *families, seconds=1700)
