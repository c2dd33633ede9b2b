"""The benchmark of the solver asks its peers for the same program."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.speed import solver as solver_bench
from cabs_core.algorithms.solver.api import solve_exploration


@pytest.mark.peers
def test_vowpal_wabbit_gets_the_transposed_graph():
    """On a graph with a direction, only the right one gives VW an objective near ours."""
    pytest.importorskip("vowpalwabbit")
    G = np.eye(4)
    G[1] = 1.0
    f, gamma = np.array([0.0, 0.3, 0.3, 0.3]), 10.0
    best = solve_exploration(f, G, gamma).objective

    def objective(graph):
        return solver_bench.clipped_objective(solver_bench.vowpal_wabbit(f, graph, gamma)(), f, G, gamma)

    assert objective(G) < 1.05 * best < objective(G.T.copy())
