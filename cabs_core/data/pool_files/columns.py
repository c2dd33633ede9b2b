"""`source.columns` in a pool file: names of columns, with one pydantic model for each kind of pool."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from cabs_core.base.amounts import COST_UNITS, unit_of
from cabs_core.data.pool_files.strict import Strict

Text = Annotated[str, Field(max_length=1000)]


class _Columns(Strict):
    """Columns that tables, logs and lists of prompts may have."""

    prompt: Text = "prompt"
    task: Text | None = "task"  #: if there is no such column, all prompts belong to one task named `all`
    split: Text | None = None  #: for split kind `column`: train, validation or test

    def chosen(self) -> dict[str, Any]:
        """Return {field: column} of the fields that the pool file sets. A `CostColumn` becomes a mapping."""
        columns: dict[str, Any] = {}
        for name in self.model_fields_set:
            column = getattr(self, name)
            if isinstance(column, CostColumn):
                columns[name] = column.model_dump()
            else:
                columns[name] = column
        return columns


class PromptColumns(_Columns):
    """Columns of a table of prompts that the models are asked."""

    query_id: Text | None = "query_id"  #: None or an absent column: derived from the prompt text


class TableColumns(_Columns):
    """Columns of a table of scores.

    Tidy: one row for each query and model. Wide: one row for each query.
    """

    query_id: Text | None = "query_id"  #: None or an absent column: derived from the prompt text
    model: Text = "model"  #: tidy tables only
    score: Text = "score"  #: tidy: a column. Wide: a pattern with {model}, such as '{model}'
    #: scores of the same answers by other judges, named as `score` is; the mean counts
    judges: tuple[Text, ...] = Field((), max_length=100)
    cost: Text | None = "cost"  #: tidy: a column. Wide: a pattern with {model}. None: from prices
    input_tokens: Text | None = "n_input_tokens"
    output_tokens: Text | None = "n_output_tokens"
    latency: Text | None = None  #: seconds per call, >= 0; milliseconds if the column's name says ms
    #: the conversation of a query, one independent observation; if absent or empty, the query stands alone
    session: Text | None = "session"
    #: queries of one group are one independent observation and stay in one split, such as the prompts made
    #: from one template; if empty, the query stands alone. None: near-copies are found by their words
    group: Text | None = None
    #: when the prompt came: ISO 8601, or seconds or milliseconds since 1970. The page compares the newest
    #: fifth of the prompts with the rest
    time: Text | None = "time"

    @model_validator(mode="after")
    def _each_judge_once(self) -> TableColumns:
        """Refuse `judges` that name a column twice or the column of `score`."""
        if len({self.score, *self.judges}) <= len(self.judges):
            raise ValueError(
                "judges names a column twice, or the column of `score`: leave the repetition out"
            )
        return self


class CostColumn(Strict):
    """A column of costs with its unit."""

    path: Text
    unit: Text = "USD"  #: USD, cents, micros or nano

    @field_validator("unit")
    @classmethod
    def _known_unit(cls, value: str) -> str:
        """Return the key of `COST_UNITS` that a word means; refuse other words and other currencies."""
        unit = unit_of(value)
        if unit in COST_UNITS:
            return unit
        reason = "is no unit"
        if unit:
            reason = "is another currency, but costs are compared in USD: convert them first"
        raise ValueError(f"{value!r:.60} {reason}; expected one of {', '.join(COST_UNITS)}")


class LogColumns(_Columns):
    """Columns of a log of calls, or dotted paths into its records such as `metadata.rating`."""

    model: Text = "model"
    score: Text = "score"
    cost: Text | CostColumn | None = "cost"  #: a column in USD, or {path, unit}
    input_tokens: Text | None = "n_input_tokens"
    output_tokens: Text | None = "n_output_tokens"
    #: probability with which the model was drawn; if there is no such column, it is estimated
    propensity: Text | None = "propensity"
    #: the conversation of a call, one independent observation; if absent or empty, the call stands alone
    session: Text | None = "session"
    # The fields `kind` to `parent` name the columns that the rules for reading logs use. If a field is left
    # out, its rule looks at the usual names of such columns; null switches the rule off.
    #: kind of an entry, such as llm or embedding
    kind: Text | None = None
    status: Text | None = None  #: a word, or an HTTP status
    success: Text | None = None  #: true if the call was answered
    error: Text | None = None  #: what went wrong
    cached: Text | None = None  #: true if a cache answered
    usage: Text | None = None  #: usage block of the provider
    currency: Text | None = None  #: currency of the cost
    tier: Text | None = None  #: service tier of the call, by which `prices` may multiply
    id: Text | None = None  #: id of the call
    trace: Text | None = None  #: id of its trace
    parent: Text | None = None  #: id of the call that it is a part of
    time: Text | None = "time"  #: when the call was made
