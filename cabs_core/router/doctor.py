"""How a deployed router is doing, read from its bundle and log alone; nothing is changed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from cabs_core.errors import RouterError
from cabs_core.paths import default_log
from cabs_core.router.bundle import Manifest, read_manifest
from cabs_core.router.events import EventLog
from cabs_core.router.router import learned_folder
from cabs_core.utility import clipped_utility

PARTS = 10
#: seconds without a score after which a decision counts as `unscored_old`
PATIENCE = 7 * 86_400.0


def examine(folder: str | Path, log: str | Path | None = None) -> dict[str, Any]:
    """Report counts and learning curves per arm, decisions without a reward, the holder of the lease, and problems.

    Returns:
        JSON values: bundle, decisions and rewards of this bundle, other_bundles (decisions of others), arms (one dict
        each), curve (mean score, cost and utility of the scored decisions in `PARTS` equal parts of time order),
        unscored, unscored_old, failed, lease, checkpoint, problems (sentences; empty when all is well).

    Raises:
        ProvenanceError: the bundle is damaged. RouterError: there is no log.
    """
    manifest = read_manifest(folder)
    place = default_log(folder) if log is None else log
    if not str(place).startswith("postgres") and not Path(place).is_file():
        raise RouterError(f"there is no log at {place}: route something first, or name the log with --log")
    events = EventLog(place, read_only=not str(place).startswith("postgres"))
    try:
        return _examine(manifest, events, place)
    except events.errors as error:
        raise RouterError(f"{place} cannot be read as an event log: {error}") from None
    finally:
        events.close()


def _examine(manifest: Manifest, events: EventLog, place: str | Path) -> dict[str, Any]:
    logged, given = events.decisions(), events.rewards()
    decisions = [d for d in logged if d.bundle == manifest.id]
    ours = {d.id for d in decisions}
    rewards = {r.decision_id: r for r in given if r.teaches and r.decision_id in ours}
    now = time.time()
    arms: list[dict[str, Any]] = []
    for name in manifest.names:
        mine = [d for d in decisions if d.arm == name]
        scores = [rewards[d.id].score for d in mine if d.id in rewards]
        costs = [rewards[d.id].cost for d in mine if d.id in rewards]
        arms.append(
            {
                "model": name, "decisions": len(mine), "share": len(mine) / max(len(decisions), 1),
                "scored": len(scores), "mean_score": float(np.mean(scores)) if scores else None,
                "mean_cost": float(np.mean(costs)) if costs else None,
                "failed": sum(d.status in ("error", "timeout") for d in mine),
                "curve": _means(scores),
            }
        )  # fmt: skip
    scored = [(d, rewards[d.id]) for d in decisions if d.id in rewards]
    utilities = [float(clipped_utility(r.score, r.cost, d.rho)) for d, r in scored]
    waiting = [d for d in decisions if d.id not in rewards]
    old = sum(now - d.ts > PATIENCE for d in waiting)
    lease, checkpoint = events.lease(), _checkpoint(manifest.id, place)
    last = given[-1].seq if given else 0
    problems = []
    if lease is not None and lease[1] < now and last > (checkpoint or {}).get("applied", 0):
        problems.append(
            f"the lease of {lease[0]} ran out {now - lease[1]:.0f} s ago and rewards wait for a checkpoint: is any "
            "worker alive?"
        )
    if decisions and not rewards:
        problems.append("no decision was ever scored: the router learns nothing until feedback arrives")
    elif len(waiting) > 0.9 * len(decisions) >= 90:
        problems.append(f"{len(waiting)} of {len(decisions)} decisions have no score")
    for arm in arms:
        if len(decisions) >= 50 * len(arms) and arm["decisions"] == 0:
            problems.append(f"{arm['model']} was never played: the log says nothing about it")
        if arm["decisions"] >= 20 and arm["failed"] > arm["decisions"] / 2:
            problems.append(f"more than half of the calls of {arm['model']} failed")
    return {
        "bundle": manifest.id, "pool": manifest.pool, "policy": manifest.policy, "rho": manifest.rho,
        "log": str(place), "decisions": len(decisions),
        "other_bundles": len(logged) - len(decisions), "rewards": len(rewards), "arms": arms,
        "curve": {
            "score": _means([r.score for _, r in scored]), "cost": _means([r.cost for _, r in scored]),
            "utility": _means(utilities),
        },
        "unscored": len(waiting), "unscored_old": old,
        "failed": sum(d.status in ("error", "timeout") for d in decisions),
        "lease": None if lease is None else {"holder": lease[0], "seconds_left": lease[1] - now},
        "checkpoint": checkpoint, "problems": problems,
    }  # fmt: skip


def _means(values: list[float]) -> list[float]:
    """Means of at most `PARTS` equal parts, in order."""
    parts = np.array_split(np.asarray(values, dtype=np.float64), min(PARTS, len(values)) or 1)
    return [float(p.mean()) for p in parts if len(p)]


def _checkpoint(bundle: str, place: str | Path) -> dict[str, int] | None:
    try:
        data = json.loads((learned_folder(place) / bundle / "learned.json").read_text(encoding="utf-8"))
        return {name: int(data[name]) for name in ("counted", "applied", "learnt", "passed")}
    except (OSError, ValueError, KeyError, TypeError):
        return None
