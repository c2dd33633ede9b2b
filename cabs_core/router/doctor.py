"""How a deployed router is doing, read from its bundle and log alone; nothing is changed."""

from __future__ import annotations

import json
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cabs_core.errors import RouterError
from cabs_core.paths import default_log
from cabs_core.router.bundle import Manifest, read_manifest
from cabs_core.router.database import is_postgres
from cabs_core.router.decidable import in_words, reach
from cabs_core.router.event_rows import SECONDS_PER_DAY
from cabs_core.router.events import LONGEST_LEASE, EventLog
from cabs_core.utility import clipped_utility

PARTS = 10
#: in the reason of a call that an upstream refused by its account with the router (`server.forwarding`)
ACCOUNT = "refuses the router's key"
#: seconds without a score after which a decision counts as `unscored_old`
PATIENCE = 7 * 86_400.0


def examine(folder: str | Path, log: str | Path | None = None) -> dict[str, Any]:
    """Report counts and learning curves per arm, decisions without a reward, the holder of the lease, and problems.

    The log is read once, row by row: some 50 bytes a scored decision are kept.

    Returns:
        JSON values: bundle, decisions and rewards of this bundle, kept_turns (calls of conversations that kept their
        model), other_bundles (calls of others), arms (one dict
        each), curve (mean score, cost and utility of the scored decisions in `PARTS` equal parts of time order),
        unscored, unscored_old, failed, failures (model, reason, calls and time of the last), saved (what routed calls cost
        beside the expectation for the fallback, `model`; None: no prices), lease, checkpoint, problems (sentences; empty when
        all is well).

    Raises:
        ProvenanceError: the bundle is damaged. RouterError: there is no log.
    """
    manifest = read_manifest(folder)
    place = default_log(folder) if log is None else log
    if not is_postgres(place) and not Path(place).is_file():
        raise RouterError(f"there is no log at {place}: route something first, or name the log with --log")
    events = EventLog(place, read_only=not is_postgres(place))
    try:
        return _examine(manifest, events, folder)
    finally:
        events.close()


class _Tally:
    """What is known of one model's calls; scores, costs and 1 / probability of its scored decisions, in time order."""

    def __init__(self) -> None:
        self.calls = self.decisions = self.failed = 0
        self.scores, self.costs, self.weights = array("d"), array("d"), array("d")

    def row(self, name: str, of: int) -> dict[str, Any]:
        """One row of `arms`."""
        scored = len(self.scores)
        return {
            "model": name, "decisions": self.decisions, "share": self.decisions / max(of, 1), "scored": scored,
            "mean_score": float(np.mean(self.scores)) if scored else None,
            "mean_cost": float(np.mean(self.costs)) if scored else None,
            "failed": self.failed, "calls": self.calls, "curve": _means(self.scores),
        }  # fmt: skip


def _examine(manifest: Manifest, events: EventLog, folder: str | Path) -> dict[str, Any]:
    arms = {name: _Tally() for name in manifest.names}
    scores, costs, rhos = array("d"), array("d"), array("d")
    decisions = calls = failed = unscored = old = 0
    now = time.time()
    for arm, status, ts, rho, drawn, score, cost, p in events.outcomes(manifest.id):
        mine, broke = arms.setdefault(arm, _Tally()), status in ("error", "timeout")
        calls, mine.calls = calls + 1, mine.calls + 1
        failed, mine.failed = failed + broke, mine.failed + broke
        if not drawn:
            continue
        decisions, mine.decisions = decisions + 1, mine.decisions + 1
        if score is None:
            unscored += 1
            old += now - ts > PATIENCE
            continue
        mine.scores.append(score)
        mine.weights.append(1.0 / p)
        mine.costs.append(cost)
        scores.append(score)
        costs.append(cost)
        rhos.append(rho)
    lease, checkpoint = events.lease(), _checkpoint(manifest.id, events.checkpoints(folder))
    last = events.last_reward()
    utilities = clipped_utility(np.asarray(scores), np.asarray(costs), np.asarray(rhos))
    rows = [tally.row(name, decisions) for name, tally in arms.items()]
    problems = []
    if (
        lease is not None
        and not 0.0 < lease[1] <= LONGEST_LEASE
        and last > (checkpoint or {}).get("applied", 0)
    ):
        problems.append(
            f"the lease of {lease[0]} ran out and rewards wait for a checkpoint: is any worker alive?"
        )
    if decisions and not scores:
        problems.append("no decision was ever scored: the router learns nothing until feedback arrives")
    elif unscored > 0.9 * decisions >= 90:
        problems.append(f"{unscored} of {decisions} decisions have no score")
    for arm in rows:
        if decisions >= 50 * len(rows) and arm["decisions"] == 0:
            problems.append(f"{arm['model']} was never played: the log says nothing about it")
        if arm["calls"] >= 20 and arm["failed"] > arm["calls"] / 2:
            problems.append(f"more than half of the calls of {arm['model']} failed")
    failures: list[dict[str, Any]] = [
        {"model": arm, "reason": reason, "calls": count, "last": ts}
        for arm, reason, count, ts in events.failures(manifest.id)
    ]
    for one in failures:
        if ACCOUNT in one["reason"] and now - one["last"] < SECONDS_PER_DAY:
            problems.append(f"{one['calls']} calls of {one['model']} failed: {one['reason']}")
    count, spent, fixed = events.saved(manifest.id)
    return {
        "bundle": manifest.id, "pool": manifest.pool, "policy": manifest.policy, "rho": manifest.rho,
        "log": events.name, "decisions": decisions, "kept_turns": calls - decisions,
        "other_bundles": events.calls_of_others(manifest.id), "rewards": len(scores), "arms": rows,
        "curve": {"score": _means(scores), "cost": _means(costs), "utility": _means(utilities)},
        "unscored": unscored, "unscored_old": old, "failed": failed, "failures": failures,
        "saved": {"calls": count, "usd": spent, "fixed_usd": fixed, "model": manifest.fallback} if fixed else None,
        "lease": None if lease is None else {"holder": lease[0], "seconds_left": lease[1]},
        "checkpoint": checkpoint, "problems": problems,
        "decides": in_words([reach(name, t.weights, t.scores, len(scores)) for name, t in arms.items()]),
    }  # fmt: skip


def _means(values: Sequence[float] | np.ndarray) -> list[float]:
    """Means of at most `PARTS` equal parts, in order."""
    parts = np.array_split(np.asarray(values, dtype=np.float64), min(PARTS, len(values)) or 1)
    return [float(p.mean()) for p in parts if len(p)]


def _checkpoint(bundle: str, place: Path | None) -> dict[str, int] | None:
    if place is None:
        return None
    try:
        data = json.loads((place / bundle / "learned.json").read_text(encoding="utf-8"))
        return {name: int(data[name]) for name in ("counted", "applied", "learnt", "passed")}
    except (OSError, ValueError, KeyError, TypeError):
        return None
