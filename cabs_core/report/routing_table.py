"""A routing table for those who keep their gateway: the rules of the pool's answer, a row a task or cluster.

The model of each row, and what is said of the whole table, are those of rung "rules" (`evaluation.answer`):
rules are made from all prompts and judged on prompts that they were not made from.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cabs_core.algorithms.predictors.clusters import unit_rows
from cabs_core.base.errors import ResultError
from cabs_core.evaluation.answer import Word
from cabs_core.report.pool_answer import PoolAnswer

#: examples of a row, and characters of one
EXAMPLES, LONGEST = 8, 300


@dataclass(frozen=True)
class TableRow:
    """A row of the table, on the prompts of its group.

    Attributes:
        group: the task, or `cluster 1`. model: of this row. others: the next best by mean score, best first.
        prompts: number of the group's prompts. share: of all prompts.
        score: mean score of the model. usd_per_1000: USD of 1,000 requests to it.
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
    """A table with what its rules are worth beside today's model.

    Attributes:
        by: task or cluster. default: today's model, for requests of no known group.
        word: what may be said of the rules. difference: in mean score, with its 95 % interval.
        usd_per_1000: USD of 1,000 requests. guessed_right: share of the prompts whose task the nearest
            centre guesses right; None for clusters.
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
        """Return plain values for JSON."""
        return asdict(self)


def routing_table(
    found: PoolAnswer, vectors: np.ndarray, pool: str, *, examples: bool = True
) -> RoutingTable:
    """Return the rules of an answer as a table.

    Args:
        vectors: `[n, e]` embeddings of the table's prompts. examples: keep prompts.

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
    """Return True if the rules may be used instead of today's model."""
    return table.word in (Word.BETTER, Word.CHEAPER)


def _examples(found: PoolAnswer, points: np.ndarray, rows: np.ndarray) -> tuple[str, ...]:
    """Prompts nearest to the middle of these rows, each once."""
    center = points[rows].mean(axis=0)
    nearest = rows[np.argsort(-(points[rows] @ center), kind="stable")]
    texts = (" ".join(found.outcomes.prompts[i].split())[:LONGEST] for i in nearest)
    return tuple(list(dict.fromkeys(text for text in texts if text))[:EXAMPLES])
