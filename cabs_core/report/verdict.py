"""The decision: deploy a router, keep a single model, or gather more data; and what each costs and saves.

A router is compared with the best single model, on the same queries in the same orders: the one that the
train prompts show (the policy `best_single`) and, where the held-out prompts show another, that one as well;
deploying asks for a gain over both. The router is the best of k, so its intervals are those of k comparisons
(`statistics.uncertainty` has all of them).

One rule decides, from the figures that are shown. Deploy: the utility is higher, or the quality is at most
`MATTERS` lower and at least `SAVES` of the model's cost is saved, whole intervals counted. Keep: neither is
possible within them.

rho is in score units per USD, so a right answer is worth 1 / rho USD.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from cabs_core.algorithms.problem.gaps import End
from cabs_core.base.catalog import BEST_SINGLE, NO_ROUTERS
from cabs_core.base.errors import round_up
from cabs_core.base.statistics import Error, mean_error, too_heavy, two_way_error
from cabs_core.base.units import money
from cabs_core.report.data import PoolData
from cabs_core.report.evidence import Evidence, Played
from cabs_core.report.names import label
from cabs_core.report.scale import Scale
from cabs_core.report.tables import missing

#: A difference of utility, or of quality, below this does not matter: one right answer in a hundred.
MATTERS = 0.01
#: Nor does a smaller share of the bill.
SAVES = 0.05
#: share of cases in which the prompts that are asked for bring an answer; the same where both are as good,
#: higher because the best of several that are as good looks better than it is; and the draws that tell
_ANSWERED, _ANSWERED_IF_EQUAL, _DRAWS = 0.92, 0.95, 2000
#: prompts beyond which nobody is told to collect
_MOST_PROMPTS = 10_000_000
_NOT_KNOWN = (math.nan, math.nan)


@dataclass(frozen=True)
class Bounded:
    """A figure with its two-sided 95 % interval; None: the error is not known."""

    value: float
    low: float | None = None
    high: float | None = None

    def above(self, bound: float) -> bool:
        """Whether the whole interval is."""
        return self.low is not None and self.low > bound

    def below(self, bound: float) -> bool:
        """Whether the whole interval is."""
        return self.high is not None and self.high < bound

    @property
    def ends(self) -> tuple[float, float]:
        """(low, high), NaN where they are not known."""
        return tuple(math.nan if x is None else x for x in (self.low, self.high))  # type: ignore[return-value]


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
        carriers: where all the money rests on so few prompts that no interval of `saved` is known: how many
            (`statistics.too_heavy`).
        at_limit: what is saved may be just `SAVES`, and then no number of prompts decides.
        queries, independent: held-out queries, and how many independent observations these are.
        prompts_needed: how many more prompts, collected for the whole table, would decide, where `decision`
            is unsure.
        score, score_low, score_high, cost: of the router; cost in USD per 1,000 requests. model_score,
            model_cost.
        gain: USD per 1,000 requests: worth of the right answers minus what they cost, router minus model;
            None without a value.
    """

    rho: float | None
    value_usd: float | None
    decision: str
    router: str
    compared: int
    model: str
    utility: Bounded
    quality: Bounded
    saved: Bounded | None
    queries: int
    independent: int
    prompts_needed: int | None
    score: float
    score_low: float | None
    score_high: float | None
    cost: float
    model_score: float
    model_cost: float
    gain: Bounded | None = None
    carriers: float | None = None
    at_limit: bool = False
    against: str = ""
    trained: str = ""
    over_trained: Bounded | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def estimate(value: float, error: Error, compared: int) -> Bounded:
    """A figure with the interval of the best of `compared`."""
    low, high = error.interval(value, compared)
    return Bounded(value) if math.isnan(low) else Bounded(value, low, high)


def rule(utility: Any, quality: Any, saved: Any, free: bool = False) -> tuple[Any, Any]:
    """(deploy, keep) by this module's rule, of intervals (low, high): numbers or arrays, NaN not known.

    Args:
        free: the model costs nothing, so that nothing can be saved.
    """
    deploy = (utility[0] > 0.0) | ((saved[0] > SAVES) & (quality[0] > -MATTERS))
    saves_nothing = free | (saved[1] < SAVES) | (quality[1] < -MATTERS)
    return deploy, np.logical_not(deploy) & (utility[1] < MATTERS) & saves_nothing


def decide(utility: Bounded, quality: Bounded, saved: Bounded | None) -> str:
    """deploy, keep or unsure."""
    ends = _NOT_KNOWN if saved is None else saved.ends
    deploy, keep = rule(utility.ends, quality.ends, ends, saved is None)
    return "deploy" if deploy else "keep" if keep else "unsure"


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
        if pair is not None
        and pair["difference"] > 0
        and not missing(sure := pair["significant_adjusted"])
        and sure
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
    utility, quality = (
        _mean_difference(data, router, compared),
        Bounded(float(line["score"] - single["score"])),
    )
    saved, score, carriers, more = None, Bounded(float(line["score"])), None, None
    if gap is not None:
        utility, quality, saved, carriers = (
            gap.utility(compared),
            gap.quality(compared),
            gap.saved(compared),
            gap.carriers,
        )
        score = gap.score
    # bounds depend on the value, so there is no verdict over all values where answers cannot be known
    decision = "unsure" if evidence is not None and evidence.unknown else decide(utility, quality, saved)
    if gap is not None and decision == "unsure":
        more = gap.more(compared)
    return Verdict(
        rho=None,
        value_usd=None,
        decision=decision,
        router=router,
        compared=compared,
        model=model,
        utility=utility,
        quality=quality,
        saved=saved,
        queries=int(data.info["queries"]),
        independent=int(data.info["independent"]),
        prompts_needed=more,
        score=float(line["score"]),
        score_low=score.low,
        score_high=score.high,
        cost=float(line["cost_per_1000_calls"]),
        model_score=float(single["score"]),
        model_cost=float(single["cost_per_1000_calls"]),
        carriers=carriers,
        at_limit=decision == "unsure" and gap is not None and gap.at_limit,
    )


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


class Gap:
    """A router minus a single model on the same queries in the same orders, averaged over rhos, with errors.

    Args:
        own, other: both at the same rhos. weights: `[R]` of these.
    """

    def __init__(self, evidence: Evidence, own: Played, other: Played, weights: np.ndarray):
        self._clusters, self._asked = evidence.problem.clusters, evidence.asked
        self._plays = own.plays[int(weights.argmax())]
        self._real = min(
            evidence.real_share(p, float(rho)) for p in (own.policy, other.policy) for rho in own.rhos
        )
        self.own, self.other = (
            {name: (weights @ getattr(p, name), weights @ p.trials[name]) for name in own.trials}
            for p in (own, other)
        )
        self.queries = int((self._plays > 0).sum())
        members = np.arange(len(self._plays)) if self._clusters is None else self._clusters
        self.independent = len(np.unique(members[self._plays > 0]))
        self.carriers = min(
            (
                carriers
                for means in (self.own, self.other)
                if (carriers := too_heavy(self._plays * means["cost"][0], self._clusters))
            ),
            default=None,
        )
        self._dearest = evidence.dearest

    def _error(self, values: np.ndarray, trials: np.ndarray, unit: float) -> Error:
        error = mean_error(values, self._plays, self._clusters, trials=trials, unit=unit)
        return replace(error, clusters=error.clusters * self._real)

    def _minus(self, **factors: float) -> tuple[np.ndarray, np.ndarray]:
        """(of each query, of each trial): a weighted sum of the differences of utility, score and cost."""
        queries, trials = (
            sum(f * (self.own[name][i] - self.other[name][i]) for name, f in factors.items()) for i in (0, 1)
        )
        return np.asarray(queries), np.asarray(trials)

    def _estimate(self, parts: tuple[np.ndarray, np.ndarray], compared: int, unit: float) -> Bounded:
        return estimate(float(parts[1].mean()), self._error(*parts, unit), compared)

    @property
    def score(self) -> Bounded:
        """Mean score of the router."""
        mean = self._estimate(self.own["score"], 1, 1.0)
        return (
            mean
            if mean.low is None or mean.high is None
            else Bounded(mean.value, max(mean.low, 0.0), min(mean.high, 1.0))
        )

    def utility(self, compared: int) -> Bounded:
        """Difference of the mean utilities."""
        return self._estimate(self._minus(utility=1.0), compared, 1.0)

    def quality(self, compared: int) -> Bounded:
        """Difference of the mean scores."""
        return self._estimate(self._minus(score=1.0), compared, 1.0)

    def gain(self, rho: float, compared: int) -> Bounded:
        """USD per 1,000 requests: worth of the right answers minus what they cost."""
        unit = 1000 / rho + 1000 * self._dearest
        gain = self._estimate(self._minus(score=1000 / rho, cost=-1000.0), compared, unit)
        return gain if self.carriers is None else Bounded(gain.value)

    def _left(self) -> tuple[float, tuple[np.ndarray, np.ndarray]] | None:
        """(share of the model's cost that the router costs, its parts by queries and trials); None: free."""
        (cost, paid), (model_cost, model_paid) = self.own["cost"], self.other["cost"]
        full = float(model_paid.mean())
        if not full > 0:
            return None
        left = float(paid.mean()) / full
        return left, ((cost - left * model_cost) / full, (paid - left * model_paid) / full)

    @property
    def _dear(self) -> float:
        """Mean cost of the dearest model over the single model's: what unseen traffic may cost the router."""
        return self._dearest / float(self.other["cost"][1].mean())

    def saved(self, compared: int) -> Bounded | None:
        """Share of the model's cost that is saved; None where that is free."""
        share_and_parts = self._left()
        if share_and_parts is None:
            return None
        left, parts = share_and_parts
        if self.carriers is not None:
            return Bounded(1 - left)
        error = self._error(*parts, 0.0)
        low, high = error.interval(left, compared)
        high = max(high, replace(error, unit=self._dear).interval(left, compared)[1])
        return Bounded(1 - left) if math.isnan(low) else Bounded(1 - left, 1 - high, 1 - low)

    @property
    def at_limit(self) -> bool:
        """Whether what is saved may be just `SAVES`, the least that counts."""
        saved = self.saved(1)
        return saved is not None and saved.ends[0] <= SAVES <= saved.ends[1]

    @property
    def _close_to_limit(self) -> bool:
        """Whether what is saved is within one standard error of it."""
        left = self._left()
        if left is None or self.carriers is not None:
            return False
        return bool(abs(1 - left[0] - SAVES) <= self._error(*left[1], 0.0).se)

    def more(self, compared: int) -> int | None:
        """How many more prompts, for the whole table, until the rule decides in eight of ten cases.

        What is true is drawn about what was found, as its error says, and what will be found about that. Both
        may be as good, and then it has to decide, too. A difference near the limits of the rule takes ever
        more. None: not known, close to the limit of what is saved, or more than anybody collects.
        """
        if self._close_to_limit:
            return None
        left = self._left()
        figures = [self._minus(utility=1.0), self._minus(score=1.0)]
        if left is not None and self.carriers is None:
            figures.append((-left[1][0], -left[1][1]))
        units = (1.0, 1.0, self._dear if len(figures) > 2 else 0.0)
        errors = [self._error(*parts, unit) for parts, unit in zip(figures, units, strict=False)]
        if any(math.isnan(error.se) for error in errors):
            return None
        centre = np.array(
            [float(parts[1].mean()) for parts in figures[:2]]
            + ([1 - left[0]] if left and len(figures) > 2 else [])
        )
        spread = np.array([max(error.se, error.unseen() / 2) for error in errors])
        with np.errstate(invalid="ignore"):
            alike = np.nan_to_num(np.corrcoef(np.array([queries for queries, _ in figures])))
        np.fill_diagonal(alike, 1.0)
        root = np.linalg.cholesky(alike + 1e-9 * np.eye(len(alike))).T
        rng = np.random.default_rng(0)
        truth = centre + spread * (rng.standard_normal((_DRAWS, len(centre))) @ root)
        noise = spread * (rng.standard_normal((_DRAWS, len(centre))) @ root)
        done, equal = self.independent, centre.copy()
        equal[:2] = 0.0
        for times in np.geomspace(1.1, max(_MOST_PROMPTS / max(self._asked, 1), 1.2), 120):
            reach = [error.after(float(times)).interval(0.0, compared) for error in errors]
            decided = []
            for true in (truth, equal):
                later = true + noise / math.sqrt(times)
                utility, quality, *saved = [
                    (later[:, i] + low, later[:, i] + high) for i, (low, high) in enumerate(reach)
                ]
                deploy, keep = rule(utility, quality, saved[0] if saved else _NOT_KNOWN, left is None)
                decided.append(float((deploy | keep).mean()))
            if decided[0] >= _ANSWERED and decided[1] >= _ANSWERED_IF_EQUAL:
                share = done / max(self.queries, 1)
                return max(math.ceil(float(times - 1) * self._asked * share), 1)
        return None


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
        _spanned(getattr(middle, name), *(getattr(v, name) for v in ends))
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


def _spanned(middle: Bounded | None, low: Bounded | None, high: Bounded | None) -> Bounded | None:
    """The estimate, with the interval from the lower end of one to the upper end of the other."""
    if middle is None or low is None or high is None:
        return middle
    return Bounded(middle.value, low.low, high.high)


def _at_end(
    evidence: Evidence, router: str, rho: float, compared: int, end: End, model: str, trained: str
) -> Verdict:
    a = evidence.played(router, end, model)
    b = (
        evidence.played(BEST_SINGLE, end, model)
        if model == trained
        else evidence.alone(model, rho, end, model)
    )
    i, j = a.at(rho), b.at(rho)
    gap = Gap(evidence, a.only(i), b.only(j), np.ones(1))
    utility, quality, saved = gap.utility(compared), gap.quality(compared), gap.saved(compared)
    decision, score = decide(utility, quality, saved), gap.score
    return Verdict(
        rho=rho,
        value_usd=1 / rho if rho > 0 else None,
        decision=decision,
        router=router,
        compared=compared,
        model=model,
        utility=utility,
        quality=quality,
        saved=saved,
        queries=gap.queries,
        independent=gap.independent,
        prompts_needed=gap.more(compared) if decision == "unsure" else None,
        score=float(a.mean("score")[i]),
        score_low=score.low,
        score_high=score.high,
        cost=float(1000 * a.mean("cost")[i]),
        model_score=float(b.mean("score")[j]),
        model_cost=float(1000 * b.mean("cost")[j]),
        gain=gap.gain(rho, compared) if rho > 0 else None,
        carriers=gap.carriers,
        at_limit=decision == "unsure" and gap.at_limit,
    )


def headline(verdict: Verdict) -> str:
    """`Deploy X`, `Keep model Y` or `Not enough data to tell (about N more prompts would do)`."""
    if verdict.decision == "deploy":
        return f"Deploy {label(verdict.router)}"
    if verdict.decision == "keep":
        return f"Keep {'model ' if not verdict.model.startswith('the best') else ''}{verdict.model}"
    if verdict.prompts_needed is None:
        return "Not enough data to tell"
    return f"Not enough data to tell (about {round_up(verdict.prompts_needed):,} more prompts would do)"


def summary(verdicts: list[Verdict]) -> str:
    """The decisions at all values in one line; with one verdict alone, its headline."""
    cases = sorted(verdicts[1:], key=lambda v: -(v.rho or 0.0))
    if not cases:
        return headline(verdicts[0]) if verdicts else "No verdict"
    names = [_use(v) for v in cases]
    if len(set(names)) == 1:
        # of the values where nothing can be told, the one that needs the fewest prompts
        return headline(min(cases, key=lambda v: v.prompts_needed or math.inf))
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
