"""Is the answer right? Closed forms, reference solvers, certificates in extended precision, edge cases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from cabs_core.algorithms.solver.api import make_workspace, solve_exploration, solve_exploration_batch
from cabs_core.algorithms.solver.program import certificate, objective
from cabs_core.algorithms.solver.reference import CvxpyParametric
from cabs_core.algorithms.solver.workspace import FALLBACK, PRIMARY, solve_kernel
from tests.clarabel_direct import clarabel_direct
from tests.solver_instances import (
    GRAPHS,
    LOSSES,
    bernoulli_batch,
    mixed_batch,
    random_graph,
    random_losses,
)

# compiling the kernel of a K takes seconds where no cache exists; that of 11 is made for the demo anyway
SIZES = (1, 2, 5, 8, 11)


def check(solution, f, G, gamma, tol=1e-8):
    """A valid, certified distribution whose certificate and objective hold in extended precision."""
    p, q = np.asarray(solution.p), np.asarray(solution.q)
    assert solution.certified and 0 <= solution.gap <= tol
    assert (p >= 0).all() and abs(p.sum() - 1) <= 1e-12
    assert (q >= 0).all() and abs(q.sum() - 1) <= 1e-12
    wide = [np.asarray(x, dtype=np.longdouble) for x in (p, q, f, G)]
    wide[0], wide[1] = wide[0] / wide[0].sum(), wide[1] / wide[1].sum()
    scale = 1 + np.ptp(f) + len(f) / gamma
    assert abs(float(certificate(*wide, np.longdouble(gamma))) - solution.gap) <= 1e-13 * scale + 1e-3 * tol
    assert (
        abs(float(objective(wide[0], *wide[2:], np.longdouble(gamma))) - solution.objective) <= 1e-12 * scale
    )


@pytest.mark.parametrize("K", SIZES)
def test_all_families_are_certified(K):
    """The benchmark `solver_robustness` in small: 8 graph by 8 loss families, gamma in 1e-2..1e6."""
    rng = np.random.default_rng(K)
    f, G, gammas, _ = mixed_batch(rng, K, 1920)
    batch = solve_exploration_batch(f, G, gammas)
    assert batch.certified.all()
    assert (batch.p >= 0).all() and np.abs(batch.p.sum(1) - 1).max() <= 1e-12


def optimum_without_edges(f, gamma):
    """p_a = 1 / (u + gamma (f_a - min f)), u in [1, K] the root of sum p = 1: the exact answer for G = I."""
    c = gamma * (f - f.min())
    p = 1.0 / (brentq(lambda u: np.sum(1.0 / (u + c)) - 1.0, 1.0, len(f), xtol=1e-300, rtol=1e-15) + c)
    return p / p.sum()


@pytest.mark.parametrize("K", SIZES)
@pytest.mark.parametrize("family", LOSSES)
def test_no_edges_agrees_with_the_closed_form(K, family):
    rng = np.random.default_rng([K, len(family)])
    for gamma in (0.01, 1.0, 40.0, 1e3, 1e6):
        f = random_losses(rng, K, family)
        exact = (K - 1) / gamma  # whatever f is
        ours = solve_exploration(f, np.eye(K), gamma)
        assert float(objective(optimum_without_edges(f, gamma), f, np.eye(K), gamma)) == pytest.approx(
            exact, abs=1e-10
        )
        assert ours.objective == pytest.approx(exact, abs=1e-8)
        assert ours.objective >= exact - 1e-12 * (1 + np.ptp(f) + K / gamma)


@pytest.mark.parametrize("K", [2, 5, 8])
def test_agrees_with_clarabel_where_it_says_solved(K):
    rng = np.random.default_rng(K)
    f, G = bernoulli_batch(rng, K, 12)
    parametric = CvxpyParametric(K)
    compared = 0
    for b, gamma in enumerate((0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 16.0, 25.0, 40.0, 60.0, 80.0, 99.0)):
        ours = solve_exploration(f[b], G[b], gamma)
        for theirs in (clarabel_direct(f[b], G[b], gamma), parametric(f[b], G[b], gamma)):
            if theirs.solved:
                compared += 1
                assert ours.objective == pytest.approx(theirs.claimed, abs=1e-6)
            assert ours.objective <= theirs.objective + 2e-8
    assert compared >= 12


def test_a_direction_of_edges_matters():
    """Arm 1 reveals all, arm 0 is best: exploring means playing arm 1, not an arm that is revealed by
    others."""
    G = np.eye(4)
    G[1] = 1.0
    f = np.array([0.0, 0.3, 0.3, 0.3])
    p = solve_exploration(f, G, 20.0).p
    flipped = solve_exploration(f, G.T.copy(), 20.0).p
    assert p[1] > 5 * p[2]
    assert flipped[1] < flipped[2] + 1e-6


@pytest.mark.parametrize(
    "f", [[0.0] * 5, [1e-12, 0, 2e-12, 0, 0], [1e4, -1e4, 0, 3, 5], [-7, -7, -7, 9, 9], [1e-300, 0, 0, 0, 1]]
)
@pytest.mark.parametrize("family", GRAPHS)
def test_odd_losses(f, family):
    """Ties, near ties, and losses far outside [0, 1]."""
    f = np.array(f, dtype=float)
    G = random_graph(np.random.default_rng(5), 5, family)
    for gamma in (0.01, 1.0, 300.0, 1e4):
        solution = solve_exploration(f, G, gamma)
        check(solution, f, G, gamma)
        shifted = solve_exploration(f + 64.0, G, gamma)
        assert shifted.objective == pytest.approx(solution.objective, abs=3e-8)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    K=st.sampled_from(SIZES),
    graph=st.sampled_from(GRAPHS),
    losses=st.sampled_from(LOSSES),
    log_gamma=st.floats(-2, 6),
    tol=st.sampled_from([1e-4, 1e-6, 1e-8]),
)
def test_properties(seed, K, graph, losses, log_gamma, tol):
    """Certified for every input; no other point is better; permuting arms or adding edges does what it
    must."""
    rng = np.random.default_rng(seed)
    f, G, gamma = random_losses(rng, K, losses), random_graph(rng, K, graph), 10.0**log_gamma
    solution = solve_exploration(f, G, gamma, tol=tol)
    check(solution, f, G, gamma, tol)
    random_p = rng.dirichlet(np.ones(K))
    assert float(objective(random_p, f, G, gamma)) >= solution.objective - tol - 1e-12
    order = rng.permutation(K)
    permuted = solve_exploration(f[order], G[np.ix_(order, order)], gamma, tol=tol)
    assert permuted.objective == pytest.approx(solution.objective, abs=2.1 * tol)
    more = np.maximum(G, rng.random((K, K)) < 0.3)
    assert solve_exploration(f, more, gamma, tol=tol).objective <= solution.objective + 2.1 * tol


@pytest.mark.slow
@pytest.mark.parametrize("K", [49, 64, 150])
def test_many_arms(K):
    """Active set and, where the support is large, the kernel on all arms."""
    rng = np.random.default_rng(K)
    kinds = [(g, f, gamma) for g, f in zip(GRAPHS, LOSSES) for gamma in (0.5, 10.0, 300.0, 1e5)]
    kinds += [("bernoulli", "uniform", gamma) for gamma in (0.1, 1.0, 10.0, 1e3)]
    for graph, losses, gamma in kinds:
        f, G = random_losses(rng, K, losses), random_graph(rng, K, graph)
        check(solve_exploration(f, G, gamma), f, G, gamma)


def test_active_set_and_all_arms_agree():
    """The same instances with the second kernel in the place of the first."""
    rng = np.random.default_rng(9)
    f, G = bernoulli_batch(rng, 80, 3)
    gammas = np.array([1.0, 30.0, 1000.0])
    ours = solve_exploration_batch(f, G, gammas)
    workspace = make_workspace(80)
    workspace[PRIMARY] = workspace[FALLBACK]
    p = np.empty_like(f)
    for b in range(3):
        _, _, certified = solve_kernel(f[b], G[b], gammas[b], 1e-8, workspace, p[b])
        assert certified and abs(objective(p[b], f[b], G[b], gammas[b]) - ours.objective[b]) <= 2e-8
    assert ours.certified.all() and not np.array_equal(ours.p, p)
