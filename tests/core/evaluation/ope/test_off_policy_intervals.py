"""Estimators and errors of a log, against sums worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cabs_core.base.statistics.uncertainty import StandardError, mean_error
from cabs_core.evaluation.ope.estimators import doubly_robust, snips, weights
from cabs_core.evaluation.ope.intervals import (
    LEAST,
    effective_size,
    error_of,
    half_width,
    more_decisions,
    second_moment,
    sequence_half_width,
)

TARGET = np.array([[1.0, 0.0], [0.5, 0.5]])
PMF = np.array([[0.5, 0.5], [0.25, 0.75]])
EQUAL = np.ones(2)


def test_a_log_in_which_the_policy_plays_nothing_has_no_self_normalised_estimate() -> None:
    assert math.isnan(snips(np.zeros(3), np.ones(3)))


def test_a_tiny_propensity_gives_a_weight_whose_square_is_finite() -> None:
    (weight,) = weights(np.array([[1.0, 0.0]]), np.array([0]), np.array([1e-320]))
    assert weight > 1e100
    assert np.isfinite(weight**2)


def test_a_weight_of_just_the_switch_counts_and_a_larger_one_does_not() -> None:
    target = np.array([[0.5, 0.5], [0.5, 0.5]])
    q = np.array([[0.2, 0.4], [0.2, 0.4]])
    found = doubly_robust(target, np.array([2.0, 2.1]), np.array([0, 1]), np.array([1.0, 1.0]), q, 2.0)
    assert found == pytest.approx([0.3 + 2.0 * 0.8, 0.3])


def test_the_second_moment_is_the_mean_of_squares_over_propensities() -> None:
    assert second_moment(TARGET, PMF, EQUAL) == pytest.approx((2.0 + 4.0 / 3.0) / 2.0)
    shares = np.array([0.5, 1.5])
    assert second_moment(TARGET, PMF, shares) == pytest.approx((0.25 * 2.0 + 2.25 * 4.0 / 3.0) / 2.0)


def test_an_arm_that_the_log_never_plays_adds_nothing_to_the_second_moment() -> None:
    assert second_moment(np.array([[0.6, 0.4]]), np.array([[1.0, 0.0]]), np.ones(1)) == pytest.approx(0.36)


def test_the_effective_size_is_the_number_of_decisions_over_the_second_moment() -> None:
    assert effective_size(TARGET, PMF, EQUAL) == pytest.approx(2.0 / (5.0 / 3.0))
    shares = np.array([0.5, 1.5])
    assert effective_size(TARGET, PMF, shares) == pytest.approx(2.0 / 1.75)


def test_the_effective_size_of_a_difference_counts_what_is_taken_away_and_what_is_given() -> None:
    difference = np.array([[0.5, -0.5], [0.0, 0.0]])
    # E|c| = (1 + 0) / 2, E[c^2] = (0.25 / 0.5 + 0.25 / 0.5) / 2
    assert effective_size(difference, PMF, EQUAL) == pytest.approx(2.0 * 0.25 / 0.5)


def test_a_log_says_nothing_about_a_difference_of_nothing() -> None:
    assert effective_size(np.zeros((2, 2)), PMF, EQUAL) == 0.0


@pytest.mark.parametrize(
    ("scored", "size", "needed"),
    [
        (100, 40.0, 25),
        (1000, 25.0, 1000),
        (333, 30.0, 230),
        (100, LEAST, 0),
        (100, 80.0, 0),
        (100, 0.0, None),
    ],
)
def test_further_decisions_are_counted_at_the_rate_so_far(
    scored: int, size: float, needed: int | None
) -> None:
    assert more_decisions(scored, size) == needed


MODEL = np.array([0.1, 0.4, 0.2, 0.9])
ERROR = np.array([0.5, -0.5, 0.2, -0.1])
ROWS = np.arange(4)


@pytest.mark.parametrize("cautious", [False, True])
def test_without_weights_the_error_is_that_of_the_model(cautious: bool) -> None:
    found = error_of(MODEL, np.zeros(4), ERROR, ROWS, 9.0, 4.0, cautious=cautious)
    assert found.value == pytest.approx(mean_error(MODEL).value)


def test_a_log_of_small_weights_has_the_error_that_larger_ones_lead_to_expect() -> None:
    found = error_of(np.zeros(4), np.full(4, 0.1), ERROR, ROWS, 9.0, 4.0)
    assert found.value == pytest.approx(math.sqrt(9.0 * float((ERROR**2).mean()) / 4.0))


@pytest.mark.parametrize(
    ("clusters", "size", "degrees", "independent"),
    [(ROWS, 3.5, 2.5, 3.5), (ROWS, 40.0, 3.0, 4.0), (ROWS // 2, 3.5, 1.0, 2.0), (ROWS, 1.5, 1.0, 1.5)],
)
def test_the_smaller_of_effective_size_and_clusters_gives_the_degrees_of_freedom(
    clusters: np.ndarray, size: float, degrees: float, independent: float
) -> None:
    found = error_of(MODEL, np.ones(4), ERROR, clusters, 1.0, size)
    assert (found.degrees, found.clusters) == (degrees, independent)


def test_an_interval_at_one_length_is_students_and_at_least_what_the_log_may_have_missed() -> None:
    error = StandardError(0.1, 10.0, 11.0)
    assert half_width(error, largest=0.0) == pytest.approx(0.2228, abs=1e-4)
    assert half_width(error, largest=2.0) == pytest.approx(2.0 * (1.0 - 0.05 ** (1.0 / 11.0)))


def test_an_interval_at_all_lengths_is_the_sequences_and_at_least_what_the_log_may_have_missed() -> None:
    error = StandardError(0.1, 10.0, 11.0)
    assert half_width(error, largest=0.0, sequence_at=1000) == pytest.approx(0.30352, abs=1e-5)
    assert half_width(error, largest=2.0, sequence_at=1000) == pytest.approx(
        2.0 * (1.0 - 0.05 ** (1.0 / 11.0))
    )


def test_a_confidence_sequence_of_1000_decisions_is_3_standard_errors_and_others_are_wider() -> None:
    # rho^2 n = 5.9915 + ln 6.9915 = 7.9362; sqrt(2 (8.9362 / 7.9362) ln(sqrt(8.9362) / 0.05))
    assert sequence_half_width(1000) == pytest.approx(3.0352, abs=1e-4)
    # rho^2 n = 79.362; sqrt(2 (80.362 / 79.362) ln(sqrt(80.362) / 0.05))
    assert sequence_half_width(10_000) == pytest.approx(3.2417, abs=1e-4)
    assert sequence_half_width(100) > sequence_half_width(1000)
