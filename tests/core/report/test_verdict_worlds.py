"""Worlds that break intervals of rows, a few tables each: `python -m benchmarks.verdict_worlds` has them all."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.verdict_worlds import GOALS, WORLDS, goal, repeated, verdict


@pytest.mark.parametrize("name", WORLDS)
def test_deploy_is_said_where_something_is_gained(name: str) -> None:
    """30 tables: a rate of 5 % gives more than 5 of them once in 500."""
    world, right = WORLDS[name]
    rng = np.random.default_rng(3)
    found = [verdict(world(rng, 100)) for _ in range(30)]
    said = sum(decision == "deploy" for decision, _ in found)
    assert said >= 14 if right else said <= 5
    if world is repeated:
        assert sum(by_rows for _, by_rows in found) >= 7, "what this world is for"


@pytest.mark.parametrize("kind", GOALS)
def test_goals_that_are_just_missed_are_not_promised(kind: str) -> None:
    rng = np.random.default_rng(5)
    assert sum(goal(kind, rng, 60) for _ in range(30)) <= 5
