"""The model pool: what is routed, on which data, and how it is replayed.

A pool is one YAML file. Every field is validated here; unknown fields are errors, because a misspelt option
that is silently ignored is worse than a crash.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from itertools import product
from math import prod
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from cabs_core.catalog import CONDITIONS, DEFAULT_POLICIES, REFERENCE, canonical_name, sources, with_options
from cabs_core.paths import safe_name
from cabs_core.pool_files.collect import Collect
from cabs_core.pool_files.goals import Goal
from cabs_core.pool_files.rhos import PAPER_GRID, rounded_rho
from cabs_core.pool_files.sessions import Sessions

RHO_GRID = PAPER_GRID

#: fields that say which outcomes a pool has
OUTCOME_FIELDS = (
    "source", "models", "later_models", "tasks", "score_range", "prices", "cost_per_call", "missing", "rescale_mean_cost",
    "rescale_grand_mean_cost",
)  # fmt: skip


def policy_names(entry: Any) -> list[Any]:
    """Names of the policies that an entry of `policies` means.

    `lin_ucb` is itself; `{lin_ucb: {alpha: [1, 2], target: utility}}` is one policy per combination of values. Anything else is
    handed on for the checks of types.

    Raises:
        ValueError: options that are no mapping of names to values, or more than 200 combinations.
    """
    if not isinstance(entry, dict):
        return [entry]
    found: list[Any] = []
    for name, options in entry.items():
        if not isinstance(options, dict) or not options:
            raise ValueError(f"policies: {name!s:.60}: expected options, such as {{lin_ucb: {{alpha: 2}}}}")
        values = {str(key): given if isinstance(given, list) else [given] for key, given in options.items()}
        for key, given in values.items():
            if not given or any(isinstance(value, list | dict) for value in given):
                raise ValueError(
                    f"policies: {name!s:.60}: option {key:.60}: expected a number, a word, or a list of them to sweep over"
                )
        if prod(map(len, values.values())) > _MOST_POLICIES:
            raise ValueError(f"policies: {name!s:.60}: more than {_MOST_POLICIES} combinations of options")
        found += [
            with_options(str(name), dict(zip(values, chosen, strict=True)))
            for chosen in product(*values.values())
        ]
    return found


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
_MOST_POLICIES = 200
_SEED = 2**63 - 1  #: what the random generators of numpy and torch both take
_Score = Annotated[float, Field(ge=-1e9, le=1e9, allow_inf_nan=False)]
_MOST_USD = 1e6  #: largest price, or cost of a call: a larger number is not in USD
_LEAST_USD = 1e-3  #: a price below it is that of a token, not of a million


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


_Model = TypeVar("_Model", bound=_Strict)


def _refuse(model: _Model, rules: Mapping[str, object]) -> _Model:
    """The model, or ValueError for the first of {message: whether that is wrong with it}."""
    for message, wrong in rules.items():
        if wrong:
            raise ValueError(message)
    return model


class Columns(_Strict):
    """Which columns of the user's table hold what. Tidy: one row per (query, model). Wide: one row per query."""

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
    #: the conversation of a query, one independent observation; an absent column or an empty value: the
    #: query stands alone
    session: Text | None = "session"
    split: Text | None = None  #: used by split kind 'column': train, validation or test

    def chosen(self) -> dict[str, Any]:
        """{field: column} of those that the pool file names."""
        return {name: getattr(self, name) for name in self.model_fields_set}


class Price(_Strict):
    """USD per one million tokens."""

    input: float = Field(ge=0, le=_MOST_USD)
    output: float = Field(ge=0, le=_MOST_USD)

    def doubt(self, name: str) -> str:
        """A question where a price can only be that of one token; else ''. name: of the price, for people."""
        small = {k: v for k, v in self.model_dump().items() if isinstance(v, float) and 0 < v < _LEAST_USD}
        if not small:
            return ""
        shown = ", ".join(f"{k} {v:g}" for k, v in small.items())
        meant = ", ".join(f"{k}: {v * 1e6:.4g}" for k, v in small.items())
        return (
            f"{name} is {shown} USD per million tokens, less than anybody asks. Is it the price of one token? Then write {meant}; "
            "costs are a millionth of what they should be otherwise"
        )


LogFormat = Literal["table", "litellm", "langfuse", "openai", "otel", "openinference", "vllm_sr", "helicone"]


class Source(_Strict):
    """Where the outcomes come from."""

    #: a source of `cabs_core.catalog.sources`, such as file, logs or collect, or one that another package
    #: brings
    kind: Annotated[str, AfterValidator(_known_source)]
    #: file, logs: the table (or event log); collect: the prompts; relative to CABS_DATA_DIR or to the pool
    #: file
    path: Text | None = None
    layout: Literal["tidy", "wide"] = "tidy"
    format: LogFormat = "table"  #: logs, and prompts of collect: the tool that wrote the log
    #: names of columns, or dotted paths into a record
    columns: Columns = Columns()
    scores: Text | None = None  #: format langfuse: a file of scores that stand apart from the calls
    #: remote sources: a local folder with the files, read instead; relative: beside the pool file
    mirror: Text | None = None
    #: logs: what drew the models learnt on the way, and rows are in the order of time: intervals then hold at
    #: any time
    adaptive: bool = False
    published_order: bool = False  #: openllm_v2: keep the misaligned published row order
    queries: int = Field(1500, ge=50, le=200_000)  #: synthetic: number of prompts
    seed: int = Field(7, ge=0, le=_SEED)  #: synthetic: seed of the generator

    @model_validator(mode="after")
    def _consistent(self) -> Source:
        record, columns = sources()[self.kind], self.columns
        judged = {columns.score, *columns.judges}
        return _refuse(self, {
            f"source.kind {self.kind!r} needs source.path, the table to read (.parquet, .csv or .jsonl)":
                record.table and not self.path,
            f"source.columns.judges is for source kind file; the kind is {self.kind!r}":
                columns.judges and self.kind != "file",
            f"source.columns.session is for source kinds file and logs; the kind is {self.kind!r}":
                columns.session != Columns().session and not record.logged and self.kind != "file",
            "source.columns.judges: a column stands there twice, or is source.columns.score":
                len(judged) <= len(columns.judges),
            f"source.format {self.format!r} is for source kinds logs and collect; the kind is {self.kind!r}":
                self.format != "table" and not (record.logged or record.collected),
            f"source.scores is for format langfuse; the format is {self.format!r}":
                self.scores is not None and self.format != "langfuse",
        })  # fmt: skip


class Split(_Strict):
    """Train / validation / test, always whole prompts: no prompt text stands in two splits."""

    #: by_task: whole tasks go to test (distribution shift); default: the source's own split
    kind: Literal["random", "by_task", "column", "default"] = "random"
    fractions: tuple[float, float, float] = (0.7, 0.1, 0.2)
    #: by_task: the tasks of the test split; empty: half of them
    test_tasks: tuple[Text, ...] = Field((), max_length=10_000)
    split_seed: int = Field(0, ge=0, le=_SEED)

    @field_validator("fractions")
    @classmethod
    def _sum_to_one(cls, value: tuple[float, float, float]) -> tuple[float, float, float]:
        if min(value) <= 0 or abs(sum(value) - 1) > 1e-9:
            raise ValueError(f"split.fractions must be three positive numbers with sum 1, got {value}")
        return value


class Encoder(_Strict):
    """A text encoder: a name known to `cabs_core.encoders`, a Hugging Face id, or a local folder."""

    name: Text = "all-MiniLM-L6-v2"
    revision: Text | None = None
    max_length: int = Field(256, ge=8, le=8192)  #: tokens; longer prompts are cut and counted
    normalize: bool = True  #: scale embeddings to unit length
    #: auto: bfloat16 where the hardware multiplies it natively, else float32
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"


class Oracle(_Strict):
    """Surrogate-reward oracles, trained on the train split, stopped and selected on validation."""

    kind: Literal["auto", "network", "ridge"] = "auto"
    oracle_seed: int = Field(0, ge=0, le=_SEED)
    #: passes over the train split, or over 16,384 random queries of a larger one
    max_epochs: int = Field(60, ge=1, le=1000)
    learning_rate: float = Field(1e-4, gt=0, le=0.1)  #: Adam; 1e-4 is the paper's
    hidden: int = Field(256, ge=8, le=4096)
    #: of the network's score heads; l1, which the paper also names, fits medians: on 0/1 scores it rounds
    loss: Literal["huber", "l1"] = "huber"


class Features(_Strict):
    """Contexts of the linear policies; the same for every policy of the pool."""

    #: pca: components of the embedding, which know no labels; head: components of the network's 128-d feature
    #: head, learned from the train labels; auto: the better on validation
    kind: Literal["pca", "head", "auto"] = "pca"
    dim: int = Field(32, ge=1, le=1024)  #: components; head: 128 keeps the whole head


class Replay(_Strict):
    """Online replay over the test split."""

    trials: int = Field(10, ge=1, le=1000)
    order_seed: int = Field(0, ge=0, le=_SEED)
    #: instead of rhos: what one right answer is worth in USD; each value is the rho 1 / value
    answer_value_usd: tuple[Annotated[float, Field(gt=0)], ...] = Field((), max_length=1000, exclude=True)
    #: 1 / rho is the dollar value of one right answer; a list, `paper`, or in a pool file `auto`, from the
    #: table's costs
    rhos: tuple[float, ...] = Field(None, validate_default=True)  # the validator puts the default
    #: rho_1 of the utility: weight of the latency in seconds
    latency_weight: float = Field(0.0, ge=0, le=1e6)
    #: stress condition, see cabs_core.catalog.conditions
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


class LogFile(_Strict):
    """A log of calls beside the pool file, and how it is written."""

    path: Text  #: an event log (SQLite), a table, or the log of another tool
    format: LogFormat = "table"
    columns: Columns = Columns()
    scores: Text | None = None
    #: the worst and the best score that can be given; None: 0 and 1
    score_range: tuple[_Score, _Score] | None = None


class Deployed(_Strict):
    """What the asset `router` and `cabs export` make of the pool."""

    policy: Text | None = None  #: None: the best of `policies` on the validation split
    rho: Annotated[float, Field(ge=0, le=1e9)] | None = None  #: None: the middle one
    epsilon: float = Field(0.02, ge=0, le=1)  #: share of uniform exploration, which keeps the log evaluable
    #: a transformer serves with int8 weights; refused where utility on validation falls by more than .002
    int8: bool = False
    #: most utility a request that a challenger may lose to the deployed router and still be promoted
    margin: float = Field(MARGIN, gt=0, le=1)
    #: traffic to evaluate on, beside the pool file: a path, or {path, format, columns, scores, score_range}; None: the log
    #: of the deployed router
    log: LogFile | None = None
    #: deployed_router trains its challenger on the log's decisions too, beside the train split
    learn_from_log: bool = False
    #: USD a request: the asset shows what each would buy, rho moved by the pacer
    budgets: tuple[Annotated[float, Field(gt=0, le=_MOST_USD)], ...] = Field((), max_length=50)
    #: models that cost nothing; else 0 is a missing price
    free: tuple[Text, ...] = Field((), max_length=1000)

    @field_validator("log", mode="before")
    @classmethod
    def _path_alone(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value


class ModelPool(_Strict):
    """One model pool file. See the README for an example of ten lines."""

    name: str
    title: Text = ""
    description: str = Field("", max_length=10_000)
    synthetic: bool = False  #: generated data: said on every page that shows its results
    source: Source
    #: models to use (default all): a list, or a mapping {name shown: name in the source, or several that are merged}
    models: dict[str, Annotated[tuple[Text, ...], Field(min_length=1)]] | tuple[str, ...] = ()
    #: {name shown: name in the source of its later version}; half of the test queries come after the change
    later_models: dict[str, Text] = {}
    tasks: tuple[Text, ...] = Field((), max_length=10_000)  #: keep only these tasks (default all)
    #: file: the worst and the best score that can be given; they count as 0 and 1
    score_range: tuple[_Score, _Score] = (0.0, 1.0)
    #: cost = tokens x price, instead of a cost column; with missing `price`: where a cost lacks
    prices: dict[str, Price] = {}
    #: constant USD per call of a model, for models without prices; used like them
    cost_per_call: dict[str, Annotated[float, Field(ge=0, le=_MOST_USD)]] = {}
    #: multiply each model's costs so that their mean is this (USD)
    rescale_mean_cost: dict[str, Annotated[float, Field(gt=0, le=_MOST_USD)]] = {}
    #: multiply all costs by one factor so that the mean over queries and models is this
    rescale_grand_mean_cost: float | None = Field(None, gt=0, le=_MOST_USD)
    #: queries for which some model has no score or no cost: left out, predicted, refused, or priced and then
    #: left out
    missing: Literal["drop_queries", "predict", "error", "price"] = "drop_queries"
    #: what is wanted, such as {quality: 0.95, of: gpt-4o}; the report begins with the answer
    goal: Goal | None = None
    #: checks on data whose failure no longer stops a run; the report and the leaderboard say so
    accept: tuple[Text, ...] = Field((), max_length=100)
    split: Split = Split()
    encoder: Encoder = Encoder()
    oracle: Oracle = Oracle()
    features: Features = Features()
    replay: Replay = Replay()
    #: `name` or `name@preset`; with options `{lin_ucb: {alpha: 2}}`, a sweep `{lin_ucb: {alpha: [1, 2, 4]}}`
    policies: tuple[Text, ...] = Field(DEFAULT_POLICIES, max_length=_MOST_POLICIES)
    router: Deployed = Deployed()
    #: source kind collect: whom to ask, what it may cost, how answers are scored
    collect: Collect | None = None
    reference_policy: Text = REFERENCE  #: relative cumulative regret is measured against it
    tuning_budget: int = Field(12, ge=0, le=1000)  #: validation configurations tried per policy; 0: none
    #: show the paper's figures for this benchmark beside ours
    paper_benchmark: Literal["routerbench", "sprout", "openllm"] | None = None

    @field_validator("name")
    @classmethod
    def _safe(cls, value: str) -> str:
        return safe_name(value, "pool name")

    @field_validator("models", mode="before")
    @classmethod
    def _one_name_is_a_list_of_one(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {shown: [given] if isinstance(given, str) else given for shown, given in value.items()}

    @field_validator("policies", mode="before")
    @classmethod
    def _with_options(cls, value: Any) -> Any:
        return [name for entry in value for name in policy_names(entry)] if isinstance(value, list) else value

    @field_validator("policies", "reference_policy")
    @classmethod
    def _canonical(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        return canonical_name(value) if isinstance(value, str) else tuple(map(canonical_name, value))

    @model_validator(mode="after")
    def _consistent(self) -> ModelPool:
        twice = sorted(p for p, count in Counter(self.policies).items() if count > 1)
        priced = [*self.prices, *self.cost_per_call]
        both = sorted(set(self.prices) & set(self.cost_per_call))
        scored = self.source.kind == "file" or self.logged
        names = self.arm_names()
        _refuse(self, {
            "policies is empty: name at least one policy": not self.policies,
            f"policies names {twice} more than once": twice,
            "source.columns.cost is null, so prices must name a price (or cost_per_call a cost) for every model":
                self.source.kind == "file" and self.source.columns.cost is None and not priced,
            f"prices and cost_per_call both name {', '.join(both[:1])!r}: give one of them": both,
            "missing is price, so give prices (USD per 1M tokens) or cost_per_call (USD)":
                self.missing == "price" and not priced,
            f"score_range is {list(self.score_range)}: expected the worst score first, then the best":
                self.score_range[0] >= self.score_range[1],
            "score_range is for source kinds file and logs; the other sources have scores from 0 to 1":
                self.score_range != (0.0, 1.0) and not scored,
            "replay.condition 'severe_shift' needs split.test_tasks, the tasks of the test split":
                self.replay.condition == "severe_shift" and not self.split.test_tasks,
            "give rescale_mean_cost or rescale_grand_mean_cost, not both":
                self.rescale_mean_cost and self.rescale_grand_mean_cost is not None,
            "later_models needs models: say which version of each model comes first": self.later_models and names is None,
        })  # fmt: skip
        self._fits_a_log_or_gaps()
        self._fits_a_collection()
        return self if names is None else self._names_models(names)

    def _names_models(self, names: list[str]) -> ModelPool:
        odd = [name for name in names if not 0 < len(name.strip()) <= 200 or not name.isprintable()]
        fields = ("later_models", "prices", "cost_per_call", "rescale_mean_cost")
        unknown = {field: sorted(set(getattr(self, field)) - set(names)) for field in fields}
        sources_of = [name for given in self.names_in_source().values() for name in given]
        return _refuse(self, {
            f"models names {len(names):,} models: expected at most 1000": len(names) > 1000,
            "models names fewer than two models: there is nothing to route between": len(names) < 2,
            "models names a model more than once": len(set(names)) != len(names),
            "models maps two names to one model of the source": len(set(sources_of)) != len(sources_of),
            f"models holds {(odd or names)[0]!r:.80}: expected 1 to 200 printable characters": odd,
            **{
                f"{field} names models that are not in the pool: {models!r:.100}; pool has {names!r:.200}": models
                for field, models in unknown.items()
            },
        })  # fmt: skip

    def _fits_a_log_or_gaps(self) -> None:
        """Refuse what needs every model's outcome on a query, or every cell, where these are not there."""
        columns = self.source.columns
        replayed = {
            "later_models": bool(self.later_models),
            "replay.condition": self.replay.condition != "none",
            "replay.latency_weight": self.replay.latency_weight != 0,
        }
        measured = {
            "source.columns.latency": columns.latency is not None,
            "source.layout: wide": self.source.layout == "wide",
            "paper_benchmark": self.paper_benchmark is not None,
            "router.budgets": bool(self.router.budgets),
            "router.log": self.router.log is not None,
        }
        kind = f"source kind {self.source.kind!r}"
        if self.logged:
            why = f"{kind}: a log knows the outcome of one model a prompt, so it is not replayed"
            _refuse(self, {
                "source.columns.query_id is for tables: every row of a log is a decision of its own":
                    "query_id" in columns.model_fields_set,
                **{f"{field} cannot be used with {why}": there for field, there in (replayed | measured).items()},
            })  # fmt: skip
        if self.missing == "predict":
            rules = {kind: self.logged, **replayed}
            _refuse(
                self, {f"missing is predict, which cannot be used with {what}": rules[what] for what in rules}
            )

    def _fits_a_collection(self) -> None:
        """`collect` and the source kind belong together; the models and those that its fields name exist."""
        _refuse(self, {
            "source.kind is collect, so say under collect whom to ask and how to score (upstreams, max_usd, scores)":
                self.collected and self.collect is None,
            f"collect is for source.kind collect; the source is {self.source.kind!r}":
                self.collect is not None and not self.collected,
        })  # fmt: skip
        if self.collect is None:
            return
        names = self.arm_names() or []
        judges = self.collect.judges
        unknown = sorted(set(self.collect.limits) - {*names, *(judge.model for judge in judges)})
        strangers = [judge.against for judge in judges if judge.against not in (None, *names)]
        _refuse(self, {
            "source.kind is collect, so models must name whom to ask": not names,
            "models merges names, but whom source kind 'collect' asks is one entry of the upstreams each":
                any(len(given) > 1 for given in self.names_in_source().values()),
            "later_models cannot be used with source kind 'collect': ask the later version in a pool of its own":
                self.later_models,
            f"collect.limits names {''.join(unknown[:1])!r:.100}, which is asked nothing; the pool asks {names!r:.200}": unknown,
            f"collect.scores: against is {''.join(map(str, strangers[:1]))!r:.100}; expected a model of the pool: {names!r:.200}": strangers,
        })  # fmt: skip

    @property
    def collected(self) -> bool:
        """Whether answers are collected: the models are asked, and what they say is scored."""
        return sources()[self.source.kind].collected

    @property
    def logged(self) -> bool:
        """Whether the source is a log, where one model answered each prompt."""
        return sources()[self.source.kind].logged

    def arm_names(self) -> list[str] | None:
        """Names shown for the arms, in pool order; None when the pool takes every model of its source."""
        if not self.models:
            return None
        return list(self.models)

    def source_names(self) -> dict[str, str] | None:
        """{name shown: name in the source once names are merged}, or None when the pool takes every model of its source."""
        if not self.models:
            return None
        return {
            shown: given[0] if len(given) == 1 else shown for shown, given in self.names_in_source().items()
        }

    def names_in_source(self) -> dict[str, tuple[str, ...]]:
        """{name shown: names in the source that are this model}; more than one are merged. Empty: every model is taken."""
        return self.models if isinstance(self.models, dict) else {m: (m,) for m in self.models}

    def later_names(self) -> dict[str, tuple[str, ...]]:
        """{name shown: names in the source that are this model} after the change of `later_models`."""
        return {**self.names_in_source(), **{shown: (name,) for shown, name in self.later_models.items()}}

    def content_hash(self, *sections: str) -> str:
        """SHA-256 (hex, 16 characters) of the pool's settings, or of the named top-level fields alone.

        Stages hash only the fields they read, so that changing one setting refreshes what depends on it.
        """
        data: dict[str, Any] = self.model_dump(mode="json", include=set(sections) if sections else None)
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one level with dotted names; empty mappings stay."""
    if not isinstance(value, dict) or not value:
        return {prefix: value}
    found: dict[str, Any] = {}
    for name, item in value.items():
        found |= flatten(item, f"{prefix}.{name}" if prefix else str(name))
    return found
