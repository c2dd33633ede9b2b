"""kill -9 against `dagster dev`: the whole tree, one run's process, the daemon. Started again, it goes on by itself.

The pools `gpu` (while embedding) and `duckdb` (while building marts) are held by what is killed; nothing may stay held.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
import pytest
from e2e_support import (
    ROOT,
    Dev,
    command,
    drop_pool,
    environment,
    fingerprints,
    listening,
    patience,
    processes,
    wait_for,
)

from cabs_dagster.instance import template

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]


@contextmanager
def storage(home: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.from_config(str(home / "dagster")) as instance:
        yield instance


def held(home: Path, pool: str) -> set[str]:
    """Ids of the runs that hold a slot of a pool."""
    with storage(home) as instance:
        return set(instance.event_log_storage.get_concurrency_info(pool).active_run_ids)


def status(home: Path, run_id: str) -> dg.DagsterRunStatus:
    with storage(home) as instance:
        run = instance.get_run_by_id(run_id)
        assert run is not None
        return run.status


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


def run_of(home: Path, pid: int) -> str:
    """Id of the run that a process executes."""
    with storage(home) as instance:
        for run in instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])):
            for entry in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT):
                if f"Started process for run (pid: {pid})" in (entry.dagster_event.message or ""):
                    return run.run_id
    raise AssertionError(f"process {pid} executes no run")


def start(home: Path) -> Dev:
    dev = Dev(home)
    wait_for("dagster dev", dev.ready, 90)
    return dev


def test_killed_dagster_dev_goes_on(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for home in (whole, broken):
        drop_pool(home, "chaos")
    (broken / "dagster").mkdir()
    (broken / "dagster" / "dagster.yaml").write_text(
        template("sqlite").replace("poll_interval_seconds: 15", "poll_interval_seconds: 2")
    )
    with open(tmp_path / "whole.log", "wb") as output:
        undisturbed = subprocess.Popen(
            command("run", "--pool", "chaos"), env=environment(whole), cwd=ROOT, stdout=output,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    devs = [start(broken)]
    try:
        dev = devs[0]
        assert listening(dev) == {"127.0.0.1"}
        dev.switch_on("pool_files")

        # everything, while a run embeds and holds the GPU's slot
        first = run_of(broken, wait_for("embedding", lambda: caught(broken, "prompt_embeddings"), 90, 0.005))
        os.killpg(dev.process.pid, signal.SIGKILL)
        dev.process.wait()
        assert status(broken, first) == dg.DagsterRunStatus.STARTED and held(broken, "gpu") == {first}
        devs.append(dev := start(broken))
        assert status(broken, first) == dg.DagsterRunStatus.FAILURE and first not in held(broken, "gpu")

        # one run's process, while it replays
        pid = wait_for("a replay", lambda: caught(broken, "replay/chaos/*"), 120, 0.005)
        second = run_of(broken, pid)
        os.kill(pid, signal.SIGKILL)
        wait_for("the failure", lambda: status(broken, second) == dg.DagsterRunStatus.FAILURE, 30)

        # the daemon, while the marts are built: `dagster dev` gives up, the next one goes on
        [third] = wait_for("the marts", lambda: held(broken, "duckdb"), 120, 0.05)
        assert status(broken, third) == dg.DagsterRunStatus.STARTED
        [daemon] = [pid for pid, args in processes(dev).items() if "-m dagster._daemon" in args]
        os.kill(daemon, signal.SIGKILL)
        dev.process.wait(timeout=60 * patience())
        devs.append(dev := start(broken))
        wait_for("the report", lambda: (broken / "artifacts/reports/chaos/index.html").is_file(), 120)
        wait_for(
            "an idle instance", lambda: all(r["status"] in ("SUCCESS", "FAILURE") for r in dev.runs()), 60
        )
        runs = dev.runs()
    finally:
        for dev in reversed(devs):
            dev.stop()
        code = undisturbed.wait(timeout=300 * patience())
    assert code == 0, (tmp_path / "whole.log").read_text()

    failed = {run["runId"] for run in runs if run["status"] == "FAILURE"}
    again = {run["tags"].get("dagster/parent_run_id") for run in runs}
    assert {first, second} <= failed <= again, "every killed run was launched once more"
    expected, found = fingerprints(whole), fingerprints(broken)
    assert len(expected) > 60
    assert found == expected
    for pool in ("gpu", "duckdb"):
        assert not held(broken, pool)
    assert not list((broken / "artifacts").rglob(".*.tmp"))
