"""`collect` in a pool file: which prompts go to which models, what that may cost, how answers are scored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from cabs_core.base.units import SECONDS_PER_DAY
from cabs_core.data.pool_files.strict import Strict

Text = Annotated[str, Field(min_length=1, max_length=1000)]
#: least number of prompts with all their answers of which a table is made
FEWEST = 30
#: fields of a chat request that bound its output tokens
OUTPUT_LIMITS = ("max_completion_tokens", "max_tokens")
Usd = Annotated[float, Field(ge=0, le=1e6)]
_CONSTANTS = {"true": True, "false": False, "null": None}
#: fields of a request that the collection sets itself
_OURS = ("model", "messages", "stream", "stream_options", "n")


class Limit(Strict):
    """How fast one model may be asked."""

    concurrency: int = Field(16, ge=1, le=1000)  #: calls under way at a time
    per_minute: float | None = Field(None, gt=0, le=1e6)  #: calls a minute; None: no limit of ours


class _Scorer(Strict):
    """What every way of scoring has."""

    name: str = Field("", max_length=60, pattern=r"[a-z0-9_]*")  #: column of its scores; default: its kind
    tasks: tuple[Text, ...] = ()  #: only answers to prompts of these tasks; default: all
    weight: float = Field(1.0, gt=0, le=1e6)  #: the score is the weighted mean of those that apply

    @property
    def called(self) -> str:
        """Its name, or its kind."""
        return self.name or str(self.kind)  # type: ignore[attr-defined]  # of every subclass


class Exact(_Scorer):
    """1 where the answer is the reference, apart from case, white space and a full stop at the end."""

    kind: Literal["exact"]
    column: Text  #: column of the prompts with the reference
    ignore_case: bool = True


class Number(_Scorer):
    """1 where the number that the answer ends on is the reference."""

    kind: Literal["number"]
    column: Text
    tolerance: float = Field(1e-6, ge=0, le=1)  #: relative


class MultipleChoice(_Scorer):
    """1 where the answer chooses the letter of the reference (A to Z)."""

    kind: Literal["choice"]
    column: Text


class Regex(_Scorer):
    """1 where the pattern is found in the answer."""

    kind: Literal["regex"]
    pattern: Text | None = None
    column: Text | None = None  #: column of the prompts with a pattern each

    @model_validator(mode="after")
    def _one(self) -> Regex:
        if (self.pattern is None) == (self.column is None):
            raise ValueError("regex needs pattern or column, one of them")
        return self


class Contains(_Scorer):
    """1 where the answer holds the reference."""

    kind: Literal["contains"]
    column: Text
    ignore_case: bool = True


class JsonSchema(_Scorer):
    """1 where the answer is JSON (a fence of Markdown around it is allowed) and valid by the schema."""

    kind: Literal["json_schema"]
    file: Text  #: JSON schema, relative to the pool file


class Command(_Scorer):
    """What a program of the user prints: it gets one answer as a line of JSON on standard input.

    It runs only after `cabs pool add` showed it and somebody on this machine approved it.
    """

    kind: Literal["command"]
    #: the program and its arguments; a word that is a file beside the pool file means that file
    command: tuple[Annotated[str, Field(min_length=1, max_length=4000)], ...] = Field(
        min_length=1, max_length=200
    )
    column: Text | None = None  #: column of the prompts with the reference that the program is given
    seconds: float = Field(10.0, gt=0, le=600)  #: most time for one answer


class Labels(_Scorer):
    """Scores by people: a table with query_id (or prompt), model, score; or a filled-in sheet."""

    kind: Literal["labels"]
    path: Text  #: CSV, parquet or JSON lines, relative to the pool file
    score_range: tuple[float, float] = (0.0, 1.0)  #: the worst and the best score that can be given

    @model_validator(mode="after")
    def _ordered(self) -> Labels:
        if not -1e9 <= self.score_range[0] < self.score_range[1] <= 1e9:
            raise ValueError("score_range: expected the worst score, then the best")
        return self


class Judge(_Scorer):
    """A model that grades answers by a rubric.

    It sees the prompt, the answer and, if named, a reference; no model names.
    """

    kind: Literal["judge"]
    model: Text  #: one of the upstreams
    rubric: str = Field(min_length=10, max_length=20_000)  #: what a good answer is, in words
    max_usd: Usd  #: most that judging may cost in all
    reference: Text | None = None  #: column of the prompts that the judge is shown as the right answer
    levels: int = Field(2, ge=2, le=100)  #: grades from 0 to levels - 1; the score is grade / (levels - 1)
    #: a model of the pool: each answer is compared with its, in both orders; a win is 1, a tie 0.5
    against: Text | None = None
    max_tokens: int = Field(256, ge=1, le=100_000)
    labels: Text | None = None  #: labels of people that measure it: a filled-in `cabs judge sample`


Scorer = Annotated[
    Exact | Number | MultipleChoice | Regex | Contains | JsonSchema | Command | Labels | Judge,
    Field(discriminator="kind"),
]


def _value(value: Any) -> Any:
    """What a request holds for a text of a pool file: a number, true, false, null, or the text."""
    if isinstance(value, dict):
        return {str(k): _value(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_value(v) for v in value]
    if not isinstance(value, str):
        return value
    if value in _CONSTANTS:
        return _CONSTANTS[value]
    for kind in (int, float):
        try:
            number = kind(value)
        except ValueError:
            continue
        return number if math.isfinite(number) else value
    return value


def most_output(params: Mapping[str, Any]) -> int:
    """The largest limit of output tokens that fields of a request hold, which hold one."""
    return max(int(params[k]) for k in OUTPUT_LIMITS if k in params)


class Collect(Strict):
    """How a table of outcomes is collected: prompts from `source.path`, models from `models`."""

    upstreams: Text  #: where each model is called, the file of `cabs serve`; relative to the pool file
    #: most that the answers may cost in all, in all runs. Nothing is sent that could pass it
    max_usd: Usd
    scores: tuple[Scorer, ...] = Field(min_length=1, max_length=20)
    #: fields of the request, such as temperature; max_tokens or max_completion_tokens
    params: dict[str, Any] = Field({"max_tokens": 1024})
    system: str | None = Field(None, max_length=100_000)  #: system message before each prompt
    keep: Literal["text", "hash"] = "text"  #: hash: texts of answers are dropped once they are scored
    #: number of prompts to ask, drawn by `seed`; default: all
    sample: int | None = Field(None, ge=FEWEST, le=1_000_000)
    seed: int = Field(0, ge=0, le=2**63 - 1)
    limits: dict[str, Limit] = Field({})  #: {model: how fast it may be asked}
    attempts: int = Field(5, ge=1, le=20)  #: most times that a call is made when it fails
    #: seconds of nothing but failures after which a model is given up for this run
    patience: float = Field(60.0, gt=0, le=SECONDS_PER_DAY)

    @field_validator("params", mode="before")
    @classmethod
    def _plain_values(cls, value: Any) -> Any:
        return _value(value)

    @field_validator("params")
    @classmethod
    def _sendable(cls, value: dict[str, Any]) -> dict[str, Any]:
        ours = sorted(set(value) & set(_OURS))
        if ours:
            raise ValueError(f"params holds {ours[0]!r}, which the collection sets itself")
        limits = [value[k] for k in OUTPUT_LIMITS if k in value]
        if not limits or not all(
            isinstance(n, int) and not isinstance(n, bool) and 0 < n <= 10**6 for n in limits
        ):
            raise ValueError(
                "params needs a whole max_tokens (or max_completion_tokens), to bound what a call costs"
            )
        return value

    @field_validator("scores")
    @classmethod
    def _named_once(cls, value: tuple[Scorer, ...]) -> tuple[Scorer, ...]:
        names = [scorer.called for scorer in value]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two scores are called {twice[0]!r}: give one another name")
        return value

    @property
    def max_tokens(self) -> int:
        """Most output tokens of a call."""
        return most_output(self.params)

    @property
    def judges(self) -> tuple[Judge, ...]:
        """The judges among the scores."""
        return tuple(scorer for scorer in self.scores if isinstance(scorer, Judge))
