"""From nothing to a verdict: is it right, what does it cost, and how fast are models asked?

    python -m benchmarks.collect stand-in [--seeds 20]      # the verdict is known: all against adaptive
    python -m benchmarks.collect tables [--seeds 5]         # real tables, as if each answer had to be paid
    python -m benchmarks.collect worlds [--seeds 200]       # decisions where nothing, or .05, is gained
    python -m benchmarks.collect speed [--prompts 10000]    # calls a second, memory
    ... [--json FILE]

`stand-in` collects 300 prompts of five kinds from four models, has them judged (15 % errors, a length bias),
makes the stages of the chain, and decides by the report's rule on the test split, whose router was chosen on
validation.
"""

from __future__ import annotations

import itertools
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.script import Script, write_figures
from benchmarks.speed.servers import start_stand_in
from cabs_core.algorithms.problem.gaps import real_values
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.statistics.uncertainty import two_way_error
from cabs_core.base.units import percentage
from cabs_core.data.collect.answers import collect_answers, looks
from cabs_core.data.collect.instrument import warnings
from cabs_core.data.collect.plan import collection_of
from cabs_core.data.collect.store import AnswerStore
from cabs_core.data.collect.verdict import Look, look, shares_of
from cabs_core.data.inputs import tuned_options
from cabs_core.data.outcomes import load_outcomes
from cabs_core.data.outcomes.raw import RawOutcomes
from cabs_core.data.pool_files import read_pool_file
from cabs_core.data.pools.find import find_pool
from cabs_core.evaluation.replay.engine import replay
from cabs_core.pipeline.artifacts import ArtifactStore, Chain, make_artifact
from cabs_core.pipeline.stages.answers import AnswersSummary
from cabs_core.pipeline.stages.scores import ScoresSummary, sheet
from cabs_core.report.gap import Bounded, decide, estimate
from cabs_core.router.build import choose_policy
from cabs_server.stand_in.models import label, make_prompts, upstreams_text

RHO = 30.0
POOL = """\
name: {name}
source: {{kind: collect, path: prompts.csv, columns: {{task: kind}}}}
models: [tiny, coder, writer, grand]
collect:
  upstreams: upstreams.yaml
  max_usd: 100
  params: {{max_tokens: 100}}
  strategy: {strategy}
  sample: 60
  scores:
    - kind: judge
      model: judge
      max_usd: 100
      labels: labels.csv
      rubric: "The answer must end on the right result."
split: {{fractions: [0.4, 0.1, 0.5]}}
encoder: {{name: tfidf-svd}}
oracle: {{kind: ridge}}
features: {{dim: 16}}
replay: {{trials: 3, rhos: [0, 30, 100]}}
router: {{rho: 30}}
policies: [best_single, ridge, kernel_ridge, lin_ts, hier_mix]
"""
ROUTERS = ("ridge", "kernel_ridge", "hier_mix")
TABLES = {"routerbench_sub3": (100.0,), "paretobandit_k4": (300.0,), "openllm_lb_v2_carrot": (300.0,)}


@contextmanager
def served() -> Iterator[int]:
    """The port of a stand-in in a process of its own."""
    process, port = start_stand_in()
    try:
        yield port
    finally:
        process.terminate()
        process.wait()


def collected(folder: Path, port: int, seed: int, strategy: str) -> Chain:
    """A pool of one seed with its answers and scores made; labels for half of the prompts."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = make_prompts(300, seed)
    lines = [
        "prompt,kind,answer",
        *(f'"{r["prompt"]}",{r["kind"]},"{r["answer"].replace(chr(34), chr(34) * 2)}"' for r in rows),
    ]
    (folder / "prompts.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "upstreams.yaml").write_text(upstreams_text(port), encoding="utf-8")
    (folder / "labels.csv").write_text("item,prompt,answer,score\nnothing,p,a,1\n", encoding="utf-8")
    name = f"seed{seed}_{strategy}"
    (folder / f"{name}.yaml").write_text(POOL.format(name=name, strategy=strategy), encoding="utf-8")
    chain = Chain(ArtifactStore(), read_pool_file(folder / f"{name}.yaml"))
    for stage in ("answers", "scores"):
        make_artifact(chain, chain.stage(stage))
    if strategy == "all":  # the judge is measured on half of the answers
        sheet(chain.verified(chain.stage("answers")), 600, 0).to_csv(folder / "labels.csv", index=False)
        label(folder / "labels.csv")
        chain = Chain(ArtifactStore(), chain.pool_file)
        make_artifact(chain, chain.stage("scores"))
    return chain


def verdict_of(chain: Chain) -> dict[str, Any]:
    """The report's rule: the router that validation chose against the best single model, on test."""
    for stage in chain.stage("router").inputs:
        make_artifact(chain, stage)
    inputs = chain.require(chain.stage("router"))
    options = tuned_options(inputs)
    problem = ReplayProblem.load(inputs["replay_problem"] / "test")
    choice = choose_policy(
        ReplayProblem.load(inputs["replay_problem"] / "validation"), ROUTERS, RHO, options=options
    )

    cells = real_values(problem, RHO)  # of single cells, estimates

    def per_query(policy: str) -> np.ndarray:
        """Utility, score and cost `[3, n]`, means over trials."""
        result = replay(problem, policy, RHO, 3, 0, options=options.get(policy))
        total = np.zeros((3, problem.n))
        for row, values in zip(total, (cells.utility, cells.score, cells.cost), strict=True):
            np.add.at(row, result.order.ravel(), values[result.order, result.actions].ravel())
        return total / len(result.order)

    def of(differences: np.ndarray, value: float) -> Bounded:
        error = two_way_error(0.0, float(differences.std(ddof=1) / np.sqrt(problem.n)), 3, problem.n)
        return estimate(value, error, len(ROUTERS))

    routed, single = per_query(choice.policy), per_query("best_single")
    utility, quality = (of(d, float(d.mean())) for d in (routed - single)[:2])
    full = single[2].mean()
    left = routed[2].mean() / full
    saved = of((routed[2] - left * single[2]) / full, float(1 - left))
    return {
        "decision": decide(utility, quality, saved),
        "router": choice.policy,
        "difference": utility.value,
        "low": utility.low,
        "high": utility.high,
        "test": problem.n,
    }


def stand_in(seeds: int) -> list[dict[str, Any]]:
    """Every seed with both strategies, and what the chain makes of both tables.

    Each has a CABS_HOME of its own, so that nothing is known beforehand.
    """
    rows = []
    with served() as port, tempfile.TemporaryDirectory() as folder:
        for seed in range(seeds):
            row: dict[str, Any] = {"seed": seed}
            for strategy in ("all", "adaptive"):
                os.environ["CABS_HOME"] = str(Path(folder) / f"{seed}_{strategy}")
                chain = collected(Path(folder) / f"{seed}_{strategy}" / "pool", port, seed, strategy)
                answers, scores = (chain.store.record((s, chain.pool.name)) for s in ("answers", "scores"))
                assert answers is not None and scores is not None
                asked, scored = AnswersSummary.of(answers), ScoresSummary.of(scores)
                usd = asked.paid + scored.paid
                row |= {f"{strategy} usd": usd, f"{strategy} prompts": asked.prompts}
                if strategy == "all":
                    judged = scored.judges["judge"]
                    row |= {
                        "all": verdict_of(chain),
                        "length bias": judged["length of wrong answers"],
                        "reported": [w for w in warnings(judged) if "favours long answers" in w],
                        "agreement": judged["agreement"]["value"],
                    }
                else:
                    row |= {"adaptive": asked.looks[-1], "chain": verdict_of(chain)}
            rows.append(row)
            share = row["adaptive usd"] / row["all usd"]
            print(
                f"seed {seed:2d}: all {row['all']['decision']} {row['all']['difference']:+.3f}; length bias "
                f"{row['length bias']['value']:+.3f} ({row['length bias']['low']:+.3f} to "
                f"{row['length bias']['high']:+.3f}); adaptive {row['adaptive']['decision']} after "
                f"{row['adaptive prompts']} prompts, {percentage(share)} of the cost, and the chain then "
                f"{row['chain']['decision']} {row['chain']['difference']:+.3f}",
                flush=True,
            )
    shares = [r["adaptive usd"] / r["all usd"] for r in rows]
    right = [sum(r[s]["decision"] == "deploy" for r in rows) for s in ("all", "adaptive", "chain")]
    seen = sum(bool(r["reported"]) for r in rows)
    print(
        f"{len(rows)} seeds: right verdict with all {right[0]}, adaptive {right[1]} (of the chain on what "
        f"it asked {right[2]}); median cost of adaptive "
        f"{percentage(np.median(shares))} of all; the length bias was reported in {seen}"
    )
    return rows


def tables(seeds: int, most: int) -> list[dict[str, Any]]:
    """Real tables: prompts in random order, every answer costs what the table says."""
    rows = []
    for name, rhos in TABLES.items():
        table = load_outcomes(find_pool(name))
        for rho in rhos:
            for seed in range(seeds):
                order = np.random.default_rng(seed).permutation(len(table))[:most]
                row = played(table.take(order), rho, seed)
                rows.append({"table": name, "rho": rho, "seed": seed, **row})
                print(
                    f"{name} rho {rho:g} seed {seed}: full {row['full']} {row['full difference']:+.4f}; "
                    f"adaptive {row['decision']} after {row['prompts']} of {row['of']} prompts, "
                    f"{percentage(row['cells'])} of their answers, {percentage(row['share'])} of the cost",
                    flush=True,
                )
    return rows


def played(table: Any, rho: float, seed: int, sample: int = 100, *, full: bool = True) -> dict[str, Any]:
    """One order of one table by the rules of strategy `adaptive`; `full`: beside what all answers say."""
    n, k = table.scores.shape
    draws, observed = np.random.default_rng([seed, 99]).random((n, k)), np.zeros((n, k))

    def seen(last: int, asked: np.ndarray) -> Look:
        rows = table.prompts[:last], table.arms, table.scores[:last], table.costs[:last], asked
        return look(*rows, rho, tuned=2 * sample, seed=seed)

    done, shares = 0, np.ones(k)
    for last in looks(sample, n):
        observed[done:last] = np.where(draws[done:last] < shares, shares, 0.0)
        done, verdict = last, seen(last, observed[:last])
        if verdict.decision != "unsure":
            break
        costs = np.where(observed[:done] > 0, table.costs[:done], np.nan)
        shares = shares_of(np.array(verdict.matters), np.nanmean(costs, axis=0))
    everything = seen(n, np.ones((n, k))) if full else verdict
    return {
        "full": everything.decision,
        "full difference": everything.difference,
        "decision": verdict.decision,
        "prompts": done,
        "of": n,
        "cells": float((observed[:done] > 0).mean()),
        "share": float((table.costs * (observed > 0)).sum() / table.costs.sum()),
    }


def worlds(seeds: int, n: int) -> list[dict[str, Any]]:
    """Three models, prompts of two kinds: how often strategy `adaptive` decides wrongly.

    Two of the models are better by `gap` at one kind each, so a router gains half of that over either.
    """
    rows = []
    for gap, costs in itertools.product((0.0, 0.1), ((1e-4, 1e-4, 1e-4), (1e-2, 1e-3, 1e-4))):
        decisions = []
        for seed in range(seeds):
            rng = np.random.default_rng([seed, int(100 * gap)])
            kinds = rng.integers(0, 2, n)
            prompts = [f"{('add the numbers', 'write a poem')[k]} {i}" for i, k in enumerate(kinds)]
            chance = np.column_stack([0.6 + gap * (kinds == 0), 0.6 + gap * (kinds == 1), np.full(n, 0.5)])
            scores = (rng.random((n, 3)) < chance).astype(float)
            table = RawOutcomes(
                query_ids=np.arange(n).astype(str),
                prompts=prompts,
                tasks=np.array(["all"] * n),
                arms=["a", "b", "c"],
                scores=scores,
                costs=np.tile(costs, (n, 1)),
            ).complete()
            decisions.append(played(table, 0.0, seed, full=False))
        of = {d: sum(r["decision"] == d for r in decisions) for d in ("deploy", "keep", "unsure")}
        share = float(np.median([r["share"] for r in decisions]))
        rows.append({"gap": gap, "costs": costs, "seeds": seeds, "prompts": n, **of, "median share": share})
        print(
            f"a router gains {gap / 2:g}, costs {costs}: {of} of {seeds}, {percentage(share)} of the cost",
            flush=True,
        )
    return rows


def speed(prompts: int) -> dict[str, Any]:
    """Every prompt to five models of the stand-in; memory of this process at the start, in the middle and at
    the end."""
    models = ["tiny", "coder", "writer", "grand", "tiny-2"]
    seen: list[float] = []
    with served() as port, tempfile.TemporaryDirectory() as folder:
        os.environ["CABS_HOME"] = folder
        place = Path(folder)
        rows = make_prompts(prompts)
        (place / "prompts.csv").write_text(
            "prompt\n" + "".join(f'"{r["prompt"]}"\n' for r in rows), encoding="utf-8"
        )
        (place / "upstreams.yaml").write_text(upstreams_text(port, tuple(models)), encoding="utf-8")
        pool = (
            "source: {kind: collect, path: prompts.csv}\n"
            f"models: [{', '.join(models)}]\nreplay: {{rhos: [0]}}\n"
            "collect: {upstreams: upstreams.yaml, max_usd: 1000, params: {max_tokens: 100}, "
            "scores: [{kind: regex, pattern: x}]}\n"
        )
        (place / "speed.yaml").write_text(pool, encoding="utf-8")
        collection = collection_of(read_pool_file(place / "speed.yaml"))

        def note(text: str) -> None:
            rss = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6
            seen.append(rss)
            print(f"{text}; {rss:.0f} MB", flush=True)

        note("before")
        begin = time.perf_counter()
        with AnswerStore() as store:
            answers = collect_answers(collection, store, note)
        seconds = time.perf_counter() - begin
        note("after")
    calls = answers.prompts * len(models)
    print(
        f"{calls:,} calls in {seconds:.0f} s: {calls / seconds:.0f} a second; {seen[0]:.0f} MB "
        f"before, at most {max(seen):.0f}"
    )
    return {"calls": calls, "seconds": seconds, "megabytes": seen}


#: what makes a part: its function, seeds and prompts, 0 where it has none
PARTS: dict[str, tuple[Any, int, int]] = {
    "stand-in": (stand_in, 20, 0),
    "tables": (tables, 5, 3000),
    "worlds": (worlds, 200, 600),
    "speed": (speed, 0, 10_000),
}


def main(arguments: list[str] | None = None) -> None:
    """Run one part."""
    parser = Script(__file__, __doc__)
    parser.add_argument("part", nargs="?", default="stand-in", choices=list(PARTS))
    parser.add_argument("--seeds", type=int, help="Default: 20; of tables 5, of worlds 200.")
    parser.add_argument(
        "--prompts", type=int, help="Default: 10,000; of tables at most 3,000, of worlds 600."
    )
    given = parser.parse_args(arguments)
    make, *defaults = PARTS[given.part]
    sizes = zip((given.seeds, given.prompts), defaults, strict=True)
    write_figures(make(*[size or default for size, default in sizes if default]), given.json)


if __name__ == "__main__":
    main()
