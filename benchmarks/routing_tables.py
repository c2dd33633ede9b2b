"""Routing tables of cells: do their intervals hold the truth, and are their models those of the full table?

    python -m benchmarks.routing_tables [--seeds 200] [--prompts 3000] [--json FILE]

Worlds whose truth is known, six tasks and four models. `cells` are asked as strategy `adaptive` does, with
probabilities by three looks; `whole rows` are as many prompts put to all models as cost the same; `all` is
every answer. Half of what is asked are test prompts.
"""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.script import Script, write_figures
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.utility import clipped_utility
from cabs_core.data.collect.verdict import look, shares_of
from cabs_core.data.outcomes.gaps import filled
from cabs_core.data.outcomes.logged import predicted_cells, prompt_features
from cabs_core.data.outcomes.raw import RawOutcomes
from cabs_core.data.pool_files import ModelPool
from cabs_core.evaluation.replay.result import ReplayResult
from cabs_core.evaluation.replay.storage import save_replay_result
from cabs_core.report.evidence import Evidence
from cabs_core.report.gap import Bounded
from cabs_core.report.routing_table import RoutingTable, routing_table

RHO, ARMS = 30.0, ["a", "b", "c", "d"]
#: USD of a call by model
PRICES = np.array([4e-3, 2e-3, 5e-4, 2e-4])


@dataclass(frozen=True)
class RouteWorld:
    """Six tasks and four models: `chance [6, 4]` of a right answer; costs are lognormal about PRICES.

    worth: `[6, 4]` mean utility at RHO. Prompts show their task by two words of ten.
    """

    chance: np.ndarray
    worth: np.ndarray

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> RouteWorld:
        """Each model has a level; on each task it is better or worse by .15 as standard deviation."""
        levels = np.array([0.75, 0.7, 0.6, 0.5])
        chance = np.clip(levels + rng.normal(0, 0.15, (6, 4)), 0.05, 0.95)
        paid = PRICES * rng.lognormal(0, 0.4, (20_000, 4))
        return cls(chance, chance * clipped_utility(np.ones_like(paid), paid, RHO).mean(axis=0))

    def table(self, rng: np.random.Generator, n: int) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
        """(prompts, tasks `[n]`, scores and costs `[n, 4]`)."""
        tasks = rng.integers(0, 6, n)
        words = rng.integers(0, 40, (n, 8))
        prompts = [
            " ".join([f"kind{'abcdef'[t]}", f"of{'uvwxyz'[t]}", *(f"word{w}" for w in row)])
            for t, row in zip(tasks.tolist(), words.tolist(), strict=True)
        ]
        scores = (rng.random((n, 4)) < self.chance[tasks]).astype(float)
        return prompts, tasks, scores, PRICES * rng.lognormal(0, 0.4, (n, 4))


def routed_by(
    world: RouteWorld, prompts: list[str], rows: tuple[np.ndarray, ...], asked: np.ndarray, folder: Path
) -> tuple[RoutingTable, float]:
    """(the routing table of what was asked, what it truly loses against its router).

    Args:
        prompts: of the table, then as many again that it is told nothing of. rows: tasks, scores, costs of
            all. asked: `[n, 4]` probability of each cell that was asked, 0 elsewhere; rows without one do not
            exist.
    """
    there, n = np.flatnonzero(asked.any(axis=1)), len(asked)
    fresh = np.arange(n, len(prompts))
    raw = RawOutcomes(
        query_ids=there.astype(str),
        prompts=[prompts[i] for i in there],
        tasks=np.array([f"task {t}" for t in rows[0][there]]),
        arms=ARMS,
        scores=np.where(asked > 0, rows[1][:n], np.nan)[there],
        costs=np.where(asked > 0, rows[2][:n], np.nan)[there],
        propensities=None if (asked[there] == 1).all() else np.where(asked > 0, asked, np.nan)[there],
    )
    pool = ModelPool.model_validate({"name": "routes", "source": {"kind": "synthetic"}})
    table = filled(raw, pool)
    split = np.random.default_rng(0).choice(["train", "validation", "test"], len(table), p=[0.4, 0.1, 0.5])
    train, test = np.flatnonzero(split == "train"), np.flatnonzero(split == "test")
    features = prompt_features([*table.prompts, *(prompts[i] for i in fresh)], train)
    real = np.vstack([table.drawn > 0, np.zeros((len(fresh), 4), dtype=bool)])
    scores, costs = (
        predicted_cells(features, train, real, np.vstack([values, np.zeros((len(fresh), 4))]))
        for values in (table.scores, table.costs)
    )
    plays = clipped_utility(scores, costs, RHO).argmax(axis=1)
    context = np.ones((len(test), 1))
    problem = ReplayProblem(
        arms=table.arms,
        query_ids=table.query_ids[test],
        tasks=table.tasks[test],
        contexts=context,
        scores=table.scores[test],
        costs=table.costs[test],
        predicted_scores=scores[test],
        predicted_costs=costs[test],
        surrogate_deltas=np.zeros((len(test), 4, 4)),
        offline_contexts=context[:1],
        offline_scores=table.scores[train][:1],
        offline_costs=table.costs[train].max(axis=0)[None],
        observed=None if table.answered is None else table.drawn[test],
    )
    order = np.stack([np.random.default_rng([7, trial]).permutation(len(test)) for trial in range(3)])
    utilities = clipped_utility(problem.scores, problem.costs, RHO)
    actions = plays[test][order]
    played = ReplayResult(
        pool=pool.name,
        policy="ridge",
        rho=RHO,
        order=order,
        actions=actions,
        propensities=np.ones(order.shape),
        rewards=utilities[order, actions],
        best_rewards=utilities.max(axis=1)[order],
    )
    save_replay_result(played, problem, folder, pool=pool)
    evidence = Evidence(problem, {("ridge", RHO): folder}, {})
    made = routing_table(
        evidence,
        table,
        split,
        features[: len(table)],
        pool="routes",
        rho=RHO,
        router="ridge",
        decision="deploy",
        examples=False,
    )
    model = {row.group: table.arms.index(row.model) for row in made.rows}
    by_table = np.array([model[f"task {t}"] for t in rows[0][fresh]])
    worth = world.worth[rows[0][fresh]]
    every = np.arange(len(fresh))
    return made, float((worth[every, plays[len(table) :]] - worth[every, by_table]).mean())


def routes(seeds: int, n: int) -> list[dict[str, Any]]:
    """Routing tables of all answers, of cells with noted probabilities and of whole rows at their cost."""
    figures: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(seeds):
            rng = np.random.default_rng([seed, 46])
            world = RouteWorld.drawn(rng)
            prompts, *rows = world.table(rng, 2 * n)
            cells, shares = np.zeros((n, 4)), np.ones(4)
            for begin, end in itertools.pairwise((0, n // 10, n // 3, 2 * n // 3, n)):
                cells[begin:end] = np.where(rng.random((end - begin, 4)) < shares, shares, 0.0)
                if end < n:
                    seen = rows[1][:end], rows[2][:end], cells[:end]
                    matters = look(prompts[:end], ARMS, *seen, RHO, tuned=n // 5, seed=seed).matters
                    shares = shares_of(np.array(matters), PRICES)
            spent = (rows[2][:n] * (cells > 0)).sum()
            as_many = int((rows[2][:n].sum(axis=1).cumsum() <= spent).sum())
            whole = np.where(np.arange(n)[:, None] < as_many, np.ones((n, 4)), 0.0)
            every = {"all": np.ones((n, 4)), "cells": cells, "whole rows": whole}
            for name, asked in every.items():
                made, lost = routed_by(world, prompts, tuple(rows), asked, Path(folder) / f"{seed}-{name}")
                figures.append(
                    {"seed": seed, "asked": name, "lost": lost, "share": spent / rows[2][:n].sum()}
                    | _against(world, made, lost)
                )
    for name in every:
        of = [row for row in figures if row["asked"] == name]
        full = {row["seed"]: row["models"] for row in figures if row["asked"] == "all"}
        same = [row["models"][g] == m for row in of for g, m in full[row["seed"]].items()]
        held = {what: [hit for row in of for hit in row["holds"][what]] for what in of[0]["holds"]}
        covers = ", ".join(
            f"{what} {np.mean(hits):.3f} of {len(hits)}" for what, hits in held.items() if hits
        )
        print(
            f"{name}: the model of the full table in {np.mean(same):.3f} of {len(same)} rows; worth "
            f"{np.mean([row['worth'] for row in of]):.4f}; intervals that hold the truth: {covers}",
            flush=True,
        )
    return figures


def _against(world: RouteWorld, made: RoutingTable, lost: float) -> dict[str, Any]:
    """Models of the rows, what the table is worth, and which intervals hold the truth."""
    default, models = ARMS.index(made.default), {row.group: row.model for row in made.rows}
    holds: dict[str, list[bool]] = {"score": [], "cost": [], "over default": [], "lost": []}

    def held(what: str, figure: Bounded | None, truth: float) -> None:
        if figure is not None:
            holds[what].append(figure.low is not None and figure.low <= truth <= (figure.high or 0.0))

    worths = []
    for row in made.rows:
        task, model = int(row.group[-1]), ARMS.index(row.model)
        worths.append(float(world.worth[task, model]))
        held("score", row.score, float(world.chance[task, model]))
        held("cost", row.cost, 1000.0 * float(PRICES[model]) * np.exp(0.08))
        held("over default", row.over_default, worths[-1] - float(world.worth[task, default]))
    held("lost", made.lost, lost)
    return {"models": models, "worth": float(np.mean(worths)), "holds": holds}


def main(arguments: list[str] | None = None) -> None:
    """Run the worlds."""
    parser = Script(__file__, __doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--prompts", type=int, default=3000)
    given = parser.parse_args(arguments)
    write_figures(routes(given.seeds, given.prompts), given.json)


if __name__ == "__main__":
    main()
