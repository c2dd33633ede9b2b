"""A pool under a stress condition says so wherever its figures are shown."""

import csv

import pytest
from fake_replays import fake_pool, write_pool

from cabs_core.catalog import CONDITIONS
from cabs_core.outcomes.conditions import NOISE
from cabs_core.replay import conditions
from cabs_core.report import build_leaderboard, build_report
from cabs_core.report.names import condition_name, condition_text
from dbt_like_sql import build_all

SAYS = "Stress test, delayed rewards: rewards come 1 to 200 rounds late, and 1 in 10 never."


@pytest.fixture(scope="module")
def stressed(tmp_path_factory):
    artifacts = tmp_path_factory.mktemp("stressed")
    few = {"n": 20, "rhos": (0.0, 500.0, 900.0), "policies": ["random", "best_single", "lin_ucb"]}
    write_pool(artifacts, fake_pool("plain"), **few)
    write_pool(artifacts, fake_pool("late", replay={"condition": "delayed_rewards"}), **few)
    build_all(artifacts, database=False)
    return artifacts


def test_the_report_states_the_condition(stressed):
    report = build_report("late", stressed)
    page = report.path.read_text(encoding="utf-8")
    assert "<title>Fake pool late – routing report, stress test: delayed rewards</title>" in page
    lead = page[page.index('<p class="lead">') :].split("</p>")[0].replace("\u00a0", " ")
    assert SAYS in lead
    assert '<p class="badge">Stress test: delayed rewards</p>' in page
    assert "delayed_rewards (Stress test, delayed rewards: rewards come" in page[
        page.index('id="provenance"') :
    ].replace("\u00a0", " ")
    assert SAYS in report.markdown and report.summary["condition"] == "delayed_rewards"


def test_a_report_without_a_condition_does_not(stressed):
    report = build_report("plain", stressed)
    page = report.path.read_text(encoding="utf-8")
    assert "stress test" not in page.lower() and "Stress" not in report.markdown
    assert report.summary["condition"] == "none"


def test_the_leaderboard_tells_the_pools_apart(stressed):
    board = build_leaderboard(stressed)
    with (board.path.parent / "tables/leaderboard.csv").open(encoding="utf-8") as handle:
        columns = " | ".join(next(csv.reader(handle)))
    assert "late (synthetic, delayed rewards)" in columns and "plain (synthetic)" in columns
    assert "(synthetic, delayed rewards)" in board.path.read_text(encoding="utf-8")


def test_every_condition_has_words_and_its_true_numbers():
    assert condition_name("none") == condition_text(None) == ""
    texts = {c: condition_text(c) for c in CONDITIONS if c != "none"}
    assert len(set(texts.values())) == 8 and all(": " in t and "_" not in t for t in texts.values())
    assert f"1 to {conditions.MAX_DELAY} rounds" in texts["delayed_rewards"]
    assert f"1 in {round(1 / conditions.LOST)} never" in texts["delayed_rewards"]
    assert f"{round(10 * NOISE)} in 10" in texts["noisy_oracle"]
