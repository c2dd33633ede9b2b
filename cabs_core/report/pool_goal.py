"""The answer to a goal of one pool.

A goal is tested with the table, rules and replays of the pool's answer, by the statistics of
`evaluation.answer.goals`. This module chooses the routers that are tested, and puts the result into words.
"""

import numpy as np

from cabs_core.base.units import money, percentage
from cabs_core.data.pool_files.goals import BEST, Goal
from cabs_core.evaluation.answer import (
    Condition,
    Decisions,
    GoalFound,
    RouterCandidate,
    choose_router_for_goal,
    goal_answer,
)
from cabs_core.evaluation.answer.ladder import LOG
from cabs_core.report.names import label
from cabs_core.report.pool_answer import (
    GoalAnswer,
    Inputs,
    Judged,
    PoolAnswer,
    cross_fitted_router,
    router_candidates,
    today_in_words,
)
from cabs_core.report.rule_text import rule_text


def goal_of_pool(goal: Goal, inputs: Inputs, found: PoolAnswer) -> GoalAnswer:
    """Return the answer to a goal: the option that fulfils it or comes closest, its figures and a sentence.

    Args:
        inputs: data of the pool.
        found: the pool's answer, whose table and rules are tested.

    Raises:
        DataError: the goal names a model or asks for latencies that the table does not have, the table is of
            a log without propensities, or no option is left to compare.
    """
    tested = goal_answer(goal, found.scored, found.rules, _routers(goal, inputs, found), found.options)
    use = tested.use
    rho = None
    if tested.rung == "router":
        use, rho = tested.use
    sentence = _sentence(goal, tested, found)
    judged = Judged(
        said=f"Goal ({goal.text}): {sentence}",
        today=found.answer.today,
        quality=tested.quality,
        difference=tested.difference,
        low=tested.low,
        high=tested.high,
        usd_per_1000=tested.usd_per_1000,
        folds=found.folds,
    )
    return GoalAnswer(
        goal=goal.text,
        sentence=sentence,
        confirmed=tested.confirmed,
        rung=tested.rung,
        use=use,
        rho=rho,
        quality=tested.quality,
        usd_per_1000=tested.usd_per_1000,
        conditions=tested.conditions,
        judged=judged,
    )


def _routers(goal: Goal, inputs: Inputs, found: PoolAnswer) -> list[Decisions]:
    """Return the routers that a goal is tested with. Their `use` is (policy, rho).

    With several folds there is one router, which the goal chooses; see `cross_fitted_router`. With one fold
    the validation split has chosen the policy, which is tested at every rho that was replayed.
    """
    candidates = router_candidates(inputs)
    if not candidates:
        return []
    if len(inputs.splits) == 1:
        if inputs.chosen is None:
            policy = None
        else:
            policy = inputs.chosen[0]
        return [
            Decisions(f"{c.name} at rho {c.rho:g}", c.weights, use=(c.name, c.rho))
            for c in candidates
            if c.name == policy
        ]

    def choose(rows: np.ndarray, some: list[RouterCandidate]) -> int:
        """Return the index of the candidate that suits the goal best on these prompts."""
        return choose_router_for_goal(goal, found.scored, rows, some, found.options)

    router = cross_fitted_router(inputs, candidates, choose)
    if router is None:
        return []
    return [Decisions(router.name, router.weights, use=(router.name, router.rho))]


def _sentence(goal: Goal, tested: GoalFound, found: PoolAnswer) -> str:
    """Return a sentence that names the option that fulfils the goal, or comes closest, with its figures."""
    facts = [_in_words(condition, goal, found) for condition in tested.conditions]
    if goal.quality is None:
        facts.append(f"a mean score of {tested.quality:.3f}")
    price = f"{money(tested.usd_per_1000)} per 1,000 requests"
    figures = f"{', '.join(facts)}, for {price}"
    option = _option(tested)
    if tested.confirmed:
        return f"Use {option}: {figures}. That the goal is fulfilled is sure beyond noise."
    return f"No option is sure to fulfil the goal. Closest comes {option}: {figures}."


def _option(tested: GoalFound) -> str:
    """Return the words for the option that was found, as they stand in a sentence.

    Rules are written out. A router has its policy's name and the value of a right answer (1 / rho). The
    model that answers today is called so. Any other option is the name of a model.
    """
    if tested.rung == "rules":
        return f"rules ({rule_text(tested.use)})"
    if tested.rung == "router":
        policy, rho = tested.use
        if rho > 0:
            worth = f", a right answer valued at {money(1.0 / rho)}"
        else:
            worth = ""
        return f"the router {label(policy)}{worth}"
    if tested.rung == "keep":
        if tested.use == LOG:
            return "what the log does today"
        return f"{tested.use}, which answers today"
    return str(tested.use)


def _in_words(condition: Condition, goal: Goal, found: PoolAnswer) -> str:
    """Return the figure that was found for a condition and the figure that the goal asks for, in words.

    For the condition `value`, the found figure is compared with today's and stands alone.
    """
    value = condition.found
    target = condition.target
    scored = found.scored
    if condition.name == "budget":
        return f"{money(value)} a month ({money(target)} allowed)"
    if condition.name == "latency":
        in_time = f"{percentage(value, 1)} of the answers within {goal.latency:g} s"
        return f"{in_time} ({percentage(target)} asked for)"
    if condition.name == "value":
        compared = "less" if value < 0 else "more"
        today = today_in_words(found.answer)
        return f"worth {money(1000.0 * abs(value))} per 1,000 requests {compared} than {today}"
    if condition.name == "tolerance":
        compared = "lower" if value < 0 else "higher"
        today = today_in_words(found.answer)
        return f"a score {abs(value):.3f} {compared} than {today}'s ({-target:g} lower is tolerated)"
    if goal.of is None:
        return f"a mean score of {value:.3f} ({target:g} asked for)"
    is_best = goal.of == BEST and BEST not in scored.models
    if is_best:
        model = scored.models[scored.best]
    else:
        model = goal.of
    return f"{percentage(value, 1)} of {model}'s quality ({percentage(target)} asked for)"
