"""Which difference matters: the words of an option beside today's, and which option is recommended.

This is the only place that says it. The report, goals and exports read it. A promotion follows other
promotions, each of which may lose its margin, so a router has a field of its own for that (`router.margin`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

#: error of all statements of the first screen together
LEVEL = 0.05
#: loss of quality, in units of a score, that a lower price may cost
TOLERANCE = 0.03


class Word(StrEnum):
    """The judgement of an option beside today's."""

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
    """One-sided p-values of what a word denies, after the share of the other options of the family.

    Attributes:
        better: that the difference in quality is 0 or less.
        as_good: that it is minus the tolerance or less.
        cheaper: that the option costs as much as today's, or more.
        worse: that it is 0 or more.
    """

    better: float
    as_good: float
    cheaper: float
    worse: float


@dataclass(frozen=True)
class Shares:
    """The shares of a family's error that the tests of "better" and "worse" have, with the sum 1.

    If an option is exactly as good as today's, both would be false. "As good" would be false only if an
    option is beyond the tolerance, where "worse" is true and "better" out of reach, so it has all of the
    error.

    Attributes:
        better, worse: shares of the error, with the sum 1.
        cheaper: share of the error that the test of the cost has.
    """

    better: float
    worse: float
    cheaper: float = 0.5


#: of single models it is asked more often which are worse, of fitted options which are better
SHARES_OF_MODELS = Shares(better=0.4, worse=0.6)
SHARES_OF_FITTED = Shares(better=0.8, worse=0.2)


def word_of(tests: Tests, tail: float, shares: Shares, *, money_known: bool) -> Word:
    """Return the first word that holds at the one-sided error `tail` of a family of options.

    An option that is as good, and whose money cannot be told, may be cheaper or dearer: no word says that.
    """
    if tests.better <= tail * shares.better:
        return Word.BETTER
    as_good = tests.as_good <= tail
    if money_known and as_good and tests.cheaper <= tail * shares.cheaper:
        return Word.CHEAPER
    if money_known and as_good:
        return Word.AS_GOOD
    if tests.worse <= tail * shares.worse:
        return Word.WORSE
    return Word.UNKNOWN


def recommended(
    words: Mapping[str, Word], costs: Mapping[str, float], beats: Callable[[str, str], bool]
) -> str | None:
    """Return the lowest rung that may be recommended and that no other one of these beats.

    Return None if no rung may be recommended.

    Rungs can beat each other in a circle if each is a little worse and cheaper than the next. All of them
    are as good as today's within the tolerance, so then it is the cheapest one.

    Args:
        words: of the rungs, from the lowest to the highest.
        costs: mean cost of a request in USD.
        beats: `beats(a, b)` says that rung a is to be used instead of rung b.
    """
    candidates = [rung for rung, word in words.items() if word in RECOMMENDABLE]
    for rung in candidates:
        if not any(beats(other, rung) for other in candidates if other != rung):
            return rung
    return min(candidates, key=lambda rung: costs[rung], default=None)
