"""A run whose process was killed is marked as failed by the next command; one whose process lives is left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import dagster as dg

from cabs_dagster.definitions import defs
from cabs_dagster.instance.recover import PROCESS_TAG, end_own_runs, process_tag, recover
from cabs_dagster.jobs import PREPARE

_OWNER = "import sys; from cabs_dagster.instance.recover import process_tag; print(process_tag(), flush=True); sys.stdin.read()"


def test_runs_of_the_dead_are_marked(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))
    started, job = dg.DagsterRunStatus.STARTED, defs.resolve_job_def(PREPARE)
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )  # fmt: skip
    with dg.DagsterInstance.ephemeral() as instance:
        assert owner.stdout is not None
        tag = owner.stdout.readline().strip()
        run = instance.create_run_for_job(job, status=started, tags={PROCESS_TAG: tag})
        own = instance.create_run_for_job(job, status=started, tags={PROCESS_TAG: process_tag()})
        launched = instance.create_run_for_job(job, status=started)
        elsewhere = instance.create_run_for_job(job, status=started, tags={PROCESS_TAG: "another-host:/gone"})
        assert recover(instance) == []
        owner.kill()
        owner.wait()
        assert recover(instance) == [run.run_id]
        assert recover(instance) == []
        end_own_runs(instance)
        found = {r.run_id: r.status for r in instance.get_runs()}
    failed = dg.DagsterRunStatus.FAILURE
    assert found == {
        run.run_id: failed, own.run_id: failed, launched.run_id: started, elsewhere.run_id: started,
    }  # fmt: skip
