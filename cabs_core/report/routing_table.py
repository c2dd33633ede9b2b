"""A routing table for those who keep their gateway: which model answers which task, and what a table loses.

A row is a task of the outcome table, or a cluster of prompts where there is one task only. A row gets another
model than the default (the best single one) only if the prompts of the train and validation splits show it
better, with an interval that is simultaneous over all rows and models; everything that is said of the table
is measured on the test prompts. Where the report's verdict is to keep a single model, the default has all
rows. Of a table with gaps at random all of it rests on doubly robust cells: those of the verdict on test
prompts (`problem.gaps`), and on the others cells of the same kind whose predictions are cross-fitted.

A caller may know the task of a request. A gateway that guesses it from examples errs: what is lost then is
measured with the nearest centre in the pool's own embedding.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from cabs_core.algorithms.predictors.clusters import kmeans_centers, nearest_center, unit_rows
from cabs_core.algorithms.problem.gaps import doubly_robust, real_values, unknown_arms
from cabs_core.base.errors import DataError
from cabs_core.base.statistics.costs import cost_error
from cabs_core.base.statistics.uncertainty import Error, mean_error, seen_share
from cabs_core.base.utility import clipped_utility
from cabs_core.data.outcomes import Outcomes
from cabs_core.data.outcomes.gaps import cross_predicted
from cabs_core.report.evidence import Evidence, Played
from cabs_core.report.gap import Bounded, estimate

#: most clusters of a table without tasks, and least train prompts of one
CLUSTERS, LEAST = 12, 50
#: examples of a row, and characters of one
EXAMPLES, LONGEST = 8, 300


@dataclass(frozen=True)
class TableRow:
    """A row of the table, on its test prompts.

    Attributes:
        group: the task, or `cluster 1`. model: of this row; others: the next best, best first.
        queries: test prompts; share: of all.
        score: mean score of the model. cost: USD per 1,000 requests. over_default: utility, model minus the
            default; None where it is the default.
        examples: train prompts nearest to the middle of the row.
    """

    group: str
    model: str
    others: tuple[str, ...]
    queries: int
    share: float
    score: Bounded
    cost: Bounded
    over_default: Bounded | None
    examples: tuple[str, ...] = ()


@dataclass(frozen=True)
class RoutingTable:
    """A table with what it is worth on the test prompts.

    Attributes:
        rho, value_usd: score units per USD; 1 / rho. by: task or cluster. default: the best single model.
        router, decision: of the report. utility: mean of the table.
        lost: utility, router minus table, where the row of every request is known; lost_guessed: where it is
            the nearest centre in the pool's embedding.
    """

    pool: str
    rho: float
    value_usd: float | None
    by: str
    default: str
    router: str
    decision: str
    utility: float
    lost: Bounded
    lost_guessed: Bounded
    rows: tuple[TableRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None where a row has no test prompts."""
        content = asdict(self)
        for row in content["rows"]:
            for figure in (row["score"], row["cost"], row["over_default"]):
                if figure is not None and math.isnan(figure["value"]):
                    figure["value"] = None
        return content


def routing_table(
    evidence: Evidence,
    outcomes: Outcomes,
    split: np.ndarray,
    embeddings: np.ndarray,
    *,
    pool: str,
    rho: float,
    router: str,
    decision: str,
    examples: bool = True,
) -> RoutingTable:
    """The table that a pool supports at a rho, score units per USD.

    Args:
        outcomes, split `[n]` (train, validation, test), embeddings `[n, e]`: of the whole table.
        router: that the table is compared with. decision: the report's. examples: keep prompts.

    Raises:
        DataError: the table has gaps that are not at random.
    """
    p = evidence.problem
    if unknown := unknown_arms(p):
        raise DataError(
            f"pool {pool}: {p.arms[unknown[0]]!r:.100} has no answer on any test prompt, or was not tried on "
            "prompts of another kind than those it was tried on, so nobody knows what it is best at: ask it "
            "on a random sample of the prompts that lack it, or leave it out under `models`"
        )
    known, rows = np.flatnonzero(split != "test"), pd.Index(outcomes.query_ids).get_indexer(p.query_ids)
    points = unit_rows(np.asarray(embeddings, dtype=np.float64))
    names, label, by = _groups(outcomes, points, split)
    centers = unit_rows(np.stack([points[known][label[known] == g].mean(axis=0) for g in range(len(names))]))
    worth, drawn = _worth(outcomes, known, rho), outcomes.drawn[known]
    default = int(worth.mean(axis=0).argmax())
    chosen = np.full(len(names), default)
    if decision != "keep":
        clusters = outcomes.clusters[known]
        for g in range(len(names)):
            here = label[known] == g
            chosen[g] = _better(worth[here], drawn[here], clusters[here], default, len(names))
    own, guessed = label[rows], nearest_center(points[rows], centers)
    model_of = np.append(chosen, default)  # index -1: no row
    cells, played = real_values(p, rho), evidence.played(router)
    utility = cells.utility
    every, r, dearest = np.arange(p.n), played.at(rho), 1000.0 * p.dearest_calls
    clusters = np.arange(p.n) if p.clusters is None else p.clusters
    found = []
    for g, name in enumerate(names):
        here, model = own == g, int(chosen[g])
        asked = None if p.observed is None else p.observed[here]
        means = worth[label[known] == g].mean(axis=0)
        gain = utility[here, model] - utility[here, default]
        near = known[label[known] == g]
        found.append(
            TableRow(
                name,
                p.arms[model],
                tuple(p.arms[j] for j in np.argsort(-means, kind="stable") if j != model),
                int(here.sum()),
                float(here.mean()),
                _mean(cells.score[here, model], clusters[here], _seen(asked, model)).within(0.0, 1.0),
                _mean(
                    1000.0 * cells.cost[here, model],
                    clusters[here],
                    _seen(asked, model),
                    dearest[model],
                    p.priced,
                ),
                None if model == default else _mean(gain, clusters[here], _seen(asked, model, default)),
                _examples(outcomes, points, near, centers[g]) if examples else (),
            )
        )
    order, plays = evidence.trace(router, rho).order, played.plays[r]
    table = utility[every, model_of[own]]
    seen = min(evidence.real_share(router, rho), *(_seen(p.observed, j) for j in {*chosen.tolist(), default}))
    return RoutingTable(
        pool,
        rho,
        1.0 / rho if rho > 0 else None,
        by,
        p.arms[default],
        router,
        decision,
        float((plays * table).sum() / plays.sum()),
        _lost(played, r, table, order, clusters, seen),
        _lost(played, r, utility[every, model_of[guessed]], order, clusters, seen),
        tuple(sorted(found, key=lambda row: (-row.share, row.group))),
    )


def _groups(outcomes: Outcomes, points: np.ndarray, split: np.ndarray) -> tuple[list[str], np.ndarray, str]:
    """(names, `[n]` which one, task or cluster); -1: of a task with test prompts alone, which has no row."""
    tasks = outcomes.tasks.tolist()
    if len(set(tasks)) > 1:
        names = sorted({task for task, part in zip(tasks, split, strict=True) if part != "test"})
        place = {name: i for i, name in enumerate(names)}
        return names, np.array([place.get(task, -1) for task in tasks]), "task"
    train = points[split == "train"]
    centers = kmeans_centers(train, min(CLUSTERS, max(len(train) // LEAST, 1)), seed=0)
    return [f"cluster {i + 1}" for i in range(len(centers))], nearest_center(points, centers), "cluster"


def _worth(outcomes: Outcomes, rows: np.ndarray, rho: float) -> np.ndarray:
    """`[m, K]` clipped utilities at these rows, of a table with gaps doubly robust."""
    real = clipped_utility(outcomes.scores[rows], outcomes.costs[rows], rho)
    if outcomes.answered is None:
        return real
    return doubly_robust(real, clipped_utility(*cross_predicted(outcomes, rows), rho), outcomes.drawn[rows])


def _seen(observed: np.ndarray | None, *models: int) -> float:
    """How much of `[m]` prompts the model was seen on that was seen least (`statistics.seen_share`)."""
    if observed is None or not len(observed):
        return 1.0
    columns = np.eye(observed.shape[1])
    return min(seen_share(np.tile(columns[j], (len(observed), 1)), observed) for j in models)


def _better(worth: np.ndarray, drawn: np.ndarray, clusters: np.ndarray, default: int, groups: int) -> int:
    """The model of a group: the best one that is shown to be better than the default, else the default."""
    best = int(worth.mean(axis=0).argmax())
    gain = worth[:, best] - worth[:, default]
    error = _error(gain, clusters, _seen(drawn, best, default))
    low, _ = error.interval(float(gain.mean()), groups * max(worth.shape[1] - 1, 1))
    return best if low > 0.0 else default


def _error(values: np.ndarray, clusters: np.ndarray, seen: float, unit: float = 1.0) -> Error:
    """Of the mean of values that rest on what was seen."""
    error = mean_error(values, clusters=clusters, unit=unit)
    return replace(error, clusters=error.clusters * seen)


def _mean(
    values: np.ndarray, clusters: np.ndarray, seen: float, dearest: float | None = None, calls: float = 0.0
) -> Bounded:
    """A mean with its interval, of costs if the dearest of so many calls is given; NaN without values."""
    if not len(values):
        return Bounded(math.nan)
    mean, error = float(values.mean()), _error(values, clusters, seen, float(dearest is None))
    if dearest is not None:
        error = cost_error(error, values, clusters, dearest=dearest, calls=calls, mean=mean)
    return estimate(mean, error, 1)


def _lost(
    played: Played, r: int, table: np.ndarray, order: np.ndarray, clusters: np.ndarray, seen: float
) -> Bounded:
    """Router minus table, over the rounds in which the router was replayed."""
    gap, plays = played.utility[r] - table, played.plays[r]
    trials = played.trials["utility"][r] - table[order].mean(axis=1)
    error = mean_error(gap, plays, clusters, trials=trials, unit=1.0)
    error = replace(error, clusters=error.clusters * seen)
    return estimate(float((plays * gap).sum() / plays.sum()), error, 1)


def _examples(
    outcomes: Outcomes, points: np.ndarray, rows: np.ndarray, center: np.ndarray
) -> tuple[str, ...]:
    """Prompts nearest to a centre, each once."""
    nearest = rows[np.argsort(-(points[rows] @ center), kind="stable")]
    texts = (" ".join(outcomes.prompts[i].split())[:LONGEST] for i in nearest)
    return tuple(list(dict.fromkeys(text for text in texts if text))[:EXAMPLES])
