"""When a table is earned back, and what the next scored prompts would decide."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from verdicts_by_hand import verdict_at

from cabs_core.report import build_report
from cabs_core.report.forecast import Labels, Outlook, outlook
from cabs_core.report.gap import Bounded, decide
from cabs_core.report.labels import TableCost, earned_back, month_text, next_ones, table_cost, with_labels
from tests.label_worlds import TABLE_USD, WORLDS, Drawn, gap_of, next_prompts
from tests.label_worlds import earned as coverage

GAIN = Bounded(2.0, 1.0, 4.0)
TABLE = TableCost(100.0, 0.02, 1_000_000, True)


def verdict(decision="deploy", gain=GAIN, **changed):
    return verdict_at(0.02, decision, gain=gain, **changed)


@pytest.mark.parametrize(
    ("gain", "after", "may_never_be"),
    [
        (GAIN, (50_000, 25_000, 100_000), False),
        (Bounded(2.0, -1.0, 4.0), (50_000, 25_000, None), True),
        (Bounded(-1.0, -2.0, 4.0), (None, 25_000, None), True),
        (Bounded(-2.0, -3.0, -1.0), (None, None, None), True),
    ],
)
def test_a_table_is_earned_back_by_what_a_request_gains(gain, after, may_never_be):
    x = earned_back(verdict(gain=gain), TABLE)
    ends = (x.requests_until_earned_back_low, x.requests_until_earned_back_high)
    assert (x.requests_until_earned_back, *ends) == after and x.may_never_be == may_never_be


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"against": "big", "gain": None}, "in dollars nobody has said"),
        ({"rho": 0.0, "value_usd": None, "gain": None}, "cost does not count"),
        ({"gain": Bounded(2.0), "carriers": 3.2}, "as few as 3 prompts"),
        ({"gain": Bounded(2.0)}, "no error is known"),
    ],
)
def test_what_cannot_be_known_is_refused_in_words(changed, why):
    x = earned_back(verdict(**changed), TABLE)
    assert why in x.refused and x.requests_until_earned_back is None and x.may_never_be is None


def test_the_next_prompts_are_worth_it_where_they_decide_and_are_earned_back_within_a_year():
    labels, unsure = earned_back(verdict(), TABLE), verdict("unsure")
    good = next_ones(labels, unsure, Outlook(0.8, 0.7, 0.001), TABLE)
    assert good.worth_it and good.next_decides == 0.8 and good.next_cost_usd == pytest.approx(4.0)
    assert good.next_requests_until_earned_back == pytest.approx(4.0 / (0.001 * 0.02))
    seldom = replace(TABLE, requests_a_month=1000)
    assert not next_ones(labels, unsure, Outlook(0.8, 0.7, 0.001), seldom).worth_it
    assert not next_ones(labels, unsure, Outlook(0.02, 0.02, 0.001), TABLE).worth_it
    assert not next_ones(labels, unsure, Outlook(0.8, 0.0, 0.0), TABLE).worth_it, "they say keep at best"
    assert next_ones(labels, unsure, None, TABLE).worth_it is None


def test_a_collected_table_cost_what_was_paid_and_the_next_prompt_what_the_kept_models_take():
    counts = {"a": {"usd": 2.0, "usd today": 1.0}, "b": {"usd": 1.0, "usd today": 1.0}}
    answers = SimpleNamespace(paid=5.0, prompts=100, counts=counts)  # a third model was dropped, for 2
    collection = {"answers": answers, "scores": SimpleNamespace(paid=1.0)}
    known = table_cost(None, None, 100, collection, drawn=True)
    assert known.usd == 6.0 and known.usd_a_prompt == pytest.approx(0.03) and known.drawn
    assert table_cost(10.0, None, 500, None, drawn=False) == TableCost(10.0, 0.02, None, False)
    assert table_cost(None, None, 500, None, drawn=False).usd is None


def test_a_month_counts_the_table_with_the_calls():
    rng = np.random.default_rng(0)
    costs = rng.lognormal(0, 0.3, 400) * 1e-3
    gap = gap_of(Drawn(np.ones((1, 400)), 0.5 * costs[None], np.ones(400), costs), 0, 2000)
    added = TABLE_USD / 50_000
    both = gap.saved(1, added)
    assert both.value == pytest.approx(0.5 - added / costs.mean()) and both.low < both.value < both.high
    assert gap.saved(1).high - gap.saved(1).low < both.high - both.low, "the mean of the costs is not known"


def test_the_interval_holds_the_truth_and_the_best_of_six_pays_for_being_chosen(monkeypatch):
    some = {name: WORLDS[name] for name in ("one router, gains .03", "the best of six, gain .02")}
    monkeypatch.setattr("tests.label_worlds.WORLDS", some)
    for row in coverage(60, sizes=(200,)):
        assert row["covered"] >= 0.88 and row["printed"] == 1.0  # of 60 at .95, once in 100


@pytest.mark.slow
def test_the_probability_that_is_said_comes_true():
    rows = next_prompts(8)
    for split in ("drawn anew", "kept"):
        part = [r for r in rows if r["split"] == split]
        said, came = (np.array([r[name] for r in part]) for name in ("said", "decided"))
        assert abs(said.mean() - came.mean()) < 0.08 and len(part) > 100
        high = said > 0.3
        assert came[high].mean() > came[~high].mean() + 0.1


def test_nothing_new_decides_nothing_and_much_decides():
    drawn = WORLDS["one router, gains .03"].draw(np.random.default_rng(2), 60)
    gap = gap_of(drawn, 0, 300)
    assert decide(gap.utility(1), gap.quality(1), gap.saved(1)) == "unsure"
    one, more, most = (outlook([gap], n, 1, 1.0).decides for n in (1, 2000, 200_000))
    assert one < 0.02 and one < more < most and most > 0.7


def test_report_and_verdict_say_it(pages, small, tmp_path):
    report = build_report("unreferenced", small, tmp_path, paid=12.5, requests_a_month=50_000)
    cases = json.loads((tmp_path / "verdict.json").read_text())["by_value"]
    bounded = [case for case in cases if case["gain"] is not None and case["gain"]["low"] is not None]
    assert bounded
    for case in bounded:
        after = case["labels"]["requests_until_earned_back_low"]
        assert after == pytest.approx(12_500 / case["gain"]["high"])
    for case in cases:
        labels = case["labels"]
        assert labels["table_cost_usd"] == 12.5 and labels["requests_a_month"] == 50_000
        added = 12.5 / 50_000 / (case["model_cost"] / 1000)
        left = 1 - case["saved"]["value"]
        assert labels["cost_ratio_at_a_month"]["value"] == pytest.approx(left + added, rel=1e-6)
    assert any(case["labels"]["next_decides"] for case in cases if case["decision"] == "unsure")
    page = report.path.read_text(encoding="utf-8").replace("\u00a0", " ")
    assert "$12.50" in json.dumps(cases) and "No verdict" not in page
    assert any("The table cost $12.50" in case["labels"]["text"] for case in cases)
    silent = json.loads((pages[1].path.parent / "verdict.json").read_text())
    assert all(case["labels"]["table_cost_usd"] is None for case in silent["by_value"])
    assert not any("table cost" in case["labels"]["text"] for case in silent["by_value"])


def test_without_replays_there_are_no_labels():
    assert with_labels([verdict()], SimpleNamespace(), None, TABLE) == [verdict()]


def test_a_month_in_words():
    """A table that costs 45 months of calls is no `4544 %`."""
    of = SimpleNamespace(model="mini")
    texts = [
        month_text(Labels(None, 1000, cost_ratio_at_a_month=Bounded(*ratio)), of)
        for ratio in ((0.8, 0.6, 1.1), (45.44, 43.09, 48.47), (1.5, 0.7, 3.2), (2.0, None, None))
    ]
    assert [text.removeprefix("In a month of 1,000 requests router and table cost ") for text in texts] == [
        "80 % (95 % interval 60 to 110 %) of what mini costs.",
        "45 times (95 % interval 43 to 48) what mini costs.",
        "1.5 times (95 % interval 0.7 to 3.2) what mini costs.",
        "2.0 times what mini costs.",
    ]
