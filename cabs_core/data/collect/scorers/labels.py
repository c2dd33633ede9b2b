"""Labels by people: scores for queries and models, or a filled-in sheet of `cabs judge sample`."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from cabs_core.base.errors import DataError, listed
from cabs_core.data.tables import open_table
from cabs_core.data.tables.cells import flat_chats, number_column

#: Column of a sheet with the identity of an answer.
ITEM = "item"
#: Column with the score.
SCORE = "score"


@dataclass(frozen=True)
class LabelTable:
    """Scores by people.

    Attributes:
        scores: {(item,), (query_id, model) or (prompt, model): score in [0, 1]}.
        by: column that names the answers: item, query_id or prompt.
    """

    scores: dict[tuple[str, ...], float]
    by: str

    def score_of(self, query: str, prompt: str, model: str, text: str) -> float:
        """Return the score of an answer, or NaN if nobody gave one."""
        keys = {"item": (item_of(prompt, text),), "query_id": (query, model), "prompt": (prompt, model)}
        return self.scores.get(keys[self.by], np.nan)

    def __len__(self) -> int:
        return len(self.scores)


def item_of(prompt: str, answer: str) -> str:
    """Return a name for an answer on a sheet: 12 hex digits by its content, which do not tell the model."""
    return hashlib.sha256(f"{prompt}\0{answer}".encode("utf-8", "replace")).hexdigest()[:12]


def read_labels(path: Path, score_range: tuple[float, float] = (0.0, 1.0)) -> LabelTable:
    """Return the labels in a table, without rows that have no score. The scores are mapped to [0, 1].

    The first of the columns item, query_id and prompt that the table has names the answers.

    Args:
        score_range: (worst, best) score that can be given, which become 0 and 1.

    Raises:
        DataError: a column is absent, a score is no number within the range, an answer has two different
            scores, or there is no score at all.
    """
    table = open_table(path)
    names = table.columns
    by = next((c for c in (ITEM, "query_id", "prompt") if c in names), None)
    if SCORE not in names or by is None or (by != ITEM and "model" not in names):
        raise DataError(
            f"{path}: columns are {listed(names)}; expected score and either item (a sheet of `cabs judge "
            "sample`), or query_id (or prompt) and model"
        )
    columns = [by] if by == ITEM else [by, "model"]
    frame = table.read([*columns, SCORE])
    if by == "prompt":
        frame[by] = flat_chats(frame[by])
    values = number_column(frame[SCORE], SCORE, table.place(SCORE), score_range)
    scores: dict[tuple[str, ...], float] = {}
    for row, (value, key) in enumerate(
        zip(values, frame[columns].astype(str).itertuples(index=False, name=None), strict=True)
    ):
        if np.isnan(value):
            continue
        if scores.setdefault(key, float(value)) != value:
            raise DataError(
                f"{table.place(SCORE).at(row)}: {', '.join(key):.100} has two scores, {scores[key]:g} and "
                f"{value:g}"
            )
    if not scores:
        raise DataError(f"{path} holds no score: fill in the column {SCORE}")
    return LabelTable(scores, by)


def blank_sheet(prompts: list[str], answers: list[str]) -> pd.DataFrame:
    """Return a sheet to label: columns item, prompt, answer and an empty score, each item once."""
    rows = {
        ITEM: [item_of(p, a) for p, a in zip(prompts, answers, strict=True)],
        "prompt": prompts,
        "answer": answers,
    }
    return pd.DataFrame({**rows, SCORE: [""] * len(prompts)}).drop_duplicates(ITEM)
