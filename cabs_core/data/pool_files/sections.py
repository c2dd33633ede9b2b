"""Sections of a pool file that stand alone: source, split, encoder, oracle, features, replay, router."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from cabs_core.base.catalog.conditions import CONDITIONS
from cabs_core.base.catalog.sources import sources
from cabs_core.data.pool_files.rhos import PAPER_GRID, rounded_rho
from cabs_core.data.pool_files.sessions import Sessions
from cabs_core.data.pool_files.strict import Strict


def _known_condition(name: str) -> str:
    if name not in CONDITIONS:
        raise ValueError(f"{name!r:.60} is no stress condition; expected one of {', '.join(CONDITIONS)}")
    return name


def _known_source(kind: str) -> str:
    if kind not in sources():
        raise ValueError(f"expected one of {', '.join(sources())}, found {kind!r:.60}")
    return kind


#: a name or path, short enough for an error message
Text = Annotated[str, Field(max_length=1000)]
SEED = 2**63 - 1  #: what the random generators of numpy and torch both take
Score = Annotated[float, Field(ge=-1e9, le=1e9, allow_inf_nan=False)]
MOST_USD = 1e6  #: largest price, or cost of a call: a larger number is not in USD
_LEAST_USD = 1e-3  #: a price below it is that of a token, not of a million


class Columns(Strict):
    """Which columns of the user's table hold what.

    Tidy: one row per (query, model). Wide: one row per query.
    """

    prompt: Text = "prompt"
    query_id: Text | None = "query_id"  #: None or an absent column: derived from the prompt text
    task: Text | None = "task"  #: an absent column means one task named 'all'
    model: Text = "model"  #: tidy tables only
    score: Text = "score"  #: tidy: a column. Wide: a pattern with {model}, e.g. '{model}'
    #: file: scores of the same answers by other judges, named as `score` is; the mean counts
    judges: tuple[Text, ...] = Field((), max_length=100)
    cost: Text | None = "cost"  #: tidy: a column. Wide: a pattern with {model}. None: from prices
    input_tokens: Text | None = "n_input_tokens"
    output_tokens: Text | None = "n_output_tokens"
    latency: Text | None = None  #: seconds per call, >= 0; milliseconds where the column's name says ms
    #: logs: probability with which the model was drawn; an absent column: it is estimated
    propensity: Text | None = "propensity"
    #: the conversation of a query, one independent observation; absent or empty: the query stands alone
    session: Text | None = "session"
    #: file: queries of one group are one independent observation and stay in one split, such as the prompts
    #: made from one template; empty: the query stands alone. None: near-copies are found by their words
    group: Text | None = None
    split: Text | None = None  #: used by split kind 'column': train, validation or test

    def chosen(self) -> dict[str, Any]:
        """{field: column} of those that the pool file names."""
        return {name: getattr(self, name) for name in self.model_fields_set}


class Price(Strict):
    """USD per one million tokens."""

    input: float = Field(ge=0, le=MOST_USD)
    output: float = Field(ge=0, le=MOST_USD)

    def doubt(self, name: str) -> str:
        """A question where a price can only be that of one token; else ''. name: of the price, for people."""
        small = {k: v for k, v in self.model_dump().items() if isinstance(v, float) and 0 < v < _LEAST_USD}
        if not small:
            return ""
        shown = ", ".join(f"{k} {v:g}" for k, v in small.items())
        meant = ", ".join(f"{k}: {v * 1e6:.4g}" for k, v in small.items())
        return (
            f"{name} is {shown} USD per million tokens, less than anybody asks. Is it the price of one "
            f"token? Then write {meant}; costs are a millionth of what they should be otherwise"
        )


LogFormat = Literal["table", "litellm", "langfuse", "openai", "otel", "openinference", "vllm_sr", "helicone"]


class Source(Strict):
    """Where the outcomes come from."""

    #: a source of `cabs_core.base.catalog.sources`, such as file, logs or collect, or a plug-in's
    kind: Annotated[str, AfterValidator(_known_source)]
    #: file, logs: the table (or log); collect: the prompts; relative to CABS_DATA_DIR or the pool file
    path: Text | None = None
    layout: Literal["tidy", "wide"] = "tidy"
    format: LogFormat = "table"  #: logs, and prompts of collect: the tool that wrote the log
    #: names of columns, or dotted paths into a record
    columns: Columns = Columns()
    scores: Text | None = None  #: format langfuse: a file of scores that stand apart from the calls
    #: remote sources: a local folder with the files, read instead; relative: beside the pool file
    mirror: Text | None = None
    #: logs: what drew the models learnt, and rows are in order of time: intervals hold at any time
    adaptive: bool = False
    published_order: bool = False  #: openllm_v2: keep the misaligned published row order
    queries: int = Field(1500, ge=50, le=200_000)  #: synthetic: number of prompts
    seed: int = Field(7, ge=0, le=SEED)  #: synthetic: seed of the generator

    @model_validator(mode="after")
    def _consistent(self) -> Source:
        for fault in _faults(self):
            raise ValueError(fault)
        return self


def _faults(source: Source) -> Iterator[str]:
    """What is wrong with a source."""
    record, columns, kind = sources()[source.kind], source.columns, source.kind
    if record.table and not source.path:
        yield f"source.kind {kind!r} needs source.path, the table to read (.parquet, .csv or .jsonl)"
    if columns.judges and kind != "file":
        yield f"source.columns.judges is for source kind file; the kind is {kind!r}"
    if columns.session != type(columns)().session and not record.logged and kind != "file":
        yield f"source.columns.session is for source kinds file and logs; the kind is {kind!r}"
    if columns.group is not None and kind != "file":
        yield f"source.columns.group is for source kind file; the kind is {kind!r}"
    if len({columns.score, *columns.judges}) <= len(columns.judges):
        yield "source.columns.judges: a column stands there twice, or is source.columns.score"
    if source.format != "table" and not (record.logged or record.collected):
        yield f"source.format {source.format!r} is for source kinds logs and collect; the kind is {kind!r}"
    if source.scores is not None and source.format != "langfuse":
        yield f"source.scores is for format langfuse; the format is {source.format!r}"


MOST_FOLDS = 20


class Split(Strict):
    """Train / validation / test, always whole prompts: no prompt text stands in two splits."""

    #: by_prompt: a prompt stays in its part when the table grows; by_task: whole tasks go to test
    #: (distribution shift); default: the source's own split
    kind: Literal["random", "by_prompt", "by_task", "column", "default"] = "random"
    fractions: tuple[float, float, float] = (0.7, 0.1, 0.2)
    #: by_task: the tasks of the test split; empty: half of them
    test_tasks: tuple[Text, ...] = Field((), max_length=10_000)
    split_seed: int = Field(0, ge=0, le=SEED)
    #: random, by_prompt: into how many folds the prompts are split, each held out once while everything is
    #: fitted on the others; the test fraction is then 1 / folds. Left out: 5 up to 5,000 different prompts,
    #: else 1; the other kinds have one split
    folds: int | None = Field(None, ge=1, le=MOST_FOLDS)

    @field_validator("fractions")
    @classmethod
    def _sum_to_one(cls, value: tuple[float, float, float]) -> tuple[float, float, float]:
        if min(value) <= 0 or abs(sum(value) - 1) > 1e-9:
            raise ValueError(f"split.fractions must be three positive numbers with sum 1, got {value}")
        return value

    @property
    def drawn(self) -> bool:
        """Whether each prompt's part is drawn, anew when the table grows."""
        return self.kind == "random"

    @property
    def rotates(self) -> bool:
        """True if any prompt may be held out, so that folds can be made."""
        return self.kind in ("random", "by_prompt")


class Encoder(Strict):
    """A text encoder: a name known to `cabs_core.data.encoders`, a Hugging Face id, or a local folder."""

    name: Text = "all-MiniLM-L6-v2"
    revision: Text | None = None
    max_length: int = Field(256, ge=8, le=8192)  #: tokens; longer prompts are cut and counted
    normalize: bool = True  #: scale embeddings to unit length
    #: auto: bfloat16 where the hardware multiplies it natively, else float32
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"


class Oracle(Strict):
    """Surrogate-reward oracles, trained on the train split, stopped and selected on validation."""

    kind: Literal["auto", "network", "ridge"] = "auto"
    oracle_seed: int = Field(0, ge=0, le=SEED)
    #: passes over the train split, or over 16,384 random queries of a larger one
    max_epochs: int = Field(60, ge=1, le=1000)
    learning_rate: float = Field(1e-4, gt=0, le=0.1)  #: Adam; 1e-4 is the paper's
    hidden: int = Field(256, ge=8, le=4096)
    #: of the network's score heads; l1, which the paper also names, fits medians: on 0/1 scores it rounds
    loss: Literal["huber", "l1"] = "huber"


class Features(Strict):
    """Contexts of the linear policies; the same for every policy of the pool."""

    #: pca: components of the embedding, which know no labels; head: components of the network's 128-d feature
    #: head, learned from the train labels; auto: the better on validation
    kind: Literal["pca", "head", "auto"] = "pca"
    dim: int = Field(32, ge=1, le=1024)  #: components; head: 128 keeps the whole head


class Replay(Strict):
    """Online replay over the test split."""

    trials: int = Field(10, ge=1, le=1000)
    order_seed: int = Field(0, ge=0, le=SEED)
    #: instead of rhos: what one right answer is worth in USD; each value is the rho 1 / value
    answer_value_usd: tuple[Annotated[float, Field(gt=0)], ...] = Field((), max_length=1000, exclude=True)
    #: 1 / rho is the dollar value of one right answer; a list, `paper`, or `auto`, from the table's costs
    rhos: tuple[float, ...] = Field(None, validate_default=True)  # the validator puts the default
    #: rho_1 of the utility: weight of the latency in seconds
    latency_weight: float = Field(0.0, ge=0, le=1e6)
    #: stress condition, see cabs_core.base.catalog.conditions
    condition: Annotated[str, AfterValidator(_known_condition)] = "none"
    sessions: Sessions = Sessions()  #: conversations of the condition `sessions`
    rounds: int | None = Field(None, ge=2)  #: replay only the first rounds of every trial's order

    @field_validator("rhos", mode="before")
    @classmethod
    def _one_way_to_say_it(cls, value: Any, info: ValidationInfo) -> Any:
        worth = info.data.get("answer_value_usd") or ()
        if worth and value is not None:
            raise ValueError(
                "replay has rhos and answer_value_usd; 1 / rho is the answer's value, so give one"
            )
        if worth:
            return tuple(1 / v for v in worth)
        if isinstance(value, str) and value != "paper":
            raise ValueError(
                f"expected a list of numbers, `paper` or (in a pool file) `auto`, found {value!r:.60}"
            )
        return PAPER_GRID if value is None or value == "paper" else value

    @field_validator("rhos")
    @classmethod
    def _valid_rhos(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not 0 < len(value) <= 1000:
            raise ValueError(f"replay.rhos holds {len(value)} values: expected 1 to 1000 cost sensitivities")
        rhos = [rounded_rho(r) for r in value]
        if len(set(rhos)) != len(rhos):
            raise ValueError("replay.rhos holds a value twice (they are rounded to six digits)")
        return tuple(sorted(rhos))

    @model_validator(mode="after")
    def _sessions_are_played(self) -> Replay:
        if (
            "sessions" in self.model_fields_set
            and self.condition != "sessions"
            and self.sessions != Sessions()
        ):
            raise ValueError(
                f"replay.sessions is for condition sessions; the condition is {self.condition!r}"
            )
        return self


#: default of `router.margin`
MARGIN = 0.02


class LogFile(Strict):
    """A log of calls beside the pool file, and how it is written."""

    path: Text  #: an event log (SQLite), a table, or the log of another tool
    format: LogFormat = "table"
    columns: Columns = Columns()
    scores: Text | None = None
    #: the worst and the best score that can be given; None: 0 and 1
    score_range: tuple[Score, Score] | None = None


class Deployed(Strict):
    """What the asset `router` and `cabs export` make of the pool."""

    policy: Text | None = None  #: None: the best of `policies` on the validation split
    rho: Annotated[float, Field(ge=0, le=1e9)] | None = None  #: None: the middle one
    epsilon: float = Field(0.02, ge=0, le=1)  #: share of uniform exploration, which keeps the log evaluable
    #: a transformer serves with int8 weights; refused where utility on validation falls by more than .002
    int8: bool = False
    #: most utility a request that a challenger may lose to the deployed router and still be promoted
    margin: float = Field(MARGIN, gt=0, le=1)
    #: traffic to evaluate on, beside the pool file: a path, or {path, format, columns, scores, score_range};
    #: None: the log of the deployed router
    log: LogFile | None = None
    #: deployed_router trains its challenger on the log's decisions too, beside the train split
    learn_from_log: bool = False
    #: a model that the pool gains joins the deployed router, with its answers to the train prompts
    add_models: bool = False
    #: USD a request: the asset shows what each would buy, rho moved by the pacer
    budgets: tuple[Annotated[float, Field(gt=0, le=MOST_USD)], ...] = Field((), max_length=50)
    #: models that cost nothing; else 0 is a missing price
    free: tuple[Text, ...] = Field((), max_length=1000)

    @field_validator("log", mode="before")
    @classmethod
    def _path_alone(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value
