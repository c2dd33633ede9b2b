"""The benchmarks run, and what they print is what they write."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.solver_instances import GRAPHS, LOSSES, mixed_batch, random_graph, random_losses
from benchmarks.speed import solver as solver_bench
from cabs_core.algorithms.solver.api import solve_exploration


def test_families_are_named_and_valid():
    rng = np.random.default_rng(0)
    for K in (1, 2, 7):
        for family in GRAPHS:
            G = random_graph(rng, K, family)
            assert G.shape == (K, K) and (np.diag(G) == 1).all() and ((G >= 0) & (G <= 1)).all()
        for family in LOSSES:
            assert random_losses(rng, K, family).shape == (K,)
    for bad in (random_graph, random_losses):
        with pytest.raises(ValueError, match="unknown family"):
            bad(rng, 3, "nonsense")
    _, _, gammas, families = mixed_batch(rng, 3, 64)
    assert len(set(families)) == 64
    assert (gammas >= 1e-2).all() and (gammas <= 1e6).all()


@pytest.mark.peers
def test_vowpal_wabbit_gets_the_transposed_graph():
    """On a graph with a direction, only the right one gives VW an objective near ours."""
    pytest.importorskip("vowpalwabbit")
    G = np.eye(4)
    G[1] = 1.0
    f, gamma = np.array([0.0, 0.3, 0.3, 0.3]), 10.0
    best = solve_exploration(f, G, gamma).objective
    assert (
        solver_bench.clipped_objective(solver_bench.vowpal_wabbit(f, G, gamma)(), f, G, gamma) < 1.05 * best
    )
    assert (
        solver_bench.clipped_objective(solver_bench.vowpal_wabbit(f, G.T.copy(), gamma)(), f, G, gamma)
        > 1.05 * best
    )
