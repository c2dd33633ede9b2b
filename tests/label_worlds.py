"""Worlds of known truth for two figures of a report: when a table is earned back, what more prompts decide.

Outcomes are drawn on arrays and judged by the product's rules: the router that is best on the held-out
prompts against one model. `next_prompts` draws what routers gain from five priors, has a table of 300 to
3,000 prompts judged, adds 200 prompts, and judges again, whatever router is best then: with another random
split, and with held-out prompts that stay. `python -m benchmarks.labels` prints the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np

from cabs_core.base.utility import clipped_utility
from cabs_core.report.evidence import Played
from cabs_core.report.forecast import NEXT, outlook
from cabs_core.report.gap import Gap, decide
from cabs_core.report.labels import TableCost, earned_back

RHO, TABLE_USD = 100.0, 10.0
SIZES = (50, 100, 200, 500, 2000)
Rng = np.random.Generator


@dataclass(frozen=True)
class Drawn:
    """Scores and costs `[routers, n]` of routers, `[n]` of a model; clusters `[n]` or None."""

    scores: np.ndarray
    costs: np.ndarray
    model_scores: np.ndarray
    model_costs: np.ndarray
    clusters: np.ndarray | None = None

    def gain(self) -> np.ndarray:
        """`[routers]` USD a request: worth of right answers minus what they cost, router minus model."""
        worth = (self.scores - self.model_scores) / RHO - (self.costs - self.model_costs)
        gains: np.ndarray = worth.mean(axis=1)
        return gains

    def rows(self, rows: np.ndarray) -> Drawn:
        """Some of the prompts."""
        clusters = None if self.clusters is None else self.clusters[rows]
        arrays = (self.scores[:, rows], self.costs[:, rows], self.model_scores[rows], self.model_costs[rows])
        return Drawn(*arrays, clusters)


@dataclass(frozen=True)
class World:
    """Routers that differ from a model.

    Attributes:
        better: `[routers]` of the score; saves: `[routers]` share of the cost; sigma: of lognormal costs.
        turns: most turns of a conversation; graded: scores between 0 and 1.
    """

    better: np.ndarray
    saves: np.ndarray
    sigma: float = 0.5
    turns: int = 1
    graded: bool = False

    def draw(self, rng: Rng, n: int) -> Drawn:
        """n independent prompts, or conversations."""
        cluster = np.arange(n).repeat(rng.integers(1, self.turns + 1, n))
        k = len(self.better)
        chance = rng.beta(3, 1.5, n)[cluster]
        usual = 1e-3 * rng.lognormal(-(self.sigma**2) / 2, self.sigma, (k + 1, n))[:, cluster]
        same = rng.random((k, n))[:, cluster] < 0.6  # the router asks the model itself
        alternative = np.clip(chance + self.better[:, None] / 0.4, 0, 1)
        both = np.vstack([chance, alternative])
        scores = both if self.graded else (rng.random(both.shape) < both).astype(float)
        routed = np.where(same, scores[0], scores[1:])
        costs = np.where(same, usual[0], (1 - self.saves[:, None] / 0.4) * usual[1:])
        return Drawn(routed, costs, scores[0], usual[0], cluster if self.turns > 1 else None)


def _routers(better: Sequence[float], **changed: Any) -> World:
    return World(np.array(better), np.full(len(better), 0.2), **changed)


WORLDS = {
    "one router, gains .03": _routers([0.03]),
    "one router, costs of sigma 1.5": _routers([0.03], sigma=1.5),
    "one router, graded scores": _routers([0.03], graded=True),
    "one router, conversations": _routers([0.03], turns=17),
    "one router, loses .03": _routers([-0.03]),
    "the best of six, gain .02": _routers([0.02] * 6),
    "the best of six, gain 0 to .05": _routers([0.0, 0.01, 0.02, 0.03, 0.04, 0.05]),
}


def gap_of(drawn: Drawn, router: int, asked: int) -> Gap:
    """One of the routers against the model, of a table of so many prompts."""
    evidence: Any = SimpleNamespace(
        problem=SimpleNamespace(
            clusters=drawn.clusters, asked=asked, dearest_calls=drawn.costs.max(), priced=asked
        ),
        real_share=lambda name, rho: 1.0,
        dearest=float(drawn.costs.mean(axis=1).max()),
    )

    def played(name: str, score: np.ndarray, cost: np.ndarray) -> Played:
        values = {
            "utility": clipped_utility(score, cost, RHO)[None],
            "score": score[None],
            "cost": cost[None],
        }
        trials = {key: value.mean(axis=1, keepdims=True) for key, value in values.items()}
        return Played(name, np.array([RHO]), np.ones((1, len(score))), **values, trials=trials)

    model = played("model", drawn.model_scores, drawn.model_costs)
    return Gap(evidence, played("router", drawn.scores[router], drawn.costs[router]), model, np.ones(1))


def _best(drawn: Drawn) -> int:
    return int(clipped_utility(drawn.scores, drawn.costs, RHO).mean(axis=1).argmax())


def earned(tables: int, sizes: Sequence[int] = SIZES, seed: int = 0) -> list[dict[str, Any]]:
    """Coverage of the interval of requests until the table is earned back, and how often it is printed."""
    rows = []
    for name, world in WORLDS.items():
        truths = np.mean(
            [world.draw(np.random.default_rng([1, i]), 50_000).gain() for i in range(20)], axis=0
        )
        for n in sizes:
            rng, inside, bounded = np.random.default_rng([seed, n]), [], 0
            for _ in range(tables):
                drawn = world.draw(rng, n)
                best, k = _best(drawn), len(world.better)
                gap = gap_of(drawn, best, 5 * n)
                verdict: Any = SimpleNamespace(gain=gap.gain(RHO, k), against="", carriers=gap.carriers)
                labels = earned_back(verdict, TableCost(TABLE_USD, None, None, True))
                if labels.refused:
                    continue
                low, high = labels.requests_until_earned_back_low, labels.requests_until_earned_back_high
                true = TABLE_USD / truths[best] if truths[best] > 0 else np.inf
                inside.append((np.inf if low is None else low) <= true <= (np.inf if high is None else high))
                bounded += high is not None
            share = float(np.mean(inside)) if inside else float("nan")
            row = {"world": name, "n": n, "covered": share, "printed": len(inside) / tables}
            rows.append(row | {"with an end": bounded / tables})
            print(
                ", ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in rows[-1].items())
            )
    return rows


#: what routers gain: {name: draw of `[routers]`}
PRIORS: dict[str, Callable[[Rng, int], np.ndarray]] = {
    "0 ± .05": lambda rng, k: rng.normal(0, 0.05, k),
    "0 ± .015": lambda rng, k: rng.normal(0, 0.015, k),
    ".02 ± .03": lambda rng, k: rng.normal(0.02, 0.03, k),
    "half of them nothing": lambda rng, k: np.where(rng.random(k) < 0.5, 0, rng.normal(0.02, 0.04, k)),
    "all about the same": lambda rng, k: rng.normal(0, 0.04) + rng.normal(0, 0.01, k),
}


def next_prompts(tables: int, seed: int = 0) -> list[dict[str, Any]]:
    """One row a table that did not decide: what was said of 200 more prompts, and what they did."""
    rows: list[dict[str, Any]] = []
    for place, (name, prior) in enumerate(PRIORS.items()):
        for n in (300, 1000, 3000):
            for k in (1, 6):
                rng = np.random.default_rng([seed, place, n, k])
                for _ in range(tables):
                    whole = World(prior(rng, k), rng.uniform(-0.1, 0.3, k)).draw(rng, n + NEXT)
                    where = {"prior": name, "n": n, "routers": k}
                    rows += [where | row for drawn in (True, False) if (row := _added(whole, n, drawn, rng))]
    return rows


def _added(whole: Drawn, n: int, drawn: bool, rng: Rng) -> dict[str, Any]:
    """A fifth is held out: at random each time, or with those before; nothing where n prompts decide."""
    before = rng.permutation(n)[: n // 5]
    after = np.concatenate([before, np.arange(n, n + NEXT // 5)])
    if drawn:
        after = rng.permutation(n + NEXT)[: (n + NEXT) // 5]
    decision, gaps = _judged(whole.rows(before), n)
    if decision != "unsure":
        return {}
    view = outlook(gaps, NEXT, len(gaps), 0.2 if drawn else 1.0)
    if view is None:
        return {}
    then, _ = _judged(whole.rows(after), n + NEXT)
    return {
        "split": "drawn anew" if drawn else "kept",
        "said": view.decides,
        "decided": then != "unsure",
        "said to deploy": view.deploys,
        "deployed": then == "deploy",
    }


def _judged(drawn: Drawn, asked: int) -> tuple[str, list[Gap]]:
    gaps = [gap_of(drawn, router, asked) for router in range(len(drawn.scores))]
    best, k = gaps[_best(drawn)], len(gaps)
    return decide(best.utility(k), best.quality(k), best.saved(k)), gaps


def calibration(rows: Sequence[dict[str, Any]], steps: Sequence[float]) -> list[dict[str, Any]]:
    """Mean probability said beside the share that came true, by bins of what was said."""
    bins = []
    for split in ("drawn anew", "kept"):
        for low, high in pairwise(steps):
            part = [r for r in rows if r["split"] == split and low <= r["said"] < high]
            if part:
                means = {name: float(np.mean([r[name] for r in part])) for name in ("said", "decided")}
                bins.append({"split": split, "from": low, "to": high, "tables": len(part), **means})
    return bins
