"""Predictors of the field's routers against slow references written from their sources' formulas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

from cabs_core.algorithms.predictors import load_score_predictor, make_score_predictor
from cabs_core.algorithms.predictors.base import contrast_error, contrasts
from cabs_core.algorithms.predictors.bilinear import (
    FactorisationPredictor,
    MirtPredictor,
    cross_entropy,
    pair_loss,
)
from cabs_core.algorithms.predictors.clusters import ClusterPredictor, HierShrinkPredictor
from cabs_core.algorithms.predictors.stack import stack_weights
from cabs_core.algorithms.predictors.tasks import TaskPredictor
from cabs_core.base.errors import DataError, PolicyError


def sample(n=400, e=10, arms=4, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, e))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    lengths = rng.integers(10, 4000, size=n)
    p = expit(3.0 * x[:, :1] + rng.normal(size=arms) * 0.5 + x[:, 1:3] @ rng.normal(size=(2, arms)) * 3.0)
    return x, lengths, (rng.random((n, arms)) < p).astype(float), p


def test_clusters_are_a_softmax_of_the_three_nearest():
    x, lengths, y, _ = sample(n=120)
    fitted = ClusterPredictor(clusters=7, top=3, beta=9.0).fit(3.0 * x, lengths, y)
    labels = [int(np.argmin([np.linalg.norm(row - c) for c in fitted.centers_])) for row in x]
    for row, got in zip(x[:30], fitted.predict(5.0 * x[:30], lengths[:30]), strict=True):
        distance = [1.0 - float(row @ c) for c in fitted.centers_]
        near = sorted(range(7), key=lambda c: distance[c])[:3]
        weight = np.exp([-9.0 * distance[c] for c in near])
        weight /= weight.sum()
        means = [np.mean([y[i] for i in range(120) if labels[i] == c], axis=0) for c in near]
        np.testing.assert_allclose(got, weight @ np.array(means), atol=1e-12)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 50), strength=st.floats(0.5, 200.0))
def test_hier_shrink_is_two_shrunken_means(seed, strength):
    x, lengths, y, _ = sample(n=60, e=4, seed=seed)
    fitted = HierShrinkPredictor(coarse=3, fine=9, strength=strength).fit(x, lengths, y)

    def cluster(row, centers):
        return int(np.argmin(((row - centers) ** 2).sum(axis=1)))

    coarse = np.array([cluster(r, fitted.coarse_centers_) for r in x])
    fine = np.array([cluster(r, fitted.fine_centers_) for r in x])
    got = fitted.predict(x, lengths)
    for i in range(0, 60, 7):
        large, small = y[coarse == coarse[i]], y[fine == fine[i]]
        first = (len(large) * large.mean(axis=0) + strength * y.mean(axis=0)) / (len(large) + strength)
        second = (len(small) * small.mean(axis=0) + strength * first) / (len(small) + strength)
        np.testing.assert_allclose(got[i], second, atol=1e-12)


def torch_loss(predictor, e, y):
    """The sources' losses written with torch, and its gradients of the predictor's weights."""
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    w = {k: torch.tensor(v, requires_grad=True) for k, v in predictor.weights_.items()}
    e, y = torch.tensor(e), torch.tensor(y)
    if predictor.name == "mirt":
        a = functional.linear(e, w["discrimination"], w["discrimination_bias"])
        b = functional.linear(e, w["difficulty"][None], w["difficulty_bias"])
        chance = 1.0 / (1.0 + torch.exp(-(a[:, None, :] * w["abilities"]).sum(-1) + b))
        loss = functional.binary_cross_entropy(chance, y)
    elif predictor.loss == "cross_entropy":
        # two logits a pair (arm, prompt), whose difference is ours
        q = functional.linear(e, w["projection"], w["bias"])
        half = functional.linear(w["arms"] * q[:, None, :], w["classifier"][None]) + w["constant"]
        logits = torch.cat([-0.5 * half, 0.5 * half], dim=-1).reshape(-1, 2)
        loss = functional.cross_entropy(logits, y.reshape(-1).long())
    else:
        p = functional.normalize(w["arms"], p=2, dim=1)
        q = functional.linear(e, w["projection"])
        terms = []
        for i in range(len(e)):
            for winner in range(y.shape[1]):
                for loser in range(y.shape[1]):
                    if y[i, winner] > y[i, loser]:
                        s = functional.linear((p[winner] - p[loser]) * q[i], w["classifier"][None])
                        terms.append(
                            functional.binary_cross_entropy_with_logits(s, torch.ones(1, dtype=s.dtype))
                        )
        loss = torch.stack(terms).mean()
    loss.backward()
    return float(loss.detach()), {k: v.grad.numpy() for k, v in w.items()}


@pytest.mark.parametrize(
    "predictor",
    [FactorisationPredictor(dim=6), FactorisationPredictor(dim=6, loss="pair"), MirtPredictor(dim=5)],
    ids=["cross_entropy", "pair", "mirt"],
)
def test_losses_and_gradients_are_those_of_the_sources(predictor):
    x, _, y, _ = sample(n=40, e=7)
    predictor.width_ = 7
    predictor.weights_ = predictor.start_weights(y, np.random.default_rng(3))
    for name, w in predictor.weights_.items():  # away from where everything is zero
        predictor.weights_[name] = w + 0.1 * np.random.default_rng(len(name)).normal(size=w.shape)
    logits, hidden = predictor.forward(x)
    loss, slope = predictor.loss_and_slope(logits, y)
    expected, gradients = torch_loss(predictor, x, y)
    assert loss == pytest.approx(expected, rel=1e-10)
    got = predictor.gradient(x, hidden, slope)
    assert set(got) == set(gradients)
    for name, value in gradients.items():
        np.testing.assert_allclose(got[name], value, atol=1e-12, err_msg=name)


def test_training_is_adam_with_the_l2_term_in_the_gradient():
    torch = pytest.importorskip("torch")
    x, lengths, y, _ = sample(n=50, e=6)
    ours = MirtPredictor(dim=3, learning_rate=0.02, weight_decay=0.01, epochs=1)
    # one batch an epoch, so that one step is made whatever the order
    ours.fit(x, lengths, y, validation=(x, lengths, y), seed=1)
    start = MirtPredictor(dim=3)
    start.width_ = 6
    start.weights_ = start.start_weights(y, np.random.default_rng([1, 31]))
    _, gradients = torch_loss(start, x * ours.scale_, y)
    parameters = {k: torch.tensor(v, requires_grad=True) for k, v in start.weights_.items()}
    for name, parameter in parameters.items():
        parameter.grad = torch.tensor(gradients[name])
    torch.optim.Adam(parameters.values(), lr=0.02, weight_decay=0.01).step()
    for name, parameter in parameters.items():
        np.testing.assert_allclose(ours.weights_[name], parameter.detach().numpy(), atol=1e-9, err_msg=name)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 999), k=st.integers(2, 5))
def test_gradients_of_the_losses_are_their_slopes(seed, k):
    rng = np.random.default_rng(seed)
    s, y = rng.normal(size=(3, k)), rng.choice([0.0, 0.3, 1.0], size=(3, k))
    for loss in (cross_entropy, pair_loss):
        _, slope = loss(s, y)
        for i in range(3):
            for j in range(k):
                up, down = s.copy(), s.copy()
                up[i, j] += 1e-6
                down[i, j] -= 1e-6
                assert slope[i, j] == pytest.approx((loss(up, y)[0] - loss(down, y)[0]) / 2e-6, abs=1e-7)


def test_the_pair_loss_makes_calibrated_scores():
    x, lengths, y, p = sample(n=1500)
    fitted = make_score_predictor("mf", loss="pair", dim=8, learning_rate=0.02).fit(
        x[:1200], lengths[:1200], y[:1200]
    )
    got = fitted.predict(x[1200:], lengths[1200:])
    assert abs(got.mean() - p[1200:].mean()) < 0.04
    ahead = lambda v: v[:, 0] > v[:, 1]  # noqa: E731
    assert (ahead(got) == ahead(p[1200:])).mean() > 0.8


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 99), pull=st.sampled_from([0.0, 50.0, 1e7]))
def test_stack_weights_are_constrained_least_squares_drawn_to_common_ones(seed, pull):
    from scipy.optimize import lsq_linear

    rng = np.random.default_rng(seed)
    members = rng.normal(size=(80, 3, 2))
    targets = np.einsum("nkm,km->nk", members, [[1.0, 0.0], [0.2, 0.8], [0.5, -0.3]]) + 0.1 * rng.normal(
        size=(80, 3)
    )
    got = stack_weights(members, targets, pull)
    assert got.min() >= 0.0
    common = lsq_linear(members.reshape(-1, 2), targets.ravel(), (0.0, np.inf), tol=1e-14).x
    gram = np.einsum("nkm,nkl->ml", members, members) / 240
    root = np.linalg.cholesky(gram).T * np.sqrt(pull)
    for j in range(3):
        rows, right = np.vstack([members[:, j], root]), np.append(targets[:, j], root @ common)
        np.testing.assert_allclose(got[j], lsq_linear(rows, right, (0.0, np.inf), tol=1e-14).x, atol=1e-4)
    if pull > 1e6:
        np.testing.assert_allclose(got, np.tile(common, (3, 1)), atol=1e-2)


def test_stack_weights_come_from_rows_that_members_did_not_see():
    """kNN with k = 1 is perfect on rows it has seen, and noise elsewhere: a stack that weighs honestly leaves
    it out."""
    x, lengths, y, _ = sample(n=600)
    members = [["knn", {"k": 1}], ["mean", {}]]
    fitted = make_score_predictor("stack", members=members, pull=0.0).fit(x, lengths, y)
    assert "knn" not in fitted.fitted_ or fitted.weights_[:, 0].max() < 0.4


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("clusters", {"top": 0}, "top"),
        ("hier_shrink", {"strength": 0}, "strength"),
        ("mf", {"loss": "hinge"}, "loss"),
        ("mirt", {"dim": 0}, "dim"),
        ("stack", {"members": ["ridge", "ridge"]}, "different"),
        ("stack", {"members": ["forest"]}, "unknown score predictor"),
        ("stack", {"members": ["stack"]}, "other than stack"),
        ("tasks", {"penalty": 0}, "penalty"),
    ],
)
def test_bad_settings_are_named(name, options, match):
    with pytest.raises(PolicyError, match=match):
        make_score_predictor(name, **options)


def test_contrasts_are_scores_less_their_mean_over_the_arms():
    rng = np.random.default_rng(0)
    p, y = rng.random((30, 4)), rng.random((30, 4))
    slow = np.mean([((p[i] - p[i].mean()) - (y[i] - y[i].mean())) ** 2 for i in range(30)])
    assert contrast_error(p, y) == pytest.approx(slow)
    pairs = [(p[:, i] - p[:, j] - y[:, i] + y[:, j]) ** 2 for i in range(4) for j in range(4)]
    assert contrast_error(p, y) == pytest.approx(np.mean(pairs) / 2), "half the mean over pairs of arms"
    np.testing.assert_allclose(contrasts(p + rng.random((30, 1))), contrasts(p))
    np.testing.assert_array_equal(contrasts(p[:, :1]), p[:, :1])


def test_knn_and_stack_choose_by_contrasts():
    """One feature says how hard the prompt is, seen best by few neighbours; the arms differ by a constant."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(900, 1))
    hard = 0.5 + 0.4 * np.sin(6.0 * x)
    lengths, y = np.ones(900), (rng.random((900, 3)) < hard + np.array([0.05, 0.0, -0.05])).astype(float)
    held = (x[600:], lengths[600:], y[600:])
    knn = make_score_predictor("knn").fit(x[:600], lengths[:600], y[:600], validation=held)
    errors = {
        k: contrast_error(knn.with_k(k).predict(*held[:2]), held[2])
        for k in (3, 10, 20, 30, 50, 75, 100, 150, 200)
    }
    levels = {k: ((knn.with_k(k).predict(*held[:2]) - held[2]) ** 2).mean() for k in errors}
    assert knn.k_ == min(errors, key=errors.__getitem__) != min(levels, key=levels.__getitem__)
    stack = make_score_predictor("stack", members=["mean", ["knn", {"k": 10}]]).fit(
        x[:600], lengths[:600], y[:600]
    )
    hard_for_all = list(stack.fitted_).index("knn")
    assert stack.common_[hard_for_all] > 0.6 > 0.3 > stack.weights_[:, hard_for_all].max()


def made_tasks(n=1200, seed=0):
    """Six tasks by place of the embedding, on each of which another arm is best; (x, lengths, y, tasks,
    chances)."""
    rng = np.random.default_rng(seed)
    places, chance = rng.normal(size=(6, 8)), rng.permutation(np.linspace(0.1, 0.9, 24)).reshape(6, 4)
    which = rng.integers(6, size=n)
    x = places[which] + 0.6 * rng.normal(size=(n, 8))
    y = (rng.random((n, 4)) < chance[which]).astype(float)
    return x, rng.integers(10, 900, size=n), y, np.array([f"task{w}" for w in which]), chance[which]


def test_tasks_are_guessed_from_the_prompt_and_beat_the_means(tmp_path):
    x, lengths, y, tasks, chance = made_tasks()
    seen, rest = slice(0, 900), slice(900, None)
    fitted = TaskPredictor().fit(x[seen], lengths[seen], y[seen], tasks=tasks[seen], seed=1)
    probabilities = fitted.task_probabilities(x[rest])
    names = np.unique(tasks)
    assert (names[probabilities.argmax(axis=1)] == tasks[rest]).mean() > 0.8
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    for i, name in enumerate(names):
        of_task = y[seen][tasks[seen] == name]
        shrunk = (of_task.sum(axis=0) + 10.0 * y[seen].mean(axis=0)) / (len(of_task) + 10.0)
        np.testing.assert_allclose(fitted.means_[i], shrunk)
    predicted = fitted.predict(x[rest], lengths[rest])
    means = make_score_predictor("mean").fit(x[seen], lengths[seen], y[seen]).predict(x[rest], lengths[rest])
    assert contrast_error(predicted, chance[rest]) < 0.3 * contrast_error(means, chance[rest])
    played = y[rest][np.arange(300), predicted.argmax(axis=1)].mean()
    assert played > y[rest][np.arange(300), means.argmax(axis=1)].mean() + 0.1
    fitted.save(tmp_path / "p")
    again = load_score_predictor(tmp_path / "p")
    np.testing.assert_array_equal(again.predict(x[rest], lengths[rest]), predicted)
    twice = TaskPredictor().fit(x[seen], lengths[seen], y[seen], tasks=tasks[seen], seed=1)
    np.testing.assert_array_equal(twice.predict(x[rest], lengths[rest]), predicted)


def test_the_logistic_regression_of_tasks_is_at_its_least():
    x, lengths, y, tasks, _ = made_tasks(n=300)
    fitted = TaskPredictor().fit(x, lengths, y, tasks=tasks)
    one_hot = (tasks[:, None] == np.unique(tasks)).astype(float)
    features = np.hstack([(x - x.mean(axis=0)) / fitted.scale_, np.ones((300, 1))])
    slope = features.T @ (fitted.task_probabilities(x) - one_hot)
    slope[:-1] += fitted.weights_[:-1]
    assert np.abs(slope).max() / 300 < 1e-3


def test_without_labels_all_prompts_are_one_task():
    x, lengths, y, tasks, _ = made_tasks(n=100)
    fitted = make_score_predictor("tasks").fit(x, lengths, y)
    np.testing.assert_allclose(fitted.predict(x, lengths), np.tile(y.mean(axis=0), (100, 1)))
    with pytest.raises(DataError, match="tasks have shape"):
        TaskPredictor().fit(x, lengths, y, tasks=tasks[:5])
