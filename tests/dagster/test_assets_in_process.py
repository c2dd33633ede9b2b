"""Assets and checks by `dg.materialize`: metadata, caching of cells, failures, partitions that a pool does
not have."""

from __future__ import annotations

import logging
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import cabs_assets.data
import cabs_assets.marts
import cabs_assets.oracles
import cabs_assets.replay
import cabs_assets.router
import dagster as dg
import pyarrow.parquet as pq
import pytest
from tests_support import at_home, chain_of

from cabs_core.base.paths import deployed_folder
from cabs_core.data.inputs import plain
from cabs_core.data.validation.catalog import CHECKS, CheckResult
from cabs_core.pipeline.artifacts import Options, Target, make_artifact
from cabs_core.pipeline.stages.replay import ReplaySummary
from cabs_core.router.bundle import read_manifest
from cabs_dagster import partitions
from cabs_dagster.build import resources
from cabs_dagster.checks import data_results
from cabs_dagster.metadata import FOUND, table
from cabs_dagster.specs import DEPLOYS, STAGE_TAG
from dbt_like_sql.artifacts import Marts
from dbt_like_sql.runner import get_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
outcomes = cabs_assets.data.outcomes.define()
pool_file = cabs_assets.data.pool_file.define()
splits = cabs_assets.data.splits.define()
marts = cabs_assets.marts.marts.define()
MODELS = cabs_assets.marts.models()
replay = cabs_assets.replay.replay.define()
replay_audit = cabs_assets.replay.replay_audit.define()
router = cabs_assets.router.router.define()
tuning = cabs_assets.oracles.tuning.define()
deployed_router = cabs_assets.router.deployed_router.define()


@pytest.fixture(scope="module")
def world(staged: Path, tmp_path_factory: pytest.TempPathFactory):
    """A CABS_HOME with the finished stages of the tiny pool, and an instance that knows its partitions."""
    home = shutil.copytree(staged, tmp_path_factory.mktemp("world"), dirs_exist_ok=True)
    with (
        at_home(home),
        dg.DagsterInstance.local_temp(str(tmp_path_factory.mktemp("instance"))) as instance,
    ):
        partitions.register(instance, chain_of().store)
        yield home, instance


@dg.asset(
    deps=["deployed_router"],
    partitions_def=partitions.pools(),
    automation_condition=dg.AutomationCondition.eager(),
)
def announced() -> None:
    """An asset of a team behind the deployed router."""


def observation_of(result: dg.ExecuteInProcessResult) -> dg.AssetObservation:
    """The one observation of a run."""
    (event,) = result.get_asset_observation_events()
    return event.asset_observation_data.asset_observation


def run_of_router(instance: dg.DagsterInstance, tags: dict[str, str]) -> dg.ExecuteInProcessResult:
    """A run of the job that the router and the deployed router have in common."""
    job = dg.define_asset_job("both", dg.AssetSelection.assets(router.key, "deployed_router"))
    both = dg.Definitions(assets=[router, deployed_router], jobs=[job], resources=resources())
    run = both.resolve_job_def("both")
    return run.execute_in_process(instance=instance, partition_key="tiny", tags=tags, raise_on_error=False)


def make(instance: dg.DagsterInstance, assets: list, key: Any, **config: Any) -> dg.ExecuteInProcessResult:
    return dg.materialize(
        assets,
        instance=instance,
        resources=resources(),
        partition_key=key,
        run_config=config or None,
        raise_on_error=False,
    )


def check_of(result: dg.ExecuteInProcessResult, name: str) -> dg.AssetCheckEvaluation:
    """The result of the check of this name, of which there is one."""
    (evaluation,) = [e for e in result.get_asset_check_evaluations() if e.check_name == name]
    return evaluation


def failure_of(result: dg.ExecuteInProcessResult) -> str:
    """What the one step that failed says."""
    (failure,) = [e for e in result.all_events if e.is_step_failure]
    return failure.step_failure_data.user_failure_data.description


def cell_states(result: dg.ExecuteInProcessResult) -> dict[str, str]:
    (event,) = result.asset_materializations_for_node("replay")
    value = event.metadata["policies"]
    assert isinstance(value, dg.TableMetadataValue)
    return {record.data["policy"]: record.data["state"] for record in value.records}


def test_only_changed_cells_of_a_partition_are_computed(world) -> None:
    _, instance = world
    key = partitions.grid_key("tiny", 500)
    first = make(instance, [replay], key)
    assert first.success and set(cell_states(first).values()) == {"computed"}
    again = make(instance, [replay], key)
    assert set(cell_states(again).values()) == {"reused"}
    versions = [
        r.asset_materializations_for_node("replay")[0].tags["dagster/data_version"] for r in (first, again)
    ]
    assert versions[0] == versions[1]
    chain_of().store.delete(("replay", "tiny", "0500", "lin_ucb"))
    assert cell_states(make(instance, [replay], key)) == {
        "random": "reused",
        "best_single": "reused",
        "lin_ucb": "computed",
    }
    assert {e.check_name for e in again.get_asset_check_evaluations() if e.passed} == {"trace", "plausible"}


def test_the_router_is_made_checked_and_deployed_once(world) -> None:
    _, instance = world
    team = dg.Definitions(assets=[router, deployed_router, announced], resources=resources())
    first = dg.evaluate_automation_conditions(team, instance)
    only_made = run_of_router(instance, {})
    assert only_made.success and not only_made.asset_materializations_for_node("deployed_router")
    observed = observation_of(only_made)
    assert observed.partition == "tiny" and observed.data_version == "none"
    assert "deploy_pool" in observed.metadata[FOUND].value
    assert {"not_worse", "comparable"} <= {e.check_name for e in only_made.get_asset_check_evaluations()}
    assert not deployed_folder("tiny").exists()
    made = run_of_router(instance, {STAGE_TAG: DEPLOYS})
    (promotion,) = made.asset_materializations_for_node("deployed_router")
    deployed = read_manifest(deployed_folder("tiny")).id
    assert promotion.metadata["promoted"].value is True
    assert promotion.metadata["challenger"].value == observation_of(made).data_version == deployed
    # an asset of a team that waits for promotions is asked for once
    second = dg.evaluate_automation_conditions(team, instance, cursor=first.cursor)
    assert second.get_requested_partitions(announced.key) == {"tiny"}
    again = run_of_router(instance, {STAGE_TAG: DEPLOYS})
    assert again.success and not again.asset_materializations_for_node("deployed_router")
    assert "deployed already" in observation_of(again).metadata[FOUND].value
    third = dg.evaluate_automation_conditions(team, instance, cursor=second.cursor)
    assert not third.total_requested
    (event,) = made.asset_materializations_for_node("router")
    metadata = event.metadata
    assert {r.data["policy"] for r in metadata["table"].records} == set(chain_of().pool.policies)
    assert "Router for pool tiny" in metadata["model card"].value
    assert "cabs export" in metadata["export"].value
    verdicts = {e.check_name: e for e in made.get_asset_check_evaluations()}
    assert set(verdicts) == {"same_decisions", "latency", "size", "not_worse", "comparable"}
    assert {name for name, verdict in verdicts.items() if verdict.passed} >= set(verdicts) - {"latency"}
    assert verdicts["same_decisions"].severity == dg.AssetCheckSeverity.ERROR
    assert (deployed_folder("tiny") / "router.json").is_file()
    job = dg.Definitions(assets=[router], resources=resources()).resolve_implicit_global_asset_job_def()
    checks = {spec.key for spec in router.check_specs}
    part = job.get_subset(asset_selection=set(), asset_check_selection=checks)
    of_no_pool = part.execute_in_process(instance=instance, raise_on_error=False)  # "Execute all" in the UI
    failure = failure_of(of_no_pool)
    assert "choose a partition (tiny)" in failure and "cabs check NAME" in failure
    assert not any(e.is_step_up_for_retry for e in of_no_pool.all_events)
    again = part.execute_in_process(instance=instance, partition_key="tiny")
    assert {e.check_name for e in again.get_asset_check_evaluations() if e.passed} >= {
        "same_decisions",
        "size",
    }
    assert not again.asset_materializations_for_node("router")


def test_one_bad_cell_fails_the_check_keeps_the_others_and_is_all_that_a_retry_computes(
    world, monkeypatch
) -> None:
    home, instance = world
    key, folder = partitions.grid_key("tiny", 500), home / "artifacts" / "replay" / "tiny" / "0500"
    make(instance, [replay], key)
    chain_of().store.delete(("replay", "tiny", "0500", "random"))
    (folder / "random").write_text("a file where the cell's folder has to go")
    failed = make(instance, [replay], key)
    assert not failed.success
    states = cell_states(failed)
    assert states["random"].startswith("failed: ") and states["lin_ucb"] == states["best_single"] == "reused"
    trace = check_of(failed, "trace")
    assert not trace.passed and "random" in (trace.description or "")
    (folder / "random").unlink()
    assert cell_states(make(instance, [replay], key))["random"] == "computed"


def test_a_run_of_some_policies_shows_all_that_are_there(world) -> None:
    _, instance = world
    key, some = partitions.grid_key("tiny", 500), {"ops": {"replay": {"config": {"policies": ["lin_ucb"]}}}}
    for policy in ("random", "best_single", "lin_ucb"):
        chain_of().store.delete(("replay", "tiny", "0500", policy))
    part = make(instance, [replay], key, **some)
    assert part.success
    assert cell_states(part) == {
        "lin_ucb": "computed",
        "random": "not played yet",
        "best_single": "not played yet",
    }
    trace = check_of(part, "trace")
    assert not trace.passed and trace.severity == dg.AssetCheckSeverity.WARN
    assert "random, best_single" in (trace.description or "")
    whole = make(instance, [replay], key)
    chain_of().store.delete(("replay", "tiny", "0500", "lin_ucb"))
    again = make(instance, [replay], key, **some)
    assert cell_states(again) == {"lin_ucb": "computed", "random": "reused", "best_single": "reused"}
    events = [r.asset_materializations_for_node("replay")[0] for r in (whole, again)]
    assert len({e.tags["dagster/data_version"] for e in events}) == 1
    assert len({e.metadata["dagster/row_count"].value for e in events}) == 1
    assert all(e.passed for e in again.get_asset_check_evaluations())


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["nonsense"], "unknown policy 'nonsense'"),
        (["best_singel", "best_single"], "Did you mean 'best_single'?"),
        (["hier_mix"], "hier_mix is not among the policies of pool tiny: random, best_single, lin_ucb."),
    ],
)
def test_a_policy_that_the_pool_does_not_have_is_refused(world, names: list[str], text: str) -> None:
    _, instance = world
    for asset, key in ((replay, partitions.grid_key("tiny", 500)), (tuning, "tiny")):
        config = {asset.key.path[-1]: {"config": {"policies": names}}}
        result = make(instance, [asset], key, ops=config)
        assert not result.success
        assert text in failure_of(result)


def test_a_rho_of_another_pool_is_nothing_to_do_unless_it_is_asked_for(world) -> None:
    _, instance = world
    instance.add_dynamic_partitions("rhos", ["0900"])
    key, foreign = partitions.grid_key("tiny", 900), {"ops": {"replay": {"config": {"foreign": True}}}}
    nothing = make(instance, [replay], key)
    assert nothing.success and all(check.passed for check in nothing.get_asset_check_evaluations())
    assert not chain_of().store.children(("replay", "tiny", "0900"))
    assert not [e for e in instance.all_logs(nothing.run_id) if e.level >= logging.WARNING]
    result = make(instance, [replay], key, **foreign)
    assert result.success and set(cell_states(result).values()) == {"computed"}
    for rho in (0, 500):
        make(instance, [replay], partitions.grid_key("tiny", rho))
    sql = Marts(chain_of().store)
    with sql.session() as session:
        sql.run(get_model("stg_pools"), session)
        model = sql.run(get_model("stg_replay_runs"), session)
    runs = pq.read_table(next(model.folder.glob("stg_replay_runs*.parquet"))).to_pandas()
    assert set(runs["rho"]) >= {0.0, 500.0, 900.0}
    assert set(runs.loc[runs["is_compared"], "rho"]) == {0.0, 500.0}
    chain_of().store.delete(("replay", "tiny", "0900"))


def test_checks_alone_look_at_the_files(world) -> None:
    _, instance = world
    key = partitions.grid_key("tiny", 500)
    make(instance, [replay], key)
    trace = chain_of().store.folder(("replay", "tiny", "0500", "random")) / "rounds.parquet"
    good = trace.read_bytes()
    job = dg.Definitions(assets=[replay], resources=resources()).resolve_implicit_global_asset_job_def()
    checks = {dg.AssetCheckKey(dg.AssetKey("replay"), name) for name in ("trace", "plausible")}
    try:
        trace.write_bytes(good[:-20])
        part = job.get_subset(asset_selection=set(), asset_check_selection=checks)
        result = part.execute_in_process(instance=instance, partition_key=str(key), raise_on_error=False)
        altered = check_of(result, "trace")
        assert not altered.passed and "was altered" in (altered.description or "")
    finally:
        trace.write_bytes(good)


def test_the_audit_plays_a_sample_again_and_finds_a_replay_that_differs(world) -> None:
    _, instance = world
    for rho in (0, 500):
        make(instance, [replay], partitions.grid_key("tiny", rho))
    result = make(instance, [replay_audit], "tiny", ops={"replay_audit": {"config": {"cells": 3, "seed": 7}}})
    (check,) = result.get_asset_check_evaluations()
    assert check.passed and check.description.startswith("3 replays")
    target = Target("replay", chain_of().pool, 0.0, "random")

    then = ReplaySummary.of(chain_of().store.record(target.parts))

    def other_hashes(chain, target, folder: Path, inputs, options) -> ReplaySummary:
        (folder / "x").write_text("1")
        return replace(then, lanes=["somethingelse"])

    make_artifact(chain_of(), target, Options(force=True), build=other_hashes)
    try:
        result = make(instance, [replay_audit], "tiny", ops={"replay_audit": {"config": {"cells": 99}}})
        (check,) = result.get_asset_check_evaluations()
        assert not check.passed and "random at rho 0" in (check.description or "")
        assert check.partition == "tiny"  # a later audit of another pool does not hide the failure
    finally:
        make_artifact(chain_of(), target, Options(force=True))


def test_data_stages_have_two_checks_with_a_table_of_expectations(world) -> None:
    _, instance = world
    for asset, name in ((outcomes, "outcomes"), (splits, "splits")):
        result = make(instance, [asset], "tiny")
        checks = {e.check_name: e for e in result.get_asset_check_evaluations()}
        assert set(checks) == {"valid", "plausible"} and checks["valid"].passed
        value = checks["valid"].metadata["expectations"]
        assert all(record.data["passed"] for record in value.records) and len(value.records) > 1, name


def test_columns_of_a_table_are_those_that_were_written(world) -> None:
    home, instance = world
    for asset, name, partition in (
        (outcomes, "outcomes", "tiny"),
        (splits, "splits", "tiny"),
        (replay, "replay", partitions.grid_key("tiny", 0)),
    ):
        result = make(instance, [asset], partition)
        (made,) = result.asset_materializations_for_node(name)
        columns = made.metadata["dagster/column_schema"].value.columns
        files = ["rounds"] if name == "replay" else ["queries", name]
        paths = [p for f in files for p in sorted((home / "artifacts" / name).rglob(f"{f}.parquet"))]
        assert {c.name: c.type for c in columns} == {
            field.name: str(field.type) for path in paths for field in pq.read_schema(path)
        }
        assert all(column.description for column in columns) and "latency" not in {c.name for c in columns}


def test_marts_have_schema_lineage_and_tests(world) -> None:
    _, instance = world
    for rho in (0, 500):
        make(instance, [replay], partitions.grid_key("tiny", rho))
    result = dg.materialize([marts], instance=instance, resources=resources())
    events = {e.asset_key: e for e in result.asset_materializations_for_node("sql_models")}
    assert set(events) == {*MODELS, dg.AssetKey("database")}
    board = events[dg.AssetKey(["marts", "mart_policy_leaderboard"])]
    assert {"dagster/column_schema", "dagster/column_lineage", "dagster/row_count"} <= set(board.metadata)
    assert (
        pq.read_metadata(board.metadata["location"].value).num_rows
        == board.metadata["dagster/row_count"].value
    )
    assert Path(board.metadata["SQL file"].value).name == "mart_policy_leaderboard.sql"
    again = dg.materialize([marts], instance=instance, resources=resources())
    computed = {
        e.metadata["computed"].value
        for e in again.asset_materializations_for_node("sql_models")
        if e.asset_key in MODELS
    }
    assert computed == {"reused, nothing changed"}


@pytest.mark.parametrize("damage", ["altered", "no record"])
def test_marts_refuse_replays_that_are_not_what_was_recorded(world, damage: str) -> None:
    _, instance = world
    make(instance, [replay], partitions.grid_key("tiny", 500))
    folder = chain_of().store.folder(("replay", "tiny", "0500", "best_single"))
    name = "provenance.json" if damage == "no record" else "trials.parquet"
    good = (folder / name).read_bytes()
    try:
        if damage == "altered":
            (folder / name).write_bytes(good[:200] + bytes([good[200] ^ 1]) + good[201:])
        else:
            (folder / name).unlink()
        result = dg.materialize([marts], instance=instance, resources=resources(), raise_on_error=False)
        assert not result.success
        failure = failure_of(result)
        assert "tiny" in failure and "best_single" in failure
    finally:
        (folder / name).write_bytes(good)


def test_what_dagster_knows_of_a_pool_file(tiny_pool: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance:

        def due():
            return partitions.planner_in(instance, chain_of().store)

        assert partitions.observe(instance, due()) == {}
        assert partitions.observations(instance, due())[0] == []
        (record,) = instance.fetch_observations(dg.AssetKey("pool_file"), limit=1).records
        metadata = {name: value.value for name, value in record.asset_observation.metadata.items()}
        assert metadata["rhos"] == "0, 500" and metadata["policies"] == "random, best_single, lin_ucb"
        assert metadata["due"].startswith("all of it")
        tiny_pool.write_text(tiny_pool.read_text().replace("trials: 2", "trials: 3"))
        assert partitions.observe(instance, due()) == {"tiny": ["replay.trials: 2 -> 3"]}
        assert partitions.observe(instance, due()) == {}
    assert isinstance(pool_file, dg.AssetSpec)


def test_a_table_takes_its_types_from_the_values() -> None:
    value = table([{"a": "x", "b": None, "c": True}, {"a": "y", "b": 1.5, "c": False}])
    assert {c.name: c.type for c in value.schema.columns} == {"a": "string", "b": "float", "c": "bool"}
    assert table([]).records == []


def test_a_failing_check_of_data_says_what_to_do() -> None:
    """A stage's summary, the check's page and the alert say the same."""
    means = next(spec.means for spec in CHECKS if spec.name == "split_sizes")
    small = CheckResult("split_sizes", False, "ERROR", "test 8", "at least 10 queries in each", means)
    (result,) = data_results("splits", [plain(small)], {"valid"})
    assert result.description == small.failure
    assert re.search(r"split_sizes.*test 8.*at least 10", small.failure)
    assert "add prompts" in small.failure and "`accept: [split_sizes]`" in small.failure
