"""The page of a log: what it says of the router, what it shows in tables, and what it writes beside them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from log_inputs import log_inputs

from cabs_core.base.errors import ResultError
from cabs_core.data.outcomes import Outcomes
from cabs_core.report import ReportResult, build_logged_report
from cabs_core.report.pool_answer import GoalAnswer, PoolAnswer, answer_of_pool

N = 90
COUNTS = (45, 27, 18)
COSTS = (0.008, 0.002, 0.0005)
DIFFERENCE = ("difference", "difference_low", "difference_high")
OLDER = "The prompts changed on Monday."
Row = dict[str, Any]


def log(**report: Any) -> Outcomes:
    """A log of three models; the first answered 45 of 90 prompts, the second 27 and the third 18."""
    played = np.repeat(range(3), COUNTS)
    answered = np.eye(3)[np.random.default_rng(0).permutation(played)]
    right = (np.arange(N) % 4 > 0).astype(float)
    return Outcomes(
        query_ids=np.array([f"q{i}" for i in range(N)]),
        prompts=[f"question {i} on {i * i}" for i in range(N)],
        tasks=np.where(np.arange(N) % 2 == 0, "mail", "sql"),
        arms=["big", "mid", "cheap"],
        scores=np.where(answered > 0, right[:, None], 0.5),
        costs=np.tile(COSTS, (N, 1)),
        answered=answered,
        report={"origin": "folder/log.jsonl", **report},
    )


def estimate(policy: str, outcome: str = "utility", value: float = 0.5, **fields: Any) -> Row:
    """A row of `mart_off_policy`; by default 0.1 above the log, with an interval without 0."""
    interval = {"low": value - 0.05, "high": value + 0.05}
    row = {"pool": "calls", "policy": policy, "rho": 10.0, "outcome": outcome, "estimator": "dr"}
    row |= {"value": value, **interval, "difference": 0.1, "difference_low": 0.04, "difference_high": 0.16}
    row |= {"no_interval": None, "manski_width": 0.0, "refused": None, "decisions": 1234, "prompts": 90}
    return row | {"n_eff": 45.0, "assumed": False} | fields


def refused(policy: str, **fields: Any) -> Row:
    """A row of a policy that cannot be estimated."""
    unknown = ("outcome", "estimator", "value", "low", "high", *DIFFERENCE, "manski_width")
    return estimate(policy) | dict.fromkeys(unknown) | {"refused": "the log is too short"} | fields


def with_dollars(policy: str, **fields: Any) -> list[Row]:
    """The estimates of a policy of which score and cost are known, too: it costs half of what was paid."""
    cost = {"difference": -0.002, "difference_low": -0.003, "difference_high": -0.001}
    return [
        estimate(policy, **fields),
        estimate(policy, "score", 0.75),
        estimate(policy, "cost", 0.002, **{**fields, **cost}),
    ]


Build = Callable[..., ReportResult]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """build(rows of the mart, policy of the router, ...) -> the page, by default without an answer."""

    def make(
        rows: Sequence[Row], policy: str = "", table: Outcomes | None = None, **options: Any
    ) -> ReportResult:
        marts = tmp_path / "marts"
        marts.mkdir(exist_ok=True)
        pd.DataFrame(list(rows)).to_parquet(marts / "mart_off_policy.parquet")
        (log() if table is None else table).save(tmp_path / "outcomes")
        about: dict[str, Any] = {"title": "Calls", "description": "", "older_data": OLDER}
        about |= {"answered": lambda: pytest.fail("no answer is made"), **options}
        return build_logged_report(
            "calls", tmp_path, tmp_path / "page", policy=policy, outcomes=tmp_path / "outcomes", **about
        )

    return make


@pytest.fixture(scope="module")
def found() -> PoolAnswer:
    return answer_of_pool(log_inputs(log()))


def answering(found: PoolAnswer, **changes: Any) -> dict[str, Any]:
    """Options of `build` for a page with an answer."""
    return {"older_data": "", "answered": lambda: replace(found, **changes)}


def verdict(page: ReportResult) -> dict[str, Any]:
    text = (page.path.parent / "verdict.json").read_text("utf-8")
    assert text.startswith('{\n "format": 1,\n'), "people read the file, too"
    content: dict[str, Any] = json.loads(text)
    return content


def csv(page: ReportResult, name: str) -> pd.DataFrame:
    return pd.read_csv(page.path.parent / "tables" / f"{name}.csv")


def cells_of(page: ReportResult, section: str) -> list[str]:
    """The texts of the cells of a section's tables, without those that name the rows."""
    html = page.path.read_text("utf-8").partition(f'<section id="{section}">')[2].partition("</section>")[0]
    return [cell.partition(">")[2].partition("</td>")[0] for cell in html.split("<td")[1:]]


def router_text(page: ReportResult) -> str:
    """What the page says of the router, without markup and with plain spaces."""
    html = page.path.read_text("utf-8").partition('<section id="router">')[2].partition("</section>")[0]
    return " ".join(unescape(html.partition("<p>")[2].replace("</p>", "")).split())


# -- the router ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "verb"),
    [
        (0.04, 0.16, "earns more than"),
        (-0.16, -0.04, "earns less than"),
        (0.0, 0.16, "is within noise of"),
        (-0.16, 0.0, "is within noise of"),
    ],
)
def test_a_router_earns_more_or_less_only_if_its_interval_leaves_out_0(
    build: Build, found: PoolAnswer, low: float, high: float, verb: str
) -> None:
    row = estimate("ridge", difference=(low + high) / 2, difference_low=low, difference_high=high)
    page = build([row], "ridge", **answering(found))
    text = router_text(page)
    assert f"{verb} what was played. Estimated utility 0.500 (0.450 to 0.550) a request at ρ = 10;" in text
    assert "the log is worth 45 decisions of this policy." in text
    assert "Its answers would score" not in text and "never plays" not in text
    figures = verdict(page)
    assert (figures["difference_low"], figures["difference_high"]) == (low, high)
    assert "cost" not in figures and "manski_width" not in figures


def test_score_and_cost_of_a_router_stand_beside_those_of_the_log(build: Build, found: PoolAnswer) -> None:
    page = build(with_dollars("ridge", manski_width=0.062), "ridge", **answering(found))
    text = router_text(page)
    assert "score 0.750 on average (played: 0.650) and cost $2.00 per 1,000 requests (played: $4.00)" in text
    assert "It never plays 6.2 % of what this policy plays: 0.062 of each interval's width" in text
    figures = verdict(page)
    assert (figures["score"], figures["cost"], figures["manski_width"]) == (0.75, 0.002, 0.062)


def test_a_router_whose_cost_is_not_estimated_has_neither_score_nor_cost(
    build: Build, found: PoolAnswer
) -> None:
    rows = [estimate("ridge"), estimate("ridge", "score", 0.75)]
    page = build(rows, "ridge", **answering(found))
    assert "Its answers would score" not in router_text(page) and "score" not in verdict(page)
    assert not (page.path.parent / "tables" / "money.csv").exists()


def test_a_router_without_an_interval_is_not_said_to_earn_more(build: Build, found: PoolAnswer) -> None:
    row = estimate("ridge", no_interval="too few prompts", difference_low=None, difference_high=None)
    text = router_text(build([row], "ridge", **answering(found)))
    assert "cannot be told. Estimated utility 0.500 a request at ρ = 10, +0.100 against what was" in text
    assert text.endswith("without an interval: too few prompts.")


def test_why_there_is_no_estimate_of_the_router_is_said(build: Build, found: PoolAnswer) -> None:
    rows = [refused("ridge"), estimate("ridge", rho=30.0), estimate("knn")]
    told = answering(found)
    text = router_text(build(rows, "ridge", rho=10.0, **told))
    assert "The log cannot tell what" in text and "At ρ = 10: the log is too short." in text
    assert "it was not evaluated at this rho" in router_text(build(rows, "lin_ucb", rho=10.0, **told))
    page = build(rows, **told)
    assert router_text(page) == "The pool has no router. The checks of the asset router say why."
    assert "policy" not in verdict(page)


def test_figures_are_those_of_the_estimated_rho_next_to_the_routers_or_the_middle_one(
    build: Build, found: PoolAnswer
) -> None:
    rows = [estimate("ridge", rho=rho, value=rho / 1000) for rho in (10.0, 100.0, 300.0)]
    told = answering(found)
    assert [
        verdict(build(rows, "ridge", rho=rho, **told))["utility"] for rho in (None, 5.0, 90.0, 250.0)
    ] == [0.1, 0.01, 0.1, 0.3]


# -- tables and the figure -----------------------------------------------------------------------------------


def test_quality_and_dollars_stand_beside_what_was_played(build: Build) -> None:
    page = build([*with_dollars("ridge"), estimate("knn"), estimate("knn", "score", 0.6)])
    money = csv(page, "money")
    assert len(money) == 1
    row = money.iloc[0]
    assert (row["Quality"], row["USD per 1,000 requests"], row["Cost"]) == (0.75, 2.0, 0.5)
    texts = cells_of(page, "money")
    assert texts == ["75.0 %", "+4.0 to +16.0", "$2.00", "−$3.00 to −$1.00", "saves 50 %"]


def test_a_log_that_cost_nothing_has_no_saving_and_an_estimate_without_interval_a_dash(build: Build) -> None:
    rows = with_dollars("ridge")
    rows[1] |= {"difference_low": None, "difference_high": None}
    rows[2] |= {"value": 0.0, "difference": 0.0}
    row = csv(build(rows), "money").iloc[0]
    assert row["Points against played, 95 %"] == "–" and pd.isna(row["Cost"])


def test_models_are_listed_from_the_most_asked_with_their_shares_and_means(build: Build) -> None:
    page = build([estimate("ridge")])
    models = csv(page, "models")
    assert list(models["Model"]) == ["big", "mid", "cheap"] and tuple(models["Decisions"]) == COUNTS
    assert list(models["Share"]) == [0.5, 0.3, 0.2]
    assert list(models["USD per 1,000 calls"]) == pytest.approx([1000 * cost for cost in COSTS])
    assert all(f">{text}<" in page.path.read_text("utf-8") for text in ("0.5000", "8.0000", "45", "50 %"))


def test_bounds_take_every_missing_score_for_0_or_1(build: Build) -> None:
    table = log(without_score=30, unscored={"big": 5, "mid": 9})
    page = build([estimate("ridge"), estimate("knn", rho=30.0)], table=table)
    bounds = csv(page, "missing").set_index("Figure")
    assert list(bounds.index)[:3] == ["mean score of big", "mean score of mid", "mean score of cheap"]
    assert len(bounds) == 4 and "Ridge" in bounds.index[3]
    mean = float(table.means[0][0])
    big, cheap, ridge = bounds.iloc[0], bounds.iloc[2], bounds.iloc[3]
    assert tuple(big) == pytest.approx((0.1, mean, 0.9 * mean, 0.9 * mean + 0.1))
    assert cheap["No score"] == 0 and cheap["At least"] == cheap["At most"] == cheap["As estimated"]
    assert tuple(ridge) == pytest.approx((0.25, 0.1, 0.075 - 0.25, 0.075 + 0.25))
    (banner,) = verdict(page)["warnings"]
    assert banner.startswith("30 of 120 decisions have no score") and "could be 25 % lower" in banner


def test_a_log_with_all_scores_has_no_bounds(build: Build) -> None:
    page = build([estimate("ridge")])
    assert not (page.path.parent / "tables" / "missing.csv").exists() and verdict(page)["warnings"] == []


def test_estimated_propensities_and_refused_policies_are_warned_of(build: Build) -> None:
    rows = [estimate("ridge", assumed=True), refused("knn"), refused("knn", rho=30.0)]
    first, second = verdict(build(rows))["warnings"]
    assert first.startswith("The log has no propensities")
    assert second == "1 of 2 policies cannot be estimated at every ρ: see the table."


def test_the_receipt_lists_what_was_kept_and_what_was_left_out_by_number(build: Build) -> None:
    receipt = {"origin": "log.jsonl", "format": "litellm", "records": 1200, "kept": 1090, "scored": 90}
    receipt |= {"left_out": {"failed": 10, "no prompt": 100}, "notes": ["prompts were cut"]}
    page = build([estimate("ridge")], table=log(receipt=receipt, merged_models={"big": ["BIG", "big-2"]}))
    table = csv(page, "receipt")
    assert list(table["Records"]) == [
        *("calls kept", "of them with a score", "left out: no prompt", "left out: failed")
    ]
    assert list(table["Number"]) == [1090, 90, 100, 10]
    html = page.path.read_text("utf-8")
    assert "1,200 records" in html and "prompts were cut. big stands for BIG, big-2." in html
    assert ">1,090<" in html and "90 with a score" not in html


def test_the_figure_shows_the_utility_at_one_rho_from_the_best_policy_to_the_worst(build: Build) -> None:
    none = {"difference_low": None, "difference_high": None, "no_interval": "too few prompts"}
    worst = {"difference": -0.2, "difference_low": -0.25, "difference_high": -0.15}
    others = [
        estimate("knn", rho=30.0, difference=0.9),
        estimate("knn", "score", difference=0.9),
        estimate("knn", estimator="snips", difference=0.9),
    ]
    page = build(
        [estimate("lin_ucb", **worst), estimate("knn", **none), *others, estimate("ridge", difference=0.3)],
        rho=10.0,
    )
    ridge, knn, lin_ucb = (
        ["+0.300", "+0.040", "+0.160"],
        ["+0.100", "–", "–"],
        ["−0.200", "−0.250", "−0.150"],
    )
    assert cells_of(page, "differences") == [*ridge, *knn, *lin_ucb]
    html = page.path.read_text("utf-8")
    assert "for 3 policies. Highest: Ridge at +0.300; lowest: LinUCB at −0.200." in html
    assert '"height":75' in html, "every policy has a line of 25 pixels"
    assert page.images["differences"] == (page.path.parent / "differences.png").read_bytes()


# -- what is written beside the page -------------------------------------------------------------------------


def test_older_data_have_no_answer_and_no_router(build: Build) -> None:
    page = build(with_dollars("ridge"), "ridge")
    content = verdict(page)
    assert (content["headline"], content["why"]) == ("No answer on older data", OLDER)
    assert content["older_data"] == OLDER and content["answer"] is None and content["ask_again"] is None
    assert "utility" not in content and router_text(page) == ""
    assert page.summary == {"verdict": "No answer on older data", "why": OLDER, "decisions": 1234}
    assert page.markdown == f"**No answer on older data**\n\n{OLDER}"


def test_the_answer_its_goal_and_the_prompts_to_ask_are_written(build: Build, found: PoolAnswer) -> None:
    goal = GoalAnswer("quality 0.9", "No option is sure to reach it.")
    page = build([estimate("ridge")], "ridge", bundle="abc123", **answering(found, goal=goal))
    content = verdict(page)
    assert content["format"] == 1 and content["logged"] and content["older_data"] is None
    assert content["answer"] == json.loads(json.dumps(found.to_dict()))
    assert content["goal"]["sentence"] == goal.sentence and content["headline"] == content["verdict"]
    lines = (page.path.parent / "ask_again.jsonl").read_text("utf-8").splitlines()
    assert content["ask_again"]["file"] == "ask_again.jsonl"
    assert sum(content["ask_again"]["prompts"].values()) == len(lines) > 0
    assert page.summary["goal"] == goal.text and "newest" not in page.summary
    assert page.markdown.count("\n\n") == 2 and "To know, have" in page.markdown
    html = page.path.read_text("utf-8")
    assert "abc123" in html and "<td>log.jsonl</td>" in html and 'id="again"' in html


def test_a_pool_without_estimates_has_no_page(build: Build) -> None:
    with pytest.raises(ResultError, match="no estimates of pool 'calls'"):
        build([estimate("ridge", pool="other")])
