"""A pool file is dropped into a running `dagster dev`: the sensors find it, the chain runs, checks are recorded."""

from __future__ import annotations

import time

import pytest
import requests
from e2e_support import drop_pool, sensor_selector, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

_NODE = """query($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
  partitionStats { numMaterialized numFailed } assetChecksOrError { ... on AssetChecks { checks {
  name executionForLatestMaterialization { status evaluation { severity success partition } } } } }
  assetMaterializations(limit: 10) { partition metadataEntries { label ... on TableMetadataEntry {
  table { records schema { columns { name } } } } ... on UrlMetadataEntry { url } } } } } }"""

_TICKS = """query($s: SensorSelector!) { sensorOrError(sensorSelector: $s) { ... on Sensor { sensorState {
  ticks(limit: 100) { status error { message } logEvents { events { message level } } } } } } }"""


def test_a_dropped_pool_file_runs_through(dev) -> None:
    (dev.home / "pools").mkdir(parents=True, exist_ok=True)
    (dev.home / "pools" / "broken.yaml").write_text("source: {kind: file}\n")
    drop_pool(dev.home, "dropped")
    wait_for("the chain of the dropped pool", lambda: dev.finished("dropped"), 420)
    assert (dev.home / "artifacts" / "reports" / "dropped" / "index.html").is_file()
    jobs = [run["jobName"] for run in dev.runs() if run["tags"].get("cabs/pool") == "dropped"]
    assert sorted(jobs) == ["build_results", "prepare_pool", "replay_pool", "replay_pool"]

    node = dev.query(_NODE, key={"path": ["replay"]})["assetNodeOrError"]
    mine = [m for m in node["assetMaterializations"] if m["partition"].startswith("dropped|")]
    assert {m["partition"] for m in mine} == {"dropped|0000", "dropped|0777"}
    for materialization in mine:
        (table,) = [e["table"] for e in materialization["metadataEntries"] if e["label"] == "policies"]
        assert [c["name"] for c in table["schema"]["columns"]][:4] == ["policy", "utility", "se", "regret"]
        assert len(table["records"]) == 3
        # a busy database may make Dagster try the step again, which finds them
        assert all("computed" in record or "reused" in record for record in table["records"])
    found = {c["name"]: c["executionForLatestMaterialization"] for c in node["assetChecksOrError"]["checks"]}
    for name in ("trace", "plausible"):
        assert found[name]["status"] == "SUCCEEDED", found
        assert found[name]["evaluation"]["partition"] in ("dropped|0000", "dropped|0777")
    report = dev.query(_NODE, key={"path": ["report"]})["assetNodeOrError"]
    labels = {e["label"] for m in report["assetMaterializations"] for e in m["metadataEntries"]}
    assert {"link", "summary", "location"} <= labels
    [link] = [
        e["url"]
        for m in report["assetMaterializations"]
        for e in m["metadataEntries"]
        if e["label"] == "link"
    ]
    assert link == f"{dev.reports}/dropped/"
    assert "dropped" in requests.get(link, timeout=60).text
    assert requests.get(f"{dev.reports}/", timeout=60).ok, "the leaderboard"

    def said() -> list[str]:
        ticks = dev.query(_TICKS, s=sensor_selector("pool_files"))["sensorOrError"]["sensorState"]["ticks"]
        assert not [tick for tick in ticks if tick["error"]]
        events = [event for tick in ticks for event in tick["logEvents"]["events"]]
        return [e["message"] for e in events if e["level"] == "ERROR" and "broken.yaml" in e["message"]]

    # another test may have run the chain already, and the sensor has yet to see the broken file
    wait_for("what the sensor says of the broken file", said, 120)
    time.sleep(25)  # two more ticks, which say nothing again
    assert len(said()) == 1
