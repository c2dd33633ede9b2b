"""Which model or router fulfils a goal: chosen on validation, confirmed on test, and said in one sentence.

    goal = Goal(quality=0.95, of="gpt-4o")
    answer = answer_goal(goal, validation, test, ["ridge", "hier_mix"], rhos=[0, 100, 1000])
    print(answer.sentence)

A candidate is a single model, or a policy at one rho. On validation, the best candidate is taken that is
likely to be confirmed. Only that one is looked at on test, so its one-sided 95 % bounds hold as they are,
without a correction for the number of candidates. Where none is likely, the closest on test is named, with
bounds that are corrected, and nothing is promised. Bounds are those of `statistics.uncertainty`: of a mean
score, of a share within a latency, of a mean cost.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from cabs_core.algorithms.problem.gaps import real_values
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.errors import DataError, held_out_queries, listed, round_up
from cabs_core.base.statistics.costs import cost_error
from cabs_core.base.statistics.uncertainty import (
    LEVEL,
    Error,
    mean_error,
    seen_share,
    share_interval,
    times_needed,
)
from cabs_core.base.units import money, percentage
from cabs_core.data.pool_files.goals import BEST, Goal
from cabs_core.evaluation.replay.engine import replay

#: routers, nearest on validation first, that are looked at on test where none is likely to be confirmed
_NEAREST = 10
_Candidate = tuple[str | None, float | None, str]


@dataclass(frozen=True)
class Performance:
    """What a candidate did on a problem.

    Attributes:
        score, cost, quick: `[trials, n]` by query: scores, USD, and 1.0 where the answer came within the
            goal's latency (ones without such a goal).
        clusters: `[n]` of the queries, or None. seen: how much of them it was seen on (`metrics.seen_share`).
        dearest: USD of the dearest call of the models that it may ask, all splits together. calls: how many
            independent observations it is the dearest of.
    """

    score: np.ndarray
    cost: np.ndarray
    quick: np.ndarray
    clusters: np.ndarray | None
    seen: float
    dearest: float
    calls: float


@dataclass(frozen=True)
class Wish:
    """One condition of a goal on a candidate: the measured value, and how sure it is.

    Attributes:
        name: quality, budget or latency. ratio: relative to what is asked for, so that 1 just fulfils it (a
            budget: spent divided by allowed).
        sure: one-sided 95 % bound of `ratio`: the lower, of a budget the upper one; None: `unknown` says why.
        held: `sure` is on the right side of 1. more: prompts to collect for the table until it can be told,
            None where nobody can say, 0 where it is missed for sure.
    """

    name: str
    ratio: float
    sure: float | None
    held: bool
    more: int | None
    unknown: str = ""


@dataclass(frozen=True)
class GoalAnswer:
    """The answer to a goal.

    Attributes:
        goal: as it was asked. policy: of the router, None for a single model. rho: of the router. choice:
            what to call the answer: the model, or the policy.
        confirmed: every wish holds on test with 95 % confidence.
        score, cost: on test, cost in USD per 1,000 requests. against: the model compared with; its figures.
        queries, independent: of test, and how many independent observations these are. closest: none was
            likely to be confirmed, and this one is the closest.
        wishes: the conditions on test. sentence: all of it in words.
    """

    goal: str
    choice: str
    policy: str | None
    rho: float | None
    confirmed: bool
    score: float
    cost: float
    against: str
    against_score: float
    against_cost: float
    wishes: tuple[Wish, ...]
    queries: int
    independent: int
    closest: bool
    sentence: str


def answer_goal(
    goal: Goal,
    validation: ReplayProblem,
    test: ReplayProblem,
    policies: Sequence[str],
    *,
    rhos: Sequence[float],
    options: Mapping[str, Mapping[str, Any]] | None = None,
    trials: int = 3,
    seed: int = 0,
    label: Callable[[str], str] = str,
) -> GoalAnswer:
    """The best candidate for a goal.

    Args:
        policies: deployable ones. rhos: cost sensitivities to try; the goal's own is added.
        validation, test: of a table with gaps, qualities rest on real answers, or are bounds.
        options: {policy: tuned settings}. trials: orders that learning policies are averaged over.

    Raises:
        DataError: `of` is no model of the problem, or latencies are not known.
    """
    best_of_all = goal.of == BEST and BEST not in test.arms
    if goal.of is not None and goal.of not in test.arms and not best_of_all:
        raise DataError(f"goal: no model {goal.of!r:.100}; expected {BEST} or one of {listed(test.arms)}")
    if goal.latency is not None and (test.latencies is None or validation.latencies is None):
        raise DataError(
            "goal: the table has no latencies: map source.columns.latency, or leave latency out of the goal"
        )
    if goal.value_per_right_answer:
        rhos = [1 / goal.value_per_right_answer]
    candidates: list[_Candidate] = [(None, None, arm) for arm in test.arms]
    candidates += [(policy, float(rho), policy) for policy in dict.fromkeys(policies) for rho in rhos]
    trained = validation.arms[int(validation.offline_scores.mean(axis=0).argmax())]
    reference = trained if goal.of is None or best_of_all else goal.of
    dearest_calls = np.maximum(validation.dearest_calls, test.dearest_calls)
    known = validation.independent + test.priced

    def outcome(problem: ReplayProblem, candidate: _Candidate, reference: str = reference) -> Performance:
        policy, rho, name = candidate
        rows = np.arange(problem.n)[None]
        if policy is None or rho is None:
            arm = problem.arms.index(name)
            order, actions, dearest = rows, np.full((1, problem.n), arm), float(dearest_calls[arm])
        else:
            dearest = float(dearest_calls.max())
            played = replay(problem, policy, rho, trials, seed, options=(options or {}).get(policy))
            place = np.argsort(played.order, axis=1)
            order = rows.repeat(len(place), axis=0)
            actions = np.take_along_axis(played.actions, place, axis=1)
        quick = np.ones(order.shape)
        if goal.latency is not None and problem.latencies is not None:
            quick = (problem.latencies[order, actions] <= goal.latency).astype(float)
        cells = real_values(problem, 0.0, "low", problem.arms.index(reference))
        seen = seen_share(np.eye(problem.K)[actions].sum(axis=0), problem.observed)
        costs = cells.cost[order, actions]
        score = cells.score[order, actions]
        return Performance(score, costs, quick, problem.clusters, seen, dearest, known)

    base = outcome(validation, (None, None, reference))
    ratio = test.independent / validation.independent
    best, promising = None, -math.inf
    near: list[tuple[tuple[float, float], _Candidate]] = []
    for candidate in candidates:
        got = outcome(validation, candidate)
        gaps = _gaps(goal, got, base)
        # what test will ask for, and one standard error of validation: likely to be confirmed
        slack = min((_likely(gap, ratio) for gap in gaps), default=0.0)
        worth = _worth(goal, got)
        if slack >= 0 and worth > promising:
            best, promising = candidate, worth
        near.append((_closeness(gaps, worth), candidate))
    looked_at = (
        [best]
        if best
        else candidates[: test.K]
        + [c for _, c in sorted(near, key=lambda pair: pair[0], reverse=True) if c[0] is not None][:_NEAREST]
    )
    # "the best of all" is the best on the held-out queries as well
    bases = {reference: outcome(test, (None, None, reference))}
    if best_of_all:
        alone = {arm: outcome(test, (None, None, arm), arm) for arm in test.arms}
        first = max(alone, key=lambda arm: float(alone[arm].score.mean()))
        bases[first] = alone[first]

    def on_test(candidate: _Candidate) -> tuple[tuple[float, float], Performance, str, tuple[Wish, ...]]:
        """(closeness, outcome, the model compared with, wishes): by the base that asks for most."""
        tail = LEVEL / len(looked_at)
        entries = []
        for name, model in bases.items():
            got = outcome(test, candidate, name)
            gaps = _gaps(goal, got, model)
            wishes = tuple(_wish(gap, tail, test) for gap in gaps)
            entries.append((_closeness(gaps, _worth(goal, got)), got, name, wishes))
        return min(entries, key=lambda entry: (all(w.held for w in entry[3]), entry[0]))

    tested = [(on_test(candidate), candidate) for candidate in looked_at]
    (_, got, against, wishes), (policy, rho, name) = max(tested, key=lambda pair: pair[0][0])
    base = bases[against]
    figures = [float(a.mean()) for a in (got.score, 1000 * got.cost, base.score, 1000 * base.cost)]
    draft = GoalAnswer(
        goal.text,
        name,
        policy,
        rho,
        best is not None and all(w.held for w in wishes),
        figures[0],
        figures[1],
        against,
        figures[2],
        figures[3],
        wishes,
        test.n,
        test.independent,
        best is None,
        "",
    )
    choice_label = name if policy is None else label(policy)
    return replace(draft, sentence=_sentence(goal, draft, choice_label))


def _worth(goal: Goal, got: Performance) -> float:
    if goal.value_per_right_answer:
        return float(got.score.mean() - got.cost.mean() / goal.value_per_right_answer)
    return -float(got.cost.mean()) if goal.quality is not None else float(got.score.mean())


class _Gap(NamedTuple):
    """By how much a wish is fulfilled: the mean over trials and queries is 0 where it just holds.

    side: 1 where more than the target is good, else -1. error: of the mean. quick: of a share of answers in
    time, the error of that share, whose bound is another one.
    """

    name: str
    mean: float
    target: float
    side: int
    error: Error
    quick: Error | None = None


def _gaps(goal: Goal, got: Performance, base: Performance) -> list[_Gap]:
    gaps = []
    if goal.quality is not None:
        target = goal.quality * (base.score if goal.of else np.ones_like(base.score))
        by = got.score - target
        gaps.append(_Gap("quality", float(by.mean()), float(target.mean()), 1, _error(by, got)))
    if goal.budget_per_month is not None and goal.requests_per_month is not None:
        allowed = goal.budget_per_month / goal.requests_per_month
        by = allowed - got.cost
        error, paid = replace(_error(by, got), unit=0.0), got.cost.mean(axis=0)
        spent = -float(paid.mean())
        error = cost_error(error, paid, got.clusters, dearest=got.dearest, calls=got.calls, mean=spent)
        gaps.append(_Gap("budget", float(by.mean()), allowed, -1, error))
    if goal.latency is not None:
        by = got.quick - goal.share
        error, quick = _error(by, got), _error(got.quick, got)
        gaps.append(_Gap("latency", float(by.mean()), goal.share, 1, error, quick))
    return gaps


def _closeness(gaps: Sequence[_Gap], worth: float) -> tuple[float, float]:
    """(how much the most missed wish lacks, at most 0, of its target; worth): the larger, the closer."""
    return min([0.0, *(gap.mean / max(gap.target, 1e-300) for gap in gaps)]), worth


def _error(values: np.ndarray, got: Performance) -> Error:
    """Error of the mean of `[trials, n]` values of a wish over trials and clusters of queries."""
    error = mean_error(values.mean(axis=0), clusters=got.clusters, trials=values.mean(axis=1))
    return replace(error, clusters=error.clusters * got.seen)


def _likely(gap: _Gap, ratio: float) -> float:
    """What is left of a gap on validation after one standard error and the bound that test will ask for."""
    if math.isnan(gap.error.se):
        return -math.inf
    return gap.mean - gap.error.se - gap.error.after(ratio).reach("low", LEVEL)


def _wish(gap: _Gap, tail: float, test: ReplayProblem) -> Wish:
    name, mean, _, side, error, quick = gap
    target = gap.target if gap.target > 0 else 1e-300
    times = times_needed(mean, error)
    more = (
        None
        if times is None or times > 1e4
        else max(math.ceil((times - 1) * test.asked * test.independent / test.n), 1)
    )
    low, high = mean - error.reach("low", tail), mean + error.reach("high", tail)
    if quick is not None:
        low, high = (end - target for end in share_interval(mean + target, quick, tail))
    if high < 0:
        more = 0
    sure = None if math.isnan(low) else 1 + side * low / target
    return Wish(name, 1 + side * mean / target, sure, low >= 0, more, error.why)


def _sentence(goal: Goal, a: GoalAnswer, choice_label: str) -> str:
    """The answer in words, for somebody who knows models and money."""
    queries = held_out_queries(a.queries, a.independent)
    parts = [_in_words(goal, a, wish) for wish in a.wishes]
    price = (
        f"{percentage(a.cost / a.against_cost)} of its money"
        if a.against_cost > 0
        else f"{money(a.cost)} per 1,000 requests"
    )
    if not goal.of or a.choice == a.against:
        price = f"{money(a.cost)} per 1,000 requests"
    quality = (
        ""
        if goal.quality is not None
        else f"mean score {a.score:.3f} ({a.against} alone: {a.against_score:.3f})"
    )
    figures = ", ".join(filter(None, [" and ".join(parts), quality])) + f" for {price}"
    if a.choice == a.against and a.confirmed and [w.name for w in a.wishes] == ["quality"]:
        aim = f"{percentage(goal.quality or 0.0, None)} of {choice_label}'s quality"
        return f"Nothing cheaper is sure to reach {aim} on {queries}: keep {choice_label}, {price}."
    what = f"keep {choice_label}" if a.policy is None else f"deploy {choice_label}"
    if a.policy is not None and a.rho:
        what += f" with a right answer valued at {money(1 / a.rho)}"
    if a.confirmed:
        return f"{figures}: {what} (on {queries})."
    failed = [w for w in a.wishes if not w.held] or list(a.wishes)
    more = [w.more for w in failed]
    advice = "nothing in the table comes closer"
    if unknown := [w.unknown for w in failed if w.unknown]:
        advice = unknown[0]
    elif all(m is not None for m in more):
        advice = f"about {round_up(max(m or 0 for m in more)):,} more prompts in the table would tell"
    if missed := [w.name for w in failed if w.more == 0]:
        first = "What comes closest" if a.closest else "What was most promising"
        named = " and the ".join(missed)
        return f"{first} misses the {named} asked for: {choice_label}, {figures} on {queries}."
    named = " and the ".join(w.name for w in failed)
    closest = "Closest comes" if a.closest else "Most promising was"
    return (
        f"It cannot be said that the {named} asked for is kept. {closest} {choice_label}: {figures} on "
        f"{queries}; {advice}."
    )


def _in_words(goal: Goal, a: GoalAnswer, wish: Wish) -> str:
    """What was found of a wish, and its bound."""
    if wish.name == "budget":
        budget = goal.budget_per_month or 0.0
        at_most = (
            "nobody knows how much at most" if wish.sure is None else f"at most {money(budget * wish.sure)}"
        )
        return f"{money(budget * wish.ratio)} a month ({at_most})"
    scale = (goal.quality if wish.name == "quality" else goal.share) or 0.0
    reached, sure = scale * wish.ratio, scale * max(wish.sure or 0.0, 0.0)
    at_least = f"(at least {percentage(sure, 1)})"
    if wish.name == "latency":
        return f"{percentage(reached, 1)} of the answers within {goal.latency:g} s {at_least}"
    if goal.of:
        return f"{percentage(reached, 1)} of {a.against}'s quality {at_least}"
    return f"a mean score of {reached:.3f} (at least {sure:.3f})"
