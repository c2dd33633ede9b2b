"""A pool file changes while `dagster dev` runs: sensors run its chain, a backfill computes what is missing,
and a browser shows it. One server for all of it; tests/gauntlet/test_killed_runs.py drops a new file.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import requests
from e2e_support import Dev, cabs, drop_pool, fingerprints, records, sensor_selector, wait_for

from cabs_core.base.atomic import write_text
from cabs_core.router.bundle import read_manifest
from tests.gauntlet.homes import POOL

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

_NODE = """query($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
  partitionStats { numMaterialized numFailed } assetChecksOrError { ... on AssetChecks { checks {
  name executionForLatestMaterialization { status evaluation { severity success partition } } } } }
  assetMaterializations(limit: 10) { partition metadataEntries { label ... on TableMetadataEntry {
  table { records schema { columns { name } } } } ... on UrlMetadataEntry { url } } } } } }"""

_TICKS = """query($s: SensorSelector!) { sensorOrError(sensorSelector: $s) { ... on Sensor { sensorState {
  ticks(limit: 100) { status error { message } logEvents { events { message level } } } } } } }"""

#: models of the pool at first, and the rest of its file: a model more joins the deployed router
FEW = ["gpt-4-1106-preview", "claude-v1", "mistralai_mistral-7b-chat"]
POOL_TEXT = POOL.format(name="mine", seed=7, queries=200, budget=0)
POOL_TEXT += "router: {policy: lin_ucb, add_models: true}\n"

_STATUS = """query($id: String!) { partitionBackfillOrError(backfillId: $id) {
  ... on PartitionBackfill { status } } }"""


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """`dagster dev` with the sensors that run a pool file; a pool has run before and is deployed."""
    home = tmp_path_factory.mktemp("dev") / "home"
    write_pool(home, FEW)
    cabs(home, "run", "--pool", "mine")
    cabs(home, "deploy", "mine", "--anyway")
    server = Dev(home)
    try:
        wait_for("dagster dev", server.ready, 180)
        server.switch_on("pool_files", "next_part")
        yield server
    finally:
        server.stop()


def write_pool(home: Path, models: list[str]) -> None:
    """Write the file of the pool."""
    (home / "pools").mkdir(parents=True, exist_ok=True)
    write_text(home / "pools" / "mine.yaml", f"{POOL_TEXT}models: [{', '.join(models)}]\n")


def ticks_of(dev: Dev) -> list[dict[str, Any]]:
    ticks = dev.query(_TICKS, s=sensor_selector("pool_files"))["sensorOrError"]["sensorState"]["ticks"]
    assert not [tick for tick in ticks if tick["error"]]
    return ticks


def messages(dev: Dev) -> list[str]:
    """What the sensor said of the broken file, at all ticks."""
    events = [event for tick in ticks_of(dev) for event in tick["logEvents"]["events"]]
    return [e["message"] for e in events if e["level"] == "ERROR" and "broken.yaml" in e["message"]]


@pytest.fixture(scope="module")
def changed(dev: Dev) -> Dev:
    """The server after the pool's file has gained a model and what follows ran; another file is broken."""
    (dev.home / "pools" / "broken.yaml").write_text("source: {kind: file}\n")
    write_pool(dev.home, [*FEW, "claude-v2"])
    wait_for("what follows for the new set of models", lambda: dev.finished("mine"), 840)
    return dev


def test_a_changed_pool_file_runs_through(changed: Dev) -> None:
    dev = changed
    jobs = ["build_results", "join_models", "prepare_pool", "replay_pool", "replay_pool"]
    assert sorted(run["jobName"] for run in dev.of_chain("mine")) == jobs
    router = read_manifest(dev.home / "routers" / "mine" / "router", verify=False)
    assert router.names == [*FEW, "claude-v2"], "the model has joined the deployed router"

    node = dev.query(_NODE, key={"path": ["replay"]})["assetNodeOrError"]
    mine = [m for m in node["assetMaterializations"] if m["partition"] in ("mine|0000", "mine|0777")]
    assert {m["partition"] for m in mine} == {"mine|0000", "mine|0777"}
    for materialization in mine:
        (table,) = [e["table"] for e in materialization["metadataEntries"] if e["label"] == "policies"]
        assert [c["name"] for c in table["schema"]["columns"]][:4] == ["policy", "utility", "se", "regret"]
        assert len(table["records"]) == 3
        # a busy database may make Dagster try the step again, which finds them
        assert all("computed" in record or "reused" in record for record in table["records"])
    checks = {c["name"]: c["executionForLatestMaterialization"] for c in node["assetChecksOrError"]["checks"]}
    for name in ("trace", "plausible"):
        assert checks[name]["status"] == "SUCCEEDED", checks
        assert checks[name]["evaluation"]["partition"].startswith("mine|")
    report = dev.query(_NODE, key={"path": ["report"]})["assetNodeOrError"]
    entries = report["assetMaterializations"][0]["metadataEntries"]
    assert {"link", "summary", "location"} <= {e["label"] for e in entries}
    [link] = [e["url"] for e in entries if e["label"] == "link"]
    assert link == f"{dev.reports}/mine/"
    assert "mine" in requests.get(link, timeout=60).text
    assert requests.get(f"{dev.reports}/", timeout=60).ok, "the leaderboard"

    assert len(messages(dev)) == 1 < len(ticks_of(dev))


class Backfill(NamedTuple):
    """What was there before and after it: {cell: its record}, and {file: hash} without what is timed."""

    id: str
    statuses: list[str]
    before: dict[str, bytes]
    after: dict[str, bytes]
    other_files: list[str]


@pytest.fixture(scope="module")
def backfill(changed: Dev) -> Backfill:
    """A finished backfill of `replay`, asked for as the UI does: a cell of the pool is missing,
    others are of a rho that another pool names, or of a log.
    """
    dev = changed
    dev.switch_off("pool_files", "next_part")
    other = drop_pool(dev.home, "other")
    other.write_text(other.read_text().replace("[0, 777]", "[0, 555]"), encoding="utf-8")
    rows = "".join(f"what is {i} and {i}?,{'ab'[i % 2]},{i % 3 % 2},0.001\n" for i in range(60))
    (dev.home / "pools" / "calls.csv").write_text("prompt,model,score,cost\n" + rows)
    log = dev.home / "pools" / "calls.yaml"
    log.write_text("name: calls\ntitle: Calls\nsource: {kind: logs, path: calls.csv}\npolicies: [ridge]\n")
    cabs(dev.home, "pool", "add", str(other))  # registers all partitions now, not at the next tick
    before, expected = records(dev.home), fingerprints(dev.home)
    shutil.rmtree(dev.home / "artifacts" / "replay" / "mine" / "0777" / "lin_ucb")
    asked = dev.backfill("replay", [f"mine|{r}" for r in ("0000", "0555", "0777")] + ["calls|0000"])
    runs = wait_for("the backfill", lambda: dev.runs_of(asked), 180)
    statuses = [run["status"] for run in runs]
    statuses.append(dev.query(_STATUS, id=asked)["partitionBackfillOrError"]["status"])
    found = fingerprints(dev.home)
    other_files = sorted(k for k in expected.keys() | found.keys() if expected.get(k) != found.get(k))
    return Backfill(asked, statuses, before, records(dev.home), other_files)


def test_a_backfill_computes_what_is_missing_and_nothing_else(backfill: Backfill) -> None:
    assert backfill.statuses == [*["SUCCESS"] * 4, "COMPLETED_SUCCESS"]
    before, after = backfill.before, backfill.after
    assert after.keys() == before.keys(), "a cell of another pool's rho or of a log leaves no record"
    assert [cell for cell in before if after[cell] != before[cell]] == ["mine/0777/lin_ucb"]
    assert not backfill.other_files, "files with another content than before"


@pytest.fixture(scope="module")
def page(changed: Dev, browser: Any) -> Iterator[Any]:
    """A browser page."""
    opened = browser.new_page(viewport={"width": 1500, "height": 950})
    opened.set_default_timeout(120_000)
    yield opened
    opened.close()


def visit(page: Any, dev: Dev, path: str, *texts: str) -> None:
    """Open a page and wait until every text shows, each a regular expression; none is an error."""
    page.goto(dev.url + path)
    for text in texts:
        wait_for(text, lambda text=text: re.search(text, page.inner_text("body"), re.IGNORECASE), 120)
    assert "Error" not in page.inner_text("body").splitlines()


@pytest.mark.parametrize(
    ("path", "texts"),
    [
        (
            "replay?view=partitions&partition=mine%7C0777",
            "Materialized policies utility regret state random best_single lin_ucb",
        ),
        ("replay?view=checks", "plausible trace Succeeded|Passed"),
        ("marts/mart_policy_leaderboard", "Columns policy SQL|sql"),
    ],
)
def test_an_asset_shows_what_ran(page: Any, dev: Dev, path: str, texts: str) -> None:
    visit(page, dev, f"/assets/{path}", *texts.split())


def test_the_page_of_a_backfill(page: Any, dev: Dev, backfill: Backfill) -> None:
    visit(page, dev, f"/runs/b/{backfill.id}", backfill.id[:8], "replay", "Completed|Succeeded")


def test_the_metadata_of_the_report(page: Any, dev: Dev) -> None:
    visit(page, dev, "/assets/report?view=events&partition=mine", "summary", "location")
    with page.context.expect_page() as opened:
        page.get_by_role("link", name=f"{dev.reports}/mine/").first.click()
    report = opened.value
    report.get_by_role("heading").first.wait_for()
    assert report.url == f"{dev.reports}/mine/" and "mine" in report.title()
    report.get_by_role("link", name="All pools").first.click()
    report.wait_for_url(f"{dev.reports}/index.html")
    report.close()
