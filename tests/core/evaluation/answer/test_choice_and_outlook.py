"""The choice of a fold's router, rules by task and the chance of a clear word, each by hand."""

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pandas as pd
import pytest

from cabs_core.evaluation.answer import (
    RouterCandidate,
    Rung,
    ScoredTable,
    Word,
    choose_router,
    cross_fitted_weights,
    more_data,
    play_shares,
    rule_for_all,
)

NORMAL = NormalDist()
KEPT, OTHER = [[1.0, 0.0]], [[0.0, 1.0]]


def two_models(score: float, costs: tuple[float, float], n: int = 20) -> ScoredTable:
    """Return a table in which today's model always scores 1 and the other model always has one score."""
    scores = np.tile([1.0, score], (n, 1))
    return ScoredTable(("today", "other"), scores, np.tile(costs, (n, 1)), np.full(n, "t"), np.arange(n), 0)


@pytest.mark.parametrize(
    ("score", "costs", "chosen"),
    [
        (0.99, (0.2, 0.1), 1),  # half of the cost is worth 0.015, and 0.01 is lost
        (0.98, (0.2, 0.1), 0),  # half of the cost is worth 0.015, and 0.02 is lost
        (0.985, (0.2, 0.1), 0),  # of equals the first
        (0.99, (0.2, 0.4), 0),
        (0.99, (0.0, 0.0), 0),  # nothing is saved where nothing is paid
        (0.99, (0.4, 0.2), 1),
    ],
)
def test_a_candidate_is_worth_its_score_and_three_hundredths_of_the_saved_share(
    score: float, costs: tuple[float, float], chosen: int
) -> None:
    rows = np.arange(10)
    candidates = [
        RouterCandidate(name, 0.0, np.repeat(w, 10, axis=0)) for name, w in (("k", KEPT), ("o", OTHER))
    ]
    assert choose_router(two_models(score, costs), rows, candidates) == chosen


def test_a_candidate_without_known_prompts_is_never_chosen() -> None:
    unknown = RouterCandidate("u", 0.0, np.full((10, 2), np.nan))
    poor = RouterCandidate("o", 0.0, np.repeat(OTHER, 10, axis=0))
    assert choose_router(two_models(0.1, (0.1, 0.2)), np.arange(10), [unknown, poor]) == 1


def test_prompts_of_each_fold_get_the_weights_of_its_candidate() -> None:
    candidates = [RouterCandidate("p", 1.0, np.zeros((4, 2))), RouterCandidate("p", 2.0, np.ones((4, 2)))]
    found = cross_fitted_weights(np.array([0, 1, -1, 1]), candidates, [("p", 2.0), ("p", 1.0)])
    np.testing.assert_array_equal(found[:, 0], [1.0, 0.0, np.nan, 0.0])


def test_shares_of_plays_are_counted_by_query_and_model() -> None:
    plays = pd.DataFrame(
        {"query_id": ["a", "a", "b", "z"], "model": ["m", "n", "n", "m"], "plays": [1, 3, 2, 5]}
    )
    found = play_shares(plays, np.array(["b", "c", "a"]), ["m", "n"])
    np.testing.assert_array_equal(found, [[0.0, 1.0], [np.nan, np.nan], [0.25, 0.75]])


def unclear(**changes: object) -> Rung:
    """Return a rung without a clear word, known on 80 of 100 prompts, which are 40 clusters."""
    figures = dict.fromkeys(Rung.__dataclass_fields__) | {
        "rung": "switch",
        "word": Word.UNKNOWN,
        "difference": 0.01,
        "low": -0.04,
        "high": 0.06,
        "prompts": 80,
        "share": 0.8,
        "independent": 40,
    }
    return Rung(**(figures | changes))


@pytest.mark.parametrize(
    ("rung", "compared", "better", "worse"),
    [
        (unclear(), 1, 0.4, 0.6),
        (unclear(difference=-0.03, high=0.01), 3, 0.4, 0.6),
        (unclear(rung="rules"), 2, 0.8, 0.2),
        (unclear(rung="router", cost_high=0.5), 2, 0.8, 0.2),
        (unclear(cost_high=0.5), 1, 0.4, 0.6),
        (unclear(independent=2, prompts=2), 1, 0.4, 0.6),
    ],
)
def test_the_chance_of_a_clear_word_is_that_of_the_later_estimate(
    rung: Rung, compared: int, better: float, worse: float
) -> None:
    """The later estimate is normal about the present one, and its limits follow its own error."""
    found = more_data(rung, compared=compared)
    assert [outlook.prompts for outlook in found] == [200, 1000, 5000]
    error = (rung.high - rung.difference) / NORMAL.inv_cdf(0.975)
    for outlook in found:
        clusters = outlook.prompts * rung.share * rung.independent / rung.prompts
        part = rung.independent / (rung.independent + clusters)
        later = error * part**0.5
        estimate = NormalDist(rung.difference, error * (1 - part) ** 0.5)
        tail = 0.025 / compared
        upper = NORMAL.inv_cdf(1 - tail * better) * later
        if rung.cost_high is not None:
            upper = min(upper, NORMAL.inv_cdf(1 - tail) * later - 0.03)
        lower = NORMAL.inv_cdf(tail * worse) * later
        expected = 1 - estimate.cdf(upper) + estimate.cdf(lower)
        assert outlook.chance == pytest.approx(min(expected, 1.0), abs=1e-9)


@pytest.mark.parametrize(
    "changes",
    [
        {"word": Word.WORSE},
        {"independent": 1},
        {"high": float("nan")},
        {"high": 0.01},
        {"high": float("inf")},
    ],
)
def test_more_prompts_have_no_outlook_for_a_clear_word_or_an_unknown_error(changes: dict) -> None:
    assert more_data(replace(unclear(), **changes)) == ()


@pytest.mark.parametrize(("lost", "chosen"), [(0.01, 1), (0.02, 0), (0.015, 1)])
def test_a_rule_takes_the_cheaper_model_where_it_loses_less_than_the_saving_is_worth(
    lost: float, chosen: int
) -> None:
    """Half of the cost is worth 0.015; of equals the cheaper model is taken."""
    table = two_models(1.0 - lost, (0.2, 0.1))
    assert rule_for_all(table, table.tasks) == {"t": chosen}


def test_an_option_shares_its_error_with_no_other_unless_a_caller_says_so() -> None:
    assert more_data(unclear()) == more_data(unclear(), compared=1) != more_data(unclear(), compared=2)


def drawn_together(values: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """Return task means drawn towards their common mean (DerSimonian and Laird 1986), term by term."""
    inverse = [1 / v for v in variances]
    total = sum(inverse)
    common = sum(w * x for w, x in zip(inverse, values, strict=True)) / total
    spread = sum(w * (x - common) ** 2 for w, x in zip(inverse, values, strict=True))
    scale = total - sum(w * w for w in inverse) / total
    between = max((spread - (len(values) - 1)) / scale, 0.0)
    later = [1 / (between + v) for v in variances]
    common = sum(w * x for w, x in zip(later, values, strict=True)) / sum(later)
    return np.array(
        [common + between / (between + v) * (x - common) for x, v in zip(values, variances, strict=True)]
    )


def test_rules_of_tasks_follow_differences_drawn_together_term_by_term() -> None:
    """Tasks have four to forty prompts, some of them in one cluster."""
    changed = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        sizes = [4, 6, 10, 40]
        tasks = np.repeat(["a", "b", "c", "d"], sizes)
        clusters = np.concatenate([1000 * t + np.sort(rng.integers(0, n, n)) for t, n in enumerate(sizes)])
        gains = rng.normal(0.0, 0.1, 4)
        gap = np.repeat(gains, sizes) + rng.normal(0.0, rng.choice([0.05, 0.2]), 60)
        gap = np.clip(gap, -0.5, 0.5)
        scores = np.column_stack([np.full(60, 0.5), 0.5 + gap])
        costs = np.tile([0.2, 0.1], (60, 1))
        table = ScoredTable(("today", "other"), scores, costs, tasks, clusters, 0)
        means = np.array([gap[tasks == task].mean() for task in "abcd"])
        sums, squares = [], []
        for number, task in enumerate("abcd"):
            inside = [np.flatnonzero((tasks == task) & (clusters == c)) for c in set(clusters[tasks == task])]
            sums += [(gap[rows] - means[number]).sum() for rows in inside]
            squares.append(sum(len(rows) ** 2 for rows in inside))
        variance = max(sum(x * x for x in sums) / sum(squares), 0.01)
        errors = variance * np.array(squares) / np.array(sizes) ** 2
        worth = drawn_together(means, errors) + 0.03 * 0.5
        assert rule_for_all(table, tasks) == {t: int(w > 0) for t, w in zip("abcd", worth, strict=True)}
        changed += int(((worth > 0) != (means + 0.015 > 0)).any())
    assert changed > 5
