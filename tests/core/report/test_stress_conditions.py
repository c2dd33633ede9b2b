"""A pool under a stress condition says so wherever its figures are shown."""

import csv

import numpy as np
import pytest
from built_marts import read_model
from small_pools import talked

from cabs_core.base.catalog.conditions import CONDITIONS
from cabs_core.data.outcomes.conditions import NOISE
from cabs_core.evaluation.replay import conditions
from cabs_core.report import build_leaderboard, build_report
from cabs_core.report.data import PoolData
from cabs_core.report.evidence import load_evidence, routing_by_task, single_models
from cabs_core.report.names import condition_name, condition_text

SAYS = "Stress test, delayed rewards: rewards come 1 to 200 rounds late, and 1 in 10 never."


@pytest.mark.slow
def test_the_report_states_the_condition(small):
    report = build_report("late", small)
    page = report.path.read_text(encoding="utf-8").replace("\u00a0", " ")
    assert "<title>Fake pool late – routing report, stress test: delayed rewards</title>" in page
    lead = page[page.index('<p class="lead">') :].split("</p>")[0]
    assert SAYS in lead
    assert '<p class="badge">Stress test: delayed rewards</p>' in page
    provenance = page[page.index('id="provenance"') :]
    assert "delayed_rewards (Stress test, delayed rewards: rewards come" in provenance
    assert SAYS in report.markdown and report.summary["condition"] == "delayed_rewards"


def test_a_report_without_a_condition_does_not(pages):
    report = pages[1]
    page = report.path.read_text(encoding="utf-8")
    assert "stress test" not in page.lower() and "Stress" not in report.markdown
    assert report.summary["condition"] == "none"


def test_the_leaderboard_tells_the_pools_apart(small):
    board = build_leaderboard(small)
    with (board.path.parent / "tables/pools.csv").open(encoding="utf-8") as handle:
        names = [row["Pool"] for row in csv.DictReader(handle)]
    marked = [name for name in names if "(synthetic, delayed rewards)" in name]
    assert len(marked) == 1 and sum("(synthetic)" in name for name in names) > 1
    assert "(synthetic, delayed rewards)" in board.path.read_text(encoding="utf-8")


def test_every_condition_has_words_and_its_true_numbers():
    assert condition_name("none") == condition_text(None) == ""
    texts = {c: condition_text(c) for c in CONDITIONS if c != "none"}
    assert len(set(texts.values())) == 9 and all(": " in t and "_" not in t for t in texts.values())
    assert f"1 to {conditions.MAX_DELAY} rounds" in texts["delayed_rewards"]
    assert f"1 in {round(1 / conditions.LOST)} never" in texts["delayed_rewards"]
    assert f"{round(10 * NOISE)} in 10" in texts["noisy_oracle"]


@pytest.mark.slow
def test_conversations_reach_marts_and_page(small):
    _, _, results = talked()
    where = "pool = 'talk'"
    mart = read_model("mart_routing_behaviour", small, where).set_index(["policy", "regime"])
    for policy, result in results.items():
        switches = mart.loc[(policy, "overall"), "switches_per_session"]
        assert switches == pytest.approx(result.switches_per_session().mean())
    board = read_model("mart_policy_leaderboard", small, where).set_index("policy")
    assert board.loc["ridge", "cost_per_1000_calls"] == pytest.approx(1000 * results["ridge"].cost)
    page = build_report("talk", small).path.read_text(encoding="utf-8").replace("\u00a0", " ")
    assert "5 turns on average, 20 %" in page
    assert "40 % of a call" in page and "Switches per conversation" in page
    assert "Regret along the stream" not in page  # nothing changes along it


def test_single_models_are_charged_for_whole_conversations(small):
    _, problem, results = talked()
    evidence = load_evidence(PoolData("talk", small))
    single = results["best_single"]
    models = single_models(evidence).set_index("model")
    model = problem.arms[single.actions[0, 0]]
    assert models.loc[model, "cost"] == pytest.approx(1000 * single.cost)
    assert single.cost > problem.costs[:, single.actions[0, 0]].mean()
    by_task = routing_by_task(evidence, "ridge", 300.0)
    mean = np.average(by_task["cost"], weights=by_task["queries"])
    assert mean == pytest.approx(1000 * results["ridge"].cost, rel=1e-5)
