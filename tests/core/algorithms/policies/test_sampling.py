"""What is random: streams, draws, Thompson sampling and its propensity, random play."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from cabs_core.algorithms.policies.registry import build_policy
from cabs_core.algorithms.policies.requests import Request
from cabs_core.algorithms.policies.thompson import CELLS, best_probabilities
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


@given(
    seed=st.integers(0, 10_000),
    K=st.integers(1, 18),
    certain=st.integers(0, 2),
    ratio=st.sampled_from([10, 400]),
)
@settings(max_examples=60, deadline=None)
def test_thompson_probabilities(seed, K, certain, ratio):
    """Arms of like and of very different spread, some of them certain or not to be played, against
    simulation."""
    rng = np.random.default_rng(seed)
    mean, sd = rng.normal(size=K) * 0.2, 0.3 * ratio ** -rng.random(K)
    sd[rng.permutation(K)[:certain]] = 0.0
    mean[rng.permutation(K)[: K // 4]] = -np.inf
    out = np.empty(K)
    best_probabilities(mean, sd, out, np.empty((2, K)), CELLS)
    assert out.min() >= 0 and out.sum() == pytest.approx(1, abs=1e-9)
    assert (out[mean == -np.inf] == 0).all()
    draws = (mean + sd * rng.normal(size=(20000, K))).argmax(axis=1)
    error = 0.01 if ratio == 10 else 0.05
    assert abs(out - np.bincount(draws, minlength=K) / 20000).max() < error + 4.5 * 0.5 / np.sqrt(20000)


def test_a_certain_arm_wins_when_all_others_fall_below_it():
    mean, sd, out = np.array([0.5, 0.4, 0.3, 0.5]), np.array([0.0, 0.1, 0.002, 0.0]), np.empty(4)
    best_probabilities(mean, sd, out, np.empty((2, 4)), CELLS)
    assert out[0] == pytest.approx(stats.norm.cdf(1.0), abs=1e-6)
    assert out[1] == pytest.approx(stats.norm.sf(1.0), abs=1e-6) and out[3] == 0


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
