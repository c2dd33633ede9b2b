"""What `cabs prune` leaves can be run, checked, planned and reported."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from tests_support import output_of

from cabs_core.base.paths import pools_dir
from cabs_core.pipeline.artifacts import ArtifactStore
from cabs_core.pipeline.retention import TRACE_FILE, prunable, prune

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def prune_all() -> None:
    output_of("prune", "--older-than", "0", "--delete")
    assert not list(ArtifactStore().root.glob(f"replay/*/*/*/{TRACE_FILE}"))


@contextmanager
def pruning() -> Iterator[None]:
    """Prune all the while, as another process may."""
    stop = threading.Event()

    def keep_pruning() -> None:
        while not stop.wait(0.05):
            store = ArtifactStore()
            for trace in prunable(store, 0.0):
                prune(store, trace)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(keep_pruning)
        try:
            yield
        finally:
            stop.set()
    done.result()  # an error of the pruning is the test's


@contextmanager
def other_run(*words: str) -> Iterator[None]:
    """A run of the pool by another process, which ends well."""
    command = [str(Path(sys.executable).with_name("cabs")), "run", "tiny", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        yield
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output


def edited(**changes) -> None:
    path = pools_dir() / "tiny.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes))


def report_files() -> dict[str, bytes]:
    """The verdict and the tables of the report, by name."""
    folder = Path(output_of("report", "--pool", "tiny").strip()).parent
    files = [
        path
        for path in folder.rglob("*")
        if path.suffix in (".csv", ".json") and path.name != "provenance.json"
    ]
    return {path.name: path.read_bytes() for path in files}


def stale() -> list[str]:
    """What `cabs plan` would make of the pool's stages and replays; marts and pages follow any change of a
    record."""
    made = [
        row["target"] + " " + row["partition"]
        for row in json.loads(output_of("plan", "tiny", "--json"))
        if row["state"] != "fresh"
    ]
    return [name for name in made if not re.match("staging/|mart|marts/|report|leaderboard", name)]


def test_pruned_after_every_step(ran: Path) -> None:
    """A report made without traces is the one made with them; a policy is added while other processes prune
    and run."""
    store = ArtifactStore()
    assert list(prunable(store, 1.0)) == [] and list(prunable(store, 0.0, keep_pools=("tiny",))) == []
    before = report_files()
    assert {"tasks.csv", "propensities.csv", "verdict.json"} <= set(before)
    prune_all()
    assert stale() == []
    output_of("check", "--pool", "tiny", "--quick")
    shutil.rmtree(ArtifactStore().root / "reports" / "tiny")
    output_of("run", "tiny")
    assert report_files() == before and stale() == []
    edited(policies=[*yaml.safe_load((pools_dir() / "tiny.yaml").read_text())["policies"], "cabs_c_linear"])
    assert any("cabs_c_linear" in name for name in stale())
    with pruning(), other_run("--force", "--policies", "random"):
        output_of("run", "tiny")
    output_of("run", "tiny")
    assert stale() == []
    assert b"cabs_c_linear" in report_files()["propensities.csv"] + report_files()["verdict.json"]
    prune_all()
    output_of("check", "--pool", "tiny")
    output_of("report", "--pool", "tiny", "--goal", "value_per_right_answer: 0.02")
