"""Reading the artifacts of earlier stages, given `{stage: folder}` of verified inputs."""

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from cabs_core.data.outcomes.table import Outcomes


def outcomes_of(inputs: Mapping[str, Path]) -> Outcomes:
    """The outcome table."""
    return Outcomes.load(inputs["outcomes"])


def split_of(inputs: Mapping[str, Path]) -> np.ndarray:
    """`[n]` array of train, validation or test."""
    return np.array(pq.read_table(inputs["splits"] / "splits.parquet")["split"].to_pylist())


def embeddings_of(inputs: Mapping[str, Path]) -> np.ndarray:
    """`[n, e]` float32, memory-mapped."""
    path = inputs["prompt_embeddings"] / "embeddings.npy"
    embeddings: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    return embeddings


def tuned_options(inputs: Mapping[str, Path]) -> dict[str, dict[str, Any]]:
    """{policy: options that the tuning chose}, without the policies that have nothing to tune."""
    chosen = json.loads((inputs["tuning"] / "tuning.json").read_text(encoding="utf-8"))
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
