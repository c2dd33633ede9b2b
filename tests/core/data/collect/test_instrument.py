"""The judge as an instrument: figures by hand, biases found, and intervals that cover
what people would have said."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from cabs_core.base.errors import DataError
from cabs_core.base.statistics.bootstrap import bootstrap_interval
from cabs_core.base.statistics.people import corrected_mean, corrected_sum
from cabs_core.data.collect import instrument
from cabs_core.data.collect.instrument import (
    family_of,
    kappa,
    measure,
    position,
    refusals_decide,
)
from cabs_core.data.collect.scoring import Cell
from cabs_core.pipeline.stages import scores as stage
from cabs_core.pipeline.stages.scores import compared_with


def simulated(rng, n, *, error=0.15, long=0.0, own=0.0, models=("gpt-a", "gpt-b", "claude-c", "llama-d")):
    """(judged, people, queries, models, lengths) of n prompts x models;
    the judge is wrong in a share of answers."""
    names = [m for _ in range(n) for m in models]
    queries = [f"q{i}" for i in range(n) for _ in models]
    people = (rng.random(len(names)) < np.repeat(rng.uniform(0.3, 0.9, n), len(models))).astype(float)
    lengths = np.round(2 ** rng.uniform(4, 10, len(names)))
    flip = error + np.where(people == 0, long * (np.log2(lengths) - 7) / 3, 0.0)
    flip += np.where((people == 0) & np.array([m.startswith("gpt") for m in names]), own, 0.0)
    judged = np.where(rng.random(len(names)) < np.clip(flip, 0, 1), 1 - people, people)
    return judged, people, queries, names, lengths


def test_kappa_by_hand():
    a, b = np.array([1, 1, 0, 0, 1, 0]), np.array([1, 0, 0, 0, 1, 1])
    assert kappa(a, b) == pytest.approx((4 / 6 - 0.5) / 0.5)
    assert kappa(a, a) == 1 and kappa(a, 1 - a) == -1
    assert np.isnan(kappa(np.ones(3), np.ones(3)))


FAMILIES = {
    "gpt-4o": "openai",
    "openai/o3-mini": "openai",
    "claude-3-5": "anthropic",
    "meta-llama/Llama-3-8B": "meta",
    "Qwen2.5": "alibaba",
    "mixtral-8x7b": "mistral",
    "house_7b": "house",
    "phi-4": "microsoft",
}


def test_families():
    assert {name: family_of(name) for name in FAMILIES} == FAMILIES


@pytest.mark.slow
def test_a_judge_that_errs_at_random_favours_no_length():
    """Long answers are wrong more often here, so a judge with random errors is above people
    on them; that is no bias."""
    rng, blamed = np.random.default_rng(3), 0
    for _ in range(20):
        judged, people, queries, names, lengths = simulated(rng, 100, error=0.25)
        lengths = np.where(people == 0, 800.0, 100.0) * 2 ** rng.uniform(-1, 1, len(people))
        measured = measure("j", judged, people, queries, names, lengths)
        blamed += measured["length"]["low"] > 0 or measured["length"]["high"] < 0
    assert blamed <= 3  # 1 of 20 is expected


def test_an_unbiased_judge_is_not_blamed_and_a_biased_one_is():
    rng = np.random.default_rng(0)
    fair = instrument.warnings(measure("gpt-j", *simulated(rng, 150)))
    assert not [t for t in fair if "long" in t or "family" in t]
    long = instrument.warnings(measure("judge", *simulated(rng, 150, long=0.3)))
    assert any("favours long answers" in t for t in long)
    own = instrument.warnings(measure("gpt-j", *simulated(rng, 400, own=0.3)))
    assert any("own family (openai)" in t for t in own)
    noisy = instrument.warnings(measure("j", *simulated(rng, 150, error=0.4)))
    assert any("agreement" in t for t in noisy) and not any("agreement" in t for t in fair)
    assert "never compared" in instrument.warnings({"labelled": 0})[0]


def test_position_by_hand():
    rates = position([("a", 1.0, 1.0), ("b", 1.0, 0.0), ("c", 0.0, 0.0), ("d", 1.0, 0.0)])
    assert rates["first"]["value"] == 0.5 and rates["flips"]["value"] == 0.5


def test_refusals_decide_by_hand():
    scores = np.array([[0.0, 0.8], [1.0, 0.8], [0.0, 0.8]])
    refused = np.array([[True, False], [False, False], [True, False]])
    assert "refusals decide: b" in refusals_decide(["a", "b"], scores, refused)
    assert refusals_decide(["a", "b"], scores, np.zeros((3, 2), dtype=bool)) == ""


@pytest.mark.parametrize(
    ("scores", "refused"),
    [
        ([[0.0, 0.0], [0.0, 0.0]], [[True, True], [True, True]]),
        ([[np.nan, np.nan]], [[False, False]]),
        ([[np.nan, 0.5]], [[False, False]]),
        ([[0.0, 0.5]], [[True, False]]),
    ],
    ids=["all refused", "no score", "a model without a score", "a model that refused all"],
)
def test_refusals_do_not_decide_between_models_without_scores(scores, refused):
    assert refusals_decide(["a", "b"], np.array(scores), np.array(refused)) == ""


def test_a_model_without_a_score_has_no_mean_and_is_named():
    means, sentences = stage.mean_scores(["b", "a", "b", "c"], np.array([0.5, 1.0, np.nan, np.nan]))
    assert means == {"a": 1.0, "b": 0.5} and list(means) == ["a", "b"]
    assert sentences == ["none of the answers of c has a score"]


def test_a_sheet_without_answers_says_why(monkeypatch, tmp_path):
    cell = Cell(query="q", prompt="p", task="t", row={}, model="a", state="refused", text="")
    for cells, why in (
        ([cell], "no model answered"),
        ([replace(cell, state="answered", text=None)], "hashes"),
    ):
        monkeypatch.setattr(stage, "cells_of", lambda answers, cells=cells: cells)
        with pytest.raises(DataError, match=why):
            stage.sheet(tmp_path, 1, seed=0)


def test_without_judgements_it_is_the_mean_of_the_labels():
    people = np.array([1.0, 0.0, 1.0, 1.0])
    estimate = corrected_mean(np.ones(4), people, np.ones(0))
    assert estimate.value == 0.75 and estimate.low < 0.75 < estimate.high


def test_a_perfect_judge_narrows_the_interval():
    rng = np.random.default_rng(0)
    truth = (rng.random(2000) < 0.7).astype(float)
    alone = corrected_mean(truth[:50], truth[:50], truth[:0])
    estimate = corrected_mean(truth[:50], truth[:50], truth[50:])
    assert estimate.high - estimate.low < 0.5 * (alone.high - alone.low)


@pytest.mark.parametrize(
    ("n", "labelled", "error"),
    [(400, 40, 0.15), (400, 40, 0.4), (1000, 100, 0.05), (120, 60, 0.15), (400, 20, 0.15)],
)
def test_intervals_cover_the_mean_that_people_would_give(n, labelled, error):
    """95 % intervals over 1,000 simulated judges with a bias; the naive mean of the judge is far off."""
    rng, hits, naive, width, alone = np.random.default_rng(n), 0, 0, 0.0, 0.0
    for _ in range(1000):
        people = (rng.random(n) < 0.6).astype(float)
        judged = np.where(rng.random(n) < np.where(people == 1, 0.3 * error, error * 1.5), 1 - people, people)
        estimate = corrected_mean(judged[:labelled], people[:labelled], judged[labelled:])
        hits += estimate.low <= 0.6 <= estimate.high
        reach = 1.96 * judged.std(ddof=1) / np.sqrt(n)
        naive += abs(judged.mean() - 0.6) <= reach
        width += estimate.high - estimate.low
        labels_alone = corrected_mean(judged[:labelled], people[:labelled], judged[:0])
        alone += labels_alone.high - labels_alone.low
    assert 0.922 <= hits / 1000 <= 0.99  # .937 to .953 of 4,000 runs each, with a deviation of .007 here
    assert naive / 1000 < 0.9
    assert width <= alone * 1.05  # never worse than the labels alone


def test_agreement_holds_its_level_whether_one_answer_of_a_prompt_is_labelled_or_all():
    """Prompts that are hard for the judge are hard in all four answers;
    Wilson's interval of the rows covers 81 %."""
    rng, hits = np.random.default_rng(1), 0
    for _ in range(400):
        likely = np.where(rng.random(40) < 0.25, 0.4, 1.0).repeat(4)
        same = rng.random(160) < likely
        a = instrument.share(same, np.arange(40).repeat(4).astype(str).tolist())
        hits += a.low <= 0.85 <= a.high
    assert 0.92 <= hits / 400 <= 0.99


def test_rare_errors_of_people_s_favourites_are_covered():
    """Answers that are right in 97 % of cases and 50 labels; the usual interval covers 78 %."""
    rng, hits = np.random.default_rng(2), 0
    for _ in range(400):
        people = (rng.random(400) < 0.97).astype(float)
        judged = np.where(rng.random(400) < 0.05, 1 - people, people)
        estimate = corrected_mean(judged[:50], people[:50], judged[50:])
        hits += estimate.low <= 0.97 <= estimate.high
    assert hits / 400 >= 0.93


@pytest.mark.parametrize("shares", [(1.0, 1.0, 1.0), (1.0, 0.5, 0.25)])
def test_a_difference_of_two_routers_as_people_would_have_it(shares):
    """One labelled answer each of some prompts, of those that were asked: intervals cover,
    and the judge's bias for a model is taken out."""
    rng, hits, n, k = np.random.default_rng(3), 0, 300, 3
    for _ in range(300):
        people = (rng.random((n, k)) < [0.5, 0.6, 0.7]).astype(float)
        judged = people.copy()
        judged[:, 1] = np.where(rng.random(n) < 0.3, 1.0, judged[:, 1])
        weight = np.zeros((n, k))
        weight[np.arange(n), rng.integers(1, 3, n)] += 1.0
        weight[:, 0] -= 1.0
        labels = np.full((n, k), np.nan)
        asked = rng.random((n, k)) < shares
        rows = rng.permutation(n)[:120]
        arms = np.where(asked, rng.random((n, k)), -1.0).argmax(axis=1)[rows]
        labels[rows, arms] = people[rows, arms]
        stands = None if min(shares) == 1 else asked.sum(axis=1, keepdims=True) / shares
        estimate = corrected_sum(weight, judged, labels, stands=stands)
        hits += estimate.low <= 0.15 <= estimate.high
    assert 0.92 <= hits / 300 <= 0.99


def test_a_judge_who_sees_half_of_what_people_see_does_not_narrow_the_difference():
    """Judgements and their errors rise and fall together; four answers in ten are labelled."""
    rng, hits, n, k = np.random.default_rng(10), 0, 250, 4
    less = np.array([0.0, 0.05, 0.1, 0.0])
    for _ in range(600):
        people = (rng.random((n, k)) < rng.beta(5, 2, (n, 1)) - less).astype(float)
        judged = 0.7 * people + 0.3 * rng.random((n, k))
        weight = np.zeros((n, k))
        weight[np.arange(n), rng.integers(0, k, n)] += 1
        weight[:, 0] -= 1
        labels = np.where(rng.random((n, k)) < 0.4, people, np.nan)
        estimate = corrected_sum(weight, judged, labels)
        hits += estimate.low <= -less.mean() <= estimate.high
    assert 0.93 <= hits / 600 <= 0.98


def test_a_judge_that_compares_is_measured_by_comparisons():
    cells = [SimpleNamespace(query=q, model=m) for q in "pqr" for m in ("max", "mini")]
    people = np.array([1.0, 0.5, 0.2, 0.8, np.nan, 1.0])
    assert compared_with(people, cells, "max").tolist() == pytest.approx(
        [np.nan, 0.0, np.nan, 1.0, np.nan, np.nan], nan_ok=True
    )


def test_the_bootstrap_draws_whole_prompts():
    values, draws = np.array([0, 0, 1, 1, 2, 2.0]), []

    def mean(rows):
        draws.append(np.bincount(rows, minlength=6))
        return float(values[rows].mean())

    low, high = bootstrap_interval(mean, ["b", "b", "a", "a", "c", "c"])
    assert 0 <= low < 1 < high <= 2
    times = np.array(draws)
    assert (times[:, ::2] == times[:, 1::2]).all() and (times.sum(axis=1) == 6).all()
    assert np.isnan(bootstrap_interval(lambda rows: float("nan"), [0, 1])).all()
