"""Which model or router fulfils a goal: chosen on validation, confirmed on test, and said in one sentence.

    answer = answer_goal(Goal(quality=0.95, of="gpt-4o"), validation, test, ["ridge", "hier_mix"], rhos=[0, 100, 1000])
    print(answer.sentence)

A candidate is a single model, or a policy at one rho. On validation, the best candidate is taken that is likely to be
confirmed. Only that one is looked at on test, so its one-sided 95 % bounds hold as they are, without a correction for
the number of candidates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from scipy.special import stdtrit

from cabs_core.artifacts import Chain
from cabs_core.catalog import NO_ROUTERS, policy_label
from cabs_core.errors import DataError, listed
from cabs_core.inputs import tuned_options
from cabs_core.metrics import TwoWayError, standard_error, two_way_error
from cabs_core.pool_files.goals import Goal
from cabs_core.problem.gaps import real_values
from cabs_core.problem.replay_problem import ReplayProblem
from cabs_core.replay.engine import replay
from cabs_core.router.build import deployable

_SURE = 0.95
_POWER = 0.8
_Z, _POWER_Z = NormalDist().inv_cdf(_SURE), NormalDist().inv_cdf(_POWER)


#: orders that learning policies are averaged over
_TRIALS = 5


@dataclass(frozen=True)
class Outcome:
    """What a candidate did on a problem.

    Attributes:
        score, cost, quick: `[trials, n]` by query: scores, USD, and 1.0 where the answer came within the goal's latency
            (ones without such a goal).
    """

    score: np.ndarray
    cost: np.ndarray
    quick: np.ndarray


@dataclass(frozen=True)
class Wish:
    """One condition of a goal on a candidate: the measured value, and how sure it is.

    Attributes:
        name: quality, budget or latency. found: relative to what is asked for, so that 1 just fulfils it (a budget: spent
            divided by allowed).
        sure: one-sided 95 % bound of `found`: the lower one, of a budget the upper one.
        held: `sure` is on the right side of 1. needed: queries in the table that would show it, None where none would.
    """

    name: str
    found: float
    sure: float
    held: bool
    needed: int | None


@dataclass(frozen=True)
class Answer:
    """The answer to a goal.

    Attributes:
        goal: as it was asked. policy: of the router, None for a single model. rho: of the router. choice: what to call the
            answer: the model, or the policy.
        confirmed: every wish holds on test with 95 % confidence.
        score, cost: on test, cost in USD per 1,000 requests. against: the model that it is compared with; its figures.
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
    sentence: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def answer_for(chain: Chain, goal: Goal, *, anyway: bool = False) -> Answer:
    """Which of the pool's models and routers fulfils a goal: chosen on validation, confirmed on test.

    Args:
        anyway: answer although the artifacts are of older data, or of data that failed a check since.

    Raises:
        ProvenanceError: the pool's chain has not been run, or not on the data at hand. DataError: see `answer_goal`.
    """
    targets = {name: chain.stage(name) for name in ("replay_problem", "tuning")}
    if not anyway:
        chain.require_current(targets.values())
    inputs = {name: chain.verified(target) for name, target in targets.items()}
    record = chain.store.record(chain.stage("outcomes").parts)
    pool = chain.pool
    return answer_goal(
        goal,
        ReplayProblem.load(inputs["replay_problem"] / "validation"),
        ReplayProblem.load(inputs["replay_problem"] / "test"),
        [p for p in pool.policies if deployable(p) and p not in NO_ROUTERS],
        rhos=pool.replay.rhos,
        options=tuned_options(inputs),
        trials=min(pool.replay.trials, _TRIALS),
        seed=pool.replay.order_seed,
        table_queries=record.summary.get("queries") if record else None,
        label=policy_label,
    )


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
    table_queries: int | None = None,
    label: Callable[[str], str] = str,
) -> Answer:
    """The best candidate for a goal.

    Args:
        policies: deployable ones. rhos: cost sensitivities that they are tried at; the goal's own value is added.
        validation, test: of a table with gaps, qualities rest on real answers, and where nothing can be known they are bounds.
        options: {policy: tuned settings}. trials: orders that learning policies are averaged over.
        table_queries: queries in the whole table, to say how many would do; None: those of the two problems.

    Raises:
        DataError: `of` is no model of the problem, or latencies are not known.
    """
    if goal.of is not None and goal.of not in test.arms:
        raise DataError(f"goal: no model {goal.of!r:.100}; the table has {listed(test.arms)}")
    if goal.latency is not None and (test.latencies is None or validation.latencies is None):
        raise DataError(
            "goal: the table has no latencies: map source.columns.latency, or leave latency out of the goal"
        )
    if goal.value_per_right_answer:
        rhos = [1 / goal.value_per_right_answer]
    candidates: list[tuple[str | None, float | None, str]] = [(None, None, arm) for arm in test.arms]
    candidates += [(policy, float(rho), policy) for policy in dict.fromkeys(policies) for rho in rhos]

    def outcome(problem: ReplayProblem, candidate: tuple[str | None, float | None, str]) -> Outcome:
        policy, rho, name = candidate
        rows = np.arange(problem.n)[None]
        if policy is None or rho is None:
            order, actions = rows, np.full((1, problem.n), problem.arms.index(name))
        else:
            played = replay(problem, policy, rho, trials, seed, options=(options or {}).get(policy))
            place = np.argsort(played.order, axis=1)
            order = rows.repeat(len(place), axis=0)
            actions = np.take_along_axis(played.actions, place, axis=1)
        quick = np.ones(order.shape)
        if goal.latency is not None and problem.latencies is not None:
            quick = (problem.latencies[order, actions] <= goal.latency).astype(float)
        cells = real_values(problem, 0.0, "low", problem.arms.index(reference))
        return Outcome(cells.score[order, actions], cells.cost[order, actions], quick)

    reference = goal.of or validation.arms[int(validation.offline_scores.mean(axis=0).argmax())]
    outcomes = [(c, outcome(validation, c)) for c in candidates]
    base = outcome(validation, (None, None, reference))
    ratio = math.sqrt(validation.n / test.n)
    best, promising = None, -math.inf
    nearest, distance = candidates[0], -math.inf
    for candidate, got in outcomes:
        gaps = [(gap.mean(), _error(gap).se) for _, gap, _ in _gaps(goal, got, base)]
        # what test will ask for, and one standard error of validation: likely to be confirmed
        slack = min((mean - (1 + _Z * ratio) * _or_infinity(se) for mean, se in gaps), default=0.0)
        worth = _worth(goal, got)
        if slack >= 0 and worth > promising:
            best, promising = candidate, worth
        if slack > distance:
            nearest, distance = candidate, slack
    chosen = best or nearest
    total = table_queries or validation.n + test.n
    got, base = outcome(test, chosen), outcome(test, (None, None, reference))
    wishes = tuple(_wish(name, gap, target, total) for name, gap, target in _gaps(goal, got, base))
    policy, rho, name = chosen
    figures = [float(a.mean()) for a in (got.score, 1000 * got.cost, base.score, 1000 * base.cost)]
    confirmed = all(w.held for w in wishes)
    choice_label = name if policy is None else label(policy)
    draft = Answer(
        goal.text,
        name,
        policy,
        rho,
        confirmed,
        figures[0],
        figures[1],
        reference,
        figures[2],
        figures[3],
        wishes,
        "",
    )
    return Answer(**{**vars(draft), "sentence": _sentence(goal, draft, choice_label, test.n)})


def _worth(goal: Goal, got: Outcome) -> float:
    if goal.value_per_right_answer:
        return float(got.score.mean() - got.cost.mean() / goal.value_per_right_answer)
    return -float(got.cost.mean()) if goal.quality is not None else float(got.score.mean())


def _gaps(goal: Goal, got: Outcome, base: Outcome) -> list[tuple[str, np.ndarray, float]]:
    """(name, `[trials, n]` by how much a wish is fulfilled, its target): the mean is 0 where the wish just holds."""
    gaps = []
    if goal.quality is not None:
        target = goal.quality * (base.score if goal.of else np.ones_like(base.score))
        gaps.append(("quality", got.score - target, float(target.mean())))
    if goal.budget_per_month is not None and goal.requests_per_month is not None:
        allowed = goal.budget_per_month / goal.requests_per_month
        gaps.append(("budget", allowed - got.cost, allowed))
    if goal.latency is not None:
        gaps.append(("latency", got.quick - goal.share, goal.share))
    return gaps


def _error(gap: np.ndarray) -> TwoWayError:
    """Error of the mean over trials and queries together; never 0 only because few queries were seen."""
    queries = gap.mean(axis=0)
    n = len(queries)
    over_queries = float(standard_error(queries))
    spread = float(np.abs(gap).max(initial=0.0))
    # no difference on n queries leaves room for one of size `spread` in 1 of n
    over_queries = max(over_queries, spread / n / 2) if n > 1 else math.nan
    trials = float(standard_error(gap.mean(axis=1))) if len(gap) > 1 else 0.0
    return two_way_error(trials, over_queries, max(len(gap), 2), n)


def _or_infinity(se: float) -> float:
    return math.inf if math.isnan(se) else se


def _wish(name: str, gap: np.ndarray, target: float, total: int) -> Wish:
    error, mean = _error(gap), float(gap.mean())
    reach = math.inf if math.isnan(error.se) else float(stdtrit(min(error.df, 1e9), _SURE)) * error.se
    sign = -1 if name == "budget" else 1
    target = target if target > 0 else 1e-300
    needed = None
    if mean > 0 and math.isfinite(reach):
        needed = math.ceil(total * ((_Z + _POWER_Z) * error.se / mean) ** 2)
    return Wish(name, 1 + sign * mean / target, 1 + sign * (mean - reach) / target, mean - reach >= 0, needed)


def _usd(value: float) -> str:
    return f"${value:,.2f}" if value >= 1 else f"${value:.3g}"


def _sentence(goal: Goal, a: Answer, choice_label: str, queries: int) -> str:
    """The answer in words, for somebody who knows models and money."""
    parts = []
    for wish in a.wishes:
        if wish.name == "quality" and goal.quality is not None:
            of = f"{a.against}'s quality" if goal.of else "mean score"
            reached, sure = (100 * goal.quality * x for x in (wish.found, wish.sure))
            parts.append(
                f"{reached:.1f} % of {of} (at least {sure:.1f} %)"
                if goal.of
                else f"a mean score of {reached / 100:.3f} (at least {sure / 100:.3f})"
            )
        elif wish.name == "budget" and goal.budget_per_month is not None:
            parts.append(
                f"{_usd(goal.budget_per_month * wish.found)} a month (at most {_usd(goal.budget_per_month * wish.sure)})"
            )
        elif wish.name == "latency":
            reached, sure = (100 * goal.share * x for x in (wish.found, wish.sure))
            parts.append(f"{reached:.1f} % of the answers within {goal.latency:g} s (at least {sure:.1f} %)")
    money = (
        f"{100 * a.cost / a.against_cost:.0f} % of its money"
        if a.against_cost > 0
        else f"{_usd(a.cost)} per 1,000 requests"
    )
    if not goal.of or a.choice == a.against:
        money = f"{_usd(a.cost)} per 1,000 requests"
    quality = (
        ""
        if goal.quality is not None
        else f"mean score {a.score:.3f} ({a.against} alone: {a.against_score:.3f})"
    )
    figures = ", ".join(filter(None, [" and ".join(parts), quality])) + f" for {money}"
    if a.choice == a.against and a.confirmed and [w.name for w in a.wishes] == ["quality"]:
        wanted = f"{100 * (goal.quality or 0):g} % of {choice_label}'s quality"
        return f"Nothing cheaper is sure to reach {wanted} on {queries:,} held-out queries: keep {choice_label}, {money}."
    what = f"keep {choice_label}" if a.policy is None else f"deploy {choice_label}"
    if a.policy is not None and a.rho:
        what += f" with a right answer valued at {_usd(1 / a.rho)}"
    if a.confirmed:
        return f"{figures}: {what} (on {queries:,} held-out queries)."
    failed = [w for w in a.wishes if not w.held]
    more = [w.needed for w in failed]
    advice = "nothing in the table comes closer"
    if all(m is not None for m in more):
        advice = f"about {_round_up(max(m or 0 for m in more)):,} queries in the table would tell"
    return (
        f"It cannot be said that the {' and the '.join(w.name for w in failed)} asked for is kept. Closest comes {choice_label}: "
        f"{figures} on {queries:,} held-out queries; {advice}."
    )


def _round_up(value: int) -> int:
    step: int = 10 ** max(len(str(value)) - 2, 0)
    return -(-value // step) * step
