"""A model comes to a router that serves: how soon is it played as much as it will be, and what is lost?

    python -m benchmarks.joining [--table NAME ...] [--policy NAME ...] [--scored 8 20 50] [--rounds 2000]
        [--seeds 4] [--queries 4000]
    python -m benchmarks.joining --like [--policy NAME ...] [--seeds 4]
    python -m benchmarks.joining --static [--table NAME ...] [--policy NAME ...] [--scored 8 20] [--seeds 4]

Real tables, a parquet file each with the columns query_id, prompt, model, score, cost. The model that is best
by itself is held back: the router's table does not have it. At round JOINS it comes by `add_model`, with so
many scored prompts of the train split. Everybody is asked the same prompts of the
test split in the same order and explores FLOOR; every answer is scored and taught. `whole` is the same
policy with the whole column of the model from the start; `lin_ucb` learns from nothing in either case.

Printed: the share of the rounds that the model gets in the last fifth; rounds from its coming until its
share, over WINDOW rounds and from then on, is within NEAR of that; the utility a round from its coming on,
and what is lost of it against `whole` of the same policy, with its standard error over prompts.

`--like`: a model that is right on .9 of the prompts joins five that are right on .6, like the first of them,
and LIKE_ROUNDS rounds follow. Printed: the share of the last LIKE_LAST rounds that the new model gets, its
mean over seeds and its least value.

`--static`: each of HELD_BACK models of a table is held back and joins a static router by m scored prompts,
with as many draws as `--seeds` says. Printed: the mean utility of the test prompts that is lost against the
router without the model, its mean over models and draws and its largest value. A negative loss is a gain.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.script import Script, head, row, write_figures
from cabs_core.algorithms.oracles.problems import build_problems
from cabs_core.algorithms.oracles.train import train_oracles
from cabs_core.base.catalog.policies import policies as catalog
from cabs_core.base.paths import data_dir
from cabs_core.base.statistics.uncertainty import mean_error
from cabs_core.base.utility import clipped_utility
from cabs_core.data.encoders.embed import embed_prompts
from cabs_core.data.events.log import EventLog
from cabs_core.data.outcomes import load_outcomes, make_splits
from cabs_core.data.outcomes.sources.demo_prompts import generate_prompts
from cabs_core.data.pool_files import ModelPool, PoolFile, pool_from
from cabs_core.router.build import build_bundle
from cabs_core.router.ingredients import Ingredients
from cabs_core.router.joining import NewModel, Scored, add_model
from cabs_core.router.options import RouterOptions
from cabs_core.router.router import Router

TABLES = ("paretobandit_k4", "routerbench_sub3", "openllm_lb_v2_carrot")
POLICIES = ("hier_mix", "uniroute", "lin_ucb")
JOINS = 500
WINDOW = 200
NEAR = 0.05
FLOOR = 0.02
#: rounds after a model has joined like another one, and those at the end of which its share is printed
LIKE_ROUNDS = 1000
LIKE_LAST = 250
#: static policies of `--static`, its tables, and the places of the models held back, by their mean utility
STATIC_POLICIES = ("carrot", "kernel_ridge")
HELD_BACK = (0.0, 0.5, 1.0)
#: what a mean answer costs, in units of score: it says which rho a table is played at
MEAN_COST = 0.1


@dataclass(frozen=True)
class Table:
    """A complete table: prompts [n], scores and costs [n, K], and where each prompt is ('train', ...)."""

    pool: ModelPool
    ingredients: Ingredients
    rho: float
    best: int

    @property
    def arms(self) -> list[str]:
        """Names of the models."""
        return self.ingredients.outcomes.arms


def complete(path: Path, queries: int) -> pd.DataFrame:
    """Return the rows of at most `queries` queries that every model has answered, one query a prompt."""
    frame = pd.read_parquet(path, columns=["query_id", "prompt", "model", "score", "cost"]).dropna()
    first = frame.groupby("prompt")["query_id"].transform("first")
    frame = frame[frame["query_id"] == first].drop_duplicates(["query_id", "model"])
    counts = frame.groupby("query_id")["model"].transform("count")
    frame = frame[counts == frame["model"].nunique()]
    names = frame["query_id"].drop_duplicates()
    chosen = names.sample(min(queries, len(names)), random_state=0)
    return frame[frame["query_id"].isin(chosen)]


def read(
    path: Path, queries: int, folder: Path, without: str | None = None, train: int | None = None
) -> Table:
    """Return a table as a router is made from it.

    Args:
        path: file of the table.
        queries: most queries to read.
        folder: folder for the router's table.
        without: model that the router's table does not have.
        train: most train prompts; all others are test prompts.
    """
    frame = complete(path, queries)
    rho = MEAN_COST / frame["cost"].mean()
    frame = frame if without is None else frame[frame["model"] != without]
    file = folder / f"{path.stem}.parquet"
    frame.to_parquet(file)
    columns = {"prompt": "prompt", "model": "model", "score": "score", "cost": "cost"}
    pool = pool_from(
        {
            "name": path.stem,
            "source": {"kind": "file", "path": str(file), "columns": columns},
            "encoder": {"name": "tfidf-svd"},
            "oracle": {"kind": "ridge"},
            "replay": {"rhos": [0, rho]},
            "tuning_budget": 0,
        }
    )
    outcomes = load_outcomes(PoolFile(pool, folder / "pool.yaml", False))
    split = make_splits(outcomes, pool.split)
    if train is not None:
        split[np.random.default_rng(0).permutation(np.flatnonzero(split == "train"))[train:]] = "test"
    fitted = [p for p, s in zip(outcomes.prompts, split, strict=True) if s == "train"]
    vectors, report = embed_prompts(
        outcomes.prompts, pool.encoder, store=folder / "store", device="cpu", fit_prompts=fitted
    )
    oracles = train_oracles(vectors, outcomes, split, pool.oracle, features=pool.features, device="cpu")
    problems = build_problems(outcomes, split, vectors, oracles, pool)
    encoding = {"identity": report.identity, "dtype": report.dtype}
    ingredients = Ingredients(
        outcomes, split, vectors, problems.__getitem__, lambda: oracles, {}, encoding, fitted
    )
    utilities = clipped_utility(outcomes.scores, outcomes.costs, rho)
    return Table(pool, ingredients, rho, int(utilities[split == "train"].mean(axis=0).argmax()))


def brought_by(table: Table, scored: int, seed: int) -> Scored:
    """Return scored train prompts of the model at `table.best`, drawn without replacement.

    Args:
        scored: number of prompts.
    """
    outcomes = table.ingredients.outcomes
    train = np.flatnonzero(table.ingredients.split == "train")
    rows = np.random.default_rng([seed, 1]).choice(train, scored, replace=False)
    texts = [outcomes.prompts[j] for j in rows]
    return Scored(texts, outcomes.scores[rows, table.best], outcomes.costs[rows, table.best])


def play(
    table: Table, folder: Path, order: np.ndarray, seed: int, start: int | str | None
) -> tuple[Any, Any]:
    """Return the utility of each round, and whether the joining model was played, both `[T]`, on test
    prompts.

    Args:
        table: the table.
        folder: folder of the router's bundle, which is changed when the model joins.
        order: rows of the table, `[T]`.
        seed: seed of the draws.
        start: number of scored prompts that the model brings.
    """
    outcomes = table.ingredients.outcomes
    new = table.arms[table.best]
    utilities = np.empty(len(order))
    played = np.zeros(len(order), dtype=bool)
    log = EventLog(folder.parent / f"{folder.name}.sqlite")
    try:
        router = Router.load(folder, RouterOptions(seed=seed), log=log)
        for t, i in enumerate(order):
            if t == JOINS and start is not None:
                if isinstance(start, str):
                    add_model(folder, NewModel(new, like=start), log=log, encoder=router.encoder)
                else:
                    brought = brought_by(table, start, seed)
                    joins = NewModel(new, scored=brought, anyway=True)  # a static router refuses 8 prompts
                    add_model(folder, joins, log=log, encoder=router.encoder)
                router = Router.load(folder, RouterOptions(seed=seed), log=log, encoder=router.encoder)
            decision = router.route(outcomes.prompts[i])
            arm = table.arms.index(decision.model)
            score = float(outcomes.scores[i, arm])
            cost = float(outcomes.costs[i, arm])
            router.feedback(decision.id, score=score, cost=cost)
            utilities[t] = clipped_utility(np.array([score]), np.array([cost]), table.rho)[0]
            played[t] = arm == table.best
    finally:
        log.close()
    return utilities, played


def settled(played: np.ndarray) -> tuple[float, float]:
    """Return the share of the last fifth of the rounds in which the model was played, and the rounds from
    JOINS on until the share is near this value and stays there.

    Args:
        played: whether the model was played, `[seeds, T]`.
    """
    shares = played.mean(axis=0)
    end = float(shares[-len(shares) // 5 :].mean())
    window = np.convolve(shares[JOINS:], np.ones(WINDOW) / WINDOW, mode="valid")
    far = np.flatnonzero(np.abs(window - end) > NEAR)
    return end, float(far[-1] + 1 if len(far) else 0)


def measure(
    path: Path, policies: Sequence[str], scored: Sequence[int], rounds: int, seeds: int, queries: int
) -> list[dict[str, Any]]:
    """Return the rows of one table: one per policy and number of scored prompts."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="cabs-joining-") as name:
        work = Path(name)
        whole = read(path, queries, work)
        new = whole.arms[whole.best]
        less = read(path, queries, work, without=new)
        test = np.flatnonzero(whole.ingredients.split == "test")
        orders = [np.random.default_rng([seed, 0]).choice(test, rounds) for seed in range(seeds)]
        for policy in policies:
            runs = {}
            for start in (None, *scored):
                table = whole if start is None else less
                made = []
                for seed, order in enumerate(orders):
                    folder = work / f"{policy}-{start}-{seed}"
                    rho = whole.rho
                    build_bundle(folder, table.pool, table.ingredients, policy=policy, rho=rho, epsilon=FLOOR)
                    made.append(play(whole, folder, order, seed, start))
                runs[start] = [np.array(part) for part in zip(*made, strict=True)]
                after = slice(JOINS, None)
                lost = (runs[None][0] - runs[start][0])[:, after].ravel()
                error = mean_error(lost, clusters=np.concatenate([o[after] for o in orders])).value
                end, rounds_until = settled(runs[start][1])
                rows.append(
                    {
                        "table": path.stem,
                        "new": new,
                        "policy": policy,
                        "start": "whole" if start is None else start,
                        "share": end,
                        "rounds": rounds_until,
                        "utility": float(runs[start][0][:, after].mean()),
                        "lost": float(lost.mean()),
                        "se": error,
                    }
                )
                shown = (f"{v:.4f}" if isinstance(v, float) else v for v in rows[-1].values())
                print(row(*shown), flush=True)
    return rows


def equal_models(folder: Path) -> Path:
    """Write a table of five models that are right on .6 of the prompts, and of `new`, right on .9."""
    prompts = generate_prompts(1200, np.random.default_rng(0)).prompts
    prompts = list(dict.fromkeys(prompts))
    rng = np.random.default_rng(1)
    parts = []
    for name in (*(f"model-{j}" for j in range(5)), "new"):
        right = rng.random(len(prompts)) < (0.9 if name == "new" else 0.6)
        columns = {
            "query_id": range(len(prompts)),
            "prompt": prompts,
            "model": name,
            "score": right.astype(float),
        }
        parts.append(pd.DataFrame({**columns, "cost": 1e-4}))
    path = folder / "equal_models.parquet"
    pd.concat(parts, ignore_index=True).to_parquet(path)
    return path


def measure_like(policies: Sequence[str], seeds: int) -> list[dict[str, Any]]:
    """Return the share of the last `LIKE_LAST` rounds that a better model gets which joined as like
    another.
    """
    rows = []
    with tempfile.TemporaryDirectory(prefix="cabs-joining-") as name:
        work = Path(name)
        path = equal_models(work)
        tables = work / "tables"
        tables.mkdir()
        whole = read(path, 4000, tables)
        less = read(path, 4000, tables, without="new")
        whole = replace(whole, best=whole.arms.index("new"))
        test = np.flatnonzero(whole.ingredients.split == "test")
        for policy in policies:
            shares = []
            for seed in range(seeds):
                order = np.random.default_rng([seed, 0]).choice(test, JOINS + LIKE_ROUNDS)
                folder = work / f"{policy}-{seed}"
                build_bundle(folder, less.pool, less.ingredients, policy=policy, rho=less.rho, epsilon=FLOOR)
                _, played = play(whole, folder, order, seed, "model-0")
                shares.append(float(played[-LIKE_LAST:].mean()))
            rows.append({"policy": policy, "share": float(np.mean(shares)), "least": min(shares)})
            print(row(policy, f"{rows[-1]['share']:.2f}", f"{rows[-1]['least']:.2f}"), flush=True)
    return rows


def measure_static(
    path: Path, policies: Sequence[str], scored: Sequence[int], draws: int, queries: int
) -> list[dict[str, Any]]:
    """Return the utility that a static router loses by a model that joins with a few scored prompts."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="cabs-joining-") as name:
        work = Path(name)
        whole = read(path, queries, work)
        outcomes = whole.ingredients.outcomes
        utilities = clipped_utility(outcomes.scores, outcomes.costs, whole.rho)
        ranks = np.argsort(utilities[whole.ingredients.split == "train"].mean(axis=0))
        test = np.flatnonzero(whole.ingredients.split == "test")
        prompts = [outcomes.prompts[i] for i in test]
        for policy in policies:
            losses: dict[int, list[float]] = {m: [] for m in scored}
            for place in HELD_BACK:
                new = int(ranks[round(place * (len(ranks) - 1))])
                table = replace(whole, best=new)
                less = read(path, queries, work, without=whole.arms[new])
                folder = work / f"{policy}-{new}"
                build_bundle(folder, less.pool, less.ingredients, policy=policy, rho=whole.rho, epsilon=0.0)
                without = earned(folder, whole.arms, prompts, utilities[test])
                for m, seed in product(scored, range(draws)):
                    joined = work / f"{policy}-{new}-{m}-{seed}"
                    shutil.copytree(folder, joined)
                    log = joined.with_suffix(".sqlite")
                    add_model(
                        joined,
                        NewModel(whole.arms[new], scored=brought_by(table, m, seed), anyway=True),
                        log=log,
                    )
                    losses[m].append(without - earned(joined, whole.arms, prompts, utilities[test]))
                    shutil.rmtree(joined)
            for m, lost in losses.items():
                rows.append(
                    {
                        "table": path.stem,
                        "policy": policy,
                        "scored": m,
                        "mean": float(np.mean(lost)),
                        "worst": max(lost),
                        "losing": float(np.mean(np.array(lost) > 0.0)),
                    }
                )
                shown = (f"{v:.4f}" if isinstance(v, float) else v for v in rows[-1].values())
                print(row(*shown), flush=True)
    return rows


def earned(folder: Path, arms: Sequence[str], prompts: list[str], utilities: np.ndarray) -> float:
    """Return the mean utility of a router's choices.

    Args:
        arms: names of the K columns of `utilities` `[n, K]`, which has a row for each prompt.
    """
    router = Router.load(folder, RouterOptions(seed=0), log=":memory:")
    try:
        chosen = [arms.index(decision.model) for decision in router.route_many(prompts)]
    finally:
        router.log.close()
    return float(utilities[np.arange(len(chosen)), chosen].mean())


def add_options(parser: Script, policies: Sequence[str], seeds: int) -> None:
    """Add the options of a script that plays routers on real tables to its parser."""
    parser.add_argument("--table", nargs="+", default=list(TABLES), metavar="NAME")
    parser.add_argument("--policy", nargs="+", default=list(policies), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--queries", type=int, default=4000, help="at most, of a table")


def paths_of(tables: Sequence[str], parser: Script) -> list[Path]:
    """Return the files of tables in the folder that CABS_DATA_DIR names.

    Without this folder the script ends with advice.
    """
    folder = data_dir()
    if folder is None:
        parser.error("set CABS_DATA_DIR to the folder of the tables")
    return [folder / f"{name}.parquet" for name in tables]


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Measure every table, print and return the rows."""
    parser = Script(__file__, __doc__)
    add_options(parser, (), seeds=4)
    parser.add_argument("--scored", nargs="+", type=int, default=[8, 20, 50])
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--like", action="store_true", help="a model that joins like another one")
    which.add_argument("--static", action="store_true", help="static routers and few scored prompts")
    given = parser.parse_args(argv)
    rows = []
    if given.like:
        learning = [record.name for record in catalog().values() if record.feedback == "bandit"]
        print(head("policy", "share", "least"))
        rows = measure_like(given.policy or learning, given.seeds)
    elif given.static:
        print(head("table", "policy", "scored", "mean loss", "worst loss", "draws that lose"))
        for path in paths_of(given.table, parser):
            policies = given.policy or STATIC_POLICIES
            rows += measure_static(path, policies, given.scored, given.seeds, given.queries)
    else:
        print(head("table", "new model", "policy", "scored", "share", "rounds", "utility", "lost", "error"))
        for path in paths_of(given.table, parser):
            policies = given.policy or POLICIES
            rows += measure(path, policies, given.scored, given.rounds, given.seeds, given.queries)
    write_figures(rows, given.json)
    return rows


if __name__ == "__main__":
    main()
