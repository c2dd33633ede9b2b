"""Measure how often the answer is right, in worlds of known truth (`answer_tables`), on arrays.

    python -m benchmarks.answer_worlds                               # 200 tables a world and size
    python -m benchmarks.answer_worlds --tables 60 --sizes 100 500 --worlds templates router

A world draws a scored table, makes rules and a ridge router by folds, and asks `answer`. False is a table
with a word that is not true of the generator: "better" without a gain, "as good" beyond the tolerance,
"cheaper" where nothing is saved, "worse" where nothing is lost. Coverage is that of the printed 95 %
intervals of the difference in score and of the share of the cost. Power is how often the switch is settled,
as a share of the tables in which Student's paired test on all rows settles it at the same level. A second
table is that of goals (`benchmarks.answer_goals`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.answer_goals import EXCEEDED, FULFILLED, GoalWorld, measured
from benchmarks.answer_tables import WORLDS, Drawn, World
from benchmarks.script import Script
from cabs_core.base.atomic import write_text
from cabs_core.base.statistics.uncertainty import holm
from cabs_core.evaluation.answer import (
    Answer,
    AnswerOptions,
    Decisions,
    Rung,
    Word,
    answer,
    fit_rules,
)
from cabs_core.evaluation.answer.logged import LoggedTable

SIZES = (100, 200, 500, 1000, 2000)
FOLDS = 5
Rng = np.random.Generator


def ridge_router(drawn: Drawn, folds: np.ndarray) -> tuple[Decisions, float]:
    """(decisions by folds of a ridge regression for each model, what such a router truly gains)."""
    assert drawn.features is not None
    assert drawn.fresh is not None
    table, x = drawn.table, np.column_stack([drawn.features, np.ones(len(drawn.features))])
    new = np.column_stack([drawn.fresh[0], np.ones(len(drawn.fresh[0]))])
    weights, gained = np.full(table.scores.shape, np.nan), []
    for fold in range(FOLDS):
        fit = folds != fold
        gram = x[fit].T @ x[fit]
        penalty = np.eye(len(gram)) * 0.1 * np.trace(gram) / len(gram)
        loads = np.linalg.solve(
            gram + penalty, x[fit].T @ (table.scores[fit] - table.scores[fit].mean(axis=0))
        )
        offset = table.scores[fit].mean(axis=0)
        weights[~fit] = np.eye(table.scores.shape[1])[(x[~fit] @ loads + offset).argmax(axis=1)]
        chosen = (new @ loads + offset).argmax(axis=1)
        gained.append(drawn.fresh[1][np.arange(len(new)), chosen].mean() - drawn.fresh[1][:, 0].mean())
    return Decisions("ridge", weights), float(np.mean(gained))


@dataclass
class Counted:
    """Counts over the tables of one world and size."""

    tables: int = 0
    false: int = 0
    switches: int = 0
    switches_covered: int = 0
    fitted: int = 0
    fitted_covered: int = 0
    money: int = 0
    money_covered: int = 0
    settled: int = 0
    settled_by_t: int = 0
    settled_of_these: int = 0
    better_router: int = 0


def truth_of(rung: Rung, drawn: Drawn, gain: float) -> tuple[float, float]:
    """(true difference in score, true cost as a share of today's) of what a rung says to use."""
    if rung.rung == "router":
        return gain, 1.0
    models = {name: j for j, name in enumerate(drawn.table.models)}
    if rung.rung == "rules":
        use = np.array([models[rung.use[task]] for task in drawn.table.tasks.tolist()])
    else:
        use = np.full(len(drawn.table.tasks), models[rung.use])
    rows = np.arange(len(use))
    difference = float((drawn.scores[rows, use] - drawn.scores[:, 0]).mean())
    return difference, float(drawn.costs[rows, use].sum() / drawn.costs[:, 0].sum())


def is_false(word: Word, difference: float, ratio: float, tolerance: float) -> bool:
    """Return True if a word is not true of an option with this true difference and share of the cost."""
    small = 1e-9
    return {
        Word.BETTER: difference <= small,
        Word.CHEAPER: difference < -tolerance - small or ratio >= 1.0 - small,
        Word.AS_GOOD: difference < -tolerance - small,
        Word.WORSE: difference >= -small,
    }.get(word, False)


def t_settles(drawn: Drawn, options: AnswerOptions) -> dict[str, bool]:
    """Return {other model: Student's paired test of all rows says something true of it at the same level}.

    A statement that is not true of the generator counts for nothing, so power is of true words alone.
    """
    table = drawn.table
    gaps = table.scores[:, 1:] - table.scores[:, :1]
    paid = table.costs[:, 1:] - table.costs[:, :1]
    difference = (drawn.scores[:, 1:] - drawn.scores[:, :1]).mean(axis=0)
    ratio = drawn.costs[:, 1:].sum(axis=0) / drawn.costs[:, 0].sum()

    def p_above(values: np.ndarray, limit: float) -> np.ndarray:
        error = np.maximum(values.std(axis=0, ddof=1) / math.sqrt(len(values)), 1e-12)
        p: np.ndarray = 1.0 - stats.t.cdf((values.mean(axis=0) - limit) / error, len(values) - 1)
        return p

    as_good_and_cheaper = np.maximum(p_above(gaps, -options.tolerance), p_above(-paid, 0.0))
    tests = {
        Word.BETTER: p_above(gaps, 0.0),
        Word.CHEAPER: as_good_and_cheaper,
        Word.WORSE: p_above(-gaps, 0.0),
    }
    settled = np.zeros(len(difference), dtype=bool)
    for word, p_values in tests.items():
        true = [
            not is_false(word, gap, share, options.tolerance)
            for gap, share in zip(difference.tolist(), ratio.tolist(), strict=True)
        ]
        settled |= np.array(true) & (np.array(holm(p_values)) <= options.level / 2)
    return dict(zip(table.models[1:], settled.tolist(), strict=True))


def judge(world: World, rng: Rng, n: int, seen: Counted) -> Answer:
    """Draw a table of a world, ask for the answer, and count."""
    options = AnswerOptions()
    drawn = world.draw(rng, n)
    table = drawn.table
    order = rng.permutation(int(table.clusters.max()) + 1) % FOLDS
    folds = order[table.clusters]
    routers, gain = [], 0.0
    if drawn.features is not None:
        router, gain = ridge_router(drawn, folds)
        routers = [router]
    found = answer(table, fit_rules(table, table.tasks, folds, options), routers, options)
    seen.tables += 1
    wrong = False
    for rung in found.rungs:
        if rung.rung == "keep":
            continue
        difference, ratio = truth_of(rung, drawn, gain)
        wrong |= is_false(rung.word, difference, ratio, options.tolerance)
        covered = rung.low <= difference <= rung.high
        if math.isnan(rung.low):
            continue  # a log that hardly plays a model says nothing of it
        if rung.rung == "switch":
            seen.switches += 1
            seen.switches_covered += covered
        else:
            seen.fitted += 1
            seen.fitted_covered += covered
        if rung.cost_low is not None and rung.cost_high is not None and rung.rung != "router":
            seen.money += 1
            seen.money_covered += rung.cost_low <= ratio <= rung.cost_high
    seen.false += wrong
    router_rung = found.rung("router")
    seen.better_router += router_rung is not None and router_rung.word == Word.BETTER
    if isinstance(table, LoggedTable) or len(np.unique(table.clusters)) < len(table.clusters):
        return found  # Student's test needs all answers of independent rows
    by_t = t_settles(drawn, options)
    told = {Word.BETTER, Word.CHEAPER, Word.WORSE}
    settled = {rung.use: rung.word in told for rung in found.models}
    seen.settled_by_t += any(by_t.values())
    seen.settled_of_these += any(by_t[m] for m in by_t) and any(settled[m] for m in by_t)
    return found


def _share(part: int, of: int) -> str:
    """Share with two digits, and in brackets of how many; empty if of none."""
    return f"{part / of:.2f} ({of})" if of else ""


def print_words(tables: int, sizes: Sequence[int], names: Sequence[str]) -> dict[str, Any]:
    """Judge the tables of the named worlds, print a line for each world and size, and return the counts."""
    found: dict[str, Any] = {}
    print("| world | prompts | false | switch covers | rules, router cover | cost covers | power | better |")
    print("|---|---|---|---|---|---|---|---|")
    for world in WORLDS:
        if not any(part in world.name for part in names):
            continue
        for n in sizes:
            seen = Counted()
            for k in range(tables):
                judge(world, np.random.default_rng([k, n, len(world.name)]), n, seen)
            cells = [
                world.name,
                f"{n:,}",
                f"{seen.false / seen.tables:.3f}",
                _share(seen.switches_covered, seen.switches),
                _share(seen.fitted_covered, seen.fitted),
                _share(seen.money_covered, seen.money),
                _share(seen.settled_of_these, seen.settled_by_t),
                f"{seen.better_router / seen.tables:.2f}",
            ]
            print(f"| {' | '.join(cells)} |", flush=True)
            found[f"{world.name}, {n}"] = vars(seen)
    return found


def print_goals(
    worlds: Sequence[GoalWorld], tables: int, sizes: Sequence[int], names: Sequence[str]
) -> dict[str, Any]:
    """Answer the goals of the named worlds, print a line for each world, and return the shares."""
    found: dict[str, Any] = {}
    for world in worlds:
        if not any(part in world.name for part in names):
            continue
        cells = [world.name]
        for n in sizes:
            confirmed, of_these, by_t = measured(world, tables, n)
            cells.append(f"{confirmed:.3f} ({of_these:.2f} of {by_t})")
            found[f"{world.name}, {n}"] = confirmed
        print(f"| {' | '.join(cells)} |", flush=True)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Judge the tables of every world and print the shares."""
    script = Script(__file__, __doc__)
    script.add_argument("--tables", type=int, default=200, help="tables of each world and size")
    script.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="prompts, or conversations")
    script.add_argument("--worlds", nargs="+", default=[""], help="parts of the names of worlds")
    options = script.parse_args(argv)
    found = print_words(options.tables, options.sizes, options.worlds)
    print(f"\n| confirmed goal that no option fulfils | {' | '.join(f'{n:,}' for n in options.sizes)} |")
    print("|---" * (1 + len(options.sizes)) + "|")
    found |= print_goals(EXCEEDED, options.tables, options.sizes, options.worlds)
    print(f"\n| confirmed goal that an option fulfils | {' | '.join(f'{n:,}' for n in options.sizes)} |")
    print("|---" * (1 + len(options.sizes)) + "|")
    found |= print_goals(FULFILLED, options.tables, options.sizes, options.worlds)
    if options.json:
        write_text(options.json, json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
