"""Readings of the paper side by side: every reading plays every query once, and the comparison adds up."""

import numpy as np
import pytest

from benchmarks import readings
from cabs_core.policies.registry import policy_class
from cabs_core.problem.synthetic import synthetic_problem
from cabs_core.replay import replay


def test_play_is_the_replay_by_query():
    problem = synthetic_problem(n=60, K=4, d=4, seed=1)
    found = readings.play(problem, rhos=(0.0, 500.0), trials=2)
    assert set(found) == set(readings.READINGS)
    for name in ("random", "D published"):
        policy, options = readings.READINGS[name]
        by_rho = [replay(problem, policy, rho=rho, trials=2, options=options) for rho in (0.0, 500.0)]
        assert found[name].mean() == pytest.approx(np.mean([r.rewards.mean() for r in by_rho]))
        row = by_rho[0].order[1, 7]
        place = np.flatnonzero(by_rho[1].order[1] == row)[0]
        assert found[name][1, row] == pytest.approx(
            (by_rho[0].rewards[1, 7] + by_rho[1].rewards[1, place]) / 2
        )


def test_compare_by_hand():
    rng = np.random.default_rng(0)
    splits = [{name: rng.random((3, 20)) for name in readings.READINGS} for _ in range(2)]
    found = readings.compare(splits)
    first = found["differences"][0]
    gaps = [s["D literal"] - s["C literal"] for s in splits]
    assert first["difference"] == pytest.approx(np.mean([g.mean() for g in gaps]))
    variances = [
        g.mean(axis=1).var(ddof=1) / 3 + g.mean(axis=0).var(ddof=1) / 20 for g in gaps
    ]  # orders and queries
    assert first["se"] == pytest.approx(np.sqrt(np.mean(variances) / 2))
    assert found["values"]["random"] == pytest.approx(np.mean([s["random"].mean() for s in splits]))


def test_every_reading_exists_and_every_pair_is_of_readings():
    for policy, options in readings.READINGS.values():
        policy_class(policy).parse(policy, options)
    assert {name for pair in readings.PAIRS for name in pair} <= set(readings.READINGS)
