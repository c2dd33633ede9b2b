"""What is wanted, in the words of whoever pays: `goal` of a pool file and `--goal` of commands."""

from __future__ import annotations

import re
from typing import Annotated, Any

import yaml
from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from cabs_core.base.errors import PoolError
from cabs_core.data.pool_files.strict import Strict

_EXAMPLES = (
    "value_per_right_answer: 0.02",
    "quality: 95 %, of: gpt-4o",
    "quality: 0.95, of: best",
    "budget_per_month: 500, requests_per_month: 100000",
    "latency: 2s, share: 0.95",
)
#: `of` means the best single model of the table by this word
BEST = "best"
_DIGITS = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d*\.?\d+(?:e\d+)?"
_NUMBER = re.compile(rf"\s*\$?\s*({_DIGITS})\s*(?:USD)?\s*", re.IGNORECASE)


def _as_written(value: Any) -> Any:
    """`$40`, `40 USD`, `100,000` and `1e6` are numbers."""
    number = _NUMBER.fullmatch(value) if isinstance(value, str) else None
    return float(number[1].replace(",", "")) if number else value


#: an amount of USD, and a number of requests
Usd = Annotated[float, BeforeValidator(_as_written), Field(gt=0, le=1e9)]
Requests = Annotated[int, BeforeValidator(_as_written), Field(gt=0, le=10**12)]


class Goal(Strict):
    """One or more wishes. Among what fulfils all of them the best is taken: of largest worth minus cost where
    a right answer has a value, else the cheapest where a quality is asked for, else the one of highest
    quality.
    """

    value_per_right_answer: Usd | None = None  #: USD that one right answer is worth
    #: smallest mean score: a share of the model `of`, or without one the score itself
    quality: Annotated[float, Field(gt=0)] | None = None
    #: the model that `quality` is a share of; `best`: the best single model of the table
    of: Annotated[str, Field(max_length=1000)] | None = None
    budget_per_month: Usd | None = None  #: USD a month; needs requests_per_month
    requests_per_month: Requests | None = None
    #: seconds, as in 2, 2s or 800ms; a `share` of the answers come within them
    latency: Annotated[float, Field(gt=0, le=3600)] | None = None
    share: Annotated[float, Field(gt=0, lt=1)] = 0.95

    @field_validator("quality", "share", mode="before")
    @classmethod
    def _per_cent(cls, value: Any) -> Any:
        """`95 %`, with the space or without, is .95."""
        share = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", value) if isinstance(value, str) else None
        return float(share[1]) / 100 if share else value

    @field_validator("latency", mode="before")
    @classmethod
    def _with_its_unit(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        time = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|seconds)?\s*", value)
        if not time:
            raise ValueError(f"{value!r:.40} is no time: write 2s or 800ms")
        return float(time[1]) / (1000 if time[2] == "ms" else 1)

    @model_validator(mode="after")
    def _complete(self) -> Goal:
        if not any((self.value_per_right_answer, self.quality, self.budget_per_month, self.latency)):
            raise ValueError("goal says nothing that is wanted")
        if (self.budget_per_month is None) != (self.requests_per_month is None):
            raise ValueError("budget_per_month and requests_per_month need each other")
        if self.of is not None and self.quality is None:
            raise ValueError("`of` names a model, but no quality is asked for")
        if self.quality is not None and self.quality > 2:
            raise ValueError(
                f"quality is {self.quality:g}: expected a share or a mean score, such as 0.95 for 95 %"
            )
        if self.quality is not None and self.of is None and self.quality > 1:
            raise ValueError("quality without `of` is a mean score, at most 1")
        return self

    @property
    def text(self) -> str:
        """The goal as it is written on a command line."""
        wishes = self.model_dump(exclude_none=True)
        if self.latency is None:
            wishes.pop("share")
        return ", ".join(f"{k}: {v:g}" if isinstance(v, float) else f"{k}: {v}" for k, v in wishes.items())


def parse_goal(text: str) -> Goal:
    """The goal of a command line.

    Raises:
        PoolError: no such goal; examples are given.
    """
    try:
        wishes = yaml.safe_load("{" + text.strip().removeprefix("{").removesuffix("}") + "}")
        return Goal.model_validate(wishes)
    except ValidationError as error:
        first = error.errors()[0]
        unknown = first["type"] == "extra_forbidden"
        message = "unknown field" if unknown else first["msg"].removeprefix("Value error, ")
        why = ": ".join([*map(str, first["loc"]), message])
    except yaml.YAMLError:
        why = "it is no list of `name: value`"
    raise PoolError(f"goal {text!r:.100}: {why}. Goals are written like {'; '.join(map(repr, _EXAMPLES))}")
