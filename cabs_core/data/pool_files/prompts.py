"""The pool file of prompts to collect: the models are asked the prompts, and their answers are scored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from cabs_core.data.pool_files.collect import Collect
from cabs_core.data.pool_files.columns import PromptColumns, Text
from cabs_core.data.pool_files.pool import ReplayedPool
from cabs_core.data.pool_files.prices import Price
from cabs_core.data.pool_files.sections import LogFormat
from cabs_core.data.pool_files.strict import Strict


class PromptSource(Strict):
    """Section `source` of a pool of prompts to collect: the file with the prompts."""

    kind: Literal["collect"]
    path: Text  #: a table of prompts, or a log; relative to CABS_DATA_DIR or the pool file
    format: LogFormat = "table"  #: the tool that wrote the log, or `table`
    columns: PromptColumns = PromptColumns()
    rows: Text | None = None  #: dotted path to the rows in a JSON document, such as results.results
    # Prompts to collect have no scores yet. The reader of logs asks every source for these two fields.
    scores: ClassVar[None] = None
    score_words: ClassVar[None] = None


class PromptsPool(ReplayedPool):
    """A pool of prompts to collect. The stages `answers` and `scores` make the table that is replayed."""

    logged: ClassVar[Literal[False]] = False
    collected: ClassVar[Literal[True]] = True
    described: ClassVar[str] = "prompts to collect"
    # The stages read these settings of every pool. They are fixed here, since the upstreams file has the
    # prices of collected answers, and scores lie between 0 and 1.
    later_models: ClassVar[Mapping[str, str]] = {}
    score_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    prices: ClassVar[Mapping[str, Price]] = {}
    cost_per_call: ClassVar[Mapping[str, float]] = {}
    rescale_mean_cost: ClassVar[Mapping[str, float]] = {}
    rescale_grand_mean_cost: ClassVar[None] = None
    paper_benchmark: ClassVar[None] = None

    source: PromptSource
    #: the models to ask: a list, or {name shown: name in the upstreams file}
    models: dict[str, Annotated[tuple[Text, ...], Field(min_length=1, max_length=1)]] | tuple[str, ...]
    #: addresses of the models, limit of the costs, and how answers are scored
    collect: Collect
    #: treatment of prompts for which a model's answer has no score: the prompt is dropped, the score is
    #: predicted, or the table is refused
    missing: Literal["drop_queries", "predict", "error"] = "drop_queries"

    @property
    def predicts(self) -> bool:
        """True if missing scores are predicted from the train prompts."""
        return self.missing == "predict"

    def _faults(self) -> Iterator[str]:
        """Yield the faults of every replayed pool, then those of models, limits, judges and predictions."""
        yield from super()._faults()
        names = list(self.models)
        if not names:
            yield "models is empty: name the models to ask"
        judges = [judge.model for judge in self.collect.judges]
        for name in sorted(set(self.collect.limits) - {*names, *judges}):
            yield (
                f"collect.limits names {name!r:.100}, which is asked nothing; the pool asks {names!r:.200}. "
                "Correct the name"
            )
        for judge in self.collect.judges:
            if judge.against not in (None, *names):
                yield (
                    f"collect.scores: against is {judge.against!r:.100}; expected a model of the pool: "
                    f"{names!r:.200}"
                )
        if self.predicts:
            yield from self._faults_of_predicting()
