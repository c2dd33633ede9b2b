"""A pool file is dropped into a running `dagster dev`: the sensor finds it, the chain runs, checks are recorded."""

from __future__ import annotations

import pytest
from e2e_support import drop_pool, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

CHAIN = {"prepare_pool": 1, "replay_policies": 2, "build_marts": 1, "report_pool": 1, "build_leaderboard": 1}

_PARTITIONS = """query($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
  partitionStats { numMaterialized } assetChecksOrError { ... on AssetChecks { checks {
  name executionForLatestMaterialization { status evaluation { severity success partition } } } } }
  latestMaterializationByPartition { partition metadataEntries { label } } } } }"""


def test_a_dropped_pool_file_runs_through(dev) -> None:
    dev.switch_on("pool_files")
    drop_pool(dev.home, "dropped")
    (dev.home / "pools" / "broken.yaml").write_text("source: {kind: file}\n")

    def finished() -> bool:
        runs = [run for run in dev.runs() if run["tags"].get("cabs/pool") == "dropped"]
        failed = [run for run in runs if run["status"] in ("FAILURE", "CANCELED")]
        assert not failed, failed
        done = [run["jobName"] for run in runs if run["status"] == "SUCCESS"]
        return all(done.count(job) >= count for job, count in CHAIN.items())

    wait_for("the chain of the dropped pool", finished, 420)
    assert (dev.home / "artifacts" / "reports" / "dropped" / "index.html").is_file()
    counts = [run["jobName"] for run in dev.runs() if run["tags"].get("cabs/pool") == "dropped"]
    assert counts.count("prepare_pool") == 1 and counts.count("replay_policies") == 2

    node = dev.query(_PARTITIONS, key={"path": ["replay", "lin_ucb"]})["assetNodeOrError"]
    assert node["partitionStats"]["numMaterialized"] == 2
    found = {c["name"]: c["executionForLatestMaterialization"] for c in node["assetChecksOrError"]["checks"]}
    for name in ("trace", "plausible", "reproducible"):
        assert found[name]["status"] == "SUCCEEDED", found
        assert found[name]["evaluation"]["partition"] in ("dropped|0000", "dropped|0777")
    report = dev.query(_PARTITIONS, key={"path": ["report"]})["assetNodeOrError"]
    labels = {
        e["label"] for m in report["latestMaterializationByPartition"] if m for e in m["metadataEntries"]
    }
    assert {"page", "summary"} <= labels

    def ticks() -> list[dict]:
        return dev.query(
            "query($s: SensorSelector!) { sensorOrError(sensorSelector: $s) { ... on Sensor { sensorState {"
            " ticks(limit: 100) { status skipReason error { message } } } } } }",
            s={
                "repositoryLocationName": "cabs",
                "repositoryName": "__repository__",
                "sensorName": "pool_files",
            },
        )["sensorOrError"]["sensorState"]["ticks"]

    # a tick that launches runs gives no reason for skipping: the invalid file shows at the next idle one
    wait_for(
        "a tick that names the invalid file",
        lambda: any("broken.yaml" in (tick["skipReason"] or "") for tick in ticks()),
        90,
    )
    assert not [tick for tick in ticks() if tick["error"]]
