"""The solver's public entry: sound and broken programs, workspaces used where they do not belong."""

from __future__ import annotations

import numpy as np

from cabs_core.solver import make_workspace, solve_exploration, solve_exploration_batch, solve_kernel
from cabs_core.solver.instances import GRAPHS, LOSSES, random_graph, random_losses

from ..mutations import ANYTHING, NO_NUMBERS, broken_array, odd_layout, pick
from ..runner import Nonsense

COUNT, QUICK = 1500, 120
ARMS = (1, 2, 3, 5, 8, 11, 50, 70)


def prepare() -> None:
    """Compile what the probes use."""
    for arms in ARMS:
        solve_exploration(np.zeros(arms), np.eye(arms), 1.0)


def _valid(p, gap) -> None:
    if not (np.isfinite(p).all() and (p >= -1e-12).all() and abs(p.sum() - 1.0) < 1e-6 and gap >= -1e-9):
        raise Nonsense(f"no distribution: p {p}, gap {gap}")


def probe(tally, rng, ready) -> None:
    """One program, sound first, then with something wrong."""
    k = int(pick(rng, ARMS))
    losses, graph = random_losses(rng, k, pick(rng, LOSSES)), random_graph(rng, k, pick(rng, GRAPHS))
    gamma, tol = 10.0 ** rng.uniform(-3, 6), 10.0 ** rng.uniform(-9, -3)
    found = tally.sound(lambda: solve_exploration(losses, graph, gamma, tol=tol))
    _valid(found.p, found.gap)
    same = tally.sound(
        lambda: solve_exploration(odd_layout(rng, losses), odd_layout(rng, graph), gamma, tol=tol)
    )
    if not np.array_equal(same.p, found.p):
        raise Nonsense("another memory layout gave another solution")
    how, broken = broken_array(rng, losses)
    tally.tried(lambda: solve_exploration(broken, graph, gamma), must_fail=f"losses {how}" * (how != "huge"))
    how, broken = broken_array(rng, graph)
    tally.tried(
        lambda: solve_exploration(losses, broken, gamma),
        must_fail=f"graph {how}" * (k > 1 or how != "shorter"),
    )
    bad = pick(rng, NO_NUMBERS)
    tally.tried(lambda: solve_exploration(losses, graph, bad), must_fail=f"gamma {bad!r}")
    tally.tried(lambda: solve_exploration(losses, graph, gamma, tol=bad), must_fail=f"tol {bad!r}")
    odd = pick(rng, ANYTHING)
    tally.tried(lambda: make_workspace(odd) if not isinstance(odd, int) or odd < 1 or odd > 99 else None)
    _extremes(tally, rng, k, graph)
    _workspaces(tally, rng, k, losses, graph, gamma)
    b = int(rng.integers(0, 4))
    many = np.tile(losses, (b, 1)), np.tile(graph, (b, 1, 1)), np.full(b, gamma)
    batch = tally.sound(lambda: solve_exploration_batch(*many, tol))
    if b and not np.array_equal(batch.p[0], found.p):
        raise Nonsense("a batch gave another solution")
    which = int(rng.integers(3))
    how, broken = broken_array(rng, many[which])
    args = [broken if i == which else a for i, a in enumerate(many)]
    if b > 1:
        tally.tried(
            lambda: solve_exploration_batch(*args, tol), must_fail=f"batch {which} {how}" * (how != "huge")
        )


def _extremes(tally, rng, k, graph) -> None:
    """Numbers at the ends of float64 are allowed; what comes back is a distribution."""
    losses = rng.choice([0.0, 1e-300, 1e300, -1e300, 1.0, 1e-16], size=k)
    found = tally.tried(lambda: solve_exploration(losses, graph, pick(rng, (1e-300, 1e-12, 1e12, 1e300))))
    if found is not None:
        _valid(found.p, 0.0 if np.isnan(found.gap) else found.gap)
    weak = np.where(graph > 0, graph * 10.0 ** -rng.uniform(0, 300, graph.shape), 0.0)
    np.fill_diagonal(weak, np.maximum(np.diagonal(weak), 1e-300))
    found = tally.tried(lambda: solve_exploration(rng.random(k), weak, 1.0))
    if found is not None:
        _valid(found.p, 0.0 if np.isnan(found.gap) else found.gap)


def _workspaces(tally, rng, k, losses, graph, gamma) -> None:
    """Copies, parts, and workspaces of other sizes or of another process give the uniform p, not proved."""
    sound = make_workspace(k)
    stale = sound.copy()
    stale[2:16] = rng.random(14)
    other = make_workspace(int(pick(rng, [a for a in ARMS if a != k])))
    for workspace in (
        sound.copy(),
        sound[1:],
        sound[: len(sound) // 2].copy(),
        stale,
        other,
        np.zeros(40),
        rng.random(500),
    ):
        p = np.full(k, np.nan)
        _, _, certified = solve_kernel(losses, graph, gamma, 1e-6, workspace, p)
        tally.calls["ok"] += 1
        if certified or not np.allclose(p, 1.0 / k):
            raise Nonsense(f"a workspace that is not this one's was used: {p}")
