"""Dagster's own staleness says what the planner says: per setting, per pool."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver
from dagster._core.loader import LoadingContextForTest

from cabs_core.pools import find_pool
from cabs_dagster.build import build_defs
from cabs_dagster.external import observe, settings_key
from cabs_dagster.instance import open_instance
from cabs_dagster.partitions import grid_key
from cabs_dagster.planning import Chain
from cabs_dagster.running import Runner
from cabs_dagster.storage import ArtifactStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

REPLAY = dg.AssetKey(["replay", "lin_ucb"])


@pytest.fixture(scope="module")
def defs() -> dg.Definitions:
    return build_defs()


def stale(
    instance: dg.DagsterInstance, defs: dg.Definitions, key: str | dg.AssetKey, partition: str
) -> list[str]:
    """Reasons why Dagster colours a partition stale; raises when it is not there."""
    key = dg.AssetKey(key) if isinstance(key, str) else key
    resolver = CachingStaleStatusResolver(
        instance, defs.resolve_asset_graph(), LoadingContextForTest(instance)
    )
    assert resolver.get_status(key, partition).value != "MISSING", (key, partition)
    causes = resolver.get_stale_causes(key, partition)
    return sorted(
        f"{c.dependency.asset_key.to_user_string()}: {c.reason}" if c.dependency else c.reason for c in causes
    )


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_a_changed_setting_colours_what_reads_it_and_nothing_else(
    tiny_pool: Path, defs: dg.Definitions
) -> None:
    cell = str(grid_key("tiny", 0))
    with open_instance() as instance:
        Runner(instance, defs=defs).run_pool(find_pool("tiny"), rhos=[0], policies=["lin_ucb"], report=False)
        stages = ("outcomes", "splits", "prompt_embeddings", "oracles", "replay_problem", "tuning")
        assert not any(stale(instance, defs, stage, "tiny") for stage in stages)
        assert stale(instance, defs, REPLAY, cell) == []

        edit(tiny_pool, "trials: 2", "trials: 3")
        assert stale(instance, defs, REPLAY, cell) == []  # nobody has looked at the file yet
        observe(instance, Chain(ArtifactStore(), find_pool("tiny")))
        assert not any(stale(instance, defs, stage, "tiny") for stage in stages)
        (reason,) = stale(instance, defs, REPLAY, cell)
        assert reason.startswith("settings/replay")

        Runner(instance, defs=defs).run_pool(find_pool("tiny"), rhos=[0], policies=["lin_ucb"], report=False)
        assert stale(instance, defs, REPLAY, cell) == []

        edit(tiny_pool, "fractions: [0.5, 0.2, 0.3]", "fractions: [0.4, 0.3, 0.3]")
        observe(instance, Chain(ArtifactStore(), find_pool("tiny")))
        assert stale(instance, defs, "outcomes", "tiny") == []
        (reason,) = stale(instance, defs, "splits", "tiny")
        assert reason.startswith("settings/splits")


def test_the_same_settings_are_observed_once(tiny_pool: Path) -> None:
    with open_instance() as instance:
        chain = Chain(ArtifactStore(), find_pool("tiny"))
        for _ in range(3):
            observe(instance, chain)
        found = instance.fetch_observations(settings_key("replay"), limit=10)
        assert len(found.records) == 1


def test_a_new_pool_leaves_the_reports_of_the_others_fresh(tiny_pool: Path, defs: dg.Definitions) -> None:
    with open_instance() as instance:
        Runner(instance, defs=defs).run_pool(find_pool("tiny"), rhos=[0], policies=["random", "lin_ucb"])
        assert stale(instance, defs, "report", "tiny") == []
        other = tiny_pool.with_name("other.yaml")
        text = tiny_pool.read_text(encoding="utf-8").replace("name: tiny", "name: other")
        other.write_text(text.replace("queries: 240", "queries: 240, seed: 5"), encoding="utf-8")
        Runner(instance, defs=defs).run_pool(find_pool("other"), rhos=[0], policies=["random", "lin_ucb"])
        assert stale(instance, defs, "report", "other") == []
        assert stale(instance, defs, "report", "tiny") == []

        Runner(instance, defs=defs).run_pool(find_pool("tiny"), rhos=[500], policies=["random"], report=False)
        Runner(instance, defs=defs)._marts({})  # the marts alone: now the report is behind them
        (reason,) = stale(instance, defs, "report", "tiny")
        assert reason.startswith("pool_results")
        assert stale(instance, defs, "report", "other") == []
