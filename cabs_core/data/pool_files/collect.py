"""`collect` in a pool file: which prompts go to which models, cost limits, and how answers are scored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from cabs_core.base.units import SECONDS_PER_DAY
from cabs_core.data.pool_files.strict import Strict

Text = Annotated[str, Field(min_length=1, max_length=1000)]
#: least number of prompts with all their answers from which a table is made
FEWEST = 30
#: fields of a chat request that bound its output tokens
OUTPUT_LIMITS = ("max_completion_tokens", "max_tokens")
Usd = Annotated[float, Field(ge=0, le=1e6)]
_CONSTANTS = {"true": True, "false": False, "null": None}
#: fields of a request that the collection sets itself
_RESERVED_FIELDS = ("model", "messages", "stream", "stream_options", "n")


class Limit(Strict):
    """Limit of the rate at which one model is called."""

    concurrency: int = Field(16, ge=1, le=1000)  #: most calls at the same time
    per_minute: float | None = Field(None, gt=0, le=1e6)  #: most calls a minute; None sets no such limit


class _Scorer(Strict):
    """Fields of every kind of scorer. A scorer gives an answer a score from 0 to 1."""

    name: str = Field("", max_length=60, pattern=r"[a-z0-9_]*")  #: column of its scores; default: its kind
    tasks: tuple[Text, ...] = ()  #: tasks whose answers it scores; default: all
    weight: float = Field(1.0, gt=0, le=1e6)  #: weight in the mean of the scorers of an answer

    @property
    def called(self) -> str:
        """Name of the scorer, or its kind if it has no name."""
        return self.name or str(self.kind)  # type: ignore[attr-defined]  # of every subclass


class Exact(_Scorer):
    """Scorer that gives 1 to an answer that equals the reference.

    Runs of white space count as one space. Quotes and Markdown signs around the text and a full stop at the
    end do not count, nor does case if `ignore_case` is set.
    """

    kind: Literal["exact"]
    column: Text  #: column of the prompts with the reference
    ignore_case: bool = True


class Number(_Scorer):
    """Scorer that gives 1 to an answer with the number of the reference.

    The number of an answer is the first one after the last mark (such as `####` or `answer is`) that has a
    number on the rest of its line. If no mark has one, the number is the last one in the answer.
    """

    kind: Literal["number"]
    column: Text  #: column of the prompts with the reference
    #: largest difference, relative to the reference if that is above 1 in size
    tolerance: float = Field(1e-6, ge=0, le=1)


class MultipleChoice(_Scorer):
    """Scorer that gives 1 to an answer that chooses the letter of the reference (A to Z)."""

    kind: Literal["choice"]
    column: Text  #: column of the prompts with the letter


class Regex(_Scorer):
    """Scorer that gives 1 to an answer in which the pattern is found."""

    kind: Literal["regex"]
    pattern: Text | None = None  #: one regular expression for all answers
    column: Text | None = None  #: column of the prompts with a regular expression for each prompt

    @model_validator(mode="after")
    def _has_one_pattern(self) -> Regex:
        if self.pattern is None and self.column is None:
            raise ValueError("kind regex has neither pattern nor column: give one of them")
        if self.pattern is not None and self.column is not None:
            raise ValueError("kind regex has both pattern and column: leave one of them out")
        return self


class Contains(_Scorer):
    """Scorer that gives 1 to an answer that contains the reference, in any case if `ignore_case` is set."""

    kind: Literal["contains"]
    column: Text  #: column of the prompts with the reference
    ignore_case: bool = True


class JsonSchema(_Scorer):
    """Scorer that gives 1 to an answer that is JSON and valid by a schema.

    A fence of Markdown may stand around the JSON.
    """

    kind: Literal["json_schema"]
    file: Text  #: path of the JSON schema, relative to the pool file


class Command(_Scorer):
    """Scorer that is a program of the user.

    The program gets one answer as a line of JSON on standard input and prints a score. The program runs only
    after `cabs pool add` showed the command and somebody on this machine approved it.
    """

    kind: Literal["command"]
    #: the program and its arguments; a word that is a file beside the pool file means that file
    command: tuple[Annotated[str, Field(min_length=1, max_length=4000)], ...] = Field(
        min_length=1, max_length=200
    )
    column: Text | None = None  #: column of the prompts with the reference that the program is given
    seconds: float = Field(10.0, gt=0, le=600)  #: most seconds for one answer


class Labels(_Scorer):
    """Scorer that reads scores that people gave.

    The file is a table with query_id (or prompt), model and score, or a filled-in sheet of
    `cabs judge sample`.
    """

    kind: Literal["labels"]
    path: Text  #: CSV, parquet or JSON lines, relative to the pool file
    score_range: tuple[float, float] = (0.0, 1.0)  #: the worst and the best score that can be given

    @model_validator(mode="after")
    def _range_is_ordered(self) -> Labels:
        """Return the scorer if the worst score is below the best, and both lie in -1e9 to 1e9.

        Raises:
            ValueError: `score_range` is not such a pair.
        """
        if not -1e9 <= self.score_range[0] < self.score_range[1] <= 1e9:
            raise ValueError(
                f"score_range is {list(self.score_range)}: expected the worst score, then the best, such as "
                "[1, 5]"
            )
        return self


class Judge(_Scorer):
    """Scorer that is a model, which grades answers by a rubric.

    The judge sees the prompt, the answer and, if `reference` is given, the right answer. If `against` is
    given, the judge also sees the answer of that model, and says which of both answers is better instead of
    giving a grade. It sees no names of models.
    """

    kind: Literal["judge"]
    model: Text  #: name of the judge in the upstreams file
    rubric: str = Field(min_length=10, max_length=20_000)  #: a description of a good answer
    max_usd: Usd  #: most USD that all calls of the judge may cost
    reference: Text | None = None  #: column of the prompts that the judge is shown as the right answer
    levels: int = Field(2, ge=2, le=100)  #: grades from 0 to levels - 1; the score is grade / (levels - 1)
    #: a model of the pool. The judge compares each answer with the answer of this model, in both orders. A
    #: win counts 1, a tie 0.5
    against: Text | None = None
    max_tokens: int = Field(256, ge=1, le=100_000)  #: most output tokens of a call of the judge
    labels: Text | None = None  #: labels of people that measure the judge: a filled-in `cabs judge sample`


Scorer = Annotated[
    Exact | Number | MultipleChoice | Regex | Contains | JsonSchema | Command | Labels | Judge,
    Field(discriminator="kind"),
]


def _json_value(value: Any) -> Any:
    """Return the JSON value of a text in a pool file: a number, true, false, null, or the text itself.

    Mappings and lists are converted entry by entry.
    """
    if isinstance(value, dict):
        return {str(key): _json_value(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_json_value(entry) for entry in value]
    if not isinstance(value, str):
        return value
    if value in _CONSTANTS:
        return _CONSTANTS[value]
    for number_type in (int, float):
        try:
            number = number_type(value)
        except ValueError:
            continue
        if math.isfinite(number):
            return number
        return value
    return value


def most_output(params: Mapping[str, Any]) -> int:
    """Return the largest limit of output tokens among the fields of a request.

    Args:
        params: fields of a request, with at least one of `OUTPUT_LIMITS`.
    """
    return max(int(params[name]) for name in OUTPUT_LIMITS if name in params)


def _is_token_limit(value: Any) -> bool:
    """Return True for a whole number from 1 to 1,000,000."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 10**6


class Collect(Strict):
    """Settings of the collection of a table of outcomes: prompts from `source.path`, models from `models`."""

    upstreams: Text  #: path of the upstreams file of `cabs serve`, relative to the pool file
    #: most USD that the answers of all runs may cost together. No call is made that could exceed the limit
    max_usd: Usd
    scores: tuple[Scorer, ...] = Field(min_length=1, max_length=20)  #: how answers are scored
    #: fields of each request, such as temperature; with max_tokens or max_completion_tokens
    params: dict[str, Any] = Field({"max_tokens": 1024})
    system: str | None = Field(None, max_length=100_000)  #: system message before each prompt
    keep: Literal["text", "hash"] = "text"  #: hash: texts of answers are dropped once they are scored
    #: number of prompts to ask, drawn by `seed`; default: all
    sample: int | None = Field(None, ge=FEWEST, le=1_000_000)
    seed: int = Field(0, ge=0, le=2**63 - 1)
    limits: dict[str, Limit] = Field({})  #: {model: limit of its calls}
    attempts: int = Field(5, ge=1, le=20)  #: most attempts of a call that fails
    #: seconds of nothing but failures after which a run stops calling a model
    patience: float = Field(60.0, gt=0, le=SECONDS_PER_DAY)

    @field_validator("params", mode="before")
    @classmethod
    def _values_of_json(cls, value: Any) -> Any:
        """Convert the texts in `params` to JSON values (`_json_value`), before their types are checked."""
        return _json_value(value)

    @field_validator("params")
    @classmethod
    def _can_be_sent(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Return `params` unchanged, if a request can have them as its fields.

        Raises:
            ValueError: a field is one that the collection sets itself (`_RESERVED_FIELDS`, such as `model`
                and `messages`), no field limits the output tokens (`OUTPUT_LIMITS`), or such a limit is no
                whole number from 1 to 1,000,000.
        """
        reserved = sorted(set(value) & set(_RESERVED_FIELDS))
        if reserved:
            raise ValueError(f"params holds {reserved[0]!r}, which the collection sets itself: leave it out")
        limits = [value[name] for name in OUTPUT_LIMITS if name in value]
        if not limits or not all(map(_is_token_limit, limits)):
            raise ValueError(
                "params needs a whole number as max_tokens (or max_completion_tokens), to bound what a call "
                "costs"
            )
        return value

    @field_validator("scores")
    @classmethod
    def _names_differ(cls, value: tuple[Scorer, ...]) -> tuple[Scorer, ...]:
        names = [scorer.called for scorer in value]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"two scores are called {repeated[0]!r}: give one of them another name")
        return value

    @property
    def max_tokens(self) -> int:
        """Most output tokens of a call."""
        return most_output(self.params)

    @property
    def judges(self) -> tuple[Judge, ...]:
        """Scorers of kind `judge`."""
        return tuple(scorer for scorer in self.scores if isinstance(scorer, Judge))
