"""The answer: words, recommendation, and what must not change it."""

import csv
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cabs_core.evaluation.answer import (
    AnswerOptions,
    Decisions,
    RouterCandidate,
    ScoredTable,
    Word,
    answer,
    choose_router,
    cross_fitted_weights,
    fit_rules,
    losses,
    near_neighbours,
    option_worth,
    unlike_prompts,
)

CASE = Path(__file__).parents[5] / "shared" / "cases" / "answer_case.py"
MODELS = ("big", "mid", "cheap")


def made(n: int = 600, seed: int = 0, lost: float = 0.0, today: int | None = 0) -> ScoredTable:
    """Four tasks of one size. `mid` costs a third of `big` and is as good, but for `lost` in the last."""
    rng = np.random.default_rng(seed)
    tasks = np.array(["a", "b", "c", "d"])[np.arange(n) % 4]
    right = np.tile([0.85, 0.85, 0.6], (n, 1))
    right[tasks == "d", 1] -= lost
    easy = rng.random(n) < 0.7
    same = rng.random(n)
    drawn = np.where(easy[:, None], same[:, None], rng.random((n, 3)))
    costs = np.array([0.009, 0.003, 0.001]) * rng.lognormal(0.0, 0.4, (n, 3))
    return ScoredTable(MODELS, (drawn < right).astype(float), costs, tasks, np.arange(n), today)


def folds_of(table: ScoredTable) -> np.ndarray:
    return np.asarray(table.clusters) % 5


def test_a_model_that_is_as_good_at_a_third_of_the_price_is_recommended() -> None:
    found = answer(made(), options=AnswerOptions(requests_per_month=1000.0))
    switch = found.rung("switch")
    assert found.recommended == "switch"
    assert switch is not None
    assert (switch.use, switch.word) == ("mid", Word.CHEAPER)
    assert switch.cost_low < 1 / 3 < switch.cost_high
    assert switch.saving_per_month == pytest.approx(found.rung("keep").usd_per_1000 - switch.usd_per_1000)


def test_a_model_that_fails_in_one_task_gets_rules_that_keep_todays_there() -> None:
    table = made(1200, lost=0.4)
    found = answer(table, fit_rules(table, table.tasks, folds_of(table)))
    rules = found.rung("rules")
    assert found.recommended == "rules"
    assert rules is not None
    assert rules.use == {"a": "mid", "b": "mid", "c": "mid", "d": "big"}
    assert found.rung("switch").word == Word.WORSE
    lost = [row for row in found.by_task if row.rung == "switch" and row.task == "d"]
    assert lost[0].high < 0


def test_the_team_of_the_case_is_told_mid_for_all_but_sql(tmp_path, monkeypatch) -> None:
    if not CASE.exists():
        pytest.skip("the case is not here")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(CASE))
    with (tmp_path / "eval_export.csv").open() as file:
        rows = list(csv.DictReader(file))
    prompts = sorted({row["test_id"] for row in rows})
    place = {name: i for i, name in enumerate(prompts)}
    scores, costs = np.full((2, len(prompts), 3), np.nan)
    tasks = np.empty(len(prompts), dtype=object)
    for row in rows:
        at = place[row["test_id"]], MODELS.index(row["model"])
        scores[at] = float(row["passed"])
        costs[at] = float(row["cost_usd"])
        tasks[at[0]] = row["topic"]
    table = ScoredTable(MODELS, scores, costs, tasks, np.arange(len(prompts)), 0)
    found = answer(
        table,
        fit_rules(table, tasks, np.random.default_rng(0).permutation(len(prompts)) % 5),
        options=AnswerOptions(requests_per_month=200_000),
    )
    rules = found.rung("rules")
    assert found.recommended == "rules"
    assert rules.use == {"contracts": "mid", "extraction": "mid", "sql": "big", "support": "mid"}
    assert rules.word == Word.CHEAPER
    assert rules.saving_per_month == pytest.approx(997, abs=5)
    assert found.rung("keep").usd_per_1000 * 200 == pytest.approx(1673, abs=1)
    sql = next(row for row in found.by_task if row.rung == "switch" and row.task == "sql")
    assert sql.difference == pytest.approx(-0.26)
    assert sql.high < -0.1


@pytest.mark.parametrize("lost", [0.0, 0.4])
def test_neither_order_of_rows_nor_copies_of_prompts_change_the_answer(lost: float) -> None:
    table = made(400, seed=3, lost=lost)
    folds = folds_of(table)
    options = AnswerOptions(requests_per_month=1000.0)
    first = answer(table, fit_rules(table, table.tasks, folds, options), options=options)
    order = np.random.default_rng(1).permutation(np.repeat(np.arange(400), 5))
    again = ScoredTable(
        MODELS, table.scores[order], table.costs[order], table.tasks[order], table.clusters[order] * 7 + 3, 0
    )
    second = answer(again, fit_rules(again, again.tasks, folds[order], options), options=options)
    assert second.recommended == first.recommended
    for one, other in zip(first.rungs, second.rungs, strict=True):
        assert (one.use, one.word, one.independent) == (other.use, other.word, other.independent)
        for name in ("quality", "difference", "low", "high", "cost_low", "cost_high", "saving_low"):
            assert getattr(other, name) == pytest.approx(getattr(one, name), abs=1e-9), name


def test_no_prompt_lost_among_a_hundred_does_not_show_that_none_is() -> None:
    scores = np.ones((100, 2))
    table = ScoredTable(
        ("big", "mid"), scores, np.tile([0.2, 0.1], (100, 1)), np.full(100, "t"), np.arange(100), 0
    )
    switch = answer(table).rung("switch")
    assert switch.low < -0.03
    assert switch.word == Word.UNKNOWN


def _alike(models: int, n: int) -> ScoredTable:
    """Return today's model and others that are as good at a third of the price."""
    rng = np.random.default_rng(3)
    easy = rng.random((n, 1)) < 0.9
    right = np.where(easy, rng.random((n, 1)), rng.random((n, models + 1))) < 0.85
    costs = np.array([1.0] + [0.33] * models) * rng.lognormal(0.0, 0.4, (n, models + 1))
    names = tuple(f"m{j}" for j in range(models + 1))
    return ScoredTable(names, right.astype(float), costs, np.full(n, "all"), np.arange(n), 0)


def test_the_interval_of_a_model_picked_among_ten_alike_reaches_further_down() -> None:
    table = _alike(10, 200)
    picked = answer(table).rung("switch")
    assert picked is not None
    places = [0, table.models.index(picked.use)]
    alone = replace(
        table,
        models=("today", picked.use),
        scores=table.scores[:, places],
        costs=table.costs[:, places],
    )
    same = answer(alone).rung("switch")
    assert same is not None
    assert picked.low < same.low
    assert picked.high == pytest.approx(same.high)


def test_a_saving_is_told_of_one_of_sixty_models() -> None:
    switch = answer(_alike(60, 800)).rung("switch")
    assert switch is not None
    assert switch.word == Word.CHEAPER


def test_rules_that_keep_todays_model_everywhere_are_not_called_worse() -> None:
    """Folds chose the other model here and there, and the loss was counted: the word was "worse" in .07."""
    kept = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        own = rng.beta(6.0, 2.0, 400)
        scores = np.column_stack([own, np.where(rng.random(400) < 0.05, 0.0, own)])
        tasks = np.array(["a", "b"])[np.arange(400) % 2]
        table = ScoredTable(
            ("today", "other"), scores, np.ones((400, 2)) * [1.0, 0.2], tasks, np.arange(400), 0
        )
        rules = fit_rules(table, table.tasks, rng.permutation(400) % 5)
        if set(rules.use.values()) == {"today"}:
            kept += 1
            np.testing.assert_array_equal(rules.weights, table.single(0))
    assert kept > 5


def _dearer_and_better(today_cost: float) -> ScoredTable:
    """Return a model of today that is right in .6 of the prompts, and one of .85 that costs $5 per 1,000."""
    rng = np.random.default_rng(0)
    right = rng.random((600, 1)) < np.array([0.6, 0.85])
    costs = np.array([today_cost, 5e-3]) * rng.lognormal(0.0, 0.4, (600, 2))
    return ScoredTable(("today", "other"), right.astype(float), costs, np.full(600, "all"), np.arange(600), 0)


@pytest.mark.parametrize("today_cost", [0.0, 1e-9, 5e-4])
def test_what_is_better_and_dearer_is_not_recommended_also_beside_a_free_model(today_cost: float) -> None:
    table = _dearer_and_better(today_cost)
    found = answer(table, options=AnswerOptions(requests_per_month=1000.0))
    switch = found.rung("switch")
    assert switch is not None and switch.word == Word.BETTER
    assert found.recommended == "keep"
    assert switch.saving_low < switch.saving_per_month < switch.saving_high < 0
    assert switch.today_usd_per_1000 == pytest.approx(1000.0 * table.costs[:, 0].mean())
    worth = option_worth(0.1, table, Decisions("other", table.single(1)), fitted=False)
    assert worth.p_value < 1e-6 and worth.interval(0.025)[0] > 0


def test_what_is_better_and_costs_more_in_the_table_is_not_recommended_where_few_prompts_hold_the_money() -> (
    None
):
    table = _dearer_and_better(5e-4)
    table.costs[:5] *= 500
    found = answer(table)
    assert found.rung("switch").word == Word.BETTER
    assert found.rung("switch").cost_low is None
    assert found.recommended == "keep"


def test_free_models_alone_are_compared_by_their_scores() -> None:
    table = replace(made(), costs=np.zeros((600, 3)))
    found = answer(table, options=AnswerOptions(requests_per_month=1000.0))
    assert (found.recommended, found.rung("switch").word) == ("keep", Word.AS_GOOD)
    assert (found.rung("switch").saving_low, found.rung("switch").saving_high) == (0.0, 0.0)


def test_no_printed_interval_reaches_beyond_what_the_word_says() -> None:
    clipped = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        easy = rng.random((420, 1)) < 0.93
        right = np.where(easy, rng.random((420, 1)), rng.random((420, 5))) < 0.85
        costs = np.array([1.0] + [0.33] * 4) * rng.lognormal(0.0, 0.4, (420, 5))
        names = tuple(f"m{j}" for j in range(5))
        table = ScoredTable(names, right.astype(float), costs, np.full(420, "all"), np.arange(420), 0)
        switch = answer(table).rung("switch")
        if switch.word == Word.CHEAPER:
            assert switch.low >= -0.03
            clipped += switch.low == -0.03
    assert clipped


def test_a_row_by_task_names_the_exported_model_and_what_it_costs() -> None:
    for seed in range(30):
        rng = np.random.default_rng(seed)
        tasks = np.array(["a", "b", "c", "d"])[np.arange(400) % 4]
        right = rng.random((400, 2)) < np.where(tasks == "a", 0.78, 0.8)[:, None]
        costs = np.array([8e-3, 4e-3]) * rng.lognormal(0.0, 0.4, (400, 2))
        table = ScoredTable(("m0", "m1"), right.astype(float), costs, tasks, np.arange(400), 0)
        found = answer(table, fit_rules(table, tasks, np.arange(400) % 5))
        rules = found.rung("rules")
        rows = [row for row in found.by_task if row.rung == "rules"]
        assert {row.task: row.use for row in rows} == rules.use
        usd = sum(row.usd_per_1000 * row.prompts for row in rows) / 400
        assert usd == pytest.approx(rules.usd_per_1000)


def test_money_is_not_told_where_ten_prompts_hold_most_of_it() -> None:
    table = made(600)
    table.costs[:5] *= 200
    found = answer(table)
    switch = found.rung("switch")
    assert switch.cost_low is None
    assert switch.word == Word.UNKNOWN
    assert "dear_calls" in {note.code for note in found.notes}


def test_models_are_compared_on_prompts_that_both_answered() -> None:
    table = made(400)
    table.scores[:100, 1] = np.nan
    table.scores[100:200, 0] = np.nan
    switch = answer(table).rung("switch")
    both = table.scores[200:, 1] - table.scores[200:, 0]
    assert switch.prompts == 200
    assert switch.share == 0.5
    assert switch.difference == pytest.approx(both.mean())


def test_where_no_model_is_in_use_all_are_compared_with_the_best_and_nothing_is_kept() -> None:
    found = answer(made(today=None, lost=0.4))
    assert found.today == "big"
    assert found.rung("keep") is None
    assert found.recommended is None
    assert {"assumed_today", "nothing_to_recommend"} <= {note.code for note in found.notes}


def test_a_router_that_gains_is_better_and_one_that_copies_today_is_not() -> None:
    table = made(600)
    best = np.eye(3)[table.scores.argmax(axis=1)]
    found = answer(table, routers=[Decisions("oracle", best)])
    assert found.rung("router").word == Word.BETTER
    same = answer(table, routers=[Decisions("copy", table.single(0))])
    assert same.rung("router").word == Word.AS_GOOD
    assert same.rung("router").difference == 0


def test_a_log_with_one_answer_a_prompt_cannot_tell() -> None:
    table = made(300)
    played = np.eye(3)[np.arange(300) % 3]
    scores = np.where(played > 0, table.scores, np.nan)
    found = answer(ScoredTable(MODELS, scores, table.costs, table.tasks, table.clusters, None, played=played))
    assert found.today == "log"
    assert found.recommended == "keep"
    assert {rung.word for rung in found.rungs} == {Word.KEEP, Word.UNKNOWN}


def test_the_router_of_a_fold_is_the_one_worth_most_on_other_prompts() -> None:
    table = made(400)
    rows = np.arange(0, 400, 5)
    best = np.eye(3)[table.scores[rows].argmax(axis=1)]
    worst = np.eye(3)[table.scores[rows].argmin(axis=1)]
    candidates = [RouterCandidate("a", 0.0, worst), RouterCandidate("b", 1.0, best)]
    assert choose_router(table, rows, candidates) == 1


SIGNS = {"follow": 1.0, "oppose": -1.0}


def best_in(scores: np.ndarray, fitted_on: np.ndarray, sign: float) -> np.ndarray:
    """Return `[1, 2]` weights of the model that is best, or worst, on the training prompts."""
    return np.eye(2)[[int((sign * scores[fitted_on].mean(axis=0)).argmax())]]


def gain_of_noise(seed: int, *, by_validation: bool) -> float:
    """Return what a router gains where nothing can be gained.

    Of its two candidates one follows the training prompts and one does the opposite.
    """
    rng = np.random.default_rng(seed)
    scores = rng.random((60, 2))
    table = ScoredTable(("a", "b"), scores, np.ones((60, 2)), np.full(60, "t"), np.arange(60), 0)
    folds = np.arange(60) % 3
    candidates = []
    for name, sign in SIGNS.items():
        by_fold = [best_in(scores, folds != fold, sign) for fold in range(3)]
        candidates.append(RouterCandidate(name, 0.0, np.concatenate(by_fold)[folds]))
    chosen = []
    for fold in range(3):
        if by_validation:
            rows = np.flatnonzero(folds == (fold + 1) % 3)
            fitted_on = folds == (fold + 2) % 3
            tried = [
                RouterCandidate(name, 0.0, np.repeat(best_in(scores, fitted_on, sign), len(rows), axis=0))
                for name, sign in SIGNS.items()
            ]
        else:
            rows = np.flatnonzero(folds != fold)
            tried = [RouterCandidate(c.name, c.rho, c.weights[rows]) for c in candidates]
        best = tried[choose_router(table, rows, tried)]
        chosen.append((best.name, best.rho))
    weights = cross_fitted_weights(folds, candidates, chosen)
    return float(((weights - 0.5) * scores).sum(axis=1).mean())


def test_a_router_chosen_by_policies_that_saw_the_judged_fold_gains_from_noise() -> None:
    # The reason why the router of a fold is chosen by plays on the fold's validation prompts.
    for by_validation, gains in ((False, True), (True, False)):
        found = np.array([gain_of_noise(seed, by_validation=by_validation) for seed in range(400)])
        errors = found.mean() / (found.std(ddof=1) / np.sqrt(len(found)))
        assert (errors > 4.0) == gains


def test_the_largest_losses_are_prompts_that_todays_model_answers() -> None:
    table = made(400, lost=0.4)
    found = losses(table, table.single(1), "d")
    assert len(found) == 3
    assert (table.scores[found, 0] == 1).all()
    assert (table.scores[found, 1] == 0).all()
    assert (table.tasks[found] == "d").all()


def test_small_tasks_are_put_together() -> None:
    table = made(400)
    tasks = np.where(np.arange(400) < 10, "rare", np.where(np.arange(400) < 15, "rarer", table.tasks))
    rows = answer(ScoredTable(MODELS, table.scores, table.costs, tasks, table.clusters, 0)).by_task
    assert rows[-1].task == "other"
    assert rows[-1].prompts == 15


def test_labels_of_people_correct_a_judge_that_flatters_a_model() -> None:
    table = made(600)
    flattered = table.scores.copy()
    flattered[:, 2] = 1.0
    assert answer(replace(table, scores=flattered)).models[0].use == "cheap"
    labelled = np.random.default_rng(0).random((600, 3)) < 0.3
    people = np.where(labelled, table.scores, np.nan)
    found = answer(replace(table, scores=flattered, people=people))
    cheap = next(rung for rung in found.models if rung.use == "cheap")
    truth = (table.scores[:, 2] - table.scores[:, 0]).mean()
    assert cheap.word == Word.WORSE
    assert cheap.low < truth < cheap.high


def test_a_gain_that_copies_make_is_not_there_on_other_prompts() -> None:
    rng = np.random.default_rng(1)
    table = made(400)
    points = rng.normal(size=(400, 16))
    points[:200] = points[np.arange(200) // 2 * 2]
    folds = np.arange(400) % 5
    near = near_neighbours(points, folds)
    assert near[:200].all()
    assert not near[200:].any()
    best = np.eye(3)[table.scores.argmax(axis=1)]
    weights = np.where(near[:, None], best, table.single(0))
    found = unlike_prompts(table, Decisions("memory", weights), near)
    assert (found.share, found.prompts, found.difference) == (0.5, 200, 0.0)
