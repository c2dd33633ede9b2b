"""The whole chain of the tiny pool in one process: run, no-op, changes, checks, the gate, retention, remote store."""

from __future__ import annotations

import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import dagster as dg
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from tests_support import home_with

from cabs_core.pools import find_pool
from cabs_core.replay.latency import DECISIONS
from cabs_dagster.checks.gate import Case, as_junit, as_markdown
from cabs_dagster.cli import main
from cabs_dagster.instance import open_instance
from cabs_dagster.planning import Chain
from cabs_dagster.retention import TRACE_FILE, prunable, prune
from cabs_dagster.running import Progress, RunFailed, Runner
from cabs_dagster.stages import TIMES
from cabs_dagster.storage import ArtifactStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TINY = """\
name: tiny
synthetic: true
source: {kind: synthetic, queries: 200}
split: {fractions: [0.5, 0.2, 0.3]}
encoder: {name: tfidf-svd}
oracle: {kind: ridge}
features: {kind: pca, dim: 8}
replay: {trials: 2, rhos: [0, 777]}
tuning_budget: 2
policies: [random, best_single, lin_ucb, lin_ucb_full]
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory):
    """A CABS_HOME in which the chain of the tiny pool has run."""
    home = tmp_path_factory.mktemp("world")
    with home_with(TINY, home), open_instance() as instance:
        run(instance)
        yield home, instance


def run(instance, **options) -> Progress:
    return Runner(instance, progress=Progress()).run_pool(find_pool("tiny"), **options)


def test_everything_is_there_and_recorded(world) -> None:
    home, instance = world
    chain = Chain(ArtifactStore(), find_pool("tiny"))
    assert {status.state for status in chain.overview()} == {"fresh"}
    assert instance.get_materialized_partitions(dg.AssetKey(["replay", "lin_ucb"])) == {
        "tiny|0000",
        "tiny|0777",
    }
    assert instance.get_materialized_partitions(dg.AssetKey(["replay", "hier_mix"])) == set()
    event = instance.get_latest_materialization_event(dg.AssetKey(["splits"]))
    assert (
        event.asset_materialization.tags["dagster/data_version"]
        == chain.status(chain.stage("splits")).record.content
    )
    assert (home / "artifacts" / "reports" / "tiny" / "index.html").is_file()
    runs = instance.get_runs()
    assert all(r.status == dg.DagsterRunStatus.SUCCESS and r.tags["cabs/pool"] == "tiny" for r in runs)


def test_running_again_launches_nothing(world) -> None:
    _, instance = world
    begin = time.perf_counter()
    assert run(instance).launched == []
    assert time.perf_counter() - begin < 30


def test_forcing_gives_the_same_bytes(world) -> None:
    _, instance = world
    chain = Chain(ArtifactStore(), find_pool("tiny"))
    before = {s.target.parts: s.record.content for s in chain.overview()}
    run(instance, force=True, rhos=[777.0], report=False)
    after = {s.target.parts: s.record.content for s in Chain(chain.store, chain.pool_file).overview()}
    assert after == before


def test_measuring_decisions_again_changes_the_times_and_no_data_version(world) -> None:
    _, instance = world
    store = ArtifactStore()

    def record():
        return store.record(("decision_latency", "tiny"))

    replay = next(Chain(store, find_pool("tiny")).replays([777.0], ["lin_ucb"]))
    before, replayed = record(), store.record(replay.parts)
    assert before.volatile == (TIMES,) and set(before.files) == {TIMES, "design.json"}
    rows = pq.read_table(store.folder(("decision_latency", "tiny")) / TIMES).to_pandas()
    assert rows["policy"].value_counts().to_dict() == dict.fromkeys(
        find_pool("tiny").pool.policies, DECISIONS
    )
    store.delete(("decision_latency", "tiny"))
    launched = run(instance, report=False).launched  # nothing that depends on data is made again
    assert [(s.job, [k.path[-1] for k in s.assets]) for s in launched] == [
        ("prepare_pool", ["decision_latency"])
    ]
    assert record().files[TIMES] != before.files[TIMES] and record().content == before.content
    event = instance.get_latest_materialization_event(dg.AssetKey(["decision_latency"])).asset_materialization
    assert event.tags["dagster/data_version"] == before.content
    assert store.record(replay.parts) == replayed
    run(instance)  # the marts show the new times
    mart = (
        pq.read_table(store.root / "marts" / "mart_decision_latency.parquet").to_pandas().set_index("policy")
    )
    calls = pq.read_table(store.folder(("decision_latency", "tiny")) / TIMES).to_pandas()
    own = calls[calls["policy"] == "lin_ucb"]["decide_us"]
    assert mart.loc["lin_ucb", "decide_p99_us"] == pytest.approx(own.quantile(0.99))
    assert run(instance).launched == []


def test_a_lost_artifact_is_made_again_and_nothing_else(world) -> None:
    _, instance = world
    ArtifactStore().delete(("replay", "tiny", "0777", "lin_ucb"))
    launched = run(instance, report=False).launched
    assert [(s.job, [k.path[-1] for k in s.assets]) for s in launched] == [("replay_policies", ["lin_ucb"])]


def test_a_partition_that_the_pool_does_not_have_fails_with_a_message(world) -> None:
    _, instance = world
    runner = Runner(instance)
    with pytest.raises(RunFailed, match="does not replay rho 50"):
        runner.run_pool(find_pool("tiny"), rhos=[50.0], report=False)


def test_the_gate_passes_records_and_writes(world, tmp_path: Path) -> None:
    _, instance = world
    junit, markdown = tmp_path / "j.xml", tmp_path / "m.md"
    done = CliRunner().invoke(
        main, ["check", "--pool", "tiny", "--rho", "0", "--junit", str(junit), "--markdown", str(markdown)]
    )
    assert done.exit_code == 0, done.output
    cases = ElementTree.parse(junit).getroot().findall(".//testcase")
    names = {(c.get("classname"), c.get("name")) for c in cases}
    assert ("replay/lin_ucb [tiny|0000]", "reproducible") in names
    assert ("outcomes [tiny]", "scores_in_range") in names
    assert "passed" in markdown.read_text().splitlines()[0]
    key = dg.AssetCheckKey(dg.AssetKey(["replay", "lin_ucb"]), "reproducible")
    record = instance.event_log_storage.get_asset_check_execution_history(key, limit=1)[0]
    assert record.status.value == "SUCCEEDED"


def test_the_gate_fails_on_a_damaged_trace(world) -> None:
    path = ArtifactStore().folder(("replay", "tiny", "0000", "random")) / TRACE_FILE
    good = path.read_bytes()
    try:
        path.write_bytes(good[:-20])
        done = CliRunner().invoke(main, ["check", "--pool", "tiny", "--rho", "0", "--quick"])
        assert done.exit_code == 1
        assert "was altered" in done.output and "replay/random" in done.output
    finally:
        path.write_bytes(good)


def test_pruned_traces_leave_checks_and_reports_working(world) -> None:
    _, instance = world
    store = ArtifactStore()
    assert list(prunable(store, 1.0)) == []
    assert list(prunable(store, 0.0, keep_pools=("tiny",))) == []
    (trace,) = [t for t in prunable(store, 0.0) if t.parts == ("replay", "tiny", "0777", "random")]
    prune(store, trace)
    assert not (store.folder(trace.parts) / TRACE_FILE).exists()
    assert trace.parts not in [t.parts for t in prunable(store, 0.0)]
    done = CliRunner().invoke(main, ["check", "--pool", "tiny", "--rho", "777", "--quick"])
    assert done.exit_code == 0, done.output
    assert run(instance).launched  # the round-level marts are rebuilt without it
    assert run(instance).launched == []


def test_the_command_line_reports_errors_with_code_two(world) -> None:
    done = CliRunner().invoke(main, ["run", "--pool", "nothing"])
    assert done.exit_code == 2 and "no pool called 'nothing'" in done.output
    done = CliRunner().invoke(main, ["run", "--pool", "tiny", "--rho", "123"])
    assert done.exit_code == 2 and "123" in done.output
    done = CliRunner().invoke(main, ["run", "--pool", "tiny", "--policies", "lin_uvb"])
    assert done.exit_code == 2 and "lin_ucb" in done.output
    done = CliRunner().invoke(main, ["report", "--pool", "tiny"])
    assert done.exit_code == 0 and done.output.strip().endswith("index.html")
    for arguments in (["pool", "list"], ["pool", "show", "tiny"], ["plan", "--pool", "tiny"], ["instance"]):
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0 and done.output, arguments


def test_junit_and_markdown_of_all_outcomes() -> None:
    cases = [
        Case("a [p|1]", "x", "passed", ""),
        Case("a [p|1]", "y", "warning", "odd <value> & more"),
        Case("b", "z", "error", "bad\x00 \u2026"),
        Case("b", "w", "broken", "no result"),
    ]
    root = ElementTree.fromstring(as_junit(cases))
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("4", "1", "1")
    assert root.find(".//system-out").text == "warning: odd <value> & more"
    text = as_markdown(cases)
    assert text.startswith("## cabs check: failed") and "a [p\\|1]" in text
    assert as_markdown([]).startswith("## cabs check: failed")
