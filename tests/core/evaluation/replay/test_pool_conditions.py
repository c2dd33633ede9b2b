"""A condition named in a pool file reaches the replay, and the tuning, splits and oracles where it concerns
them."""

from __future__ import annotations

import numpy as np
import pytest

from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.base.catalog.conditions import CONDITIONS, STREAM_CONDITIONS
from cabs_core.data.pools.find import load_pool_file
from cabs_core.evaluation.replay import replay
from cabs_core.pipeline.artifacts.stages import pick
from cabs_core.pipeline.stages.replay import play

FILE = """
name: stressed
source: {kind: synthetic}
split: {test_tasks: [task-0]}
replay: {trials: 2, rounds: 60, condition: %s}
"""


@pytest.fixture
def root(tmp_path):
    problem = synthetic_problem(n=80, K=4, d=5, offline=40)
    problem.save(tmp_path / "test")
    return tmp_path


@pytest.mark.parametrize("condition", CONDITIONS)
def test_the_pool_files_condition_is_what_is_replayed(root, condition):
    path = root / "stressed.yaml"
    path.write_text(FILE % condition)
    pool = load_pool_file(path).pool
    problem = ReplayProblem.load(root / "test")
    result = play(pool, problem, {}, 300.0, "lin_ucb", 2)
    stream = condition if condition in STREAM_CONDITIONS else "none"
    same = replay(problem, "lin_ucb", 300.0, 2, pool="stressed", rounds=60, condition=stream)
    np.testing.assert_array_equal(result.actions, same.actions)
    np.testing.assert_array_equal(result.order, same.order)
    assert result.condition == stream
    plain = replay(problem, "lin_ucb", 300.0, 2, pool="stressed", rounds=60)
    differs = not np.array_equal(plain.order, same.order) or not np.array_equal(plain.actions, same.actions)
    assert differs == (stream != "none")
    # data-level conditions were applied when splits and labels were made
    assert (pick(pool, ("shift", "labels")) != {"shift": "none", "labels": "true"}) == (
        condition not in ("none", *STREAM_CONDITIONS)
    )
