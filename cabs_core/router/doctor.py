"""How a deployed router is doing, read from its bundle and log alone; nothing is changed."""

import json
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cabs_core.base.catalog.policies import policy_record
from cabs_core.base.errors import counted
from cabs_core.base.paths import default_log
from cabs_core.base.units import SECONDS_PER_DAY, money
from cabs_core.base.utility import clipped_utility
from cabs_core.data.endpoints.prices import doubt_of_costs
from cabs_core.data.events.bills import all_calls, costs_of_calls, saved, unpriced_calls
from cabs_core.data.events.database import is_postgres
from cabs_core.data.events.log import BUDGET, JOINS, LONGEST_LEASE, SHARED_TEXT, EventLog
from cabs_core.data.events.rows import FAILED
from cabs_core.data.pool_files.prices import USUAL_SEARCH, USUAL_TIERS
from cabs_core.router.bundle import HEADER, Manifest, read_manifest
from cabs_core.router.decidable import in_words, reach
from cabs_core.router.recent_scores import in_a_sentence, recent_gaps

PARTS = 10
#: in the reason of a call that an upstream refused by its account with the router (`server.forwarding`)
ACCOUNT = "refuses the router's key"
#: seconds that a server may take to use a bundle that was put at its place
TAKEOVER = 10.0
#: seconds without a score after which a decision counts as `unscored_old`
PATIENCE = 7 * SECONDS_PER_DAY


def examine(folder: str | Path, log: str | Path | None = None) -> dict[str, Any]:
    """Report counts and learning curves per arm, decisions without a reward, the lease, and problems.

    The log is read once, row by row: some 50 bytes a scored decision are kept.

    Returns:
        JSON values: bundle, learns, decisions and rewards of this bundle, kept_turns (calls of conversations
        that kept their model), other_bundles (calls of others), bundles (of each: id, calls, time of the
        last), answered (all answered calls, what they cost: `bills.all_calls`), gaps (recent scores against
        what is expected, by model: `recent_scores`), arms (one dict each),
        curve (mean score, cost and utility of the scored decisions in `PARTS` equal parts of time order),
        unscored, unscored_old (of those whose score is wanted), failed, failures (model, reason, calls and
        time of the last), saved (what routed calls cost beside the expectation for the fallback, `model`;
        None: no prices), lease, checkpoint, problems (sentences; empty when all is well), notes
        (sentences about costs that may be in another unit; they are no problems).

    Raises:
        ProvenanceError: the bundle is damaged. RouterError: there is no log.
    """
    manifest = read_manifest(folder)
    events = EventLog.existing(default_log(folder) if log is None else log)
    try:
        return _examine(manifest, events, Path(folder))
    finally:
        events.close()


class _Tally:
    """What is known of one model's calls; scores, costs and weights (`EventReads.outcomes`) of its scored
    decisions, in time order."""

    def __init__(self) -> None:
        self.calls = self.decisions = self.failed = 0
        self.scores, self.costs, self.weights = array("d"), array("d"), array("d")

    def row(self, name: str, of: int) -> dict[str, Any]:
        """One row of `arms`."""
        scored = len(self.scores)
        return {
            "model": name,
            "decisions": self.decisions,
            "share": self.decisions / max(of, 1),
            "scored": scored,
            "mean_score": float(np.mean(self.scores)) if scored else None,
            "mean_cost": float(np.mean(self.costs)) if scored else None,
            "failed": self.failed,
            "calls": self.calls,
            "curve": _means(self.scores),
        }


def _examine(manifest: Manifest, events: EventLog, folder: Path) -> dict[str, Any]:
    arms = {name: _Tally() for name in manifest.names}
    scores, costs, rhos = array("d"), array("d"), array("d")
    decisions = calls = failed = unscored = old = asked = 0
    now = time.time()
    for arm, status, ts, rho, drawn, score, cost, weight in events.outcomes(manifest.id):
        mine, broke = arms.setdefault(arm, _Tally()), status in FAILED
        calls, mine.calls = calls + 1, mine.calls + 1
        failed, mine.failed = failed + broke, mine.failed + broke
        if not drawn:
            continue
        decisions, mine.decisions = decisions + 1, mine.decisions + 1
        asked += weight > 0.0
        if score is None:
            unscored += weight > 0.0
            old += weight > 0.0 and now - ts > PATIENCE
            continue
        mine.scores.append(score)
        mine.weights.append(weight)
        mine.costs.append(cost)
        scores.append(score)
        costs.append(cost)
        rhos.append(rho)
    lease, checkpoint = events.lease(), _checkpoint(manifest.id, events.checkpoints(folder))
    last = events.last_reward()
    utilities = clipped_utility(np.asarray(scores), np.asarray(costs), np.asarray(rhos))
    learns = policy_record(manifest.policy).learns
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
        what = "the router learns nothing" if learns else "nobody knows how good its answers are"
        problems.append(f"no decision was ever scored: {what} until feedback arrives")
    elif unscored > 0.9 * asked >= 90:
        which = "decisions" if asked == decisions else "decisions that are marked to be scored"
        problems.append(f"{unscored} of {asked} {which} have no score")
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
    problems += _unpriced(events, manifest.id)
    bundles = events.bundles()
    problems += _of_bundles(manifest.id, events, folder, bundles)
    for note in (BUDGET, JOINS, SHARED_TEXT):
        problems += json.loads(events.noted(note) or "[]")
    # what a cold bundle expects is the prior of its prices, which no score has to keep to
    gaps = [] if manifest.provenance.get("cold") else recent_gaps(events, manifest, folder)
    problems += [
        in_a_sentence(gap, learns=learns, policy=manifest.policy, pool=manifest.pool)
        for gap in gaps
        if gap.left
    ]
    if not is_postgres(events.place) and Path(events.place).stat().st_mode & 0o004:
        problems.append(f"every user of this machine can read the log: chmod 600 {events.place}*")
    count, spent, fixed = saved(events, manifest.id, manifest.fallback)
    return {
        "bundle": manifest.id,
        "pool": manifest.pool,
        "policy": manifest.policy,
        "learns": learns,
        "rho": manifest.rho,
        "log": events.name,
        "decisions": decisions,
        "kept_turns": calls - decisions,
        "other_bundles": sum(n for name, n, _ in bundles if name != manifest.id),
        "bundles": [{"bundle": name, "calls": n, "last": ts} for name, n, ts in bundles],
        "arm_sets": [{"since": ts, "bundle": name, "arms": names} for ts, name, names in events.arm_sets()],
        "answered": all_calls(events, manifest.id),
        "gaps": [vars(gap) | {"left": gap.left} for gap in gaps],
        "rewards": len(scores),
        "arms": rows,
        "curve": {"score": _means(scores), "cost": _means(costs), "utility": _means(utilities)},
        "unscored": unscored,
        "unscored_old": old,
        "failed": failed,
        "failures": failures,
        "saved": {"calls": count, "usd": spent, "fixed_usd": fixed, "model": manifest.fallback}
        if fixed
        else None,
        "lease": None if lease is None else {"holder": lease[0], "seconds_left": lease[1]},
        "checkpoint": checkpoint,
        "problems": problems,
        "notes": _notes(events, manifest.id),
        "decides": in_words([reach(name, t.weights, t.scores, len(scores)) for name, t in arms.items()]),
    }


def _notes(events: EventLog, bundle: str) -> list[str]:
    """Return a note if the costs of answered calls may be in another unit than USD."""
    calls = costs_of_calls(events, bundle)
    known = [(cost, expected) for cost, expected in calls if expected]
    if not calls:
        return []
    median = float(np.median([cost for cost, _ in known or calls]))
    expected = float(np.median([usd for _, usd in known])) if known else None
    note = doubt_of_costs(median, expected)
    return [note] if note else []


def _unpriced(events: EventLog, bundle: str) -> list[str]:
    """Return a sentence for each tier, search or currency that replies name and the prices lack."""
    counted_calls: dict[tuple[str, str], list[float]] = {}
    for model, words, calls, usd in unpriced_calls(events, bundle):
        for word in words.split(", "):
            number, _, kind = word.partition(" ")
            pieces = float(number) if kind == "searches" else 0.0
            total = counted_calls.setdefault((model, kind if pieces else word), [0.0, 0.0, 0.0])
            total[0] += calls
            total[1] += usd
            total[2] += pieces * calls
    return [
        _about_unpriced(model, word, int(calls), usd, pieces)
        for (model, word), (calls, usd, pieces) in counted_calls.items()
    ]


def _about_unpriced(model: str, word: str, calls: int, usd: float, searches: float) -> str:
    """Say what is not in the cost of some calls, what it may cost, and which price to write."""
    begin = f"{counted(calls, 'call')} of {model}"
    if searches:
        return (
            f"{begin} made {searches:g} web searches, which the price lacks: at the usual "
            f"{USUAL_SEARCH:g} USD each they cost {money(searches * USUAL_SEARCH)} that no figure holds. Add "
            "per_search to the price"
        )
    if word.startswith("tier "):
        tier = word.removeprefix("tier ")
        factor = USUAL_TIERS.get(tier)
        usual = (
            "what it costs is not known here"
            if factor is None
            else f"at the usual {factor:g} times the price they cost {money(factor * usd)}"
        )
        return (
            f"{begin} were answered at tier {tier}, which the price lacks: they count {money(usd)}; {usual}. "
            f"Add tiers: {{{tier}: {1.0 if factor is None else factor:g}}} to the price"
        )
    return f"{begin} came with {word}, which is not read: they count {money(usd)} by the price in USD"


def _of_bundles(
    bundle: str, events: EventLog, folder: Path, bundles: Sequence[tuple[str, int, float | None]]
) -> list[str]:
    """That calls were decided by another bundle after this one was put here."""
    here = (folder / HEADER).stat().st_ctime + TAKEOVER
    mine = next((ts or 0.0 for name, _, ts in bundles if name == bundle), 0.0)
    return [
        f"{events.calls_since(name, here)} calls were decided by bundle {name} after {bundle} was put at "
        f"{folder}: the server has not taken it up; its log and /readyz (with an admin's key) say why"
        for name, _, ts in bundles
        if name != bundle and ts is not None and ts > max(here, mine)
    ]


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
