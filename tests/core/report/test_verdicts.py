"""Verdicts on tables of known truth: some of `make verdicts`, and what its bookkeeping promises."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from verdicts_by_hand import verdict_at

from cabs_core.report import logged
from cabs_core.report.verdict import Verdict
from tests.faults import terms
from tests.verdict_tables import ROUTERS, Judged, Truth, judge, summary, world, wrong

#: seeds of small tables: every kind of scores and gaps, routing that pays and that does not
SEEDS = (1, 3, 4, 11, 12, 13)


@pytest.fixture(scope="module")
def judged() -> list[Judged]:
    return [judge(seed, most=300) for seed in SEEDS]


@pytest.mark.slow
def test_small_tables_are_judged_right(judged: list[Judged]) -> None:
    counts = summary(judged)
    assert counts["refused"] == 0, [row.refused for row in judged]
    assert counts["verdicts"] == 2 * len(SEEDS) and counts["wrong"] == 0
    worlds = [row.world for row in judged]
    assert {w.gaps for w in worlds} == {"none", "random", "hard"}
    assert {w.kind for w in worlds} == {"right", "graded", "stars"}
    assert {w.pays for w in worlds} == {True, False}


@pytest.mark.slow
def test_what_is_said_names_the_gaps_and_no_term_of_the_field(judged: list[Judged]) -> None:
    for row in judged:
        assert any("ot tried" in text for _, text in row.messages) == (row.world.gaps != "none")
        assert not [text for heading, text in row.messages if heading != "verdict, export" and terms(text)]


def test_the_same_seed_is_the_same_table() -> None:
    once, again = (judge(SEEDS[0], most=300) for _ in range(2))
    assert once.verdicts and again.verdicts == once.verdicts


def test_a_wrong_decision_is_called_wrong() -> None:
    def decided(decision: str) -> Verdict:
        return verdict_at(1.0, decision, router="ridge")

    nothing = dict.fromkeys(ROUTERS, (-0.01, -0.02, 0.0))
    cheaper = dict.fromkeys(ROUTERS, (-0.001, -0.005, 0.3))
    better = {**nothing, "hier_mix": (0.03, 0.03, 0.0)}
    assert wrong(decided("deploy"), nothing) and not wrong(decided("deploy"), cheaper)
    assert wrong(decided("keep"), better) and not wrong(decided("keep"), nothing)
    assert not wrong(decided("unsure"), better)


def test_truth_is_the_mean_over_many_tables() -> None:
    w = replace(world(5, 300), prompts=40_000)
    kinds = np.random.default_rng(0).choice(len(w.frequency), w.prompts, p=w.frequency)
    scores, costs, _ = w.drawn(np.random.default_rng(1), kinds)

    truth = Truth(w, kinds, [f"model_{j}" for j in range(len(w.usd))])
    mean = (truth.weight[:, None] * truth._means(truth.score)).mean(axis=0)
    assert mean == pytest.approx(scores.mean(axis=0), abs=0.02)
    assert (truth._means(truth.cost)).mean(axis=0) == pytest.approx(costs.mean(axis=0), rel=0.05)


def test_a_hyphen_in_a_reason_is_no_minus():
    row = SimpleNamespace(value=0.5, difference=-0.1, no_interval="choices of a self-learning policy")
    _, why, _ = logged._lead({"dr utility": row}, "lin_ucb", 300.0)
    assert "−0.100" in why and "self-learning" in why
