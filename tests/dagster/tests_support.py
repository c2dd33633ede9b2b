"""Helpers that several test modules use: a tiny pool, and artifacts without the work behind them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cabs_dagster.making import make
from cabs_dagster.planning import Chain
from cabs_dagster.stages import POOL_STAGES, Target

#: Its chain takes seconds: generated outcomes, TF-IDF instead of a network, two rhos, two trials.
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


@contextmanager
def home_with(pool: str, home: Path) -> Iterator[None]:
    """Inside, `home` is CABS_HOME and holds the pool `tiny`: for fixtures that outlive a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CABS_HOME", str(home))
        patch.setenv("DAGSTER_HOME", str(home / "dagster"))
        patch.delenv("CABS_POOLS_DIR", raising=False)
        (home / "pools").mkdir()
        (home / "pools" / "tiny.yaml").write_text(pool, encoding="utf-8")
        yield


def finished_stages(chain: Chain) -> None:
    """Stand-ins for all pool stages, with true records."""
    for name in POOL_STAGES:
        make(Chain(chain.store, chain.pool_file), chain.stage(name), _write)


def finished_replay(chain: Chain, rho: float, policy: str) -> Target:
    """A stand-in for a replay, with a true record."""
    finished_stages(chain)
    target = Target("replay", chain.pool, rho, policy)
    make(Chain(chain.store, chain.pool_file), target, _write)
    return target


def _write(folder: Path, inputs: dict[str, Path]) -> dict:
    (folder / "rounds.parquet").write_text("stand-in")
    return {"parts": {}}
