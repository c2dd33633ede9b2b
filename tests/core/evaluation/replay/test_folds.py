"""Folds of a table, each replayed alone, become one problem and one replay."""

from __future__ import annotations

import numpy as np

from cabs_core import synthetic_problem
from cabs_core.algorithms.problem.folds import join_folds
from cabs_core.evaluation.replay import replay
from cabs_core.evaluation.replay.folds import join_results


def test_a_joined_replay_plays_what_each_fold_played_and_earns_what_the_joined_problem_says() -> None:
    first, second = synthetic_problem(n=30, K=3, d=4, seed=0), synthetic_problem(n=20, K=3, d=4, seed=1)
    wider = (np.hstack([x, x[:, :2]]) for x in (second.contexts, second.offline_contexts))
    problems = [first, second.with_contexts(*wider)]
    results = [replay(p, "lin_ucb", rho=100.0, trials=2, pool=f"fold {i}") for i, p in enumerate(problems)]
    joined, result = join_folds(problems), join_results(results, [30, 20], "mine")
    assert joined.n == 50 and joined.dim == 6 and len(joined.offline_scores) == 0
    assert result.pool == "mine" and result.actions.shape == (2, 50)
    for row in result.order:
        assert sorted(row.tolist()) == list(range(50)) and (row[:30] < 30).all()
    np.testing.assert_array_equal(joined.scores[result.order, result.actions], result.scores)
    np.testing.assert_array_equal(result.rewards[:, 30:], results[1].rewards)


def test_a_single_fold_is_the_problem_itself() -> None:
    problem = synthetic_problem(n=20, K=3, d=4)
    assert join_folds([problem]) is problem
