"""What a platform engineer does in the UI of a stock `dg dev`, by its GraphQL alone, from an empty home."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from e2e_support import BACKFILL, LAUNCH, ROOT, Dev, drop_pool, environment, wait_for

from tests.servers import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]
DG = Path(sys.executable).with_name("dg")
PROGRESS = """query($id: String!) { partitionBackfillOrError(backfillId: $id) {
  ... on PartitionBackfill { status } } }"""
RUN = """query($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"""
ASSETS = """{ assetNodes { assetKey { path } isExecutable isMaterializable isObservable
  partitionKeys assetMaterializations(limit: 20) { partition metadataEntries { label
  ... on TextMetadataEntry { text } } } } }"""
CHECKS = """query($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) {
  ... on AssetNode { assetChecksOrError {
  ... on AssetChecks { checks { name } } } } } }"""
FAILED = """query($id: ID!) { logsForRun(runId: $id) { ... on EventConnection { events {
  ... on ExecutionStepFailureEvent { stepKey error { message causes { message } }
  failureMetadata { description } } } } } }"""
LINEAGE = """query($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode { description
  metadataEntries { ... on TableColumnLineageMetadataEntry { lineage {
  columnName columnDeps { assetKey { path }
  columnName } } } } assetMaterializations(limit: 1) { metadataEntries {
  ... on TableColumnLineageMetadataEntry {
  lineage { columnName columnDeps { assetKey { path } columnName } } } } } } } }"""
SELECTOR = {"repositoryLocationName": "cabs", "repositoryName": "__repository__"}


class Stock(Dev):
    """`dg dev` as Dagster ships it: no line of `cabs ui`, no dagster.yaml of ours."""

    def __init__(self, home: Path):
        (home / "dagster").mkdir()
        port = free_port()
        self.home, self.log, self.url = home, home / "dev.log", f"http://127.0.0.1:{port}"
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [str(DG), "dev", "--host", "127.0.0.1", "--port", str(port)],
                env=environment(home),
                cwd=ROOT,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def run(self, job: str, **more) -> str:
        """Launch a run; its id."""
        selector = {**SELECTOR, "jobName": job, **more.pop("selector", {})}
        launched = self.query(LAUNCH, p={"selector": selector, "mode": "default", **more})["launchRun"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        return launched["run"]["runId"]

    def ended(self, run: str) -> str:
        status = self.query(RUN, id=run)["runOrError"]["status"]
        return status if status in ("SUCCESS", "FAILURE", "CANCELED") else ""

    def made_of(self, asset: str, column: str) -> set[tuple[str, str]]:
        """{(asset, column)} where the lineage of a column ends."""
        node = self.query(LINEAGE, key={"path": asset.split("/")})["assetNodeOrError"]
        entries = [
            *node["metadataEntries"],
            *(e for m in node["assetMaterializations"] for e in m["metadataEntries"]),
        ]
        deps = {d["columnName"]: d["columnDeps"] for e in entries for d in e.get("lineage", ())}.get(
            column, []
        )
        before = [("/".join(d["assetKey"]["path"]), d["columnName"]) for d in deps]
        return {end for up in before for end in self.made_of(*up)} or {(asset, column)}

    def assets(self) -> dict[str, dict]:
        return {"/".join(node["assetKey"]["path"]): node for node in self.query(ASSETS)["assetNodes"]}


def test_a_pool_from_its_file_to_its_report_and_its_gate(tmp_path: Path) -> None:
    dev = Stock(tmp_path)
    try:
        wait_for("dg dev", dev.ready, 180)
        drop_pool(tmp_path, "chaos")
        # the sensor that is on from the start registers the pool and its rhos, and nobody else's
        wait_for("the partitions", lambda: dev.assets()["outcomes"]["partitionKeys"] == ["chaos"], 120)
        assert dev.assets()["replay"]["partitionKeys"] == ["chaos|0000", "chaos|0777"]

        # the whole pool as one job, its name in the launchpad
        run = dev.run("pool_chain", runConfigData={"ops": {"play_chain": {"config": {"pool": "chaos"}}}})
        assert wait_for("pool_chain", lambda: dev.ended(run), 600) == "SUCCESS", dev.log.read_text()[-3000:]
        made = dev.assets()
        assert [m["partition"] for m in made["report"]["assetMaterializations"]] == ["chaos"]
        assert not made["deployed_router"]["assetMaterializations"]

        # "Materialize all": every run ends well, pays nothing, deploys nothing. The deployed router is not
        # among what can be materialized, and there is no log to estimate from
        keys = [{"path": name.split("/")} for name, node in made.items() if node["isMaterializable"]]
        asked = dev.query(BACKFILL, p={"assetSelection": keys, "partitionNames": ["chaos"]})
        backfill = asked["launchPartitionBackfill"]["backfillId"]

        def status() -> str:
            now = dev.query(PROGRESS, id=backfill)["partitionBackfillOrError"]["status"]
            return now if now.startswith(("COMPLETED", "FAILED", "CANCELED")) else ""

        assert wait_for("materialize all", status, 900) == "COMPLETED_SUCCESS", dev.runs()
        assert {made["status"] for made in dev.runs()} == {"SUCCESS"}
        assert "deployed_router" not in {key["path"][-1] for key in keys}
        assert len(dev.assets()["report"]["assetMaterializations"]) >= 2
        assert not (tmp_path / "routers").exists() and not (tmp_path / "answers").exists()

        # columns of the mart that a report prints lead back to the outcome table
        for column in ("score", "cost_per_1000_calls", "utility"):
            ends = dev.made_of("marts/mart_utility_by_rho", column)
            assert {asset for asset, _ in ends} == {"outcomes"}, ends

        # the gate: a pool's checks, on the files as they are
        checks = dev.query(CHECKS, key={"path": ["outcomes"]})["assetNodeOrError"]["assetChecksOrError"][
            "checks"
        ]
        picked = [{"assetKey": {"path": ["outcomes"]}, "name": check["name"]} for check in checks]
        selection = {"assetSelection": [], "assetCheckSelection": picked}
        tags = [{"key": "dagster/partition", "value": "chaos"}]
        run = dev.run("prepare_pool", selector=selection, executionMetadata={"tags": tags})
        assert wait_for("the checks", lambda: dev.ended(run), 300) == "SUCCESS"

        # "Execute all" without a partition, as the UI launches it: it ends at once and says what to choose
        run = dev.run("__ASSET_JOB", selector=selection)
        assert wait_for("the checks of no pool", lambda: dev.ended(run), 300) == "FAILURE"
        (event,) = [e for e in dev.query(FAILED, id=run)["logsForRun"]["events"] if e.get("stepKey")]
        message = json.dumps(event)
        assert "partition (chaos)" in message and "`cabs check NAME`" in message
    finally:
        dev.stop()
