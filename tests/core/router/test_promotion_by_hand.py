"""The judgement on a challenger, with figures computed by hand."""

from __future__ import annotations

import pytest

from cabs_core.router.promotion import Difference, judge


def difference(mean: float = 0.0, se: float = 0.01, decisions: int = 400, **fields) -> Difference:
    """A difference from a champion of utility .5."""
    return Difference(0.5, 0.5 + mean, mean, se, decisions, **fields)


def test_the_interval_is_1_96_standard_errors_to_either_side_and_what_is_unknown_beyond():
    assert difference(0.1).interval() == pytest.approx((0.0804, 0.1196))
    assert difference(0.1, unknown=(0.05, 0.2)).interval() == pytest.approx((0.0304, 0.3196))


def test_an_interval_of_two_given_distances_needs_no_standard_error():
    uneven = difference(0.1, interval_distances=(0.25, 0.5), unknown=(0.01, 0.02))
    assert uneven.interval() == pytest.approx((-0.16, 0.62))


def test_a_half_width_that_depends_on_the_decisions_is_taken_at_their_number():
    assert difference(decisions=400, half_width=lambda n: n / 100.0).interval() == pytest.approx(
        (-0.04, 0.04)
    )


def test_so_many_decisions_are_needed_that_3_24_standard_errors_fit_into_the_margin():
    # standard deviation .01 * sqrt(400) = .2; ((1.96 + 1.2816) * .2 / .02)^2 = 1050.8
    assert difference().needed(0.02) == 1051
    # half of the margin asks for four times as many
    assert difference().needed(0.01) == 4204


def test_a_width_that_grows_with_the_decisions_is_the_one_at_the_number_needed():
    # width 1.7184 + sqrt(n) / 100 and .2 / .02 = 10: sqrt(n) = 10 * (3 + sqrt(n) / 100), so sqrt(n) = 33.3
    widening = difference(half_width=lambda n: 1.7184 + n**0.5 / 100.0)
    assert widening.needed(0.02) == 1112


def test_no_width_is_asked_for_less_than_one_decision():
    asked = []

    def half_width(decisions: float) -> float:
        asked.append(decisions)
        return 1.96

    assert difference(se=1e-9, half_width=half_width).needed(0.02) == 1
    assert min(asked) == 1.0


def test_the_least_number_for_a_valid_interval_is_needed_at_least():
    assert difference(least=3000.0).needed(0.02) == 3000
    assert difference(least=30.0).needed(0.02) == 1051


def test_without_a_loss_seen_so_many_are_needed_that_losses_of_everything_are_rarer_than_the_margin():
    # Wilson: 1.95996^2 * (1 - .02) / .02 = 188.2; (1 - .5) / .5 = 1 gives 3.84
    nothing_lost = difference(se=0.0, interval_distances=(0.0, 0.0))
    assert nothing_lost.needed(0.02) == 189
    assert nothing_lost.needed(0.5) == 4
    assert nothing_lost.needed(1.5) == 0
    assert difference(se=0.0).needed(0.02) == 0


@pytest.mark.parametrize(
    "mean, margin, is_promoted",
    [
        (-0.25, 0.5, False),  # the interval ends at the margin: a loss as large as the margin is possible
        (-0.25, 0.5625, True),  # the interval ends at 0: equal utility is possible
        (-0.3125, 2.0, False),  # all of the interval is below 0
        (0.5, 0.25, True),
        (-0.125, 0.25, False),
    ],
)
def test_a_challenger_is_promoted_if_its_interval_lies_above_the_margin_and_reaches_0(
    mean, margin, is_promoted
):
    verdict = judge(difference(mean, interval_distances=(0.25, 0.25)), margin)
    assert (verdict.low, verdict.high) == (mean - 0.25, mean + 0.25)
    assert verdict.promote == is_promoted


def test_a_challenger_that_may_be_equal_is_not_called_worse():
    at_zero = judge(difference(-0.25, interval_distances=(0.25, 0.25)), 0.25)
    below_zero = judge(difference(-0.3125, interval_distances=(0.25, 0.25)), 0.25)
    assert "cannot tell" in at_zero.reason
    assert "worse beyond noise" in below_zero.reason


def test_an_interval_counts_from_its_least_number_of_decisions_on():
    enough = judge(difference(0.3, least=400.0), 0.02)
    too_few = judge(difference(0.3, least=401.0), 0.02)
    worse_on_too_few = judge(difference(-0.3, least=401.0), 0.02)
    assert (enough.promote, too_few.promote) == (True, False)
    assert "cannot tell" in worse_on_too_few.reason


def test_the_verdict_has_the_figures_of_the_comparison():
    verdict = judge(difference(0.1, se=0.05, decisions=1_000), 0.02)
    assert (verdict.queries, verdict.champion, verdict.challenger) == (1_000, 0.5, 0.6)
    assert (verdict.difference, verdict.se, verdict.margin) == (0.1, 0.05, 0.02)
    # (3.2416 * .05 * sqrt(1000) / .02)^2
    assert verdict.needed == 65_675
    assert "0.6000 against 0.5000: +0.1000" in verdict.reason and "1,000 held-out" in verdict.reason


def test_the_advice_is_the_number_of_decisions_that_lack():
    assert "About 651 more scored decisions" in judge(difference(-0.005), 0.02).reason
    # there are enough for an equal challenger, and this one was not lucky
    assert "About 1 more scored decisions" in judge(difference(-0.01, decisions=4_000, se=0.006), 0.02).reason


def test_prompts_to_collect_count_those_that_are_not_held_out():
    # a quarter of the prompts is held out: 4 * 651
    assert "About 2,604 more prompts" in judge(difference(-0.005, collected=4.0), 0.02).reason


def test_answers_that_the_table_lacks_are_asked_for_where_they_could_change_the_verdict():
    lacking = judge(difference(0.01, unknown=(0.25, 0.5)), 0.02)
    assert "from -0.2400 to +0.5100" in lacking.reason
    at_the_margin = judge(difference(-0.25, unknown=(0.25, 0.25)), 0.5)
    assert "more scored decisions" in at_the_margin.reason and not at_the_margin.promote
