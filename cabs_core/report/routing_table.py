"""A routing table for those who keep their gateway: which model answers which task, and what a table loses.

A row is a task of the outcome table, or a cluster of prompts where there is one task only. A row gets another
model than the default (the best single one) only if the prompts of the train and validation splits show it
better, with an interval that is simultaneous over all rows and models; everything that is said of the table
is measured on the test prompts. Where the report's verdict is to keep a single model, the default has all
rows.

A caller may know the task of a request. A gateway that guesses it from examples errs: what is lost then is
measured with the nearest centre in the pool's own embedding.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cabs_core.algorithms.predictors.clusters import kmeans_centers, nearest_center, unit_rows
from cabs_core.base.errors import DataError
from cabs_core.base.statistics import cost_error, mean_error
from cabs_core.base.utility import clipped_utility
from cabs_core.data.outcomes import Outcomes
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
        DataError: the table has gaps, so that rows would rest on predictions.
    """
    p = evidence.problem
    if p.observed is not None:
        raise DataError(f"pool {pool}: the table has gaps, and a routing table needs every model's answers")
    known, rows = np.flatnonzero(split != "test"), _rows_of(outcomes, p.query_ids)
    points = unit_rows(np.asarray(embeddings, dtype=np.float64))
    names, label, by = _groups(outcomes, points, split)
    centers = unit_rows(np.stack([points[known][label[known] == g].mean(axis=0) for g in range(len(names))]))
    worth = clipped_utility(outcomes.scores[known], outcomes.costs[known], rho)
    default = int(worth.mean(axis=0).argmax())
    chosen = np.full(len(names), default)
    if decision != "keep":
        clusters = outcomes.clusters[known]
        for g in range(len(names)):
            here = label[known] == g
            chosen[g] = _better(worth[here], clusters[here], default, len(names))
    own, guessed = label[rows], nearest_center(points[rows], centers)
    model_of = np.append(chosen, default)  # index -1: no row
    real, played = evidence.real(), evidence.played(router)
    utility = clipped_utility(real.score, real.cost, rho)
    every, r = np.arange(p.n), played.at(rho)
    clusters = np.arange(p.n) if p.clusters is None else p.clusters
    found = []
    for g, name in enumerate(names):
        here, model = own == g, int(chosen[g])
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
                _mean(real.score[here, model], clusters[here]),
                _mean(1000.0 * real.cost[here, model], clusters[here], 1000.0 * p.dearest_calls[model]),
                None if model == default else _mean(gain, clusters[here]),
                _examples(outcomes, points, near, centers[g]) if examples else (),
            )
        )
    order = evidence.trace(router, rho).order
    table = utility[every, model_of[own]]
    plays = played.plays[r]
    return RoutingTable(
        pool,
        rho,
        1.0 / rho if rho > 0 else None,
        by,
        p.arms[default],
        router,
        decision,
        float((plays * table).sum() / plays.sum()),
        _lost(played, r, table, order, clusters),
        _lost(played, r, utility[every, model_of[guessed]], order, clusters),
        tuple(sorted(found, key=lambda row: (-row.share, row.group))),
    )


def _rows_of(outcomes: Outcomes, query_ids: np.ndarray) -> np.ndarray:
    """Rows of the replayed queries in the outcome table."""
    at = {name: i for i, name in enumerate(outcomes.query_ids.tolist())}
    return np.array([at[name] for name in query_ids.tolist()])


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


def _better(worth: np.ndarray, clusters: np.ndarray, default: int, groups: int) -> int:
    """The model of a group: the best one that is shown to be better than the default, else the default."""
    best = int(worth.mean(axis=0).argmax())
    gain = worth[:, best] - worth[:, default]
    low, _ = mean_error(gain, clusters=clusters, unit=1.0).interval(
        float(gain.mean()), groups * max(worth.shape[1] - 1, 1)
    )
    return best if low > 0.0 else default


def _mean(values: np.ndarray, clusters: np.ndarray, dearest: float | None = None) -> Bounded:
    """A mean with its interval, of costs if the dearest one is given; NaN where there is no value."""
    if not len(values):
        return Bounded(math.nan)
    mean, error = float(values.mean()), mean_error(values, clusters=clusters, unit=float(dearest is None))
    if dearest is not None:
        error = cost_error(error, values, clusters, dearest=dearest, mean=mean)
    return estimate(mean, error, 1)


def _lost(played: Played, r: int, table: np.ndarray, order: np.ndarray, clusters: np.ndarray) -> Bounded:
    """Router minus table, over the rounds in which the router was replayed."""
    gap, plays = played.utility[r] - table, played.plays[r]
    trials = played.trials["utility"][r] - table[order].mean(axis=1)
    error = mean_error(gap, plays, clusters, trials=trials, unit=1.0)
    return estimate(float((plays * gap).sum() / plays.sum()), error, 1)


def _examples(
    outcomes: Outcomes, points: np.ndarray, rows: np.ndarray, center: np.ndarray
) -> tuple[str, ...]:
    """Prompts nearest to a centre, each once."""
    nearest = rows[np.argsort(-(points[rows] @ center), kind="stable")]
    texts = (" ".join(outcomes.prompts[i].split())[:LONGEST] for i in nearest)
    return tuple(list(dict.fromkeys(text for text in texts if text))[:EXAMPLES])
