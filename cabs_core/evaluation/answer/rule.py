"""Rules of the answer: the word of an option compared with today's model, and the recommended option.

The report, goals and exports take both from here. Promotions have a margin of their own (`router.margin`),
since each of several promotions in a row may lose it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

#: largest probability with which any word of an answer may be wrong
LEVEL = 0.05
#: largest loss of mean score that still counts as "as good"
TOLERANCE = 0.03


class Word(StrEnum):
    """The judgement of an option in comparison with today's model."""

    KEEP = "keep"
    BETTER = "better"
    CHEAPER = "as good and cheaper"
    AS_GOOD = "as good, not cheaper"
    WORSE = "worse"
    UNKNOWN = "cannot tell"


#: words of options that may be recommended
RECOMMENDABLE = (Word.KEEP, Word.BETTER, Word.CHEAPER)


@dataclass(frozen=True)
class Tests:
    """One-sided p-values of four hypotheses on an option, adjusted for all options of its family (Holm).

    A small p-value supports the word of the field.

    Attributes:
        better: of the hypothesis that the difference in score to today's model is 0 or less.
        as_good: of the hypothesis that the difference is minus the tolerance or less.
        cheaper: of the hypothesis that the option costs as much as today's model, or more.
        worse: of the hypothesis that the difference is 0 or more.
    """

    better: float
    as_good: float
    cheaper: float
    worse: float


@dataclass(frozen=True)
class Shares:
    """Shares of a family's error that the tests of an option's words have.

    "Better" and "worse" share the error, since both are false of an option that is exactly as good as
    today's model. "As good" has all of the error: it is false only of an option that loses more than the
    tolerance, of which "worse" is true and "better" is hardly ever shown.

    Attributes:
        better, worse: shares of both words, with the sum 1.
        cheaper: share of the test of the cost.
    """

    better: float
    worse: float
    cheaper: float = 0.5


#: single models have more error for "worse", and options that were fitted have more error for "better"
SHARES_OF_MODELS = Shares(better=0.4, worse=0.6)
SHARES_OF_FITTED = Shares(better=0.8, worse=0.2)


def word_of(tests: Tests, tail: float, shares: Shares, *, costs_known: bool) -> Word:
    """Return the first word of an option that its tests show at the one-sided error `tail` of its family.

    A test shows its word if the p-value is at most `tail`, times the word's share if it has one. The order is
    better, as good and cheaper, as good, worse, cannot tell. Unless `costs_known`, no word says that the
    option is as good, since it may be cheaper or dearer.
    """
    if tests.better <= tail * shares.better:
        return Word.BETTER
    as_good = tests.as_good <= tail
    if costs_known and as_good and tests.cheaper <= tail * shares.cheaper:
        return Word.CHEAPER
    if costs_known and as_good:
        return Word.AS_GOOD
    if tests.worse <= tail * shares.worse:
        return Word.WORSE
    return Word.UNKNOWN


def recommended(
    words: Mapping[str, Word], costs: Mapping[str, float], beats: Callable[[str, str], bool]
) -> str | None:
    """Return the lowest rung that may be recommended and that no other such rung beats.

    A rung is one of the options keep, switch, rules and router. It may be recommended if its word is keep,
    better, or as good and cheaper (`RECOMMENDABLE`). Return None if no rung may be recommended.

    Rungs can beat each other in a circle if each is a little worse and cheaper than the next. The cheapest
    rung is then returned, since all are as good as today's model within the tolerance.

    Args:
        words: word of each rung, from the lowest rung to the highest.
        costs: mean cost of a request in USD, of each rung.
        beats: function that returns True for (a, b) if rung a is to be used instead of rung b.
    """
    candidates = [rung for rung, word in words.items() if word in RECOMMENDABLE]
    for rung in candidates:
        if not any(beats(other, rung) for other in candidates if other != rung):
            return rung
    return min(candidates, key=lambda rung: costs[rung], default=None)
