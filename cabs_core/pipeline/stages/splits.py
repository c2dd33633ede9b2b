"""Stage `splits`: which queries train the oracles, which are for tuning, and which are routed online."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cabs_core.data.inputs import outcomes_of
from cabs_core.data.outcomes import split_under
from cabs_core.pipeline.artifacts.results import Summary
from cabs_core.pipeline.stages.outcomes import checked

if TYPE_CHECKING:
    from cabs_core.pipeline.artifacts import Chain, Options, Target


@dataclass(frozen=True, kw_only=True)
class SplitsSummary(Summary):
    """`sizes`: {split: number of queries}."""

    sizes: dict[str, int]

    def shown(self) -> dict[str, Any]:
        return {**super().shown(), **self.sizes}


def build(
    chain: Chain, target: Target, folder: Path, inputs: dict[str, Path], options: Options
) -> SplitsSummary:
    """Assign every query to train, validation or test by whole prompts, under the pool's stress condition."""
    table = outcomes_of(inputs)
    split = split_under(table, chain.pool.split, chain.pool.replay.condition)
    rows = pa.table({"query_id": table.query_ids.tolist(), "split": split.tolist()})
    pq.write_table(rows, folder / "splits.parquet")
    names, counts = np.unique(split, return_counts=True)
    sizes = {str(n): int(c) for n, c in zip(names, counts)}
    return SplitsSummary(rows=len(split), sizes=sizes, **checked("splits", table, chain.pool, split))
