"""A picture of what a router learnt: utility, plays per model and spending over the scored decisions of its log.

python -m cabs_core.router.plot --router router --out learned.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from cabs_core.atomic import atomic_path
from cabs_core.errors import RouterError
from cabs_core.router.bundle import read_manifest
from cabs_core.router.events import EventLog
from cabs_core.router.router import default_log


def plot_learning(router: str | Path, out: str | Path, log: str | Path | None = None) -> Path:
    """Write the picture (PNG, or what the name ends in). Raises RouterError without a scored decision."""
    from matplotlib.figure import Figure

    manifest = read_manifest(router)
    events = EventLog(default_log(router) if log is None else log, read_only=True)
    rewards = {r.decision_id: r for r in events.rewards() if r.teaches}
    made = [d for d in events.decisions() if d.id in rewards]
    events.close()
    if not made:
        raise RouterError(f"{events.place} holds no scored decision yet: there is nothing to draw")
    found = [rewards[d.id] for d in made]
    rho, costs = np.array([d.rho for d in made]), np.array([r.cost for r in found])
    utilities = np.clip(np.array([r.score for r in found]) - rho * costs, 0.0, 1.0)
    t = np.arange(1, len(made) + 1)
    figure = Figure(figsize=(9, 8), layout="constrained")
    top, middle, bottom = figure.subplots(3, 1, sharex=True)
    top.plot(t, np.cumsum(utilities) / t)
    top.set_ylabel("mean utility so far")
    for arm in manifest.names:
        middle.plot(t, np.cumsum([d.arm == arm for d in made]) / t, label=arm)
    middle.set_ylabel("share of decisions")
    middle.legend(fontsize="small")
    bottom.plot(t, np.cumsum(costs))
    bottom.set_ylabel("spent, USD")
    bottom.set_xlabel("scored decisions")
    figure.suptitle(f"{manifest.policy} of pool {manifest.pool}")
    with atomic_path(out) as temporary:
        figure.savefig(temporary, format=Path(out).suffix.lstrip(".") or "png")
    return Path(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Draw what a router learnt.")
    parser.add_argument("--router", default="router")
    parser.add_argument("--log")
    parser.add_argument("--out", default="learned.png")
    options = parser.parse_args()
    print(plot_learning(options.router, options.out, options.log))
