"""The model pool: what is routed, on which data, and how it is replayed.

A pool is one YAML file. Every field is validated here; unknown fields are errors, because a misspelt option
that is silently ignored is worse than a crash.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from cabs_core.base.catalog.conditions import condition_that_changes
from cabs_core.base.catalog.policies import canonical_name
from cabs_core.base.catalog.roles import DEFAULT_POLICIES, REFERENCE
from cabs_core.base.catalog.sources import sources
from cabs_core.base.paths import safe_name
from cabs_core.base.utility import middle_rho
from cabs_core.data.pool_files.collect import Collect
from cabs_core.data.pool_files.goals import Goal, Requests, Usd
from cabs_core.data.pool_files.policy_names import MOST_POLICIES, policy_names
from cabs_core.data.pool_files.sections import (
    MOST_USD,
    Deployed,
    Encoder,
    Features,
    Oracle,
    Price,
    Replay,
    Score,
    Source,
    Split,
    Text,
)
from cabs_core.data.pool_files.strict import Strict

#: words of `today` that are no models: the choices that a log holds, and nothing in use
TODAY_LOG = "log"
TODAY_NONE = "none"
#: fields that say which outcomes a pool has
OUTCOME_FIELDS = (
    *("source", "models", "later_models", "tasks", "score_range", "missing"),
    *("prices", "cost_per_call", "rescale_mean_cost", "rescale_grand_mean_cost"),
)


class ModelPool(Strict):
    """One model pool file. See the README for an example of ten lines."""

    name: str
    title: Text = ""
    description: str = Field("", max_length=10_000)
    synthetic: bool = False  #: generated data: said on every page that shows its results
    source: Source
    #: models to use (default all): a list, or {name shown: name in the source, or several that are merged}
    models: dict[str, Annotated[tuple[Text, ...], Field(min_length=1)]] | tuple[str, ...] = ()
    #: {name shown: name in the source of its later version}; half of the test queries come after the change
    later_models: dict[str, Text] = Field({})
    tasks: tuple[Text, ...] = Field((), max_length=10_000)  #: keep only these tasks (default all)
    #: file: the worst and the best score that can be given; they count as 0 and 1
    score_range: tuple[Score, Score] = (0.0, 1.0)
    #: cost = tokens x price, instead of a cost column; with missing `price`: where a cost lacks
    prices: dict[str, Price] = Field({})
    #: constant USD per call of a model, for models without prices; used like them
    cost_per_call: dict[str, Annotated[float, Field(ge=0, le=MOST_USD)]] = Field({})
    #: multiply each model's costs so that their mean is this (USD)
    rescale_mean_cost: dict[str, Annotated[float, Field(gt=0, le=MOST_USD)]] = Field({})
    #: multiply all costs by one factor so that the mean over queries and models is this
    rescale_grand_mean_cost: float | None = Field(None, gt=0, le=MOST_USD)
    #: queries for which some model has no score or no cost: left out, predicted, refused, or priced first
    missing: Literal["drop_queries", "predict", "error", "price"] = "drop_queries"
    #: what answers the requests today: a model; `log`, the choices that a log holds; or `none`: no model is
    #: in use. Left out: `log` for a log, the dearest model for the user's own table or prompts, else `none`
    today: Text | None = None
    #: a model or router that scores at most this much less on average counts as as good as today's
    tolerance: float = Field(0.03, gt=0, le=1)
    #: what is wanted, such as {quality: 0.95, of: gpt-4o}; the report begins with the answer
    goal: Goal | None = None
    #: USD that the table cost: answers, and whoever scored them; the report says when it is earned back
    table_cost: Usd | None = None
    #: requests of the traffic that the pool is for; a goal may say them, too
    requests_per_month: Requests | None = None
    #: checks on data whose failure no longer stops a run; the report and the leaderboard say so
    accept: tuple[Text, ...] = Field((), max_length=100)
    split: Split = Split()
    encoder: Encoder = Encoder()
    oracle: Oracle = Oracle()
    features: Features = Features()
    replay: Replay = Replay()
    #: `name` or `name@preset`; with options `{lin_ucb: {alpha: 2}}`, a sweep `{lin_ucb: {alpha: [1, 2, 4]}}`
    policies: tuple[Text, ...] = Field(DEFAULT_POLICIES, max_length=MOST_POLICIES)
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
        for fault in _faults(self):
            raise ValueError(fault)
        return self

    @property
    def collected(self) -> bool:
        """Whether answers are collected: the models are asked, and what they say is scored."""
        return sources()[self.source.kind].collected

    @property
    def predicts(self) -> bool:
        """Whether what is missing of the table is predicted from the train prompts."""
        return self.missing == "predict"

    @property
    def logged(self) -> bool:
        """Whether the source is a log, where one model answered each prompt."""
        return sources()[self.source.kind].logged

    @property
    def may_fold(self) -> bool:
        """True if every prompt can be held out in one of several folds."""
        return not _why_one_fold(self)

    @property
    def router_rho(self) -> float:
        """Cost sensitivity of the router: as the file says, else the middle one that is replayed."""
        return middle_rho(self.replay.rhos) if self.router.rho is None else self.router.rho

    @property
    def monthly_requests(self) -> int | None:
        """Requests a month, as the file or its goal says."""
        return self.requests_per_month or (self.goal.requests_per_month if self.goal else None)

    def arm_names(self) -> list[str] | None:
        """Names shown for the arms, in pool order; None when the pool takes every model of its source."""
        if not self.models:
            return None
        return list(self.models)

    def source_names(self) -> dict[str, str] | None:
        """{name shown: name in the source once names are merged}; None: the pool takes every model."""
        if not self.models:
            return None
        return {
            shown: given[0] if len(given) == 1 else shown for shown, given in self.names_in_source().items()
        }

    def names_in_source(self) -> dict[str, tuple[str, ...]]:
        """{name shown: names in the source that are this model}, merged; empty: every model is taken."""
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


def _faults(pool: ModelPool) -> Iterator[str]:
    """What is wrong with a pool whose fields are right one by one."""
    twice = sorted(p for p, count in Counter(pool.policies).items() if count > 1)
    priced = [*pool.prices, *pool.cost_per_call]
    both = sorted(set(pool.prices) & set(pool.cost_per_call))
    names = pool.arm_names()
    if not pool.policies:
        yield "policies is empty: name at least one policy"
    if twice:
        yield f"policies names {twice} more than once"
    if pool.source.kind == "file" and pool.source.columns.cost is None and not priced:
        yield (
            "source.columns.cost is null, so prices must name a price (or cost_per_call a cost) for every "
            "model"
        )
    if both:
        yield f"prices and cost_per_call both name {both[0]!r}: give one of them"
    if pool.missing == "price" and not priced:
        yield "missing is price, so give prices (USD per 1M tokens) or cost_per_call (USD)"
    if pool.score_range[0] >= pool.score_range[1]:
        yield f"score_range is {list(pool.score_range)}: expected the worst score first, then the best"
    if pool.score_range != (0.0, 1.0) and not (pool.source.kind == "file" or pool.logged):
        yield "score_range is for source kinds file and logs; the other sources have scores from 0 to 1"
    if pool.replay.condition == "severe_shift" and not pool.split.test_tasks:
        yield "replay.condition 'severe_shift' needs split.test_tasks, the tasks of the test split"
    if pool.rescale_mean_cost and pool.rescale_grand_mean_cost is not None:
        yield "give rescale_mean_cost or rescale_grand_mean_cost, not both"
    if pool.goal and pool.goal.requests_per_month not in (None, pool.monthly_requests):
        yield (
            f"requests_per_month is {pool.requests_per_month}, but goal says {pool.goal.requests_per_month}: "
            "give it once"
        )
    if pool.today == TODAY_LOG and not pool.logged:
        yield f"today is {TODAY_LOG!r}, the choices of a log, but source.kind is {pool.source.kind!r}"
    if pool.today not in (None, TODAY_LOG, TODAY_NONE) and pool.today not in (names or [pool.today]):
        yield f"today is {pool.today!r:.100}; expected a model of the pool ({names!r:.200}), or {TODAY_NONE}"
    if pool.later_models and names is None:
        yield "later_models needs models: say which version of each model comes first"
    if pool.split.folds not in (None, 1) and (why := _why_one_fold(pool)):
        yield f"split.folds is {pool.split.folds}, but {why}: leave split.folds out, or set it to 1"
    yield from _faults_of_a_log_or_gaps(pool)
    yield from _faults_of_a_collection(pool, names or [])
    if names is not None:
        yield from _faults_of_models(pool, names)


def _why_one_fold(pool: ModelPool) -> str:
    """The setting that leaves a single way to split the table, in words; empty if folds can be made."""
    condition = pool.replay.condition
    if not pool.split.rotates:
        return f"split.kind {pool.split.kind!r} fixes which prompts are held out"
    if pool.logged:
        return "a log is not replayed"
    if pool.predicts:
        return "what is missing of the table is predicted from one train split"
    if pool.later_models:
        return "later_models play one stream that changes in its middle"
    if condition != "none":
        return f"replay.condition {condition!r} is a test of one split"
    return ""


def _faults_of_a_log_or_gaps(pool: ModelPool) -> Iterator[str]:
    """What needs every model's outcome on a query, or every cell, where these are not there."""
    columns, kind = pool.source.columns, f"source kind {pool.source.kind!r}"
    replayed = {
        "later_models": bool(pool.later_models),
        "replay.condition": pool.replay.condition != "none",
        "replay.latency_weight": pool.replay.latency_weight != 0,
    }
    measured = {
        "source.columns.latency": columns.latency is not None,
        "source.layout: wide": pool.source.layout == "wide",
        "paper_benchmark": pool.paper_benchmark is not None,
        "router.budgets": bool(pool.router.budgets),
        "router.log": pool.router.log is not None,
    }
    if pool.logged:
        for field in ("table_cost", "requests_per_month"):
            if getattr(pool, field) is not None:
                yield f"{field} is for tables: a log was paid for by whoever asked"
        if "query_id" in columns.model_fields_set:
            yield "source.columns.query_id is for tables: every row of a log is a decision of its own"
        why = f"{kind}: a log knows the outcome of one model a prompt, so it is not replayed"
        for field, used in (replayed | measured).items():
            if used:
                yield f"{field} cannot be used with {why}"
    if pool.predicts:
        yield from _faults_of_gaps(pool)


def _faults_of_gaps(pool: ModelPool) -> Iterator[str]:
    """What doubly robust estimates of cells that were not asked do not cover."""
    condition, way_out = pool.replay.condition, "leave queries with a gap out (missing: drop_queries)"
    says = "missing is predict"
    if pool.logged:
        yield f"{says}, which cannot be used with source kind 'logs': of a log it is so anyway"
    reasons = {"later_models": "", "replay.latency_weight": "", f"replay.condition {condition!r}": ""}
    if pool.later_models:
        reasons["later_models"] = "what a later version scores is not estimated"
    if pool.replay.latency_weight:
        reasons["replay.latency_weight"] = "how long a model would have taken is not estimated"
    if condition == "sessions":
        reasons["replay.condition 'sessions'"] = "what a turn costs hangs on the answers before it"
    elif condition_that_changes(condition, "labels"):
        reasons[f"replay.condition {condition!r}"] = "it exchanges labels, of which some are not there"
    elif condition_that_changes(condition, "splits"):
        reasons[f"replay.condition {condition!r}"] = (
            "whether gaps are at random would be looked at on other tasks than those that are routed"
        )
    for field, reason in reasons.items():
        if reason:
            yield f"{says}, which cannot be used with {field}: {reason}. Leave it out, or {way_out}"


def _faults_of_a_collection(pool: ModelPool, names: list[str]) -> Iterator[str]:
    """`collect` and the source kind belong together; the models and those that its fields name exist."""
    collect = pool.collect
    if pool.collected and collect is None:
        yield (
            "source.kind is collect: say whom to ask and how to score (collect: upstreams, max_usd, scores)"
        )
    if collect is not None and not pool.collected:
        yield f"collect is for source.kind collect; the source is {pool.source.kind!r}"
    if collect is None:
        return
    if pool.table_cost is not None:
        yield "table_cost cannot be used with source kind 'collect': what was paid is known"
    if not names:
        yield "source.kind is collect, so models must name whom to ask"
    if any(len(given) > 1 for given in pool.names_in_source().values()):
        yield "models merges names, but whom source kind 'collect' asks is one entry of the upstreams each"
    if pool.later_models:
        yield "later_models: with source kind 'collect', ask the later version in a pool of its own"
    for name in sorted(set(collect.limits) - {*names, *(judge.model for judge in collect.judges)}):
        yield f"collect.limits names {name!r:.100}, which is asked nothing; the pool asks {names!r:.200}"
    for judge in collect.judges:
        if judge.against not in (None, *names):
            yield (
                f"collect.scores: against is {judge.against!r:.100}; expected a model of the pool: "
                f"{names!r:.200}"
            )


def _faults_of_models(pool: ModelPool, names: list[str]) -> Iterator[str]:
    """Names of models, and the fields that name some of them."""
    in_source = [name for given in pool.names_in_source().values() for name in given]
    if len(names) > 1000:
        yield f"models names {len(names):,} models: expected at most 1000"
    if len(names) < 2:
        yield "models names fewer than two models: there is nothing to route between"
    if len(set(names)) != len(names):
        yield "models names a model more than once"
    if len(set(in_source)) != len(in_source):
        yield "models maps two names to one model of the source"
    for name in names:
        if not 0 < len(name.strip()) <= 200 or not name.isprintable():
            yield f"models holds {name!r:.80}: expected 1 to 200 printable characters"
    for field in ("later_models", "prices", "cost_per_call", "rescale_mean_cost"):
        if unknown := sorted(set(getattr(pool, field)) - set(names)):
            yield f"{field} names models that are not in the pool: {unknown!r:.100}; pool has {names!r:.200}"


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one level with dotted names; empty mappings stay."""
    if not isinstance(value, dict) or not value:
        return {prefix: value}
    fields: dict[str, Any] = {}
    for name, item in value.items():
        fields |= flatten(item, f"{prefix}.{name}" if prefix else str(name))
    return fields
