"""Verdicts in words: the decision, cards and headlines, costs and amounts, what has changed."""

import json
import math
from types import SimpleNamespace

import pytest
from verdicts_by_hand import around, verdict_at

from cabs_core.base.errors import round_up
from cabs_core.base.statistics.uncertainty import Error
from cabs_core.base.units import money
from cabs_core.report import verdict as verdicts
from cabs_core.report.changes import changes, previous_facts
from cabs_core.report.gap import decide, estimate
from cabs_core.report.tables import saving_span, saving_text


@pytest.mark.parametrize(
    ("utility", "quality", "saved", "decision"),
    [
        ((0.1, 0.02), (0.1, 0.02), (0.0, 0.5), "deploy"),  # it gains
        # it loses quality that costs more than it is worth
        ((0.1, 0.02), (-0.1, 0.02), (0.9, 0.05), "deploy"),
        # as good and cheaper: what no utility at rho 0 can see
        ((0.0, 0.004), (0.004, 0.01), (0.34, 0.1), "deploy"),
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


def test_one_router_is_named_unless_another_is_better_beyond_noise():
    pairs = {
        ("knn", "low"): (0.02, False),
        ("ridge", "low"): (0.01, True),
        ("ridge", "high"): (-0.1, True),
        ("knn", "high"): (0.3, None),
    }

    def pair(policy, _, regime):
        if (policy, regime) not in pairs:
            return None
        difference, significant = pairs[policy, regime]
        return {"difference": difference, "significant_adjusted": significant}

    names, data = ["carrot", "knn", "ridge"], SimpleNamespace(pair=pair)
    chosen = [verdicts._router_of(data, names, regime) for regime in ("low", "medium", "high")]
    assert chosen == ["ridge", "carrot", "carrot"]


def test_few_queries_without_any_difference_prove_nothing():
    """24 queries on which router and model score the same leave room for a difference on 1 - .05^(1/24) of
    the traffic."""
    few, many = (estimate(0.0, Error(0.0, math.inf, n, unit=1.0), 1) for n in (24, 3000))
    assert few.high == -few.low == pytest.approx(1 - 0.05 ** (1 / 24))
    assert [decide(x, x, None) for x in (few, many)] == ["unsure", "keep"]


def summary_of(*cases):
    """The line for these values and one, at which cost does not count, that says to deploy."""
    return verdicts.summary([verdict_at(None, "deploy"), *cases])


def test_one_line_for_all_values():
    at, where = verdict_at, "where a right answer is worth"
    assert summary_of(at(0.01, "deploy"), at(0.1, "deploy")) == "Deploy Hier-mix"
    assert summary_of(at(0.01, "keep"), at(0.1, "keep")) == "Keep model gpt-x"
    mixed = summary_of(at(0.01, "keep", model="gpt-small"), at(0.1, "deploy"), at(0.2, "deploy"))
    assert mixed == f"Keep gpt-small {where} $0.01; deploy Hier-mix {where} $0.10 to $0.20"
    unsure = [at(0.01, "unsure", prompts_needed=9000), at(0.1, "unsure", prompts_needed=310)]
    assert f"about 310 more prompts would do {where} $0.10" in summary_of(*unsure)
    assert summary_of(unsure[0], unsure[0]).endswith("(about 9,000 more prompts would do)")
    decisions = ((1, "keep"), (2, "unsure"), (3, "keep"), (4, "deploy"))
    assert summary_of(*(at(value, decision) for value, decision in decisions)).endswith(
        "of 4 values, deploy a router at 1, keep a single model at 2, not enough data to tell at 1"
    )
    routers = ((1, "ridge"), (2, "knn"), (3, "ridge"), (4, "knn"))
    line = summary_of(*(at(value, "deploy", router=router) for value, router in routers))
    assert line.startswith("Deploy a router at all 4 values; which one depends")


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        (0.0, "$0.00"),
        (0.00333333, "$0.00333"),
        (0.0712, "$0.0712"),
        (0.5, "$0.50"),
        (12.345, "$12.35"),
        (123.4, "$123"),
        (-4, "−$4.00"),
    ],
)
def test_amounts_of_money_have_three_digits_and_cents(usd, text):
    assert money(usd) == text


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
    sentences = changes(previous_facts(path, second), second)
    assert sentences == [
        "Best router: LinTS → LinUCB.",
        "The best router’s cost per 1,000 requests: $1.00 → $2.00.",
        "Models added: c.",
        "Models gone: a.",
        "Policies added: LinUCB.",
    ]
    path.write_text(json.dumps({"facts": second, "previous": first}))
    assert changes(previous_facts(path, second), second) == sentences
    path.write_text("not JSON")
    assert previous_facts(path, second) is None
