"""The first screen: every number on it, recomputed from raw traces and the outcome table with plain
pandas."""

import json
import math
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from fake_replays import SKILL, fake_problem
from scipy.stats import norm, t

from cabs_core.base.statistics.costs import tail_factor
from cabs_core.report import build_report
from cabs_core.report import evidence as facts
from cabs_core.report.banners import limits
from cabs_core.report.data import PoolData
from cabs_core.report.savings import savings_against_models

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
    reaches = []
    for h, far in ((max(-lump, 0), -parts.min()), (max(lump, 0), parts.max())):
        reach = h + z * math.hypot(se, h) + (norm.ppf(1 - 0.025 / compared) ** 2 - 1) / 3 * h
        missed = unit * (1 - (0.05 / compared) ** (1 / len(means)))
        reaches.append(max(reach, missed) if unit else reach + far * (h > 0))
    return reaches


def holds(estimate, value, reach):
    below, above = reach
    assert estimate["low"] == pytest.approx(value - below, abs=0.03 * below + 1e-4)
    assert estimate["high"] == pytest.approx(value + above, abs=0.03 * above + 1e-4)


def hull_cost(points, target):
    """Lowest cost at which any mix of two points (cost, score) reaches the score, by brute force."""
    costs = [c for c, s in points if s >= target]
    for c0, s0 in points:
        for c1, s1 in points:
            if s0 < target < s1:
                costs.append(c0 + (target - s0) / (s1 - s0) * (c1 - c0))
    return min(costs, default=math.nan)


def test_the_winner_is_the_best_real_router_of_the_raw_rounds(pages, verdict, rounds):
    real = [p for p in SKILL if p not in ("oracle_best", "lin_ucb_full", "random", "best_single")]
    best = max(real, key=lambda p: over_regimes(rounds, p, "utility"))
    assert verdict["overall"]["router"] == best and verdict["overall"]["compared"] == len(real)
    data = PoolData("one", pages[0])
    for case in verdict["by_value"]:
        regime = "low" if case["rho"] <= 300 else "medium" if case["rho"] < 800 else "high"
        if case["router"] != best:
            assert data.pair(case["router"], best, regime)["p_adjusted"] < 0.05
        assert case["value_usd"] == (None if case["rho"] == 0 else pytest.approx(1 / case["rho"]))
    assert [case["rho"] for case in verdict["by_value"]] == list(RHOS)


def decision(case):
    """The rule in words: more utility, or as good (within 0.01) and 5 % cheaper; neither; or nobody can
    tell."""
    utility, quality, saved = case["utility"], case["quality"], case["saved"]
    if utility["low"] > 0 or (quality["low"] > -0.01 and saved["low"] > 0.05):
        return "deploy"
    may_save = quality["high"] >= -0.01 and saved["high"] >= 0.05
    return "keep" if utility["high"] < 0.01 and not may_save else "unsure"


def test_quality_cost_difference_and_decision_at_every_value(verdict, rounds):
    for case in verdict["by_value"]:
        rho = case["rho"]
        a, b = rounds_at(rounds, case["router"], rho), rounds_at(rounds, "best_single", rho)
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


def paired_regimes(rounds, policy):
    """Router minus best single model, mean over the regimes, of every trial and query."""
    both = (regimes(rounds, p, "utility") for p in (policy, "best_single"))
    ours, single = (table.set_index(["trial", "query_index"])["gap"] for table in both)
    return (ours - single).reset_index()


def test_quality_cost_difference_and_decision_over_all_values(verdict, rounds):
    case = verdict["overall"]
    for prefix, policy in (("", case["router"]), ("model_", "best_single")):
        assert case[f"{prefix}score"] == pytest.approx(over_regimes(rounds, policy, "score"), abs=1e-6)
        assert case[f"{prefix}cost"] == pytest.approx(1000 * over_regimes(rounds, policy, "cost"), rel=1e-5)
    gap = over_regimes(rounds, case["router"], "utility") - over_regimes(rounds, "best_single", "utility")
    assert case["utility"]["value"] == pytest.approx(gap, abs=1e-6)
    holds(case["utility"], gap, interval(paired_regimes(rounds, case["router"]), case["compared"]))
    assert case["decision"] == decision(case)
    below, above = interval(regimes(rounds, case["router"], "score"), 1)
    assert case["score_high"] == pytest.approx(min(case["score"] + above, 1), abs=1e-3)
    assert case["score_low"] == pytest.approx(case["score"] - below, abs=1e-3)


def test_gains_in_dollars_at_every_value(verdict, rounds, outcomes, evidence):
    known = evidence.problem.priced
    free, *cases = verdict["by_value"]
    assert free["rho"] == 0 and free["gain"] is None
    for case in cases:
        rho = case["rho"]
        a, b = rounds_at(rounds, case["router"], rho), rounds_at(rounds, "best_single", rho)
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
        assert case["gain"]["value"] == pytest.approx(gap.mean(), rel=1e-4)
        holds(case["gain"], gap.mean(), reach)


@pytest.mark.slow
def test_savings_at_equal_quality_by_brute_force(evidence, rounds, outcomes):
    replays = [rounds_at(rounds, "hier_mix", rho) for rho in RHOS]
    points = [(p["cost"].mean(), p["score"].mean()) for p in replays]
    # [rhos, 60, (score, cost)]
    tables = np.stack([p.groupby("query_index")[["score", "cost"]].mean().to_numpy() for p in replays])
    rng = np.random.default_rng(5)
    for row in savings_against_models(evidence, "hier_mix").itertuples():
        alone = outcomes[outcomes["model"] == row.model].sort_values("query_index")
        alone = alone[["score", "cost"]].to_numpy()
        score, paid = alone.mean(axis=0)
        share = 1 - hull_cost(points, score) / paid
        assert row.share == pytest.approx(share, abs=1e-5, nan_ok=True)
        if math.isnan(share) or math.isnan(row.low):
            continue
        shares = []
        for _ in range(400):
            draw = rng.integers(0, len(alone), len(alone))
            score, paid = alone[draw].mean(axis=0)
            cost = hull_cost([(c, s) for s, c in tables[:, draw].mean(axis=1)], score)
            shares.append(-math.inf if math.isnan(cost) else 1 - cost / paid)
        left = (1 - np.quantile(shares, [0.025, 0.975])) / (1 - share)
        low, high = 1 - (1 - share) * left ** tail_factor(tables[:, :, 1].mean(axis=0) + alone[:, 1])
        assert row.low == pytest.approx(low, abs=0.06) and row.high == pytest.approx(high, abs=0.06)


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
    assert "Comparisons won" in page and "comparisons with model-2" in page
    verdict = json.loads((report.path.parent / "verdict.json").read_text())
    assert any("60 of 300 prompts: the budget" in w for w in verdict["warnings"])
    assert any("The price of a changed." in w for w in verdict["warnings"])
    assert all(v["value_usd"] is None and v["against"] == "model-2" for v in verdict["by_value"])
