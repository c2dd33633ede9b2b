"""The first screen: every number on it, recomputed from raw traces and the outcome table with plain
pandas."""

import json
import math
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from built_marts import build_all
from fake_replays import SKILL, fake_pool, fake_problem, write_pool
from scipy.stats import norm, t

from cabs_core.base.errors import round_up
from cabs_core.base.statistics import Error, tail_factor
from cabs_core.base.units import money
from cabs_core.report import build_report
from cabs_core.report import evidence as facts
from cabs_core.report import verdict as verdicts
from cabs_core.report.cards import fields, usual
from cabs_core.report.changes import changes, previous_facts
from cabs_core.report.data import PoolData
from cabs_core.report.gap import Bounded, decide, estimate
from cabs_core.report.savings import savings_against_models
from cabs_core.report.tables import saving_span, saving_text

RHOS = (0, 300, 500, 900)


@pytest.fixture(scope="module")
def verdict(pages):
    return json.loads((pages[1].path.parent / "verdict.json").read_text(encoding="utf-8"))


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


def own(rounds, policy, rho):
    return rounds[(rounds["policy"] == policy) & (rounds["rho"] == rho)].sort_values(["trial", "round"])


def by_regime(rounds, policy, column):
    """Mean of the regimes: low has rho 0 and 300, medium 500, high 900."""
    at = {rho: own(rounds, policy, rho)[column].mean() for rho in RHOS}
    return ((at[0] + at[300]) / 2 + at[500] + at[900]) / 3


def error(gap):
    """(standard error of mean(gap), degrees of freedom): variances over trials and over queries added,
    Welch's degrees of freedom; over queries by the formula, not by resampling."""
    parts = []
    for unit in ("trial", "query_index"):
        means = gap.groupby(unit)["gap"].mean()
        parts.append((means.var(ddof=1 if unit == "trial" else 0) / len(means), len(means) - 1))
    total = sum(v for v, _ in parts)
    return math.sqrt(total), total**2 / sum(v**2 / df for v, df in parts)


def interval(gap, compared, unit=1.0):
    """(below, above) of the two-sided interval of mean(gap), 5 % divided by the number of routers: Student's
    t, wider by the lumps of a skewed side, and at least one unit of the range in the share of traffic that so
    many queries may have missed."""
    se, freedom = error(gap)
    means = gap.groupby("query_index")["gap"].mean().to_numpy()
    parts = (means - means.mean()) / len(means)
    lump, z = (parts**3).sum() / (parts**2).sum(), t.ppf(1 - 0.025 / compared, freedom)
    found = []
    for h, far in ((max(-lump, 0), -parts.min()), (max(lump, 0), parts.max())):
        usual = h + z * math.hypot(se, h) + (norm.ppf(1 - 0.025 / compared) ** 2 - 1) / 3 * h
        missed = unit * (1 - (0.05 / compared) ** (1 / len(means)))
        found.append(max(usual, missed) if unit else usual + far * (h > 0))
    return found


def holds(estimate, value, reach):
    below, above = reach
    assert estimate["low"] == pytest.approx(value - below, abs=0.03 * below + 1e-4)
    assert estimate["high"] == pytest.approx(value + above, abs=0.03 * above + 1e-4)


def hull_cost(points, target):
    """Lowest cost at which any mix of two points (cost, score) reaches the score, by brute force."""
    found = [c for c, s in points if s >= target]
    for c0, s0 in points:
        for c1, s1 in points:
            if s0 < target < s1:
                found.append(c0 + (target - s0) / (s1 - s0) * (c1 - c0))
    return min(found, default=math.nan)


def test_the_winner_is_the_best_real_router_of_the_raw_rounds(pages, verdict, rounds):
    real = [p for p in SKILL if p not in ("oracle_best", "lin_ucb_full", "random", "best_single")]
    best = max(real, key=lambda p: by_regime(rounds, p, "utility"))
    assert verdict["overall"]["router"] == best and verdict["overall"]["compared"] == len(real)
    data = PoolData("one", pages[0])
    for case in verdict["by_value"]:
        regime = "low" if case["rho"] <= 300 else "medium" if case["rho"] < 800 else "high"
        if case["router"] != best:
            assert data.pair(case["router"], best, regime)["p_adjusted"] < 0.05
        assert case["value_usd"] == (None if case["rho"] == 0 else pytest.approx(1 / case["rho"]))
    assert [case["rho"] for case in verdict["by_value"]] == list(RHOS)


def test_quality_cost_and_difference_over_all_values(verdict, rounds):
    case = verdict["overall"]
    for mine, policy in (("", case["router"]), ("model_", "best_single")):
        assert case[f"{mine}score"] == pytest.approx(by_regime(rounds, policy, "score"), abs=1e-6)
        assert case[f"{mine}cost"] == pytest.approx(1000 * by_regime(rounds, policy, "cost"), rel=1e-5)
    gap = by_regime(rounds, case["router"], "utility") - by_regime(rounds, "best_single", "utility")
    assert case["utility"]["value"] == pytest.approx(gap, abs=1e-6)
    assert case["utility"]["low"] < gap < case["utility"]["high"] and case["queries"] == 60


def decision(case):
    """The rule in words: more utility, or as good (within 0.01) and 5 % cheaper; neither; or nobody can
    tell."""
    utility, quality, saved = case["utility"], case["quality"], case["saved"]
    if utility["low"] > 0 or (quality["low"] > -0.01 and saved["low"] > 0.05):
        return "deploy"
    may_save = quality["high"] >= -0.01 and saved["high"] >= 0.05
    return "keep" if utility["high"] < 0.01 and not may_save else "unsure"


def test_quality_cost_difference_gain_and_decision_at_every_value(verdict, rounds):
    for case in verdict["by_value"]:
        rho = case["rho"]
        a, b = own(rounds, case["router"], rho), own(rounds, "best_single", rho)
        assert (a["query_index"].to_numpy() == b["query_index"].to_numpy()).all()
        assert case["score"] == pytest.approx(a["score"].mean(), abs=1e-6)
        assert case["cost"] == pytest.approx(1000 * a["cost"].mean(), rel=1e-5)
        assert case["model_score"] == pytest.approx(b["score"].mean(), abs=1e-6)
        assert case["model_cost"] == pytest.approx(1000 * b["cost"].mean(), rel=1e-5)
        assert case["model"] == b["model"].mode()[0]
        both = a.assign(gap=a["utility"].to_numpy() - b["utility"].to_numpy())
        gap = both["gap"].mean()
        assert case["utility"]["value"] == pytest.approx(gap, abs=1e-6)
        holds(case["utility"], gap, interval(both, case["compared"]))
        assert case["decision"] == decision(case)
        quality = a.assign(gap=a["score"].to_numpy() - b["score"].to_numpy())
        assert case["quality"]["value"] == pytest.approx(quality["gap"].mean(), abs=1e-6)
        holds(case["quality"], quality["gap"].mean(), interval(quality, case["compared"]))
        left = a["cost"].mean() / b["cost"].mean()
        assert case["saved"]["value"] == pytest.approx(1 - left, abs=1e-5)
        # Fieller: the shares r for which the mean of cost - r * the model's may be 0; wider for a heavy tail
        for end, side in ("low", 1), ("high", 0):
            r = 1 - case["saved"][end]
            apart = a.assign(gap=a["cost"].to_numpy() - r * b["cost"].to_numpy())
            times = abs(r - left) * b["cost"].mean() / interval(apart, case["compared"], 0.0)[side]
            assert 0.98 <= times <= 1.4 or r == 0
        below, above = interval(a.assign(gap=a["score"]), 1)
        assert case["score_high"] == pytest.approx(min(case["score"] + above, 1), abs=1e-3)
        assert case["score_low"] == pytest.approx(case["score"] - below, abs=1e-3)
        if rho:
            worth = 1000 * ((a["score"] / rho - a["cost"]).mean() - (b["score"] / rho - b["cost"]).mean())
            assert case["gain"]["value"] == pytest.approx(worth, rel=1e-4)
            assert case["gain"]["low"] < worth < case["gain"]["high"]
        else:
            assert case["gain"] is None


def regimes(rounds, policy, column):
    """Mean over the regimes of every trial and query."""
    parts = [own(rounds, policy, rho).assign(weight=1 / 6 if rho < 500 else 1 / 3) for rho in RHOS]
    table = pd.concat([part.assign(gap=part[column] * part["weight"]) for part in parts])
    return table.groupby(["trial", "query_index"], as_index=False)["gap"].sum()


def paired_regimes(rounds, policy):
    """Router minus best single model, mean over the regimes, of every trial and query."""
    both = (regimes(rounds, p, "utility") for p in (policy, "best_single"))
    ours, single = (table.set_index(["trial", "query_index"])["gap"] for table in both)
    return (ours - single).reset_index()


def test_intervals_over_all_values_and_of_gains(verdict, rounds, outcomes, pages):
    known = facts.load_evidence(PoolData("one", pages[0])).problem.priced
    case = verdict["overall"]
    gap = paired_regimes(rounds, case["router"])
    holds(case["utility"], case["utility"]["value"], interval(gap, case["compared"]))
    assert case["decision"] == decision(case)
    below, above = interval(regimes(rounds, case["router"], "score"), 1)
    assert case["score_high"] == pytest.approx(min(case["score"] + above, 1), abs=1e-3)
    assert case["score_low"] == pytest.approx(case["score"] - below, abs=1e-3)
    for case in verdict["by_value"]:
        rho = case["rho"]
        if rho:
            a, b = own(rounds, case["router"], rho), own(rounds, "best_single", rho)
            worth = [1000 * (x["score"] / rho - x["cost"]).to_numpy() for x in (a, b)]
            gap = worth[0] - worth[1]
            less = 1000 * (b["cost"].mean() - a["cost"].mean())
            # a call that nobody has seen costs the dearest one, or 40 times the difference, away from 0
            unseen = 40 * (1 - 0.05 ** (1 / known))
            dearest = 1000 * outcomes["cost"].max()
            farther = max(dearest, 40 * abs(less) / (1 - unseen) * 60 / known)
            units = (farther, dearest) if less < 0 else (dearest, farther)
            reach = [
                interval(a.assign(gap=gap), case["compared"], 1000 / rho + unit)[side]
                for side, unit in enumerate(units)
            ]
            holds(case["gain"], gap.mean(), reach)


def test_prompts_are_asked_for_where_and_only_where_the_case_is_open(verdict):
    for case in (verdict["overall"], *verdict["by_value"]):
        assert case["decision"] == "unsure" or case["prompts_needed"] is None
        assert case["prompts_needed"] is None or case["prompts_needed"] >= 1
        assert case["queries"] == case["independent"] == 60


@pytest.mark.slow
def test_savings_at_equal_quality_by_brute_force(pages, rounds, outcomes):
    artifacts = pages[0]
    evidence = facts.load_evidence(PoolData("one", artifacts))
    points = [(p["cost"].mean(), p["score"].mean()) for p in (own(rounds, "hier_mix", r) for r in RHOS)]
    tables = {r: own(rounds, "hier_mix", r).groupby("query_index")[["score", "cost"]].mean() for r in RHOS}
    rng = np.random.default_rng(5)
    for row in savings_against_models(evidence, "hier_mix").itertuples():
        alone = outcomes[outcomes["model"] == row.model].sort_values("query_index")
        cost = hull_cost(points, alone["score"].mean())
        share = math.nan if math.isnan(cost) else 1 - cost / alone["cost"].mean()
        assert row.share == pytest.approx(share, abs=1e-5, nan_ok=True)
        if math.isnan(share) or math.isnan(row.low):
            continue
        shares = []
        for _ in range(400):
            draw = rng.integers(0, len(alone), len(alone))
            again = [(t["cost"].iloc[draw].mean(), t["score"].iloc[draw].mean()) for t in tables.values()]
            cost = hull_cost(again, alone["score"].iloc[draw].mean())
            shares.append(-math.inf if math.isnan(cost) else 1 - cost / alone["cost"].iloc[draw].mean())
        paid = sum(t["cost"] for t in tables.values()) / len(tables) + alone["cost"].to_numpy()
        left = (1 - np.quantile(shares, [0.025, 0.975])) / (1 - share)
        low, high = 1 - (1 - share) * left ** tail_factor(paid)
        assert row.low == pytest.approx(low, abs=0.06) and row.high == pytest.approx(high, abs=0.06)


def test_the_page_and_the_markdown_show_these_numbers(pages, verdict):
    """What the cards say of a verdict is tested below, on verdicts made by hand."""
    _, report, _ = pages
    page = report.path.read_text(encoding="utf-8")
    values = sorted(verdict["by_value"], key=lambda v: -v["rho"])
    first = usual([SimpleNamespace(decision=v["decision"], saved=None) for v in values])
    assert verdict["headline"] == report.summary["verdict"] and f"<h2>{verdict['headline']}</h2>" in page
    cases = json.loads(
        re.search(r"</div>\s*<script type=\"application/json\">(\[.*?\])</script>", page, flags=re.S).group(1)
    )
    assert page.count("<option value=") == len(RHOS), "the slider has a mark at every value that was played"
    assert len(cases) == len(RHOS)
    shown = dict(re.findall(r'data-field="(\w+)">([^<]*)<', page))
    assert shown["month"] == money(100 * cases[first]["cost"])
    assert {name: shown[name] for name in cases[first]["text"]} == cases[first]["text"]
    note = (report.path.parent / "verdict.md").read_text(encoding="utf-8")
    assert note == report.markdown and note.startswith(f"## Fake pool one: {verdict['headline']}")
    for c, v in zip(cases, values, strict=True):
        keep = v["decision"] == "keep"
        assert c["decision"] == v["decision"] and c["gain"] == (v["gain"] and v["gain"]["value"])
        assert c["cost"] == v["model_cost" if keep else "cost"]
        assert c["other_cost"] == v["cost" if keep else "model_cost"]
        assert c["text"]["quality"] == f"{100 * v['model_score' if keep else 'score']:.1f}\u00a0%"
        interval = f"{v['utility']['low']:+.3f} to {v['utility']['high']:+.3f}".replace("-", "−")
        assert interval in c["text"]["why"] and interval in note
        at = f"--policy {v['router']} --rho {v['rho']:g}"
        assert c["text"]["export"] == f"cabs export --pool one {at} --out one-router"
    assert verdict["export_command"] == cases[first]["text"]["export"]


# ---- facts of the other sections


@pytest.fixture(scope="module")
def evidence(pages):
    return facts.load_evidence(PoolData("one", pages[0]))


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


def test_routing_by_task_shares_and_propensities_from_the_raw_rounds(evidence, rounds):
    played = own(rounds, "hier_mix", 500).assign(task=lambda t: "task " + (t["query_index"] % 3).astype(str))
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
    found = facts.examples(evidence, "hier_mix", 500.0)
    assert set(found["hit"]) == {True, False} and len(found) <= 6
    wide = outcomes.pivot(index="query_index", columns="model", values="score")
    for e in found.itertuples():
        scores = wide.loc[int(e.query_id[1:])]
        assert e.scores == scores[list(e.scores)].to_dict() and e.score == scores[e.model]
        assert (e.score >= 0.5) == e.hit and (e.hit or scores.max() >= 0.5)
        assert e.prompt == f"prompt of <b>{e.query_id}</b>"


def test_calibration_by_hand(evidence):
    bins = facts.calibration(evidence)
    assert bins["predicted"].tolist() == pytest.approx([0.2, 0.7]) and bins["score"].tolist() == [0.0, 1.0]
    assert bins["count"].sum() == evidence.problem.scores.size


# ---- the decision


def around(value, half):
    return Bounded(value) if math.isnan(half) else Bounded(value, value - half, value + half)


@pytest.mark.parametrize(
    ("utility", "quality", "saved", "decision"),
    [
        ((0.1, 0.02), (0.1, 0.02), (0.0, 0.5), "deploy"),  # it gains
        (
            (0.1, 0.02),
            (-0.1, 0.02),
            (0.9, 0.05),
            "deploy",
        ),  # it loses quality that costs more than it is worth
        (
            (0.0, 0.004),
            (0.004, 0.01),
            (0.34, 0.1),
            "deploy",
        ),  # as good and cheaper: what no utility at rho 0 can see
        ((0.0, 0.004), (-0.004, 0.01), (0.34, 0.1), "unsure"),  # cheaper, and perhaps 1.4 points worse
        ((0.0, 0.004), (0.0, 0.004), (0.34, 0.4), "unsure"),
        ((0.0, 0.004), (0.0, 0.004), (0.03, 0.01), "keep"),  # as good, and hardly cheaper
        ((-0.1, 0.02), (-0.1, 0.02), (0.5, 0.01), "keep"),  # cheaper and clearly worse
        ((0.02, 0.04), (0.02, 0.04), (0.0, 0.01), "unsure"),
        ((0.1, math.nan), (0.1, math.nan), (0.5, math.nan), "unsure"),
        ((0.0, 0.004), (0.0, 0.004), None, "keep"),  # the model is free
    ],
)
def test_decisions(utility, quality, saved, decision):
    assert decide(around(*utility), around(*quality), saved and around(*saved)) == decision


def test_more_routers_widen_the_interval_and_more_queries_would_tell():
    error = Error(0.02, math.inf)
    one, many = (estimate(0.05, error, k) for k in (1, 20))
    assert one.above(0.0) and not many.above(0.0) and one.low == pytest.approx(0.05 - 1.96 * 0.02, abs=1e-4)
    assert one.high - one.value == pytest.approx(one.value - one.low)
    assert round_up(785) == 790 and round_up(12_345) == 13_000 and round_up(7) == 7


def verdict_at(value, decision, router="hier_mix", model="gpt-x", **changed):
    figures = {
        "utility": around(0.05, 0.04),
        "quality": around(0.1, 0.02),
        "saved": around(0.3, 0.1),
        "queries": 100,
        "independent": 100,
        "prompts_needed": 1234 if decision == "unsure" else None,
        "score": 0.8,
        "score_low": 0.7,
        "score_high": 0.9,
        "cost": 1.5,
        "model_score": 0.7,
        "model_cost": 2.0,
    }
    rho = None if value is None else 1 / value
    return verdicts.Verdict(
        **{
            "rho": rho,
            "value_usd": value,
            "decision": decision,
            "router": router,
            "compared": 3,
            "model": model,
        }
        | figures
        | changed
    )


def test_headlines_and_cards_of_all_decisions():
    shown = fields(verdict_at(0.05, "deploy"), "one")
    assert shown["headline"] == "Deploy Hier-mix"
    assert shown["against"] == "Hier-mix instead of gpt-x"
    assert shown["trade"] == "+10.0 points, saves 30 %"
    assert shown["trade_note"] == (
        "+10.0 points of quality (95 % interval +8.0 to +12.0); saves 30 % (95 % interval 20 to 40 % less)"
    )
    assert shown["export"] == "cabs export --pool one --policy hier_mix --rho 20 --out one-router"
    kept = fields(verdict_at(0.05, "keep"), "one")
    assert kept["headline"] == "Keep model gpt-x" and kept["quality"] == "70.0 %" and kept["cost"] == "$2.00"
    assert (
        kept["trade_note"].startswith("would be +10.0 points")
        and kept["take"] == "To try Hier-mix all the same:"
    )
    unsure = fields(verdict_at(None, "unsure"), "one")
    assert unsure["headline"] == "Not enough data to tell (about 1,300 more prompts would do)"
    assert "--rho" not in unsure["export"]
    just = [
        fields(verdict_at(0.1, "unsure", at_limit=True, prompts_needed=n), "one")["why"] for n in (90, None)
    ]
    assert ["no number of prompts" in text for text in just] == [False, True]
    as_good = verdict_at(0.05, "deploy", utility=around(0.0, 0.004), quality=around(0.004, 0.01))
    assert "answers as well as gpt-x" in fields(as_good, "one")["why"]
    free = verdict_at(0.05, "keep", saved=None, model_cost=0.0)
    assert fields(free, "one")["trade_note"].endswith("; gpt-x costs nothing")


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.123, "saves 12 %"),
        (0.004, "costs the same"),
        (-0.09, "costs 9 % more"),
        (-0.999, "costs 100 % more"),
        (-1.0, "costs 2.0 times as much"),
        (-38.16, "costs 39 times as much"),
        (math.nan, ""),
    ],
)
def test_what_a_router_costs_beside_a_model(share, text):
    assert saving_text(share) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0.06, 0.19, "6 to 19 % less"),
        (-0.09, -0.02, "2 to 9 % more"),
        (-0.09, 0.04, "4 % less to 9 % more"),
        (-4.0, -1.5, "2.5 to 5.0 times as much"),
        (-4.0, -0.2, "20 % more to 5.0 times as much"),
    ],
)
def test_what_a_router_costs_at_both_ends_of_an_interval(low, high, text):
    assert saving_span(low, high) == text


def test_the_page_begins_with_a_case_that_stands_for_the_others_and_saves_if_any_does():
    def number(*cases):
        return usual([verdict_at(0.05, decision, saved=around(saved, 0.1)) for decision, saved in cases])

    assert number(("deploy", -0.2), ("deploy", 0.3), ("deploy", 0.4), ("keep", 0.5), ("unsure", 0.5)) == 1
    assert number(("deploy", 0.3), ("keep", 0.0), ("keep", 0.0), ("keep", 0.0)) == 2
    assert number(("deploy", -0.2), ("deploy", -0.2), ("deploy", 0.05)) == 1, "nothing is saved for sure"


def test_one_router_is_named_unless_another_is_better_beyond_noise():
    pairs = {
        ("knn", "low"): (0.02, False),
        ("ridge", "low"): (0.01, True),
        ("ridge", "high"): (-0.1, True),
        ("knn", "high"): (0.3, None),
    }

    def pair(policy, _, regime):
        found = pairs.get((policy, regime))
        return found and {"difference": found[0], "significant_adjusted": found[1]}

    names, data = ["carrot", "knn", "ridge"], SimpleNamespace(pair=pair)
    chosen = [verdicts._router_of(data, names, regime) for regime in ("low", "medium", "high")]
    assert chosen == ["ridge", "carrot", "carrot"]


def test_comparisons_are_no_right_answers_and_have_no_value_in_dollars():
    compares = verdict_at(0.05, "deploy", against="max", gain=None, value_usd=None)
    shown = fields(compares, "one")
    assert "comparisons with max" in shown["why"] and "right answer" not in shown["why"]
    assert shown["value"] == "ρ = 20"
    other = verdict_at(0.01, "keep", against="max", gain=None, value_usd=None)
    said = verdicts.summary([compares, compares, other])
    assert "right answer" not in said and "$" not in said and "at ρ = 20" in said


def test_a_pool_of_comparisons_speaks_of_no_right_answers_and_a_stopped_collection_says_so(tmp_path):
    judge = {
        "kind": "judge",
        "model": "j",
        "against": "model-2",
        "max_usd": 1,
        "rubric": "Prefer the right answer.",
    }
    source = {"kind": "collect", "path": str(tmp_path / "prompts.csv")}
    models = [f"model-{j}" for j in range(5)]
    asked = {"upstreams": "u.yaml", "max_usd": 1, "scores": [judge]}
    pool = fake_pool("versus", source=source, models=models, collect=asked)
    write_pool(tmp_path, pool, policies=["random", "best_single", "lin_ucb", "hier_mix"])
    build_all(tmp_path, database=False)
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
    report = build_report("versus", tmp_path, collection=collection)
    page = re.sub(r"<script.*?</script>", "", report.path.read_text(encoding="utf-8"), flags=re.S)
    for words in ("right answer", "dollar value", "answered right", "right, free"):
        assert words not in page.replace("no shares of right answers", ""), words
    assert "Comparisons won" in page and "comparisons with model-2" in page
    verdict = json.loads((report.path.parent / "verdict.json").read_text())
    assert any("stopped early, after 60 of 300 prompts: the budget" in w for w in verdict["warnings"])
    assert any("The price of a changed." in w for w in verdict["warnings"])
    assert all(v["value_usd"] is None and v["against"] == "model-2" for v in verdict["by_value"])


def test_the_better_model_of_the_held_out_prompts_is_named_and_so_are_independent_prompts():
    shown = fields(
        verdict_at(
            0.05, "unsure", trained="mini", over_trained=around(0.1, 0.02), independent=20, carriers=7.2
        ),
        "one",
    )
    assert "gpt-x is the best single model of these queries; the train prompts show mini" in shown["why"]
    assert (
        "100 held-out queries (20 independent prompts)" in shown["why"]
        and "All the money rests on as few as 7 prompts" in shown["why"]
    )


def test_few_queries_without_any_difference_prove_nothing():
    """24 queries on which router and model score the same leave room for a difference on 1 - .05^(1/24) of
    the traffic."""
    few, many = (estimate(0.0, Error(0.0, math.inf, n, unit=1.0), 1) for n in (24, 3000))
    assert few.high == -few.low == pytest.approx(1 - 0.05 ** (1 / 24))
    assert [decide(x, x, None) for x in (few, many)] == ["unsure", "keep"]


def test_one_line_for_all_values():
    at = verdict_at
    said = lambda *cases: verdicts.summary([at(None, "deploy"), *cases])  # noqa: E731
    assert said(at(0.01, "deploy"), at(0.1, "deploy")) == "Deploy Hier-mix"
    assert said(at(0.01, "keep"), at(0.1, "keep")) == "Keep model gpt-x"
    mixed = said(at(0.01, "keep", model="gpt-small"), at(0.1, "deploy"), at(0.2, "deploy"))
    where = "where a right answer is worth"
    assert mixed == f"Keep gpt-small {where} $0.01; deploy Hier-mix {where} $0.10 to $0.20"
    unsure = [at(0.01, "unsure", prompts_needed=9000), at(0.1, "unsure", prompts_needed=310)]
    of_one = "about 310 more prompts would do where a right answer is worth $0.10"
    assert said(*unsure) == f"Not enough data to tell ({of_one})"
    assert said(unsure[0], unsure[0]).endswith("(about 9,000 more prompts would do)")
    many = said(*(at(v, d) for v, d in ((1, "keep"), (2, "unsure"), (3, "keep"), (4, "deploy"))))
    routers = said(
        *(at(v, "deploy", router=r) for v, r in ((1, "ridge"), (2, "knn"), (3, "ridge"), (4, "knn")))
    )
    assert routers == "Deploy a router at all 4 values; which one depends on what a right answer is worth"
    assert many.endswith(
        "of 4 values, deploy a router at 1, keep a single model at 2, not enough data to tell at 1"
    )


def test_amounts_of_money_have_three_digits_and_cents():
    assert [money(v) for v in (0.0, 0.00333333, 0.0712, 0.5, 1.5, 12.345, 123.4, -4)] == [
        "$0.00",
        "$0.00333",
        "$0.0712",
        "$0.50",
        "$1.50",
        "$12.35",
        "$123",
        "−$4.00",
    ]


# ---- since the last report


def test_what_changed_is_said_once_and_stays_when_the_page_is_built_again(tmp_path):
    path = tmp_path / "verdict.json"
    first = {
        "headline": "Deploy X",
        "router": "lin_ts",
        "utility": 0.5,
        "score": 0.6,
        "cost": 1.0,
        "queries": 10,
        "trials": 2,
        "rhos": 3,
        "models": ["a", "b"],
        "policies": ["lin_ts"],
        "problem": "p",
    }
    assert previous_facts(path, first) is None and changes(None, first) is None
    path.write_text(json.dumps({"facts": first, "previous": None}))
    assert previous_facts(path, first) is None  # built again: still the first
    second = first | {
        "router": "lin_ucb",
        "models": ["b", "c"],
        "cost": 2.0,
        "policies": ["lin_ts", "lin_ucb"],
    }
    said = changes(previous_facts(path, second), second)
    assert said == [
        "Best router: LinTS → LinUCB.",
        "The best router’s cost per 1,000 requests: $1.00 → $2.00.",
        "Models added: c.",
        "Models gone: a.",
        "Policies added: LinUCB.",
    ]
    path.write_text(json.dumps({"facts": second, "previous": first}))
    assert changes(previous_facts(path, second), second) == said
    path.write_text("not JSON")
    assert previous_facts(path, second) is None


def test_banners_name_missing_rhos_and_models_beyond_any_worth(pages):
    from cabs_core.report.banners import limits

    data = PoolData("one", pages[0])
    wanted = json.loads(data.info["pool_settings"])["replay"]["rhos"]
    said = limits(data, None)
    assert f"Replayed at 4 of the pool's {len(wanted)} values of ρ" in said[0] and "50, 100" in said[0]
    dear = SimpleNamespace(problem=SimpleNamespace(costs=np.full((5, 3), 0.5)))
    assert any("costs more than a right answer is worth" in b for b in limits(data, dear))


def test_no_term_of_the_field_stands_unexplained_on_the_first_screen(pages):
    """What comes before the table of contents, without commands: a term is allowed where its sentence says
    what it is."""
    page = pages[1].path.read_text(encoding="utf-8")
    first = page[page.index("<main") : page.index('<nav aria-label="Sections"')]
    first = re.sub(r"<script.*?</script>|<code.*?</code>", "", first, flags=re.S)
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", first))
    assert "held-out queries" in text
    for sentence in re.split(r"(?<=[.;!?]) ", text):
        if re.search(r"ρ|\b(rho|oracle|regime|surrogate|propensity|arm)s?\b", sentence, re.IGNORECASE):
            assert "dollar value of" in sentence, sentence
