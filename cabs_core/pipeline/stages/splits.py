"""Stage `splits`: which queries train the oracles, which are for tuning, and which are routed online.

With several folds the columns `split`, `split_1`, ... hold one split per fold; each query is routed in one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cabs_core.data.inputs import outcomes_of, split_column
from cabs_core.data.outcomes import splits_of_pool
from cabs_core.pipeline.artifacts.results import Summary
from cabs_core.pipeline.stages.outcomes import checked

if TYPE_CHECKING:
    from cabs_core.pipeline.artifacts import Chain, Options, Target


@dataclass(frozen=True, kw_only=True)
class SplitsSummary(Summary):
    """Sizes of the splits.

    Attributes:
        sizes: {split: number of queries} of the first fold. folds: number of folds.
    """

    sizes: dict[str, int]
    folds: int = 1

    def shown(self) -> dict[str, Any]:
        """Return the figures that are shown for the stage, with every size under its split's name."""
        return {**super().shown(), **self.sizes, "folds": self.folds}


def build(
    chain: Chain, target: Target, folder: Path, inputs: dict[str, Path], options: Options
) -> SplitsSummary:
    """Assign every query to train, validation or test; queries of one prompt stay together.

    With several folds, every query is tested in one of them. A single fold follows the pool's stress
    condition, `replay.condition` of the pool file: under `task_shift` and `severe_shift` the test split is
    whole tasks, and the other conditions do not change the split. The splits of all folds are written to
    `splits.parquet`. Only the first fold's split is checked and summed up.
    """
    table = outcomes_of(inputs)
    splits = splits_of_pool(table, chain.pool)
    columns = {split_column(fold): split.tolist() for fold, split in enumerate(splits)}
    pq.write_table(pa.table({"query_id": table.query_ids.tolist(), **columns}), folder / "splits.parquet")
    names, counts = np.unique(splits[0], return_counts=True)
    sizes = {str(n): int(c) for n, c in zip(names, counts)}
    found = checked("splits", table, chain.pool, splits[0])
    return SplitsSummary(rows=len(table), sizes=sizes, folds=len(splits), **found)
