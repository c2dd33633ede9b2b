"""Intervals and p-values of skewed costs allow for the dear calls of which a table happens to hold few."""

import numpy as np
import pytest
from scipy import stats

from cabs_core.evaluation.answer.compare import acceleration_of, ends_of_draws, p_value_of_draws

#: so many clusters that Student's quantiles are normal ones
MANY = 1e9


def draws_of_mean(values: np.ndarray, count: int = 8000) -> np.ndarray:
    rng = np.random.default_rng(2)
    means: np.ndarray = values[rng.integers(0, len(values), (count, len(values)))].mean(axis=1)
    return means


@pytest.fixture(scope="module")
def values() -> np.ndarray:
    """Costs of which a few are much dearer than the rest."""
    rng = np.random.default_rng(1)
    return rng.lognormal(0.0, 1.2, 90)


def test_the_dear_end_is_the_accelerated_one_and_the_cheap_end_that_of_percentiles(
    values: np.ndarray,
) -> None:
    acceleration = acceleration_of((values - values.mean()) / len(values))
    low, high = ends_of_draws(
        draws_of_mean(values), values.mean(), 0.025, independent=MANY, acceleration=acceleration
    )

    def by_scipy(method: str) -> tuple[float, float]:
        found = stats.bootstrap(
            (values,),
            np.mean,
            n_resamples=8000,
            batch=500,
            method=method,
            random_state=np.random.default_rng(3),
        )
        return float(found.confidence_interval.low), float(found.confidence_interval.high)

    assert high == pytest.approx(by_scipy("BCa")[1], rel=0.03)
    assert low == pytest.approx(by_scipy("percentile")[0], rel=0.03)
    assert by_scipy("BCa")[1] > 1.03 * by_scipy("percentile")[1], "the two methods differ here"


def test_draws_without_skewness_give_percentiles() -> None:
    rng = np.random.default_rng(4)
    half = rng.normal(size=4000)
    draws = np.concatenate([half, -half])
    assert acceleration_of(draws) == pytest.approx(0.0, abs=1e-9)
    ends = ends_of_draws(draws, 0.0, 0.025, independent=MANY, acceleration=0.0)
    assert ends == pytest.approx(np.quantile(draws, [0.025, 0.975]))


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("independent", [MANY, 25.0])
def test_the_p_value_is_the_error_at_which_the_lower_end_is_zero(
    values: np.ndarray, sign: float, independent: float
) -> None:
    costs = sign * values
    acceleration = acceleration_of((costs - costs.mean()) / len(costs))
    draws = draws_of_mean(costs)
    estimate = float(costs.mean())
    for tail in (0.01, 0.05, 0.2):
        low, _ = ends_of_draws(draws, estimate, tail, independent=independent, acceleration=acceleration)
        p_value = p_value_of_draws(
            draws - low, estimate - low, independent=independent, acceleration=acceleration
        )
        assert p_value == pytest.approx(tail, rel=0.15)


def test_figures_without_spread_have_no_acceleration() -> None:
    assert acceleration_of(np.zeros(5)) == 0.0
