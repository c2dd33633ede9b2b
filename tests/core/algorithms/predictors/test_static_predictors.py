"""Static score and cost predictors against slow references, their files, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cabs_core.algorithms.predictors import load_score_predictor, make_score_predictor
from cabs_core.algorithms.predictors.costs import CostPredictor
from cabs_core.algorithms.predictors.neighbour_lists import nearest
from cabs_core.algorithms.predictors.simple import KnnPredictor, RidgePredictor
from cabs_core.base.errors import DataError, PolicyError, ProvenanceError


def sample(n=300, e=12, arms=4, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, e))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    lengths = rng.integers(0, 4000, size=n)
    hardness = 2.0 * x[:, :1] + 0.3 * np.tanh((lengths[:, None] - 2000) / 800)
    p = 1 / (1 + np.exp(-(hardness + rng.normal(size=arms) * 0.5 + x[:, 1:2] * rng.normal(size=arms))))
    return x, lengths, (rng.random((n, arms)) < p).astype(float), p


SCORE_PREDICTORS = ("mean", "ridge", "knn", "knn_literal", "kernel_ridge")


#: options that keep them small, of the field's as well
OPTIONS = {
    **{name: {} for name in SCORE_PREDICTORS},
    "kernel_ridge": {"landmarks": 80},
    "clusters": {"clusters": 6},
    "hier_shrink": {"coarse": 3, "fine": 8},
    "mf": {"dim": 8, "epochs": 20, "learning_rate": 0.02},
    "mirt": {"dim": 4, "epochs": 20, "learning_rate": 0.02},
    "stack": {"members": ["ridge", ["clusters", {"clusters": 5}], "knn"]},
}


def small(name):
    return make_score_predictor(name, **OPTIONS[name])


@pytest.mark.parametrize("name", OPTIONS)
def test_saved_predictor_predicts_the_same_bytes(name, tmp_path):
    x, lengths, y, _ = sample()
    fitted = small(name).fit(
        x[:200], lengths[:200], y[:200], validation=(x[200:250], lengths[200:250], y[200:250])
    )
    fitted.save(tmp_path / "p")
    again = load_score_predictor(tmp_path / "p")
    expected = fitted.predict(x[250:], lengths[250:])
    assert expected.shape == (50, 4) and expected.min() >= 0 and expected.max() <= 1
    np.testing.assert_array_equal(again.predict(x[250:], lengths[250:]), expected)
    np.testing.assert_array_equal(type(fitted).load(tmp_path / "p").predict(x[250:], lengths[250:]), expected)


#: squared error of a predictor, as a part of the spread of the chances, at most
LIMITS = {"mean": 1.05, "knn_literal": 4.0, "knn": 1.0, "clusters": 0.95, "hier_shrink": 0.95}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_predictor_beats_nothing_and_is_reproducible(name):
    x, lengths, y, p = sample(n=1500)
    one, two = (
        small(name).fit(x[:1000], lengths[:1000], y[:1000], seed=3).predict(x[1000:], lengths[1000:])
        for _ in range(2)
    )
    np.testing.assert_array_equal(one, two)
    error, spread = ((one - p[1000:]) ** 2).mean(), p[1000:].var(axis=0).mean()
    assert error < LIMITS.get(name, 0.5) * spread, (error, spread)


def test_ridge_is_the_penalised_least_squares_solution():
    x, lengths, y, _ = sample(n=120, e=6)
    fitted = RidgePredictor(components=6, penalty=10.0).fit(x, lengths, y)
    centred = x - x.mean(axis=0)
    _, _, vt = np.linalg.svd(centred, full_matrices=False)
    z = centred @ vt.T
    z *= np.sqrt(16.0 / (z**2).sum(axis=1).mean())
    # brute force: the penalty as ten extra rows
    rows = np.vstack([z, np.sqrt(10.0) * np.eye(6)])
    targets = np.vstack([y - y.mean(axis=0), np.zeros((6, 4))])
    weights = np.linalg.lstsq(rows, targets, rcond=None)[0]
    np.testing.assert_allclose(fitted._predict(x, lengths), y.mean(axis=0) + z @ weights, atol=1e-10)


@settings(max_examples=15, deadline=None)
@given(k=st.integers(1, 60), n=st.integers(5, 60), seed=st.integers(0, 99))
def test_knn_is_the_mean_of_the_nearest(k, n, seed):
    x, lengths, y, _ = sample(n=n + 7, e=5, seed=seed)
    got = KnnPredictor(k=k).fit(x[:n], lengths[:n], y[:n]).predict(x[n:], lengths[n:])
    for row, point in enumerate(x[n:]):
        order = np.argsort(((x[:n] - point) ** 2).sum(axis=1))[: min(k, n)]
        np.testing.assert_allclose(got[row], y[order].mean(axis=0), atol=1e-12)


def test_knn_with_another_k_is_the_one_fitted_with_it():
    rng = np.random.default_rng(2)
    x, lengths, y = rng.normal(size=(60, 5)), np.full(60, 9.0), rng.random((60, 3))
    one = KnnPredictor(k=20).fit(x, lengths, y)
    again = KnnPredictor.restore(*one.state())
    by_three = KnnPredictor(k=3).fit(x, lengths, y).predict(x, lengths)
    assert np.array_equal(one.with_k(3).predict(x, lengths), by_three)
    assert np.array_equal(again.with_k(3).predict(x, lengths), by_three)
    assert one.k_ == 20 and one.with_k(1000).k_ == 60


def test_kernel_fixed_half_is_kernel_ridge_when_every_prompt_is_a_landmark():
    x, lengths, y, _ = sample(n=150)
    fitted = make_score_predictor("kernel_ridge").fit(x, lengths, y)
    points = fitted.points_of(x, lengths)
    square = ((points[:, None] - points[None]) ** 2).sum(axis=-1)
    gram = np.exp(-fitted.bandwidth * square)
    targets = (y - y.mean(axis=0)) @ fitted.rotation_
    order = np.argsort(-np.linalg.eigvalsh(np.cov(y.T)))
    np.testing.assert_allclose(
        np.sort(targets.var(axis=0))[::-1], np.linalg.eigvalsh(np.cov(y.T, bias=True))[order], atol=1e-9
    )
    for component, penalty in ((0, 3.0), (2, 30.0)):
        dual = np.linalg.solve(gram + penalty * np.eye(150), targets[:, component])
        got = fitted.kernel_to_marks(points) @ fitted.fixed_[:, component]
        np.testing.assert_allclose(got, gram @ dual, atol=2e-5)


def test_kernel_stack_weights_are_non_negative_and_fitted_on_validation_only():
    x, lengths, y, _ = sample(n=500)
    validation = (x[300:400], lengths[300:400], y[300:400])
    one = small("kernel_ridge").fit(x[:300], lengths[:300], y[:300], validation=validation)
    assert one.stack_first_.min() >= 0 and one.stack_rest_.min() >= 0 and one.stack_first_.max() > 0
    refitted = small("kernel_ridge").fit(
        x[:300], lengths[:300], y[:300], validation=(*validation[:2], 1 - validation[2])
    )
    np.testing.assert_array_equal(one.fixed_, refitted.fixed_)
    assert not np.array_equal(one.stack_first_, refitted.stack_first_)


@pytest.mark.parametrize("n, e, arms", [(2, 1, 1), (3, 40, 2), (40, 3, 1)])
@pytest.mark.parametrize("name", SCORE_PREDICTORS)
def test_tiny_pools_work(name, n, e, arms):
    rng = np.random.default_rng(1)
    x, lengths, y = rng.normal(size=(n, e)), np.full(n, 7), rng.random((n, arms))
    out = make_score_predictor(name).fit(x, lengths, y).predict(x[:0], lengths[:0])
    assert out.shape == (0, arms)
    assert np.isfinite(make_score_predictor(name).fit(x, lengths, y).predict(x, lengths)).all()


def test_cost_follows_length_and_stays_in_bounds(tmp_path):
    rng = np.random.default_rng(0)
    lengths = rng.integers(10, 5000, size=800)
    price = np.array([1e-7, 5e-6])
    costs = lengths[:, None] * price * rng.uniform(0.9, 1.1, size=(800, 2))
    fitted = CostPredictor().fit(lengths, costs)
    middle = np.array([1000.0, 2500.0, 4000.0])
    np.testing.assert_allclose(fitted.predict(middle), middle[:, None] * price, rtol=0.1)
    wild = fitted.predict(np.array([0.0, 1e9]))
    mean = costs.mean(axis=0)
    assert (wild >= 0.25 * mean - 1e-18).all() and (wild <= 4 * mean + 1e-18).all()
    fitted.save(tmp_path / "c")
    np.testing.assert_array_equal(CostPredictor.load(tmp_path / "c").predict(middle), fitted.predict(middle))


def test_cost_of_equal_lengths_is_the_mean():
    costs = np.array([[1.0, 0.0], [3.0, 0.0]])
    np.testing.assert_allclose(CostPredictor().fit([5, 5], costs).predict([5]), [[2.0, 0.0]])


@pytest.mark.parametrize(
    "change, words",
    [
        ({"scores": np.full((10, 2), 1.5)}, "row 0, arm 0 is 1.5"),
        ({"scores": np.zeros((9, 2))}, r"shape \(9, 2\)"),
        ({"embeddings": np.full((10, 3), np.nan)}, "row 0 holds"),
        ({"lengths": -np.ones(10)}, "prompt_lengths"),
        ({"lengths": np.ones(4)}, "prompt_lengths"),
    ],
)
def test_bad_input_is_named(change, words):
    data = {"embeddings": np.ones((10, 3)), "lengths": np.ones(10), "scores": np.zeros((10, 2))} | change
    with pytest.raises(DataError, match=words):
        make_score_predictor("ridge").fit(data["embeddings"], data["lengths"], data["scores"])


def test_wrong_width_unknown_names_and_bad_options():
    x, lengths, y, _ = sample(n=50)
    fitted = make_score_predictor("ridge").fit(x, lengths, y)
    with pytest.raises(DataError, match="fitted on 12"):
        fitted.predict(x[:, :5], lengths)
    with pytest.raises(PolicyError, match="Known: mean"):
        make_score_predictor("forest")
    for bad in (("ridge", {"penalty": 0}), ("knn", {"k": 0}), ("kernel_ridge", {"bandwidth": -1})):
        with pytest.raises(PolicyError):
            make_score_predictor(bad[0], **bad[1])
    for name, options, message in (
        (
            "knn",
            {"k": 3, "gird": (1,)},
            r"knn: unknown option 'gird'. Did you mean 'grid'\? Options .* k=None",
        ),
        ("mean", {"k": 3}, "mean: unknown option 'k'. Options with defaults: none"),
        ("knn", {"grid": (3,), "k": "a"}, "knn: option k .*'a'"),
        ("knn", {"k": np.nan}, "knn: option k "),
        ("knn_literal", {"grid": 3}, "knn_literal: option grid "),
        ("ridge", {"components": None}, "ridge: option components .*None.* components=32, penalty=10.0"),
        ("kernel_ridge", {"penalties": 3.0}, "kernel_ridge: option penalties "),
        ("hier_shrink", {"fine": "a"}, "hier_shrink: option fine "),
        ("mf", {"dim": "a"}, "mf: option dim "),
        ("stack", {"members": [()]}, "stack: option members "),
        ("stack", {"members": [("knn", {"foo": 1})]}, "knn: unknown option 'foo'"),
    ):
        with pytest.raises(PolicyError, match=message):
            make_score_predictor(name, **options)
    with pytest.raises(PolicyError):
        CostPredictor(penalty=0)
    with pytest.raises(DataError, match="row 1, arm 0"):
        CostPredictor().fit([1, 2], [[1.0], [-1.0]])


def test_damaged_files_are_refused(tmp_path):
    x, lengths, y, _ = sample(n=50)
    folder = make_score_predictor("mean").fit(x, lengths, y).save(tmp_path / "p")
    with pytest.raises(ProvenanceError, match="holds the predictor 'mean'"):
        RidgePredictor.load(folder)
    with pytest.raises(ProvenanceError, match="no readable predictor"):
        load_score_predictor(tmp_path / "absent")
    (folder / "predictor.npz").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(ProvenanceError):
        load_score_predictor(folder)
    CostPredictor().fit([1, 2], [[1.0], [1.0]]).save(folder)
    with pytest.raises(ProvenanceError, match="not a score predictor"):
        load_score_predictor(folder)


@pytest.mark.parametrize("top", [1, 3, 100, 200])
def test_the_nearest_of_many_are_those_of_a_whole_search(top):
    rng = np.random.default_rng(top)
    distance = rng.normal(size=(40, 20_001)).astype(np.float32)
    distance[0] = np.sort(distance[0])  # the nearest side by side
    distance[1, ::16] -= 10.0  # a bound that lets too few through
    distance[2] = 0.0
    distances = np.take_along_axis(distance, nearest(distance, top), axis=1)
    assert (np.sort(distances, axis=1) == np.sort(distance, axis=1)[:, :top]).all()
    assert all(len(set(row)) == top for row in nearest(distance, top).tolist())
