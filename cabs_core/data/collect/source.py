"""Reading of the artifacts `answers` and `scores`: as a table of outcomes, and as answers to score."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from cabs_core.data.collect.answers import ANSWERS, PROMPTS
from cabs_core.data.collect.scoring import Cell
from cabs_core.data.outcomes.raw import RawOutcomes

#: File of the scores in the folder of the artifact.
SCORES = "scores.parquet"
#: Beginning of the name of a column with the scores of one scorer.
PART = "score "
#: Beginning of the name of a column with the labels by which people measured a judge.
PEOPLE = "people "
#: Beginning of the name of a column of the user's table in the file of prompts.
COLUMN = "column "


def read_collected(inputs: Mapping[str, Path]) -> RawOutcomes:
    """Return the outcomes of every collected prompt: score, cost, tokens and latency of every model.

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


def read_people(folder: Path, query_ids: Sequence[str], models: Sequence[str]) -> np.ndarray | None:
    """Return the labels of people, [N, K] in [0, 1], NaN where nobody labelled an answer.

    A label counts only if the score of its answer equals the score by the judge that the labels measure.

    Args:
        folder: folder of the artifact `scores`.
        query_ids: [N] queries of the table.
        models: [K] models of the table.

    Returns:
        None if no label counts, or if people labelled for several judges.
    """
    table = pq.read_table(folder / SCORES).to_pandas()
    judges = [name.removeprefix(PEOPLE) for name in table.columns if name.startswith(PEOPLE)]
    if len(judges) != 1:
        return None
    judged = table[f"{PART}{judges[0]}"].to_numpy(dtype=float)
    stands = np.isclose(judged, table["score"].to_numpy(dtype=float), atol=1e-9)
    table["label"] = table[f"{PEOPLE}{judges[0]}"].where(stands)
    labels = table.pivot(index="query_id", columns="model", values="label")
    people: np.ndarray = labels.reindex(index=list(query_ids), columns=list(models)).to_numpy(dtype=float)
    if np.isnan(people).all():
        return None
    return people


def cells_of(answers: Path) -> list[Cell]:
    """Return a `Cell` for every answer of the artifact `answers`, as scorers take them.

    A cell holds the answer's state and text, its model, and the prompt with its task and the row of the
    user's table.
    """
    queries = pq.read_table(answers / PROMPTS).to_pylist()
    query_of = {q["query_id"]: q for q in queries}
    rows = {
        name: {c.removeprefix(COLUMN): v for c, v in q.items() if c.startswith(COLUMN)}
        for name, q in query_of.items()
    }
    table = pq.read_table(answers / ANSWERS, columns=["query_id", "model", "state", "text"]).to_pylist()
    return [
        Cell(
            query=answer["query_id"],
            prompt=query_of[answer["query_id"]]["prompt"],
            task=query_of[answer["query_id"]]["task"],
            row=rows[answer["query_id"]],
            model=answer["model"],
            state=answer["state"],
            text=answer["text"],
        )
        for answer in table
    ]
