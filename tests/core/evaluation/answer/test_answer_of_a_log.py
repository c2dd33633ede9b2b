"""The answer of a log: estimates of what options would have earned, on generators whose truth is known."""

from dataclasses import replace

import numpy as np
import pytest

from cabs_core.base.errors import DataError
from cabs_core.base.statistics.paired import PairedSample
from cabs_core.data.pool_files.goals import Goal
from cabs_core.evaluation.answer import (
    Answer,
    AnswerOptions,
    Decisions,
    LoggedTable,
    Word,
    answer,
    fit_rules,
    goal_answer,
    newest_fifth,
)
from cabs_core.evaluation.ope.data import LoggedData
from cabs_core.evaluation.ope.estimators import direct, weights
from cabs_core.evaluation.ope.evaluate import Overlap, evaluate, model_of
from cabs_core.evaluation.ope.intervals import error_of, second_moment, sequence_half_width
from cabs_core.evaluation.ope.models import folds

TASKS = ("math", "mail", "sql", "law")
PRICES = np.array([0.009, 0.003, 0.001])
OPTIONS = AnswerOptions(requests_per_month=100_000, draws=300)


def drawn(
    seed: int,
    n: int = 600,
    right: tuple[float, ...] = (0.85, 0.85, 0.6),
    chances: tuple[float, ...] = (0.4, 0.4, 0.2),
    lost: float = 0.0,
    today: int | None = None,
    known: bool = True,
    only_first: str = "",
    clusters: int = 1,
) -> LoggedTable:
    """A log that drew models with these probabilities; the second one is right less often in "sql".

    Args:
        only_first: in this task the log always asks the first model. clusters: prompts of a conversation.
    """
    rng = np.random.default_rng([seed, n])
    tasks = np.array(TASKS)[rng.integers(0, 4, n)]
    chance = np.tile(np.array(right), (n, 1))
    chance[tasks == "sql", 1] -= lost
    mu = np.tile(np.array(chances), (n, 1))
    mu[tasks == only_first] = np.eye(len(right))[0]
    actions = (mu.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    rows = np.arange(n)
    ease = rng.random(n)
    scores = (np.where(rng.random(n) < 0.6, ease, rng.random(n)) < chance[rows, actions]).astype(float)
    costs = PRICES[: len(right)][actions] * rng.lognormal(0.0, 0.5, n)
    data = LoggedData(
        [f"m{k}" for k in range(len(right))],
        actions,
        scores,
        costs,
        rng.normal(size=(n, 4)),
        np.arange(n).astype(str),
        propensities=mu[rows, actions] if known else None,
        clusters=np.arange(n) // clusters,
    )
    return LoggedTable.of(data, tasks, today)


def folds_of(table: LoggedTable) -> np.ndarray:
    return np.asarray(table.clusters % 5)


def judged(table: LoggedTable) -> Answer:
    rules = replace(fit_rules(table, table.tasks, folds_of(table), OPTIONS), exported=None)
    router = Decisions("ridge", table.single(1), use="ridge")
    return answer(table, rules, [router], OPTIONS)


def test_the_difference_to_what_was_played_is_the_doubly_robust_estimate() -> None:
    table = drawn(0)
    found = answer(table, None, (), OPTIONS)
    for rung in found.models:
        model = table.models.index(rung.use)
        estimate = evaluate(table.data, table.single(model), 0.0)
        score = estimate.row("dr", "score")
        assert rung.difference == pytest.approx(score.difference)
        assert rung.quality == pytest.approx(score.value)
        assert rung.usd_per_1000 == pytest.approx(1000 * estimate.row("dr", "cost").value)


def with_log(table: LoggedTable, **fields: object) -> LoggedTable:
    """Return the table of the same log with other fields."""
    return LoggedTable.of(replace(table.data, **fields), table.tasks, table.today)


def with_pmf(table: LoggedTable) -> LoggedTable:
    """Return the table of a log that knows the probabilities of all models."""
    return with_log(table, pmf=np.tile([0.4, 0.4, 0.2], (len(table.data), 1)))


def check_contrast(table: LoggedTable, option: np.ndarray, other: np.ndarray, share: float) -> None:
    """Compare a contrast with its formulas: contributions m + c e with the model's part m and the error e."""
    data = table.data
    rows = np.arange(len(data))
    q = model_of(data, data.scores, folds(table.clusters), data.adaptive)
    error = data.scores - q[rows, data.actions]
    parts = []
    overlaps = []
    for played in (option, other):
        if played is table.played:
            parts.append((q[rows, data.actions], np.ones(len(data))))
        else:
            parts.append((direct(played, q), weights(played, data.actions, data.propensities)))
            overlaps.append(Overlap.of(data, played, data.expected_pmf, table.clusters))
    model, factor = (one - share * two for one, two in zip(*parts, strict=True))
    if other is table.played:  # E[(w - s)^2] = E[w^2] - 2 s + s^2, where w is 1 on average
        square = overlaps[0].square - 2.0 * share + share**2
    elif option is table.played:  # E[(1 - s w)^2] = 1 - 2 s + s^2 E[w^2]
        square = 1.0 - 2.0 * share + share**2 * overlaps[0].square
    else:
        square = second_moment(option - share * other, data.expected_pmf, np.ones(len(data)))
    size = min(overlap.n_eff for overlap in overlaps)
    by_log = error_of(model, factor, error, table.clusters, square, size, cautious=data.pmf is None)
    values = model + factor * error
    plain = PairedSample.of(values, np.ones(len(data)), table.clusters)
    wider = sequence_half_width(len(data)) / 1.959964 if data.adaptive else 1.0
    found = table.contrast(np.ones(len(data)), values, option, other, share)
    assert found.mean == pytest.approx(values.mean())
    assert found.standard_error == pytest.approx(wider * max(plain.standard_error, by_log.value))
    assert found.worst == pytest.approx(max(overlap.square for overlap in overlaps))
    assert found.independent == pytest.approx(min(plain.independent, size))


@pytest.mark.parametrize("share", [1.0, 0.5, 0.9])
@pytest.mark.parametrize("changed", [lambda table: table, with_pmf])
def test_a_contrast_with_what_was_played_has_the_error_that_the_log_leads_to_expect(changed, share) -> None:
    table = changed(drawn(3, 200, right=(0.85, 0.6, 0.3)))
    check_contrast(table, table.single(1), table.played, share)


@pytest.mark.parametrize("share", [1.0, 0.3, 0.9])
@pytest.mark.parametrize("changed", [lambda table: table, with_pmf])
def test_what_was_played_less_an_option_has_the_error_that_the_log_leads_to_expect(changed, share) -> None:
    table = changed(drawn(3, 200, right=(0.85, 0.6, 0.3)))
    check_contrast(table, table.played, table.single(1), share)


@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize("changed", [lambda table: table, with_pmf])
def test_a_contrast_of_two_options_has_the_error_that_the_log_leads_to_expect(changed, share) -> None:
    table = changed(drawn(15, 100, right=(0.85, 0.6, 0.3), clusters=2))
    check_contrast(table, table.single(2), table.single(1), share)


def test_a_contrast_of_a_log_that_learnt_holds_at_every_length_of_the_log() -> None:
    table = with_log(drawn(3, 200), adaptive=True)
    check_contrast(table, table.single(1), table.played, 1.0)


def test_a_contrast_takes_all_of_the_other_option_and_only_prompts_of_positive_weight() -> None:
    table = drawn(3, 200)
    values = np.linspace(-0.5, 1.0, 200)
    ones = np.ones(200)
    whole = table.contrast(ones, values, table.single(1), table.single(2))
    assert whole == replace(
        table.contrast(ones, values, table.single(1), table.single(2), 1.0),
        tops=whole.tops,
        bottoms=whole.bottoms,
        counts=whole.counts,
    )
    unknown = table.single(1)
    unknown[100:] = np.nan
    half = table.contrast((np.arange(200) < 100).astype(float), values, unknown, table.single(2))
    assert half.clusters == 100
    assert half.mean == pytest.approx(values[:100].mean())
    little = table.contrast((np.arange(200) < 100).astype(float), values / 100, unknown, table.single(2))
    plain = PairedSample.of(values[:100] / 100, np.ones(100), np.arange(100))
    assert little.standard_error > 2 * plain.standard_error


def test_the_error_of_a_contrast_is_never_less_than_that_of_its_sample() -> None:
    table = drawn(3, 200)
    values = np.linspace(-50.0, 50.0, 200)
    found = table.contrast(np.ones(200), values, table.single(1), table.played)
    plain = PairedSample.of(values, np.ones(200), table.clusters)
    assert found.standard_error == pytest.approx(plain.standard_error)
    same = table.contrast(np.ones(200), np.zeros(200), table.single(1), table.played)
    assert same.standard_error == 0.0


def test_a_contrast_of_what_was_played_with_itself_is_that_of_a_table() -> None:
    table = drawn(3, 200)
    found = table.contrast(np.ones(200), np.zeros(200), table.played, table.played)
    assert (found.mean, found.standard_error, found.worst, found.independent) == (0.0, 0.0, 1.0, 200.0)


def test_a_log_without_propensities_has_plain_contrasts() -> None:
    table = drawn(3, 200, known=False)
    values = np.linspace(-0.5, 1.0, 200)
    found = table.contrast(np.ones(200), values, table.single(1), table.played)
    plain = PairedSample.of(values, np.ones(200), table.clusters)
    assert (found.standard_error, found.worst) == (plain.standard_error, 1.0)


def test_a_rule_may_choose_a_model_that_was_asked_five_times_in_a_task() -> None:
    table = drawn(3, 200, chances=(1.0, 0.0, 0.0))
    actions = table.data.actions.copy()
    actions[:9] = 1
    groups = np.array(["five"] * 5 + ["four"] * 195)
    found = with_log(table, actions=actions).supported(1, groups)
    assert found.tolist() == [True] * 5 + [False] * 195


def test_prompts_that_are_judged_have_the_share_1_and_the_log_played_one_model_on_each() -> None:
    table = drawn(3, 200)
    weights_of_some = table.single(1)
    weights_of_some[150:] = np.nan
    assert table.play(weights_of_some)[0].tolist() == [1.0] * 150 + [0.0] * 50
    assert table.played.sum(axis=1).tolist() == [1.0] * 200


def test_keep_is_what_the_log_itself_earned_and_paid() -> None:
    table = drawn(1)
    keep = answer(table, None, (), OPTIONS).rung("keep")
    assert keep is not None and keep.use == "log"
    assert keep.quality == pytest.approx(table.data.scores.mean())
    assert keep.usd_per_1000 == pytest.approx(1000 * table.data.costs.mean())


def test_contributions_are_unbiased_although_the_log_gave_easy_prompts_to_one_model() -> None:
    means = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        ease = rng.normal(size=(400, 1))
        chance = 1 / (1 + np.exp(-np.column_stack([ease[:, 0], ease[:, 0] + 0.5])))
        first = np.clip(0.5 + 0.3 * ease[:, 0], 0.1, 0.9)
        actions = (rng.random(400) > first).astype(int)
        mu = np.where(actions == 0, first, 1 - first)
        scores = (rng.random(400) < chance[np.arange(400), actions]).astype(float)
        data = LoggedData(
            ["a", "b"], actions, scores, np.ones(400), np.zeros((400, 0)), actions.astype(str), mu,
            clusters=np.arange(400),
        )  # fmt: skip
        table = LoggedTable.of(data, np.full(400, ""), 0)
        share, score, _ = table.play(table.single(1))
        means.append(float(score.mean()) - float(chance[:, 1].mean()))
        assert share.all()
    assert abs(np.mean(means)) < 3 * np.std(means) / np.sqrt(40)
    naive = scores[actions == 1].mean() - chance[:, 1].mean()
    assert naive < -0.03  # the second model got the hard prompts


def test_a_log_without_propensities_says_cannot_tell_of_every_option_and_why() -> None:
    found = judged(drawn(2, known=False))
    assert [(rung.rung, rung.word) for rung in found.rungs] == [
        ("keep", Word.KEEP),
        ("switch", Word.UNKNOWN),
        ("rules", Word.UNKNOWN),
        ("router", Word.UNKNOWN),
    ]
    refused = [note.text for note in found.notes if note.code == "refused"]
    assert len(refused) == 1 and "probability" in refused[0]
    assert all(rung in refused[0] for rung in ("switch", "rules", "router"))
    assert found.recommended == "keep"


def test_of_models_that_a_log_cannot_judge_switch_names_the_cheapest_one() -> None:
    switch = judged(drawn(2, known=False)).rung("switch")
    assert switch is not None and switch.use == "m2"


def test_a_model_that_a_log_cannot_judge_is_not_the_best_although_all_others_score_0() -> None:
    table = drawn(3, right=(0.0, 0.0, 0.0), chances=(0.49, 0.50, 0.01))
    assert table.models[table.best] == "m1"


def test_a_model_that_the_log_hardly_draws_is_refused_with_the_number_of_decisions_that_it_takes() -> None:
    found = judged(drawn(3, chances=(0.97, 0.01, 0.02), today=0))
    assert found.rung("switch").word == Word.UNKNOWN  # type: ignore[union-attr]
    assert any("more scored decisions" in note.text for note in found.notes)


def test_rules_keep_the_model_that_alone_was_asked_in_a_task() -> None:
    table = drawn(4, n=1500, only_first="law", right=(0.6, 0.9, 0.5))
    rules = fit_rules(table, table.tasks, folds_of(table), OPTIONS)
    assert rules.use["law"] == "m0"
    assert {rules.use[task] for task in ("math", "mail", "sql")} == {"m1"}


def test_rules_are_better_where_one_task_is_lost_by_the_cheap_model() -> None:
    table = drawn(5, n=3000, right=(0.85, 0.85, 0.5), lost=0.4, today=0)
    found = judged(table)
    rules = found.rung("rules")
    assert rules is not None
    assert (rules.use["sql"], rules.use["mail"]) == ("m0", "m1")
    assert rules.word == Word.CHEAPER
    assert found.recommended == "rules"
    switch = found.rung("switch")
    assert switch is not None and switch.word != Word.CHEAPER


def test_a_router_that_was_judged_on_some_calls_says_so() -> None:
    table = drawn(6, n=1000)
    weights = table.single(1)
    weights[:500] = np.nan
    found = answer(table, None, [Decisions("ridge", weights)], OPTIONS)
    router = found.rung("router")
    assert router is not None and (router.prompts, router.share) == (500, 0.5)
    assert any(note.code == "held_out" and "50 %" in note.text for note in found.notes)


def test_a_goal_is_answered_by_the_estimates_and_todays_choices_are_an_option() -> None:
    table = drawn(7, n=2000, right=(0.6, 0.9, 0.5))
    rules = fit_rules(table, table.tasks, folds_of(table), OPTIONS)
    best = goal_answer(Goal(quality=0.8), table, rules, (), OPTIONS)
    assert best.confirmed and best.use == "m1"
    assert best.quality == pytest.approx(0.9, abs=0.08)
    money = Goal(budget_per_month=5000, requests_per_month=1_000_000)
    assert goal_answer(money, table, rules, (), OPTIONS).usd_per_1000 < 5
    log = goal_answer(Goal(quality=0.99), table, None, (), OPTIONS)
    assert not log.confirmed


def test_a_goal_is_refused_if_the_log_has_no_propensities() -> None:
    with pytest.raises(DataError, match="probability"):
        goal_answer(Goal(quality=0.5), drawn(7, known=False), None, (), OPTIONS)


def test_a_goal_is_not_answered_by_a_model_that_the_log_hardly_plays() -> None:
    table = drawn(8, n=1000, chances=(0.49, 0.50, 0.01))
    found = goal_answer(Goal(budget_per_month=1500, requests_per_month=1_000_000), table, None, (), OPTIONS)
    assert found.use != "m2" and not found.confirmed


def test_the_newest_fifth_of_a_log_that_drifted_gives_another_answer() -> None:
    steady = drawn(8, n=2000, today=0)
    changed = replace(steady.data, scores=steady.data.scores.copy())
    newest = np.arange(2000) >= 1600
    changed.scores[newest & (changed.actions == 1)] = 0.0
    for data, differs in ((steady.data, False), (changed, True)):
        table = LoggedTable.of(data, steady.tasks, 0)
        found = newest_fifth(table, np.arange(2000.0), "switch", Decisions("m1", table.single(1)))
        assert found is not None and (found.prompts, found.differs) == (400, differs)


def test_part_of_a_log_is_the_log_of_these_rows() -> None:
    table = drawn(9)
    rows = np.arange(0, 600, 3)
    part = table.take(rows)
    assert len(part.data) == 200 and (part.tasks == table.tasks[rows]).all()
    assert part.baseline() is part.played


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "truth"),
    [
        ({"right": (0.85, 0.8195, 0.8195), "today": 0}, (-0.0305, -0.0305)),
        ({"right": (0.8, 0.8, 0.8), "today": 0}, (0.0, 0.0)),
        ({"right": (0.8, 0.8, 0.8), "clusters": 5}, (0.0, 0.0)),
        ({"right": (0.99, 0.959, 0.959), "today": 0}, (-0.031, -0.031)),
    ],
)
def test_words_are_false_in_at_most_a_twentieth_of_logs_and_intervals_cover(world, truth) -> None:
    """`truth` is the difference of the second and the third model; every rule is one of the two at best."""
    tables = 60
    false = covered = judged_rungs = 0
    for seed in range(tables):
        found = judged(drawn(seed, n=800, **world))
        wrong = False
        for rung in found.rungs[1:]:
            if not np.isfinite(rung.difference) or rung.rung == "rules":
                continue
            true = truth[0] if rung.rung == "router" or rung.use == "m1" else truth[1]
            wrong |= rung.word == Word.BETTER and true <= 0
            wrong |= rung.word in (Word.CHEAPER, Word.AS_GOOD) and true < -0.03
            wrong |= rung.word == Word.WORSE and true >= 0
            covered += rung.low <= true <= rung.high
            judged_rungs += 1
        false += wrong
    assert false <= 0.05 * tables
    assert covered >= 0.92 * judged_rungs
