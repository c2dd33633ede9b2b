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

#: names of one model in the source. Several names are merged into one model
Names = Annotated[tuple[Text, ...], Field(min_length=1)]
#: models of a pool: a list of names, or {name shown: names in the source}
Models = dict[str, Names] | tuple[str, ...]
Prices = dict[str, Price]
#: USD per call
CallCosts = dict[str, Annotated[float, Field(ge=0, le=MOST_USD)]]
MOST_MODELS = 1000
#: value of `today` for the choices that a log holds
TODAY_LOG = "log"
#: value of `today` if no model is in use
TODAY_NONE = "none"


class Pool(Strict):
    """Fields of every pool file. The README has an example of ten lines."""

    name: str
    title: Text = ""
    description: str = Field("", max_length=10_000)
    synthetic: bool = False  #: True for generated data; every page that shows its results says so
    #: models to use (default all): a list, or {name shown: name in the source, or several that are merged}
    models: Models = ()
    tasks: tuple[Text, ...] = Field((), max_length=10_000)  #: tasks to keep (default all)
    #: model that answers the requests today; `log` for the choices that a log holds; `none` if no model is in
    #: use. If left out: `log` for a log, the dearest model for the user's own table or prompts, else `none`
    today: Text | None = None
    #: a model or router whose mean score is at most this much lower counts as good as today's model
    tolerance: float = Field(0.03, gt=0, le=1)
    #: number of requests a month of the traffic that the pool is for. A goal may say the number instead
    requests_per_month: Requests | None = None
    #: wishes such as {quality: 0.95, of: gpt-4o}. The report begins with the option that fulfils them
    goal: Goal | None = None
    #: names of checks of the data whose failure does not stop a run. The report and the leaderboard name them
    accept: tuple[Text, ...] = Field((), max_length=100)
    split: Split = Split()
    encoder: Encoder = Encoder()
    oracle: Oracle = Oracle()
    features: Features = Features()
    replay: ReplayBase = ReplayBase()
    #: each `name` or `name@preset`; `{lin_ucb: {alpha: 2}}` with options; `{lin_ucb: {alpha: [1, 2, 4]}}` for
    #: a sweep over options
    policies: tuple[Text, ...] = Field(DEFAULT_POLICIES, max_length=MOST_POLICIES)
    router: RouterBase = RouterBase()
    reference_policy: Text = REFERENCE  #: policy against which relative cumulative regret is measured
    #: number of configurations of each policy that are tried on the validation split; 0: no tuning
    tuning_budget: int = Field(12, ge=0, le=1000)

    @field_validator("name")
    @classmethod
    def _safe_name(cls, value: str) -> str:
        """Return the name of the pool if it can be a file name, else raise PoolError."""
        return safe_name(value, "pool name")

    @field_validator("models", mode="before")
    @classmethod
    def _names_as_lists(cls, value: Any) -> Any:
        """Return {name shown: list of names in the source}, where the file may give one name without a list.

        Models that the file gives as a list of names are returned unchanged.
        """
        if not isinstance(value, dict):
            return value
        return {shown: [given] if isinstance(given, str) else given for shown, given in value.items()}

    @field_validator("policies", mode="before")
    @classmethod
    def _without_sweeps(cls, value: Any) -> Any:
        """Return the names of the policies, with every sweep over options replaced by one name per setting.

        A value that is no list is returned unchanged.
        """
        if not isinstance(value, list):
            return value
        return [name for entry in value for name in policy_names(entry)]

    @field_validator("policies", "reference_policy")
    @classmethod
    def _canonical_names(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        """Return names in which equal options are written alike, so that repetitions are found."""
        if isinstance(value, str):
            return canonical_name(value)
        return tuple(map(canonical_name, value))

    @model_validator(mode="after")
    def _consistent(self) -> Pool:
        """Return the pool unchanged, or raise ValueError with the first message of `_faults`."""
        for fault in self._faults():
            raise ValueError(fault)
        return self

    def _faults(self) -> Iterator[str]:
        """Yield a message for each rule of all pools that the fields break, alone or with each other.

        The rules are about policies, models, `today`, requests per month and folds.
        """
        repeated = sorted(name for name, count in Counter(self.policies).items() if count > 1)
        if not self.policies:
            yield "policies is empty: name at least one policy"
        if repeated:
            yield f"policies names {repeated} more than once: leave the repetition out"
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
        reason = self._why_one_fold()
        if self.split.folds not in (None, 1) and reason:
            yield f"split.folds is {self.split.folds}, but {reason}: leave split.folds out, or set it to 1"

    def _why_one_fold(self) -> str:
        """Return the reason why the prompts can be split in one way only, or '' if folds can be made."""
        if not self.split.rotates:
            return f"split.kind {self.split.kind!r} fixes which prompts are held out"
        return ""

    @property
    def monthly_requests(self) -> int | None:
        """Number of requests a month that the file or its goal says, or None."""
        if self.requests_per_month:
            return self.requests_per_month
        if self.goal is None:
            return None
        return self.goal.requests_per_month

    @property
    def may_fold(self) -> bool:
        """True if every prompt can be held out in one of several folds."""
        return not self._why_one_fold()

    def _faults_of_models(self) -> Iterator[str]:
        """Yield messages on the models that a pool file names, and one for each field with unknown models.

        Fields that map models to values, such as `prices`, are checked here, and `today` in `_faults`.
        """
        names = list(self.models)
        in_source = [name for given in self.names_in_source().values() for name in given]
        if len(names) > MOST_MODELS:
            yield f"models names {len(names):,} models: expected at most {MOST_MODELS}"
        if len(names) < 2:
            yield (
                f"models is {names!r:.100}, fewer than two models: there is nothing to route between. Add a "
                "model"
            )
        if len(set(names)) != len(names):
            repeated = Counter(names).most_common(1)[0][0]
            yield f"models names a model more than once: {repeated!r:.100}. Leave the repetition out"
        if len(set(in_source)) != len(in_source):
            repeated = Counter(in_source).most_common(1)[0][0]
            yield (
                f"models maps two names to one model of the source, {repeated!r:.100}: leave one of them out"
            )
        for name in names:
            if not 0 < len(name.strip()) <= 200 or not name.isprintable():
                yield f"models holds {name!r:.80}: expected 1 to 200 printable characters"
        for field in ("later_models", "prices", "cost_per_call", "rescale_mean_cost"):
            if field not in type(self).model_fields:
                continue
            unknown = sorted(set(getattr(self, field)) - set(names))
            if unknown:
                yield (
                    f"{field} names models that are not in the pool: {unknown!r:.100}. The pool has "
                    f"{names!r:.200}"
                )

    @property
    def router_rho(self) -> float:
        """Cost sensitivity of the router: `router.rho` if given, else the middle one of `replay.rhos`."""
        if self.router.rho is None:
            return middle_rho(self.replay.rhos)
        return self.router.rho

    def arm_names(self) -> list[str] | None:
        """Return the names shown for the arms, in pool order, or None if the pool takes every model."""
        if not self.models:
            return None
        return list(self.models)

    def source_names(self) -> dict[str, str] | None:
        """Return {name shown: name in the source}, or None if the pool takes every model of its source.

        A model of several names in the source has its name shown, under which these names are merged.
        """
        if not self.models:
            return None
        return {
            shown: given[0] if len(given) == 1 else shown for shown, given in self.names_in_source().items()
        }

    def names_in_source(self) -> dict[str, tuple[str, ...]]:
        """Return {name shown: names in the source that are this model}.

        Empty if the pool takes every model.
        """
        if isinstance(self.models, dict):
            return self.models
        return {model: (model,) for model in self.models}

    def content_hash(self, *sections: str) -> str:
        """Return the SHA-256 (hex, 16 characters) of the pool's settings.

        Stages hash only the fields that they read, so that a changed setting makes no other result stale.

        Args:
            sections: top-level fields to hash; default: all.
        """
        data: dict[str, Any] = self.model_dump(mode="json", include=set(sections) if sections else None)
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


class ReplayedPool(Pool):
    """Fields of pools whose policies are replayed, on a table with several models' scores on each prompt."""

    described: ClassVar[str]  #: name of this kind of pool's source in messages

    #: treatment of prompts for which some model has no score or no cost. `drop_queries`: left out. `predict`:
    #: the missing cells are predicted. `error`: refused. `price`: missing costs are filled from
    #: prices, and prompts that still have a gap are left out
    missing: Literal["drop_queries", "predict", "error", "price"] = "drop_queries"
    replay: Replay = Replay()
    router: Deployed = Deployed()

    def _why_one_fold(self) -> str:
        """Return the reason why the prompts can be split in one way only, or '' if folds can be made.

        Further reasons of a replayed pool are predicted cells and a stress condition.
        """
        reason = super()._why_one_fold()
        if reason:
            return reason
        if self.missing == "predict":
            return "the missing cells of the table are predicted from one train split"
        if self.replay.condition != "none":
            return f"replay.condition {self.replay.condition!r} is a test of one split"
        return ""

    def _faults(self) -> Iterator[str]:
        """Yield the faults of every pool, then those that only a replayed pool can have.

        These faults are `today: log`, since the source is no log, and the condition `severe_shift` without
        `split.test_tasks`.
        """
        yield from super()._faults()
        if self.today == TODAY_LOG:
            yield (
                f"today is {TODAY_LOG!r}, the choices of a log, but the source is {self.described}. Name a "
                f"model, or {TODAY_NONE}"
            )
        if self.replay.condition == "severe_shift" and not self.split.test_tasks:
            yield "replay.condition 'severe_shift' needs split.test_tasks: name the tasks of the test split"

    def _faults_of_predicting(self) -> Iterator[str]:
        """Yield a message for each setting that doubly robust estimates of missing cells do not cover."""
        condition = self.replay.condition
        reasons: dict[str, str] = {}
        if self.replay.latency_weight:
            reasons["replay.latency_weight"] = "the time that a model would have taken is not estimated"
        if condition == "sessions":
            reasons["replay.condition 'sessions'"] = "the cost of a turn depends on the answers before it"
        elif condition_that_changes(condition, "labels"):
            reasons[f"replay.condition {condition!r}"] = "it exchanges labels, of which some are missing"
        elif condition_that_changes(condition, "splits"):
            reasons[f"replay.condition {condition!r}"] = (
                "the test whether gaps are at random would see other tasks than the router"
            )
        for field, reason in reasons.items():
            yield cannot_predict(field, reason)


def cannot_predict(field: str, reason: str) -> str:
    """Return the message for a field that cannot be used with `missing: predict`."""
    return (
        f"missing is predict, which cannot be used with {field}: {reason}. Leave {field} out, or set "
        "missing: drop_queries to leave queries with a gap out"
    )


def faults_of_prices(
    prices: Mapping[str, Price], cost_per_call: Mapping[str, float], missing: str
) -> Iterator[str]:
    """Yield at most two messages on prices (USD per million tokens) and constant costs (USD per call).

    The first message names one model that has both a price and a constant cost, even if there are several.
    The second one says that `missing: price` needs prices or constant costs, if the file has neither.

    Args:
        prices: {model: price} of the pool file.
        cost_per_call: {model: USD per call} of the pool file.
        missing: value of the field `missing`.
    """
    in_both = sorted(set(prices) & set(cost_per_call))
    if in_both:
        yield f"prices and cost_per_call both name {in_both[0]!r}: give one of them"
    if missing == "price" and not (prices or cost_per_call):
        yield "missing is price, so give prices (USD per 1M tokens) or cost_per_call (USD)"


def faults_of_range(score_range: tuple[float, float]) -> Iterator[str]:
    """Yield a message if the worst score, `score_range[0]`, is not below the best one, `score_range[1]`."""
    if score_range[0] >= score_range[1]:
        yield f"score_range is {list(score_range)}: expected the worst score first, then the best"
