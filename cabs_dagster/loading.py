"""Reading the artifacts of earlier stages, given `{stage: folder}` of verified inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def outcomes_of(inputs: dict[str, Path]):
    """The `Outcomes` table."""
    from cabs_core.outcomes import Outcomes

    return Outcomes.load(inputs["outcomes"])


def split_of(inputs: dict[str, Path]) -> np.ndarray:
    """`[n]` array of train, validation or test."""
    import pyarrow.parquet as pq

    return np.array(pq.read_table(inputs["splits"] / "splits.parquet")["split"].to_pylist())


def embeddings(inputs: dict[str, Path]) -> np.ndarray:
    """`[n, e]` float32, memory-mapped."""
    return np.load(inputs["prompt_embeddings"] / "embeddings.npy", mmap_mode="r", allow_pickle=False)
