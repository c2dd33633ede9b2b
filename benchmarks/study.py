"""The comparison of policies on real outcomes: several splits, stress conditions, paired differences with
errors.

    python -m benchmarks.study --protocol field                                 all tables, conditions, splits
    python -m benchmarks.study --pool openllm_lb_v2_carrot --split-seeds 0 1 2 --work DIR [--json FILE]

Oracles and everything offline from the train split; the same orders, features and rounds for every policy;
policies at their defaults. Protocol `full` (default): the first split at 21 rhos in 10 trials, further ones
at 9 rhos in 5 trials; `short`: all at 9 and 5; `field`: as short, with the tables, conditions, policies and
the setup of `study_plan.FIELD_*` where nothing else is asked for; `choose`: options of hier_mix are chosen
for each table by rehearsals of the others, in which no test query takes part, and then played; 3 rhos and 5
trials in the setup of `field`. Regime value = mean over the regime's rhos; overall = mean of the three.

Conditions on the data (shift, severe, corrupted, noisy) have a problem of their own, upgrade is the clean one
with other scores of one model; severe only where somebody has said which tasks are another kind of work.
Conditions on the stream (drift, arms_arrive, arms_disappear, delayed_rewards) are options of the replay and
use the clean problem. Where a condition leaves the test queries as they are, what it costs every policy is
reported too: clean minus stressed, paired by query and trial, if `clean` has been run.

Every (condition, split, policy, rho) is one small file under DIR/cells, written when it is done: interrupt
and run again at will. The first split of all pools and conditions comes first. Problems are built under
DIR/problems (<pool>/<condition>/seed<k>/test) unless they are there.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import study_ranking
from benchmarks.script import Script, write_figures
from benchmarks.study_plan import (
    CANDIDATES,
    CONDITIONS,
    DEFAULTS,
    FEW_RHOS,
    FIELD_SETUP,
    LONG_RHOS,
    REHEARSED,
    SHORT_RHOS,
    SILENT,
    SIMPLE,
    VARIANTS,
    Plan,
    Setup,
    cell_path,
)
from benchmarks.study_problems import can_be_severe, problem
from benchmarks.study_tables import show, table
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.atomic import atomic_path, write_text
from cabs_core.base.catalog.conditions import STREAM_CONDITIONS
from cabs_core.base.errors import CabsError, DataError
from cabs_core.base.paths import cabs_home
from cabs_core.evaluation.replay import replay
from cabs_core.evaluation.replay.result import ReplayResult

Place = tuple[int, str, str]  # split seed, condition, pool


def run(plan: Plan, work: Path, threads: int | None = None, jobs: int = 1) -> None:
    """Replay every cell that is not on disk yet. The short grid of all splits comes before the long grid of
    the first.

    Args:
        plan: the cells.
        work: folder of the study.
        threads: lanes of a replay at the same time.
        jobs: number of processes, each with its own places (pool, condition, split).
    """
    grids = {"full": (SHORT_RHOS, LONG_RHOS), "choose": (FEW_RHOS,)}
    for rhos in grids.get(plan.protocol, (SHORT_RHOS,)):
        places = [
            (seed, condition, pool)
            for seed, condition, pool in product(plan.split_seeds, plan.conditions, plan.pools)
            if rhos is not LONG_RHOS or plan.grid(seed)[0] is LONG_RHOS
        ]
        one = partial(_run_place, plan, work, rhos, threads)
        if jobs == 1:
            for place in places:
                one(place)
            continue
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as workers:
            for _ in workers.map(one, places):
                pass


def _run_place(plan: Plan, work: Path, rhos: Sequence[float], threads: int | None, place: Place) -> None:
    """Replay all cells of a place (split seed, condition, pool) at some rhos that are not on disk."""
    seed, condition, pool = place
    trials = 10 if rhos is LONG_RHOS else 5
    todo = [
        (policy, rho)
        for policy in plan.policies
        for rho in rhos
        if _trials_of(cell_path(work, pool, condition, seed, policy, rho)) < trials
    ]
    if not todo:
        return
    if condition == "severe" and not can_be_severe(pool):
        print(f"{pool}: no task of it is known to be another kind of work, so no severe", flush=True)
        return
    begin = time.perf_counter()
    processor = time.process_time()
    try:
        test = problem(work, pool, condition, seed, plan.setup)
    except DataError as error:
        if not plan.setup.rehearsal:
            raise
        print(f"{pool} {condition} split {seed}: no rehearsal, for {error}", flush=True)
        return
    built = time.process_time() - processor
    stream = condition if condition in STREAM_CONDITIONS else "none"
    for policy, rho in todo:
        name, options = VARIANTS.get(policy, (policy, SILENT.get(policy, {})))
        result = replay(
            test, name, rho=rho, trials=trials, threads=threads, options=options, condition=stream
        )
        _save(cell_path(work, pool, condition, seed, policy, rho), result, test)
    spent = time.perf_counter() - begin
    processor = time.process_time() - processor
    print(
        f"{pool} {condition} split {seed}: {len(todo)} cells of {trials} trials in {spent:.0f} s (processor "
        f"{processor:.1f} s, {built:.1f} of it for the problem)",
        flush=True,
    )


def _trials_of(path: Path) -> int:
    """Return the number of trials of a stored cell, 0 if there is none."""
    if not path.is_file():
        return 0
    with np.load(path, allow_pickle=False) as stored:
        return int(stored["utilities"].shape[0])


def _save(path: Path, result: ReplayResult, test: ReplayProblem) -> None:
    """Write the figures of a replay as a cell."""
    assert result.uncertified is not None and result.seconds is not None
    queries = np.zeros(test.n)
    np.add.at(queries, result.order.ravel(), result.rewards.ravel())
    plays = np.bincount(result.order.ravel(), minlength=test.n)
    with atomic_path(path) as temporary, open(temporary, "wb") as handle:
        np.savez_compressed(
            handle,
            utilities=result.rewards.mean(axis=1),
            regrets=(result.best_rewards - result.rewards).mean(axis=1),
            queries=(queries / np.maximum(plays, 1)).astype(np.float32),
            clusters=np.arange(test.n) if test.clusters is None else test.clusters,
            costs=_per_query(result, test.costs, plays),
            scores=_per_query(result, test.scores, plays),
            uncertified=np.array(int(result.uncertified.sum())),
            seconds=np.array(float(result.seconds.sum())),
        )


def _per_query(result: ReplayResult, values: np.ndarray, plays: np.ndarray) -> np.ndarray:
    """Return for every query the mean over trials of a value of the played arm, `[n]`.

    Args:
        result: the replay.
        values: costs or scores, `[n, K]`.
        plays: number of rounds of each query, `[n]`.
    """
    total = np.zeros(len(values))
    np.add.at(total, result.order.ravel(), values[result.order, result.actions].ravel())
    means: np.ndarray = (total / np.maximum(plays, 1)).astype(np.float32)
    return means


def _check_setup(work: Path, setup: Setup) -> None:
    """Refuse a folder whose cells are of another setup, since cells of two setups must not stand in one
    table.

    Raises:
        CabsError: the folder has another setup, or does not say which.
    """
    path = work / "setup.json"
    if not path.is_file():
        if (work / "cells").is_dir():
            raise CabsError(
                f"{work} holds cells and does not say of which setup; give this study another --work"
            )
        work.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(asdict(setup)))
        return
    stored = Setup(**json.loads(path.read_text(encoding="utf-8")))
    if stored != setup:
        raise CabsError(f"{work} holds cells of {stored}; this study has {setup}: give it another --work")


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Replay the missing cells, print and return the figures. The module describes the options."""
    parser = Script(__file__, __doc__)
    parser.add_argument("--split-seeds", nargs="+", type=int)
    parser.add_argument("--protocol", choices=("full", "short", "field", "choose"), default="full")
    parser.add_argument("--pool", nargs="+", metavar="NAME")
    parser.add_argument("--conditions", nargs="+", choices=sorted(CONDITIONS))
    parser.add_argument("--policies", nargs="+")
    parser.add_argument("--encoder", help="Instead of the pools' own, such as tfidf-svd")
    parser.add_argument("--oracle", choices=("auto", "network", "ridge"), help="Instead of the pools' own")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--threads", type=int, help="Trials of a replay at once (default: all processors)")
    parser.add_argument("--jobs", type=int, default=1, help="Processes; give --threads 1 with several")
    parser.add_argument("--table-only", action="store_true", help="Only read what is on disk")
    args = parser.parse_args(argv)
    field = args.protocol in ("field", "choose")
    pools, conditions, splits, policies = DEFAULTS.get(args.protocol, DEFAULTS["full"])
    base = FIELD_SETUP if field else Setup()
    setup = Setup(args.encoder or base.encoder, args.oracle or base.oracle, base.mean_cost, base.most)
    work = args.work or cabs_home() / ("study-field" if field else "study")
    plan = Plan(
        tuple(args.pool or pools),
        tuple(args.conditions or conditions),
        tuple(args.split_seeds or splits),
        tuple(args.policies or policies),
        args.protocol,
        setup,
    )
    _check_setup(work, setup)

    def play(plan: Plan, work: Path) -> None:
        if not args.table_only:
            run(plan, work, args.threads, args.jobs)

    rehearsed = None
    if args.protocol == "choose":
        rehearsal = replace(
            plan, policies=(*SIMPLE, *CANDIDATES), setup=replace(setup, rehearsal=True, most=REHEARSED)
        )
        _check_setup(work / "rehearsal", rehearsal.setup)
        play(rehearsal, work / "rehearsal")
        rehearsed = study_ranking.ranking(rehearsal, work / "rehearsal")
        chosen = study_ranking.choices(rehearsed, plan.pools, plan.conditions)
        plan = replace(plan, policies=tuple(dict.fromkeys([*plan.policies, *chosen.values()])))
    play(plan, work)
    figures = table(plan, work)
    figures["ranking"] = study_ranking.ranking(plan, work, rehearsed=rehearsed)
    text = [*show(figures), *study_ranking.lines(figures["ranking"])]
    if rehearsed is not None:
        figures["rehearsed"] = rehearsed
    print("\n".join([*text, *study_ranking.parts(rehearsed or figures["ranking"])]))
    write_figures(figures, args.json)
    return figures


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of every process of --jobs
    try:
        main()
    except CabsError as error:
        sys.exit(f"error: {error}")
