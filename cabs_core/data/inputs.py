"""Reading the artifacts of earlier stages, given `{stage: folder}` of verified inputs."""

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
    """The outcome table."""
    return Outcomes.load(inputs["outcomes"])


def split_of(inputs: Mapping[str, Path]) -> np.ndarray:
    """`[n]` array of train, validation or test: the split of the first fold."""
    return splits_of(inputs)[0]


def splits_of(inputs: Mapping[str, Path]) -> list[np.ndarray]:
    """One array `[n]` of train, validation or test per fold."""
    table = pq.read_table(inputs["splits"] / "splits.parquet")
    names = [split_column(fold) for fold in range(table.num_columns)]
    return [np.array(table[name].to_pylist()) for name in names if name in table.column_names]


def split_column(fold: int) -> str:
    """Column of splits.parquet with the split of a fold."""
    return "split" if fold == 0 else f"split_{fold}"


def fold_folder(folder: Path, fold: int) -> Path:
    """Folder of a fold within the folder of an artifact; the first fold lies at the top."""
    return folder if fold == 0 else folder / f"fold_{fold}"


def embeddings_of(inputs: Mapping[str, Path]) -> np.ndarray:
    """`[n, e]` float32, memory-mapped."""
    path = inputs["prompt_embeddings"] / "embeddings.npy"
    embeddings: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    return embeddings


def folds_of(folder: Path) -> int:
    """Number of folds in the folder of an artifact: the first lies at its top, the others in `fold_1`, ..."""
    return 1 + sum(1 for path in folder.glob("fold_*") if path.is_dir())


def canonical_rows(table: Outcomes) -> np.ndarray:
    """`[n]` rows of the table by prompt and query id: an order that the table's own order does not change."""
    return np.lexsort((table.query_ids, np.array(table.prompts, dtype=np.str_)))


def encoder_prompts(table: Outcomes, splits: Sequence[np.ndarray]) -> list[str]:
    """Prompts that a fitted encoder, such as tfidf-svd, learns its words from.

    The train prompts of a single split. With several folds every prompt is held out in one of them, and the
    encoder is fitted once, on the texts of all prompts; it never sees a score or a cost.
    """
    if len(splits) > 1:
        return table.prompts
    return [prompt for prompt, part in zip(table.prompts, splits[0]) if part == "train"]


@dataclass(frozen=True)
class FoldData:
    """What the folds of a table are fitted on.

    Attributes:
        table: the outcomes; see `table_of` for those of a fold.
        vectors: `[n, e]` float32, its embeddings. splits: one `[n]` array per fold.
    """

    table: Outcomes
    vectors: np.ndarray
    splits: list[np.ndarray]

    def table_of(self, split: np.ndarray) -> Outcomes:
        """Return the outcomes as a fold of this split may know them.

        Of a log, one model answered each prompt and the others' outcomes are predicted. With several folds
        they are predicted from the fold's own train prompts, so that no test prompt has a say in what is
        fitted.
        """
        if len(self.splits) == 1 or self.table.answered is None:
            return self.table
        return predicted_from(self.table, np.flatnonzero(split == "train"))

    @classmethod
    def read(cls, inputs: Mapping[str, Path]) -> FoldData:
        """Read outcomes, embeddings and splits; with several folds all of them in `canonical_rows`.

        A fit draws rows by their place, so without that order a table with its rows in another order would
        give another router.
        """
        table = outcomes_of(inputs)
        vectors = embeddings_of(inputs)
        splits = splits_of(inputs)
        if len(splits) == 1:
            return cls(table, vectors, splits)
        rows = canonical_rows(table)
        return cls(table.take(rows), np.asarray(vectors)[rows], [split[rows] for split in splits])


def tuned_options(inputs: Mapping[str, Path], fold: int = 0) -> dict[str, dict[str, Any]]:
    """{policy: options that the tuning of a fold chose}, without the policies that have nothing to tune."""
    path = fold_folder(inputs["tuning"], fold) / "tuning.json"
    chosen = json.loads(path.read_text(encoding="utf-8"))
    return {policy: dict(entry.get("options", {})) for policy, entry in chosen.items()}


def plain(value: Any) -> Any:
    """Dataclasses, arrays and tuples as JSON-able values, for records."""
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
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
