"""Simulation of guarded mode: does a router start to route where its policy is better, and only there?

    python -m benchmarks.guarded [--runs 1000] [--decisions 20000] [--floor 0.02]

Routers in mode `guarded` are simulated from nothing, with every decision scored. The policy differs from the
fallback on `share` of the prompts. The fallback is worth `base` on average, the policy `base` + `gain` over
all prompts. `noise` is None for scores that are 0 or 1, otherwise the standard deviation of graded scores,
which are cut to [0, 1]. Draws, weights and the rule are those of `cabs_core.router.guarded`.

Printed for each world: the share of runs in which the policy starts to answer, the share in which it answers
at the end, and the share of all decisions that it answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.script import Script, head, row, write_figures
from cabs_core.router.guarded import Lead, guarded_pmf, overlap_weights

FALLBACK = 0
CHOICE = 1


@dataclass(frozen=True)
class World:
    """A router whose policy is worth a known amount more or less than its fallback."""

    models: int
    share: float
    base: float
    gain: float
    noise: float | None = None


WORLDS = (
    *(World(k, share, 0.6, 0.1) for k in (2, 4, 8) for share in (1.0, 0.5)),
    World(4, 1.0, 0.6, 0.1, noise=0.25),
    *(World(k, 1.0, base, 0.0) for k in (2, 4, 8) for base in (0.6, 0.95)),
    World(4, 1.0, 0.05, 0.0),
    World(4, 0.3, 0.6, 0.0),
    World(4, 1.0, 0.6, 0.0, noise=0.25),
    World(4, 1.0, 0.6, -0.05),
)


def simulate(
    world: World, runs: int, decisions: int, floor: float, trusted: bool = False
) -> dict[str, float]:
    """Return the shares of runs that start to route and that route at the end, and of routed decisions.

    Args:
        world: the router.
        runs: number of simulated routers.
        decisions: number of decisions of each router.
        floor: share of exploration.
        trusted: True if the policy answers from the first decision on, as after good validation.
    """
    rng = np.random.default_rng(0)
    arms = np.arange(world.models)
    target = (arms == CHOICE).astype(np.float64)
    pmfs = []
    weights = []
    for routes in (False, True):
        pmf = guarded_pmf(routes, FALLBACK, target, np.ones(world.models, dtype=bool), floor)
        pmfs.append(np.cumsum(pmf)[[FALLBACK, CHOICE]])
        weights.append([overlap_weights(arm, FALLBACK, target, pmf) for arm in (FALLBACK, CHOICE)])
    limits = np.array(pmfs)
    weight = np.array(weights)
    lead = Lead(routes=np.full(runs, trusted))
    started = np.zeros(runs, dtype=bool)
    routed = 0.0
    for _ in range(decisions):
        now = lead.routes.astype(int)
        routed += now.mean()
        drawn = rng.random(runs)
        differs = rng.random(runs) < world.share
        plays_fallback = differs & (drawn < limits[now, 0])
        plays_choice = differs & ~plays_fallback & (drawn < limits[now, 1])
        mean = world.base + np.where(plays_choice, world.gain / world.share, 0.0)
        if world.noise is None:
            utility = (rng.random(runs) < mean).astype(np.float64)
        else:
            utility = np.clip(mean + world.noise * rng.standard_normal(runs), 0.0, 1.0)
        lead.add(plays_choice * weight[now, 1, 0], plays_fallback * weight[now, 0, 1], utility)
        started |= lead.routes
    return {"starts": float(started.mean()), "ends": float(lead.routes.mean()), "routed": routed / decisions}


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Simulate every world from nothing and after good validation, print and return the rows."""
    parser = Script(__file__, __doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--decisions", type=int, default=20_000)
    parser.add_argument("--floor", type=float, default=0.02)
    options = parser.parse_args(argv)
    columns = ("models", "share", "base", "noise", "gain")
    print(head(*columns, "validated", "starts", "routes at the end", "decisions of the policy"))
    rows = []
    for trusted in (False, True):
        for world in WORLDS:
            shares = simulate(world, options.runs, options.decisions, options.floor, trusted)
            rows.append({**vars(world), "trusted": trusted, **shares})
            cells = [vars(world)[name] for name in columns]
            print(row(*cells, trusted, *(f"{value:.3f}" for value in shares.values())), flush=True)
    write_figures(rows, options.json)
    return rows


if __name__ == "__main__":
    main()
