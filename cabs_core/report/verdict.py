"""The decision: deploy a router, keep a single model, or gather more data; and what each costs and saves.

A router is compared with the best single model as the train split shows it (the policy `best_single`), on the same
queries in the same orders. The router is the best of k, so its intervals are widened for k comparisons (Bonferroni).

One rule decides, from the figures that are shown. Deploy: the utility is higher, or the quality is at most `MATTERS` lower
and at least `SAVES` of the model's cost is saved, whole intervals counted. Keep: neither is possible within them.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from statistics import NormalDist
from typing import Any

import numpy as np
from scipy.special import stdtrit

from cabs_core.catalog import BEST_SINGLE, NO_ROUTERS
from cabs_core.metrics import TwoWayError, two_way_error
from cabs_core.problem.gaps import End
from cabs_core.report.data import PoolData
from cabs_core.report.evidence import Evidence, Played, error_of
from cabs_core.report.names import label

#: A difference of utility, or of quality, below this does not matter: one right answer in a hundred.
MATTERS = 0.01
#: Nor does a smaller share of the bill.
SAVES = 0.05
_POWER = 0.8


@dataclass(frozen=True)
class Estimate:
    """A figure with its two-sided 95 % interval, widened for the number of routers; None: the error is not known."""

    value: float
    low: float | None = None
    high: float | None = None

    def above(self, bound: float) -> bool:
        """Whether the whole interval is."""
        return self.low is not None and self.low > bound

    def below(self, bound: float) -> bool:
        """Whether the whole interval is."""
        return self.high is not None and self.high < bound


@dataclass(frozen=True)
class Verdict:
    """The decision in one case.

    Attributes:
        rho: cost sensitivity, None for the mean over all; value_usd: 1 / rho, what a right answer is worth.
        decision: deploy, keep or unsure.
        router, model: what is compared: the best router of `compared`, and the best single model.
        utility, quality: mean utility and mean score, router minus model.
        saved: share of the model's cost that the router does not cost; None where the model is free.
        queries_needed: how many queries would decide the case, where `decision` is unsure.
        score, score_low, score_high, cost: of the router; cost in USD per 1,000 requests. model_score, model_cost.
        gain: USD per 1,000 requests: worth of the right answers minus what they cost, router minus model; None without
            a value.
    """

    rho: float | None
    value_usd: float | None
    decision: str
    router: str
    compared: int
    model: str
    utility: Estimate
    quality: Estimate
    saved: Estimate | None
    queries: int
    queries_needed: int | None
    score: float
    score_low: float | None
    score_high: float | None
    cost: float
    model_score: float
    model_cost: float
    gain: Estimate | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def margin(error: TwoWayError, compared: int) -> float:
    """Half a two-sided 95 % interval, widened for the best of `compared` routers."""
    return (
        float(stdtrit(min(error.df, 1e9), 1 - 0.025 / max(compared, 1)) * error.se)
        if error.se > 0
        else error.se
    )


def estimate(value: float, error: TwoWayError, compared: int, unseen: float = 0.0) -> Estimate:
    """A figure with its interval.

    Args:
        unseen: half of the interval at least: 3 / n where nothing differs on n queries, which leaves room for a
            difference in 3 of n (95 %).
    """
    reach = max(margin(error, compared), unseen)
    return Estimate(value) if math.isnan(reach) else Estimate(value, value - reach, value + reach)


def decide(utility: Estimate, quality: Estimate, saved: Estimate | None) -> str:
    """deploy, keep or unsure, by the rule of this module."""
    cheaper = saved is not None and saved.above(SAVES)
    if utility.above(0.0) or (cheaper and quality.above(-MATTERS)):
        return "deploy"
    may_save = saved is not None and not saved.below(SAVES) and not quality.below(-MATTERS)
    return "keep" if utility.below(MATTERS) and not may_save else "unsure"


def queries_needed(difference: float, error: TwoWayError, queries: int, compared: int) -> int | None:
    """Number of queries at which the difference (at least `MATTERS`) would be significant with probability 0.8.

    More than `queries`; None where the error is unknown.
    """
    if math.isnan(error.se):
        return None
    reach = (NormalDist().inv_cdf(1 - 0.025 / compared) + NormalDist().inv_cdf(_POWER)) * error.se
    return max(math.ceil(queries * (reach / max(abs(difference), MATTERS)) ** 2), queries + 1)


def routers(data: PoolData) -> list[str]:
    """Real routers with a rank, best first."""
    return [p for p in data.ranked if p not in NO_ROUTERS]


def verdicts(data: PoolData, evidence: Evidence | None) -> list[Verdict]:
    """The decision over all rhos and, given the evidence, at each; none where no router or single model was replayed."""
    names = routers(data)
    if not names or BEST_SINGLE not in data.ranked:
        return []
    found = [_overall(data, evidence, names)]
    if evidence is None:
        return found
    table = data.mart("utility_by_rho")
    table = table[table["policy"].isin(names) & table["rho"].isin(data.compared)]
    for rho, rows in table.groupby("rho"):
        best = rows.set_index("policy").loc[names, "utility"].idxmax()
        if (BEST_SINGLE, rho) in evidence.folders and (best, rho) in evidence.folders:
            found.append(verdict_at(evidence, str(best), float(rho), len(names)))
    return found


def _overall(data: PoolData, evidence: Evidence | None, names: list[str]) -> Verdict:
    """The mean over all rhos, from the marts and, where they are at hand, the replays."""
    router, line, single = names[0], data.board.loc[names[0]], data.board.loc[BEST_SINGLE]
    pair = data.pair(router, BEST_SINGLE)
    difference = float(line["utility"] - single["utility"]) if pair is None else float(pair["difference"])
    queries, compared = int(data.info["queries"]), len(names)
    known = {} if pair is None else {key: float(pair[key]) for key in ("se_trials", "se_queries")}
    error = two_way_error(
        known.get("se_trials", math.nan),
        known.get("se_queries", math.nan),
        0 if pair is None else int(pair["trials"]),
        queries,
    )
    utility = estimate(difference, error, compared, 3 / max(queries, 1) if error.se == 0 else 0.0)
    quality, saved = Estimate(float(line["score"] - single["score"])), None
    model, spread = "the best model of each value", None
    if evidence is not None:
        a, b = evidence.played(router), evidence.played(BEST_SINGLE)
        names_of = {model_of(evidence, float(rho)) for rho in b.rhos}
        model = names_of.pop() if len(names_of) == 1 else model
        weights = _regime_weights(data, a)
        own = _Means(a, weights)
        spread = error_of(own.plays, *own.values["score"]).margin
        if np.array_equal(a.rhos, b.rhos):
            other = _Means(b, weights)
            quality, saved = _quality_and_saved(own, other, compared)
            if evidence.problem.observed is not None:
                difference, error = own.minus(other, utility=1.0)
                utility = estimate(difference, error, compared)
    # bounds depend on the value, so there is no verdict over all values where answers cannot be known
    decision = "unsure" if evidence is not None and evidence.unknown else decide(utility, quality, saved)
    return Verdict(
        rho=None, value_usd=None, decision=decision, router=router, compared=compared, model=model,
        utility=utility, quality=quality, saved=saved, queries=queries,
        queries_needed=queries_needed(difference, error, queries, compared) if decision == "unsure" else None,
        score=float(line["score"]), score_low=None if spread is None else float(line["score"]) - spread,
        score_high=None if spread is None else float(line["score"]) + spread,
        cost=float(line["cost_per_1000_calls"]), model_score=float(single["score"]),
        model_cost=float(single["cost_per_1000_calls"]),
    )  # fmt: skip


def _regime_weights(data: PoolData, own: Played) -> np.ndarray:
    """Weights `[R]` of the rhos in the mean that the board has: over regimes of the mean over their rhos."""
    table = data.mart("utility_by_rho")
    regime = table[table["policy"] == own.policy].set_index("rho")["regime"]
    counts = regime.value_counts()
    return np.array([1 / counts[regime[rho]] / len(counts) for rho in own.rhos])


class _Means:
    """A policy, averaged over rhos: plays `[n]`, and {utility, score, cost: (of each query `[n]`, of each trial)}."""

    def __init__(self, policy: Played, weights: np.ndarray):
        self.plays = policy.plays[int(weights.argmax())]
        self.values = {
            name: (weights @ getattr(policy, name), weights @ policy.trials[name]) for name in policy.trials
        }

    @property
    def queries(self) -> int:
        """How many were played."""
        return int((self.plays > 0).sum())

    def minus(self, other: _Means, **factors: float) -> tuple[float, TwoWayError]:
        """A weighted sum of the differences of utility, score and cost to another policy, and its error."""
        queries, trials = (
            sum(f * (self.values[name][i] - other.values[name][i]) for name, f in factors.items())
            for i in (0, 1)
        )
        return float(np.mean(trials)), error_of(self.plays, np.asarray(queries), np.asarray(trials))

    def unseen(self, other: _Means) -> float:
        """See `estimate`: for policies that score alike on every query."""
        alike = np.allclose(self.values["score"][0], other.values["score"][0])
        return 3 / max(self.queries, 1) if alike else 0.0


def _quality_and_saved(own: _Means, other: _Means, compared: int) -> tuple[Estimate, Estimate | None]:
    """Difference of the mean scores, and share of the model's cost that is saved (linearised in its error)."""
    quality = estimate(*own.minus(other, score=1.0), compared, own.unseen(other))
    (cost, paid), (model_cost, model_paid) = own.values["cost"], other.values["cost"]
    full = float(model_paid.mean())
    if not full > 0:
        return quality, None
    left = float(paid.mean()) / full
    error = error_of(own.plays, (cost - left * model_cost) / full, (paid - left * model_paid) / full)
    return quality, estimate(1 - left, error, compared)


def model_of(evidence: Evidence, rho: float) -> str:
    """The model that `best_single` plays at a rho (the most played, where models come and go)."""
    actions = evidence.trace(BEST_SINGLE, rho).actions
    return evidence.problem.arms[int(np.bincount(actions.ravel()).argmax())]


def verdict_at(evidence: Evidence, router: str, rho: float, compared: int) -> Verdict:
    """The verdict at a rho; with answers that cannot be known, its intervals hold whatever they would be."""
    middle = _at_end(evidence, router, rho, compared, "middle")
    if not evidence.unknown:
        return middle
    ends = [_at_end(evidence, router, rho, compared, end) for end in ("low", "high")]
    utility, quality, saved, gain = (
        _spanned(getattr(middle, name), *(getattr(v, name) for v in ends))
        for name in ("utility", "quality", "saved", "gain")
    )
    assert utility is not None and quality is not None  # only savings and gains may be unknown
    decision = decide(utility, quality, saved)
    return replace(
        middle, utility=utility, quality=quality, saved=saved, gain=gain, decision=decision,
        score_low=ends[0].score_low, score_high=ends[1].score_high,
        # where more queries would decide nothing, since what is missing would be missing there, too
        queries_needed=middle.queries_needed if decision == middle.decision else None,
    )  # fmt: skip


def _spanned(middle: Estimate | None, low: Estimate | None, high: Estimate | None) -> Estimate | None:
    """The estimate, with the interval that reaches from the lower end of one to the upper end of the other."""
    if middle is None or low is None or high is None:
        return middle
    return Estimate(middle.value, low.low, high.high)


def _at_end(evidence: Evidence, router: str, rho: float, compared: int, end: End) -> Verdict:
    model = model_of(evidence, rho)
    a, b = evidence.played(router, end, model), evidence.played(BEST_SINGLE, end, model)
    own, other = (_Means(p, (p.rhos == rho).astype(float)) for p in (a, b))
    i, j, queries = a.at(rho), b.at(rho), own.queries
    difference, error = own.minus(other, utility=1.0)
    utility = estimate(difference, error, compared, own.unseen(other))
    quality, saved = _quality_and_saved(own, other, compared)
    decision = decide(utility, quality, saved)
    score, spread = float(a.mean("score")[i]), error_of(own.plays, *own.values["score"]).margin
    return Verdict(
        rho=rho, value_usd=1 / rho if rho > 0 else None, decision=decision, router=router, compared=compared,
        model=model, utility=utility, quality=quality, saved=saved, queries=queries,
        queries_needed=queries_needed(difference, error, queries, compared) if decision == "unsure" else None,
        score=score, score_low=None if math.isnan(spread) else max(score - spread, 0.0),
        score_high=None if math.isnan(spread) else min(score + spread, 1.0), cost=float(1000 * a.mean("cost")[i]),
        model_score=float(b.mean("score")[j]), model_cost=float(1000 * b.mean("cost")[j]),
        gain=estimate(*own.minus(other, score=1000 / rho, cost=-1000.0), compared) if rho > 0 else None,
    )  # fmt: skip


def headline(verdict: Verdict) -> str:
    """`Deploy X`, `Keep model Y` or `Not enough data to tell (about N held-out queries would do)`."""
    if verdict.decision == "deploy":
        return f"Deploy {label(verdict.router)}"
    if verdict.decision == "keep":
        return f"Keep {'model ' if not verdict.model.startswith('the best') else ''}{verdict.model}"
    if verdict.queries_needed is None:
        return "Not enough data to tell"
    return f"Not enough data to tell (about {round_up(verdict.queries_needed):,} held-out queries would do)"


def summary(found: list[Verdict]) -> str:
    """The decisions at all values in one line; with one verdict alone, its headline."""
    cases = sorted(found[1:], key=lambda v: -(v.rho or 0.0))
    if not cases:
        return headline(found[0]) if found else "No verdict"
    names = [_use(v) for v in cases]
    if len(set(names)) == 1:
        # of the values where nothing can be told, the one that needs the fewest queries
        return headline(min(cases, key=lambda v: v.queries_needed or math.inf))
    parts = [(name, [v.value_usd for v in own]) for name, own in groupby(cases, _use)]
    if len(parts) <= 3:
        text = "; ".join(f"{name} {_span(values[0], values[-1])}" for name, values in parts)
        return text[0].upper() + text[1:]
    counts = Counter(v.decision for v in cases)
    if len(counts) == 1:
        text = _WORDS[cases[0].decision]
        return f"{text[0].upper()}{text[1:]} at all {len(cases)} values; which one depends on what a right answer is worth"
    listed = ", ".join(f"{text} at {counts[d]}" for d, text in _WORDS.items() if counts[d])
    return f"It depends on what a right answer is worth: of {len(cases)} values, {listed}"


_WORDS = {"deploy": "deploy a router", "keep": "keep a single model", "unsure": "not enough data to tell"}


def _use(v: Verdict) -> str:
    return {"deploy": f"deploy {label(v.router)}", "keep": f"keep {v.model}"}.get(
        v.decision, "not enough data to tell"
    )


def _span(low: float | None, high: float | None) -> str:
    """Where a right answer is worth from low to high (None: beyond price)."""
    if low is None:
        return "where cost does not count"
    if high is None:
        return f"where a right answer is worth ${low:.3g} or more"
    return f"where a right answer is worth ${low:.3g}" + ("" if low == high else f" to ${high:.3g}")


def round_up(value: int) -> int:
    """Two digits, upwards: an estimate should not look exact."""
    step: int = 10 ** max(len(str(value)) - 2, 0)
    return -(-value // step) * step
