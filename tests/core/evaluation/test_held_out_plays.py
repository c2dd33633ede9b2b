"""Plays on the validation queries of each fold: what is stored is what was played."""

import numpy as np
import pytest

from cabs_core import synthetic_problem
from cabs_core.evaluation.answer import play_shares
from cabs_core.evaluation.replay.held_out import validation_plays


def test_the_shares_of_a_fold_are_those_that_its_policy_played_in_three_orders() -> None:
    problems = [synthetic_problem(n=40, K=3, d=4, name=f"p{fold}", seed=fold) for fold in range(2)]
    plays = validation_plays([(problem, {}) for problem in problems], ["ridge", "best_single"], [0.0, 300.0])
    assert set(plays["policy"]) == {"ridge", "best_single"}
    for fold, problem in enumerate(problems):
        for _, rows in plays[plays["fold"] == fold].groupby(["policy", "rho"]):
            assert rows["plays"].sum() == 3 * problem.n
            shares = play_shares(rows, np.asarray(problem.query_ids), problem.arms)
            assert shares.sum(axis=1) == pytest.approx(1.0)


def test_a_query_that_nobody_played_has_no_shares() -> None:
    problem = synthetic_problem(n=40, K=3, d=4)
    plays = validation_plays([(problem, {})], ["best_single"], [0.0])
    some = plays[plays["query_id"] == str(problem.query_ids[3])]
    shares = play_shares(some, np.asarray(problem.query_ids)[:5], problem.arms)
    assert np.isnan(shares[[0, 1, 2, 4]]).all()
    assert shares[3].max() == 1.0


def test_plays_of_queries_that_are_not_asked_for_do_not_count() -> None:
    problem = synthetic_problem(n=40, K=3, d=4)
    plays = validation_plays([(problem, {})], ["ridge"], [300.0])
    query_ids = np.asarray(problem.query_ids)
    shares = play_shares(plays, query_ids, problem.arms)
    assert play_shares(plays, query_ids[:5], problem.arms) == pytest.approx(shares[:5])


def test_neither_the_name_of_the_pool_nor_a_policy_that_cannot_be_played_changes_the_plays() -> None:
    problems = [synthetic_problem(n=40, K=3, d=4, name=name, seed=1) for name in ("a", "b")]
    first, second = (validation_plays([(p, {})], ["lin_ts"], [300.0]) for p in problems)
    assert first.drop(columns="query_id").equals(second.drop(columns="query_id"))
    broken = validation_plays([(problems[0], {"ridge": {"no_such": 1}})], ["ridge", "lin_ts"], [300.0])
    assert set(broken["policy"]) == {"lin_ts"}
