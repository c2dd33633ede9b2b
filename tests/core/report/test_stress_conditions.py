"""A pool under a stress condition says so wherever its figures are shown."""

import csv

import numpy as np
import pandas as pd
import pytest
from built_marts import build_all
from fake_replays import fake_pool, write_pool

from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.base.catalog.conditions import CONDITIONS
from cabs_core.base.catalog.policies import asset_name
from cabs_core.data.outcomes.conditions import NOISE
from cabs_core.evaluation.replay import conditions
from cabs_core.evaluation.replay.storage import save_replay_result
from cabs_core.pipeline.stages.replay import play
from cabs_core.report import build_leaderboard, build_report
from cabs_core.report.data import PoolData
from cabs_core.report.evidence import load_evidence, routing_by_task, single_models
from cabs_core.report.names import condition_name, condition_text

SAYS = "Stress test, delayed rewards: rewards come 1 to 200 rounds late, and 1 in 10 never."


@pytest.fixture(scope="module")
def stressed(tmp_path_factory):
    artifacts = tmp_path_factory.mktemp("stressed")
    few = {"n": 20, "rhos": (0.0, 500.0, 900.0), "policies": ["random", "best_single", "lin_ucb"]}
    write_pool(artifacts, fake_pool("plain"), **few)
    write_pool(artifacts, fake_pool("late", replay={"condition": "delayed_rewards"}), **few)
    build_all(artifacts, database=False)
    return artifacts


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_report_without_a_condition_does_not(stressed):
    report = build_report("plain", stressed)
    page = report.path.read_text(encoding="utf-8")
    assert "stress test" not in page.lower() and "Stress" not in report.markdown
    assert report.summary["condition"] == "none"


def test_the_leaderboard_tells_the_pools_apart(stressed):
    board = build_leaderboard(stressed)
    with (board.path.parent / "tables/pools.csv").open(encoding="utf-8") as handle:
        names = " | ".join(row["Pool"] for row in csv.DictReader(handle))
    assert "(synthetic, delayed rewards)" in names and "(synthetic) " in f"{names} "
    assert "(synthetic, delayed rewards)" in board.path.read_text(encoding="utf-8")


def test_every_condition_has_words_and_its_true_numbers():
    assert condition_name("none") == condition_text(None) == ""
    texts = {c: condition_text(c) for c in CONDITIONS if c != "none"}
    assert len(set(texts.values())) == 9 and all(": " in t and "_" not in t for t in texts.values())
    assert f"1 to {conditions.MAX_DELAY} rounds" in texts["delayed_rewards"]
    assert f"1 in {round(1 / conditions.LOST)} never" in texts["delayed_rewards"]
    assert f"{round(10 * NOISE)} in 10" in texts["noisy_oracle"]


@pytest.fixture(scope="module")
def talked(tmp_path_factory):
    """(artifacts, {policy: replay}) of a pool in conversations."""
    artifacts = tmp_path_factory.mktemp("talked")
    options = {"condition": "sessions", "sessions": {"turns": 5, "tools": 0.2}, "rhos": [300], "trials": 2}
    pool = fake_pool("talk", replay=options)
    problem = synthetic_problem(n=60, K=3, d=4, pool="talk")
    problem.save(artifacts / "replay_problem" / "talk" / "test")
    results = {}
    for policy in ("random", "best_single", "ridge", "lin_ucb"):
        results[policy] = play(pool, problem, {}, 300.0, policy, 2)
        folder = artifacts / "replay" / "talk" / "0300" / asset_name(policy)
        save_replay_result(results[policy], problem, folder, pool=pool)
    build_all(artifacts, database=False)
    return artifacts, problem, results


@pytest.mark.slow
def test_conversations_reach_marts_and_page(talked):
    artifacts, _, results = talked
    mart = pd.read_parquet(artifacts / "marts/mart_routing_behaviour.parquet").set_index(["policy", "regime"])
    for policy, result in results.items():
        shown = mart.loc[(policy, "overall"), "switches_per_session"]
        assert shown == pytest.approx(result.switches_per_session().mean())
    board = pd.read_parquet(artifacts / "marts/mart_policy_leaderboard.parquet").set_index("policy")
    assert board.loc["ridge", "cost_per_1000_calls"] == pytest.approx(1000 * results["ridge"].cost)
    page = build_report("talk", artifacts).path.read_text(encoding="utf-8").replace("\u00a0", " ")
    assert "5 turns on average, 20 % of the later turns in tool loops; a turn keeps the model" in page
    assert "40 % of a call" in page and "Switches per conversation" in page
    assert "Regret along the stream" not in page  # nothing changes along it


def test_single_models_are_charged_for_whole_conversations(talked):
    artifacts, problem, results = talked
    found = load_evidence(PoolData("talk", artifacts))
    single = results["best_single"]
    models = single_models(found).set_index("model")
    model = problem.arms[single.actions[0, 0]]
    assert models.loc[model, "cost"] == pytest.approx(1000 * single.cost)
    assert single.cost > problem.costs[:, single.actions[0, 0]].mean()
    by_task = routing_by_task(found, "ridge", 300.0)
    mean = np.average(by_task["cost"], weights=by_task["queries"])
    assert mean == pytest.approx(1000 * results["ridge"].cost, rel=1e-5)
