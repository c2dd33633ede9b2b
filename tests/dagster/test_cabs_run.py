"""`cabs run`, `plan` and `check` on the tiny pool: what is made, what is not, what is said, exit
codes."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import dagster as dg
import duckdb
import pandas as pd
import pytest
from tests_support import TINY, at_home, cabs, chain_of, home_with, output_of

from cabs_core.base.catalog.policies import policies
from cabs_core.pipeline.artifacts import ArtifactStore
from cabs_core.report.plots.page import vega_bundle
from cabs_core.report.verdicts import Case, as_junit, as_markdown
from cabs_dagster.cli.runner import CommandRunner
from cabs_dagster.instance import open_instance
from dbt_like_sql import runner
from dbt_like_sql.artifacts import Marts
from dbt_like_sql.runner import get_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def world(_ran: Path, tmp_path_factory: pytest.TempPathFactory):
    """A CABS_HOME in which the chain of the tiny pool has run."""
    home = shutil.copytree(_ran, tmp_path_factory.mktemp("world"), dirs_exist_ok=True)
    with at_home(home):
        yield home


def launched(**options) -> list[tuple[str, str, tuple[str, ...]]]:
    with open_instance() as instance:
        runner = CommandRunner(instance)
        runner.run_pool(chain_of().pool_file, **options)
        return runner.launched


def test_everything_is_there_and_recorded(world: Path) -> None:
    chain = chain_of()
    assert {status.state for status in chain.overview()} == {"fresh"}
    with open_instance() as instance:
        assert instance.get_materialized_partitions(dg.AssetKey("replay")) == {"tiny|0000", "tiny|0500"}
        event = instance.get_latest_materialization_event(dg.AssetKey("splits"))
        tags = event.asset_materialization.tags
        assert tags["dagster/data_version"] == chain.status(chain.stage("splits")).record.content
        observed = instance.fetch_observations(dg.AssetKey("pool_file"), limit=5).records
        assert {record.asset_observation.partition for record in observed} == {"tiny"}
        assert {r.tags["cabs/pool"] for r in instance.get_runs()} == {"tiny"}
        assert {r.status for r in instance.get_runs()} == {dg.DagsterRunStatus.SUCCESS}
    assert (world / "artifacts" / "reports" / "tiny" / "index.html").is_file()
    assert "nothing changed" in output_of("run", "tiny") and launched() == []


def test_forcing_gives_the_same_bytes(world: Path) -> None:
    def contents() -> dict:
        return {s.target.parts: s.record.content for s in chain_of().overview()}

    before = contents()
    assert launched(force=True, rhos=[500.0], report=False)
    assert contents() == before


def test_a_lost_artifact_is_made_again_and_nothing_else(world: Path) -> None:
    ArtifactStore().delete(("replay", "tiny", "0500", "lin_ucb"))
    created = {s.target.parts: s.record.created for s in chain_of().overview() if s.record}
    assert launched(report=False) == [("replay_pool", "tiny|0500", ("replay",))]
    assert {s.target.parts for s in chain_of().overview() if s.target.parts not in created} == {
        ("replay", "tiny", "0500", "lin_ucb")
    }


def test_a_replay_that_fails_is_said_and_there_is_no_new_verdict(world: Path) -> None:
    cell, report = ArtifactStore().folder(("replay", "tiny", "0500", "lin_ucb")), ("reports", "tiny")
    for parts in (("replay", "tiny", "0500", "lin_ucb"), report):
        ArtifactStore().delete(parts)
    cell.symlink_to("nowhere")  # no folder can be put in its place
    output = output_of("run", "tiny", code=2)
    assert "1 of 2 rhos" in output and "lin_ucb" in output
    assert not ArtifactStore().folder(report).exists()
    cell.unlink()
    output_of("run", "tiny")
    assert ArtifactStore().folder(report).is_dir()


def test_what_was_altered_is_made_again_before_anything_is_shown(world: Path) -> None:
    """A replay, the database of the marts, pages, and what is put into pages."""
    trials = ArtifactStore().folder(("replay", "tiny", "0000", "random")) / "trials.parquet"
    trials.write_bytes(trials.read_bytes()[:-30] + bytes(30))
    assert "trials.parquet was altered" in output_of("plan", "tiny")
    database = world / "artifacts" / "marts" / "cabs.duckdb"
    database.write_bytes(database.read_bytes()[:5000])
    reports = world / "artifacts" / "reports"
    vega_bundle()
    (script,) = (world / "cache" / "pages").glob("*.js")
    whole = {
        path: path.read_bytes()
        for path in (reports / "index.html", reports / "tables" / "leaderboard.csv", script)
    }
    for path, data in whole.items():
        path.write_bytes(data.replace(b"e", b"3"))
    verdict, record = reports / "tiny" / "verdict.json", reports / "tiny" / "provenance.json"
    verdict.write_bytes(verdict.read_bytes().replace(b"0.", b"9."))
    record.write_bytes(record.read_bytes()[:-50])
    output_of("run", "tiny")
    assert {status.state for status in chain_of().overview()} == {"fresh"}
    with duckdb.connect(str(database), read_only=True) as connection:
        assert connection.execute("SELECT count(*) FROM mart_policy_leaderboard").fetchone()[0] > 0
    for path in (reports / "index.html", reports / "tables" / "leaderboard.csv"):
        assert path.read_bytes() == whole[path]
    page = (reports / "tiny" / "index.html").read_text(encoding="utf-8")
    assert whole[script].decode() in page, "the script comes from a cache that was altered"
    assert json.loads(verdict.read_text())["previous"] is None, "compared with a verdict that was altered"
    assert launched() == []


def test_a_rho_without_a_replay_is_an_error_where_it_is_named(world: Path) -> None:
    """Without names it is a warning, because a run of some rhos is allowed."""
    output_of("check", "tiny", "--quick")
    ArtifactStore().delete(("replay", "tiny", "0500"))
    output = output_of("check", "tiny", "--quick", "--rho", "500", code=1)
    text = "replay [tiny|0500]: up_to_date: not there: `cabs run --pool tiny --rho 500` plays it"
    assert f"error    {text}" in output
    assert f"warning  {text}" in output_of("check", "tiny", "--quick")
    assert "0500" not in output_of("check", "tiny", "--quick", "--rho", "0")
    ArtifactStore().delete(("replay", "tiny", "0000"))
    assert "0000" in output_of("check", "tiny", "--quick", "--rho", "0", code=1)
    output_of("run", "tiny")


def test_altered_marts_and_pages_fail_the_gate(world: Path) -> None:
    output_of("check", "tiny", "--quick")
    artifacts = world / "artifacts"
    board = artifacts / "marts" / "mart_policy_leaderboard.parquet"
    rows = pd.read_parquet(board)
    rows.assign(utility=rows["utility"] / 2).to_parquet(board)
    (artifacts / "marts" / "records" / "mart_aiq.json").unlink()
    board_record = artifacts / "leaderboard" / "provenance.json"
    board_record.write_bytes(board_record.read_bytes()[:-50])
    for path in ("marts/cabs.duckdb", "reports/tiny/index.html", "reports/index.html"):
        with (artifacts / path).open("ab") as file:
            file.write(b"more")
    output = output_of("check", "tiny", "--quick", code=1)
    for place, text in {
        "marts/mart_policy_leaderboard": "mart_policy_leaderboard.parquet is missing or was altered",
        "marts/mart_aiq": "mart_aiq.parquet has no record that can be read",
        "database": "cabs.duckdb is not as it was built",
        "report [tiny]": "index.html was altered since it was written",
    }.items():
        assert f"error    {place}: whole: {text}: `cabs run --pool tiny` makes it again" in output, place
    assert "error    leaderboard: whole: " in output
    output_of("run", "tiny")
    output_of("check", "tiny", "--quick")


def test_the_pool_file_decides_what_the_report_compares(world: Path) -> None:
    """Words of the file reach the report without a replay, and a policy that was taken out leaves it."""
    path = world / "pools" / "tiny.yaml"
    page = world / "artifacts" / "reports" / "tiny" / "index.html"
    before = path.read_text(encoding="utf-8")
    output_of("run", "tiny")
    path.write_text(f"{before}title: Another title\ndescription: Said anew.\n", encoding="utf-8")
    assert "versions/pool_files changed" in output_of("plan", "tiny")
    assert launched() and launched() == []
    assert "Another title" in page.read_text(encoding="utf-8")
    path.write_text(f"{before}title: Another title\ndescription: Said once more.\n", encoding="utf-8")
    output_of("run", "tiny")
    assert "Said once more." in page.read_text(encoding="utf-8")

    fewer = before.replace(", lin_ucb]", "]")
    path.write_text(fewer.replace("trials: 2", "trials: 2, order_seed: 11"), encoding="utf-8")
    output_of("run", "tiny")
    assert ArtifactStore().record(("replay", "tiny", "0500", "lin_ucb")) is not None
    marts = world / "artifacts" / "marts"
    of_pool = [("pool", "=", "tiny")]
    board = pd.read_parquet(marts / "mart_policy_leaderboard.parquet", filters=of_pool)
    assert set(board["policy"]) == {"random", "best_single", "ridge"}
    (provenance,) = pd.read_parquet(marts / "mart_provenance.parquet", filters=of_pool).to_dict("records")
    assert (provenance["query_orders"], provenance["unnamed_runs"]) == (1, 2)
    path.write_text(before, encoding="utf-8")
    output_of("run", "tiny")


def test_a_mart_whose_test_failed_stops_a_run_until_it_passes(world: Path, monkeypatch) -> None:
    right, report = runner.run_tests, world / "artifacts" / "reports" / "tiny" / "index.html"

    def wrong(name, session):
        results = right(name, session)
        return [replace(r, passed=r.passed and r.name != "arm_shares_sum_to_one") for r in results]

    with monkeypatch.context() as broken:
        broken.setattr(runner, "run_tests", wrong)
        marts = Marts(ArtifactStore())
        with marts.session() as session:
            marts.run(get_model("mart_arm_shares"), session, force=True)  # as a run before left it
        before = report.stat().st_mtime_ns
        assert "arm_shares_sum_to_one" in output_of("run", "tiny", code=2)
        assert report.stat().st_mtime_ns == before
        output_of("check", "--pool", "tiny", "--quick", code=1)
    output_of("run", "tiny")


def test_replays_of_a_policy_that_is_not_installed_stay_out_with_one_line(world: Path, monkeypatch) -> None:
    file, text = world / "pools" / "tiny.yaml", (world / "pools" / "tiny.yaml").read_text()
    file.write_text(text.replace("ridge, ", ""))
    with monkeypatch.context() as removed:
        removed.delitem(policies(), "ridge")
        for _ in range(2):  # also where nothing else is to be made
            leaves_out = "leave out policy ridge of pool tiny: no installed package"
            assert output_of("run", "tiny").count(leaves_out) == 1
        board = pd.read_parquet(world / "artifacts" / "marts" / "mart_policy_leaderboard.parquet")
        assert set(board["policy"]) == {"random", "best_single", "lin_ucb"}
    file.write_text(text)
    assert "leave out" not in output_of("run", "tiny")


def test_json_is_all_that_is_printed(world: Path) -> None:
    done = cabs("run", "tiny", "--force", "--rho", "500", "--policies", "random", "--json")
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    said = {"verdict", "why", "newest", "goal", "missing"}
    assert set(printed) == {"pool", "seconds", "runs", "report", *said}
    assert printed["pool"] == "tiny" and printed["missing"] == ""
    assert printed["report"].endswith("reports/tiny/index.html")
    assert ["prepare_pool", "replay_pool"] == [run["job"] for run in printed["runs"]][:2]
    assert "1/1 rho 500: " in done.stderr, "progress goes elsewhere"
    done = cabs("check", "--pool", "tiny", "--rho", "0", "--quick", "--json")
    cases = json.loads(done.stdout)
    assert done.exit_code == 0 and {case["outcome"] for case in cases} <= {"passed", "warning"}
    assert {"place", "name", "outcome", "text", "run_id"} == set(cases[0])


def test_a_damaged_database_of_dagster_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    with home_with(TINY, tmp_path / "home"):
        with open_instance() as instance:
            instance.add_dynamic_partitions("pools", ["x"])
        index = tmp_path / "home" / "dagster" / "history" / "runs" / "index.db"
        data = bytearray(index.read_bytes())
        data[100:5000] = bytes(4900)  # the header stays
        index.write_bytes(data)
        output = output_of("run", "tiny", code=2)
    assert "move that folder away" in output and len(output) < 1000


def test_junit_and_markdown_of_all_outcomes() -> None:
    cases = [
        Case("a [p|1]", "x", "passed", ""),
        Case("a [p|1]", "y", "warning", "odd <value> & more"),
        Case("b", "z", "error", "bad\x00 \ufffe \ud800 \u2026"),
        Case("b", "w", "broken", "no result"),
    ]
    root = ElementTree.fromstring(as_junit(cases))
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("4", "1", "1")
    assert root.find(".//system-out").text == "warning: odd <value> & more"
    assert root.find(".//failure").text == "bad      \u2026"
    text = as_markdown(cases)
    assert text.startswith("## cabs check: failed") and "a [p\\|1]" in text
    assert as_markdown([]).startswith("## cabs check: failed")
