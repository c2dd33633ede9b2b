"""Cancel and kill -9 against `dagster dev`: a run's process is launched again and slots of pools are free
again; of the services nothing is left behind.
"""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from e2e_support import LAUNCH, Dev, drop_pool, fingerprints, listening, processes, wait_for

from cabs_dagster.instance import template

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

_CANCEL = "mutation($id: String!) { terminateRun(runId: $id) { __typename } }"
_SLOTS = """{ instance { concurrencyLimit(concurrencyKey: "gpu") { claimedSlots { runId stepKey } } } }"""


def slots(dev: Dev) -> set[str]:
    """Ids of the runs that hold a slot of pool gpu."""
    claimed = dev.query(_SLOTS)["instance"]["concurrencyLimit"]["claimedSlots"]
    return {slot["runId"] for slot in claimed}


def wait_for_the_end(home: Path, dev: Dev) -> None:
    wait_for("the end of all", lambda: not processes(home), 120)
    dev.process.wait()


def caught(home: Path, folder: str) -> int | None:
    """Process id of the run that writes into this folder of the artifacts now; it is stopped, so that it
    stays there."""
    for path in (home / "artifacts").glob(f"{folder}/.*.tmp"):
        pid = int(path.name.split(".")[-3].rpartition("-")[2])
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
        wait_for("dagster dev", dev.ready, 180)
        assert listening(home) == {"127.0.0.1"}
        # "Terminate" in the UI, in a step of pool gpu
        selector = {
            "repositoryLocationName": "cabs",
            "repositoryName": "__repository__",
            "jobName": "prepare_pool",
        }
        tags = [{"key": "dagster/partition", "value": "chaos"}]
        asked = {"selector": selector, "mode": "default", "executionMetadata": {"tags": tags}}
        canceled = dev.query(LAUNCH, p=asked)["launchRun"]["run"]["runId"]
        pid = wait_for("oracles", lambda: caught(home, "oracles"), 180, 0.005)
        assert slots(dev) == {canceled}
        with ThreadPoolExecutor(1) as pool:  # the answer comes when the process has ended
            answer = pool.submit(dev.query, _CANCEL, id=canceled)
            wait_for("the cancel", lambda: dev.runs()[0]["status"] == "CANCELING" or answer.done(), 120)
            time.sleep(2)
            os.kill(pid, signal.SIGCONT)
            assert answer.result()["terminateRun"]["__typename"] == "TerminateRunSuccess"
        wait_for("its slot", lambda: not slots(dev), 120)
        wait_for("its end", lambda: [r["status"] for r in dev.runs()] == ["CANCELED"], 120)

        dev.switch_on("pool_files", "next_part")
        for folder in ("oracles", "replay/chaos/*"):
            pid = wait_for(folder, lambda folder=folder: caught(home, folder), 180, 0.005)
            os.kill(pid, signal.SIGKILL)

        def report() -> bool:
            runs = [run for run in dev.runs() if run["jobName"] == "build_results"]
            return bool(runs) and runs[0]["status"] == "SUCCESS"

        wait_for("the report", report, 240)
        runs = dev.runs()
        assert not slots(dev)
        victims = [pid for pid, line in processes(home).items() if "dagster._daemon" in line]
        os.kill(victims[0], signal.SIGKILL)
        wait_for_the_end(home, dev)
    finally:
        dev.stop()
    failed = {run["runId"] for run in runs if run["status"] == "FAILURE"}
    parents = {run["tags"].get("dagster/parent_run_id") for run in runs if run["status"] == "SUCCESS"}
    assert len(failed) == 2 and failed <= parents, runs
    assert fingerprints(home) == fingerprints(finished_once)
