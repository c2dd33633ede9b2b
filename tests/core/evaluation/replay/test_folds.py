"""Folds of a table, each replayed alone, become one problem and one replay."""

from __future__ import annotations

import numpy as np

from cabs_core import synthetic_problem
from cabs_core.algorithms.problem.folds import join_folds
from cabs_core.evaluation.replay import replay
from cabs_core.evaluation.replay.folds import join_results
from cabs_core.evaluation.replay.result import ReplayResult


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


def played(rounds: int, **traces: np.ndarray) -> ReplayResult:
    """Return two trials that play every query once, with scores and costs of 1."""
    ones = np.ones((2, rounds))
    order = np.tile(np.arange(rounds), (2, 1))
    return ReplayResult(
        "p", 1.0, order, np.zeros((2, rounds), int), ones, ones, ones, scores=ones, costs=ones, **traces
    )


def test_clusters_of_folds_are_counted_on_and_queries_without_clusters_stand_alone() -> None:
    folds = [played(4, clusters=np.array([0, 0, 1, 2])), played(2), played(3, clusters=np.array([1, 0, 1]))]
    joined = join_results(folds, [4, 2, 3], "mine")
    assert joined.clusters.tolist() == [0, 0, 1, 2, 3, 4, 6, 5, 6]
    assert joined.order[0].tolist() == list(range(9))


def test_figures_that_some_folds_lack_are_joined_from_the_others() -> None:
    gaps = np.full((2, 2), 0.5, np.float32)
    first = played(2, gaps=gaps, uncertified=np.array([1, 2]), seconds=np.array([0.5, 1.0]))
    other = played(2, uncertified=np.array([4, 8]), seconds=np.array([2.0, 4.0]))
    joined = join_results([first, other, played(1)], [2, 2, 1], "mine")
    np.testing.assert_array_equal(joined.gaps, [[0.5, 0.5, np.nan, np.nan, np.nan]] * 2)
    assert joined.uncertified.tolist() == [5, 10]
    assert joined.seconds.tolist() == [2.5, 5.0]


def test_figures_that_no_fold_has_are_unknown() -> None:
    joined = join_results([played(2), played(1)], [2, 1], "mine")
    assert (joined.gaps, joined.uncertified, joined.seconds, joined.meta_weights) == (None,) * 4
