"""What is random: streams, draws, Thompson sampling and its propensity, random play."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import log_ndtr

from cabs_core.algorithms.policies.registry import build_policy
from cabs_core.algorithms.policies.request import Request
from cabs_core.algorithms.policies.thompson import best_probabilities
from cabs_core.base.compiled.rng import draw, normal, uniform
from cabs_core.base.streams import stream_key, stream_keys


def test_streams_are_uniform_independent_and_fixed():
    keys = stream_keys("test", 1)
    u = np.array([[uniform(keys, p, t, 0) for t in range(4000)] for p in range(3)])
    for row in u:
        assert stats.kstest(row, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(u)[np.triu_indices(3, 1)]).max() < 0.06
    z = np.array([normal(keys, 0, t, j) for t in range(1000) for j in range(4)])
    assert stats.kstest(z, "norm").pvalue > 1e-3
    # integer arithmetic: the same on every machine and version
    assert [uniform(keys, 0, t, 1).hex() for t in (0, 1)] == FIXED


FIXED = ["0x1.37c897eaaabfdp-1", "0x1.cc793f1d021e1p-1"]


def test_keys_depend_on_every_part():
    base = (0, "pool", "lin_ts", "300", 1)
    seen = {stream_key(*base).tobytes()}
    for i, part in enumerate((1, "pool2", "lin_ucb", "350", 2)):
        changed = list(base)
        changed[i] = part
        seen.add(stream_key(*changed).tobytes())
    assert len(seen) == 6


@given(
    st.lists(st.floats(0, 1, allow_subnormal=False), min_size=1, max_size=8).filter(lambda w: sum(w) > 1e-3),
    st.floats(0, 1, exclude_max=True),
)
@settings(max_examples=200, deadline=None)
def test_draw_never_returns_an_impossible_arm(weights, u):
    pmf = np.array(weights) / sum(weights)
    arm = draw(pmf, u)
    assert pmf[arm] > 0
    assert pmf[:arm].sum() <= u + 1e-12 and u <= pmf[: arm + 1].sum() + 1e-12


def exact_probabilities(mean, sd):
    """Probability that each arm has the largest score, by 12-node rules between all m_j + k s_j."""
    out = np.zeros(len(mean))
    spread = np.flatnonzero((mean > -np.inf) & (sd > 0))
    points = np.flatnonzero((mean > -np.inf) & ~(sd > 0))
    m, s = mean[spread], sd[spread]
    low, high = (m - 9 * s).max(), (m + 9 * s).max()
    if len(points):
        best = points[np.argmax(mean[points])]
        low = max(low, mean[best])
        out[best] = np.exp(log_ndtr((mean[best] - m) / s).sum())
    if not high > low:
        return out
    ends = np.unique(np.concatenate([np.clip(m + k * s, low, high) for k in range(-9, 10)]))
    nodes, weights = np.polynomial.legendre.leggauss(12)
    for i in range(0, len(ends) - 1, 200):
        lower, upper = ends[i : i + 200], ends[i + 1 : i + 201]
        half = (upper - lower[: len(upper)]) / 2
        points_of_panel = (lower[: len(upper)] + half)[:, None] + half[:, None] * nodes
        z = (points_of_panel.reshape(-1, 1) - m) / s
        below = log_ndtr(z)
        others_below = below.sum(axis=1, keepdims=True) - below
        density = np.exp(others_below - z * z / 2) / (s * np.sqrt(2 * np.pi))
        out[spread] += (half[:, None] * weights).reshape(-1) @ density
    return out


def random_scores(rng, K, ratio, kind):
    """Means and deviations of K arms whose deviations differ by a factor of up to `ratio`."""
    mean, sd = rng.normal(size=K) * 0.2, 0.3 * ratio ** -rng.random(K)
    if kind == "one that joined":
        sd = np.full(K, 0.3 / ratio)
        sd[0] = 0.3
        mean = rng.normal(size=K) * 0.3 / ratio
    if kind == "best one certain":
        sd[np.argmax(mean)] = 0.0
    if kind == "all in contention":
        mean = rng.normal(size=K) * sd
    if kind == "half cannot be played":
        mean[rng.permutation(K)[: K // 2]] = -np.inf
    return mean, sd


KINDS = ("any", "one that joined", "best one certain", "all in contention", "half cannot be played")


def probabilities(mean, sd):
    out = np.empty(len(mean))
    best_probabilities(mean, sd, out, np.empty((3, len(mean))))
    return out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ratio", [1, 10, 400, 1e6])
@pytest.mark.parametrize("K", [2, 5, 18, 60])
def test_thompson_probabilities_equal_the_exact_integral_to_a_tenth_of_a_thousandth(K, ratio, kind):
    rng = np.random.default_rng([K, int(ratio), KINDS.index(kind)])
    for _ in range(3):
        mean, sd = random_scores(rng, K, ratio, kind)
        exact = exact_probabilities(mean, sd)
        assert exact.sum() == pytest.approx(1, abs=1e-9)
        found = probabilities(mean, sd)
        assert abs(found - exact).max() < 1e-4
        assert found.sum() == pytest.approx(1, abs=1e-12)
        assert (found[mean == -np.inf] == 0).all() and (
            found[mean > -np.inf][sd[mean > -np.inf] > 0] > 0
        ).all()


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [1, 400, 1e6])
def test_thompson_probabilities_of_500_arms_equal_the_exact_integral(ratio):
    for kind in KINDS:
        mean, sd = random_scores(np.random.default_rng(int(ratio)), 500, ratio, kind)
        assert abs(probabilities(mean, sd) - exact_probabilities(mean, sd)).max() < 1e-4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ratio", [10, 1e6])
def test_thompson_probabilities_agree_with_200000_draws(ratio, kind):
    rng = np.random.default_rng([int(ratio), KINDS.index(kind)])
    mean, sd = random_scores(rng, 12, ratio, kind)
    found = probabilities(mean, sd)
    draws = (mean + sd * rng.normal(size=(200_000, 12))).argmax(axis=1)
    shares = np.bincount(draws, minlength=12) / 200_000
    error = np.sqrt(np.maximum(found * (1 - found), 1e-9) / 200_000)
    assert (abs(shares - found) < 4.5 * error + 1e-4).all()


@pytest.mark.parametrize("sd", [0.0, 1e-18, 1e-320])
def test_a_deviation_that_float64_cannot_resolve_is_taken_for_none(sd):
    found = probabilities(np.array([0.5, 0.4, -0.2]), np.array([sd, sd, 1e-3]))
    assert found[0] == pytest.approx(1, abs=1e-8)


def test_a_certain_arm_wins_when_all_others_fall_below_it():
    found = probabilities(np.array([0.5, 0.4, 0.3, 0.5]), np.array([0.0, 0.1, 0.002, 0.0]))
    assert found[0] == pytest.approx(stats.norm.cdf(1.0), abs=1e-6)
    assert found[1] == pytest.approx(stats.norm.sf(1.0), abs=1e-6) and found[3] == 0


def test_lin_ts_plays_by_its_propensity():
    """The same state asked again and again plays arms as often as the logged probabilities say."""
    policy = build_policy("lin_ts", arms=list("abcd"), dim=3, v=0.5)
    rng = np.random.default_rng(0)
    for _ in range(30):
        x = rng.normal(size=3)
        policy.update(policy.decide(Request(context=x)), float(rng.random() < 0.5), 0.0)
    x = np.array([0.4, -0.2, 1.0])
    decisions = [policy.decide(Request(context=x)) for _ in range(6000)]
    counts = np.bincount([d.arm for d in decisions], minlength=4)
    pmf = decisions[0].pmf
    assert abs(counts / 6000 - pmf).max() < 0.025
    assert decisions[0].probability == pmf[decisions[0].arm]
