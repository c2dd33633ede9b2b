"""A report on a deployed router, read from its bundle and its log alone. Nothing is changed."""

from __future__ import annotations

import json
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
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
from cabs_core.router.decidable import in_words, reach_of
from cabs_core.router.recent_scores import in_a_sentence, recent_gaps

#: Parts of a learning curve.
PARTS = 10
#: Words in the reason of a call whose upstream refused its account with the router (`server.forwarding`).
ACCOUNT = "refuses the router's key"
#: Seconds that a server may take to use a bundle that was put at its place.
TAKEOVER = 10.0
#: Seconds without a score after which a decision counts as `unscored_old`.
PATIENCE = 7 * SECONDS_PER_DAY


def examine(folder: str | Path, log: str | Path | None = None) -> dict[str, Any]:
    """Report counts and learning curves per model, decisions without a score, the lease, and problems.

    The calls of the bundle are read in one pass, row by row. Some 50 bytes per scored decision are kept in
    memory. Further queries read costs, failures, bundles, the lease and recent scores.

    Args:
        folder: folder of the bundle.
        log: event log of the router. None takes the log beside the bundle.

    Returns:
        JSON values:

        * `bundle`, `pool`, `policy`, `rho`, `log`, and `learns`, True if the policy learns from scores;
        * `decisions`, `rewards` (scored decisions) and `failed` (calls) of this bundle, and `kept_turns`, its
          calls of conversations that kept their model;
        * `other_bundles`, number of calls of other bundles, and `bundles`, one dict each: `bundle`, `calls`,
          `last` (time of the last call);
        * `arm_sets`, the models from when on: `since`, `bundle`, `arms`;
        * `answered`, all answered calls and their cost (`bills.all_calls`);
        * `gaps`, recent scores against expected ones, by model (`recent_scores`);
        * `arms`, one dict per model, also of those that callers named alone: `model`, `decisions`, `share` of
          all decisions, `scored` (decisions with a score), their `mean_score` and `mean_cost` (None without a
          score), `failed`, `calls`, and `curve`, the mean scores of `PARTS` equal parts of time order;
        * `curve`, mean score, cost and utility of the scored decisions in `PARTS` equal parts of time order;
        * `unscored`, decisions whose score is wanted and has not come, and `unscored_old`, those of them that
          are older than `PATIENCE`;
        * `failures`: `model`, `reason`, `calls`, `last`;
        * `saved`, the cost of routed calls beside the expected cost of the fallback, or None without prices;
        * `lease`, `checkpoint`, and `decides`, a sentence on what the log can decide;
        * `problems`, sentences, an empty list if all is well, and `notes`, sentences on costs that may be in
          another unit than USD.

    Raises:
        ProvenanceError: the bundle is damaged.
        RouterError: there is no log.
    """
    manifest = read_manifest(folder)
    events = EventLog.existing(default_log(folder) if log is None else log)
    try:
        return _examine(manifest, events, Path(folder))
    finally:
        events.close()


def _doubles() -> array[float]:
    """Return an empty array of doubles, which needs less memory than a list."""
    return array("d")


@dataclass
class _ModelCalls:
    """Calls of one model.

    Attributes:
        calls: number of calls, decisions included.
        decisions: number of calls for which the model was drawn.
        failed: number of calls that failed.
        scores, costs, weights: figures of the scored decisions, in time order. The weights are those of
            `EventReads.outcomes`.
    """

    calls: int = 0
    decisions: int = 0
    failed: int = 0
    scores: array[float] = field(default_factory=_doubles)
    costs: array[float] = field(default_factory=_doubles)
    weights: array[float] = field(default_factory=_doubles)

    def row(self, name: str, all_decisions: int) -> dict[str, Any]:
        """Return the row of `arms` for the model.

        Args:
            all_decisions: number of decisions of all models.
        """
        scored = len(self.scores)
        return {
            "model": name,
            "decisions": self.decisions,
            "share": self.decisions / max(all_decisions, 1),
            "scored": scored,
            "mean_score": float(np.mean(self.scores)) if scored else None,
            "mean_cost": float(np.mean(self.costs)) if scored else None,
            "failed": self.failed,
            "calls": self.calls,
            "curve": _means_of_parts(self.scores),
        }


@dataclass
class _Calls:
    """Calls of one bundle, as its log has them.

    Attributes:
        models: {name: calls of the model}.
        all: calls of all models together. Its `weights` stay empty.
        wanted: number of decisions whose score is wanted.
        unscored: number of wanted decisions without a score.
        unscored_old: number of wanted decisions without a score that are older than `PATIENCE`.
        rhos: values of rho of the scored decisions, in time order.
    """

    models: dict[str, _ModelCalls]
    all: _ModelCalls = field(default_factory=_ModelCalls)
    wanted: int = 0
    unscored: int = 0
    unscored_old: int = 0
    rhos: array[float] = field(default_factory=_doubles)

    @classmethod
    def read(cls, manifest: Manifest, events: EventLog) -> _Calls:
        """Count the calls of a bundle."""
        calls = cls({name: _ModelCalls() for name in manifest.names})
        now = time.time()
        for arm, status, ts, rho, drawn, score, cost, weight in events.outcomes(manifest.id):
            model = calls.models.setdefault(arm, _ModelCalls())
            for counted_calls in (model, calls.all):
                counted_calls.calls += 1
                counted_calls.failed += status in FAILED
                counted_calls.decisions += bool(drawn)
            if not drawn:
                continue
            wanted = weight > 0.0
            calls.wanted += wanted
            if score is None:
                calls.unscored += wanted
                calls.unscored_old += wanted and now - ts > PATIENCE
                continue
            model.weights.append(weight)
            for counted_calls in (model, calls.all):
                counted_calls.scores.append(score)
                counted_calls.costs.append(cost)
            calls.rhos.append(rho)
        return calls

    def utilities(self) -> np.ndarray:
        """Return the clipped utilities of the scored decisions, in time order."""
        return clipped_utility(np.asarray(self.all.scores), np.asarray(self.all.costs), np.asarray(self.rhos))


def _examine(manifest: Manifest, events: EventLog, folder: Path) -> dict[str, Any]:
    """Return the report of `examine` on an open log."""
    calls = _Calls.read(manifest, events)
    rows = [model.row(name, calls.all.decisions) for name, model in calls.models.items()]
    learns = policy_record(manifest.policy).learns
    lease = events.lease()
    checkpoint = _checkpoint(manifest.id, events.checkpoints(folder))
    failures: list[dict[str, Any]] = [
        {"model": arm, "reason": reason, "calls": count, "last": ts}
        for arm, reason, count, ts in events.failures(manifest.id)
    ]
    bundles = events.bundles()
    # a cold bundle expects the prior of its prices, to which no score has to keep
    if manifest.provenance.get("cold"):
        gaps = []
    else:
        gaps = recent_gaps(events, manifest, folder)
    problems = [
        *_lease_problems(lease, events.last_reward(), checkpoint),
        *_score_problems(calls, learns=learns),
        *_model_problems(rows, manifest.names, calls.all.decisions),
        *_account_problems(failures),
        *_unpriced(events, manifest.id),
        *_takeover_problems(manifest.id, events, folder, bundles),
    ]
    for note in (BUDGET, JOINS, SHARED_TEXT):
        problems += json.loads(events.noted(note) or "[]")
    for gap in gaps:
        if gap.is_significant:
            problems.append(in_a_sentence(gap, learns=learns, policy=manifest.policy, pool=manifest.pool))
    if not is_postgres(events.place) and Path(events.place).stat().st_mode & 0o004:
        problems.append(f"every user of this machine can read the log: chmod 600 {events.place}*")
    count, spent, fixed = saved(events, manifest.id, manifest.fallback)
    saving = {"calls": count, "usd": spent, "fixed_usd": fixed, "model": manifest.fallback}
    scored = len(calls.all.scores)
    # a model that callers name alone is none that the router could choose
    reaches = [
        reach_of(name, calls.models[name].weights, calls.models[name].scores, scored)
        for name in manifest.names
    ]
    return {
        "bundle": manifest.id,
        "pool": manifest.pool,
        "policy": manifest.policy,
        "learns": learns,
        "rho": manifest.rho,
        "log": events.name,
        "decisions": calls.all.decisions,
        "kept_turns": calls.all.calls - calls.all.decisions,
        "other_bundles": sum(n for name, n, _ in bundles if name != manifest.id),
        "bundles": [{"bundle": name, "calls": n, "last": ts} for name, n, ts in bundles],
        "arm_sets": [{"since": ts, "bundle": name, "arms": names} for ts, name, names in events.arm_sets()],
        "answered": all_calls(events, manifest.id),
        "gaps": [vars(gap) | {"left": gap.is_significant} for gap in gaps],
        "rewards": scored,
        "arms": rows,
        "curve": {
            "score": _means_of_parts(calls.all.scores),
            "cost": _means_of_parts(calls.all.costs),
            "utility": _means_of_parts(calls.utilities()),
        },
        "unscored": calls.unscored,
        "unscored_old": calls.unscored_old,
        "failed": calls.all.failed,
        "failures": failures,
        "saved": saving if fixed else None,
        "lease": None if lease is None else {"holder": lease[0], "seconds_left": lease[1]},
        "checkpoint": checkpoint,
        "problems": problems,
        "notes": _cost_notes(events, manifest.id),
        "decides": in_words(reaches),
    }


def _lease_problems(
    lease: tuple[str, float] | None, last_reward: int, checkpoint: dict[str, int] | None
) -> list[str]:
    """Return a sentence if the lease ran out and rewards wait for a checkpoint, otherwise an empty list.

    A lease with more than `LONGEST_LEASE` seconds left counts as run out.

    Args:
        lease: its holder and the seconds left. None if no worker ever held it, which is no problem.
        last_reward: number of the last reward in the log.
        checkpoint: how far the last checkpoint has read. None if there is none.
    """
    if lease is None or 0.0 < lease[1] <= LONGEST_LEASE:
        return []
    if last_reward <= (checkpoint or {}).get("applied", 0):
        return []
    return [f"the lease of {lease[0]} ran out and rewards wait for a checkpoint: is any worker alive?"]


def _score_problems(calls: _Calls, *, learns: bool) -> list[str]:
    """Return a sentence if no score came, or if fewer than 10 % of at least 100 wanted scores came.

    Without any score the sentence says what follows: a router that learns (`learns`) learns nothing, and of
    another nobody knows how good its answers are.
    """
    if calls.all.decisions and not calls.all.scores:
        if learns:
            effect = "the router learns nothing"
        else:
            effect = "nobody knows how good its answers are"
        return [f"no decision was ever scored: {effect} until feedback arrives"]
    if calls.unscored > 0.9 * calls.wanted >= 90:
        kind = "decisions that are marked to be scored"
        if calls.wanted == calls.all.decisions:
            kind = "decisions"
        return [f"{calls.unscored} of {calls.wanted} {kind} have no score"]
    return []


def _model_problems(rows: Sequence[dict[str, Any]], names: Sequence[str], decisions: int) -> list[str]:
    """Return a sentence for each model that was never played, or that failed in most of its calls.

    Only a model of the router can be played. It counts as never played if all models together have at least
    50 decisions for each model of the router. Failures count from 20 calls of the model on, whoever chose it.

    Args:
        rows: rows of `arms` in the report.
        names: names of the router's models.
        decisions: number of decisions of all models.
    """
    problems = []
    for row in rows:
        if row["model"] in names and decisions >= 50 * len(names) and row["decisions"] == 0:
            problems.append(f"{row['model']} was never played: the log says nothing about it")
        if row["calls"] >= 20 and row["failed"] > row["calls"] / 2:
            problems.append(f"more than half of the calls of {row['model']} failed")
    return problems


def _account_problems(failures: Sequence[dict[str, Any]]) -> list[str]:
    """Return a sentence for each model whose provider refused the router's account within the last day."""
    now = time.time()
    return [
        f"{failure['calls']} calls of {failure['model']} failed: {failure['reason']}"
        for failure in failures
        if ACCOUNT in failure["reason"] and now - failure["last"] < SECONDS_PER_DAY
    ]


def _cost_notes(events: EventLog, bundle: str) -> list[str]:
    """Return a note if the costs of answered calls may be in another unit than USD."""
    calls = costs_of_calls(events, bundle)
    known = [(cost, expected) for cost, expected in calls if expected]
    if not calls:
        return []
    median = float(np.median([cost for cost, _ in known or calls]))
    if known:
        expected = float(np.median([usd for _, usd in known]))
    else:
        expected = None
    note = doubt_of_costs(median, expected)
    if note:
        return [note]
    return []


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
    """Return a sentence on a charge that the cost of some calls lacks.

    For searches and tiers the sentence names the price to add. For any other charge, such as a currency, it
    says that the calls count by the price in USD.

    Args:
        word: name of the charge in the reply, such as `tier flex`. The name is not used if `searches` > 0.
        calls: number of calls.
        usd: cost of the calls by the price, without the charge.
        searches: number of web searches of the calls; 0 for another charge.
    """
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
        usual = "what it costs is not known here"
        if factor is not None:
            usual = f"at the usual {factor:g} times the price they cost {money(factor * usd)}"
        return (
            f"{begin} were answered at tier {tier}, which the price lacks: they count {money(usd)}; {usual}. "
            f"Add tiers: {{{tier}: {1.0 if factor is None else factor:g}}} to the price"
        )
    return f"{begin} came with {word}, which is not read: they count {money(usd)} by the price in USD"


def _takeover_problems(
    bundle: str, events: EventLog, folder: Path, bundles: Sequence[tuple[str, int, float | None]]
) -> list[str]:
    """Return a sentence for each other bundle that went on deciding after this one was put at its place.

    Named are bundles with a call later than `TAKEOVER` seconds after that moment and than this bundle's last
    call.

    Args:
        bundle: id of the bundle at the folder.
        bundles: id, number of calls and time of the last call of every bundle in the log.
    """
    here = (folder / HEADER).stat().st_ctime + TAKEOVER
    mine = next((ts or 0.0 for name, _, ts in bundles if name == bundle), 0.0)
    return [
        f"{events.calls_since(name, here)} calls were decided by bundle {name} after {bundle} was put at "
        f"{folder}: the server has not taken it up; its log and /readyz (with an admin's key) say why"
        for name, _, ts in bundles
        if name != bundle and ts is not None and ts > max(here, mine)
    ]


def _means_of_parts(values: Sequence[float] | np.ndarray) -> list[float]:
    """Return the means of at most `PARTS` equal parts of the values, in order."""
    parts = np.array_split(np.asarray(values, dtype=np.float64), min(PARTS, len(values)) or 1)
    return [float(p.mean()) for p in parts if len(p)]


def _checkpoint(bundle: str, place: Path | None) -> dict[str, int] | None:
    """Return how far the checkpoint of a bundle has read the log, or None if there is no readable one.

    `counted` and `applied` are the learner's `last_decision` and `last_reward`. `learnt` and `passed` are the
    learner's counts of the same names.

    Args:
        place: folder of the checkpoints of all bundles. None if the log has no such folder.
    """
    if place is None:
        return None
    try:
        data = json.loads((place / bundle / "learned.json").read_text(encoding="utf-8"))
        return {name: int(data[name]) for name in ("counted", "applied", "learnt", "passed")}
    except (OSError, ValueError, KeyError, TypeError):
        return None
