"""The decision: deploy a router, keep a single model, or gather more data; and what each costs and saves.

A router is compared with the best single model, on the same queries in the same orders: the one that the
train prompts show (the policy `best_single`) and, where the held-out prompts show another, that one as well;
deploying asks for a gain over both. The router is the best of k, so its intervals are those of k comparisons
(`statistics.uncertainty` has all of them).

One rule decides, from the figures that are shown (`gap`).

rho is in score units per USD, so a right answer is worth 1 / rho USD.
"""

import math
from collections import Counter
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from cabs_core.algorithms.problem.gaps import End
from cabs_core.base.catalog.roles import BEST_SINGLE, NO_ROUTERS
from cabs_core.base.errors import round_up
from cabs_core.base.statistics.uncertainty import two_way_error
from cabs_core.base.units import money
from cabs_core.report.data import PoolData
from cabs_core.report.evidence import Evidence, Played
from cabs_core.report.forecast import Labels, prompts_needed
from cabs_core.report.gap import Bounded, Gap, decide, estimate
from cabs_core.report.names import label
from cabs_core.report.scale import Scale
from cabs_core.report.tables import sure


@dataclass(frozen=True)
class Verdict:
    """The decision in one case.

    Attributes:
        rho: cost sensitivity, None for the mean over all; value_usd: 1 / rho, what a right answer is worth.
        decision: deploy, keep or unsure.
        router, model: what is compared: the best router of `compared`, and the best single model of the
            held-out queries.
        against: the model that all scores are comparisons with, where a judge compares: then they are no
            right answers, and nothing is in dollars but costs; else ''.
        trained: the single model that the train prompts show, where that is another; over_trained: utility,
            router minus it.
        utility, quality: mean utility and mean score, router minus model.
        saved: share of the model's cost that the router does not cost; None where the model is free.
        carriers: where all the money rests on so few prompts that no interval of `saved` is known: how
            many.
        at_limit: what is saved may be just `SAVES`, and then no number of prompts decides.
        queries, independent: held-out queries, and how many independent observations these are.
        prompts_needed: how many more prompts, collected for the whole table, would decide, where `decision`
            is unsure.
        score, score_low, score_high, cost: of the router; cost in USD per 1,000 requests. model_score,
            model_cost.
        gain: USD per 1,000 requests: worth of the right answers minus what they cost, router minus model;
            None without a value.
        labels: whether they earn their cost; None where that was not asked.
    """

    rho: float | None
    value_usd: float | None
    decision: str
    router: str
    compared: int
    model: str
    utility: Bounded
    quality: Bounded
    queries: int
    independent: int
    score: float
    cost: float
    model_score: float
    model_cost: float
    saved: Bounded | None = None
    prompts_needed: int | None = None
    score_low: float | None = None
    score_high: float | None = None
    gain: Bounded | None = None
    carriers: float | None = None
    at_limit: bool = False
    against: str = ""
    trained: str = ""
    over_trained: Bounded | None = None
    labels: Labels | None = None


def routers(data: PoolData) -> list[str]:
    """Real routers with a rank, best first."""
    return [p for p in data.ranked if p not in NO_ROUTERS]


def verdicts(data: PoolData, evidence: Evidence | None) -> list[Verdict]:
    """The decision over all rhos and, given the evidence, at each; none without a router or single model.

    It is about one router, the best over all rhos, except in a cost regime in which another one is better
    beyond noise.
    """
    names = routers(data)
    if not names or BEST_SINGLE not in data.ranked:
        return []
    decided = [_overall(data, evidence, names)]
    if evidence is not None:
        table = data.mart("utility_by_rho")
        table = table[table["policy"].isin(names) & table["rho"].isin(data.compared)]
        regimes = table.groupby("rho")["regime"].first().sort_index()
        for rho, regime in regimes.items():
            router = _router_of(data, names, str(regime))
            if (BEST_SINGLE, rho) in evidence.folders and (router, rho) in evidence.folders:
                decided.append(verdict_at(evidence, router, float(rho), len(names)))
    if against := data.scale.against:
        decided = [replace(v, against=against, value_usd=None, gain=None) for v in decided]
    return decided


def _router_of(data: PoolData, names: list[str], regime: str) -> str:
    """The best router over all rhos, or one that is better in this regime beyond the noise of all pairs."""
    pairs = {name: data.pair(name, names[0], regime) for name in names}
    better = {
        name: float(pair["difference"])
        for name, pair in pairs.items()
        if pair is not None and pair["difference"] > 0 and sure(pair["significant_adjusted"])
    }
    return max(better, key=lambda name: better[name], default=names[0])


def _overall(data: PoolData, evidence: Evidence | None, names: list[str]) -> Verdict:
    """The mean over all rhos, from the marts and, where they are at hand, the replays."""
    router, line, single = names[0], data.board.loc[names[0]], data.board.loc[BEST_SINGLE]
    compared, gap, model = len(names), None, "the best model of each value"
    if evidence is not None:
        a, b = evidence.played(router), evidence.played(BEST_SINGLE)
        chosen = {evidence.best_alone(float(rho))[0] for rho in b.rhos}
        model = chosen.pop() if len(chosen) == 1 else model
        if np.array_equal(a.rhos, b.rhos):
            gap = Gap(evidence, a, b, _regime_weights(data, a))
    # bounds depend on the value, so there is no verdict over all values where answers cannot be known
    unknown = evidence is not None and evidence.unknown
    if gap is None:
        utility = _mean_difference(data, router, compared)
        quality = Bounded(float(line["score"] - single["score"]))
        decision = "unsure" if unknown else decide(utility, quality, None)
        decided: dict[str, Any] = {"utility": utility, "quality": quality}
        decided |= {"decision": decision, "compared": compared}
    else:
        decided = _decided(gap, compared, unknown)
    return Verdict(
        rho=None,
        value_usd=None,
        router=router,
        model=model,
        queries=int(data.info["queries"]),
        independent=int(data.info["independent"]),
        score=float(line["score"]),
        cost=float(line["cost_per_1000_calls"]),
        model_score=float(single["score"]),
        model_cost=float(single["cost_per_1000_calls"]),
        **decided,
    )


def _decided(gap: Gap, compared: int, unknown: bool = False) -> dict[str, Any]:
    """The figures of a gap, and what the rule makes of them; unknown: it is not asked."""
    utility, quality, saved = gap.utility(compared), gap.quality(compared), gap.saved(compared)
    decision, score = "unsure" if unknown else decide(utility, quality, saved), gap.score
    return {
        "compared": compared,
        "decision": decision,
        "utility": utility,
        "quality": quality,
        "saved": saved,
        "score_low": score.low,
        "score_high": score.high,
        "carriers": gap.carriers,
        "at_limit": decision == "unsure" and gap.at_limit,
        "prompts_needed": prompts_needed(gap, compared) if decision == "unsure" else None,
    }


def _mean_difference(data: PoolData, router: str, compared: int) -> Bounded:
    """Difference of the utilities over all rhos by the marts alone, which know no skewness."""
    pair = data.pair(router, BEST_SINGLE)
    if pair is None:
        return Bounded(float(data.board.loc[router, "utility"] - data.board.loc[BEST_SINGLE, "utility"]))
    se_trials, se_queries = float(pair["se_trials"]), float(pair["se_queries"])
    error = two_way_error(se_trials, se_queries, int(pair["trials"]), int(data.info["independent"]))
    return estimate(float(pair["difference"]), replace(error, unit=1.0), compared)


def _regime_weights(data: PoolData, played: Played) -> np.ndarray:
    """Weights `[R]` of the rhos in the mean that the board has: over regimes of the mean over their rhos."""
    table = data.mart("utility_by_rho")
    regime = table[table["policy"] == played.policy].set_index("rho")["regime"]
    counts = regime.value_counts()
    return np.array([1 / counts[regime[rho]] / len(counts) for rho in played.rhos])


def verdict_at(evidence: Evidence, router: str, rho: float, compared: int) -> Verdict:
    """The verdict at a rho, against the best single models of the held-out and of the train prompts."""
    trained, best = evidence.best_alone(rho)
    first = _against(evidence, router, rho, compared, trained, trained)
    if trained == best:
        return first
    second = _against(evidence, router, rho, compared, best, trained)
    kept = first.decision == "keep" or (
        # the best of all models on these very queries: as many comparisons more
        _against(evidence, router, rho, compared * evidence.problem.K, best, trained).decision == "keep"
    )
    decision = "keep" if kept else "deploy" if first.decision == second.decision == "deploy" else "unsure"
    needed = [v.prompts_needed for v in (first, second) if v.decision == "unsure"]
    more = max((n for n in needed if n is not None), default=None) if None not in needed else None
    return replace(
        second,
        decision=decision,
        trained=trained,
        over_trained=first.utility,
        prompts_needed=more if decision == "unsure" else None,
    )


def _against(evidence: Evidence, router: str, rho: float, compared: int, model: str, trained: str) -> Verdict:
    """Against one model; with answers that cannot be known, intervals hold whatever they would be."""
    middle = _at_end(evidence, router, rho, compared, "middle", model, trained)
    if not evidence.unknown:
        return middle
    ends = [_at_end(evidence, router, rho, compared, end, model, trained) for end in ("low", "high")]
    utility, quality, saved, gain = (
        spanned(getattr(middle, name), *(getattr(v, name) for v in ends))
        for name in ("utility", "quality", "saved", "gain")
    )
    assert utility is not None and quality is not None  # only savings and gains may be unknown
    decision = decide(utility, quality, saved)
    return replace(
        middle,
        utility=utility,
        quality=quality,
        saved=saved,
        gain=gain,
        decision=decision,
        score_low=ends[0].score_low,
        score_high=ends[1].score_high,
        # where more queries would decide nothing, since what is missing would be missing there, too
        prompts_needed=middle.prompts_needed if decision == middle.decision else None,
    )


def spanned(middle: Bounded | None, low: Bounded | None, high: Bounded | None) -> Bounded | None:
    """The estimate, with the interval from the lower end of one to the upper end of the other."""
    if middle is None or low is None or high is None:
        return middle
    return Bounded(middle.value, low.low, high.high)


def gap_of(evidence: Evidence, router: str, v: Verdict, end: End = "middle") -> Gap:
    """A router minus the single model of a verdict, at its value."""
    assert v.rho is not None
    return Gap(evidence, *_two(evidence, router, v.rho, end, v.model, v.trained or v.model), np.ones(1))


def _two(
    evidence: Evidence, router: str, rho: float, end: End, model: str, trained: str
) -> tuple[Played, Played]:
    """A router and a single model at one rho."""
    a = evidence.played(router, end, model)
    if model != trained:
        return a.only(a.at(rho)), evidence.alone(model, rho, end, model)
    b = evidence.played(BEST_SINGLE, end, model)
    return a.only(a.at(rho)), b.only(b.at(rho))


def _at_end(
    evidence: Evidence, router: str, rho: float, compared: int, end: End, model: str, trained: str
) -> Verdict:
    a, b = _two(evidence, router, rho, end, model, trained)
    gap = Gap(evidence, a, b, np.ones(1))
    return Verdict(
        rho=rho,
        value_usd=1 / rho if rho > 0 else None,
        router=router,
        model=model,
        queries=gap.queries,
        independent=gap.independent,
        score=float(a.mean("score")[0]),
        cost=float(1000 * a.mean("cost")[0]),
        model_score=float(b.mean("score")[0]),
        model_cost=float(1000 * b.mean("cost")[0]),
        gain=gap.gain(rho, compared) if rho > 0 else None,
        **_decided(gap, compared),
    )


def headline(verdict: Verdict, where: str = "") -> str:
    """`Deploy X`, `Keep model Y` or `Not enough data to tell (about N more prompts would do)`.

    Args:
        where: of which of several values that number is.
    """
    if verdict.decision == "deploy":
        return f"Deploy {label(verdict.router)}"
    if verdict.decision == "keep":
        return f"Keep {'model ' if not verdict.model.startswith('the best') else ''}{verdict.model}"
    if verdict.prompts_needed is None:
        return "Not enough data to tell"
    number = f"about {round_up(verdict.prompts_needed):,} more prompts would do"
    return f"Not enough data to tell ({number}{where})"


def summary(verdicts: list[Verdict]) -> str:
    """The decisions at all values in one line; with one verdict alone, its headline."""
    cases = sorted(verdicts[1:], key=lambda v: -(v.rho or 0.0))
    if not cases:
        return headline(verdicts[0]) if verdicts else "No verdict"
    names = [_use(v) for v in cases]
    if len(set(names)) == 1:
        # of the values where nothing can be told, the one that needs the fewest prompts
        fewest = min(cases, key=lambda v: v.prompts_needed or math.inf)
        where = "" if len({v.prompts_needed for v in cases}) == 1 else f" {_span(fewest, fewest)}"
        return headline(fewest, where)
    parts = [(name, list(group)) for name, group in groupby(cases, _use)]
    if len(parts) <= 3:
        text = "; ".join(f"{name} {_span(group[0], group[-1])}" for name, group in parts)
        return text[0].upper() + text[1:]
    counts = Counter(v.decision for v in cases)
    if len(counts) == 1:
        text = _WORDS[cases[0].decision]
        depends = Scale(cases[0].against).depends
        return f"{text[0].upper()}{text[1:]} at all {len(cases)} values; which one depends on {depends}"
    listed = ", ".join(f"{text} at {counts[d]}" for d, text in _WORDS.items() if counts[d])
    return f"It depends on {Scale(cases[0].against).depends}: of {len(cases)} values, {listed}"


_WORDS = {"deploy": "deploy a router", "keep": "keep a single model", "unsure": "not enough data to tell"}


def _use(v: Verdict) -> str:
    return {"deploy": f"deploy {label(v.router)}", "keep": f"keep {v.model}"}.get(
        v.decision, "not enough data to tell"
    )


def _span(first: Verdict, last: Verdict) -> str:
    """The worths of a right answer from the first of some cases to the last (None: beyond price)."""
    low, high = first.value_usd, last.value_usd
    if first.against:
        ends = dict.fromkeys(f"{v.rho:g}" for v in (first, last))
        return f"at ρ = {' to '.join(ends)}"
    if low is None:
        return "where cost does not count"
    if high is None:
        return f"where a right answer is worth {money(low)} or more"
    return f"where a right answer is worth {money(low)}" + ("" if low == high else f" to {money(high)}")
