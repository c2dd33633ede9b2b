"""Rules by task and routers by fold in tables with ties, free calls, gaps and unjudged prompts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from cabs_core.evaluation.answer import (
    RouterCandidate,
    ScoredTable,
    choose_router,
    fit_rules,
    play_shares,
    rule_for_all,
)


def table_of(scores: list[list[float]], costs: list[list[float]], **fields: object) -> ScoredTable:
    """Return a table of today's model and others, whose prompts are of one task."""
    n, k = np.shape(scores)
    models = ("today", "z", "a")[:k]
    given = {"tasks": np.full(n, "t"), "clusters": np.arange(n), "today": 0} | fields
    return ScoredTable(models, np.array(scores), np.array(costs), **given)


def constant(scores: list[float], costs: list[float]) -> ScoredTable:
    return table_of([scores] * 20, [costs] * 20)


@pytest.mark.parametrize(
    ("scores", "costs", "chosen"),
    [
        ([0.5, 0.5], [0.1, 0.1], 0),  # of equals today's model
        ([0.5, 0.6, 0.6], [0.1, 0.1, 0.1], 2),  # of other equals the first by name
        ([0.5, 0.53], [0.1, 0.2], 0),  # of equal worth the cheaper one: 0.03 is gained at twice the cost
        ([0.5, 0.54], [0.1, 0.2], 1),
        ([0.5, 0.51], [0.0, 0.0], 1),  # nothing is saved and nothing is lost where nothing is paid
        ([0.5, 0.49], [0.0, 0.0], 0),
        ([0.5, 0.9], [0.0, 0.1], 0),  # no gain is worth a cost where today's model is free
        ([0.5, 0.48], [0.1, 0.0], 1),  # the whole cost is worth 0.03
        ([0.5, 0.46], [0.1, 0.0], 0),
    ],
)
def test_the_model_of_a_task_by_scores_and_costs(
    scores: list[float], costs: list[float], chosen: int
) -> None:
    assert rule_for_all(constant(scores, costs), np.full(20, "t")) == {"t": chosen}


def test_the_best_model_of_a_log_is_compared_with_what_was_played() -> None:
    played = np.tile([1.0, 0.0, 0.0], (20, 1))
    table = replace(constant([0.5, 0.6, 0.9], [0.1, 0.1, 0.1]), today=None, played=played)
    assert rule_for_all(table, np.full(20, "t")) == {"t": 2}


def rule_of_a_small_and_a_large_task(gap: np.ndarray, score: float, copies: int) -> dict[object, int]:
    """Return the rule for a task of one prompt and a task of twenty, each prompt with copies.

    Args:
        gap: score of the other model less `score`, the one of today's model, in 21 prompts; the first one is
            the small task.
    """
    scores = np.column_stack([np.full(21, score), score + gap])
    groups = np.array(["small"] + ["large"] * 20)
    row = np.repeat(np.arange(21), copies)
    table = table_of(scores[row].tolist(), [[0.1, 0.1]] * len(row), clusters=row)
    return rule_for_all(table, groups[row])


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize(("loss", "chosen"), [(0.065, 1), (0.068, 0)])
def test_a_loss_in_one_prompt_is_drawn_towards_the_gain_in_twenty(
    loss: float, chosen: int, copies: int
) -> None:
    """The other model loses `loss` in a task of one prompt, and is 0.15 better than that in a task of twenty.

    The variances of the two means are 0.01 and 0.0005. Between tasks the variance is (95.24 * 0.15^2 - 1) /
    190.48 = 0.006, so tasks weigh 1 / 0.016 and 1 / 0.0065 and have the mean 0.289 d + 0.711 (d + 0.15). The
    estimate of the small task is 0.625 of this mean and 0.375 d, which is 0.0667 - loss for d = -loss.
    """
    gap = np.full(21, 0.15 - loss)
    gap[0] = -loss
    assert rule_of_a_small_and_a_large_task(gap, 0.5, copies) == {"large": 1, "small": chosen}


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize(("loss", "chosen"), [(0.195, 1), (0.205, 0)])
def test_scattered_gains_count_with_their_own_variance(loss: float, chosen: int, copies: int) -> None:
    """All figures of the test above are three times as large.

    The 20 prompts of the large task differ from their mean by r = .3074, so that the variance of a difference
    is 20 r^2 / 21 = 0.09.
    """
    gap = 0.45 - loss + 0.3074 * np.tile([1.0, -1.0], 11)[:21]
    gap[0] = -loss
    assert rule_of_a_small_and_a_large_task(gap, 0.4, copies) == {"large": 1, "small": chosen}


def test_a_task_without_answers_of_the_other_model_keeps_todays() -> None:
    table = constant([0.5, 0.9], [0.1, 0.1])
    groups = np.repeat(["t", "u"], 10)
    table.scores[10:, 1] = np.nan
    assert rule_for_all(table, groups) == {"t": 1, "u": 0}


def test_a_fold_is_judged_by_rules_of_the_other_folds_and_unjudged_prompts_count_for_all() -> None:
    """The other model wins in fold 0, loses in fold 1, and wins clearly in the prompts that nobody judges."""
    folds = np.repeat([0, 1, -1], 20)
    gap = np.repeat([0.2, -0.4, 0.1], 20)
    table = table_of(np.column_stack([np.full(60, 0.5), 0.5 + gap]).tolist(), [[0.1, 0.1]] * 60)
    found = fit_rules(table, np.full(60, "t"), folds)
    # for fold 0 the others have the mean -0.15, for fold 1 they have 0.15, and all have -0.033
    np.testing.assert_array_equal(found.weights[:20], np.tile([1.0, 0.0], (20, 1)))
    assert found.use == {"t": "today"}
    np.testing.assert_array_equal(found.exported, table.single(0))
    assert np.isnan(found.weights[40:]).all()
    # rules that keep today's model play it in every fold
    np.testing.assert_array_equal(found.weights[20:40], np.tile([1.0, 0.0], (20, 1)))


def test_folds_differ_where_the_rules_of_all_prompts_change_todays_model() -> None:
    folds = np.repeat([0, 1], 20)
    gap = np.repeat([0.4, -0.2], 20)
    table = table_of(np.column_stack([np.full(40, 0.5), 0.5 + gap]).tolist(), [[0.1, 0.1]] * 40)
    found = fit_rules(table, np.full(40, "t"), folds)
    assert found.use == {"t": "z"}
    np.testing.assert_array_equal(found.weights, np.repeat([[1.0, 0.0], [0.0, 1.0]], 20, axis=0))
    np.testing.assert_array_equal(found.exported, table.single(1))


def test_rules_of_one_fold_are_never_judged() -> None:
    table = constant([0.5, 0.9], [0.1, 0.1])
    found = fit_rules(table, np.full(20, "t"), np.zeros(20, dtype=int))
    assert np.isnan(found.weights).all()
    assert found.use == {"t": "z"}


def test_prompts_are_routed_by_the_guessed_task_and_unknown_tasks_keep_todays_model() -> None:
    table = constant([0.5, 0.9], [0.1, 0.1])
    guessed = np.array(["t", "new"] * 10)
    found = fit_rules(table, np.full(20, "t"), np.arange(20) // 2 % 2, guessed=guessed)
    expected = np.tile([[0.0, 1.0], [1.0, 0.0]], (10, 1))
    np.testing.assert_array_equal(found.weights, expected)
    np.testing.assert_array_equal(found.exported, expected)


def routers(parts: list[slice]) -> list[RouterCandidate]:
    """Return candidates that ask the other model on a part of twenty prompts and are unknown elsewhere."""
    candidates = []
    for number, part in enumerate(parts):
        weights = np.full((20, 2), np.nan)
        weights[part] = [0.0, 1.0]
        candidates.append(RouterCandidate("p", float(number), weights))
    return candidates


def test_candidates_are_compared_with_todays_model_on_their_own_prompts() -> None:
    easy = [[1.0, 0.9]] * 10
    hard = [[0.0, 0.5]] * 10
    table = table_of(easy + hard, [[0.1, 0.1]] * 20)
    assert choose_router(table, np.arange(20), routers([slice(10), slice(10, 20)])) == 1


def test_free_prompts_save_nothing() -> None:
    table = table_of([[0.5, 0.51]] * 10 + [[0.5, 0.5]] * 10, [[0.0, 0.0]] * 10 + [[0.1, 0.1]] * 10)
    assert choose_router(table, np.arange(20), routers([slice(10, 20), slice(10)])) == 1


def test_shares_of_an_unplayed_query_are_unknown_without_a_division_by_zero() -> None:
    plays = pd.DataFrame({"query_id": ["a"], "model": ["n"], "plays": [4]})
    with np.errstate(all="raise"):
        found = play_shares(plays, np.array(["a", "b"]), ["m", "n"])
    np.testing.assert_array_equal(found, [[0.0, 1.0], [np.nan, np.nan]])
