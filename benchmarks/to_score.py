"""Which answers should be scored, when only a share of them can be?

    python -m benchmarks.to_score [--table NAME ...] [--policy NAME ...] [--shares .05 .2] [--rounds 2000]
        [--seeds 6] [--queries 4000] [--train 200]

Real tables, a parquet file each with the columns query_id, prompt, model, score, cost. A router that was made
from so few train prompts answers test prompts and explores FLOOR. It marks the share of its decisions by the
rule `uniform` or `seldom` (`router.marks`), and those are scored; `none`: nothing is, `all`: every answer.
Everybody is asked the same prompts in the same order.

Printed: of how many decisions of a policy that plays all models alike 1,000 scored ones are worth (expected
effective size); regret a round against the model that is best of all test prompts in hindsight; how much of
`uniform`'s regret `seldom` saves, with the larger of its standard errors over prompts and over orders.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.joining import FLOOR, Table, add_options, paths_of, read
from benchmarks.script import Script, head, row, write_figures
from cabs_core.base.statistics.uncertainty import mean_error
from cabs_core.base.utility import clipped_utility
from cabs_core.evaluation.ope.intervals import effective_size
from cabs_core.router.build import build_bundle
from cabs_core.router.marks import RULES, evened
from cabs_core.router.router import Router

POLICIES = ("hier_mix", "cabs_c_linear", "lin_ts", "lin_ucb")


def play(
    table: Table, folder: Path, order: np.ndarray, seed: int, how: str, share: float
) -> tuple[np.ndarray, float]:
    """(utilities `[T]` of a router over rows of the table, effective size of 1,000 scored decisions for a
    policy that plays all models alike).

    Args:
        how: rule of the marks, `none` or `all`. share: of the decisions that are marked.
    """
    outcomes = table.ingredients.outcomes
    marks: dict[str, Any] = {"score_share": share, "score_rule": how} if how in RULES else {}
    router = Router.load(folder, seed=seed, **marks)
    prediction_of = dict(zip(order, router.predict([outcomes.prompts[i] for i in order]), strict=True))
    place = {arm: j for j, arm in enumerate(table.arms)}
    played, scored = np.empty(len(order), dtype=int), []
    for t, i in enumerate(order):
        decision = router.route(prediction_of[i])
        played[t] = place[decision.model]
        pmf = np.array(list(decision.probabilities.values()))
        scored.append(evened(pmf, share) / share if how == "seldom" else pmf)
        if decision.marked or how == "all":
            score, cost = outcomes.scores[i, played[t]], outcomes.costs[i, played[t]]
            router.feedback(decision.id, score=float(score), cost=float(cost))
    alike, n = np.full((len(order), len(table.arms)), 1.0 / len(table.arms)), len(order)
    worth = 1000.0 * effective_size(alike, np.array(scored), np.ones(n)) / n
    earned = clipped_utility(outcomes.scores[order, played], outcomes.costs[order, played], table.rho)
    return earned, worth


def measure(
    path: Path,
    policies: Sequence[str],
    shares: Sequence[float],
    rounds: int,
    seeds: int,
    made: dict[str, Any],
) -> list[dict[str, Any]]:
    """Rows of one table. made: queries and train, of `joining.read`."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="cabs-to-score-") as name:
        table = read(path, folder=Path(name), **made)
        outcomes, test = table.ingredients.outcomes, np.flatnonzero(table.ingredients.split == "test")
        utilities = clipped_utility(outcomes.scores, outcomes.costs, table.rho)
        best = int(utilities[test].mean(axis=0).argmax())
        orders = [np.random.default_rng([seed, 0]).choice(test, rounds) for seed in range(seeds)]
        prompts = np.concatenate(orders)
        for policy in policies:
            folder = Path(name) / policy
            build_bundle(folder, table.pool, table.ingredients, policy=policy, rho=table.rho, epsilon=FLOOR)
            lost: dict[tuple[str, float], np.ndarray] = {}
            cases = [("none", 0.0), *((how, s) for s in shares for how in RULES), ("all", 1.0)]
            for how, share in cases:
                runs = [play(table, folder, o, s, how, share) for s, o in enumerate(orders)]
                earned, worth = (np.array(part) for part in zip(*runs, strict=True))
                lost[how, share] = utilities[np.stack(orders), best] - earned
                line = {"table": path.stem, "policy": policy, "scored": how, "share": share}
                line |= {"worth": None if how == "none" else float(worth.mean())}
                line |= {"regret": float(lost[how, share].mean()), "saved": None, "error": None}
                if how == "seldom":
                    saved = lost["uniform", share] - lost[how, share]
                    over_orders = (
                        float(saved.mean(axis=1).std(ddof=1)) / math.sqrt(seeds) if seeds > 1 else 0.0
                    )
                    over_prompts = float(mean_error(saved.ravel(), clusters=prompts).se)
                    line |= {"saved": float(saved.mean()), "error": max(over_orders, over_prompts)}
                rows.append(line)
                shown = (f"{v:.4f}" if isinstance(v, float) else v or "" for v in line.values())
                print(row(*shown), flush=True)
    return rows


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Measure, print, return the rows."""
    parser = Script(__file__, __doc__)
    add_options(parser, POLICIES, seeds=6)
    parser.add_argument("--shares", nargs="+", type=float, default=[0.05, 0.2])
    parser.add_argument("--train", type=int, default=200, help="prompts that the router is made from")
    given = parser.parse_args(argv)
    print(head("table", "policy", "scored", "share", "worth", "regret", "saved", "error"))
    rows, made = list[dict[str, Any]](), {"queries": given.queries, "train": given.train}
    for path in paths_of(given.table, parser):
        rows += measure(path, given.policy, given.shares, given.rounds, given.seeds, made)
    write_figures(rows, given.json)
    return rows


if __name__ == "__main__":
    main()
