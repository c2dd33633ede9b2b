"""Scores by a reference: exact text, number, choice, regular expression, contained text, JSON schema."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cabs_core.base.errors import DataError
from cabs_core.data.collect.scorers.results import chosen_letter, result_number
from cabs_core.data.pool_files.collect import (
    Contains,
    Exact,
    JsonSchema,
    MultipleChoice,
    Number,
    Regex,
    Scorer,
)

#: Function of (prompt, answer, {column: text}) that returns a score in [0, 1].
Score = Callable[[str, str, Mapping[str, str]], float]

#: A fence of Markdown.
_FENCE = re.compile(r"```[\w+-]*[^\S\n]*\n(.*?)```", re.DOTALL)


def plain_text(text: str, *, ignore_case: bool = True) -> str:
    """Return a text for comparison.

    White space of any length becomes one space. Quotes, `*` and backticks around the text and full stops at
    its end are removed. Other signs of Markdown and a full stop at the beginning stay.

    Args:
        ignore_case: True to fold upper and lower case.
    """
    plain = " ".join(text.split()).strip(" \"'`*").rstrip(".").strip(" \"'`*")
    if ignore_case:
        return plain.casefold()
    return plain


def json_value(text: str) -> Any:
    """Return the value of an answer that is JSON as a whole, or whose first Markdown fence holds JSON.

    Raises:
        ValueError: the answer, or its first fence if it has one, is no JSON.
    """
    fenced = _FENCE.search(text)
    return json.loads(fenced.group(1) if fenced else text)


def text_score(scorer: Scorer, read: Callable[[str, str], Path]) -> Score:
    """Return the function that scores an answer by the settings of a scorer.

    Args:
        read: function that returns the path of a file. Its arguments are the path as the pool file gives it
            and the name of the field that holds it.

    Raises:
        DataError: a schema cannot be loaded. The function itself raises it if a reference holds no number or
            no letter, or a pattern is no regular expression.
        TypeError: the scorer does not score by the text alone.
    """
    if isinstance(scorer, Exact):
        return lambda _, answer, row: float(
            plain_text(answer, ignore_case=scorer.ignore_case)
            == plain_text(row[scorer.column], ignore_case=scorer.ignore_case)
        )
    if isinstance(scorer, Number):
        return lambda _, answer, row: _same_number(answer, row[scorer.column], scorer.tolerance)
    if isinstance(scorer, MultipleChoice):
        return lambda _, answer, row: _same_letter(answer, row[scorer.column])
    if isinstance(scorer, Regex):
        return lambda _, answer, row: _matches(scorer.pattern or row[scorer.column or ""], answer)
    if isinstance(scorer, Contains):
        return lambda _, answer, row: _contains(answer, row[scorer.column], scorer.ignore_case)
    if isinstance(scorer, JsonSchema):
        return _by_schema(read(scorer.file, "collect.scores.file"))
    raise TypeError(f"{scorer.kind} is not scored by its text")


def _same_number(answer: str, reference: str, tolerance: float) -> float:
    """Return 1 if the numbers of answer and reference agree within the tolerance, otherwise 0.

    Args:
        tolerance: largest difference, as a multiple of the absolute value of the reference or of 1, whichever
            is larger.

    Raises:
        DataError: the reference holds no number.
    """
    expected = result_number(reference)
    given = result_number(answer)
    if expected is None:
        raise DataError(f"the reference {reference!r:.80} holds no number")
    return float(given is not None and abs(given - expected) <= tolerance * max(1.0, abs(expected)))


def _same_letter(answer: str, reference: str) -> float:
    """Return 1 if the answer chooses the letter of the reference, otherwise 0.

    Args:
        reference: a letter, also with brackets, a full stop or the text of the choice after it.

    Raises:
        DataError: the reference names no letter.
    """
    expected = chosen_letter(reference.upper())
    if expected is None:
        raise DataError(f"the reference {reference!r:.80} names no letter of a choice, such as B or B) 42")
    return float(chosen_letter(answer) == expected)


def _matches(pattern: str, answer: str) -> float:
    """Return 1 if a regular expression is found in the answer, otherwise 0.

    Raises:
        DataError: the pattern is no regular expression.
    """
    try:
        return float(re.search(pattern, answer, re.MULTILINE) is not None)
    except re.error as error:
        raise DataError(f"the pattern {pattern!r:.80} is no regular expression: {error}") from None


def _contains(answer: str, expected: str, ignore_case: bool) -> float:
    """Return 1 if the answer contains the expected text, otherwise 0. An empty text is never contained.

    White space of any length counts as one space.
    """
    texts = (" ".join(answer.split()), " ".join(expected.split()))
    if ignore_case:
        texts = (texts[0].casefold(), texts[1].casefold())
    return float(bool(texts[1]) and texts[1] in texts[0])


def _by_schema(path: Path) -> Score:
    """Return the function that gives 1 to an answer whose JSON fits the schema in a file, otherwise 0.

    Raises:
        DataError: the file cannot be read or holds no JSON schema.
    """
    from jsonschema import SchemaError, validators  # noqa: PLC0415  (few pools need it)

    try:
        schema = json.loads(path.read_text(encoding="utf-8"))
        kind = validators.validator_for(schema)
        kind.check_schema(schema)
    except (OSError, ValueError, SchemaError) as error:
        raise DataError(f"{path} is no JSON schema: {error!s:.200}") from None
    validator = kind(schema)

    def score(_: str, answer: str, row: Mapping[str, str]) -> float:
        try:
            return float(validator.is_valid(json_value(answer)))
        except (ValueError, RecursionError):
            return 0.0

    return score
