"""Calls are paid for where that is asked for: the job collect_pool, or a step whose config says so."""

from __future__ import annotations

from pathlib import Path

import cabs_assets.data
import dagster as dg
import pytest
from click.testing import CliRunner
from collect_support import Running, write_pool

from cabs_core.data.pools.find import find_pool
from cabs_core.pipeline.commands.collect_cli import collect
from cabs_dagster.build import build_defs
from cabs_dagster.checks import POOL_ASSETS
from cabs_dagster.cli.gate import run_checks
from cabs_dagster.job_names import COLLECT
from cabs_dagster.jobs import jobs
from cabs_dagster.resources import CabsResource


@pytest.fixture
def job(cabs_home: Path, provider: Running) -> dg.JobDefinition:
    write_pool(cabs_home / "pools", provider.port, n=6)
    collect = next(job for job in jobs() if job.name == COLLECT)
    plain = dg.define_asset_job("plain", dg.AssetSelection.assets("answers", "scores"))
    assets = [cabs_assets.data.answers.define(), cabs_assets.data.scores.define()]
    defs = dg.Definitions(assets, jobs=[collect, plain], resources={"cabs": CabsResource()})
    return lambda name: defs.resolve_job_def(name)


def test_a_run_pays_only_where_it_is_asked_to(job, provider: Running) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("pools", ["asked"])

        def run(name: str, **config: dict) -> dg.ExecuteInProcessResult:
            return job(name).execute_in_process(
                instance=instance,
                partition_key="asked",
                raise_on_error=False,
                run_config={"ops": {op: {"config": c} for op, c in config.items()}},
            )

        refused = run("plain")
        (failure,) = [e for e in refused.all_events if e.is_step_failure]
        assert "job collect_pool" in failure.step_failure_data.user_failure_data.description
        assert provider.answered() == 0
        assert run(COLLECT).success
        paid = provider.answered()
        assert paid
        assert run("plain").success  # all of it is there
        assert not run("plain", answers={"force": True}).success
        assert run("plain", answers={"force": True, "pay": True}).success
        assert provider.answered() == paid  # what was paid for is kept
        cases = run_checks(find_pool("asked"), instance, audit=False)
        assert ("scores [asked]", "instrument") in {(case.place, case.name) for case in cases}


def test_the_command_says_what_was_asked_scored_and_paid(cabs_home: Path, provider: Running) -> None:
    write_pool(cabs_home / "pools", provider.port, n=6)
    done = CliRunner().invoke(collect, ["asked"])
    assert done.exit_code == 0, done.output
    words = ("6 of 6 prompts, ", ": mean score ", "answers: ", "scores: ", " in the run that made them")
    assert all(word in done.stdout for word in words), done.stdout


def test_the_gate_knows_every_check_of_the_code_location() -> None:
    checked = {key.asset_key.to_user_string() for key in build_defs().resolve_asset_graph().asset_check_keys}
    known = {*POOL_ASSETS, "replay", "replay_audit"}
    assert {asset for asset in checked if asset.split("/")[0] not in ("marts", "staging")} == known
