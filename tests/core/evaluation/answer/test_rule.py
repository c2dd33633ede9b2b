"""The word of an option by its p-values, and which option is recommended."""

from __future__ import annotations

import pytest

from cabs_core.evaluation.answer import AnswerOptions, Word, rule
from cabs_core.evaluation.answer.rule import SHARES_OF_FITTED, SHARES_OF_MODELS, recommended, word_of

TAIL = 0.1


def word(better: float = 1.0, as_good: float = 1.0, cheaper: float = 1.0, worse: float = 1.0) -> Word:
    """Return the word of a single model whose costs are known."""
    return word_of(rule.Tests(better, as_good, cheaper, worse), TAIL, SHARES_OF_MODELS, costs_known=True)


def test_a_twentieth_of_words_may_be_wrong_and_three_points_of_a_hundred_may_be_lost() -> None:
    options = AnswerOptions()
    assert (options.level, options.tolerance) == (0.05, 0.03)


@pytest.mark.parametrize("shares", [SHARES_OF_MODELS, SHARES_OF_FITTED])
def test_better_and_worse_share_the_error(shares) -> None:
    assert shares.better + shares.worse == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("p_values", "expected"),
    [
        ({"better": TAIL * 0.4}, Word.BETTER),
        ({"better": 0.041}, Word.UNKNOWN),
        ({"as_good": TAIL}, Word.AS_GOOD),
        ({"as_good": 0.101}, Word.UNKNOWN),
        ({"as_good": TAIL, "cheaper": TAIL * 0.5}, Word.CHEAPER),
        ({"as_good": TAIL, "cheaper": 0.051}, Word.AS_GOOD),
        ({"cheaper": 0.0}, Word.UNKNOWN),
        ({"worse": TAIL * 0.6}, Word.WORSE),
        ({"worse": 0.061}, Word.UNKNOWN),
        ({"as_good": 0.0, "worse": 0.0}, Word.AS_GOOD),
        ({"better": 0.0, "as_good": 0.0, "cheaper": 0.0}, Word.BETTER),
    ],
)
def test_a_word_is_said_up_to_its_share_of_the_error(p_values: dict[str, float], expected: Word) -> None:
    assert word(**p_values) == expected


def test_of_a_fitted_option_better_has_four_fifths_of_the_error_and_worse_one() -> None:
    def fitted(tests: rule.Tests) -> Word:
        return word_of(tests, TAIL, SHARES_OF_FITTED, costs_known=True)

    assert fitted(rule.Tests(0.079, 1.0, 1.0, 1.0)) == Word.BETTER
    assert fitted(rule.Tests(0.081, 1.0, 1.0, 1.0)) == Word.UNKNOWN
    assert fitted(rule.Tests(1.0, 1.0, 1.0, 0.019)) == Word.WORSE
    assert fitted(rule.Tests(1.0, 1.0, 1.0, 0.021)) == Word.UNKNOWN


def test_without_known_costs_no_option_is_as_good() -> None:
    sure = rule.Tests(better=1.0, as_good=0.0, cheaper=0.0, worse=1.0)
    assert word_of(sure, TAIL, SHARES_OF_MODELS, costs_known=False) == Word.UNKNOWN


WORDS = {"keep": Word.KEEP, "switch": Word.CHEAPER, "rules": Word.BETTER, "router": Word.UNKNOWN}
COSTS = {"keep": 3.0, "switch": 1.0, "rules": 2.0, "router": 0.5}


def test_the_lowest_rung_that_no_other_candidate_beats_is_recommended() -> None:
    assert recommended(WORDS, COSTS, lambda a, b: False) == "keep"
    assert recommended(WORDS, COSTS, lambda a, b: b == "keep" and a == "switch") == "switch"
    assert recommended(WORDS, COSTS, lambda a, b: a == "router") == "keep"


def test_of_rungs_that_beat_each_other_in_a_circle_the_cheapest_is_recommended() -> None:
    circle = {("keep", "switch"), ("switch", "rules"), ("rules", "keep")}
    assert recommended(WORDS, COSTS, lambda a, b: (a, b) in circle) == "switch"


def test_without_a_candidate_nothing_is_recommended() -> None:
    assert recommended({"switch": Word.WORSE}, COSTS, lambda a, b: False) is None
