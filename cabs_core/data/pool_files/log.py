"""The pool file of a log: calls that were made and scored, one model a prompt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

from pydantic import Field

from cabs_core.data.pool_files.columns import LogColumns, Text
from cabs_core.data.pool_files.pool import CallCosts, Pool, faults_of_prices, faults_of_range
from cabs_core.data.pool_files.prices import CallPrice
from cabs_core.data.pool_files.sections import LogFormat, LogReplay, LogRouter, Score
from cabs_core.data.pool_files.strict import Strict


class LogSource(Strict):
    """Section `source` of a pool of a log: the log of calls, and how the log is written.

    `scores` is a file of scores for spans, runs or traces of the log. `rows` is the dotted path to the rows
    in a JSON document. `score_words` gives the score that a word in the log stands for. `adaptive` is True
    if the policy that drew the models learnt while the log was written, which estimates then allow for.
    """

    kind: Literal["logs"]
    #: an event log (SQLite), a table, or the log of another tool; relative to CABS_DATA_DIR or the pool file
    path: Text
    format: LogFormat = "table"  #: the tool that wrote the log
    columns: LogColumns = LogColumns()
    scores: Text | None = None  #: a file of scores that name a span, a run or a trace of the log
    rows: Text | None = None  #: dotted path to the rows in a JSON document, such as results.results
    #: {word: score in units of score_range}, such as {C: 1, I: 0, P: 0.5}
    score_words: dict[Text, Score] | None = Field(None, max_length=1000)
    #: True: the policy that drew the models learnt while the log was written, and rows are in order of time.
    #: The intervals of estimates then allow for it, and hold at any time
    adaptive: bool = False


class LogPool(Pool):
    """A pool of a log. Its policies are not replayed, but estimated from the outcomes of the log."""

    logged: ClassVar[Literal[True]] = True
    collected: ClassVar[Literal[False]] = False
    described: ClassVar[str] = "a log, which knows one model's outcome on each prompt"
    # The stages read these settings of every pool. They are fixed here, since a log knows one model's outcome
    # a prompt.
    predicts: ClassVar[bool] = False
    later_models: ClassVar[Mapping[str, str]] = {}
    rescale_mean_cost: ClassVar[Mapping[str, float]] = {}
    rescale_grand_mean_cost: ClassVar[None] = None
    paper_benchmark: ClassVar[None] = None

    source: LogSource
    replay: LogReplay = LogReplay()
    router: LogRouter = LogRouter()
    #: the worst and the best score that can be given; they count as 0 and 1
    score_range: tuple[Score, Score] = (0.0, 1.0)
    #: {model: price}. Costs are computed from tokens and prices; they replace the cost column, or with
    #: `missing: price` only fill in missing costs. A price has the fields of `price` in the upstreams file,
    #: so cached tokens, long prompts, tiers and searches count
    prices: dict[str, CallPrice] = Field({})
    #: {model: constant USD per call}, for models without prices; replaces or fills in costs as `prices` does
    cost_per_call: CallCosts = Field({})
    #: treatment of decisions without a cost: left out, refused, or priced
    missing: Literal["drop_queries", "error", "price"] = "drop_queries"

    def _faults(self) -> Iterator[str]:
        """Yield the faults of every pool, then those of prices, constant costs and the range of scores."""
        yield from super()._faults()
        yield from faults_of_prices(self.prices, self.cost_per_call, self.missing)
        yield from faults_of_range(self.score_range)
