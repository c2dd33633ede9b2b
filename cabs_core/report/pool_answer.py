"""The answer for one pool: what may be used instead of today's model.

The statistics are those of `evaluation.answer`. This module makes the scored table, the rules and the router
of a pool from its outcomes and replays, and asks for the answer.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd

from cabs_core.algorithms.predictors.clusters import kmeans_centers, nearest_center, unit_rows
from cabs_core.base.catalog.roles import NO_ROUTERS
from cabs_core.base.catalog.sources import sources
from cabs_core.base.errors import DataError, ResultError, listed
from cabs_core.data.outcomes import Outcomes
from cabs_core.data.outcomes.splits import FOLDS, make_folds
from cabs_core.data.pool_files import ModelPool
from cabs_core.data.pool_files.pool import TODAY_LOG, TODAY_NONE
from cabs_core.data.pool_files.sections import Split
from cabs_core.evaluation.answer import (
    Answer,
    AnswerOptions,
    Condition,
    Decisions,
    LoggedTable,
    Newest,
    Note,
    RouterCandidate,
    ScoredTable,
    Unlike,
    answer,
    choose_router,
    cross_fitted_weights,
    fit_rules,
    near_neighbours,
    newest_fifth,
    play_shares,
    unlike_prompts,
)
from cabs_core.evaluation.answer.ladder import LOG
from cabs_core.evaluation.ope.data import read_outcomes
from cabs_core.report.evidence import Evidence
from cabs_core.report.rule_text import CLUSTER_NAME

#: requests a month for which savings are given if the pool file has no number
REQUESTS = 100_000
#: most clusters of a table without tasks, and least mean number of prompts of a cluster
CLUSTERS = 12
LEAST_IN_CLUSTER = 50
#: names of the two kinds of groups that rules are made for
TASK = "task"
CLUSTER = "cluster"
#: most prompts of a table whose prompts are compared with each other: it takes time as their number squared
MOST_COMPARED = 20_000
#: fewest prompts with a label of people by which a judge is corrected
LEAST_LABELLED = 10


#: fields of a rung in `verdict.json`, whose names stay
_PUBLIC_FIELDS = (
    "rung",
    "use",
    "quality",
    "difference",
    "low",
    "high",
    "usd_per_1000",
    "saving_per_month",
    "word",
)


@dataclass(frozen=True)
class Inputs:
    """Data that an answer is made from.

    Attributes:
        pool: settings of the pool.
        table: outcomes of the n queries.
        splits: one array `[n]` for each fold, with "train", "validation" or "test".
        vectors: `[n, e]` embeddings of the prompts. If they are None, a table without tasks has no rules.
        evidence: the replays. If they are None, the answer of a table has no rung "router".
        held_out_plays: plays of every policy on the test queries of each fold of a log, with the columns
            `COLUMNS` of `replay.held_out`. None for a table, or if they are not at hand.
        chosen: (policy, rho) that the validation split chose. The router of a table with one fold is this
            one.
        validation_plays: plays of every policy on the validation queries of each fold, see
            `replay.held_out`. None for one fold. If they are None, an answer of several folds has no rung
            "router".
        deployable: names of the policies that can be exported as a router. If empty, the answer has no rung
            "router".
        people: `[n, K]` scores that people gave some answers, NaN for the others; None if no judge gave the
            scores.
    """

    pool: ModelPool
    table: Outcomes
    splits: list[np.ndarray]
    vectors: np.ndarray | None = None
    evidence: Evidence | None = None
    held_out_plays: pd.DataFrame | None = None
    chosen: tuple[str, float] | None = None
    validation_plays: pd.DataFrame | None = None
    deployable: tuple[str, ...] = ()
    people: np.ndarray | None = None


@dataclass(frozen=True)
class Judged:
    """An option with the figures that the card of an exported router shows.

    Attributes:
        said: reason why the option is exported: the goal with its answer, or the report's recommendation.
        today: name of the model, or "log", that the option is compared with.
        quality: mean score of the option.
        difference: its mean score minus that of `today`.
        low, high: ends of the 95 % interval of the difference.
        usd_per_1000: USD of 1,000 requests.
        folds: number of folds of the pool's split, in which the router was judged; 1 if it was judged on the
            test split.
    """

    said: str
    today: str
    quality: float
    difference: float
    low: float
    high: float
    usd_per_1000: float
    folds: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values for JSON, with None for a figure that is not known."""
        return _known(asdict(self))


@dataclass(frozen=True)
class GoalAnswer:
    """The option that a goal leads to.

    Attributes:
        goal: the goal as it is written on a command line.
        sentence: the answer in words.
        confirmed: True if the option fulfils the goal beyond noise.
        rung: keep, switch, rules or router; empty if the goal could not be tested.
        use: a model, "log" for the choices that a log holds, {task: model}, or a policy; None if the goal
            could not be tested.
        rho: cost sensitivity of the router; None for any other rung.
        quality: mean score of the option; None if the goal could not be tested.
        usd_per_1000: USD of 1,000 requests to the option; None if the goal could not be tested.
        conditions: the conditions of the goal, each with the figure that was found.
        judged: the option with the figures of a router's card; None if the goal could not be tested.
    """

    goal: str
    sentence: str
    confirmed: bool = False
    rung: str = ""
    use: Any = None
    rho: float | None = None
    quality: float | None = None
    usd_per_1000: float | None = None
    conditions: tuple[Condition, ...] = ()
    judged: Judged | None = None

    @property
    def policy(self) -> str | None:
        """Name of the router's policy; None for any other rung."""
        if self.rung != "router":
            return None
        policy: str | None = self.use
        return policy

    @property
    def text(self) -> str:
        """The goal and its answer in one line, for commands and pages other than the first screen."""
        return f"Goal ({self.goal}): {self.sentence}"


@dataclass(frozen=True)
class PoolAnswer:
    """The answer for a pool, with the data that it was made from.

    Attributes:
        answer: the rungs with their words and the recommendation.
        scored: the table of scores and costs that the answer was made from.
        outcomes: the outcome table of the pool, which has the prompts.
        options: tolerance, requests a month and level of the answer.
        today_is_guessed: True if nobody named today's model.
        requests_are_guessed: True if nobody said how many requests a month there are.
        rules: decisions of the rules; None if the answer has no rules.
        groups: `[n]` task or cluster of each prompt; None if the answer has no rules.
        by: "task" or "cluster", the kind of `groups`.
        guessed_right: share of the prompts whose own task is the one with the nearest centre, if centres of
            tasks are made from the other folds. None for clusters, without rules, or without embeddings.
        router: decisions of the router; None if the answer has no router.
        policy: name of the router's policy; None if the answer has no router.
        rho: cost sensitivity of the router; None if the answer has no router.
        folds: number of folds of the pool's split, in which routers are judged. Rules are judged in `FOLDS`
            folds if this number is 1.
        newest: an option on the newest prompts and on the older ones. None if the table has no times, if
            there is no rung but "keep", if the option was judged on no prompt, if too few prompts are
            independent, or if too many have the same time.
        unlike: {rung: how the rung does on prompts without a near neighbour among the prompts that it was
            made from}. Empty without embeddings, and for tables of more than `MOST_COMPARED` prompts.
        centers: {cluster: the prompt in its middle}; empty if `by` is "task".
        labelled: number of prompts of which people labelled an answer.
        goal: the answer to the goal; None if there is no goal.
    """

    answer: Answer
    scored: ScoredTable
    outcomes: Outcomes
    options: AnswerOptions
    today_is_guessed: bool
    requests_are_guessed: bool
    rules: Decisions | None = None
    groups: np.ndarray | None = None
    by: str = TASK
    guessed_right: float | None = None
    router: Decisions | None = None
    policy: str | None = None
    rho: float | None = None
    folds: int = 1
    newest: Newest | None = None
    unlike: Mapping[str, Unlike] = field(default_factory=dict)
    centers: Mapping[str, str] = field(default_factory=dict)
    labelled: int = 0
    goal: GoalAnswer | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain values, for the field `answer` of `verdict.json`."""
        content = self.answer.to_dict()
        content["rungs"] = [{name: rung[name] for name in _PUBLIC_FIELDS} for rung in content["rungs"]]
        content["details"] = {
            "today_is_guessed": self.today_is_guessed,
            "requests_per_month": self.options.requests_per_month,
            "tolerance": self.options.tolerance,
            "router": None if self.policy is None else {"policy": self.policy, "rho": self.rho},
            "newest": None if self.newest is None else asdict(self.newest),
            "unlike": {rung: _known(asdict(unlike)) for rung, unlike in self.unlike.items()},
            "labelled_prompts": self.labelled,
            "rungs": self.answer.to_dict()["rungs"],
        }
        return content

    def decisions(self, rung: str) -> np.ndarray:
        """Return `[n, K]` probabilities with which a rung plays the models; NaN where it is not judged.

        For "keep", and for a rung that the answer does not have, they are those of today's choices.
        """
        found = self.answer.rung(rung)
        if rung == "rules" and self.rules is not None:
            return self.rules.weights
        if rung == "router" and self.router is not None:
            return self.router.weights
        if rung == "switch" and found is not None:
            return self.scored.single(self.scored.models.index(found.use))
        return self.scored.baseline()


def _known(figures: dict[str, Any]) -> dict[str, Any]:
    """Return the figures with None in place of NaN, which JSON does not have."""
    return {name: None if value != value else value for name, value in figures.items()}


def answer_of_pool(inputs: Inputs) -> PoolAnswer:
    """Make the answer for a pool, without the answer to its goal.

    Raises:
        DataError: `today` names a model that the table does not have.
        ResultError: the replays are of other prompts than the table's.
    """
    pool = inputs.pool
    scored = scored_table(pool, inputs.table, inputs.vectors, inputs.people)
    guessed = pool.today is None and scored.today is not None
    requests = pool.monthly_requests
    options = AnswerOptions(tolerance=pool.tolerance, requests_per_month=float(requests or REQUESTS))
    folds = _rule_folds(inputs)
    rules = None
    groups = None
    by = TASK
    right = None
    named = None if folds is None else _groups(inputs)
    if folds is not None and named is not None:
        groups, by = named
        if by == CLUSTER:
            scored = replace(scored, tasks=groups)
        rules = fit_rules(scored, groups, folds, options)
        if pool.logged:  # what the exported rules cost on the log was looked at when they were made
            rules = replace(rules, exported=None)
        if by == TASK:
            right = _guessed_right(inputs, groups, folds)
        else:
            right = None
    router, policy, rho = _router(inputs, scored, options)
    routers = () if router is None else (router,)
    found = answer(scored, rules, routers, options)
    judged = PoolAnswer(
        answer=found,
        scored=scored,
        outcomes=inputs.table,
        options=options,
        today_is_guessed=guessed,
        requests_are_guessed=requests is None,
        rules=rules,
        groups=groups,
        by=by,
        guessed_right=right,
        router=router,
        policy=policy,
        rho=rho,
        folds=len(inputs.splits),
        unlike=_unlike(inputs, scored, rules, folds, router, options),
        centers=_central_prompts(inputs, groups) if by == CLUSTER else {},
        labelled=labelled_prompts(inputs.people),
    )
    return _with_newest(judged)


def _unlike(
    inputs: Inputs,
    scored: ScoredTable,
    rules: Decisions | None,
    folds: np.ndarray | None,
    router: Decisions | None,
    options: AnswerOptions,
) -> dict[str, Unlike]:
    """Judge rules and router on prompts that are unlike the prompts that they were made from.

    Args:
        folds: `[n]` number of the fold in which the rules are judged on each prompt. The folds of the router
            are those of the splits.

    Returns:
        {rung: its figures on such prompts}; empty without embeddings, and for tables of more than
        `MOST_COMPARED` prompts.
    """
    if inputs.vectors is None or len(inputs.table) > MOST_COMPARED:
        return {}
    near = None
    found = {}
    if rules is not None and folds is not None:
        near = near_neighbours(inputs.vectors, folds)
        found["rules"] = unlike_prompts(scored, rules, near, options)
    if router is not None:
        if len(inputs.splits) == 1:
            near = near_neighbours(inputs.vectors, (inputs.splits[0] == "test").astype(np.int64))
        elif near is None:
            near = near_neighbours(inputs.vectors, fold_numbers(inputs.splits))
        found["router"] = unlike_prompts(scored, router, near, options)
    return found


def _central_prompts(inputs: Inputs, groups: np.ndarray | None) -> dict[str, str]:
    """Return {cluster: the prompt nearest to its middle}."""
    if groups is None or inputs.vectors is None:
        return {}
    points = unit_rows(np.asarray(inputs.vectors, dtype=np.float64))
    found = {}
    for group in np.unique(groups).tolist():
        rows = np.flatnonzero(groups == group)
        nearest = rows[int((points[rows] @ points[rows].mean(axis=0)).argmax())]
        found[group] = inputs.table.prompts[nearest]
    return found


def _with_newest(found: PoolAnswer) -> PoolAnswer:
    """Add a comparison of the newest fifth of the prompts with the rest, and a note that words it.

    Compared is the recommended option. If nothing or "keep" is recommended, it is the first other rung. The
    answer is returned unchanged if the table has no times, if there is no rung but "keep", or if the compared
    option was judged on no prompt.
    """
    times = found.outcomes.times
    others = [rung for rung in found.answer.rungs if rung.rung != "keep"]
    if times is None or not others:
        return found
    rung = next((rung for rung in others if rung.rung == found.answer.recommended), others[0])
    if not rung.prompts:  # a log that cannot tell of the option says so once
        return found
    played = Decisions(str(rung.use), found.decisions(rung.rung))
    newest = newest_fifth(found.scored, times, rung.rung, played)
    note = Note("newest", _newest_text(newest, rung.rung, today_in_words(found.answer)))
    noted = replace(found.answer, notes=(*found.answer.notes, note))
    return replace(found, answer=noted, newest=newest)


def today_in_words(answer: Answer) -> str:
    """Return the name of today's model, or words for the choices that a log holds, for a sentence.

    If it is not known what is used today, `answer.today` is the best model, and its name is returned.
    """
    if answer.today == LOG:
        return "the log's choices"
    return answer.today


def _newest_text(newest: Newest | None, rung: str, today: str) -> str:
    """Return a sentence that says if the newest prompts give the same answer as the older ones.

    Args:
        newest: the comparison; None if it could not be made.
        rung: name of the option that was compared.
        today: name of today's model, or words for the log's choices.
    """
    if newest is None:
        return (
            "Whether the newest fifth of the prompts gives the same answer as the rest cannot be told: too "
            "few independent prompts, or too many of the same time."
        )
    since = datetime.fromtimestamp(newest.since, UTC).strftime("%d %B %Y")
    figures = (
        f"{rung} beside {today} is {100 * newest.difference:+.1f} points on the {newest.prompts:,} prompts "
        f"since {since} and {100 * newest.older_difference:+.1f} points on the {newest.older_prompts:,} "
        f"before (change {100 * newest.change:+.1f} points, 96 % interval {100 * newest.low:+.1f} to "
        f"{100 * newest.high:+.1f})"
    )
    if newest.differs:
        return f"The newest fifth of the prompts gives another answer than the rest: {figures}."
    return f"The newest fifth of the prompts gives no other answer than the rest, beyond noise: {figures}."


def scored_table(
    pool: ModelPool,
    table: Outcomes,
    vectors: np.ndarray | None = None,
    people: np.ndarray | None = None,
) -> ScoredTable:
    """Make the table of scores and costs that an answer is made from; a `LoggedTable` for a log.

    In a table without a log, scores of answers that were not given are NaN, although the outcome table may
    hold predictions of them.

    Args:
        vectors: `[n, e]` embeddings, which sharpen the estimates of a log; None if they are not at hand.
        people: `[n, K]` scores by people, NaN where there is none. They are left out for a log, and if they
            are of fewer than `LEAST_LABELLED` prompts.

    Raises:
        DataError: `today` names a model that the table does not have.
    """
    if pool.logged:
        return _logged_table(pool, table, vectors)
    scores = table.scores
    if table.answered is not None:
        scores = np.where(table.answered > 0, scores, np.nan)
    return ScoredTable(
        models=tuple(table.arms),
        scores=scores,
        costs=table.costs,
        tasks=table.tasks,
        clusters=table.clusters,
        today=_today(pool, table),
        latencies=table.latencies,
        people=people if labelled_prompts(people) >= LEAST_LABELLED else None,
        selective=_selective(table),
    )


def _logged_table(pool: ModelPool, table: Outcomes, vectors: np.ndarray | None) -> LoggedTable:
    """Make the table of a log.

    Options are compared with the model that the pool file names as `today`, otherwise with the log's choices.

    Raises:
        DataError: `today` names a model that the table does not have.
    """
    if vectors is None:
        points = np.zeros((len(table), 0))
    else:
        points = np.asarray(vectors)
    adaptive = bool(getattr(pool.source, "adaptive", False))
    data = read_outcomes(table, points, adaptive=adaptive)
    if pool.today in (None, TODAY_LOG):
        today = None
    else:
        today = _today(pool, table)
    return LoggedTable.of(data, table.tasks, today)


def labelled_prompts(people: np.ndarray | None) -> int:
    """Return the number of prompts of which people scored an answer.

    Args:
        people: `[n, K]` scores by people, NaN where there is none.
    """
    if people is None:
        return 0
    return int((~np.isnan(people)).any(axis=1).sum())


def _selective(table: Outcomes) -> np.ndarray | None:
    """Return `[K]` bool, True for a model whose answers are missing for other reasons than chance.

    None if the table reports no such model.
    """
    gaps = table.report.get("gaps", {})
    found = np.array([arm in gaps and not gaps[arm]["at_random"] for arm in table.arms])
    if found.any():
        return found
    return None


def _today(pool: ModelPool, table: Outcomes) -> int | None:
    """Return the index of today's model, or None if the pool has none.

    If the pool file does not name today's model, it is the model with the highest mean cost of a user's own
    table, and None for any other source.

    Raises:
        DataError: `today` names a model that the table does not have.
    """
    if pool.today == TODAY_NONE:
        return None
    if pool.today is None:
        is_own_table = sources()[pool.source.kind].table
        if not is_own_table:
            return None
        return int(table.means[1].argmax())
    if pool.today not in table.arms:
        raise DataError(
            f"pool {pool.name}: today is {pool.today!r:.100}; expected one of {listed(table.arms)}, or none"
        )
    return table.arms.index(pool.today)


def fold_numbers(splits: list[np.ndarray]) -> np.ndarray:
    """Return the number of the fold in which each prompt is tested, `[n]`; 0 if no fold tests the prompt."""
    numbers: np.ndarray = np.argmax([split == "test" for split in splits], axis=0)
    return numbers


def _rule_folds(inputs: Inputs) -> np.ndarray | None:
    """Return `[n]` number of the fold in which rules are judged on each prompt; None for too few prompts.

    Rules need no training, so they are judged in several folds even if the routers have one split.
    """
    if len(inputs.splits) > 1:
        return fold_numbers(inputs.splits)
    try:
        return fold_numbers(make_folds(inputs.table, Split(split_seed=inputs.pool.split.split_seed), FOLDS))
    except DataError:
        return None


def _groups(inputs: Inputs) -> tuple[np.ndarray, str] | None:
    """Return the groups for which rules are made.

    Returns:
        (`[n]` group of each prompt, "task" or "cluster"). Groups are clusters of embeddings if the table has
        one task. None if there are neither tasks nor enough embeddings.
    """
    if len(set(inputs.table.tasks.tolist())) > 1:
        return inputs.table.tasks, TASK
    if inputs.vectors is None or len(inputs.table) < 2 * LEAST_IN_CLUSTER:
        return None
    points = unit_rows(np.asarray(inputs.vectors, dtype=np.float64))
    centers = cluster_centers(points)
    return np.array([f"{CLUSTER_NAME}{i + 1}" for i in nearest_center(points, centers)]), CLUSTER


def cluster_centers(points: np.ndarray) -> np.ndarray:
    """Return the k-means centres `[c, e]` of prompts, from their embeddings as unit vectors `[n, e]`.

    c is `CLUSTERS`, or less if the clusters would have fewer than `LEAST_IN_CLUSTER` prompts on average or if
    fewer points are distinct, and at least 1.
    """
    return kmeans_centers(points, min(CLUSTERS, max(len(points) // LEAST_IN_CLUSTER, 1)), seed=0)


def _guessed_right(inputs: Inputs, tasks: np.ndarray, folds: np.ndarray) -> float | None:
    """Return the share of the prompts whose task is that of the nearest centre of a task.

    The centres for a fold are made from the other folds' prompts. None without embeddings.

    Args:
        tasks: `[n]` task of each prompt.
        folds: `[n]` number of each prompt's fold.
    """
    if inputs.vectors is None:
        return None
    points = unit_rows(np.asarray(inputs.vectors, dtype=np.float64))
    right = np.zeros(len(tasks), dtype=bool)
    for fold in np.unique(folds):
        rest = folds != fold
        names = np.unique(tasks[rest])
        centers = unit_rows(np.stack([points[rest & (tasks == name)].mean(axis=0) for name in names]))
        right[~rest] = names[nearest_center(points[~rest], centers)] == tasks[~rest]
    return float(right.mean())


def _router(
    inputs: Inputs, scored: ScoredTable, options: AnswerOptions
) -> tuple[Decisions | None, str | None, float | None]:
    """Choose the router of the answer.

    With several folds the router is that of `cross_fitted_router`. With one fold it is the choice of the
    validation split, judged on the test split.

    Returns:
        (decisions of the router, its policy, its rho); three times None if there is no router.
    """
    candidates = router_candidates(inputs)
    if not candidates:
        return None, None, None
    if len(inputs.splits) == 1:
        known = [c for c in candidates if (c.name, c.rho) == inputs.chosen]
        if not known:
            return None, None, None
        return Decisions(known[0].name, known[0].weights), known[0].name, known[0].rho

    def choose(rows: np.ndarray, some: list[RouterCandidate]) -> int:
        """Return the index of the candidate that is worth most on these prompts."""
        return choose_router(scored, rows, some, options)

    cross_fitted = cross_fitted_router(inputs, candidates, choose)
    if cross_fitted is None:
        return None, None, None
    return Decisions(cross_fitted.name, cross_fitted.weights), cross_fitted.name, cross_fitted.rho


def cross_fitted_router(
    inputs: Inputs,
    candidates: list[RouterCandidate],
    choose: Callable[[np.ndarray, list[RouterCandidate]], int],
) -> RouterCandidate | None:
    """Choose the router of a table with several folds, with decisions by which it is judged fairly.

    The policy and rho that are exported are chosen by the decisions of all folds. The decisions by which the
    router is judged are chosen fold by fold: on the test prompts of a fold they are those of the candidate
    that does best on the fold's validation prompts, so no test prompt's score influences by which decisions
    the router is judged on it.

    Args:
        candidates: see `router_candidates`.
        choose: function of indices `[M]` of prompts and of candidates with weights `[M, K]` on them, which
            returns the index of the best candidate.

    Returns:
        The exported candidate, with the weights by which it is judged. None if there is no candidate, or if
        no candidate has plays on the validation prompts of a fold.
    """
    if inputs.validation_plays is None or not candidates:
        return None
    plays_of_fold: dict[Any, pd.DataFrame] = dict(list(inputs.validation_plays.groupby("fold")))
    chosen = []
    for fold in range(len(inputs.splits)):
        if fold not in plays_of_fold:
            return None
        rows, played = _on_validation(plays_of_fold[fold], candidates, inputs.table)
        if not played:
            return None
        best = played[choose(rows, played)]
        chosen.append((best.name, best.rho))
    weights = cross_fitted_weights(fold_numbers(inputs.splits), candidates, chosen)
    exported = candidates[choose(np.arange(len(inputs.table)), candidates)]
    return replace(exported, weights=weights)


def _on_validation(
    plays: pd.DataFrame, candidates: list[RouterCandidate], table: Outcomes
) -> tuple[np.ndarray, list[RouterCandidate]]:
    """Return what the candidates played on the validation prompts of a fold.

    Args:
        plays: rows of the fold.

    Returns:
        (indices `[M]` of the validation prompts, candidates that were played there, with weights `[M, K]`).
    """
    query_ids = np.asarray(table.query_ids).astype(str)
    rows = np.flatnonzero(np.isin(query_ids, plays["query_id"].unique().astype(str)))
    plays_of: dict[Any, pd.DataFrame] = dict(list(plays.groupby(["policy", "rho"])))
    found = []
    for candidate in candidates:
        key = (candidate.name, candidate.rho)
        if key in plays_of:
            weights = play_shares(plays_of[key], query_ids[rows], table.arms)
            found.append(replace(candidate, weights=weights))
    return rows, found


def router_candidates(inputs: Inputs) -> list[RouterCandidate]:
    """Return every router that can be exported, with its decisions on prompts that it had not seen.

    The decisions of a table's router are those of its replays. Those of a log's router are computed without a
    replay.

    Returns:
        candidates with weights `[n, K]`, NaN for prompts that were not played. An empty list if neither
        replays nor plays are at hand, or if no replayed policy can be exported.

    Raises:
        ResultError: the replays are of other prompts than the table's.
    """
    if inputs.held_out_plays is not None:
        return _candidates_of_log(inputs, inputs.held_out_plays)
    if inputs.evidence is None:
        return []
    evidence = inputs.evidence
    problem = evidence.problem
    places = pd.Index(inputs.table.query_ids).get_indexer(problem.query_ids)
    if (places < 0).any():
        raise ResultError(f"the replays of pool {inputs.pool.name} are of other prompts than its table's")
    found = []
    for policy, rho in sorted(evidence.folders):
        if policy in NO_ROUTERS or policy not in inputs.deployable:
            continue
        trace = evidence.trace(policy, rho)
        counts = np.zeros((problem.n, problem.K))
        np.add.at(counts, (trace.order.ravel(), trace.actions.ravel()), 1.0)
        total = counts.sum(axis=1, keepdims=True)
        weights = np.full((len(inputs.table), problem.K), np.nan)
        weights[places] = np.divide(counts, total, out=np.full(counts.shape, np.nan), where=total > 0)
        found.append(RouterCandidate(policy, rho, weights))
    return found


def _candidates_of_log(inputs: Inputs, plays: pd.DataFrame) -> list[RouterCandidate]:
    """Return the routers of a log; the weights of a prompt that no fold holds out are NaN."""
    query_ids = np.asarray(inputs.table.query_ids).astype(str)
    found = []
    for (policy, rho), rows in plays.groupby(["policy", "rho"]):
        if policy in NO_ROUTERS or policy not in inputs.deployable:
            continue
        found.append(
            RouterCandidate(str(policy), float(rho), play_shares(rows, query_ids, inputs.table.arms))
        )
    return found
