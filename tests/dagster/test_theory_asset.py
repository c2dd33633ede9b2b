"""The asset `theory`: in a group of its own, made once, made again when a file of it is gone."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from cabs_core.pipeline.artifacts import ArtifactStore
from cabs_core.pipeline.theory import experiments
from cabs_dagster.resources import CabsResource


@pytest.mark.slow
def test_it_is_made_once_and_again_when_damaged(cabs_home: Path, monkeypatch) -> None:
    from cabs_assets.theory import theory as asset

    small = {name: each([0, 1], True) for name, each in experiments.EXPERIMENTS.items()}
    ran: list[int] = []

    def run(seeds: int) -> dict:
        ran.append(seeds)
        return small

    monkeypatch.setattr(experiments, "run", run)

    def make() -> dg.MaterializeResult:
        done = dg.materialize(
            [asset],
            resources={"cabs": CabsResource()},
            instance=instance,
            run_config={"ops": {"theory": {"config": {"seeds": 2}}}},
        )
        return done.asset_materializations_for_node("theory")[0]

    with dg.DagsterInstance.ephemeral() as instance:
        first = make()
        second = make()
        folder = ArtifactStore().folder(("theory",))
        (folder / "index.html").unlink()
        make()
    assert ran == [2, 2] and (folder / "index.html").is_file()
    assert "### E1" in first.metadata["summary"].value and second.metadata["link"].value.endswith("/_theory/")
