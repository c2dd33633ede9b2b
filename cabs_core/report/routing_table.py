"""Routing tables, for users who keep their own gateway.

A routing table has a row for each task or cluster with the model that answers it. Rows are the rules of the
pool's answer. The figures of the whole table are those of rung "rules", which was judged on prompts that the
rules were not made from.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cabs_core.algorithms.predictors.clusters import unit_rows
from cabs_core.base.errors import ResultError
from cabs_core.evaluation.answer import Word
from cabs_core.report.pool_answer import PoolAnswer

#: most examples of a row
EXAMPLES = 8
#: most characters of an example
LONGEST = 300


@dataclass(frozen=True)
class TableRow:
    """A row of a routing table.

    Attributes:
        group: name of the task, or of the cluster, such as `cluster 1`.
        model: the model that answers the prompts of the group.
        others: the other models, by their mean score on the group, the best first.
        prompts: number of prompts of the group in the table.
        share: share of all prompts that belong to the group.
        score: mean score of the model on the group.
        usd_per_1000: USD of 1,000 requests of the group to the model.
        examples: prompts nearest to the middle of the group.
    """

    group: str
    model: str
    others: tuple[str, ...]
    prompts: int
    share: float
    score: float
    usd_per_1000: float
    examples: tuple[str, ...] = ()


@dataclass(frozen=True)
class RoutingTable:
    """A routing table with the figures of its rules beside today's model.

    Attributes:
        pool: name of the pool.
        by: "task" or "cluster", the kind of the groups.
        default: today's model, which answers requests of no known group.
        word: the word of rung "rules", such as "as good and cheaper".
        difference: mean score of the rules minus that of today's model.
        low, high: ends of the 95 % interval of the difference.
        usd_per_1000: USD of 1,000 requests to the rules.
        guessed_right: share of the prompts whose own task is the one with the nearest centre; None for
            clusters.
        rows: one for each group, the most frequent group first.
    """

    pool: str
    by: str
    default: str
    word: str
    difference: float
    low: float
    high: float
    usd_per_1000: float
    guessed_right: float | None
    rows: tuple[TableRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the table as plain values for JSON."""
        return asdict(self)


def routing_table(
    found: PoolAnswer, vectors: np.ndarray, pool: str, *, examples: bool = True
) -> RoutingTable:
    """Return the rules of an answer as a routing table.

    Args:
        found: the answer of the pool.
        vectors: `[n, e]` embeddings of the prompts.
        pool: name of the pool.
        examples: True to write example prompts into the rows.

    Raises:
        ResultError: the answer has no rules, since the table has too few prompts.
    """
    rung = found.answer.rung("rules")
    if rung is None or found.rules is None or found.groups is None:
        raise ResultError(f"pool {pool}: the table has too few prompts for rules by task or cluster")
    scored = found.scored
    points = unit_rows(np.asarray(vectors, dtype=np.float64))
    rows = []
    for group, model in rung.use.items():
        here = np.flatnonzero(found.groups.astype(str) == group)
        chosen = scored.models.index(model)
        known = ~np.isnan(scored.scores[here])
        counts = np.maximum(known.sum(axis=0), 1)
        scores = np.where(known, scored.scores[here], 0.0).sum(axis=0) / counts
        costs = np.where(known, scored.costs[here], 0.0).sum(axis=0) / counts
        order = np.argsort(-scores, kind="stable")
        rows.append(
            TableRow(
                group=group,
                model=model,
                others=tuple(scored.models[j] for j in order if j != chosen),
                prompts=len(here),
                share=len(here) / len(found.groups),
                score=float(scores[chosen]),
                usd_per_1000=1000.0 * float(costs[chosen]),
                examples=_examples(found, points, here) if examples else (),
            )
        )
    return RoutingTable(
        pool=pool,
        by=found.by,
        default=scored.models[scored.reference],
        word=str(rung.word),
        difference=rung.difference,
        low=rung.low,
        high=rung.high,
        usd_per_1000=rung.usd_per_1000,
        guessed_right=found.guessed_right,
        rows=tuple(sorted(rows, key=lambda row: (-row.share, row.group))),
    )


def may_be_recommended(table: RoutingTable) -> bool:
    """Return True if the word of the rules is "better" or "as good and cheaper"."""
    return table.word in (Word.BETTER, Word.CHEAPER)


def _examples(found: PoolAnswer, points: np.ndarray, rows: np.ndarray) -> tuple[str, ...]:
    """Return the prompts nearest to the middle of a group, without repetitions.

    There are at most `EXAMPLES` prompts, each on one line and cut to `LONGEST` characters.

    Args:
        points: `[n, e]` embeddings of all prompts as unit vectors.
        rows: indices of the group's prompts.
    """
    center = points[rows].mean(axis=0)
    nearest = rows[np.argsort(-(points[rows] @ center), kind="stable")]
    texts = (" ".join(found.outcomes.prompts[i].split())[:LONGEST] for i in nearest)
    return tuple(list(dict.fromkeys(text for text in texts if text))[:EXAMPLES])
