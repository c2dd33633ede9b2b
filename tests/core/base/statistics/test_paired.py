"""Bounds of mean differences: beside the references they generalise, and where few are lost."""

import numpy as np
import pytest
from scipy import stats

from cabs_core.base.statistics.paired import PairedSample


def test_losses_alone_have_the_bound_of_wilson() -> None:
    lost = np.repeat([-1.0, 0.0], [7, 5000 - 7])
    low = PairedSample.of(lost).bound("low", 0.025)
    wilson = stats.binomtest(7, 5000).proportion_ci(method="wilson").high
    assert -low == pytest.approx(wilson, rel=2e-3)


def test_of_many_graded_differences_it_is_students_interval() -> None:
    values = np.random.default_rng(0).normal(0.02, 0.1, 4000)
    found = PairedSample.of(values).interval(0.025)
    expected = stats.t.interval(0.95, 3999, values.mean(), stats.sem(values))
    assert found == pytest.approx(expected, abs=2e-4)


def test_a_bound_ends_where_its_test_does() -> None:
    rng = np.random.default_rng(1)
    clusters = rng.integers(0, 60, 200)
    values = rng.choice([-1.0, 0.0, 1.0], 200, p=[0.1, 0.7, 0.2])
    sample = PairedSample.of(values, rng.uniform(0.5, 1.0, 200), clusters)
    low, high = sample.interval(0.025)
    assert sample.p_value_above(low) == pytest.approx(0.025, abs=1e-6)
    assert sample.p_value_below(high) == pytest.approx(0.025, abs=1e-6)
    assert low < sample.mean < high


def test_five_copies_of_each_row_say_what_one_says() -> None:
    values = np.random.default_rng(2).normal(0.0, 0.2, 150)
    once = PairedSample.of(values)
    copies = PairedSample.of(np.tile(values, 5), None, np.tile(np.arange(150), 5))
    assert copies.interval(0.025) == pytest.approx(once.interval(0.025), abs=1e-9)


def test_a_hundred_prompts_without_a_loss_do_not_exclude_losses() -> None:
    low, high = PairedSample.of(np.zeros(100)).interval(0.025)
    assert low == pytest.approx(-high)
    assert -0.045 < low < -0.03


def test_one_cluster_says_nothing() -> None:
    sample = PairedSample.of(np.ones(10), None, np.zeros(10))
    assert np.isnan(sample.bound("low", 0.025))
    assert sample.p_value_above(0.0) == 1.0


@pytest.mark.parametrize(("wins", "losses"), [(0.1, 0.1), (0.02, 0.05), (0.0, 0.03)])
def test_a_true_mean_is_denied_as_often_as_asked(wins: float, losses: float) -> None:
    rng = np.random.default_rng(3)
    denied = 0
    for _ in range(500):
        drawn = rng.random(150)
        values = (drawn < wins).astype(float) - (drawn > 1 - losses)
        denied += PairedSample.of(values).p_value_above(wins - losses) <= 0.025
    assert denied <= 25
