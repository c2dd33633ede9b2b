"""The pool file of a table: the scores of several models on each prompt, from any source that has them."""

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
    """Return the name of a source.

    Raises:
        ValueError: there is no such source.
    """
    if kind not in sources():
        raise ValueError(f"expected one of {', '.join(sources())}, found {kind!r:.60}")
    return kind


class FileSource(Strict):
    """Section `source` for a table of the user."""

    kind: Literal["file"]
    path: Text  #: .parquet, .csv or .jsonl; relative to CABS_DATA_DIR or the pool file
    layout: Literal["tidy", "wide"] = "tidy"  #: tidy: a row per prompt and model. wide: a row per prompt
    columns: TableColumns = TableColumns()


class SyntheticSource(Strict):
    """Section `source` for generated prompts and outcomes."""

    kind: Literal["synthetic"]
    queries: int = Field(1500, ge=50, le=200_000)  #: number of prompts
    seed: int = Field(7, ge=0, le=SEED)  #: seed of the generator


class PublishedSource(Strict):
    """Section `source` for a published table, which is downloaded, or read from the local folder `mirror`."""

    kind: Literal["routerbench", "sprout"]
    mirror: Text | None = None  #: a relative path means beside the pool file


class OpenLlmSource(Strict):
    """Section `source` for the Open LLM Leaderboard v2, downloaded or read from the local folder `mirror`.

    The published rows of different models stand in different orders. They are aligned by query, unless
    `published_order` is True, which keeps the rows as they were published.
    """

    kind: Literal["openllm_v2"]
    mirror: Text | None = None
    published_order: bool = False


class PluginSource(Strict):
    """Section `source` for a source of another package (entry point `cabs.sources`).

    The package decides which of the fields it reads.
    """

    kind: Annotated[str, AfterValidator(_known_source)]
    path: Text | None = None  #: required if the source's record says that it reads a table
    layout: Literal["tidy", "wide"] = "tidy"
    columns: TableColumns = TableColumns()
    mirror: Text | None = None
    queries: int = Field(1500, ge=50, le=200_000)
    seed: int = Field(7, ge=0, le=SEED)

    @model_validator(mode="after")
    def _has_its_table(self) -> PluginSource:
        """Raise ValueError if the source reads a table and `path` names none."""
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
    """Return the pydantic class of section `source` for a value of its field `kind`.

    The class is `PluginSource` for any value that is not a kind of this module. `PluginSource` itself refuses
    a kind that no package registers.
    """
    if not isinstance(kind, str):
        return PluginSource
    return _SOURCES.get(kind, PluginSource)


def _tag(source: Any) -> str:
    """Return the tag in the union `TableSource` of a source, which is a mapping or a pydantic model.

    Tags stand in brackets, so that messages can leave them out of the place of a fault.
    """
    if isinstance(source, dict):
        kind = source.get("kind")
    else:
        kind = getattr(source, "kind", None)
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
    """Pool file of a table of outcomes: scores, and costs, of several models on each prompt.

    Policies are compared in replays: they are played on a stream of the table's queries.
    """

    logged: ClassVar[Literal[False]] = False
    collected: ClassVar[Literal[False]] = False
    described: ClassVar[str] = "a table"

    source: TableSource
    #: {name shown: name in the source of its later version}, which answers half of the test queries
    later_models: dict[str, Text] = Field({})
    #: source kind file: the worst and the best score that can be given; they count as 0 and 1
    score_range: tuple[Score, Score] = (0.0, 1.0)
    #: {model: price}. Costs are computed from tokens and prices; they replace the cost column, or with
    #: `missing: price` only fill in missing costs
    prices: Prices = Field({})
    #: {model: constant USD per call}, for models without prices; replaces or fills in costs as `prices` does
    cost_per_call: CallCosts = Field({})
    #: {model: mean cost in USD}. The model's costs are multiplied by one factor that gives this mean
    rescale_mean_cost: dict[str, Annotated[float, Field(gt=0, le=MOST_USD)]] = Field({})
    #: mean cost over queries and models in USD. All costs are multiplied by one factor that gives this mean
    rescale_grand_mean_cost: float | None = Field(None, gt=0, le=MOST_USD)
    #: treatment of queries for which some model has no score or no cost: they are dropped, missing cells are
    #: predicted, the table is refused, or missing costs are priced and queries with other gaps dropped
    missing: Literal["drop_queries", "predict", "error", "price"] = "drop_queries"
    #: benchmark of the paper whose figures are shown beside ours
    paper_benchmark: Literal["routerbench", "sprout", "openllm"] | None = None

    @property
    def predicts(self) -> bool:
        """True if missing cells of the table are predicted from the train prompts."""
        return self.missing == "predict"

    def _why_one_fold(self) -> str:
        """Return the reason why the prompts can be split in one way only, or '' if folds can be made.

        The reasons are `later_models`, a kind of split that fixes which prompts are held out, predicted cells
        and a stress condition of the replay.
        """
        if self.later_models:
            return "later_models play one stream that changes in its middle"
        return super()._why_one_fold()

    def later_names(self) -> dict[str, tuple[str, ...]]:
        """Return {name shown: names in the source that are this model} for the later half of the stream.

        A model of `later_models` has the one name of its later version, and other models keep their names.
        """
        names = dict(self.names_in_source())
        for shown, name in self.later_models.items():
            names[shown] = (name,)
        return names

    def _faults(self) -> Iterator[str]:
        """Yield a message for each fault of fields that do not fit each other."""
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
            yield (
                f"score_range is {list(self.score_range)}, but it is for source kinds file and logs; the "
                "other sources have scores from 0 to 1. Leave the field out"
            )
        if self.rescale_mean_cost and self.rescale_grand_mean_cost is not None:
            yield "the file has rescale_mean_cost and rescale_grand_mean_cost: give one of them, not both"
        if self.later_models and not self.models:
            yield "later_models needs models: say which version of each model comes first"
        if self.predicts:
            if self.later_models:
                yield cannot_predict("later_models", "the scores of a later version are not estimated")
            yield from self._faults_of_predicting()
