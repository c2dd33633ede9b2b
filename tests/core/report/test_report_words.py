"""Figures of a report in words: costs, amounts, and what has changed since the last report."""

import json
import math

import pytest

from cabs_core.base.errors import round_up
from cabs_core.base.units import money
from cabs_core.report.changes import changes, previous_facts
from cabs_core.report.tables import saving_text


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


def test_a_number_that_is_an_estimate_is_rounded_up_to_two_digits():
    assert round_up(785) == 790 and round_up(12_345) == 13_000 and round_up(7) == 7


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
