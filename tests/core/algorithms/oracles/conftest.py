"""Small outcomes whose scores depend on the embedding and are correlated between arms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from cabs_core.data.outcomes import Outcomes, make_splits
from cabs_core.data.pool_files.config import ModelPool
from cabs_core.data.pool_files.sections import Split
from cabs_core.data.pool_files.table import SyntheticSource, TablePool


@dataclass(frozen=True)
class Data:
    """Outcomes, their embeddings, the split and a pool."""

    outcomes: Outcomes
    embeddings: np.ndarray
    split: np.ndarray
    pool: ModelPool


def named(i: int) -> str:
    """A word for a number: prompts that differ in numbers alone are near-duplicates."""
    return "".join(chr(ord("a") + int(digit)) for digit in str(i))


def make_data(n: int = 500, k: int = 4, seed: int = 0) -> Data:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 12))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    skill = rng.normal(size=(12, k)) * 2.0 + np.linspace(-1.0, 1.0, k)
    hard = rng.normal(size=n)  # unseen by the embedding: what makes one arm's score tell about the others
    chance = 1.0 / (1.0 + np.exp(-(x @ skill + 1.5 * hard[:, None])))
    scores = (rng.random((n, k)) < chance).astype(np.float64)
    words = rng.integers(5, 200, n)
    content = 1.0 + 0.8 * np.tanh(3.0 * x[:, 0])
    costs = 1e-6 * words[:, None] * content[:, None] * np.linspace(1.0, 4.0, k)
    outcomes = Outcomes(
        query_ids=np.array([f"q{i}" for i in range(n)]),
        prompts=[f"prompt {named(i)} " + "w" * int(words[i]) for i in range(n)],
        tasks=np.array([f"task{i % 5}" for i in range(n)]),
        arms=[f"arm{j}" for j in range(k)],
        scores=scores,
        costs=costs,
    )
    pool = TablePool(name="small", source=SyntheticSource(kind="synthetic"), split=Split())
    return Data(outcomes, x.astype(np.float32), make_splits(outcomes, pool.split), pool)


@pytest.fixture(scope="session")
def data() -> Data:
    return make_data()


@pytest.fixture(scope="session")
def auto(data):
    """Oracles of kind auto, trained once."""
    from cabs_core.algorithms.oracles.train import train_oracles
    from cabs_core.data.pool_files.sections import Oracle

    return train_oracles(
        data.embeddings, data.outcomes, data.split, Oracle(max_epochs=20, learning_rate=1e-3)
    )
