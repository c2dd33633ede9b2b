"""Unit tests of code that a model wrote. The pool file has to ask for it."""

from collections.abc import Callable, Mapping

from cabs_core.data.collect.scorers.box import kind_of_box, run_in
from cabs_core.data.collect.scorers.text import code_of
from cabs_core.data.pool_files.collect import UnitTests


def passes(code: str, tests: str, *, seconds: float, megabytes: int) -> bool:
    """Whether the code and then its tests end without an error, in the tightest `box` of this machine."""
    return run_in(kind_of_box(), code, tests, seconds, megabytes)


def unit_test_score(scorer: UnitTests) -> Callable[[str, str, Mapping[str, str]], float]:
    """The function that scores an answer by the tests of its row."""

    def score(_: str, answer: str, row: Mapping[str, str]) -> float:
        return float(
            passes(code_of(answer), row[scorer.column], seconds=scorer.seconds, megabytes=scorer.megabytes)
        )

    return score
