"""Rank-one ridge kernels against dense linear algebra."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cabs_core.algorithms.regression.ridge import observe, product, quadratic, start_inverse, warm_start


@given(st.integers(1, 9), st.integers(0, 60), st.floats(0.01, 100), st.integers(0, 10_000))
@settings(max_examples=80, deadline=None)
def test_updates_equal_the_normal_equations(d, rows, penalty, seed):
    rng = np.random.default_rng(seed)
    inverse, theta, gain = start_inverse(1, d, penalty)[0], np.zeros(d), np.empty(d)
    X, y, w = rng.normal(size=(rows, d)) * 3, rng.random(rows), rng.uniform(0.1, 3, rows)
    for i in range(rows):
        observe(inverse, theta, X[i], y[i], w[i], gain)
    A = penalty * np.eye(d) + X.T @ (w[:, None] * X)
    np.testing.assert_allclose(theta, np.linalg.solve(A, X.T @ (w * y)), atol=1e-9)
    x, full = rng.normal(size=d), np.linalg.inv(A)
    np.testing.assert_allclose(np.tril(inverse), np.tril(full), atol=1e-9 / min(penalty, 1))
    assert quadratic(inverse, x) == pytest.approx(x @ full @ x, rel=1e-8)
    assert product(inverse, x, gain) == pytest.approx(x @ full @ x, rel=1e-8)
    np.testing.assert_allclose(gain, full @ x, atol=1e-9 / min(penalty, 1))


def test_no_drift_after_many_updates():
    rng = np.random.default_rng(0)
    d, n = 12, 20_000
    X = rng.normal(size=(n, d)) * 10.0 ** np.linspace(-1.5, 1, d)
    y = rng.random(n)
    inverse, theta, gain = start_inverse(1, d, 1e-3)[0], np.zeros(d), np.empty(d)
    for i in range(n):
        observe(inverse, theta, X[i], y[i], 1.0, gain)
    exact = np.linalg.solve(1e-3 * np.eye(d) + X.T @ X, X.T @ y)
    np.testing.assert_allclose(theta, exact, atol=1e-8)


def test_warm_start_is_the_discounted_train_split():
    rng = np.random.default_rng(1)
    X, Y = rng.normal(size=(50, 4)), rng.random((50, 3))
    inverse, theta = warm_start(X, Y, 10.0, 0.3)
    A = 10 * np.eye(4) + 0.3 * X.T @ X
    np.testing.assert_allclose(inverse @ A, np.eye(4), atol=1e-10)
    np.testing.assert_allclose(A @ theta.T, 0.3 * X.T @ Y, atol=1e-10)
