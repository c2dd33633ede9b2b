"""Routers of the field whose rule depends on rho, and ParetoBandit, against slow references from their
sources."""

from __future__ import annotations

from dataclasses import replace as with_changes

import numpy as np
import pytest
from tests_support import built

from cabs_core.algorithms.policies import neighbours
from cabs_core.algorithms.policies.eagle import bradley_terry, elo_updates
from cabs_core.algorithms.policies.neighbours import balance, nearest_rows, rank_votes
from cabs_core.algorithms.policies.pareto_bandit import log_costs
from cabs_core.algorithms.policies.registry import build_policy, load_policy
from cabs_core.algorithms.policies.request import Request
from cabs_core.algorithms.predictors.bilinear import FactorisationPredictor
from cabs_core.algorithms.predictors.clusters import ClusterPredictor, unit_rows
from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.base.errors import PolicyError
from cabs_core.base.utility import clipped_utility
from cabs_core.evaluation.replay import replay

RULES = ("avengers_pro", "guarded_knn", "eagle")


@pytest.fixture(scope="module")
def problem():
    return synthetic_problem(n=120, K=4, d=6, offline=150, seed=2)


def test_balance_and_votes_are_the_sources_formulas():
    rng = np.random.default_rng(0)
    accuracy, cost = rng.random((3, 4)), rng.random((3, 4))
    accuracy[1], cost[2] = 0.4, 0.0
    for weight in (0.0, 0.3, 1.0):
        got = balance(accuracy, cost, weight)
        for c in range(3):
            low, high, top = min(accuracy[c]), max(accuracy[c]), max(cost[c])
            for j in range(4):
                good = (accuracy[c, j] - low) / (high - low) if high > low else 1.0
                cheap = 1.0 - cost[c, j] / top if top > 0 else 1.0
                assert got[c, j] == pytest.approx(weight * good + (1 - weight) * cheap)
        votes = rank_votes(got)
        for c in range(3):
            ranking = sorted(range(4), key=lambda j: -got[c, j])
            np.testing.assert_allclose(votes[c, ranking], [1, 1 / 2, 1 / 3, 1 / 4])


@pytest.mark.parametrize("weight", [0.7, None])
def test_avengers_pro_step_by_step(problem, weight):
    policy, stream = built("avengers_pro", problem, clusters=5, weight=weight)
    train, test = (
        unit_rows(problem.offline_embeddings.astype(float)),
        unit_rows(problem.embeddings.astype(float)),
    )
    labels = [int(np.argmin(((row - policy.algorithm.centers) ** 2).sum(axis=1))) for row in train]
    mean = lambda v: np.array([v[np.array(labels) == c].mean(axis=0) for c in range(5)])  # noqa: E731
    accuracy, cost = mean(problem.offline_scores), mean(problem.offline_costs)

    def route(rows, w):
        scores = balance(accuracy, cost, w)
        arms = []
        for row in rows:
            distance = 1.0 - policy.algorithm.centers @ row
            near = np.argsort(distance)[:3]
            chance = np.exp(-9.0 * distance[near])
            chance /= chance.sum()
            total = np.zeros(4)
            for c, p in zip(near, chance, strict=True):
                ranking = sorted(range(4), key=lambda j, c=c: -scores[c, j])
                for j in range(4):
                    total[j] += p / (ranking.index(j) + 1)
            arms.append(int(np.argmax(total)))
        return arms

    if weight is None:
        utility = clipped_utility(problem.offline_scores, problem.offline_costs, 300.0)
        tried = [i / 20 for i in range(21)]
        values = [utility[range(150), route(train, w)].mean() for w in tried]
        weight = tried[int(np.argmax(values))]
    expected = route(test, weight)
    assert [policy.decide(stream.request(i, i)).arm for i in range(120)] == expected


def test_guarded_knn_leaves_the_fallback_only_for_a_clear_lead(problem):
    policy, stream = built("guarded_knn", problem, neighbours=15, z=1.0)
    train, test = (
        unit_rows(problem.offline_embeddings.astype(float)),
        unit_rows(problem.embeddings.astype(float)),
    )
    utility = clipped_utility(problem.offline_scores, problem.offline_costs, 300.0)
    fallback, left = int(np.argmax(utility.mean(axis=0))), 0
    for i, row in enumerate(test):
        near = np.argsort(-(train @ row))[:15]
        best, lead = fallback, 0.0
        for j in range(4):
            gap = utility[near, j] - utility[near, fallback]
            if gap.mean() > gap.std(ddof=1) / np.sqrt(15) and gap.mean() > lead:
                best, lead = j, gap.mean()
        left += best != fallback
        assert policy.decide(stream.request(i, i)).arm == best
    assert 0 < left < 120
    timid, _ = built("guarded_knn", problem, neighbours=15, z=50.0)
    assert {timid.decide(stream.request(i, i)).arm for i in range(120)} == {fallback}


def test_eagle_is_half_global_half_local_elo(problem):
    policy, stream = built("eagle", problem, neighbours=6)
    train, test = (
        unit_rows(problem.offline_embeddings.astype(float)),
        unit_rows(problem.embeddings.astype(float)),
    )
    utility = clipped_utility(problem.offline_scores, problem.offline_costs, 300.0)

    def play(ratings, rows):
        ratings = list(ratings)
        for row in rows:
            for a in range(4):
                for b in range(a + 1, 4):
                    won = 0.5 + 0.5 * np.sign(utility[row, a] - utility[row, b])
                    chance = 1 / (1 + 10 ** ((ratings[b] - ratings[a]) / 400))
                    ratings[a] += 32 * (won - chance)
                    ratings[b] -= 32 * (won - chance)
        return np.array(ratings)

    everywhere = bradley_terry(utility)
    np.testing.assert_allclose(policy.algorithm.ratings, everywhere, atol=1e-8)
    for i in range(0, 120, 5):
        near = np.argsort(-(train @ test[i]))[:6]
        expected = 0.5 * everywhere + 0.5 * play(everywhere, near)
        np.testing.assert_allclose(policy.algorithm.values(stream.request(i, i)), expected, atol=1e-8)
    assert everywhere.sum() == pytest.approx(4000.0)


def test_global_ratings_are_the_likeliest_and_do_not_depend_on_the_order_of_the_prompts():
    """One pass of Elo with K = 32 ends where the last prompts leave it: other orders had other best arms."""
    rng = np.random.default_rng(0)
    results = np.round(rng.random((400, 5)) + np.array([0.0, 0.02, 0.04, 0.06, 0.08]), 1)
    ratings = bradley_terry(results)
    np.testing.assert_allclose(bradley_terry(results[rng.permutation(400)]), ratings, atol=1e-9)
    # at the maximum every arm won as often as its ratings let expect, the added ties included
    chance = 1.0 / (1.0 + 10.0 ** ((ratings - ratings[:, None]) / 400.0))
    for a in range(5):
        others = [b for b in range(5) if b != a]
        won = sum(0.5 + (0.5 + 0.5 * np.sign(results[:, a] - results[:, b])).sum() for b in others)
        assert won == pytest.approx(sum(401 * chance[a, b] for b in others), rel=1e-9)
    two = bradley_terry(np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    assert two[0] - two[1] == pytest.approx(400.0 * np.log10(2.5 / 1.5))
    one_pass = [np.full(5, 1000.0) for _ in range(2)]
    elo_updates(one_pass[0], results, 32.0)
    elo_updates(one_pass[1], np.ascontiguousarray(results[::-1]), 32.0)
    assert np.abs(one_pass[0] - one_pass[1]).max() > 20.0


def test_elo_of_one_game_by_hand():
    ratings = np.array([1200.0, 1000.0])
    elo_updates(ratings, np.array([[0.0, 1.0]]), 32.0)
    upset = 32.0 / (1.0 + 10.0 ** (-0.5))
    np.testing.assert_allclose(ratings, [1200.0 - upset, 1000.0 + upset])


def test_nearest_rows_are_those_of_largest_cosine():
    rng = np.random.default_rng(1)
    points, train = unit_rows(rng.normal(size=(9, 5))), unit_rows(rng.normal(size=(40, 5)))
    np.testing.assert_array_equal(
        nearest_rows(points, train, 7), np.argsort(-points @ train.T, axis=1)[:, :7]
    )
    assert nearest_rows(points, train[:3], 7).shape == (9, 3)


@pytest.mark.parametrize("name", ["guarded_knn", "eagle"])
def test_neighbours_are_looked_up_once_for_all_rhos_and_anew_for_what_was_learnt_elsewhere(
    name, problem, tmp_path
):
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours, "nearest_rows", lambda *given: calls.append(given) or nearest_rows(*given))
        fresh = with_changes(problem)  # of no replay yet
        tables = [
            policy.algorithm.table(stream)
            for policy, stream in (built(name, fresh, rho=r) for r in (0.0, 600.0))
        ]
    assert len(calls) == 1
    assert (tables[0] != tables[1]).any()
    small_problem = synthetic_problem(n=120, K=4, d=6, offline=90, seed=5)
    learnt, _ = built(name, small_problem)
    loaded = load_policy(learnt.save(tmp_path / name)).algorithm
    _, here = built(name, problem)
    loaded_values = [loaded.values(here.request(i, i)) for i in range(120)]
    np.testing.assert_allclose(loaded.table(here), loaded_values, atol=1e-9)


def test_a_stack_takes_the_fits_of_other_policies_and_predicts_the_same(problem):
    alone = replay(with_changes(problem), "stack", rho=300.0, trials=1)
    shared = with_changes(problem)
    for name in ("avengers_pro", "mf", "mirt"):
        replay(shared, name, rho=300.0, trials=1)
    before = set(shared.fits)
    fitted = []
    with pytest.MonkeyPatch.context() as patch:
        for kind in (FactorisationPredictor, ClusterPredictor):
            of_kind = kind._fit
            patch.setattr(
                kind, "_fit", lambda self, x, *rest, f=of_kind: fitted.append(len(x)) or f(self, x, *rest)
            )
        together = replay(shared, "stack", rho=300.0, trials=1)
    np.testing.assert_array_equal(together.actions, alone.actions)
    members = {key[1] for key in set(shared.fits) - before if key[0] == "predictor"}
    assert not members & {"mf", "mirt"} and ("k-means", 25, 0) in before
    # of mf the folds alone, of the clusters also the whole train split, with the centres that were there
    assert fitted.count(150) == 1 and len(fitted) == 7


@pytest.mark.parametrize("name", RULES)
def test_without_a_train_split_they_say_so(name, problem):
    policy = build_policy(name, arms=problem.arms, rho=300.0)
    policy.add_arm("new")
    policy.remove_arm("new")  # arms may change all the same
    with pytest.raises(PolicyError, match="train split"):
        policy.decide(Request(embedding=problem.embeddings[0]))
    ready, _ = built(name, problem)
    with pytest.raises(PolicyError, match=r"Request\.embedding"):
        ready.decide(Request(context=problem.contexts[0]))
    with pytest.raises(PolicyError, match="rho"):
        ready.decide(Request(embedding=problem.embeddings[0], rho=1.0))


def test_predictor_settings_change_what_is_fitted_and_are_checked(problem):
    few = replay(problem, "hier_shrink", 0.0, trials=1, options={"settings": {"coarse": 2, "fine": 3}})
    many = replay(problem, "hier_shrink", 0.0, trials=1, options={"settings": {"coarse": 9, "fine": 40}})
    assert (few.actions != many.actions).any()
    with pytest.raises(PolicyError, match="strength"):
        built("hier_shrink", problem, settings={"strength": -1})
    pair, _ = built("mf@pair", problem, settings={"dim": 3})
    assert pair.algorithm.predictor_settings == {"loss": "pair", "dim": 3}


# -- ParetoBandit --------------------------------------------------------------------------------------------


class SlowPareto:
    """The rule of the package, with matrices inverted anew every round."""

    def __init__(self, contexts, scores, alpha, gamma, penalty, prior):
        contexts = np.hstack([contexts[:, :-1], np.ones((len(contexts), 1))])  # the package's bias feature
        d, k = contexts.shape[1], scores.shape[1]
        self.alpha, self.gamma, self.penalty, self.t = alpha, gamma, penalty, 0
        gram = contexts.T @ contexts + penalty * np.eye(d)
        sums = contexts.T @ scores
        scale = prior / gram[-1, -1]
        theta = np.linalg.solve(gram, sums)
        self.A = [gram * scale + penalty * np.eye(d) for _ in range(k)]
        self.b = [sums[:, j] * scale + penalty * theta[:, j] for j in range(k)]
        self.updated, self.played, self.floor = [0] * k, [0] * k, [penalty] * k

    def select(self, x, penalties):
        values = []
        for j in range(len(self.A)):
            inverse = np.linalg.inv(self.A[j])
            idle = self.t - max(self.updated[j], self.played[j])
            wide = max(self.gamma ** min(idle, 1000), 1 / 200) if self.gamma < 1 else 1.0
            values.append(
                x @ inverse @ self.b[j] + self.alpha * np.sqrt(x @ inverse @ x / wide) - penalties[j]
            )
        arm = int(np.argmax(values))
        self.t += 1
        self.played[arm] = self.t
        return arm

    def update(self, arm, x, y):
        decay = self.gamma ** min(self.t - self.updated[arm], 1000)
        left = self.floor[arm] * decay
        self.A[arm], self.b[arm] = self.A[arm] * decay, self.b[arm] * decay
        if left < 0.1 * self.penalty:
            self.A[arm] = self.A[arm] + (self.penalty - left) * np.eye(len(x))
            left = self.penalty
        self.floor[arm], self.updated[arm] = left, self.t
        self.A[arm], self.b[arm] = self.A[arm] + np.outer(x, x), self.b[arm] + y * x


@pytest.mark.parametrize("gamma", [1.0, 0.97])
def test_pareto_bandit_plays_the_slow_rule(gamma):
    problem = synthetic_problem(n=400, K=4, d=6, offline=60, seed=4)
    result = replay(problem, "pareto_bandit", 300.0, trials=1, gamma=gamma, alpha=0.3, prior_rounds=40.0)
    slow = SlowPareto(problem.offline_contexts, problem.offline_scores, 0.3, gamma, 1.0, 40.0)
    for t, row in enumerate(result.order[0]):
        x = np.append(problem.contexts[row, :-1], 1.0)
        arm = slow.select(x, 300.0 * problem.static_costs[row])
        assert arm == result.actions[0, t], t
        slow.update(arm, x, problem.scores[row, arm])
    assert len(set(result.actions[0])) > 1


def test_the_prior_counts_the_rounds_that_it_says():
    """Contexts end in a constant 2: taken as it is, a prior of 1,163.9 rounds would count 291."""
    problem = synthetic_problem(n=50, K=3, d=6, offline=60, seed=5)
    assert set(problem.contexts[:, -1]) == {2.0}
    policy, _ = built("pareto_bandit", problem, prior_rounds=400.0)
    np.testing.assert_allclose(policy.algorithm.model[1][:, -1, -1], 401.0)
    constant = {
        v: replay(
            with_changes(
                problem,
                contexts=problem.contexts * [*[1] * 5, v / 2.0],
                offline_contexts=problem.offline_contexts * [*[1] * 5, v / 2.0],
            ),
            "pareto_bandit",
            300.0,
            trials=1,
        ).actions
        for v in (1.0, 2.0, 5.0)
    }
    np.testing.assert_array_equal(constant[1.0], constant[2.0])
    np.testing.assert_array_equal(constant[5.0], constant[2.0])
    assert built("pareto_bandit@pilot", problem)[0].settings.gamma == 1.0


def test_pareto_bandit_plays_as_the_package_does():
    package = pytest.importorskip("pareto_bandit.policy")
    problem = synthetic_problem(n=300, K=4, d=6, offline=60, seed=5)
    result = replay(problem, "pareto_bandit@cold", 300.0, trials=1, gamma=0.99)
    names = [str(j) for j in range(4)]
    peer = package.DisjointLinUCBPolicy(
        names, dim=6, alpha=0.05, init_lambda=1.0, forgetting_factor=0.99, seed=0
    )
    same = 0
    for t, row in enumerate(result.order[0]):
        x, costs = np.append(problem.contexts[row, :-1], 1.0), 300.0 * problem.static_costs[row]
        arm, _ = peer.select_arm(x, cost_penalties=dict(zip(names, costs.tolist(), strict=True)))
        same += int(arm) == result.actions[0, t]
        arm = str(result.actions[0, t])
        peer.mark_selected(arm)
        peer.update(arm, x, float(problem.scores[row, int(arm)]), advance_time=False)
    assert same == 300


def test_log_costs_are_the_packages_normalisation():
    np.testing.assert_allclose(log_costs(np.array([1e-4, 1e-3, 1e-2])), [0.0, 0.5, 1.0])
    np.testing.assert_array_equal(log_costs(np.array([2.0, 2.0])), [0.5, 0.5])
    np.testing.assert_array_equal(log_costs(np.array([0.0, 1.0, 10.0])), [0.0, 0.0, 1.0])
