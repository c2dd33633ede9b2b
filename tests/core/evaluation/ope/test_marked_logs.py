"""Logs whose decisions were marked to be scored with known probabilities: estimates hold the truth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cabs_core.base.errors import DataError
from cabs_core.evaluation.ope.data import LoggedData
from cabs_core.evaluation.ope.evaluate import evaluate
from cabs_core.router.compare_on_log import compare_policies
from cabs_core.router.marks import played_and_marked

N, ARMS = 2000, list("abcd")


def world(rng: np.random.Generator):
    """(contexts, mean scores, logging policy, target) of requests: the log plays what is good there, nearly
    always."""
    x = rng.normal(size=(N, 2))
    means = 1.0 / (1.0 + np.exp(-(x @ np.array([[1.5, -1.5, 0.3, 0.8], [0.2, 0.5, -1.7, 0.4]]) - 0.3)))
    mu, target = (np.exp(k * means) for k in (9.0, -2.0))
    mu = 0.9 * mu / mu.sum(1, keepdims=True) + 0.025
    return x, means, mu, target / target.sum(1, keepdims=True)


def marked_log(rng: np.random.Generator, share: np.ndarray | float, x, means, mu) -> LoggedData:
    """The scored decisions of a log. share: of every request that is marked, `[N]` or one."""
    actions = (rng.random((N, 1)) > mu.cumsum(axis=1)).sum(axis=1).clip(0, 3)
    share = np.broadcast_to(share, N)
    both = np.array([played_and_marked(p, s) for p, s in zip(mu, share, strict=True)])
    every = np.arange(N)
    rows = np.flatnonzero(rng.random(N) < both[every, actions] / mu[every, actions])
    scores = (rng.random(N) < means[every, actions]).astype(float)
    return LoggedData(
        ARMS,
        actions[rows],
        scores[rows],
        np.zeros(len(rows)),
        x[rows],
        rows.astype(str),
        pmf=both[rows] / share[rows, None],
        behaviour=mu[rows],
        weights=1.0 / share[rows],
    )


@pytest.mark.slow
def test_intervals_hold_the_truth():
    """300 logs: of a policy, of its difference to the log's own, and of two policies; what is not weighed is
    far off."""
    rng = np.random.default_rng(3)
    held, errors, naive = [], [], []
    for _ in range(300):
        x, means, mu, target = world(rng)
        share = np.where(x[:, 0] > 0.5, 0.4, 0.12)
        data = marked_log(rng, share, x, means, mu)
        truth, logged = ((p * means).sum(axis=1).mean() for p in (target, mu))
        pi = target[data.groups.astype(int)]
        evaluation = evaluate(data, pi, rho=0.0)
        held.append([])
        for name in ("snips", "dr"):
            row = evaluation.row(name, "score")
            held[-1] += [
                row.low <= truth <= row.high,
                row.difference_low <= truth - logged <= row.difference_high,
            ]
        errors.append([row.value - truth, row.difference - (truth - logged)])
        naive.append(data.scores.mean() - logged)
        pair = compare_policies(data, data.behaviour, pi, 0.0)
        held[-1].append(pair.low <= truth - logged <= pair.high)
    cover, error = np.mean(held, axis=0), np.array(errors)
    assert (cover[:4] >= 0.92).all() and (cover[:4] <= 0.98).all(), cover
    assert cover[4] >= 0.92, cover  # of a promotion, which must not rest on the luck of few draws
    assert (np.abs(error.mean(axis=0)) < 3.0 * error.std(axis=0) / np.sqrt(len(error))).all()
    assert abs(np.mean(naive)) > 0.04 and abs(np.mean(naive)) > 10.0 * np.std(naive) / np.sqrt(len(naive))


def test_marks_by_chance_alone_are_no_marks():
    """Where each is marked alike, weights say nothing: the estimates are those of the scored decisions."""
    rng = np.random.default_rng(5)
    x, means, mu, target = world(rng)
    rows = np.flatnonzero(rng.random(N) < 0.2)
    actions = (rng.random((N, 1)) > mu.cumsum(axis=1)).sum(axis=1).clip(0, 3)[rows]
    scores = (rng.random(len(rows)) < means[rows, actions]).astype(float)
    facts = (ARMS, actions, scores, np.full(len(rows), 1e-4), x[rows], rows.astype(str))
    plain = LoggedData(*facts, pmf=mu[rows])
    alike = LoggedData(*facts, pmf=mu[rows], behaviour=mu[rows], weights=np.full(len(rows), 5.0))
    one, two = (evaluate(data, target[rows], rho=10.0) for data in (plain, alike))
    for a, b in zip(one.rows, two.rows, strict=True):
        for mine, theirs in zip(vars(a).values(), vars(b).values(), strict=True):
            close = pytest.approx(theirs, rel=1e-9, abs=1e-12) if isinstance(theirs, float) else theirs
            assert mine == close, a
    assert (one.n_eff, one.mean_weight) == pytest.approx((two.n_eff, two.mean_weight))


def test_what_cannot_be():
    rng = np.random.default_rng(6)
    data = marked_log(rng, 0.2, *world(rng)[:3])
    with pytest.raises(DataError, match=r"weights is 0\.0, expected a number above 0"):
        replace(data, weights=np.zeros(len(data)))
    with pytest.raises(DataError, match="behaviour sums to 2"):
        replace(data, behaviour=2.0 * data.behaviour)
    with pytest.raises(DataError, match=r"behaviour.*pmf"):
        replace(data, pmf=None)
    with pytest.raises(DataError, match="weights has 1 rows"):
        replace(data, weights=np.ones(1))
    assert len(data.take(np.arange(3)).weights) == 3
