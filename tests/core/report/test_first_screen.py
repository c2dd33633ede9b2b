"""The first screen: every number on it, recomputed from raw traces and the outcome table with plain pandas."""

import json
import math
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from fake_replays import SKILL, fake_problem
from scipy.stats import norm, t

from cabs_core.metrics import TwoWayError
from cabs_core.report import evidence as facts
from cabs_core.report import verdict as verdicts
from cabs_core.report.cards import fields, money
from cabs_core.report.changes import changes, previous_facts
from cabs_core.report.data import PoolData
from cabs_core.report.names import label

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
    """(standard error of mean(gap), degrees of freedom): variances over trials and over queries added, Welch's degrees
    of freedom; over queries by the formula, not by resampling."""
    parts = []
    for unit in ("trial", "query_index"):
        means = gap.groupby(unit)["gap"].mean()
        parts.append((means.var(ddof=1 if unit == "trial" else 0) / len(means), len(means) - 1))
    total = sum(v for v, _ in parts)
    return math.sqrt(total), total**2 / sum(v**2 / df for v, df in parts)


def interval(gap, compared):
    """Half of the two-sided interval of mean(gap): 5 % divided by the number of routers."""
    se, freedom = error(gap)
    return t.ppf(1 - 0.025 / compared, freedom) * se


def hull_cost(points, target):
    """Lowest cost at which any mix of two points (cost, score) reaches the score, by brute force."""
    found = [c for c, s in points if s >= target]
    for c0, s0 in points:
        for c1, s1 in points:
            if s0 < target < s1:
                found.append(c0 + (target - s0) / (s1 - s0) * (c1 - c0))
    return min(found, default=math.nan)


def test_the_winner_is_the_best_real_router_of_the_raw_rounds(verdict, rounds):
    real = [p for p in SKILL if p not in ("oracle_best", "lin_ucb_full", "random", "best_single")]
    best = max(real, key=lambda p: by_regime(rounds, p, "utility"))
    assert verdict["overall"]["router"] == best and verdict["overall"]["compared"] == len(real)
    for case in verdict["by_value"]:
        at_rho = {p: own(rounds, p, case["rho"])["utility"].mean() for p in real}
        assert case["router"] == max(at_rho, key=at_rho.get)
        assert case["value_usd"] == (None if case["rho"] == 0 else pytest.approx(1 / case["rho"]))
    assert [case["rho"] for case in verdict["by_value"]] == list(RHOS)


def test_quality_cost_and_difference_over_all_values(verdict, rounds):
    case = verdict["overall"]
    for mine, policy in (("", case["router"]), ("model_", "best_single")):
        assert case[f"{mine}score"] == pytest.approx(by_regime(rounds, policy, "score"), abs=1e-6)
        assert case[f"{mine}cost"] == pytest.approx(1000 * by_regime(rounds, policy, "cost"), rel=1e-5)
    gap = by_regime(rounds, case["router"], "utility") - by_regime(rounds, "best_single", "utility")
    assert case["difference"] == pytest.approx(gap, abs=1e-6)
    assert case["low"] < gap < case["high"] and case["queries"] == 60


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
        assert case["difference"] == pytest.approx(gap, abs=1e-6)
        assert (case["high"] - case["low"]) / 2 == pytest.approx(interval(both, case["compared"]), rel=0.1)
        assert (case["high"] + case["low"]) / 2 == pytest.approx(gap, abs=1e-6)
        assert case["decision"] == (
            "deploy" if case["low"] > 0 else "keep" if case["high"] < 0.01 else "unsure"
        )
        spread = interval(a.assign(gap=a["score"]), 1)
        assert case["score_high"] - case["score"] == pytest.approx(spread, rel=0.1)
        if rho:
            worth = 1000 * ((a["score"] / rho - a["cost"]).mean() - (b["score"] / rho - b["cost"]).mean())
            assert case["gain"] == pytest.approx(worth, rel=1e-4)
            assert case["gain_low"] < worth < case["gain_high"]
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


def test_intervals_over_all_values_and_of_gains(verdict, rounds):
    case = verdict["overall"]
    gap = paired_regimes(rounds, case["router"])
    assert (case["high"] - case["low"]) / 2 == pytest.approx(interval(gap, case["compared"]), rel=0.1)
    assert (case["high"] + case["low"]) / 2 == pytest.approx(case["difference"], abs=1e-6)
    assert case["decision"] == ("deploy" if case["low"] > 0 else "keep" if case["high"] < 0.01 else "unsure")
    spread = interval(regimes(rounds, case["router"], "score"), 1)
    assert case["score_high"] - case["score"] == pytest.approx(spread, rel=0.1)
    assert case["score"] - case["score_low"] == pytest.approx(spread, rel=0.1)
    for case in verdict["by_value"]:
        rho = case["rho"]
        if rho:
            a, b = own(rounds, case["router"], rho), own(rounds, "best_single", rho)
            worth = [1000 * (x["score"] / rho - x["cost"]).to_numpy() for x in (a, b)]
            half = interval(a.assign(gap=worth[0] - worth[1]), case["compared"])
            assert (case["gain_high"] - case["gain_low"]) / 2 == pytest.approx(half, rel=0.1)


def test_queries_that_would_tell_show_such_a_difference_in_8_of_10_cases(verdict, rounds):
    for case in (verdict["overall"], *verdict["by_value"]):
        if case["decision"] != "unsure":
            assert case["queries_needed"] is None
            continue
        if case["rho"] is None:
            gap = paired_regimes(rounds, case["router"])
        else:
            a, b = own(rounds, case["router"], case["rho"]), own(rounds, "best_single", case["rho"])
            gap = a.assign(gap=a["utility"].to_numpy() - b["utility"].to_numpy())
        shows = (norm.ppf(1 - 0.025 / case["compared"]) + norm.ppf(0.8)) * error(gap)[0]
        needed = case["queries"] * (shows / max(abs(case["difference"]), 0.01)) ** 2
        assert case["queries_needed"] == pytest.approx(max(needed, case["queries"] + 1), rel=0.25)


def test_savings_at_equal_quality_by_brute_force(verdict, rounds):
    for case in verdict["by_value"]:
        points = [
            (p["cost"].mean(), p["score"].mean()) for p in (own(rounds, case["router"], r) for r in RHOS)
        ]
        single = own(rounds, "best_single", case["rho"])
        share = 1 - hull_cost(points, single["score"].mean()) / single["cost"].mean()
        assert case["saving"]["share"] == pytest.approx(share, abs=1e-5)
    most = max(RHOS, key=lambda r: own(rounds, "best_single", r)["score"].mean())
    points = [
        (t["cost"].mean(), t["score"].mean())
        for t in (own(rounds, verdict["overall"]["router"], r) for r in RHOS)
    ]
    single = own(rounds, "best_single", most)
    share = 1 - hull_cost(points, single["score"].mean()) / single["cost"].mean()
    assert verdict["overall"]["saving"]["share"] == pytest.approx(share, abs=1e-5)


def test_intervals_of_savings_are_quantiles_over_resampled_queries(pages, rounds):
    artifacts = pages[0]
    data = PoolData("one", artifacts)
    evidence = facts.load_evidence("one", artifacts, data.info["problem_hash"])
    found = verdicts.saving_against(evidence.played("hier_mix"), evidence.played("best_single"), 1)
    tables = {r: own(rounds, "hier_mix", r).groupby("query_index")[["score", "cost"]].mean() for r in RHOS}
    single = own(rounds, "best_single", 300).groupby("query_index")[["score", "cost"]].mean()
    rng, shares = np.random.default_rng(5), []
    for _ in range(400):
        draw = rng.integers(0, len(single), len(single))
        points = [(t["cost"].iloc[draw].mean(), t["score"].iloc[draw].mean()) for t in tables.values()]
        target, money_spent = single["score"].iloc[draw].mean(), single["cost"].iloc[draw].mean()
        cost = hull_cost(points, target)
        shares.append(-math.inf if math.isnan(cost) else 1 - cost / money_spent)
    low, high = np.quantile(shares, [0.025, 0.975])
    assert found.low == pytest.approx(low, abs=0.06) and found.high == pytest.approx(high, abs=0.06)


def test_the_page_and_the_markdown_show_these_numbers(pages, verdict):
    _, report, _ = pages
    page = report.path.read_text(encoding="utf-8")
    case, values = verdict["overall"], sorted(verdict["by_value"], key=lambda v: -v["rho"])
    first = values[(len(values) - 1) // 2]
    shown = dict(re.findall(r'data-field="(\w+)">([^<]*)<', page))
    assert verdict["headline"] == report.summary["verdict"] and f"<h2>{verdict['headline']}</h2>" in page
    assert shown["quality"] == f"{100 * first['score']:.1f} %" and shown["cost"] == money(first["cost"])
    assert shown["saving"] == f"{100 * first['saving']['share']:.0f} %"
    assert f"{100 * first['model_score']:.1f} %" in shown["quality_note"]
    assert money(first["model_cost"]) in shown["cost_note"]
    assert shown["month"] == money(100 * first["cost"]) and first["model"] in shown["quality_note"]
    assert verdict["export_command"] == f"cabs export --pool one --policy {case['router']} --out one-router"
    assert verdict["export_command"] in page
    cases = json.loads(
        re.search(r"</div>\s*<script type=\"application/json\">(\[.*?\])</script>", page, flags=re.S).group(1)
    )
    assert page.count("<option value=") == len(RHOS), "the slider has a mark at every value that was played"
    assert len(cases) == 1 + len(RHOS)
    for c, v in zip(cases, [case, *sorted(verdict["by_value"], key=lambda v: -v["rho"])], strict=True):
        says, keep = c["text"], v["decision"] == "keep"
        quality, bill = (v["model_score"], v["model_cost"]) if keep else (v["score"], v["cost"])
        other, other_bill = (v["score"], v["cost"]) if keep else (v["model_score"], v["model_cost"])
        assert says["quality"] == f"{100 * quality:.1f} %" and f"{100 * other:.1f} %" in says["quality_note"]
        assert says["cost"] == money(bill) and money(other_bill) in says["cost_note"]
        assert c["cost"] == bill and c["other_cost"] == other_bill
        assert (
            f"{abs(v['difference']):.3f}" in says["why"]
            and f"on {v['queries']:,} held-out queries" in says["why"]
        )
        assert f"{v['low']:+.3f} to {v['high']:+.3f}".replace("-", "−") in says["why"]
        assert f"best of {v['compared']} routers" in says["why"]
        if not keep:
            spread = f"95 % interval {100 * v['score_low']:.1f} to {100 * v['score_high']:.1f} %"
            assert spread in says["quality_note"]
        share, low, high = (v["saving"][k] for k in ("share", "low", "high"))
        assert says["saving"] == (
            "quality not reached" if share is None else f"{100 * share:.0f} %".replace("-", "−")
        )
        if share is not None and low is not None:
            assert f"{100 * low:.0f} % to {100 * high:.0f} %".replace("-", "−") in says["saving_note"]
        if v["queries_needed"]:
            assert f"about {verdicts.round_up(v['queries_needed']):,} held-out queries" in says["headline"]
    for c, v in zip(cases[1:], sorted(verdict["by_value"], key=lambda v: -v["rho"]), strict=True):
        assert c["decision"] == v["decision"] and c["gain"] == v["gain"]
    note = (report.path.parent / "verdict.md").read_text(encoding="utf-8")
    assert note == report.markdown and note.startswith(f"## Fake pool one: {verdict['headline']}")
    assert f"| {label(first['router'])} | {100 * first['score']:.1f} % | {money(first['cost'])} |" in note
    assert all(
        f"{v['difference']:+.3f} ({v['low']:+.3f} to {v['high']:+.3f})".replace("-", "−") in note
        for v in values
    )


# ---- facts of the other sections


@pytest.fixture(scope="module")
def evidence(pages):
    return facts.load_evidence("one", pages[0], PoolData("one", pages[0]).info["problem_hash"])


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


def test_prompts_are_escaped_on_the_page(pages):
    page = pages[1].path.read_text(encoding="utf-8")
    assert "prompt of &lt;b&gt;q" in page and "prompt of <b>q" not in page


# ---- the decision


@pytest.mark.parametrize(
    ("difference", "error", "decision"),
    [
        (0.1, 0.01, "deploy"),
        (-0.1, 0.01, "keep"),
        (0.0, 0.001, "keep"),
        (0.02, 0.02, "unsure"),
        (0.1, math.nan, "unsure"),
    ],
)
def test_decisions(difference, error, decision):
    found, low, high = verdicts.decide(difference, TwoWayError(error, math.inf), 1)
    assert found == decision
    if not math.isnan(error):
        assert low == pytest.approx(
            difference - 1.96 * error, abs=1e-4
        ) and high - difference == pytest.approx(difference - low)


def test_more_routers_widen_the_interval_and_more_queries_would_tell():
    error = TwoWayError(0.02, math.inf)
    assert verdicts.decide(0.05, error, 1)[0] == "deploy" and verdicts.decide(0.05, error, 20)[0] == "unsure"
    needed = verdicts.queries_needed(0.02, error, 100, 1)
    assert needed == math.ceil(100 * (1.959964 + 0.841621) ** 2)
    # with so many queries the error is that much smaller, and the power is 80 %
    assert norm.cdf(0.02 / (0.02 * math.sqrt(100 / needed)) - 1.959964) == pytest.approx(0.8, abs=0.01)
    assert verdicts.queries_needed(0.0001, error, 100, 1) == verdicts.queries_needed(0.01, error, 100, 1)
    assert verdicts.round_up(785) == 790 and verdicts.round_up(12_345) == 13_000 and verdicts.round_up(7) == 7


def test_headlines_and_cards_of_all_decisions():
    saving = verdicts.Saving(0.3, None, 0.5)
    case = verdicts.Verdict(
        None,
        None,
        "deploy",
        "hier_mix",
        3,
        "gpt-x",
        0.05,
        0.01,
        0.09,
        100,
        None,
        0.8,
        0.7,
        0.9,
        1.5,
        0.7,
        2.0,
        saving,
    )
    other = lambda **changed: verdicts.Verdict(**{**vars(case), **changed})  # noqa: E731
    assert verdicts.headline(case, label) == "Deploy Hier-mix"
    kept = fields(other(decision="keep"))
    assert kept["headline"] == "Keep model gpt-x" and kept["quality"] == "70.0 %" and kept["cost"] == "$2.00"
    unsure = fields(other(decision="unsure", queries_needed=1234))
    assert unsure["headline"] == "Not enough data to tell (about 1,300 held-out queries would be)"
    assert "not always reached" in fields(case)["saving_note"]
    assert fields(other(saving=verdicts.Saving(None, None, None)))["saving"] == "quality not reached"


def test_few_queries_without_any_difference_prove_nothing():
    """24 queries on which router and model score the same leave room for a difference in 3 of 24."""
    none = TwoWayError(0.0, math.inf)
    assert verdicts.decide(0.0, none, 1, 3 / 24) == ("unsure", -0.125, 0.125)
    assert verdicts.decide(0.0, none, 1, 3 / 3000)[0] == "keep"


def test_one_line_for_all_values():
    saving = verdicts.Saving(None, None, None)

    def at(value, decision, router="hier_mix", model="gpt-x"):
        rho = None if value is None else 1 / value
        figures = (
            0.05,
            0.01,
            0.09,
            100,
            1234 if decision == "unsure" else None,
            0.8,
            0.7,
            0.9,
            1.5,
            0.7,
            2.0,
        )
        return verdicts.Verdict(rho, value, decision, router, 3, model, *figures, saving)

    said = lambda *cases: verdicts.summary([at(None, "deploy"), *cases], label)  # noqa: E731
    assert said(at(0.01, "deploy"), at(0.1, "deploy")) == "Deploy Hier-mix"
    assert said(at(0.01, "keep"), at(0.1, "keep")) == "Keep model gpt-x"
    mixed = said(at(0.01, "keep", model="gpt-small"), at(0.1, "deploy"), at(0.2, "deploy"))
    assert (
        mixed
        == "Keep gpt-small where a right answer is worth $0.01; deploy Hier-mix where a right answer is worth $0.1 to $0.2"
    )
    many = said(*(at(v, d) for v, d in ((1, "keep"), (2, "unsure"), (3, "keep"), (4, "deploy"))))
    assert many.endswith(
        "of 4 values, deploy a router at 1, keep a single model at 2, not enough data to tell at 1"
    )


def test_amounts_of_money_have_three_digits():
    assert [money(v) for v in (0.0, 0.00333333, 0.0712, 0.5, 1.5, 12.345, 123.4, -4)] == [
        "$0.00", "$0.00333", "$0.0712", "$0.500", "$1.50", "$12.35", "$123", "−$4.00"
    ]  # fmt: skip


# ---- since the last report


def test_what_changed_is_said_once_and_stays_when_the_page_is_built_again(tmp_path):
    path = tmp_path / "verdict.json"
    first = {"headline": "Deploy X", "router": "lin_ts", "utility": 0.5, "score": 0.6, "cost": 1.0, "queries": 10, "trials": 2,
             "rhos": 3, "models": ["a", "b"], "policies": ["lin_ts"], "problem": "p"}  # fmt: skip
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
        "Best router: LinTS → LinUCB.", "The best router’s cost per 1,000 requests: $1.00 → $2.00.",
        "Models added: c.", "Models gone: a.", "Policies added: LinUCB.",
    ]  # fmt: skip
    path.write_text(json.dumps({"facts": second, "previous": first}))
    assert changes(previous_facts(path, second), second) == said
    path.write_text("not JSON")
    assert previous_facts(path, second) is None


def test_banners_name_missing_rhos_and_models_beyond_any_worth(pages):
    from cabs_core.report.sections import banners

    data = PoolData("one", pages[0])
    wanted = json.loads(data.info["pool_settings"])["replay"]["rhos"]
    said = banners(data, None)
    assert f"Replayed at 4 of the pool's {len(wanted)} values of ρ" in said[0] and "50, 100" in said[0]
    dear = SimpleNamespace(problem=SimpleNamespace(costs=np.full((5, 3), 0.5)))
    assert any("costs more than a right answer is worth" in b for b in banners(data, dear))
