"""Diagnostics of the oracles and their plots."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.stats import spearmanr

from cabs_core.algorithms.oracles.diagnostics import calibration, diagnose, rank_correlation, row_pair_errors


@pytest.fixture(scope="module")
def report(auto, data):
    return diagnose(auto, data.embeddings, data.outcomes, data.split)


def test_errors_and_paired_differences(report, auto, data):
    test = data.split == "test"
    x, lengths, y = data.embeddings[test], data.outcomes.prompt_lengths[test], data.outcomes.scores[test]
    assert report["queries"] == test.sum()
    models = report["heads"]["accuracy"]
    used = ((auto.predict_scores(x, lengths) - y) ** 2).mean(axis=1)
    for name in ("mean", "ridge", "knn", "kernel_ridge", "network", "blend"):
        errors = ((auto.predict_scores(x, lengths, model=name) - y) ** 2).mean(axis=1)
        assert models[name]["error"] == pytest.approx(errors.mean())
        assert models[name]["minus_used"] == pytest.approx((errors - used).mean(), abs=1e-12)
        assert models[name]["se"] == pytest.approx((errors - used).std(ddof=1) / np.sqrt(len(y)))
    assert report["heads"]["propagation"]["accuracy head"]["error"] == pytest.approx(used.mean())
    assert json.loads(json.dumps(report)) == report


def test_one_cluster_tells_no_error(auto, data):
    one = np.where((data.split == "test").cumsum() <= 1, data.split, "train")
    report = diagnose(auto, data.embeddings, data.outcomes, one)
    assert {m["se"] for m in report["heads"]["accuracy"].values()} == {None}


def test_surrogate_bias_and_noise_against_a_loop(report, auto, data):
    test = data.split == "test"
    x, lengths, y = data.embeddings[test], data.outcomes.prompt_lengths[test], data.outcomes.scores[test]
    surrogates = auto.surrogate_scores(x, lengths, y)
    for j in range(4):
        gaps = np.concatenate([surrogates[:, i, j] - y[:, j] for i in range(4) if i != j])
        arm = report["arms"][j]
        assert arm["surrogate_bias"] == pytest.approx(gaps.mean(), abs=1e-9)
        assert arm["surrogate_noise"] == pytest.approx(gaps.std(), abs=1e-9)
        others = np.stack([surrogates[:, i, j] for i in range(4) if i != j])
        assert arm["surrogate_spread"] == pytest.approx(others.std(axis=0).__pow__(2).mean() ** 0.5, abs=1e-9)
        assert arm["epsilon"] >= arm["surrogate_spread"]
    pairs = row_pair_errors(auto, x, lengths, y)
    slow = [np.mean([(surrogates[0, i, j] - y[0, j]) ** 2 for i in range(4) for j in range(4) if i != j])]
    assert pairs[0] == pytest.approx(slow[0])


def test_rank_correlation_is_spearmans():
    rng = np.random.default_rng(0)
    a, b = rng.random(60), rng.integers(0, 2, 60).astype(float)
    assert rank_correlation(a, b) == pytest.approx(spearmanr(a, b).statistic)
    assert rank_correlation(a, np.ones(60)) is None


def test_calibration_by_hand():
    result = calibration(np.array([0.0, 0.05, 0.95, 1.0]), np.array([0.0, 1.0, 1.0, 1.0]))
    assert result["counts"] == [2, 0, 0, 0, 0, 0, 0, 0, 0, 2]
    assert result["mean_score"][0] == 0.5 and result["mean_prediction"][9] == pytest.approx(0.975)
    assert result["error"] == pytest.approx((2 * 0.475 + 2 * 0.025) / 4)
