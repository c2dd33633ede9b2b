"""Staleness is one thing: what the UI shows as stale, what `cabs plan` lists, and what `cabs run` then
makes."""

from __future__ import annotations

import json
from pathlib import Path

import dagster as dg
import pytest
from click.testing import CliRunner
from dagster_graphql.test.utils import define_out_of_process_workspace, execute_dagster_graphql
from test_gate_on_data import POOL, table

import cabs_dagster.definitions
from cabs_core.data.pools.find import find_pool
from cabs_core.pipeline.artifacts import ArtifactStore
from cabs_dagster import partitions
from cabs_dagster.cli import main
from cabs_dagster.cli.runner import CommandRunner
from cabs_dagster.instance import open_instance
from cabs_dagster.sensors import keep_partitions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

#: pools that nobody runs: with their cells the grid has more than Dagster looks at as upstream partitions
IDLE = """\
name: {name}
synthetic: true
source: {{kind: synthetic, queries: 200}}
policies: [random]
replay: {{rhos: {rhos}}}
"""
MINE = POOL.replace("rhos: [0]", "rhos: [0, 100]").replace("best_single]", "best_single, lin_ucb]")
QUERY = """query($pool: String) {
  assetNodes { assetKey { path } isPartitioned staleStatus staleCauses { reason key { path } } }
  assetNodeOrError(assetKey: {path: ["report"]}) { ... on AssetNode {
    staleStatus(partition: $pool) staleCauses(partition: $pool) { reason key { path } } } } }"""


def watched(name: str) -> bool:
    return name.split("/")[0] in ("staging", "marts", "report", "leaderboard")


def shown_stale(instance: dg.DagsterInstance, workspace) -> set[str]:
    """What the stock webserver's schema says is stale, after a tick of the sensor that is always on."""
    tick = keep_partitions(dg.build_sensor_context(instance=instance), ArtifactStore())
    for event in tick.asset_events:
        instance.report_runless_asset_event(event)
    assert len(partitions.pool_by_rho().get_partition_keys(dynamic_partitions_store=instance)) >= 450
    data = execute_dagster_graphql(workspace.create_request_context(), QUERY, {"pool": "mine"}).data
    nodes = {"/".join(n["assetKey"]["path"]): n for n in data["assetNodes"] if not n["isPartitioned"]}
    nodes["report"] = data["assetNodeOrError"]
    stale = {
        name: n["staleCauses"] for name, n in nodes.items() if watched(name) and n["staleStatus"] != "FRESH"
    }
    print(stale)  # the reasons, where a test fails
    return set(stale)


def planned() -> set[str]:
    done = CliRunner().invoke(main, ["plan", "mine", "--json"])
    assert done.exit_code == 0, done.output
    entries = json.loads(done.output)
    return {e["target"] for e in entries if watched(e["target"]) and e["state"] != "fresh"}


def ran(instance: dg.DagsterInstance) -> set[str]:
    runner = CommandRunner(instance)
    runner.run_pool(find_pool("mine"))
    return {a for _, _, assets in runner.launched for a in assets if watched(a)}


def test_ui_plan_and_run_agree_after_edits_of_a_pool_a_table_and_a_replay(cabs_home: Path) -> None:
    folder, outcomes = cabs_home / "pools", table()
    folder.mkdir()
    for number in range(15):
        text = IDLE.format(name=f"idle{number}", rhos=[100 * i for i in range(1, 31)])
        (folder / f"idle{number}.yaml").write_text(text, encoding="utf-8")
    pool = folder / "mine.yaml"
    pool.write_text(MINE, encoding="utf-8")
    outcomes.to_csv(folder / "table.csv", index=False)
    replay = cabs_home / "artifacts" / "replay" / "mine" / "0100" / "lin_ucb" / "trials.parquet"

    def another_epsilon() -> None:
        pool.write_text(MINE + "router: {epsilon: 0.07}\n", encoding="utf-8")

    def another_table() -> None:
        outcomes.assign(score=1 - outcomes["score"]).to_csv(folder / "table.csv", index=False)

    with (
        open_instance() as instance,
        define_out_of_process_workspace(cabs_dagster.definitions.__file__, "defs", instance) as workspace,
    ):
        everything = ran(instance)
        assert {"report", "leaderboard", "marts/mart_aiq"} <= everything
        assert planned() == set()
        assert shown_stale(instance, workspace) == set()
        assert ran(instance) == set()
        # only what reads the router's timings waits, and the pages
        another_epsilon()
        waiting = planned()
        assert {"marts/mart_decision_latency", "report"} <= waiting and "marts/mart_aiq" not in waiting
        assert shown_stale(instance, workspace) == waiting
        assert ran(instance) <= waiting
        assert shown_stale(instance, workspace) == planned() == set()
        for edit in (another_table, replay.unlink):
            edit()
            waiting = planned()
            assert {"marts/mart_aiq", "report", "leaderboard"} <= waiting, edit
            assert shown_stale(instance, workspace) == waiting, edit
            made = ran(instance)
            assert made <= waiting and "marts/mart_aiq" in made, edit
            assert shown_stale(instance, workspace) == planned() == set(), edit
