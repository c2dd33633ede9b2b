"""The checked entry points: shapes, errors, and the call from compiled code."""

from __future__ import annotations

import numpy as np
import pytest

from cabs_core.algorithms.solver.api import make_workspace, solve_exploration, solve_exploration_batch
from cabs_core.algorithms.solver.checks import SolverError
from cabs_core.algorithms.solver.workspace import solve_kernel


def test_batch_is_the_same_as_one_by_one():
    rng = np.random.default_rng(0)
    f = rng.random((6, 4))
    G = (rng.random((6, 4, 4)) < 0.5) * 1.0
    G[:, range(4), range(4)] = 1.0
    gammas = np.array([1.0, 10.0, 100.0, 1000.0, 0.1, 4.0])
    batch = solve_exploration_batch(f, G, gammas)
    assert batch.p.shape == (6, 4) and batch.certified.all()
    for b in range(6):
        one = solve_exploration(f[b], G[b], gammas[b])
        assert abs(one.objective - batch.objective[b]) <= 2e-8
    empty = solve_exploration_batch(np.empty((0, 3)), np.empty((0, 3, 3)), np.empty(0))
    assert empty.p.shape == (0, 3) and empty.certified.shape == (0,)


@pytest.mark.parametrize(
    ("losses", "graph", "gamma", "tol", "words"),
    [
        ([0.0, np.nan], np.eye(2), 1.0, 1e-8, r"losses\[1\] is nan"),
        ([0.0, np.inf], np.eye(2), 1.0, 1e-8, r"losses\[1\] is inf"),
        ([], np.empty((0, 0)), 1.0, 1e-8, "at least one arm"),
        ([[0.0, 1.0]], np.eye(2), 1.0, 1e-8, "losses must have 1 dimension"),
        ([0.0, 1.0], np.eye(3), 1.0, 1e-8, r"graph has shape \(3, 3\)"),
        ([0.0, 1.0], [[1.0, 0.0], [1.0, 0.0]], 1.0, 1e-8, "arm 1 has no self loop"),
        ([0.0, 1.0], [[1.0, -0.5], [1.0, 1.0]], 1.0, 1e-8, r"graph\[0, 1\] is -0.5"),
        ([0.0, 1.0], [[1.0, 1.5], [1.0, 1.0]], 1.0, 1e-8, r"graph\[0, 1\] is 1.5"),
        ([0.0, 1.0], [[1.0, np.nan], [1.0, 1.0]], 1.0, 1e-8, r"graph\[0, 1\] is nan"),
        ([0.0, 1.0], np.eye(2), 0.0, 1e-8, "gamma is 0.0"),
        ([0.0, 1.0], np.eye(2), -1.0, 1e-8, "gamma is -1.0"),
        ([0.0, 1.0], np.eye(2), np.nan, 1e-8, "gamma is nan"),
        ([0.0, 1.0], np.eye(2), np.inf, 1e-8, "gamma is inf"),
        ([0.0, 1.0], np.eye(2), [1.0], 1e-8, "gamma must have 0 dimension"),
        ([0.0, 1.0], np.eye(2), 1.0, 0.0, "tol must be positive"),
        ([0.0, 1.0], np.eye(2), 1.0, "x", "tol must be a positive number"),
        (["a", "b"], np.eye(2), 1.0, 1e-8, "losses must be real numbers"),
    ],
)
def test_bad_input_is_named(losses, graph, gamma, tol, words):
    with pytest.raises(SolverError, match=words):
        solve_exploration(losses, graph, gamma, tol=tol)


def test_a_bad_batch_names_the_instance():
    f, G = np.zeros((3, 2)), np.tile(np.eye(2), (3, 1, 1))
    G[2, 1, 1] = 0.0
    with pytest.raises(SolverError, match=r"graph\[2, 1, 1\] \(instance 2\) is 0"):
        solve_exploration_batch(f, G, np.ones(3))
    with pytest.raises(SolverError, match="3 instances"):
        solve_exploration_batch(f, np.tile(np.eye(2), (3, 1, 1)), np.ones(2))
    with pytest.raises(SolverError, match=r"gamma\[1\] \(instance 1\) is -1.0"):
        solve_exploration_batch(f, np.tile(np.eye(2), (3, 1, 1)), [1.0, -1.0, 1.0])


@pytest.mark.parametrize("arms", [0, -1, 2.0, True, None])
def test_workspace_needs_a_number_of_arms(arms):
    with pytest.raises(SolverError, match="number of arms"):
        make_workspace(arms)


@pytest.mark.parametrize(
    ("f", "gamma", "arms"),
    [
        ([0.0, np.nan, 1.0], 4.0, 3),
        ([0.0, np.inf, 1.0], 4.0, 3),
        ([0.0, -np.inf, 1.0], 4.0, 3),
        ([0.0, 0.5, 1.0], 4.0, 2),
        ([0.0, 0.5, 1.0], -4.0, 3),
        ([0.0, 0.5, 1.0], np.nan, 3),
        ([0.0, 0.5, 1.0], np.inf, 3),
    ],
)
def test_compiled_call_never_fails(f, gamma, arms):
    """In the middle of a replay nothing may raise: a valid p, an infinite gap and certified False instead."""
    p = np.empty(3)
    gap, _, certified = solve_kernel(np.array(f), np.eye(3), gamma, 1e-8, make_workspace(arms), p)
    assert gap == np.inf and not certified
    assert p == pytest.approx(np.full(3, 1 / 3))


def test_compiled_call_refuses_a_foreign_array_as_workspace():
    p = np.empty(2)
    gap, iterations, certified = solve_kernel(np.zeros(2), np.eye(2), 1.0, 1e-8, np.zeros(500), p)
    assert (gap, iterations, certified) == (np.inf, 0, False)
    assert p == pytest.approx([0.5, 0.5])
