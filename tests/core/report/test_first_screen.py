"""Figures of a report, recomputed from raw traces and the outcome table with plain pandas."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from fake_replays import SKILL, fake_problem

from cabs_core import synthetic_problem
from cabs_core.algorithms.problem.gaps import real_values
from cabs_core.report import build_report
from cabs_core.report import evidence as facts
from cabs_core.report.banners import limits
from cabs_core.report.data import PoolData

RHOS = (0, 300, 500, 900)


@pytest.fixture(scope="module")
def verdict(pages):
    return json.loads((pages[1].path.parent / "verdict.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def evidence(pages):
    return facts.load_evidence(PoolData("one", pages[0]))


@pytest.fixture(scope="module")
def outcomes():
    """The outcome table, one row per query and model."""
    problem = fake_problem()
    n, k = problem.scores.shape
    return pd.DataFrame(
        {
            "query_index": np.repeat(np.arange(n), k),
            "action": np.tile(np.arange(k), n),
            "model": np.tile(problem.arms, n),
            "score": problem.scores.ravel(),
            "cost": problem.costs.ravel(),
        }
    )


@pytest.fixture(scope="module")
def rounds(pages, outcomes):
    """Every round of every replay of pool one, with score and cost from the outcome table."""
    parts = [pd.read_parquet(path) for path in sorted((pages[0] / "replay/one").glob("*/*/rounds.parquet"))]
    table = pd.concat(parts).merge(outcomes, on=["query_index", "action"])
    table["utility"] = (table["score"] - table["rho"] * table["cost"]).clip(0, 1)
    return table


def rounds_at(rounds, policy, rho):
    return rounds[(rounds["policy"] == policy) & (rounds["rho"] == rho)].sort_values(["trial", "round"])


def regimes(rounds, policy, column):
    """Mean over the regimes of every trial and query: low has rho 0 and 300, medium 500, high 900."""
    parts = [rounds_at(rounds, policy, rho).assign(weight=1 / 6 if rho < 500 else 1 / 3) for rho in RHOS]
    table = pd.concat([part.assign(gap=part[column] * part["weight"]) for part in parts])
    return table.groupby(["trial", "query_index"], as_index=False)["gap"].sum()


def over_regimes(rounds, policy, column):
    return regimes(rounds, policy, column)["gap"].mean()


def test_the_best_router_is_the_one_of_the_raw_rounds(verdict, rounds):
    real = [p for p in SKILL if p not in ("oracle_best", "lin_ucb_full", "random", "best_single")]
    best = max(real, key=lambda p: over_regimes(rounds, p, "utility"))
    facts_of_report = verdict["facts"]
    assert facts_of_report["router"] == best
    assert facts_of_report["score"] == pytest.approx(over_regimes(rounds, best, "score"), abs=1e-6)
    assert facts_of_report["cost"] == pytest.approx(1000 * over_regimes(rounds, best, "cost"), rel=1e-5)


# ---- facts of the other sections


def test_single_models_are_means_of_the_outcome_table(evidence, outcomes):
    means = outcomes.groupby("model")[["score", "cost"]].mean()
    for m in facts.single_models(evidence).itertuples():
        assert (m.score, m.cost) == pytest.approx(
            (means.loc[m.model, "score"], 1000 * means.loc[m.model, "cost"])
        )
        better = means[
            (means["cost"] <= means.loc[m.model, "cost"]) & (means["score"] > means.loc[m.model, "score"])
        ]
        assert m.front == better.empty


def test_a_cost_that_is_estimated_below_0_is_0():
    problem = synthetic_problem(n=60, K=3, d=4)
    observed = np.zeros((60, 3))
    observed[np.arange(60), np.arange(60) % 3] = 1.0
    too_dear = problem.predicted_costs.copy()
    too_dear[::3, 0] *= 3.0
    gaps = replace(problem, observed=observed, predicted_costs=too_dear)
    models = facts.single_models(facts.Evidence(gaps, folders={}, prompts={})).set_index("model")
    cheapest = models.loc[problem.arms[0]]
    assert real_values(gaps, 0.0).cost[:, 0].mean() < 0
    assert cheapest["cost"] == 0.0 and cheapest["front"]


def test_routing_by_task_shares_and_propensities_from_the_raw_rounds(evidence, rounds):
    played = rounds_at(rounds, "hier_mix", 500)
    played = played.assign(task="task " + (played["query_index"] % 3).astype(str))
    for row in facts.routing_by_task(evidence, "hier_mix", 500.0).itertuples():
        rows = played[played["task"] == row.task]
        shares = rows["model"].value_counts(normalize=True)
        assert row.queries == rows["query_index"].nunique() and row.score == pytest.approx(
            rows["score"].mean()
        )
        assert row.share == pytest.approx(shares.max()) and row.model in shares[shares == shares.max()].index
    windows = facts.shares_over_rounds(evidence, "hier_mix", 500.0, windows=4)
    assert windows.groupby("round")["share"].sum().tolist() == pytest.approx([1.0] * 4)
    last = played[played["round"] >= 45]["model"].value_counts(normalize=True)
    for w in windows[windows["round"] == 60].itertuples():
        assert w.share == pytest.approx(last.get(w.model, 0.0))
    least = rounds.groupby("policy")["propensity"].min()
    for p in facts.smallest_propensities(evidence).itertuples():
        assert p.smallest == pytest.approx(least[p.policy])


def test_examples_are_hits_below_the_mean_price_and_misses_of_others_hits(evidence, outcomes):
    examples = facts.examples(evidence, "hier_mix", 500.0)
    assert set(examples["hit"]) == {True, False} and len(examples) <= 6
    wide = outcomes.pivot(index="query_index", columns="model", values="score")
    for e in examples.itertuples():
        scores = wide.loc[int(e.query_id[1:])]
        assert e.scores == scores[list(e.scores)].to_dict() and e.score == scores[e.model]
        assert (e.score >= 0.5) == e.hit and (e.hit or scores.max() >= 0.5)
        assert e.prompt == f"prompt of <b>{e.query_id}</b>"


def test_calibration_by_hand(evidence):
    bins = facts.calibration(evidence)
    assert bins["predicted"].tolist() == pytest.approx([0.2, 0.7]) and bins["score"].tolist() == [0.0, 1.0]
    assert bins["count"].sum() == evidence.problem.scores.size


def test_banners_name_missing_rhos_and_models_beyond_any_worth(pages):
    data = PoolData("one", pages[0])
    planned = json.loads(data.info["pool_settings"])["replay"]["rhos"]
    banner = limits(data, None)[0]
    assert f"4 of the pool's {len(planned)} values" in banner and "50, 100" in banner
    dear = SimpleNamespace(problem=SimpleNamespace(costs=np.full((5, 3), 0.5)))
    assert len(limits(data, dear)) > len(limits(data, None))


def test_no_term_of_the_field_stands_unexplained_on_the_first_screen(pages):
    """What comes before the table of contents, without commands: a term is allowed where its sentence says
    what it is."""
    page = pages[1].path.read_text(encoding="utf-8")
    first = page[page.index("<main") : page.index('<nav aria-label="Sections"')]
    first = re.sub(r"<script.*?</script>|<code.*?</code>", "", first, flags=re.S)
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", first))
    for sentence in re.split(r"(?<=[.;!?]) ", text):
        if re.search(r"ρ|\b(rho|oracle|regime|surrogate|propensity|arm)s?\b", sentence, re.IGNORECASE):
            assert "dollar value of" in sentence, sentence


def test_a_pool_of_comparisons_speaks_of_no_right_answers_and_a_stopped_collection_says_so(small, tmp_path):
    counts = {"calls": 60.0, "tokens in": 1.0, "tokens out": 1.0, "seconds": 1.0, "usd": 0.1}
    collection = {
        "answers": SimpleNamespace(
            rows=60,
            prompts=60,
            prompts_in_all=300,
            paid=0.5,
            stopped="the budget",
            repriced=["the price of a changed"],
            counts={"model-0": counts},
        ),
        "scores": SimpleNamespace(paid=0.1, limits=[]),
        "instrument": {"scores": {"judge": {"kind": "judge", "against": "model-2"}}, "judges": {}},
        "table": tmp_path / "scores.parquet",
    }
    report = build_report("versus", small, collection=collection)
    page = re.sub(r"<script.*?</script>", "", report.path.read_text(encoding="utf-8"), flags=re.S)
    for words in ("right answer", "dollar value", "answered right", "right, free"):
        assert words not in page.replace("no shares of right answers", ""), words
    assert "comparisons with model-2" in page
    verdict = json.loads((report.path.parent / "verdict.json").read_text())
    assert any("60 of 300 prompts: the budget" in w for w in verdict["warnings"])
    assert any("The price of a changed." in w for w in verdict["warnings"])
