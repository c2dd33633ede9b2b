"""EquiRouter, policy learning on doubly robust utilities, and UniRoute, against slow references."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from tests_support import built

from cabs_core.algorithms.policies.choice_losses import fit_linear, ranking_loss, weighted_log_loss
from cabs_core.algorithms.policies.decisions import doubly_robust
from cabs_core.algorithms.policies.registry import load_policy
from cabs_core.algorithms.policies.request import Offline, Request
from cabs_core.algorithms.predictors.clusters import nearest_center, unit_rows
from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.base.errors import DataError, PolicyError
from cabs_core.base.utility import clipped_utility, expected_utility
from cabs_core.evaluation.replay import replay

RHO = 300.0


@pytest.fixture(scope="module")
def problem():
    return synthetic_problem(n=200, K=4, d=6, offline=400, seed=2)


@pytest.mark.parametrize("pairs", ["equal", "gap"])
def test_the_ranking_loss_pair_by_pair(pairs):
    rng = np.random.default_rng(1)
    scores, utilities = rng.normal(size=(5, 4)), rng.integers(0, 3, (5, 4)) / 2.0
    costs = rng.integers(1, 3, (5, 4)) * 1e-4
    utilities[0], costs[0] = 0.5, 1e-4  # nothing to order
    total = 0.0
    for s, u, c in zip(scores, utilities, costs, strict=True):
        terms, weights = [], []
        for i in range(4):
            for j in range(4):
                if u[i] > u[j] or (pairs == "equal" and u[i] == u[j] and c[i] < c[j]):
                    terms.append(np.log1p(np.exp(-(s[i] - s[j]))))
                    weights.append(1.0 if pairs == "equal" else u[i] - u[j])
        if terms:
            total += np.dot(terms, weights) / (sum(weights) if pairs == "equal" else 3)
    loss, gradient = ranking_loss(scores, utilities, costs, pairs)
    assert loss == pytest.approx(total) and not gradient[0].any()
    slopes = approx_fprime(
        scores.ravel(), lambda s: ranking_loss(s.reshape(5, 4), utilities, costs, pairs)[0], 1e-7
    )
    np.testing.assert_allclose(gradient.ravel(), slopes, atol=1e-5)


def test_the_weighted_log_loss_row_by_row_and_its_minimum():
    rng = np.random.default_rng(2)
    scores, targets = rng.normal(size=(6, 3)), rng.normal(size=(6, 3))  # doubly robust targets leave [0, 1]
    total = 0.0
    for s, u in zip(scores, targets, strict=True):
        chance = np.exp(s) / np.exp(s).sum()
        total -= sum((u[a] - min(u)) * np.log(chance[a]) for a in range(3))
    loss, gradient = weighted_log_loss(scores, targets)
    assert loss == pytest.approx(total)
    slopes = approx_fprime(scores.ravel(), lambda s: weighted_log_loss(s.reshape(6, 3), targets)[0], 1e-7)
    np.testing.assert_allclose(gradient.ravel(), slopes, atol=1e-5)
    # one context: the arm of largest mean target gets the largest score, though another is best more often
    targets = np.array([[0.5, 0.4, 0.0]] * 3 + [[0.0, 1.0, 0.2]])
    w = fit_linear(
        np.zeros((4, 1)),
        lambda s, rows: weighted_log_loss(s, targets[rows]),
        np.arange(4),
        1e-4,
        np.ones((2, 3)),
    )
    assert np.argmax(w[-1]) == 1 == np.argmax(targets.mean(axis=0))


def test_the_fit_is_a_minimum_and_one_that_separates_what_can_be_separated():
    rng = np.random.default_rng(3)
    points, costs = rng.normal(size=(300, 5)), np.ones((300, 3))
    truth = rng.normal(size=(5, 3))
    utilities = np.clip(0.5 + 0.2 * points @ truth, 0, 1)
    every = np.arange(300)
    for loss in (
        lambda s, rows: ranking_loss(s, utilities[rows], costs[rows], "gap"),
        lambda s, rows: weighted_log_loss(s, utilities[rows]),
    ):
        w = fit_linear(points, loss, every, 1e-4, np.full((6, 3), 0.2))

        def value(v, loss=loss):
            return loss(points @ v[:-1] + v[-1], every)[0] / 300 + 0.5e-4 * (v[:-1] ** 2).sum()

        assert all(value(w) <= value(w + 0.05 * rng.normal(size=w.shape)) for _ in range(20))
        played = np.argmax(points @ w[:-1] + w[-1], axis=1)
        assert utilities[every, played].mean() > 0.98 * utilities.max(axis=1).mean()
        # the units of the steps do not move the minimum, nor does the point where they begin
        from_elsewhere = fit_linear(
            points, loss, every, 1e-4, rng.uniform(0.05, 2.0, (6, 3)), rng.normal(size=(6, 3))
        )
        assert value(from_elsewhere) == pytest.approx(value(w), rel=1e-4)


def logged(problem, seed=0):
    """The train split as a log: one arm answered each query, other cells hold nothing that may be read."""
    rng, n = np.random.default_rng(seed), len(problem.offline_scores)
    chance = rng.dirichlet(np.ones(4), size=n) * 0.6 + 0.1
    played = np.array([rng.choice(4, p=p) for p in chance])
    answered = np.zeros((n, 4))
    answered[np.arange(n), played] = 1.0
    return played, chance, answered


def test_doubly_robust_targets_read_the_played_cell_alone_and_are_right_on_average(problem):
    points = unit_rows(problem.offline_embeddings)
    utility = clipped_utility(problem.offline_scores, problem.offline_costs, RHO)
    total, every = np.zeros(4), np.arange(len(points))
    for seed in range(30):
        played, chance, answered = logged(problem, seed)
        estimates = doubly_robust(points, utility, answered > 0, answered * chance)
        hidden = np.where(answered > 0, utility, -7.0)
        if seed == 0:
            np.testing.assert_array_equal(
                doubly_robust(points, hidden, answered > 0, answered * chance), estimates
            )
            others = np.ones_like(estimates, dtype=bool)
            others[every, played] = False
            q = estimates[every, played] * chance[every, played] - utility[every, played]
            q = q / (chance[every, played] - 1.0)  # solved for q
            assert (q > -0.01).all() and (q < 1.01).all() and (estimates[others] <= 1.0).all()
        total += estimates.mean(axis=0) / 30
    np.testing.assert_allclose(total, utility.mean(axis=0), atol=0.02)


def test_on_a_log_the_policy_learns_from_what_was_played(problem):
    _, chance, answered = logged(problem)
    lies = np.where(
        answered > 0, problem.offline_scores, 1.0 - problem.offline_scores
    )  # a wrong direct method
    log = replace(
        problem, offline_scores=lies, offline_answered=answered, offline_propensities=answered * chance
    )
    plain = replace(problem, offline_scores=lies)
    earned = {
        k: replay(p, "dr_policy", RHO, trials=1).rewards.mean() for k, p in (("log", log), ("table", plain))
    }
    assert earned["log"] > earned["table"] + 0.05
    unknown = replace(log, offline_propensities=None)
    assert replay(unknown, "dr_policy", RHO, trials=1).rewards.mean() > earned["table"] + 0.05
    with pytest.raises(DataError, match="offline_propensities"):
        replace(problem, offline_propensities=answered * 2.0)


def test_a_played_arm_with_propensity_0_is_refused_by_row_and_arm(problem):
    played, chance, answered = logged(problem)
    propensities = answered * chance
    propensities[7] = 0.0
    message = rf"propensities\[7, {played[7]}\] is 0"
    with pytest.raises(DataError, match=f"offline_{message}, but arm-{played[7]} answered train query 7"):
        replace(problem, offline_answered=answered, offline_propensities=propensities)
    arrays = problem.offline_contexts, problem.offline_scores, problem.offline_costs
    with pytest.raises(PolicyError, match=message):
        Offline(*arrays, RHO, answered=answered, propensities=propensities)
    with pytest.raises(PolicyError, match=r"Offline: answered has shape \[3, 4\]"):
        Offline(*arrays, RHO, answered=answered[:3], propensities=answered * chance)
    for cells in (0.0, 1.0):
        twice = answered.copy()
        twice[7] = cells
        log = replace(problem, offline_answered=twice, offline_propensities=np.maximum(chance, 0.1))
        with pytest.raises(PolicyError, match=f"row 7 of the train split has {4 * cells:.0f} answered cells"):
            replay(log, "dr_policy", RHO, trials=1)


def test_a_logged_problem_keeps_what_was_answered(problem, tmp_path):
    _, chance, answered = logged(problem)
    replace(problem, offline_answered=answered, offline_propensities=answered * chance).save(tmp_path / "p")
    back = type(problem).load(tmp_path / "p")
    np.testing.assert_array_equal(back.offline_answered, answered)
    np.testing.assert_allclose(back.offline_propensities, answered * chance)


def test_uniroute_is_the_mean_score_of_the_prompts_cluster(problem):
    policy, stream = built("uniroute", problem, settings={"clusters": 6})
    values = policy.algorithm.table(stream)
    centers = policy.algorithm.predictor.centers_
    labels = nearest_center(unit_rows(problem.offline_embeddings), centers)
    for i in range(40):
        point = problem.embeddings[i] / np.linalg.norm(problem.embeddings[i])
        # 1 - x.c, the distance of the predictor, ranks centres of unequal length otherwise than Euclid
        near = int(np.argmin([1.0 - point @ c for c in centers]))
        mean = problem.offline_scores[labels == near].mean(axis=0)
        expected = expected_utility(mean, stream.static_costs[i], RHO, stream.share)
        np.testing.assert_allclose(values[i], expected)


def test_a_later_arm_needs_few_outcomes_and_no_training(problem, tmp_path):
    policy, stream = built("uniroute", problem, settings={"clusters": 6})
    before, few = policy.algorithm.table(stream).copy(), slice(0, 30)
    best = problem.offline_scores.max(axis=1)  # an arm that is right wherever one is
    policy.add_arm("later", problem.offline_embeddings[few], best[few])
    costs = np.column_stack([stream.static_costs, np.zeros(problem.n)])
    request = Request(embedding=problem.embeddings[0], prompt_length=10.0, static_costs=costs[0])
    with pytest.raises(PolicyError, match="already an arm"):
        policy.add_arm("later", problem.offline_embeddings[few], best[few])
    with pytest.raises(PolicyError, match="give both or none"):
        policy.add_arm("half", problem.offline_embeddings[few])
    with pytest.raises(DataError, match="columns"):
        policy.add_arm("other", problem.offline_embeddings[few, :2], best[few])
    assert policy.arms == [*problem.arms, "later"]
    values = policy.algorithm.values(request)
    np.testing.assert_allclose(values[:4], before[0])
    labels = nearest_center(unit_rows(problem.offline_embeddings[few]), policy.algorithm.predictor.centers_)
    means = policy.algorithm.predictor.means_
    for cluster in range(6):
        of_cluster = best[few][labels == cluster]
        # the arm's mean counts as four prompts in every cluster
        shrunk = (of_cluster.sum() + 4.0 * best[few].mean()) / (len(of_cluster) + 4.0)
        assert means[cluster, 4] == pytest.approx(shrunk)
    assert policy.decide(request).arm == 4
    policy.save(tmp_path / "saved")
    np.testing.assert_array_equal(load_policy(tmp_path / "saved").algorithm.values(request), values)
    policy.remove_arm("later")
    assert policy.algorithm.predictor.means_.shape == (6, 4)
    policy.add_arm("unknown")
    assert not policy.algorithm.predictor.means_[:, 4].any()


def test_other_policies_say_that_they_cannot_start_an_arm_from_scored_prompts(problem):
    policy, _ = built("lin_ucb", problem)
    with pytest.raises(PolicyError, match="scored prompts"):
        policy.add_arm("new", problem.offline_embeddings[:3], np.ones(3))
    assert policy.arms == list(problem.arms)
