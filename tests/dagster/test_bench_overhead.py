"""The clock of `cabs bench overhead` runs while replays are played and written, and only then."""

from __future__ import annotations

import time

import pytest

from cabs_core.replay import storage
from cabs_dagster import replaying
from cabs_dagster.bench.overhead import _clock, _compared


def test_the_clock_runs_within_replays_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying, "run_replay", lambda seconds: time.sleep(seconds))
    monkeypatch.setattr(storage, "save_replay_result", lambda: 1 / 0)
    mine = replaying.run_replay, storage.save_replay_result
    begin = time.perf_counter()
    with _clock() as clock:
        replaying.run_replay(0.05)
        time.sleep(0.2)
        replaying.run_replay(0.05)
        with pytest.raises(ZeroDivisionError):
            storage.save_replay_result()
    whole = time.perf_counter() - begin
    assert 0.1 <= clock.spent[0] <= whole - 0.2 and clock.spent[1] <= clock.spent[0]
    assert (replaying.run_replay, storage.save_replay_result) == mine


def test_the_rest_is_a_share_of_the_replays() -> None:
    found = _compared([(2.0, 3.0), (2.0, 5.0)], [(0.3, 0.4), (0.1, 0.4)], 1)
    assert found == {"replay": [3.0, 5.0], "rest": [0.4, 0.4], "added": 0.1}
