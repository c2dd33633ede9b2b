"""A tiny pool whose chain takes seconds: generated outcomes, TF-IDF instead of a network, two rhos, two trials."""

from __future__ import annotations

from pathlib import Path

import pytest

TINY = """\
name: tiny
synthetic: true
source: {kind: synthetic, queries: 240}
split: {fractions: [0.5, 0.2, 0.3]}
encoder: {name: tfidf-svd}
oracle: {kind: ridge}
features: {kind: pca, dim: 8}
replay: {trials: 2, rhos: [0, 500]}
tuning_budget: 0
policies: [random, best_single, lin_ucb]
"""


@pytest.fixture
def tiny_pool(cabs_home: Path) -> Path:
    """The tiny pool's file, in the pool folder of a fresh CABS_HOME."""
    path = cabs_home / "pools" / "tiny.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(TINY, encoding="utf-8")
    return path
