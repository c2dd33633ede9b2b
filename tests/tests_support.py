"""Helpers that several test modules use: a tiny pool, and artifacts without the work behind them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cabs_core.artifacts import ArtifactStore, Chain, Target, make_artifact
from cabs_core.pools import find_pool

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


def chain_of(pool: str = "tiny") -> Chain:
    """The chain of a pool as it is on disk now."""
    return Chain(ArtifactStore(), find_pool(pool))


def stand_in(text: str = "stand-in", **summary):
    """The work of a stage that writes one file."""

    def build(chain, target, folder: Path, inputs, options) -> dict:
        (folder / "data.txt").write_text(text, encoding="utf-8")
        return {"parts": {}, **summary}

    return build


def finished_stages(until: str = "router") -> None:
    """Stand-ins for the stages of the pool `tiny`, with true records."""
    for name in chain_of().stages:
        make_artifact(chain_of(), chain_of().stage(name), build=stand_in(name))
        if name == until:
            return


def finished_replay(rho: float, policy: str) -> Target:
    """A stand-in for a replay of the pool `tiny`, with a true record."""
    finished_stages()
    target = Target("replay", chain_of().pool, rho, policy)
    make_artifact(chain_of(), target, build=stand_in())
    return target
