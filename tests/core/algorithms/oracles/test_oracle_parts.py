"""Features, propagation by correlation, costs from content."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabs_core.algorithms.oracles.propagation import CorrelationPropagation, deltas_from_surrogates
from cabs_core.algorithms.predictors.costs import ContextCostPredictor, CostPredictor
from cabs_core.algorithms.predictors.features import PcaFeatures, length_features


def test_components_have_the_stated_scale_and_a_constant():
    x = np.random.default_rng(0).normal(size=(300, 20)) * np.linspace(3, 0.1, 20)
    z = PcaFeatures.fit(x, 8).transform(x)
    assert z.shape == (300, 9) and (z[:, -1] == 2.0).all()
    assert (z[:, :8] ** 2).sum(axis=1).mean() == pytest.approx(16.0)
    np.testing.assert_allclose(z[:, :8].mean(axis=0), 0.0, atol=1e-10)
    cov = z[:, :8].T @ z[:, :8]
    np.testing.assert_allclose(cov, np.diag(np.diag(cov)), atol=1e-8)
    assert (np.diff(np.diag(cov)) < 0).all()


def test_components_do_not_depend_on_the_order_of_the_rows():
    x = np.random.default_rng(0).normal(size=(100, 6))
    first, second = PcaFeatures.fit(x, 4), PcaFeatures.fit(x[::-1], 4)
    np.testing.assert_allclose(first.transform(x), second.transform(x), atol=1e-8)


def test_no_more_components_than_directions():
    x = np.outer(np.arange(10.0), [1.0, 2.0, 3.0])
    assert PcaFeatures.fit(x, 3).transform(x).shape == (10, 2)
    same = PcaFeatures.fit(np.ones((5, 3)), 2).transform(np.ones((2, 3)))
    assert np.isfinite(same).all()


def test_length_features_are_bounded():
    features = length_features(np.array([0, 10, 10**9]), 4.0, 0.5)
    assert features.shape == (3, 3) and np.abs(features).max() <= 16.0


def test_propagation_is_the_conditional_mean_of_gaussian_residuals():
    rng = np.random.default_rng(1)
    n, correlation = 20_000, np.array([[1, 0.6, -0.3], [0.6, 1, 0.1], [-0.3, 0.1, 1]])
    predicted = rng.uniform(0.4, 0.6, (n, 3))
    spread = np.sqrt(predicted * (1 - predicted))
    scores = predicted + 0.2 * spread * rng.multivariate_normal(np.zeros(3), correlation, n)
    model = CorrelationPropagation.fit(predicted, scores)
    np.testing.assert_allclose(model.correlation, correlation, atol=0.03)
    surrogates = model.surrogates(predicted[:50], scores[:50])
    for t in range(50):
        for i in range(3):
            for j in range(3):
                slope = model.correlation[i, j] * spread[t, j] / spread[t, i]
                slow = predicted[t, j] + slope * (scores[t, i] - predicted[t, i])
                assert surrogates[t, i, j] == pytest.approx(min(max(slow, 0), 1), abs=1e-12)
    full = ((model.surrogates(predicted, scores)[:, 0, 1] - scores[:, 1]) ** 2).mean()
    assert full < 0.7 * ((predicted[:, 1] - scores[:, 1]) ** 2).mean()


def test_arms_that_never_err_propagate_nothing():
    predicted = np.tile([0.5, 1.0], (50, 1))
    scores = np.stack([np.arange(50) % 2, np.ones(50)], axis=1).astype(float)
    model = CorrelationPropagation.fit(predicted, scores)
    assert np.isfinite(model.correlation).all() and model.correlation[0, 1] == 0.0
    np.testing.assert_allclose(model.surrogates(predicted, scores)[:, 0, 1], 1.0)


@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 1000))
def test_deltas_lead_from_the_anchor_to_the_surrogate(n, k, seed):
    rng = np.random.default_rng(seed)
    surrogates, scores = rng.uniform(-0.5, 1.5, (n, k, k)), rng.random((n, k))
    deltas = deltas_from_surrogates(surrogates, scores)
    assert deltas.dtype == np.float32 and (np.einsum("tii->ti", deltas) == 0.0).all()
    reached = scores[:, :, None] + deltas
    off = ~np.eye(k, dtype=bool)
    np.testing.assert_allclose(reached[:, off], np.clip(surrogates, 0, 1)[:, off], atol=1e-6)


def test_content_tells_costs_that_length_does_not(data):
    lengths, costs = data.outcomes.prompt_lengths, data.outcomes.costs
    train, test = data.split == "train", data.split == "test"
    pca = PcaFeatures.fit(data.embeddings[train], 8)
    model = ContextCostPredictor().fit(pca, data.embeddings[train], lengths[train], costs[train])
    predicted = model.predict(data.embeddings[test], lengths[test])
    plain = CostPredictor().fit(lengths[train], costs[train]).predict(lengths[test])
    error, plain_error = (((p - costs[test]) ** 2).mean(axis=0) for p in (predicted, plain))
    assert (error < 0.5 * plain_error).all()
    mean = costs[train].mean(axis=0)
    assert (predicted >= 0.25 * mean).all() and (predicted <= 4 * mean).all()
    again = ContextCostPredictor.restore(pca, model.state())
    np.testing.assert_array_equal(again.predict(data.embeddings[test], lengths[test]), predicted)


def test_constant_costs_stay_constant(data):
    costs = np.tile([1e-3, 0.0], (len(data.split), 1))
    pca = PcaFeatures.fit(data.embeddings, 4)
    model = ContextCostPredictor().fit(pca, data.embeddings, data.outcomes.prompt_lengths, costs)
    np.testing.assert_allclose(model.predict(data.embeddings, data.outcomes.prompt_lengths), costs, rtol=1e-9)
