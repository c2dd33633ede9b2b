"""One cell of a partition cannot be computed: the others are kept and shown, what follows waits, a retry does
the rest."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from e2e_support import LAUNCH, Dev, cabs, fingerprints, records, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

_RETRY = """mutation($p: ReexecutionParams!) { launchRunReexecution(reexecutionParams: $p) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
_RUN = "query($id: ID!) { runOrError(runId: $id) { ... on Run { status rootRunId } } }"
_PARTITION = """query { assetNodeOrError(assetKey: {path: ["replay"]}) { ... on AssetNode {
  assetMaterializations(partitions: ["chaos|0777"], limit: 1) { runId metadataEntries { label
    ... on TableMetadataEntry { table { records } } } }
  assetChecksOrError { ... on AssetChecks { checks { name blocking executionForLatestMaterialization { status
    evaluation { success description } } } } } } } }"""


def launched(dev: Dev, mutation: str, wanted: dict) -> tuple[str, str]:
    """(id, status) of a run that was asked for, when it has ended."""
    (answer,) = dev.query(mutation, p=wanted).values()
    assert answer["__typename"] == "LaunchRunSuccess", answer
    run, ended = answer["run"]["runId"], ("SUCCESS", "FAILURE", "CANCELED")
    wait_for("the run", lambda: dev.query(_RUN, id=run)["runOrError"]["status"] in ended, 120)
    return run, dev.query(_RUN, id=run)["runOrError"]["status"]


def partition(dev: Dev) -> tuple[list[str], dict[str, dict]]:
    """Rows of the newest table of policies at rho 777 (JSON texts), and {check: its last execution}."""
    node = dev.query(_PARTITION)["assetNodeOrError"]
    (materialization,) = node["assetMaterializations"]
    (table,) = [e["table"] for e in materialization["metadataEntries"] if e["label"] == "policies"]
    checks = node["assetChecksOrError"]["checks"]
    return table["records"], {c["name"]: c["executionForLatestMaterialization"] for c in checks}


def test_a_retry_computes_only_what_failed(finished: Path) -> None:
    expected, before = fingerprints(finished), records(finished)
    for policy in ("lin_ucb", "random"):
        shutil.rmtree(finished / "artifacts" / "replay" / "chaos" / "0777" / policy)
    for page in ("marts", "reports"):
        shutil.rmtree(finished / "artifacts" / page)
    blocker = finished / "artifacts" / "replay" / "chaos" / "0777" / "lin_ucb"
    blocker.symlink_to("nowhere")  # no folder can be put in its place

    said = cabs(finished, "run", "--pool", "chaos", expect=2)
    assert "1 of 2 rhos are incomplete, so there is no new verdict" in said and "lin_ucb" in said
    assert not (finished / "artifacts" / "reports").exists(), "marts and report wait"
    kept = records(finished)
    assert kept.keys() == before.keys() - {"chaos/0777/lin_ucb"}
    assert [cell for cell in kept if kept[cell] != before[cell]] == ["chaos/0777/random"]

    dev = Dev(finished)
    try:
        wait_for("dagster dev", dev.ready, 90)
        tags = {
            "dagster/partition": "chaos|0777",
            "dagster/partition/pool": "chaos",
            "dagster/partition/rho": "0777",
        }
        location = {"repositoryLocationName": "cabs", "repositoryName": "__repository__"}
        wanted = {
            "selector": {**location, "jobName": "replay_pool"},
            "runConfigData": {},
            "executionMetadata": {"tags": [{"key": k, "value": v} for k, v in tags.items()]},
        }
        failed, status = launched(dev, LAUNCH, wanted)
        assert status == "FAILURE"
        rows, checks = partition(dev)
        assert len(rows) == 3
        assert ["failed" in row for row in rows] == ["lin_ucb" in row for row in rows]
        assert not checks["trace"]["evaluation"]["success"]
        assert "lin_ucb" in checks["trace"]["evaluation"]["description"]

        blocker.unlink()
        again, status = launched(dev, _RETRY, {"parentRunId": failed, "strategy": "FROM_FAILURE"})
        assert status == "SUCCESS" and dev.query(_RUN, id=again)["runOrError"]["rootRunId"] == failed
        rows, checks = partition(dev)
        assert [('"computed"' in row) for row in rows] == [('"lin_ucb"' in row) for row in rows]
        assert checks["trace"]["evaluation"]["success"]
    finally:
        dev.stop()
    after = records(finished)
    assert [cell for cell in kept if after[cell] != kept[cell]] == [], (
        "the retry computed what was missing alone"
    )
    cabs(finished, "run", "--pool", "chaos")
    assert fingerprints(finished) == expected
