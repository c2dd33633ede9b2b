"""What breaks intervals of rows: worlds of known truth, on arrays, judged by the report's rule and the goals'
bounds.

python -m benchmarks.verdict_worlds                      # 400 tables a world and size
python -m benchmarks.verdict_worlds --tables 60 --sizes 100 500

A world draws the held-out queries of several routers and of one model. Wrong: "deploy" where the best router
is worth no more than the model (nor saves 5 % at no more than a point of quality), a goal confirmed that is
just missed. Power: "deploy" where a router gains. Coverage: 95 % intervals of the difference of utilities.
`benchmarks.verdicts` goes from the file to the decision instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy import special

from benchmarks.script import Script
from cabs_core.atomic import write_text
from cabs_core.metrics import mean_error
from cabs_core.metrics.uncertainty import LEVEL
from cabs_core.pool_files.goals import Goal
from cabs_core.problem import ReplayProblem
from cabs_core.problem.synthetic import synthetic_problem
from cabs_core.report.evidence import Played
from cabs_core.report.verdict import Gap, decide
from cabs_core.router.goals import answer_goal

SIZES = (50, 100, 200, 500, 2000)
Rng = np.random.Generator


@dataclass(frozen=True)
class Table:
    """Scores `[routers, n]` and costs of routers, `[n]` of a model; utilities are the scores (rho 0)."""

    scores: np.ndarray
    costs: np.ndarray
    model_scores: np.ndarray
    model_costs: np.ndarray
    clusters: np.ndarray | None = None


def _right(rng: Rng, chance: np.ndarray) -> np.ndarray:
    return (rng.random(chance.shape) < chance).astype(float)


def alike(rng: Rng, n: int, routers: int = 6) -> Table:
    """All are as good."""
    chance = np.broadcast_to(rng.uniform(0.3, 0.9, n), (routers + 1, n))
    scores, costs = _right(rng, chance), rng.lognormal(0, 0.3, (routers + 1, n))
    return Table(scores[1:], costs[1:], scores[0], costs[0])


def repeated(rng: Rng, n: int) -> Table:
    """The same with each of n prompts five times: what was right once is right again."""
    once, rows = alike(rng, n), np.arange(n).repeat(5)
    return Table(
        once.scores[:, rows], once.costs[:, rows], once.model_scores[rows], once.model_costs[rows], rows
    )


def conversations(rng: Rng, n: int) -> Table:
    """n conversations of two to eighteen turns; how well a router does is the conversation's."""
    session = np.arange(n).repeat(rng.integers(2, 19, n))
    chance = np.clip(rng.uniform(0.1, 0.9, (7, n)), 0, 1)[:, session]
    scores, costs = _right(rng, chance), rng.lognormal(0, 0.3, chance.shape)
    return Table(scores[1:], costs[1:], scores[0], costs[0], session)


def rare_failures(rng: Rng, n: int) -> Table:
    """Ten routers 80 % cheaper with the model's graded scores, that fail on 2 % of prompts: each loses
    .015."""
    model, costs = rng.beta(6, 2, n), rng.lognormal(0, 0.3, n)
    scores = np.where(rng.random((10, n)) < 0.02, 0.0, model)
    return Table(scores, np.broadcast_to(0.2 * costs, (10, n)), model, costs)


def strong(rng: Rng, n: int) -> Table:
    """A model right in 99 %, routers at half its price in 97.8 %."""
    costs = rng.lognormal(0, 0.3, n)
    scores = _right(rng, np.full((4, n), 0.978))
    return Table(scores[1:], np.broadcast_to(0.5 * costs, (3, n)), _right(rng, np.full(n, 0.99)), costs)


def heavy(rng: Rng, n: int) -> Table:
    """Costs of sigma 2; three routers of the same quality save 4 %."""
    scores = _right(rng, np.full(n, 0.8))
    costs = rng.lognormal(0, 2.0, (4, n))
    return Table(np.broadcast_to(scores, (3, n)), 0.96 * costs[1:], scores, costs[0])


def gains(rng: Rng, n: int) -> Table:
    """A router that gains .1, two that gain nothing: not wrong, but power."""
    model, costs = _right(rng, np.full(n, 0.6)), rng.lognormal(0, 0.3, (4, n))
    chance = np.array([0.6 + 1 / 3, 0.6, 0.6])[:, None]
    other = _right(rng, np.broadcast_to(chance, (3, n)))
    return Table(np.where(rng.random((3, n)) < 0.7, model, other), costs[1:], model, costs[0])


#: {name: (world, whether "deploy" is right)}
WORLDS: dict[str, tuple[Callable[[Rng, int], Table], bool]] = {
    "as good": (alike, False), "each prompt five times": (repeated, False), "conversations": (conversations, False),
    "graded, rare failures": (rare_failures, False), "strong models": (strong, False), "costs of sigma 2": (heavy, False),
    "gains .1": (gains, True),
}  # fmt: skip


def verdict(table: Table) -> tuple[str, bool]:
    """(the decision on the best of the routers, whether the usual interval of rows would have said that it
    gains)."""
    k, n = table.scores.shape
    best = int(table.scores.mean(axis=1).argmax())
    evidence: Any = SimpleNamespace(
        problem=SimpleNamespace(clusters=table.clusters), asked=5 * n, real_share=lambda name, rho: 1.0
    )

    def played(name: str, score: np.ndarray, cost: np.ndarray) -> Played:
        values = {"utility": score[None], "score": score[None], "cost": cost[None]}
        trials = {key: value.mean(axis=1, keepdims=True) for key, value in values.items()}
        return Played(name, np.zeros(1), np.ones((1, n)), **values, trials=trials)

    own, other = (
        played("router", table.scores[best], table.costs[best]),
        played("model", table.model_scores, table.model_costs),
    )
    gap = Gap(evidence, own, other, np.ones(1))
    rows = mean_error(table.scores[best] - table.model_scores)
    half = float(special.stdtrit(rows.df, 1 - LEVEL / 2 / k)) * rows.se
    usual = float((table.scores[best] - table.model_scores).mean()) > half
    return decide(gap.utility(k), gap.quality(k), gap.saved(k)), usual


def problem_of(
    rng: Rng, n: int, scores: np.ndarray, costs: np.ndarray, latencies: np.ndarray
) -> tuple[ReplayProblem, ReplayProblem]:
    """(validation, test) of single models, for goals."""
    k = scores.shape[1]
    base = synthetic_problem(n, k, 3, seed=int(rng.integers(2**31)), offline=30, latencies=True)
    whole = replace(base, scores=scores, costs=costs, latencies=latencies)
    return whole.rows(np.arange(n // 2)), whole.rows(np.arange(n // 2, n))


def goal(kind: str, rng: Rng, n: int) -> bool:
    """Whether a goal that is just missed is confirmed, on n test queries: one model alone, by quality,
    latency or budget."""
    if kind == "quality":
        scores = np.column_stack([_right(rng, np.full(2 * n, 0.99)), _right(rng, np.full(2 * n, 0.94))])
        v, t = problem_of(rng, 2 * n, scores, np.tile([2e-3, 1e-3], (2 * n, 1)), np.ones((2 * n, 2)))
        answer = answer_goal(Goal(quality=0.95, of=v.arms[0]), v, t, [], rhos=[1.0])
        return answer.confirmed and answer.choice == v.arms[1]
    scores, cost = np.ones((2 * n, 1)), rng.lognormal(-2.0, 2.0, (2 * n, 1)) * 1e-3
    slow = np.where(rng.random((2 * n, 1)) < 0.949, 1.0, 3.0)
    v, t = problem_of(rng, 2 * n, scores, cost, slow)
    wanted = (
        Goal(latency=2.0) if kind == "latency" else Goal(budget_per_month=1e-3 / 1.01, requests_per_month=1)
    )
    return answer_goal(wanted, v, t, [], rhos=[1.0]).confirmed


GOALS = ("quality", "latency", "budget")


def measured(tables: int, sizes: Sequence[int], seed: int = 0) -> list[dict[str, Any]]:
    """One row a world and size: share of decisions, and of tables where the usual interval of rows would say
    `deploy`."""
    rows: list[dict[str, Any]] = []
    for name, (world, right) in WORLDS.items():
        for n in sizes:
            rng = np.random.default_rng([seed, n, len(rows)])
            found = [verdict(world(rng, n)) for _ in range(tables)]
            shares = {d: float(np.mean([f[0] == d for f in found])) for d in ("deploy", "keep", "unsure")}
            usual = float(np.mean([f[1] for f in found]))
            rows.append({"world": name, "n": n, "right": right, **shares, "by rows": usual})
    for kind in GOALS:
        for n in sizes:
            rng = np.random.default_rng([seed, n, len(rows)])
            said = float(np.mean([goal(kind, rng, n) for _ in range(tables)]))
            rows.append({"world": f"goal, {kind} just missed", "n": n, "right": False, "deploy": said})
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Print what was said in every world."""
    parser = Script(__file__, __doc__)
    parser.add_argument("--tables", type=int, default=400)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    args = parser.parse_args(argv)
    rows = measured(args.tables, args.sizes)
    for row in rows:
        print(", ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))
    if args.json:
        write_text(args.json, json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
