"""`solve_exploration(method="cvxpy")`: a reference that the same certificate judges."""

from __future__ import annotations

import numpy as np
import pytest

from cabs_core.algorithms.solver.api import solve_exploration
from cabs_core.algorithms.solver.checks import SolverError
from cabs_core.algorithms.solver.program import certificate, objective
from cabs_core.base.errors import CabsError
from tests.solver_instances import mixed_batch


@pytest.mark.parametrize("arms", [2, 8, 60])  # those that other files of tests compile
def test_it_agrees_with_the_kernels_within_what_both_prove(arms: int) -> None:
    rng = np.random.default_rng(arms)
    losses, graph = rng.random(arms), (rng.random((arms, arms)) < 0.6).astype(float)
    np.fill_diagonal(graph, 1.0)
    kernel = solve_exploration(losses, graph, 10.0)
    solution = solve_exploration(losses, graph, 10.0, method="cvxpy", tol=1e-5)
    assert solution.certified and solution.iterations > 0
    assert abs(solution.objective - kernel.objective) <= solution.gap + kernel.gap + 1e-12
    assert solution.objective == pytest.approx(objective(solution.p, losses, graph, 10.0))


def test_the_certificate_is_true_whether_or_not_clarabel_succeeds() -> None:
    """At gamma of 100 and above Clarabel may stop early: the gap then says how far off its answer may be."""
    losses, graphs, gammas, _ = mixed_batch(np.random.default_rng(3), 8, 60)
    unproven = 0
    for f, G, gamma in zip(losses, graphs, np.maximum(gammas, 100.0), strict=True):
        try:
            solution = solve_exploration(f, G, gamma, method="cvxpy")
        except SolverError as error:
            assert "found no point" in str(error)
            unproven += 1
            continue
        assert solution.p.sum() == pytest.approx(1) and (solution.p >= 0).all()
        assert solution.gap == pytest.approx(float(certificate(solution.p, solution.q, f, G, gamma)))
        assert solution.certified == (solution.gap <= 1e-8)
        assert solution.objective - solve_exploration(f, G, gamma).objective <= solution.gap + 1e-9
        unproven += not solution.certified
    assert unproven > 0  # otherwise the kernels would not be needed


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(CabsError, match="expected kernel or cvxpy"):
        solve_exploration([0.1, 0.2], np.eye(2), 1.0, method="scs")
