"""Some of a pool's policies: only they are tuned, nothing that was tuned is lost, and the rest follows
later."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests_support import TINY, chain_of, home_with

from cabs_core.pipeline.artifacts import Options, make_artifact


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A CABS_HOME in which the chain of the tiny pool has run up to the replay problem."""
    monkeypatch.setenv("CABS_THREADS", "1")  # nothing is compiled ahead
    pool = TINY.replace("tuning_budget: 0", "tuning_budget: 2").replace("lin_ucb]", "lin_ucb, lin_ucb_full]")
    with home_with(pool, tmp_path):
        for name in chain_of().stages:
            if name not in ("tuning", "router"):
                make_artifact(chain_of(), chain_of().stage(name))
        yield tmp_path


def test_only_the_chosen_policies_are_tuned(home: Path) -> None:
    notes: list[str] = []
    some = chain_of().over(["lin_ucb"])
    assert some.pool.policies == ("lin_ucb",) and some.pool_file.path == chain_of().pool_file.path
    made = make_artifact(some, some.stage("tuning"), Options(notify=notes.append))
    first = json.loads((made.folder / "tuning.json").read_text())
    assert set(first) == {"lin_ucb"}
    (note,) = notes
    assert "lin_ucb" in note and "1 of 2 configurations" in note and "50 %" in note
    again = chain_of().over(["lin_ucb"])
    assert again.status(again.stage("tuning")).state == "fresh"

    whole = chain_of()
    assert whole.status(whole.stage("tuning")).state == "stale"
    made = make_artifact(whole, whole.stage("tuning"), Options(notify=notes.append))
    both = json.loads((made.folder / "tuning.json").read_text())
    assert set(both) == {"lin_ucb", "lin_ucb_full"} and both["lin_ucb"] == first["lin_ucb"]
    assert [text.split(":")[0] for text in notes] == ["tuning lin_ucb", "tuning lin_ucb_full"]

    some = chain_of().over(["lin_ucb"])  # what is tuned stays, so nothing is to be done
    assert some.pool.policies == whole.pool.policies
    assert some.status(some.stage("tuning")).state == "fresh"
    assert whole.over(()) is whole
