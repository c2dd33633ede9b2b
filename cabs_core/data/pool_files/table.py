"""A pool file whose source is a table: every source that has scores of several models on one prompt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from cabs_core.base.catalog.sources import sources
from cabs_core.data.pool_files.columns import TableColumns, Text
from cabs_core.data.pool_files.pool import (
    CallCosts,
    Prices,
    ReplayedPool,
    cannot_predict,
    faults_of_prices,
    faults_of_range,
)
from cabs_core.data.pool_files.prices import MOST_USD
from cabs_core.data.pool_files.sections import SEED, Score
from cabs_core.data.pool_files.strict import Strict


def _known_source(kind: str) -> str:
    if kind not in sources():
        raise ValueError(f"expected one of {', '.join(sources())}, found {kind!r:.60}")
    return kind


class FileSource(Strict):
    """A table of the user's own."""

    kind: Literal["file"]
    path: Text  #: .parquet, .csv or .jsonl; relative to CABS_DATA_DIR or the pool file
    layout: Literal["tidy", "wide"] = "tidy"
    columns: TableColumns = TableColumns()


class SyntheticSource(Strict):
    """Generated prompts and outcomes."""

    kind: Literal["synthetic"]
    queries: int = Field(1500, ge=50, le=200_000)  #: number of prompts
    seed: int = Field(7, ge=0, le=SEED)  #: seed of the generator


class PublishedSource(Strict):
    """A published table, which is downloaded."""

    kind: Literal["routerbench", "sprout"]
    mirror: Text | None = None  #: a local folder with the files, read instead; relative: beside the pool file


class OpenLlmSource(Strict):
    """The Open LLM Leaderboard v2, which is downloaded."""

    kind: Literal["openllm_v2"]
    mirror: Text | None = None  #: as of the other published tables
    published_order: bool = False  #: keep the misaligned published order of rows


class PluginSource(Strict):
    """A source of another package (entry point `cabs.sources`), which reads of these fields what it needs."""

    kind: Annotated[str, AfterValidator(_known_source)]
    path: Text | None = None  #: required if the source's record says that it reads a table
    layout: Literal["tidy", "wide"] = "tidy"
    columns: TableColumns = TableColumns()
    mirror: Text | None = None
    queries: int = Field(1500, ge=50, le=200_000)
    seed: int = Field(7, ge=0, le=SEED)

    @model_validator(mode="after")
    def _has_its_table(self) -> PluginSource:
        if sources()[self.kind].table and not self.path:
            raise ValueError(f"kind {self.kind!r} needs path, the table to read (.parquet, .csv or .jsonl)")
        return self


_SOURCES: dict[str, type[Strict]] = {
    "file": FileSource,
    "synthetic": SyntheticSource,
    "routerbench": PublishedSource,
    "sprout": PublishedSource,
    "openllm_v2": OpenLlmSource,
}


def table_source_class(kind: Any) -> type[Strict]:
    """Return the model of `source` for a kind of table."""
    return _SOURCES.get(kind, PluginSource) if isinstance(kind, str) else PluginSource


def _tag(source: Any) -> str:
    kind = source.get("kind") if isinstance(source, dict) else getattr(source, "kind", None)
    return f"[{table_source_class(kind).__name__}]"


TableSource = Annotated[
    Annotated[FileSource, Tag("[FileSource]")]
    | Annotated[SyntheticSource, Tag("[SyntheticSource]")]
    | Annotated[PublishedSource, Tag("[PublishedSource]")]
    | Annotated[OpenLlmSource, Tag("[OpenLlmSource]")]
    | Annotated[PluginSource, Tag("[PluginSource]")],
    Discriminator(_tag),
]


class TablePool(ReplayedPool):
    """A table: its policies are replayed."""

    logged: ClassVar[Literal[False]] = False
    collected: ClassVar[Literal[False]] = False
    described: ClassVar[str] = "a table"

    source: TableSource
    #: {name shown: name in the source of its later version}; half of the test queries come after the change
    later_models: dict[str, Text] = Field({})
    #: kind file: the worst and the best score that can be given; they count as 0 and 1
    score_range: tuple[Score, Score] = (0.0, 1.0)
    #: cost = tokens x price, instead of a cost column; with missing `price`: where a cost lacks
    prices: Prices = Field({})
    #: constant USD per call of a model, for models without prices; used like them
    cost_per_call: CallCosts = Field({})
    #: multiply each model's costs so that their mean is this (USD)
    rescale_mean_cost: dict[str, Annotated[float, Field(gt=0, le=MOST_USD)]] = Field({})
    #: multiply all costs by one factor so that the mean over queries and models is this
    rescale_grand_mean_cost: float | None = Field(None, gt=0, le=MOST_USD)
    #: queries for which some model has no score or no cost: left out, predicted, refused, or priced first
    missing: Literal["drop_queries", "predict", "error", "price"] = "drop_queries"
    #: show the paper's figures for this benchmark beside ours
    paper_benchmark: Literal["routerbench", "sprout", "openllm"] | None = None

    @property
    def predicts(self) -> bool:
        """Whether missing cells of the table are predicted from the train prompts."""
        return self.missing == "predict"

    def _why_one_fold(self) -> str:
        if self.later_models:
            return "later_models play one stream that changes in its middle"
        return super()._why_one_fold()

    def later_names(self) -> dict[str, tuple[str, ...]]:
        """{name shown: names in the source that are this model} after the change of `later_models`."""
        return {**self.names_in_source(), **{shown: (name,) for shown, name in self.later_models.items()}}

    def _faults(self) -> Iterator[str]:
        yield from super()._faults()
        yield from faults_of_prices(self.prices, self.cost_per_call, self.missing)
        yield from faults_of_range(self.score_range)
        if isinstance(self.source, FileSource):
            if self.source.columns.cost is None and not (self.prices or self.cost_per_call):
                yield (
                    "source.columns.cost is null, so prices must name a price (or cost_per_call a cost) for "
                    "every model"
                )
        elif self.score_range != (0.0, 1.0):
            yield "score_range is for source kinds file and logs; the other sources have scores from 0 to 1"
        if self.rescale_mean_cost and self.rescale_grand_mean_cost is not None:
            yield "give rescale_mean_cost or rescale_grand_mean_cost, not both"
        if self.later_models and not self.models:
            yield "later_models needs models: say which version of each model comes first"
        if self.predicts:
            if self.later_models:
                yield cannot_predict("later_models", "what a later version scores is not estimated")
            yield from self._faults_of_predicting()
