"""Reads the artifacts of earlier stages, given `{stage: folder}` of verified inputs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from cabs_core.data.outcomes.logged import predicted_from
from cabs_core.data.outcomes.table import Outcomes


def outcomes_of(inputs: Mapping[str, Path]) -> Outcomes:
    """Read the outcome table."""
    return Outcomes.load(inputs["outcomes"])


def split_of(inputs: Mapping[str, Path]) -> np.ndarray:
    """Return the split of the first fold, `[n]` of train, validation and test."""
    return splits_of(inputs)[0]


def splits_of(inputs: Mapping[str, Path]) -> list[np.ndarray]:
    """Return the split of every fold, each `[n]` of train, validation and test."""
    table = pq.read_table(inputs["splits"] / "splits.parquet")
    names = [split_column(fold) for fold in range(table.num_columns)]
    return [np.array(table[name].to_pylist()) for name in names if name in table.column_names]


def split_column(fold: int) -> str:
    """Return the name of the column of splits.parquet with the split of a fold."""
    if fold == 0:
        return "split"
    return f"split_{fold}"


def fold_folder(folder: Path, fold: int) -> Path:
    """Return the folder of a fold within the folder of an artifact. The first fold lies at the top."""
    if fold == 0:
        return folder
    return folder / f"fold_{fold}"


def embeddings_of(inputs: Mapping[str, Path]) -> np.ndarray:
    """Return the embeddings of the prompts, `[n, e]` float32, memory-mapped."""
    path = inputs["prompt_embeddings"] / "embeddings.npy"
    embeddings: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    return embeddings


def folds_of(folder: Path) -> int:
    """Return the number of folds in the folder of an artifact."""
    return 1 + sum(1 for path in folder.glob("fold_*") if path.is_dir())


def canonical_rows(table: Outcomes) -> np.ndarray:
    """Return the rows of the table sorted by prompt and query id, `[n]`.

    A table with its rows in another order gives the queries in an equal order.
    """
    return np.lexsort((table.query_ids, np.array(table.prompts, dtype=np.str_)))


def encoder_prompts(table: Outcomes, splits: Sequence[np.ndarray]) -> list[str]:
    """Return the prompts on which a fitted encoder, such as tfidf-svd, is fitted.

    With one fold they are the train prompts. With several folds every prompt is held out in one of them, so
    the encoder is fitted once, on the texts of all prompts. The encoder never sees a score or a cost.
    """
    if len(splits) > 1:
        return table.prompts
    return [prompt for prompt, part in zip(table.prompts, splits[0]) if part == "train"]


@dataclass(frozen=True)
class FoldData:
    """Data on which the folds of a table are fitted.

    Attributes:
        table: the outcomes. `table_of` gives those of a fold.
        vectors: embeddings of its prompts, `[n, e]` float32.
        splits: split of every fold, each `[n]`.
    """

    table: Outcomes
    vectors: np.ndarray
    splits: list[np.ndarray]

    def table_of(self, split: np.ndarray) -> Outcomes:
        """Return the outcomes that the fold of a split may know.

        In a log one model answered each prompt, and the outcomes of the others are predicted. With several
        folds they are predicted from the fold's own train prompts, so that no test prompt influences a fit.
        With one fold, and for a table that is not from a log, the outcomes are those of `table`.
        """
        if len(self.splits) == 1 or self.table.answered is None:
            return self.table
        return predicted_from(self.table, np.flatnonzero(split == "train"))

    @classmethod
    def read(cls, inputs: Mapping[str, Path]) -> FoldData:
        """Read outcomes, embeddings and splits. With several folds their rows are in `canonical_rows`.

        A fit draws rows by their place. Without that order, a table with its rows in another order would give
        another router.
        """
        table = outcomes_of(inputs)
        vectors = embeddings_of(inputs)
        splits = splits_of(inputs)
        if len(splits) == 1:
            return cls(table, vectors, splits)
        rows = canonical_rows(table)
        return cls(table.take(rows), np.asarray(vectors)[rows], [split[rows] for split in splits])


def tuned_options(inputs: Mapping[str, Path], fold: int = 0) -> dict[str, dict[str, Any]]:
    """Return {policy: options} that the tuning of a fold chose.

    The options are empty if the preset was kept. A policy that was not tuned is left out, since it has
    nothing to tune or the pool's budget for tuning is 0.
    """
    path = fold_folder(inputs["tuning"], fold) / "tuning.json"
    chosen = json.loads(path.read_text(encoding="utf-8"))
    return {policy: dict(entry.get("options", {})) for policy, entry in chosen.items()}


def plain(value: Any) -> Any:
    """Return a value as JSON values, for records.

    Dataclasses and mappings become objects with texts as keys. Arrays, tuples and sets become lists. A number
    that is not finite, and any object of another kind, becomes its text.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)
