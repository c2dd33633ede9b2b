"""The printed figures of the answer's options, each by hand or by the plain sample of its differences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cabs_core.base.statistics.paired import PairedSample
from cabs_core.evaluation.answer import AnswerOptions, Decisions, ScoredTable, Word, answer, losses

TAIL = 0.025


def table_of(scores: np.ndarray, costs: list[float], **fields: object) -> ScoredTable:
    """Return a table with constant costs of each model, whose first model is used today."""
    n, k = scores.shape
    models = ("today", "a", "b", "c", "d")[:k]
    given = {"tasks": np.full(n, "t"), "clusters": np.arange(n), "today": 0} | fields
    return ScoredTable(models, scores, np.tile(costs, (n, 1)), **given)


def constant(scores: list[float], costs: list[float], n: int) -> ScoredTable:
    """Return a table of models that each have one score and one cost on all prompts."""
    return table_of(np.tile(scores, (n, 1)), costs)


def drawn(rates: list[float], n: int = 60, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).random((n, len(rates))) < rates).astype(float)


def sample_of(table: ScoredTable, model: int) -> PairedSample:
    """Return the sample of differences between a model and today's."""
    gap = table.scores[:, model] - table.scores[:, 0]
    return PairedSample.of(gap, np.ones(len(gap)), table.clusters)


def test_figures_of_a_model_are_those_of_its_prompts() -> None:
    table = table_of(drawn([0.7, 0.6]), [0.2, 0.05], clusters=np.arange(60) // 2)
    found = answer(table, options=AnswerOptions(requests_per_month=2000.0))
    switch = found.rung("switch")
    sample = sample_of(table, 1)
    assert switch.difference == pytest.approx(sample.mean)
    assert (switch.low, switch.high) == pytest.approx(sample.interval(TAIL))
    assert switch.sure_low == pytest.approx(sample.interval(TAIL)[0])
    assert switch.quality == pytest.approx(table.scores[:, 1].mean())
    assert switch.usd_per_1000 == pytest.approx(50.0)
    assert switch.cost_ratio == pytest.approx(0.25)
    assert (switch.cost_low, switch.cost_high) == pytest.approx((0.25, 0.25))
    assert switch.saving_per_month == pytest.approx(300.0)
    assert (switch.saving_low, switch.saving_high) == pytest.approx((300.0, 300.0))
    assert (switch.prompts, switch.share, switch.independent) == (60, 1.0, 30)
    assert (switch.latency_median, switch.latency_95) == (None, None)


def test_what_is_used_today_differs_from_itself_by_nothing() -> None:
    keep = answer(table_of(drawn([0.7, 0.6]), [0.2, 0.05])).rung("keep")
    assert (keep.difference, keep.low, keep.high, keep.sure_low) == (0.0, 0.0, 0.0, 0.0)
    assert (keep.cost_ratio, keep.cost_low, keep.saving_low) == (1.0, None, None)
    assert (keep.word, keep.use) == (Word.KEEP, "today")


def test_a_saving_is_unknown_without_a_number_of_requests_and_a_ratio_without_costs_of_today() -> None:
    found = answer(table_of(drawn([0.7, 0.6]), [0.0, 0.05]))
    switch = found.rung("switch")
    assert switch.saving_per_month is None
    assert (switch.cost_ratio, switch.cost_low) == (None, None)
    assert found.rung("router") is None


def test_an_option_without_common_prompts_has_no_figures() -> None:
    scores = drawn([0.7, 0.6])
    scores[:30, 0] = np.nan
    scores[30:, 1] = np.nan
    found = answer(table_of(scores, [0.2, 0.1]), options=AnswerOptions(requests_per_month=10.0))
    switch = found.rung("switch")
    assert (switch.prompts, switch.share, switch.independent) == (0, 0.0, 0)
    plain = found.to_dict()["rungs"][1]
    assert (plain["quality"], plain["usd_per_1000"], plain["saving_per_month"]) == (None, None, None)
    assert plain["word"] == "cannot tell"
    assert "dear_calls" not in {note.code for note in found.notes}


def test_of_models_that_cannot_be_compared_the_one_of_the_cheapest_known_calls_is_shown() -> None:
    scores = np.full((60, 3), np.nan)
    scores[:30, 0] = 1.0
    scores[30:40, 1] = 1.0
    scores[40:45, 2] = 1.0
    assert answer(table_of(scores, [0.2, 0.1, 0.15])).rung("switch").use == "a"


def test_rungs_stand_from_the_lowest_to_the_highest() -> None:
    table = table_of(drawn([0.7, 0.6]), [0.2, 0.1])
    rules = Decisions("rules", table.single(0))
    routers = [Decisions("r", table.single(1)), Decisions("q", table.single(0))]
    found = answer(table, rules, routers)
    assert [rung.rung for rung in found.rungs] == ["keep", "switch", "rules", "router"]
    assert (found.rung("rules").use, found.rung("router").use) == ("rules", "q")


def test_a_much_better_model_is_shown_although_another_one_is_as_good_as_todays_and_cheaper() -> None:
    scores = drawn([0.5, 0.9], 400)[:, [0, 1, 0]]
    found = answer(table_of(scores, [0.1, 0.1, 0.09]))
    assert {rung.use: rung.word for rung in found.models} == {"a": Word.BETTER, "b": Word.CHEAPER}
    assert found.rung("switch").use == "a"
    assert (found.recommended, found.cheapest) == ("switch", "keep")
    (text,) = [note.text for note in found.notes if note.code == "cheapest"]
    assert text.startswith("The cheapest of these is keep: $100.00 per 1,000 requests")


def test_of_better_models_the_cheaper_one_is_shown_unless_its_loss_is_sure_at_half_of_the_level() -> None:
    table = table_of(drawn([0.5, 0.9, 0.86], 400, seed=6), [0.1, 0.1, 0.09])
    gap = PairedSample.of(table.scores[:, 1] - table.scores[:, 2], np.ones(400), table.clusters)
    assert 0.04 < gap.p_value_above(0.0) < 0.05
    found = answer(table)
    assert {rung.use: rung.word for rung in found.models} == {"a": Word.BETTER, "b": Word.BETTER}
    assert found.rung("switch").use == "b"


def test_a_cheaper_model_replaces_todays_if_its_loss_is_surely_tolerable_at_half_of_the_level() -> None:
    table = table_of(drawn([0.9, 0.9], 150, seed=11), [0.2, 0.1])
    assert 0.012 < sample_of(table, 1).p_value_above(-0.03) < 0.022
    found = answer(table)
    assert found.rung("switch").word == Word.CHEAPER
    assert found.recommended == "switch"


def test_latencies_are_weighted_quantiles_of_known_calls() -> None:
    seconds = np.column_stack([np.arange(1.0, 41.0), np.arange(101.0, 141.0)])
    table = table_of(drawn([0.7, 0.6], 40), [0.2, 0.1], latencies=seconds)
    found = answer(table, routers=[Decisions("half", np.full((40, 2), 0.5))])
    keep, switch, router = found.rungs
    assert (keep.latency_median, keep.latency_95) == (20.0, 38.0)
    assert (switch.latency_median, switch.latency_95) == (120.0, 138.0)
    assert (router.latency_median, router.latency_95) == (40.0, 136.0)
    seconds[:20, 1] = np.nan
    switch = answer(replace(table, latencies=seconds)).rung("switch")
    assert (switch.latency_median, switch.latency_95) == (130.0, 139.0)
    scores = table.scores.copy()
    scores[20:, 0] = np.nan  # calls beyond the prompts that both models answered do not count
    switch = answer(replace(table, scores=scores, latencies=seconds + 0.0)).rung("switch")
    assert (switch.latency_median, switch.latency_95) == (None, None)
    seconds[:, 1] = np.nan
    switch = answer(replace(table, latencies=seconds)).rung("switch")
    assert (switch.latency_median, switch.latency_95) == (None, None)


def test_rows_of_tasks_are_sorted_by_size_and_small_tasks_come_last() -> None:
    tasks = np.repeat(["e", "d", "x", "y", "c"], [20, 30, 19, 18, 20])
    table = table_of(drawn([0.7, 0.6], 107), [0.2, 0.05], tasks=tasks)
    weights = table.single(1)
    weights[tasks == "d"] = [0.6, 0.4]
    rows = [row for row in answer(table, routers=[Decisions("r", weights)]).by_task if row.rung == "router"]
    assert [(row.task, row.prompts) for row in rows] == [("d", 30), ("c", 20), ("e", 20), ("other", 37)]
    assert [row.use for row in rows] == ["today", "a", "a", "a"]
    assert [row.usd_per_1000 for row in rows] == pytest.approx([140.0, 50.0, 50.0, 50.0])
    assert [row.today_usd_per_1000 for row in rows] == pytest.approx([200.0] * 4)
    inside = (tasks == "c").astype(float)
    sample = PairedSample.of(table.scores[:, 1] - table.scores[:, 0], inside, table.clusters)
    assert rows[1].difference == pytest.approx(sample.mean)
    assert (rows[1].low, rows[1].high) == pytest.approx(sample.interval(TAIL))


def test_losses_are_the_largest_first_and_of_equals_the_first_prompt() -> None:
    scores = np.array([[0.5, 0.5], [1.0, 0.8], [1.0, 0.2], [1.0, 0.8], [0.9, 0.0], [0.3, 0.4], [np.nan, 0.0]])
    scores = np.vstack([scores, [1.0, np.nan]])
    table = table_of(scores, [1.0, 1.0], tasks=np.array(["t", "t", "t", "u", "u", "u", "t", "t"]))
    other = table.single(1)
    assert losses(table, other).tolist() == [4, 2, 1]
    assert losses(table, other, most=9).tolist() == [4, 2, 1, 3]
    assert losses(table, other, "u").tolist() == [4, 3]
    assert losses(table, table.single(0)).tolist() == []


def test_the_sure_end_of_each_model_has_its_share_of_the_error_by_holm() -> None:
    table = table_of(drawn([0.7, 0.75, 0.5, 0.65], 200), [0.2, 0.2, 0.2, 0.2])
    found = {rung.use: rung for rung in answer(table).models}
    samples = {name: sample_of(table, model) for name, model in (("a", 1), ("b", 2), ("c", 3))}
    order = sorted(samples, key=lambda name: samples[name].p_value_above(-0.03))
    for rank, name in enumerate(order):
        expected = samples[name].interval(TAIL / (3 - rank))[0]
        assert found[name].sure_low == pytest.approx(expected), name


@pytest.mark.parametrize(
    ("rates", "seed", "alike"),
    [
        ([0.7, 0.7, 0.2], 0, 1),
        ([0.7, 0.7, 0.6], 5, 2),
        ([0.7, 0.7, 0.64, 0.62], 3, 2),
        ([0.7, 0.7, 0.66, 0.68, 0.64], 3, 4),
    ],
)
def test_the_lower_end_of_a_picked_model_allows_for_those_that_may_be_as_good(
    rates: list[float], seed: int, alike: int
) -> None:
    table = table_of(drawn(rates, 120, seed=seed), [0.2] * len(rates))
    found = answer(table)
    picked = found.rung("switch")
    samples = {name: sample_of(table, model) for model, name in enumerate(table.models) if model}
    best = samples.pop(picked.use)
    assert 1 + sum(other.interval(TAIL)[1] >= best.mean for other in samples.values()) == alike
    assert picked.low == pytest.approx(best.interval(min(TAIL, 2 * TAIL / alike))[0])
    assert picked.high == pytest.approx(best.interval(TAIL)[1])
    low = {rung.use: rung.low for rung in found.models}
    assert low.pop(picked.use) == picked.low
    # nobody picked the others
    assert low == pytest.approx({name: sample.interval(TAIL)[0] for name, sample in samples.items()})


@pytest.mark.parametrize(
    ("score", "cost", "n", "use"),
    [
        (0.48, 0.02, 20, "b"),  # -0.02 + 0.03 * 0.9 is more than -0.01 + 0.03 * 0.5
        (0.48, 0.04, 20, "a"),  # -0.02 + 0.03 * 0.8 is less
        (0.49, 0.1, 20, "a"),  # of equals the first by name
        (0.48, 0.02, 19, "a"),  # ten of nineteen prompts hold most of the money, so savings do not count
        (0.49, 0.09, 19, "b"),  # of equal scores the cheaper one
    ],
)
def test_of_models_without_a_clear_word_the_one_of_largest_worth_is_shown(
    score: float, cost: float, n: int, use: str
) -> None:
    found = answer(constant([0.5, 0.49, score], [0.2, 0.1, cost], n))
    assert {rung.word for rung in found.models} == {Word.UNKNOWN}
    assert found.rung("switch").use == use


def test_models_are_listed_by_difference_and_unknown_ones_come_last() -> None:
    table = constant([0.5, 0.4, 0.6, 0.4, 0.9], [0.2] * 5, 20)
    table.scores[:, 4] = np.nan
    assert [rung.use for rung in answer(table).models] == ["b", "a", "c", "d"]


def gain(price: float, n: int = 400) -> ScoredTable:
    """Return a table in which the other model is right more often, at a price."""
    return table_of(drawn([0.5, 0.9], n), [0.1, price])


@pytest.mark.parametrize(("price", "chosen"), [(0.1, "switch"), (0.2, "keep"), (0.05, "switch")])
def test_a_better_model_is_recommended_unless_it_is_dearer(price: float, chosen: str) -> None:
    found = answer(gain(price))
    assert found.rung("switch").word == Word.BETTER
    assert found.recommended == chosen


def test_the_cheapest_option_that_may_be_recommended_is_named_beside_a_better_one() -> None:
    table = gain(0.1)
    weights = np.where(np.arange(400)[:, None] % 2 == 0, table.single(0), table.single(1))
    costs = table.costs.copy()
    costs[:, 1] = 0.08
    found = answer(replace(table, costs=costs), routers=[Decisions("half", weights)])
    assert (found.recommended, found.cheapest) == ("switch", "switch")
    assert "cheapest" not in {note.code for note in found.notes}
    dear = answer(gain(0.2))
    assert (dear.recommended, dear.cheapest) == ("keep", "keep")


def test_a_loss_against_the_best_of_two_models_counts_half_if_none_was_in_use() -> None:
    """A model is worse at an error of .6 * .025 = .015, and the best model of two may be so by chance."""
    table = table_of(drawn([0.8, 0.62], 100, seed=13), [0.2, 0.2])
    assert 0.0075 < sample_of(table, 1).p_value_below(0.0) < 0.015
    assert answer(table).rung("switch").word == Word.WORSE
    assert answer(replace(table, today=None)).rung("switch").word == Word.UNKNOWN


def test_a_loss_against_what_was_played_counts_in_full() -> None:
    """Both models are compared with what was played, so that the p-value of the worse one is doubled."""
    table = table_of(drawn([0.8, 0.62], 100, seed=15), [0.2, 0.2])
    assert 0.00375 < sample_of(table, 1).p_value_below(0.0) < 0.0075
    found = answer(replace(table, today=None, played=table.single(0)))
    assert {rung.use: rung.word for rung in found.models} == {"today": Word.UNKNOWN, "a": Word.WORSE}


def test_no_word_is_said_of_a_model_that_answered_a_special_kind_of_prompts() -> None:
    table = gain(0.05)
    assert answer(table).rung("switch").word == Word.BETTER
    selective = replace(table, selective=np.array([False, True]))
    assert answer(selective).rung("switch").word == Word.UNKNOWN


def test_a_router_that_copies_the_best_model_is_better_only_if_that_model_is_shown_to_be() -> None:
    table = gain(0.1)
    copy = Decisions("copy", table.single(1))
    assert answer(table, routers=[copy]).rung("router").word == Word.BETTER
    # a gain that is clear of one model and not of two dozen, which share the error
    scores = np.repeat(drawn([0.5, 0.62], 400, seed=3), [1, 24], axis=1)
    models = tuple(f"m{j:02}" for j in range(25))
    many = ScoredTable(models, scores, np.full((400, 25), 0.1), np.full(400, "t"), np.arange(400), 0)
    found = answer(many, routers=[Decisions("copy", many.single(1))], options=AnswerOptions(draws=50))
    gap = scores[:, 1] - scores[:, 0]
    p_value = PairedSample.of(gap, np.ones(400), np.arange(400)).widened(1.15).p_value_above(0.0)
    assert p_value < TAIL * 0.8
    assert found.rung("switch").word != Word.BETTER
    assert found.rung("router").word != Word.BETTER


def test_notes_say_gaps_and_dear_prompts() -> None:
    table = table_of(drawn([0.7, 0.6], 40), [0.2, 0.1])
    codes = [note.code for note in answer(table).notes]
    assert "rare_calls" in codes
    assert not {"gaps", "dear_calls", "assumed_today", "nothing_to_recommend"} & set(codes)
    table.scores[:10, 1] = np.nan
    (text,) = [note.text for note in answer(table).notes if note.code == "gaps"]
    assert text == "switch: compared on the 75 % of the prompts that both have answers to."
    few = answer(constant([0.5, 0.49], [0.2, 0.1], 19))
    (text,) = [note.text for note in few.notes if note.code == "dear_calls"]
    assert text.endswith("so nothing can be said of what is saved by: switch.")
    equal = answer(constant([0.5, 0.49], [0.2, 0.1], 20))
    assert "dear_calls" not in {note.code for note in equal.notes}
