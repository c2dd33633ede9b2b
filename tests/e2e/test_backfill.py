"""Backfills as the UI asks for them: they compute what is missing and nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from e2e_support import Dev, cabs, fingerprints, records, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_backfill_computes_what_is_missing_and_nothing_else(finished: Path) -> None:
    expected, before = fingerprints(finished), records(finished)
    shutil.rmtree(finished / "artifacts" / "replay" / "chaos" / "0777" / "lin_ucb")
    dev = Dev(finished)
    try:
        wait_for("dagster dev", dev.ready, 90)
        backfill = dev.backfill("replay", ["chaos|0000", "chaos|0777"])
        runs = wait_for("the backfill", lambda: dev.runs_of(backfill), 120)
        assert [run["status"] for run in runs] == ["SUCCESS", "SUCCESS"]
    finally:
        dev.stop()
    after = records(finished)
    assert after.keys() == before.keys()
    assert [cell for cell in before if after[cell] != before[cell]] == ["chaos/0777/lin_ucb"]
    assert fingerprints(finished) == expected


def test_the_benchmark_measures_a_backfill_that_computes_nothing(finished: Path, tmp_path: Path) -> None:
    before = records(finished)
    said = cabs(finished, "bench", "backfill", "--pool", "chaos", "--json", str(tmp_path / "figures.json"))
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert "2 partitions: complete" in said
    assert figures["partitions"] == 2 and figures["whole_s"] >= figures["runs_s"] > 0
    assert records(finished) == before

    shutil.rmtree(finished / "artifacts" / "replay" / "chaos" / "0777" / "lin_ucb")
    assert "is not finished" in cabs(finished, "bench", "backfill", "--pool", "chaos", expect=2)
