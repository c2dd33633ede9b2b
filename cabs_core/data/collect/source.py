"""From the folders of `answers` and `scores` to a table of outcomes."""

from collections.abc import Mapping
from pathlib import Path

import pyarrow.parquet as pq

from cabs_core.data.collect.answers import ANSWERS, PROMPTS
from cabs_core.data.collect.scoring import Cell
from cabs_core.data.outcomes.raw import RawOutcomes

SCORES = "scores.parquet"
COLUMN = "column "


def read_collected(inputs: Mapping[str, Path]) -> RawOutcomes:
    """Return every collected prompt with score, cost, tokens and latency of every model.

    Args:
        inputs: folders of the artifacts answers and scores.
    """
    queries = pq.read_table(inputs["answers"] / PROMPTS).to_pandas()
    cells = pq.read_table(
        inputs["answers"] / ANSWERS,
        columns=["query_id", "model", "n_input_tokens", "n_output_tokens", "cost", "latency"],
    ).to_pandas()
    scores = pq.read_table(inputs["scores"] / SCORES, columns=["query_id", "model", "score"]).to_pandas()
    columns = [c for c in ("query_id", "prompt", "task", "split") if c in queries.columns]
    frame = cells.merge(scores, on=["query_id", "model"]).merge(queries[columns], on="query_id")
    return RawOutcomes.from_tidy(frame, origin="collected answers")


def cells_of(answers: Path) -> list[Cell]:
    """The answers of the artifact with their prompts, for scoring."""
    queries = pq.read_table(answers / PROMPTS).to_pylist()
    query_of = {q["query_id"]: q for q in queries}
    rows = {
        name: {c.removeprefix(COLUMN): v for c, v in q.items() if c.startswith(COLUMN)}
        for name, q in query_of.items()
    }
    table = pq.read_table(answers / ANSWERS, columns=["query_id", "model", "state", "text"]).to_pylist()
    return [
        Cell(
            a["query_id"],
            query_of[a["query_id"]]["prompt"],
            query_of[a["query_id"]]["task"],
            rows[a["query_id"]],
            a["model"],
            a["state"],
            a["text"],
        )
        for a in table
    ]
