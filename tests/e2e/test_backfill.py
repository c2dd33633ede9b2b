"""Backfills as the UI asks for them: they compute what is missing and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from e2e_support import Dev, cabs, drop_pool, fingerprints, records, wait_for

STATUS = "query($id: String!) { partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill { status } } }"
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


def test_a_backfill_over_the_whole_grid_ends_well(tmp_path: Path) -> None:
    """Cells of a pool at another pool's rho, and cells of a log, in a stock instance that nobody prepared."""
    drop_pool(tmp_path, "chaos")
    other = drop_pool(tmp_path, "other")
    other.write_text(other.read_text().replace("[0, 777]", "[0, 555]"), encoding="utf-8")
    rows = "".join(f"what is {i} and {i}?,{'ab'[i % 2]},{i % 3 % 2},0.001\n" for i in range(60))
    (tmp_path / "pools" / "calls.csv").write_text("prompt,model,score,cost\n" + rows)
    log = "name: calls\ntitle: Calls\nsource: {kind: logs, path: calls.csv}\npolicies: [ridge]\n"
    (tmp_path / "pools" / "calls.yaml").write_text(log)
    cabs(tmp_path, "run", "chaos", "--no-report")
    cells = [f"{pool}|{rho}" for pool in ("chaos", "calls") for rho in ("0000", "0555")]
    dev = Dev(tmp_path)
    try:
        wait_for("dagster dev", dev.ready, 90)
        backfill = dev.backfill("replay", cells)
        runs = wait_for("the backfill", lambda: dev.runs_of(backfill), 180)
        assert [run["status"] for run in runs] == ["SUCCESS"] * 4
        found = dev.query(STATUS, id=backfill)["partitionBackfillOrError"]
        assert found["status"] == "COMPLETED_SUCCESS", found
    finally:
        dev.stop()
