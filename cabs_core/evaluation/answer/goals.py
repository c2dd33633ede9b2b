"""Choice of the option that fulfils a goal, tested on the prompts of the answer with the same error.

    found = goal_answer(Goal(quality=0.95, of="gpt-4o"), table, rules, [router])
    found.choice, found.confirmed

Every option is tested: today's model, every other model, rules and routers. A model is not compared with
itself: the model that a quality is a share of is no option, and neither is today's model if a value is
asked for. An option is confirmed if all conditions of the goal hold beyond noise. Of the confirmed options,
the choice is the one of largest worth if the goal has a value, else the cheapest one if it has a quality,
else the one of highest quality. `choose_router_for_goal` picks the router of a fold by the same rule, from
other prompts than the router is tested on.

"Today's model" is the model that is used today. In a log without such a model it is the log's own choices,
which then are an option, too. In another table without such a model, options are compared with the model of
the highest mean score, and no option has the rung keep.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cabs_core.base.errors import DataError, listed
from cabs_core.base.statistics.paired import PairedSample
from cabs_core.base.statistics.uncertainty import holm
from cabs_core.data.pool_files.goals import BEST, Goal
from cabs_core.evaluation.answer.choice import RouterCandidate
from cabs_core.evaluation.answer.compare import (
    CostComparison,
    Difference,
    Pair,
    compare_costs,
    cross_fitted_factor,
    quality_of,
    weights_for_costs,
)
from cabs_core.evaluation.answer.ladder import KEEP, LOG, ROUTER, RULES, SWITCH
from cabs_core.evaluation.answer.logged import WITHOUT_PROPENSITIES, LoggedTable
from cabs_core.evaluation.answer.table import AnswerOptions, Decisions, ScoredTable
from cabs_core.evaluation.answer.worth import worth_of

#: cost of the dearest call that the test of a budget allows for: `_UNSEEN` times the mean, or `_DEARER` times
#: the dearest call in the table if that is more. Budgets that are exceeded by calls of one in a hundred at 20
#: times the price, or by a Pareto tail of 1.5, are then confirmed in .05 of the tables
#: (`benchmarks.answer_worlds`).
_UNSEEN = 10.0
_DEARER = 2.0
#: bootstrap draws of costs when the router of a fold is chosen; the choice is no statement
_DRAWS_OF_CHOICE = 500


@dataclass(frozen=True)
class Condition:
    """A condition of a goal with its test on one option.

    Attributes:
        name: quality, budget, latency, value, or tolerance (not worse than today's beyond the tolerance).
        found: estimate of the option, NaN if there is none. By `name` it is a score or a share of the named
            model's quality, USD a month, a share of answers in time, worth in USD a request above today's, or
            a difference in score.
        target: limit of the condition, in the same unit.
        p_value: one-sided p-value of the hypothesis that the condition does not hold.
    """

    name: str
    found: float
    target: float
    p_value: float


@dataclass(frozen=True)
class GoalFound:
    """The option that a goal leads to.

    Attributes:
        choice: name of the option.
        rung: rung of the option: keep, switch, rules or router.
        use: a model, or `Decisions.use` of the rules or the router.
        confirmed: True if all conditions hold beyond noise, with all tried options taken into account.
        conditions: conditions of the goal, tested on this option.
        quality: mean score.
        usd_per_1000: USD of 1,000 requests.
        difference: mean score less that of today's model, with its two-sided interval from `low` to `high`.
            The confidence of the interval is 1 - `AnswerOptions.level`, 95 % by default.
    """

    choice: str
    rung: str
    use: Any
    confirmed: bool
    conditions: tuple[Condition, ...]
    quality: float
    usd_per_1000: float
    difference: float
    low: float
    high: float


@dataclass(frozen=True)
class _Tried:
    """An option that is tried for a goal, in comparison with today's model.

    Attributes:
        rung: keep, switch, rules or router.
        name: name of the option.
        played: decisions of the option.
        pair: the option and today's model, from which quality is computed.
        paid: the same with the decisions that costs are computed from (`compare.weights_for_costs`).
        quality: difference in score, with its error times `factor`.
        costs: costs of the option and of today's model.
        factor: error of a cross-fitted score as a multiple of its plain error; 1 for a single model.
    """

    rung: str
    name: str
    played: Decisions
    pair: Pair
    paid: Pair
    quality: Difference
    costs: CostComparison
    factor: float


def goal_answer(
    goal: Goal,
    table: ScoredTable,
    rules: Decisions | None = None,
    routers: Sequence[Decisions] = (),
    options: AnswerOptions | None = None,
) -> GoalFound:
    """Return the option that fulfils a goal; if none is confirmed, the option of the smallest p-value.

    Args:
        goal: conditions on an option.
        table: scored answers, with what is used today.
        rules: decisions of the rules; None if there are none.
        routers: decisions of learned policies, cross-fitted.
        options: settings of the answer; None takes the defaults.

    Raises:
        DataError: the goal names a model that the table does not have, or a latency while the table has none;
            the table is of a log without propensities; or no option is left to compare.
    """
    options = options or AnswerOptions()
    reference = _named(goal, table)
    if isinstance(table, LoggedTable) and table.data.propensities is None:
        raise DataError(
            f"goal: {WITHOUT_PROPENSITIES}: log the probability of every choice, or have prompts of the log "
            "answered again by every model"
        )
    if goal.latency is not None and table.latencies is None:
        raise DataError(
            "goal: the table has no latencies: map source.columns.latency, or leave latency out of the goal"
        )
    tried = _tried(table, rules, routers, options)
    fits = _today_fits(goal, tried, table.clusters)
    compared = _compared_with(goal, table, reference)
    tried = [option for option in tried if not any(_always_asks(option, model) for model in compared)]
    if goal.value_per_right_answer:
        tried = [option for option in tried if option.rung != KEEP]
    if isinstance(table, LoggedTable):  # an option that the log hardly plays is not judged
        tried = [option for option in tried if (option.pair.weight > 0).any()]
    if not tried:
        raise DataError("goal: the table has no other model than the one that options are compared with")
    asked = [_conditions(goal, option, table, reference, fits, options) for option in tried]
    p_values = holm(
        [
            1.0 if table.asks_selective(option.played.weights) else _p_value(conditions)
            for option, conditions in zip(tried, asked, strict=True)
        ]
    )
    sure = [p_value <= options.level / 2 for p_value in p_values]
    best = _best(goal, tried, p_values.tolist(), sure)
    option = tried[best]
    played = option.played
    low, high = option.quality.interval(options.level / 2)
    return GoalFound(
        choice=option.name,
        rung=option.rung,
        use=played.name if played.use is None else played.use,
        confirmed=any(sure),
        conditions=tuple(asked[best]),
        quality=option.pair.mean(option.pair.score),
        usd_per_1000=1000.0 * option.costs.cost,
        difference=option.quality.mean,
        low=low,
        high=high,
    )


def choose_router_for_goal(
    goal: Goal,
    table: ScoredTable,
    rows: np.ndarray,
    candidates: Sequence[RouterCandidate],
    options: AnswerOptions | None = None,
) -> int:
    """Return the index of the candidate that fulfils a goal best on these prompts.

    `choice.choose_router` says which prompts are fair for the fold that is judged afterwards.

    Args:
        goal: conditions on an option.
        table: scored answers.
        rows: `[M]` indices of the prompts, in the order of the candidates' `weights`.
        candidates: policies and cost sensitivities to choose from.
        options: settings of the answer; None takes the defaults.

    Raises:
        DataError: the goal names a model that the table does not have.
    """
    options = replace(options or AnswerOptions(), draws=_DRAWS_OF_CHOICE)
    reference = _named(goal, table)
    some = table.take(rows)
    routers = [Decisions(candidate.name, candidate.weights) for candidate in candidates]
    tried = _tried(some, None, routers, options)
    fits = _today_fits(goal, tried, some.clusters)
    learned = [option for option in tried if option.rung == ROUTER]
    p_values = [_p_value(_conditions(goal, option, some, reference, fits, options)) for option in learned]
    # one router is tested later, beside every model and the rules, and all of them share the error
    tail = options.level / 2 / (len(table.models) + 2)
    return _best(goal, learned, p_values, [p_value <= tail for p_value in p_values])


def _best(goal: Goal, tried: Sequence[_Tried], p_values: Sequence[float], sure: Sequence[bool]) -> int:
    """Index of the confirmed (`sure`) option of largest `_worth`; without one, of the smallest p-value."""
    if any(sure):
        return max(np.flatnonzero(sure).tolist(), key=lambda k: _worth(goal, tried[k]))
    return min(range(len(tried)), key=lambda k: (p_values[k], -_worth(goal, tried[k])))


def _p_value(conditions: Sequence[Condition]) -> float:
    """p-value of the hypothesis that some condition does not hold; 1 without conditions."""
    return max((condition.p_value for condition in conditions), default=1.0)


def _today_fits(goal: Goal, tried: Sequence[_Tried], clusters: np.ndarray) -> bool:
    """Return True if today's model, or the log that is used today, is more likely within budget than not.

    Return False if neither is among `tried`, or if the goal has no budget.
    """
    keep = next((option for option in tried if option.rung == KEEP), None)
    return keep is not None and _budget(goal, keep, clusters).p_value < 0.5


def _compared_with(goal: Goal, table: ScoredTable, reference: int | None) -> set[int]:
    """Indices of the models that options are compared with, which are no options themselves.

    They are the model `reference`, which the goal's quality is a share of, and, if the goal has a value,
    today's model. If no model is used today, the second one is the model of the highest mean score. If the
    log's own choices are used today, there is no second one.
    """
    found = set()
    if reference is not None:
        found.add(reference)
    if goal.value_per_right_answer and table.played is None:
        found.add(table.reference)
    return found


def _always_asks(option: _Tried, model: int) -> bool:
    """Return True if an option asks one model on every judged prompt, as rules with one model do."""
    asked = option.played.weights[:, model]
    judged = ~np.isnan(asked)
    return bool(judged.any()) and bool((asked[judged] == 1.0).all())


def _named(goal: Goal, table: ScoredTable) -> int | None:
    """Index of the model that the goal's quality is a share of; None if the goal names no model.

    Raises:
        DataError: the table does not have the model.
    """
    if goal.of is None:
        return None
    if goal.of in table.models:
        return table.models.index(goal.of)
    if goal.of == BEST:
        return table.best
    raise DataError(f"goal: no model {goal.of!r:.100}; expected {BEST} or one of {listed(table.models)}")


def _tried(
    table: ScoredTable, rules: Decisions | None, routers: Sequence[Decisions], options: AnswerOptions
) -> list[_Tried]:
    """Compare every model, rules, routers, and the log's choices if used today, with today's system.

    Without a system of today the comparison is with the model of the highest mean score.
    """
    has_today = table.today is not None
    named = [
        (KEEP if has_today and j == table.today else SWITCH, Decisions(name, table.single(j)))
        for j, name in enumerate(table.models)
    ]
    baseline = table.baseline()
    if table.played is not None:
        named.append((KEEP, Decisions(LOG, baseline)))
    if rules is not None:
        named.append((RULES, rules))
    named += [(ROUTER, router) for router in routers]
    pairs = [Pair.of(table, played.weights, baseline) for _, played in named]
    paid = [Pair.of(table, weights_for_costs(played), baseline) for _, played in named]
    comparisons = compare_costs(paid, table.clusters, options)
    found = []
    for (rung, played), pair, paid_pair, costs in zip(named, pairs, paid, comparisons, strict=True):
        factor = 1.0
        quality = quality_of(table, pair, played.weights, baseline)
        if rung in (RULES, ROUTER):
            factor = cross_fitted_factor(quality, table, played)
        difference = quality.widened(factor)
        found.append(_Tried(rung, played.name, played, pair, paid_pair, difference, costs, factor))
    return found


def _conditions(
    goal: Goal,
    option: _Tried,
    table: ScoredTable,
    reference: int | None,
    today_fits: bool,
    options: AnswerOptions,
) -> list[Condition]:
    """Test the conditions of a goal on an option.

    If today's model fits into a budget (`today_fits`), other options must also be as good as today's model.
    """
    found = []
    if goal.quality is not None:
        found.append(_quality(goal.quality, option, table, reference))
    if goal.budget_per_month is not None:
        found.append(_budget(goal, option, table.clusters))
        if today_fits and option.rung != KEEP:
            p_value = option.quality.p_value_above(-options.tolerance)
            found.append(Condition("tolerance", option.quality.mean, -options.tolerance, p_value))
    if goal.latency is not None:
        found.append(_latency(goal, option, table))
    if goal.value_per_right_answer:
        found.append(_value(goal.value_per_right_answer, option, table, options))
    return found


def _quality(share: float, option: _Tried, table: ScoredTable, reference: int | None) -> Condition:
    """Condition that the mean score is at least `share` times that of the model `reference`.

    Without a reference, the mean score must be at least `share`.
    """
    weights = option.played.weights
    nothing = np.zeros(weights.shape)
    plain = table.people is None and not isinstance(table, LoggedTable)
    if reference is None and plain:
        weight, score = option.pair.weight, option.pair.score
        sample = PairedSample.of(score - share, weight, table.clusters, worst=max(share, 1.0))
        found = sample.mean + share
        return Condition("quality", found, share, sample.widened(option.factor).p_value_above(0.0))
    if reference is None:
        quality = quality_of(table, option.pair, weights, nothing, share=0.0).widened(option.factor)
        return Condition("quality", quality.mean, share, quality.p_value_above(share))
    other = table.single(reference)
    pair = Pair.of(table, weights, other)
    gap = quality_of(table, pair, weights, other, share=share).widened(option.factor)
    mean = pair.mean(pair.score)
    other_mean = pair.mean(pair.other_score)
    if table.people is not None:
        mean = quality_of(table, pair, weights, nothing, share=0.0).mean
        other_mean = quality_of(table, pair, other, nothing, share=0.0).mean
    found = mean / other_mean if other_mean > 0 else math.nan
    return Condition("quality", found, share, gap.p_value_above(0.0))


def _budget(goal: Goal, option: _Tried, clusters: np.ndarray) -> Condition:
    """Condition that a mean request costs no more than the budget allows.

    The test is a score test of the budget that each request leaves over. It allows for one call that is
    dearer than any in the table (`_UNSEEN`, `_DEARER`). The p-value is 1 if the goal has no budget or the
    costs are not known, and 0 if every request of the option is free.
    """
    if goal.budget_per_month is None or goal.requests_per_month is None:
        return Condition("budget", math.nan, math.nan, 1.0)
    allowed = goal.budget_per_month / goal.requests_per_month
    mean = option.costs.cost
    seen = option.paid.weight > 0
    costs = option.paid.cost[seen]
    p_value = 1.0
    if seen.any() and not costs.any():
        p_value = 0.0
    elif option.costs.known and mean > 0:
        dearest = max(_DEARER * float(costs.max()), _UNSEEN * mean)
        left = (allowed - costs) / mean
        sample = PairedSample.of(left, option.paid.weight[seen], clusters[seen], worst=dearest / mean)
        p_value = sample.p_value_above(0.0)
    return Condition("budget", option.costs.cost * goal.requests_per_month, goal.budget_per_month, p_value)


def _latency(goal: Goal, option: _Tried, table: ScoredTable) -> Condition:
    """Condition that at least the share `goal.share` of answers comes within `goal.latency` seconds.

    Answers without a known latency do not count.
    """
    assert table.latencies is not None
    assert goal.latency is not None
    known = table.answered & ~np.isnan(table.latencies)
    weights = np.where(known, np.nan_to_num(option.played.weights), 0.0)
    share = weights.sum(axis=1)
    quick = np.where(known & (table.latencies <= goal.latency), weights, 0.0).sum(axis=1)
    values = np.divide(quick, share, out=np.zeros_like(share), where=share > 0) - goal.share
    sample = PairedSample.of(values, share, table.clusters)
    return Condition("latency", sample.mean + goal.share, goal.share, sample.p_value_above(0.0))


def _value(value: float, option: _Tried, table: ScoredTable, options: AnswerOptions) -> Condition:
    """Condition that the option's worth, `value` times quality less cost, is above that of today's model."""
    worth = worth_of(value, (option.pair, option.paid), option.quality, option.costs, table.clusters, options)
    return Condition("value", worth.gain, 0.0, worth.p_value)


def _worth(goal: Goal, option: _Tried) -> float:
    """Figure by which a goal prefers options: worth in USD, else minus the cost, else the quality."""
    quality = option.pair.mean(option.pair.score)
    if goal.value_per_right_answer:
        return goal.value_per_right_answer * quality - option.costs.cost
    if goal.quality is not None:
        return -option.costs.cost
    return quality
