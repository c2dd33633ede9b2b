"""The fields that pool files of several kinds share, and the rules that hold for all of them."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from cabs_core.base.catalog.conditions import condition_that_changes
from cabs_core.base.catalog.policies import canonical_name
from cabs_core.base.catalog.roles import DEFAULT_POLICIES, REFERENCE
from cabs_core.base.paths import safe_name
from cabs_core.base.utility import middle_rho
from cabs_core.data.pool_files.columns import Text
from cabs_core.data.pool_files.goals import Goal, Requests
from cabs_core.data.pool_files.policy_names import MOST_POLICIES, policy_names
from cabs_core.data.pool_files.prices import MOST_USD, Price
from cabs_core.data.pool_files.sections import (
    Deployed,
    Encoder,
    Features,
    Oracle,
    Replay,
    ReplayBase,
    RouterBase,
    Split,
)
from cabs_core.data.pool_files.strict import Strict

#: names of one model in the source; several are merged
Names = Annotated[tuple[Text, ...], Field(min_length=1)]
#: names of models: a list, or {name shown: its names in the source}
Models = dict[str, Names] | tuple[str, ...]
Prices = dict[str, Price]
#: USD per call
CallCosts = dict[str, Annotated[float, Field(ge=0, le=MOST_USD)]]
MOST_MODELS = 1000
#: words of `today` that are no models: the choices that a log holds, and nothing in use
TODAY_LOG = "log"
TODAY_NONE = "none"


class Pool(Strict):
    """The fields of every pool file. See the README for an example of ten lines."""

    name: str
    title: Text = ""
    description: str = Field("", max_length=10_000)
    synthetic: bool = False  #: generated data: said on every page that shows its results
    #: models to use (default all): a list, or {name shown: name in the source, or several that are merged}
    models: Models = ()
    tasks: tuple[Text, ...] = Field((), max_length=10_000)  #: keep only these tasks (default all)
    #: what answers the requests today: a model; `log`, the choices that a log holds; or `none`: no model is
    #: in use. Left out: `log` for a log, the dearest model for the user's own table or prompts, else `none`
    today: Text | None = None
    #: a model or router that scores at most this much less on average counts as as good as today's
    tolerance: float = Field(0.03, gt=0, le=1)
    #: requests of the traffic that the pool is for; a goal may say them, too
    requests_per_month: Requests | None = None
    #: what is wanted, such as {quality: 0.95, of: gpt-4o}; the report begins with the answer
    goal: Goal | None = None
    #: checks on data whose failure no longer stops a run; the report and the leaderboard say so
    accept: tuple[Text, ...] = Field((), max_length=100)
    split: Split = Split()
    encoder: Encoder = Encoder()
    oracle: Oracle = Oracle()
    features: Features = Features()
    replay: ReplayBase = ReplayBase()
    #: `name` or `name@preset`; with options `{lin_ucb: {alpha: 2}}`, a sweep `{lin_ucb: {alpha: [1, 2, 4]}}`
    policies: tuple[Text, ...] = Field(DEFAULT_POLICIES, max_length=MOST_POLICIES)
    router: RouterBase = RouterBase()
    reference_policy: Text = REFERENCE  #: relative cumulative regret is measured against it
    tuning_budget: int = Field(12, ge=0, le=1000)  #: validation configurations tried per policy; 0: none

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
    def _consistent(self) -> Pool:
        for fault in self._faults():
            raise ValueError(fault)
        return self

    def _faults(self) -> Iterator[str]:
        """Yield what is wrong with fields that are right one by one."""
        twice = sorted(p for p, count in Counter(self.policies).items() if count > 1)
        if not self.policies:
            yield "policies is empty: name at least one policy"
        if twice:
            yield f"policies names {twice} more than once"
        if self.models:
            yield from self._faults_of_models()
        names = list(self.models)
        if self.today not in (None, TODAY_LOG, TODAY_NONE) and names and self.today not in names:
            yield (
                f"today is {self.today!r:.100}; expected a model of the pool ({names!r:.200}), or "
                f"{TODAY_NONE}"
            )
        if self.goal and self.goal.requests_per_month not in (None, self.monthly_requests):
            yield (
                f"requests_per_month is {self.requests_per_month}, but goal says "
                f"{self.goal.requests_per_month}: give it once"
            )
        why = self._why_one_fold()
        if self.split.folds not in (None, 1) and why:
            yield f"split.folds is {self.split.folds}, but {why}: leave split.folds out, or set it to 1"

    def _why_one_fold(self) -> str:
        """Return the setting that leaves a single way to split the prompts, or '' if folds can be made."""
        if not self.split.rotates:
            return f"split.kind {self.split.kind!r} fixes which prompts are held out"
        return ""

    @property
    def monthly_requests(self) -> int | None:
        """Requests a month, as the file or its goal says."""
        return self.requests_per_month or (self.goal.requests_per_month if self.goal else None)

    @property
    def may_fold(self) -> bool:
        """True if every prompt can be held out in one of several folds."""
        return not self._why_one_fold()

    def _faults_of_models(self) -> Iterator[str]:
        names = list(self.models)
        in_source = [name for given in self.names_in_source().values() for name in given]
        if len(names) > MOST_MODELS:
            yield f"models names {len(names):,} models: expected at most {MOST_MODELS}"
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
            if field not in type(self).model_fields:
                continue
            if unknown := sorted(set(getattr(self, field)) - set(names)):
                yield (
                    f"{field} names models that are not in the pool: {unknown!r:.100}; pool has "
                    f"{names!r:.200}"
                )

    @property
    def router_rho(self) -> float:
        """Cost sensitivity of the router: as the file says, else the middle one of `replay.rhos`."""
        return middle_rho(self.replay.rhos) if self.router.rho is None else self.router.rho

    def arm_names(self) -> list[str] | None:
        """Names shown for the arms, in pool order. None if the pool takes every model of its source."""
        if not self.models:
            return None
        return list(self.models)

    def source_names(self) -> dict[str, str] | None:
        """{name shown: name in the source once names are merged}. None if the pool takes every model."""
        if not self.models:
            return None
        return {
            shown: given[0] if len(given) == 1 else shown for shown, given in self.names_in_source().items()
        }

    def names_in_source(self) -> dict[str, tuple[str, ...]]:
        """{name shown: names in the source that are this model}. Empty if the pool takes every model."""
        return self.models if isinstance(self.models, dict) else {m: (m,) for m in self.models}

    def content_hash(self, *sections: str) -> str:
        """SHA-256 (hex, 16 characters) of the pool's settings, or of the named top-level fields alone.

        Stages hash only the fields they read, so that changing one setting refreshes what depends on it.
        """
        data: dict[str, Any] = self.model_dump(mode="json", include=set(sections) if sections else None)
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


class ReplayedPool(Pool):
    """The fields of pools that get a table with the scores of several models on each prompt."""

    described: ClassVar[str]  #: what such a pool is, for messages

    #: prompts without all scores: left out, predicted or refused
    missing: Literal["drop_queries", "predict", "error", "price"] = "drop_queries"
    replay: Replay = Replay()
    router: Deployed = Deployed()

    def _why_one_fold(self) -> str:
        if why := super()._why_one_fold():
            return why
        if self.missing == "predict":
            return "what is missing of the table is predicted from one train split"
        if self.replay.condition != "none":
            return f"replay.condition {self.replay.condition!r} is a test of one split"
        return ""

    def _faults(self) -> Iterator[str]:
        yield from super()._faults()
        if self.today == TODAY_LOG:
            yield f"today is {TODAY_LOG!r}, the choices of a log, but the source is {self.described}"
        if self.replay.condition == "severe_shift" and not self.split.test_tasks:
            yield "replay.condition 'severe_shift' needs split.test_tasks, the tasks of the test split"

    def _faults_of_predicting(self) -> Iterator[str]:
        """Yield the settings that doubly robust estimates of missing cells do not cover."""
        condition = self.replay.condition
        reasons: dict[str, str] = {}
        if self.replay.latency_weight:
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
            yield cannot_predict(field, reason)


def cannot_predict(field: str, reason: str) -> str:
    """Return the message for a field that `missing: predict` excludes."""
    return (
        f"missing is predict, which cannot be used with {field}: {reason}. Leave it out, or leave queries "
        "with a gap out (missing: drop_queries)"
    )


def faults_of_prices(
    prices: Mapping[str, Price], cost_per_call: Mapping[str, float], missing: str
) -> Iterator[str]:
    """Yield what is wrong with prices (USD per million tokens) and constant costs (USD) of one pool file."""
    both = sorted(set(prices) & set(cost_per_call))
    if both:
        yield f"prices and cost_per_call both name {both[0]!r}: give one of them"
    if missing == "price" and not (prices or cost_per_call):
        yield "missing is price, so give prices (USD per 1M tokens) or cost_per_call (USD)"


def faults_of_range(score_range: tuple[float, float]) -> Iterator[str]:
    """Yield what is wrong with the worst and the best score that can be given."""
    if score_range[0] >= score_range[1]:
        yield f"score_range is {list(score_range)}: expected the worst score first, then the best"
