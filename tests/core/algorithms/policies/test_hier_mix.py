"""hier_mix against dense Gaussian posteriors over all coefficients, and its behaviour online."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import built

from cabs_core.algorithms.policies.hier_mix import rounds
from cabs_core.algorithms.policies.hier_mix.models import JOINED_ARM, scaling_of
from cabs_core.algorithms.policies.hier_mix.rounds import ALLOWANCE, calibrate_costs
from cabs_core.algorithms.policies.request import Request
from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.base.compiled.jit import kernel
from cabs_core.base.compiled.rng import query_order
from cabs_core.base.errors import PolicyError
from cabs_core.base.utility import expected_utility
from cabs_core.evaluation.replay import replay

# the compiled code is tested; Python would run the parts of kernels as plain Python
fill_choice = kernel(rounds.fill_choice)
restart = kernel(rounds.restart)


def with_kernel(problem, quality=1.0):
    """The problem with a static prediction called `kernel_ridge`."""
    return replace(problem, static_scores={"kernel_ridge": quality * problem.predicted_scores})


def fresh(problem, rho=300.0, name="hier_mix", **options):
    return built(name, problem, rho, **options)


def weights_of(policy):
    """Of the anchored model, the corrections and the cold model, now."""
    return np.exp(policy.algorithm.log_weights) / np.exp(policy.algorithm.log_weights).sum()


class Dense:
    """Bayesian linear regression over all coefficients at once, solved anew from all rows."""

    def __init__(self, prior_sd, noise):
        self.precision, self.noise = np.diag(1.0 / np.asarray(prior_sd) ** 2), noise
        self.rows, self.targets = [], []

    def posterior(self):
        n = len(self.precision)
        rows = np.array(self.rows).reshape(-1, n)
        covariance = np.linalg.inv(self.precision + rows.T @ rows / self.noise)
        return covariance @ rows.T @ np.array(self.targets) / self.noise, covariance


def power_prior(problem, scaling, correction, noise):
    """(coefficients [K, 1 + d], deviations [1 + d]) of a ridge regression of the train split, one arm after
    the other."""
    x = np.array([np.concatenate([[1.0], (c - scaling[0]) * scaling[1]]) for c in problem.offline_contexts])
    variances = np.array([correction["arm"], *[correction["arm_context"]] * (x.shape[1] - 1)]) ** 2
    weight, coefficients = correction["power"] / noise, []
    for y in problem.offline_scores.T:
        precision = np.diag(1.0 / variances) + weight * sum(np.outer(row, row) for row in x)
        moment = weight * sum(row * (value - y.mean()) for row, value in zip(x, y, strict=True))
        coefficients.append(np.linalg.inv(precision) @ moment)
        coefficients[-1][0] += y.mean()
    return np.array(coefficients), 1.0 / np.sqrt(1.0 / variances + weight * (x**2).sum(axis=0))


def dense_models(policy, K, d, ridge_deviations, joined=0):
    """The anchored model, the corrections and the cold one; the last `joined` of the K arms joined later."""
    o = policy.settings
    old = K - joined
    free = [max(o.anchor_arm, JOINED_ARM)] * joined
    anchored = [o.anchor_level, o.anchor_slope, *[o.anchor_context] * d, *[o.anchor_arm] * old, *free]
    cold = (o.cold_level, o.cold_context, o.cold_arm, o.cold_arm_context)
    sds = [(c.level, c.context, c.arm, c.arm_context) for c in o.corrections] + [cold]
    deviations = [
        ridge_deviations if c.offset == "ridge" else [c.arm] + [c.arm_context] * d for c in o.corrections
    ] + [[o.cold_arm] + [o.cold_arm_context] * d]
    models = [Dense(anchored, o.noise)]
    for (level, context, *_), arm in zip(sds, deviations, strict=True):
        new = [max(arm[0], JOINED_ARM), *arm[1:]]
        models.append(Dense([level, *[context] * d, *list(arm) * old, *new * joined], o.noise))
    return models


def fill_values(model, z, base, costs, mask, parts):
    """Mean and sd of the values under one model: a choice that averages no other."""
    one = parts.constants._replace(group=np.array([model]))
    fill_choice(0, z, base, costs, mask, parts._replace(constants=one))


def rows_of(z, base, level, K, offsets, ridge):
    """(rows [K, all coefficients], offsets [K]) of every model; ridge [K, 1 + d]."""
    d = len(z)
    anchored = np.zeros((K, 2 + d + K))
    residual = np.zeros((K, 1 + d + K * (1 + d)))
    x = np.concatenate([[1.0], z])
    for j in range(K):
        anchored[j, : 2 + d] = [1.0, base[j] - level[j], *z]
        anchored[j, 2 + d + j] = 1.0
        residual[j, : 1 + d] = x
        residual[j, (1 + d) * (1 + j) : (1 + d) * (2 + j)] = x
    ease = (base - level).mean()
    parallel = level + ease
    offset_of = {"none": np.full(K, 0.5), "mean": level, "static": base, "parallel": parallel}
    offset_of |= {"shrunk": 0.5 * (parallel + base), "ease": np.full(K, 0.5 + ease), "ridge": ridge @ x}
    return [(anchored, base), *((residual, offset_of[o]) for o in offsets)]


CORRECTIONS = [
    {"offset": "static", "weight": 0.2, "level": 0.05, "arm": 0.1, "context": 0.1, "arm_context": 0.03},
    {"offset": "mean", "weight": 0.1, "level": 0.2, "arm": 0.2, "context": 0.1, "arm_context": 0.1},
    {"offset": "parallel", "weight": 0.1, "arm": 0.05, "arm_context": 0.02},
    {"offset": "shrunk", "weight": 0.1, "arm": 0.05, "arm_context": 0.02},
    {"offset": "ease", "weight": 0.1, "arm": 0.2, "arm_context": 0.1},
    {"offset": "ridge", "weight": 0.1, "arm": 0.3, "arm_context": 0.4, "power": 0.5},
]


@pytest.mark.parametrize("corrections", [[], CORRECTIONS], ids=["two models", "eight models"])
def test_models_equal_dense_posteriors_and_weights_the_likelihoods(corrections):
    K, d = 4, 5
    problem = with_kernel(synthetic_problem(n=150, K=K, d=d, offline=60, seed=3))
    policy, stream = fresh(problem, name="hier_mix@two_models", corrections=corrections)
    scaling, noise = scaling_of(problem.offline_contexts), policy.settings.noise
    ridge, deviations = power_prior(problem, scaling, CORRECTIONS[-1], noise)
    dense = dense_models(policy, K, d, deviations)
    offsets = [c["offset"] for c in corrections] + ["none"]
    level = problem.offline_scores.mean(axis=0)
    o = policy.settings
    rest = 1.0 - sum(c["weight"] for c in corrections)
    prior = np.array([0.9 * rest, *(c["weight"] for c in corrections), 0.1 * rest])
    trust = prior.copy()
    for t, row in enumerate(query_order(0, "x", 0, 150)):
        request = stream.request(int(row), t)
        z = (problem.contexts[row] - scaling[0]) * scaling[1]
        base = problem.static_scores["kernel_ridge"][row]
        np.testing.assert_allclose(weights_of(policy), trust, atol=1e-9)
        decision = policy.decide(request)
        arm, y = decision.arm, problem.scores[row, decision.arm]
        likelihood = []
        for model, (rows, offset) in enumerate(rows_of(z, base, level, K, offsets, ridge)):
            mean, covariance = dense[model].posterior()
            f = offset + rows @ mean
            if t % 15 == 0:
                costs, parts = problem.predicted_costs[row], policy.algorithm.parts(rho=300.0)
                fill_values(model, z, base, costs, np.ones(K, bool), parts)
                value = expected_utility(f, problem.predicted_costs[row], 300.0)
                np.testing.assert_allclose(policy.algorithm.work.mean, value, atol=1e-9)
                contrast = rows - rows[np.argmax(value)]
                deviation = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", contrast, covariance, contrast), 0))
                margin = np.clip(1 - 300.0 * problem.predicted_costs[row], 0, 1)
                expected = 0.5 * margin * deviation
                np.testing.assert_allclose(policy.algorithm.work.sd, expected, atol=1e-8)
            p = np.clip(f[arm], o.clip, 1 - o.clip)
            likelihood.append(p**y * (1 - p) ** (1 - y))
            dense[model].rows.append(rows[arm])
            dense[model].targets.append(y - offset[arm])
        policy.update(decision, y, 0.0)
        trust = trust * likelihood / (trust @ likelihood)
        trust = (1 - o.share) * trust + o.share * prior


@pytest.mark.parametrize("restarts", [False, True])
def test_models_of_an_arm_that_joined_equal_dense_posteriors(restarts):
    """The arm joins after 20 rounds, and after 40 rounds all models may start anew."""
    K, d = 4, 3
    problem = with_kernel(synthetic_problem(n=70, K=K, d=d, offline=60, seed=3))
    policy, _ = fresh(problem, corrections=CORRECTIONS)
    scaling, noise = scaling_of(problem.offline_contexts), policy.algorithm.constants.noise
    ridge, deviations = power_prior(problem, scaling, CORRECTIONS[-1], noise)
    ridge = np.vstack([ridge, ridge.mean(axis=0)])
    dense = dense_models(policy, K + 1, d, deviations, joined=1)
    for model in dense:
        model.noise = noise
    offsets = [c["offset"] for c in CORRECTIONS] + ["none"]
    level = np.append(problem.offline_scores.mean(axis=0), problem.offline_scores.mean())
    rng = np.random.default_rng(0)
    for t in range(70):
        arms = K + (t >= 20)
        if t == 20:
            policy.add_arm("new")
        if t == 40 and restarts:
            restart(policy.algorithm.parts())
            for model in dense:
                model.rows, model.targets = [], []
        z = (problem.contexts[t] - scaling[0]) * scaling[1]
        base = problem.static_scores["kernel_ridge"][t]
        # the mean that is the ease of the prompt is the same with and without the arm before it joins
        base = np.append(base, level[K] + (base - level[:K]).mean() + 0.1 * (t >= 20))
        costs = np.full(arms, 1e-4)
        request = Request(
            context=problem.contexts[t],
            static_scores={"kernel_ridge": base[:arms]},
            predicted_costs=costs,
            available=np.arange(arms) == (rng.integers(arms) if t != 20 else K),
        )
        decision = policy.decide(request)
        y = float(rng.random() < 0.7)
        for model, (rows, offset) in enumerate(rows_of(z, base, level, K + 1, offsets, ridge)):
            f = offset + rows @ dense[model].posterior()[0]
            parts = policy.algorithm.parts(rho=0.0)
            fill_values(model, z, base[:arms], costs, np.ones(arms, bool), parts)
            np.testing.assert_allclose(parts.work.fit.f, f[:arms], atol=1e-8)
            dense[model].rows.append(rows[decision.arm])
            dense[model].targets.append(y - offset[decision.arm])
        policy.update(decision, y, 1e-4)


@pytest.mark.parametrize("inverse_temperature", [1.0, 4.0])
def test_models_that_trust_the_order_are_averaged_and_the_others_drawn(inverse_temperature):
    """By a power of the weights while the anchored model is likelier than each of the others."""
    K = 4
    problem = with_kernel(synthetic_problem(n=60, K=K, d=5, offline=60))
    options = {
        "exploration": 0.0,
        "cost_prior": None,
        "inverse_temperature": inverse_temperature,
    }
    policy, stream = fresh(problem, **options)
    offsets = ["static", *(c.offset for c in policy.settings.corrections), "none"]
    trusting = np.array([o not in ("none", "ease") for o in offsets])
    assert trusting.sum() >= 4 and (~trusting).sum() == 2
    several, leading = 0, 0
    for t in range(60):
        weights = weights_of(policy)
        leads = weights[0] >= weights[~trusting].max()
        leading += leads
        decision = policy.decide(stream.request(t, t))
        values = []
        for model in range(policy.algorithm.experts):
            inputs = [decision.memory[name] for name in ("z", "base", "costs")]
            fill_values(model, *inputs, np.ones(K, bool), policy.algorithm.parts())
            values.append(policy.algorithm.work.mean.copy())
        values = np.array(values)
        average = weights[trusting] @ values[trusting] / weights[trusting].sum()
        chances = np.array([weights[trusting].sum(), *weights[~trusting]])
        chances **= inverse_temperature if leads else 1.0
        expected = np.zeros(K)
        for chance, value in zip(chances / chances.sum(), [average, *values[~trusting]], strict=True):
            expected[np.argmax(value)] += chance
        np.testing.assert_allclose(decision.pmf, expected, atol=1e-12)
        several += (expected > 1e-3).sum() > 1
        policy.update(
            decision,
            problem.scores[t, decision.arm] if t < 20 else 1.0 - problem.scores[t, decision.arm],
            0.0,
        )
    assert several >= 1 and 10 < leading < 60


def test_prior_weights_are_what_an_accepted_loss_asks_for():
    policy, _ = fresh(with_kernel(synthetic_problem(n=20, K=3, d=4, offline=20)))
    weights = policy.algorithm.prior_weights
    assert weights.sum() == pytest.approx(1.0)
    offsets = ["static", *(c.offset for c in policy.settings.corrections), "none"]
    of = dict(zip(offsets, weights, strict=True))
    least = np.exp(-0.0046 * 500)
    for offset in ("parallel", "ridge", "none"):  # best single model, ridge, from nothing
        assert of[offset] == pytest.approx(least, rel=0.01)
    assert of["ease"] == pytest.approx(least / 2, rel=0.01)
    assert of["static"] == pytest.approx(1.0 - 4.5 * least, rel=0.02)


def test_the_ridge_is_sure_where_the_train_prompts_lie_and_learns_where_they_do_not():
    """The train prompts differ along one feature, the new ones along another."""
    rng = np.random.default_rng(0)
    train = np.zeros((400, 3))
    train[:, 0], train[:, 2] = rng.normal(size=400), 0.02 * rng.normal(size=400)
    y = (rng.random((400, 2)) < 0.5 + 0.2 * np.tanh(train[:, :1])).astype(float)
    problem = with_kernel(synthetic_problem(n=20, K=2, d=3, offline=400))
    problem = replace(problem, offline_contexts=train, offline_scores=y)
    policy, _ = fresh(problem)
    m = [c.offset for c in policy.settings.corrections].index("ridge")
    correction, prior = policy.settings.corrections[m], np.sqrt(policy.algorithm.residual.prior[m])
    assert prior[1] < 0.2 * correction.arm_context and prior[3] > 0.9 * correction.arm_context
    assert prior[0] < 0.2 * correction.arm


def test_long_streams_play_every_arm_where_that_is_asked_for():
    problem = with_kernel(synthetic_problem(n=450, K=4, d=5, offline=50))
    long = replay(problem, "hier_mix", 300.0, trials=1, force_above=100.0)
    for k in range(4):
        assert (long.actions[0, : 3 * 4] == k).any()
    forced = [t for t in range(12) if t % 3 == 2 and long.propensities[0, t] == 1.0]
    assert forced
    short = replay(problem, "hier_mix", 300.0, trials=1, rounds=300, force_above=100.0)
    never = replay(problem, "hier_mix", 300.0, trials=1, rounds=300)
    np.testing.assert_array_equal(short.actions, never.actions)


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 1000),
    K=st.integers(1, 7),
    d=st.integers(2, 6),
    rho=st.sampled_from([0.0, 400.0, 1e5]),
)
def test_decisions_are_distributions_and_posteriors_shrink(seed, K, d, rho):
    problem = with_kernel(synthetic_problem(n=40, K=K, d=d, offline=20, seed=seed))
    policy, stream = fresh(problem, rho=rho, seed=seed)
    rng = np.random.default_rng(seed)
    start = np.diag(policy.algorithm.residual[1][-1]).copy()
    for t in range(40):
        mask = rng.random(K) < 0.7
        mask[rng.integers(K)] = True
        decision = policy.decide(Request(**{**stream.request(t, t).__dict__, "available": mask}))
        assert mask[decision.arm] and decision.pmf.min() >= 0
        assert decision.pmf.sum() == pytest.approx(1.0) and (decision.pmf[~mask] == 0).all()
        policy.update(decision, problem.scores[t, decision.arm], problem.costs[t, decision.arm])
        assert weights_of(policy).sum() == pytest.approx(1.0)
    assert (np.diag(policy.algorithm.residual[1][-1]) <= start + 1e-15).all()
    assert (np.diag(policy.algorithm.anchored.cov) > 0).all()


@pytest.mark.parametrize("name", ["hier_mix", "hier_mix@two_models"])
def test_wrong_anchor_is_found_out_and_a_right_one_kept(name):
    problem = with_kernel(synthetic_problem(n=900, K=5, d=6, offline=400, surrogate_quality=0.9))
    wrong = replace(
        problem,
        offline_scores=problem.offline_scores[:, ::-1],
        static_scores={"kernel_ridge": problem.static_scores["kernel_ridge"][:, ::-1]},
    )
    right = replay(problem, name, 0.0, trials=3)
    bad = replay(wrong, name, 0.0, trials=3)
    static = replay(wrong, "kernel_ridge", 0.0, trials=3)
    weight_if_right, weight_if_wrong = (1.0 - np.median(r.meta_weights[:, -1, -1]) for r in (right, bad))
    assert weight_if_right > 0.5 and weight_if_wrong < 0.2
    assert bad.utilities().mean() > static.utilities().mean() + 0.03
    assert right.utilities().mean() > bad.utilities().mean() + 0.03


def test_costs_are_learnt_as_a_shrunk_ratio():
    """Prompts whose calls cost six times what was predicted for one arm: it is left, and the ratio is that of
    the sums."""
    problem = with_kernel(synthetic_problem(n=800, K=3, d=4, offline=200, seed=2))
    scores = np.tile([0.8, 0.6, 0.1], (800, 1))
    charged = np.tile([6e-3, 5e-4, 5e-4], (800, 1))
    predicted = np.tile([1e-3, 5e-4, 5e-4], (800, 1))
    dear = replace(
        problem,
        scores=scores,
        costs=charged,
        predicted_costs=predicted,
        static_costs=predicted,
        static_scores={"kernel_ridge": scores},
        offline_scores=np.tile(scores[:1], (200, 1)),
    )
    learns, not_ = (
        replay(dear, "hier_mix", 150.0, trials=2, options={"cost_prior": p}).utilities().mean()
        for p in (10.0, None)
    )
    assert learns > not_ + 0.3
    policy, stream = fresh(dear, rho=150.0)
    sums = np.zeros((3, 3))
    for t in range(40):
        decision = policy.decide(stream.request(t, t))
        policy.update(decision, scores[t, decision.arm], charged[t, decision.arm])
        sums[:, decision.arm] += 1.0, charged[t, decision.arm], predicted[t, decision.arm]
    np.testing.assert_allclose(policy.algorithm.paid, sums)
    out = np.empty(3)
    calibrate_costs(predicted[0], policy.algorithm.paid, 10.0, out)
    n, paid, expected = sums
    ratio = np.where(n > 0, (10.0 + n * paid / np.maximum(expected, 1e-12)) / (10.0 + n), 1.0)
    np.testing.assert_allclose(out, predicted[0] * ratio)


def test_sampled_propensities_change_no_play():
    problem = with_kernel(synthetic_problem(n=300, K=4, d=5, offline=50))
    exact, sampled = (
        replay(problem, "hier_mix", 300.0, trials=2, options={"propensity": p})
        for p in ("integral", "sampled")
    )
    np.testing.assert_array_equal(exact.actions, sampled.actions)
    assert (sampled.propensities == 1.0).all() and exact.propensities.min() < 1.0


def test_a_new_level_does_not_undo_what_is_known_of_the_arms():
    """Every prompt is harder than in the train split, the arms stand as they did: two models start from
    nothing."""
    rng = np.random.default_rng(0)
    n, K = 500, 20
    problem = synthetic_problem(n=n, K=K, d=6, offline=300, seed=7)
    strength = np.linspace(0.9, 0.3, K)
    scores = (rng.random((n, K)) < strength - 0.35).astype(float)
    predicted = np.tile(strength, (n, 1))
    shifted = replace(
        problem,
        scores=scores,
        static_scores={"kernel_ridge": predicted},
        offline_scores=(rng.random((300, K)) < strength).astype(float),
    )
    new, old, static = (
        replay(shifted, name, 0.0, trials=5).utilities().mean()
        for name in ("hier_mix", "hier_mix@two_models", "kernel_ridge")
    )
    assert new > old + 0.02 and new > static - 0.04


def test_the_alarm_sums_surprise_and_a_restart_is_a_fresh_start():
    problem = with_kernel(synthetic_problem(n=200, K=3, d=4, offline=60))
    policy, stream = fresh(problem, dispersion=False)
    start, alarm = policy.algorithm.state()[0], 0.0
    start = {name: np.array(value) for name, value in start.items()}
    for t in range(60):
        decision = policy.decide(stream.request(t, t))
        arm, y = decision.arm, 1.0 - problem.scores[t, decision.arm]  # not what was predicted
        predicted = []
        for model in range(policy.algorithm.experts):
            inputs = [decision.memory[name] for name in ("z", "base")]
            parts = policy.algorithm.parts(rho=0.0)
            fill_values(model, *inputs, np.zeros(3), np.ones(3, bool), parts)
            predicted.append(parts.work.fit.f[arm])  # scores, before they are cut to [0, 1]
        p = np.clip(weights_of(policy) @ np.array(predicted), 0.02, 0.98)
        loss = -y * np.log(p) - (1 - y) * np.log(1 - p)
        alarm = max(0.0, alarm + loss + p * np.log(p) + (1 - p) * np.log(1 - p) - ALLOWANCE)
        policy.update(decision, y, 0.0)
        if alarm > policy.settings.restart:
            break
        assert policy.algorithm.alarm[0] == pytest.approx(alarm, abs=1e-9)
    policy.algorithm.alarm[0] = 1e3
    decision = policy.decide(stream.request(70, 70))
    policy.update(decision, 1.0, 0.0)
    for name, value in policy.algorithm.state()[0].items():
        if name != "played":
            np.testing.assert_allclose(np.asarray(value), start[name], atol=1e-12, err_msg=name)


def test_an_arm_that_joined_stays_free_after_a_restart_and_is_drawn_whole():
    problem = with_kernel(synthetic_problem(n=100, K=3, d=4, offline=60))
    policy, _ = fresh(problem)
    policy.add_arm("new")
    algorithm = policy.algorithm
    free, draws = algorithm.anchored.var.copy(), []
    restart(algorithm.parts())
    np.testing.assert_array_equal(algorithm.anchored.var, free)
    assert free[3] == JOINED_ARM**2 > free[0] and (algorithm.residual.cov_arm[:, 3, 0, 0] >= free[3]).all()
    for joined in (0, 1):
        algorithm.joined[3] = joined
        base, costs = np.array([0.6, 0.5, 0.4, 0.5]), np.zeros(4)
        fill_values(0, problem.contexts[0], base, costs, np.ones(4, bool), algorithm.parts(rho=0.0))
        draws.append(algorithm.work.sd.copy())
    np.testing.assert_allclose(draws[1][3], draws[0][3] / algorithm.settings.exploration)
    np.testing.assert_array_equal(draws[1][:3], draws[0][:3])


@pytest.mark.parametrize("quality", [1.0, -1.0])
def test_corrections_move_arms_whose_order_is_wrong(quality):
    """The prompts' difficulty is right, the arms' order is not: the two models stay with the anchor."""
    rng = np.random.default_rng(0)
    n, K = 1200, 5
    problem = synthetic_problem(n=n, K=K, d=6, offline=300, seed=7)
    hard = np.clip(0.55 + 0.3 * np.tanh(problem.contexts[:, :1]), 0.05, 0.95)
    strength = np.linspace(-0.06, 0.06, K)
    scores = (rng.random((n, K)) < np.clip(hard + strength, 0.02, 0.98)).astype(float)
    wrong = replace(
        problem, scores=scores, static_scores={"kernel_ridge": np.clip(hard + quality * strength, 0, 1)}
    )
    new = replay(wrong, "hier_mix", 0.0, trials=4).utilities().mean()
    old = replay(wrong, "hier_mix@two_models", 0.0, trials=4).utilities().mean()
    if quality < 0:
        assert new > old + 0.01
    else:
        assert new > old - 0.01


def test_graded_scores_scale_noise_and_evidence():
    problem = with_kernel(synthetic_problem(n=200, K=3, d=4, offline=60, graded=True))
    policy, stream = fresh(problem)
    assert stream.share < 0.9
    constants = policy.algorithm.constants
    assert constants.noise == pytest.approx(0.2 * stream.share)
    assert constants.dispersion == pytest.approx(stream.share)
    plain, _ = fresh(problem, dispersion=False)
    assert plain.algorithm.constants.noise == 0.2 and plain.algorithm.constants.dispersion == 1.0


def test_constant_features_are_left_out_of_the_scaling():
    rng = np.random.default_rng(0)
    x = np.hstack([rng.normal(3.0, 2.0, size=(500, 3)), np.full((500, 1), 2.0)])
    center, factor = scaling_of(x)
    z = (x - center) * factor
    assert factor[3] == 0.0
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=1e-12)
    assert (z**2).sum(axis=1).mean() == pytest.approx(1.0)
    assert (scaling_of(np.ones((5, 2)))[1] == 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base": "forest"}, "base must be one of"),
        ({"noise": 0}, "noise"),
        ({"corrections": [{**c, "weight": 0.6} for c in CORRECTIONS[:2]]}, "less than 1"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(PolicyError, match=message):
        fresh(with_kernel(synthetic_problem(n=20, K=3, d=4, offline=20)), **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"static_scores": {}}, "predicted_scores"),
        ({"static_scores": {"kernel_ridge": np.zeros(2)}}, "static_scores"),
    ],
)
def test_bad_requests_are_named(change, message):
    policy, stream = fresh(with_kernel(synthetic_problem(n=20, K=3, d=4, offline=20)))
    request = replace(stream.request(0, 0), predicted_scores=None, **change)
    with pytest.raises(PolicyError, match=message):
        policy.decide(request)
