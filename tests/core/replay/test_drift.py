"""The drift bench: the stream's halves, what stays known, quarters by hand; real snapshots where the data are."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import drift
from cabs_core.problem.synthetic import synthetic_problem


def test_every_query_comes_once_in_each_half():
    found = drift.orders(10, 3)
    assert found.shape == (3, 10) and (np.sort(found[:, :5]) == np.arange(5)).all()
    assert (np.sort(found[:, 5:]) == np.arange(5, 10)).all() and (found[0] != found[1]).any()


def test_only_outcomes_change():
    before = synthetic_problem(n=120, K=3, d=4, offline=40)
    after = drift.followed_by(before, 1.0 - before.scores, 2.0 * before.costs)
    assert after.n == 240 and len(set(after.query_ids)) == 240
    np.testing.assert_array_equal(after.scores[120:], 1.0 - before.scores)
    np.testing.assert_array_equal(after.costs[120:], 2.0 * before.costs)
    for name in ("contexts", "predicted_scores", "surrogate_deltas"):
        np.testing.assert_array_equal(getattr(after, name)[120:], getattr(before, name))
    np.testing.assert_array_equal(after.offline_scores, before.offline_scores)
    few = {"policies": ("best_single", "lin_ucb"), "rhos": (0.0,)}
    found = drift.quarters(after, 2, **few)
    arm = int(before.offline_scores.mean(axis=0).argmax())
    best = found["best_single"]
    assert np.mean(best["utility"][:2]) == pytest.approx(before.scores[:, arm].mean())
    assert np.mean(best["utility"][2:]) == pytest.approx(1.0 - before.scores[:, arm].mean())
    assert np.mean(best["regret"][:2]) == pytest.approx(
        (before.scores.max(axis=1) - before.scores[:, arm]).mean()
    )
    late = drift.quarters(after, 2, "delayed_rewards", **few)
    assert late["best_single"] == best and late["lin_ucb"] != found["lin_ucb"]


@pytest.mark.data
@pytest.mark.parametrize("delayed", [[], ["--delayed"]], ids=["at once", "delayed"])
def test_the_default_recovers_from_a_real_change(delayed, data_dir, cabs_home, monkeypatch, capsys):
    """gpt-4 falls from .84 to .50 on primes under its name: hier_mix comes near what it learns from June alone."""
    monkeypatch.setenv("CABS_DATA_DIR", str(data_dir))
    names = ("kernel_ridge", "hier_mix")
    figures = drift.main(argv=["--trials", "5", "--policies", *names, *delayed])
    assert set(figures) == set(names) and "| hier_mix |" in capsys.readouterr().out
    last = figures["hier_mix"]["utility"][-1]
    assert last > figures["hier_mix"]["from June"] - 0.05
    assert last > figures["kernel_ridge"]["utility"][-1] + 0.08
