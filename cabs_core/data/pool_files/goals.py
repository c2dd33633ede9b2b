"""The goal of a pool, in the words of whoever pays: `goal` of a pool file and `--goal` of commands.

A goal names wishes such as a quality, a budget or a latency. The report chooses the option that fulfils them.
"""

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
#: word of `of` that stands for the best single model of the table
BEST = "best"
_DIGITS = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d*\.?\d+(?:e\d+)?"
_NUMBER = re.compile(rf"\s*\$?\s*({_DIGITS})\s*(?:USD)?\s*", re.IGNORECASE)


def _as_written(value: Any) -> Any:
    """Return the number that a text such as `$40`, `40 USD`, `100,000` or `1e6` means; else the value."""
    if not isinstance(value, str):
        return value
    number = _NUMBER.fullmatch(value)
    if number is None:
        return value
    return float(number[1].replace(",", ""))


#: an amount of USD, and a number of requests
Usd = Annotated[float, BeforeValidator(_as_written), Field(gt=0, le=1e9)]
Requests = Annotated[int, BeforeValidator(_as_written), Field(gt=0, le=10**12)]


class Goal(Strict):
    """One or more wishes of whoever pays.

    Among the options that fulfil all wishes the report takes the one of largest worth minus cost if a right
    answer has a value. Otherwise it takes the cheapest one if a quality is wished, and else the one of
    highest quality.

    Attributes:
        value_per_right_answer: USD that one right answer is worth.
        quality: smallest mean score: a share of the mean score of the model `of`, or the mean score itself if
            `of` is None.
        of: the model that `quality` is a share of. `best` stands for the best single model of the table.
        budget_per_month: USD a month. It needs `requests_per_month`.
        requests_per_month: number of requests among which the budget is shared.
        latency: most seconds of an answer, written as 2, 2s or 800ms.
        share: share of the answers that must keep to `latency`.
    """

    value_per_right_answer: Usd | None = None
    quality: Annotated[float, Field(gt=0)] | None = None
    of: Annotated[str, Field(max_length=1000)] | None = None
    budget_per_month: Usd | None = None
    requests_per_month: Requests | None = None
    latency: Annotated[float, Field(gt=0, le=3600)] | None = None
    share: Annotated[float, Field(gt=0, lt=1)] = 0.95

    @field_validator("quality", "share", mode="before")
    @classmethod
    def _per_cent(cls, value: Any) -> Any:
        """Return the share that a text such as `95 %` means, with or without the blank; else the value."""
        if not isinstance(value, str):
            return value
        share = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", value)
        if share is None:
            return value
        return float(share[1]) / 100

    @field_validator("latency", mode="before")
    @classmethod
    def _in_seconds(cls, value: Any) -> Any:
        """Return the seconds that a text such as `2`, `2s` or `800ms` means. A value that is no text stays.

        Raises:
            ValueError: the text is no time.
        """
        if not isinstance(value, str):
            return value
        time = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|seconds)?\s*", value)
        if not time:
            raise ValueError(f"{value!r:.40} is no time: write 2s or 800ms")
        number = float(time[1])
        if time[2] == "ms":
            return number / 1000
        return number

    @model_validator(mode="after")
    def _complete(self) -> Goal:
        """Return the goal if its fields fit together.

        Raises:
            ValueError: there is no value of a right answer, quality, budget or latency; only one of budget
                and requests is given; `of` is given without `quality`; or `quality` is above 2, or above 1
                without `of`.
        """
        if not any((self.value_per_right_answer, self.quality, self.budget_per_month, self.latency)):
            raise ValueError(
                "goal says nothing that is wanted: give value_per_right_answer, quality, budget_per_month or "
                "latency"
            )
        if self.requests_per_month is None and self.budget_per_month is not None:
            raise ValueError("budget_per_month needs requests_per_month: give both of them")
        if self.budget_per_month is None and self.requests_per_month is not None:
            raise ValueError("requests_per_month needs budget_per_month: give both of them")
        if self.of is not None and self.quality is None:
            raise ValueError("`of` names a model, but no quality is asked for: add quality, such as 0.95")
        if self.quality is not None and self.quality > 2:
            raise ValueError(
                f"quality is {self.quality:g}: expected a share or a mean score, such as 0.95 for 95 %"
            )
        if self.quality is not None and self.of is None and self.quality > 1:
            raise ValueError(
                f"quality is {self.quality:g}; without `of` it is a mean score, so at most 1 is expected"
            )
        return self

    @property
    def text(self) -> str:
        """The goal as it is written on a command line, such as `quality: 0.95, of: gpt-4o`."""
        wishes = self.model_dump(exclude_none=True)
        if self.latency is None:
            wishes.pop("share")
        written = []
        for name, value in wishes.items():
            if isinstance(value, float):
                written.append(f"{name}: {value:.15g}")
            else:  # with quotes where the name of a model needs them in YAML
                dumped = yaml.safe_dump(
                    {name: value}, default_flow_style=True, allow_unicode=True, width=float("inf")
                )
                written.append(dumped.strip().removeprefix("{").removesuffix("}"))
        return ", ".join(written)


def parse_goal(text: str) -> Goal:
    """Return the goal that a text of a command line means, such as `quality: 95 %, of: gpt-4o`.

    Raises:
        PoolError: the text is no goal. The message says why and gives examples.
    """
    try:
        wishes = yaml.safe_load("{" + text.strip().removeprefix("{").removesuffix("}") + "}")
        return Goal.model_validate(wishes)
    except ValidationError as error:
        first = error.errors()[0]
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            message = "unknown field"
        reason = ": ".join([*map(str, first["loc"]), message])
    except (yaml.YAMLError, ValueError):  # ValueError: a text such as 2001-13-01 that looks like a date
        reason = "it is no list of `name: value`"
    examples = "; ".join(map(repr, _EXAMPLES))
    raise PoolError(f"goal {text!r:.100}: {reason}. Goals are written like {examples}")
