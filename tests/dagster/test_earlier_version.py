"""The home of an earlier version is called old by every command, and `cabs run` makes all of it again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests_support import chain_of, finished_replay, make_home_of_earlier_version, output_of

from cabs_core.pipeline.artifacts import ArtifactStore
from cabs_core.pipeline.retention import remove_replays_of_other_versions

OLD = "made by an earlier version"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_files_of_an_earlier_version_are_called_old_and_made_again_without_a_hand(ran: Path) -> None:
    replays = ran / "artifacts" / "replay" / "tiny"
    shutil.copytree(replays / "0000", replays / "0900")  # the pool file does not name this rho any more
    make_home_of_earlier_version(ran)
    for words, code in (
        (["plan", "tiny"], 0),
        (["check", "tiny", "--quick"], 1),
        (["export", "tiny", "--out", str(ran / "router")], 2),
        (["report", "tiny"], 0),
    ):
        output = output_of(*words, code=code)
        assert OLD in output and "cabs run" in output, (words, output)
        assert "delete the folder" not in output and "cannot be read" not in output, (words, output)
    assert "0 traces" in output_of("prune", "--older-than", "0")
    output_of("run", "tiny")
    assert not list(replays.glob("0900/*")), "no run would make these replays again"
    assert {status.state for status in chain_of().overview()} == {"fresh"}
    assert OLD not in output_of("plan", "tiny")
    page = ArtifactStore().folder(("reports", "tiny")) / "index.html"
    assert OLD not in page.read_text(encoding="utf-8")


def test_replays_of_an_earlier_version_that_no_pool_file_names_are_removed_and_no_others(
    tiny_pool: Path,
) -> None:
    named = finished_replay(0.0, "lin_ucb")
    foreign = finished_replay(900.0, "lin_ucb")
    store = ArtifactStore()
    assert remove_replays_of_other_versions(chain_of()) == [], "replays of this version stay"
    make_home_of_earlier_version(store.root.parent)
    assert len(remove_replays_of_other_versions(chain_of())) == 1
    assert store.record(foreign.parts) is None and store.record(named.parts) is not None
