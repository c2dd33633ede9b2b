"""`cabs run` plays one trial of every replay again: verdicts kept, recorded about the partition, asked for once."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest
from click.testing import CliRunner
from tests_support import TINY, home_with

from cabs_core.pools import find_pool
from cabs_dagster.checks import again
from cabs_dagster.checks import results as checks_of_results
from cabs_dagster.checks.again import due_again, play_again
from cabs_dagster.checks.results import REPRODUCIBLE, reproduced, reproducible_result
from cabs_dagster.cli import main
from cabs_dagster.instance import open_instance
from cabs_dagster.planning import Chain
from cabs_dagster.running import Progress, RunFailed, Runner
from cabs_dagster.stages import Target
from cabs_dagster.storage import ArtifactStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RHOS, POLICIES = (0.0, 500.0), ("random", "best_single", "lin_ucb")


@pytest.fixture(scope="module")
def never_verified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CABS_HOME with a finished pool of which no trial was played again."""
    home = tmp_path_factory.mktemp("never_verified")
    with home_with(TINY, home), open_instance() as instance:
        Runner(instance, verify=False).run_pool(find_pool("tiny"), report=False)
    return home


@pytest.fixture
def home(never_verified: Path, cabs_home: Path) -> Path:
    """A copy of it for one test."""
    shutil.copytree(never_verified, cabs_home, dirs_exist_ok=True)
    return cabs_home


def chain() -> Chain:
    return Chain(ArtifactStore(), find_pool("tiny"))


def results(instance: dg.DagsterInstance) -> dict[tuple[str, str], tuple[str, bool]]:
    """{(policy, partition): (status, whether it is about the last materialization)} of the check."""
    keys = [dg.AssetCheckKey(t.key, REPRODUCIBLE) for t in chain().replays([0.0])]
    return {
        (info.check_key.asset_key.path[-1], info.partition_key): (
            info.latest_execution_status.value,
            info.is_current and info.latest_target_materialization_storage_id is not None,
        )
        for info in instance.event_log_storage.get_asset_check_partition_info(keys)
    }


ALL_PASSED = {(p, f"tiny|{r}"): ("SUCCEEDED", True) for p in POLICIES for r in ("0000", "0500")}


def spoil(policy: str, rho: float) -> None:
    """Let a record hold another hash of trial 0 than the one that it plays."""
    store, target = ArtifactStore(), Target("replay", find_pool("tiny").pool, rho, policy)
    record = store.record(target.parts)
    assert record is not None
    lanes = ["0" * 32, *record.summary["_lanes"][1:]]
    store.rewrite_record(target.parts, replace(record, summary={**record.summary, "_lanes": lanes}))


def run(instance: dg.DagsterInstance) -> list[tuple[str, str]]:
    """(event, text) of all that `cabs run` says about playing again."""
    said: list[tuple[str, str]] = []
    progress = Progress(notify=lambda event, text, seconds: said.append((event, text)))
    Runner(instance, progress=progress).run_pool(find_pool("tiny"), report=False)
    return [(event, text) for event, text in said if "again" in text]


def test_every_replay_is_played_again_once(home: Path) -> None:
    with open_instance() as instance:
        assert results(instance) == {}
        assert run(instance) == [("start", "one trial of 6 replays again")]
        assert results(instance) == ALL_PASSED
        told = instance.get_runs(dg.RunsFilter(tags={"cabs/stage": "checks"}))
        assert sorted(run.tags["dagster/partition"] for run in told) == ["tiny|0000", "tiny|0500"]
        assert all(reproduced(status.record) for status in chain().overview() if status.target.policy)
        assert run(instance) == []


def test_a_verdict_is_told_to_another_instance_without_playing(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_instance() as instance:
        run(instance)
    monkeypatch.setenv("DAGSTER_HOME", str(home / "another"))
    monkeypatch.setattr(again, "trial_again", None)  # calling it would fail
    monkeypatch.setattr(checks_of_results, "trial_again", None)
    with open_instance() as instance:
        run(instance)
        assert results(instance) == ALL_PASSED
        check = dg.AssetCheckKey(dg.AssetKey(["replay", "lin_ucb"]), REPRODUCIBLE)
        (found,) = instance.event_log_storage.get_asset_check_execution_history(check, limit=1)
        assert "verdict kept" in found.event.dagster_event.event_specific_data.description


def test_another_outcome_fails_the_command_and_is_recorded(home: Path) -> None:
    spoil("lin_ucb", 500.0)
    done = CliRunner().invoke(main, ["run", "--pool", "tiny", "--no-report"])
    assert done.exit_code == 2
    assert "1 failed when one trial was played again:" in done.output
    assert "replay/lin_ucb [tiny|0500]: trial 0 differed when played again" in done.output
    with open_instance() as instance:
        assert results(instance) == ALL_PASSED | {("lin_ucb", "tiny|0500"): ("FAILED", True)}
        with pytest.raises(RunFailed, match="failed when one trial was played again"):  # it is not forgotten
            run(instance)
        assert results(instance)["lin_ucb", "tiny|0500"] == ("FAILED", True)


def test_a_verdict_that_differs_is_taken_only_where_asked_for(home: Path) -> None:
    spoil("lin_ucb", 500.0)
    whole, target = chain(), Target("replay", find_pool("tiny").pool, 500.0, "lin_ucb")
    record = whole.store.record(target.parts)
    assert record is not None
    first = reproducible_result(target.key, whole, target, record)
    held = whole.store.record(target.parts)
    assert held is not None and not first.passed
    kept = reproducible_result(target.key, whole, target, held, kept=True)
    assert not kept.passed and "verdict kept" in (kept.description or "")
    assert kept.metadata == first.metadata
    repaired = replace(held, summary={**held.summary, "_lanes": [first.metadata["hash now"].value]})
    whole.store.rewrite_record(target.parts, repaired)
    assert reproducible_result(target.key, whole, target, repaired).passed


def test_a_trial_that_cannot_be_played_spoils_no_other(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = again.trial_again

    def broken(chain: Chain, target: Target, threads: int | None = None):
        def fail() -> str:
            raise MemoryError("no memory left")

        return fail if (target.policy, target.rho) == ("random", 0.0) else real(chain, target, threads)

    monkeypatch.setattr(again, "trial_again", broken)
    with open_instance() as instance:
        with pytest.raises(RunFailed, match="replay/random at rho 0: no memory left"):
            run(instance)
        assert results(instance) == {k: v for k, v in ALL_PASSED.items() if k != ("random", "tiny|0000")}


def test_what_was_compared_before_an_interruption_stays(home: Path) -> None:
    with open_instance() as instance:
        whole = chain()
        due = due_again(instance, whole, RHOS, POLICIES)
        for played, problems in play_again(whole, due):
            assert len(played) == 3 and problems == []
            break
        assert len(due_again(instance, chain(), RHOS, POLICIES)) == 6  # Dagster does not know yet
        held = [reproduced(s.record) for s in chain().overview() if s.target.policy and s.record]
        assert held == [True] * 3 + [False] * 3
        run(instance)
        assert results(instance) == ALL_PASSED and due_again(instance, chain(), RHOS, POLICIES) == []


def test_the_command_can_leave_it_out_and_make_up_for_it(home: Path) -> None:
    command = ["run", "--pool", "tiny", "--no-report"]
    done = CliRunner().invoke(main, [*command, "--no-verify"])
    assert done.exit_code == 0 and "again" not in done.output
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0 and "one trial of 6 replays again" in done.output
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0 and "replays again" not in done.output
