"""What a platform engineer does in the UI of a stock `dagster dev`, by its GraphQL alone, from an empty home."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from e2e_support import Dev, drop_pool, environment, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]
LAUNCH = """mutation($p: ExecutionParams!) { launchRun(executionParams: $p) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
BACKFILL = """mutation($p: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $p) {
  __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""
PROGRESS = """query($id: String!) { partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill { status } } }"""
RUN = """query($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"""
ASSETS = """{ assetNodes { assetKey { path } isExecutable isMaterializable isObservable
  partitionKeys assetMaterializations(limit: 20) { partition metadataEntries { label ... on TextMetadataEntry { text } } } } }"""
CHECKS = """query($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode { assetChecksOrError {
  ... on AssetChecks { checks { name } } } } } }"""
EXECUTED = """query($id: ID!) { runOrError(runId: $id) { ... on Run { status assetCheckEvaluations {
  success checkName description } } } }"""
SELECTOR = {"repositoryLocationName": "cabs_dagster.definitions", "repositoryName": "__repository__"}


class Stock(Dev):
    """`dagster dev` as Dagster ships it: no line of `cabs ui`, no dagster.yaml of ours."""

    def __init__(self, home: Path):
        (home / "dagster").mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.home, self.log, self.url = home, home / "dev.log", f"http://127.0.0.1:{port}"
        words = ["-m", "dagster", "dev", "-h", "127.0.0.1", "-p", str(port), "-m", "cabs_dagster.definitions"]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *words], env=environment(home), cwd=home, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def run(self, job: str, **more) -> str:
        """Launch a run; its id."""
        selector = {**SELECTOR, "jobName": job, **more.pop("selector", {})}
        found = self.query(LAUNCH, p={"selector": selector, "mode": "default", **more})["launchRun"]
        assert found["__typename"] == "LaunchRunSuccess", found
        return found["run"]["runId"]

    def ended(self, run: str) -> str:
        status = self.query(RUN, id=run)["runOrError"]["status"]
        return status if status in ("SUCCESS", "FAILURE", "CANCELED") else ""

    def assets(self) -> dict[str, dict]:
        return {"/".join(node["assetKey"]["path"]): node for node in self.query(ASSETS)["assetNodes"]}


def test_a_pool_from_its_file_to_its_report_and_its_gate(tmp_path: Path) -> None:
    dev = Stock(tmp_path)
    try:
        wait_for("dagster dev", dev.ready, 90)
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

        # "Materialize all": ends well, pays nothing, deploys nothing
        wanted = [{"path": name.split("/")} for name, node in made.items() if node["isMaterializable"]]
        wanted = [key for key in wanted if key["path"] != ["theory"]]  # of no pool, and takes minutes
        asked = dev.query(BACKFILL, p={"assetSelection": wanted, "partitionNames": ["chaos"]})
        backfill = asked["launchPartitionBackfill"]["backfillId"]

        def status() -> str:
            found = dev.query(PROGRESS, id=backfill)["partitionBackfillOrError"]["status"]
            return found if found.startswith(("COMPLETED", "FAILED", "CANCELED")) else ""

        assert wait_for("materialize all", status, 900) == "COMPLETED_SUCCESS", dev.runs()
        assert len(dev.assets()["report"]["assetMaterializations"]) >= 2
        assert not (tmp_path / "routers").exists() and not (tmp_path / "answers").exists()

        # the gate: a pool's checks, on the files as they are
        checks = dev.query(CHECKS, key={"path": ["outcomes"]})["assetNodeOrError"]["assetChecksOrError"][
            "checks"
        ]
        picked = [{"assetKey": {"path": ["outcomes"]}, "name": check["name"]} for check in checks]
        tags = [{"key": "dagster/partition", "value": "chaos"}]
        run = dev.run(
            "prepare_pool", selector={"assetSelection": [], "assetCheckSelection": picked},
            executionMetadata={"tags": tags},
        )  # fmt: skip
        assert wait_for("the checks", lambda: dev.ended(run), 300) == "SUCCESS"
    finally:
        dev.stop()
