"""Labels by people: scores per query and model, or a filled-in sheet of `cabs judge sample`."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from cabs_core.base.errors import DataError, listed
from cabs_core.data.tables import open_table
from cabs_core.data.tables.cells import flat_chats, number_column

ITEM, SCORE = "item", "score"


@dataclass(frozen=True)
class LabelTable:
    """Scores by people: {identity of an answer, or (query or prompt, model): score}."""

    scores: dict[tuple[str, ...], float]
    by: str

    def of(self, query: str, prompt: str, model: str, text: str) -> float:
        """The score of an answer, nan where nobody gave one."""
        keys = {"item": (item_of(prompt, text),), "query_id": (query, model), "prompt": (prompt, model)}
        return self.scores.get(keys[self.by], np.nan)

    def __len__(self) -> int:
        return len(self.scores)


def item_of(prompt: str, answer: str) -> str:
    """Name of an answer on a sheet: by content, so that it does not say whose it is."""
    return hashlib.sha256(f"{prompt}\0{answer}".encode("utf-8", "replace")).hexdigest()[:12]


def read_labels(path: Path, score_range: tuple[float, float] = (0.0, 1.0)) -> LabelTable:
    """Read labels; rows without a score are left out.

    Args:
        score_range: the worst and the best score that can be given.

    Raises:
        DataError: a column is absent, a score is outside the range, a label has two scores, or there is none.
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
    """A sheet to label: item, prompt, answer, and an empty score."""
    rows = {
        ITEM: [item_of(p, a) for p, a in zip(prompts, answers, strict=True)],
        "prompt": prompts,
        "answer": answers,
    }
    return pd.DataFrame({**rows, SCORE: [""] * len(prompts)}).drop_duplicates(ITEM)
