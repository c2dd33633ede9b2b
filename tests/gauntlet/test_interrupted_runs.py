"""Ctrl-C and SIGTERM end `cabs run` at once, wherever it runs; what is finished stays, and the next run goes
on."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from e2e_support import ROOT, cabs, command, drop_pool, environment, patience, processes, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

SAID = "interrupted; run again to go on"


def worker(home: Path) -> int | None:
    """Process id of the `cabs run` of this CABS_HOME, below shells."""
    ids = [pid for pid, line in processes(home).items() if "cabs_dagster.cli" in line and "sh -c" not in line]
    return min(ids, default=None)


@pytest.mark.parametrize(
    "shell, number, code, executor",
    [
        ("exec {run}", signal.SIGINT, 130, "in_process"),
        ("exec {run}", signal.SIGTERM, 143, "in_process"),
        # a background command of a shell: SIGINT is ignored by the parent, and that is inherited
        ("nohup sh -c '{run} & wait $!'; exit $?", signal.SIGINT, 130, "in_process"),
        # a terminal's Ctrl-C reaches Dagster's helpers, too
        ("exec {run}", signal.SIGINT, 130, "multiprocess"),
    ],
    ids=["Ctrl-C", "SIGTERM", "background", "multiprocess"],
)
def test_a_signal_ends_it_and_the_next_run_goes_on(shell, number, code, executor, finished: Path) -> None:
    first, log = finished / "artifacts" / "replay" / "chaos", finished / "log"
    drop_pool(finished, "more")
    run = " ".join(f'"{word}"' for word in command("run", "--pool", "more"))
    with open(log, "wb") as output:
        process = subprocess.Popen(
            ["sh", "-c", shell.format(run=run)],
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(finished, PYTHONUNBUFFERED="1", CABS_EXECUTOR=executor),
            start_new_session=True,
        )
    try:
        wait_for("the first stage", lambda: "outcomes of pool more: made" in log.read_text(), 120, 0.02)
        pid = worker(finished)
        assert pid is not None, processes(finished)
        began = time.monotonic()
        if executor == "multiprocess":
            os.killpg(process.pid, number)
        else:
            os.kill(pid, number)
        assert process.wait(60 * patience()) == code, log.read_text()
        assert time.monotonic() - began < 15 * patience()
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    wait_for("the end of what it started", lambda: not processes(finished), 120)
    assert SAID in log.read_text() and "Traceback" not in log.read_text(), log.read_text()
    assert "Warning" not in log.read_text(), log.read_text()
    assert (finished / "artifacts" / "outcomes" / "more" / "provenance.json").is_file() and first.is_dir()
    if number == signal.SIGTERM or not shell.startswith("exec"):  # they end as Ctrl-C does
        return
    resumed = cabs(finished, "run", "--pool", "more", "--rho", "777", "--policies", "random", "--no-report")
    assert "outcomes of pool more: made" not in resumed, "what was finished is used again"
    assert "had been killed" not in resumed, "the interrupted run was marked by itself"
