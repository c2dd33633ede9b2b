"""The comparison of policies on real outcomes: several splits, stress conditions, paired differences with errors.

Protocol: oracles and everything offline from the train split; the same orders, features and rounds for every
policy. The first split is replayed at 21 rhos in 10 trials, further splits at 9 rhos in 5 trials; with
`--protocol short` all splits are. Regime value = mean over the regime's rhos; overall = mean of the three.

    python -m cabs_core.bench.study --pool openllm_lb_v2_carrot --split-seeds 0 1 2 --work DIR [--json FILE]

Conditions on the data (shift, severe, corrupted, noisy) have a problem of their own. Conditions on the stream (drift,
arms_arrive, arms_disappear, delayed_rewards) are options of the replay and use the clean problem. Where a condition
leaves the test queries as they are, what it costs every policy is reported too: clean minus stressed, paired by query
and trial, if `clean` has been run.

Every (condition, split, policy, rho) is one small file under DIR/cells, written when it is done: interrupt and run
again at will. Problems are built under DIR/problems (<pool>/<condition>/seed<k>/test) unless they are there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from cabs_core.atomic import atomic_path, write_text
from cabs_core.bench.frontier_figures import FixedModels, combined, lines, sweep
from cabs_core.catalog import STREAM_CONDITIONS, asset_name
from cabs_core.errors import PoolError
from cabs_core.metrics import REGIMES, regime_of, standard_error, two_way_error
from cabs_core.paths import cabs_home
from cabs_core.policies.hier_options import WIDE_ANCHOR
from cabs_core.replay import ReplayProblem, replay

LONG_RHOS = tuple(float(r) for r in range(0, 1001, 50))
SHORT_RHOS = (0.0, 150.0, 300.0, 400.0, 550.0, 700.0, 800.0, 900.0, 1000.0)
#: folder -> stress condition
CONDITIONS = {
    "clean": "none",
    "shift": "task_shift",
    "severe": "severe_shift",
    "corrupted": "corrupted_oracle",
    "noisy": "noisy_oracle",
    **{name: name for name in STREAM_CONDITIONS},
}
#: conditions under which the same queries are routed as under `clean`
SAME_QUERIES = ("corrupted", "noisy", *STREAM_CONDITIONS)
POLICIES = (
    "random", "best_single", "oracle_best", "knn", "knn@literal", "carrot", "ridge", "kernel_ridge",
    "avengers_pro", "mf", "mf@pair", "mirt", "hier_shrink", "guarded_knn", "eagle", "stack", "pareto_bandit",
    "epsilon_greedy", "square_cb", "lin_ucb", "lin_ts", "lin_ucb@warm", "lin_ts@warm", "lin_ucb_full",
    "cabs_c_linear@literal", "cabs_d_linear@literal", "cabs_c_linear", "cabs_d_linear",
    "cabs_c_linear@tuned", "cabs_d_linear@tuned", "cabs_mix", "hier_mix", "hier_mix@two_models",
    "lin_ts_score", "cabs_c_all_arms", "cabs_c_tuned_warm", "hier_mix_wide",
)  # fmt: skip
#: changes what is logged, not what is played
SILENT = {"lin_ts": {"propensity": "sampled"}, "lin_ts@warm": {"propensity": "sampled"}}
#: condition `severe`: tasks of another kind of work, by pool (shell patterns); a pool's own split.test_tasks go first
SEVERE_TASKS = {
    "openllm_lb_v2_carrot": ("mmlu_pro_*",),  # knowledge questions after BBH's puzzles
    "openllm_lb_v2_carrot_tfidf": ("mmlu_pro_*",),
    "routerbench_sub3": ("mbpp",),  # programs after multiple choice
    "zeroeval": ("crux",),  # reading code after mathematics
}
#: policies with options, under a name of their own
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "lin_ts_score": ("lin_ts", {"propensity": "sampled", "target": "score"}),
    "cabs_c_all_arms": ("cabs_c_linear", {"graph": "all", "gamma": 16.0}),
    "cabs_c_tuned_warm": ("cabs_c_linear@tuned", {"warm": 0.3}),
    "hier_mix_wide": ("hier_mix@two_models", WIDE_ANCHOR),
}
#: (policy, reference, condition, least mean difference); None: no bound, reported only
MARGINS = (
    ("cabs_c_all_arms", "lin_ts", "clean", 0.02),
    ("cabs_c_all_arms", "lin_ts", "shift", 0.02),
    ("cabs_c_linear", "lin_ts", "clean", 0.012),
    ("cabs_mix", "lin_ts", "clean", 0.025),
    ("cabs_mix", "lin_ts", "shift", 0.025),
    ("hier_mix", "lin_ts", "clean", 0.03),
    ("hier_mix", "lin_ts", "shift", 0.025),
    ("hier_mix", "lin_ts", "severe", 0.02),
    ("hier_mix", "lin_ts", "corrupted", 0.01),
    ("hier_mix", "ridge", "clean", 0.0),
    ("hier_mix", "ridge", "severe", 0.0),
    ("kernel_ridge", "ridge", "clean", 0.004),
    ("hier_mix", "kernel_ridge", "clean", -0.006),
    ("hier_mix", "kernel_ridge", "shift", -0.006),
)


@dataclass(frozen=True)
class Plan:
    """What to run: pools x conditions x split seeds x policies, each split with its rhos and trials."""

    pools: tuple[str, ...]
    conditions: tuple[str, ...]
    split_seeds: tuple[int, ...]
    policies: tuple[str, ...]
    protocol: str = "full"

    def grid(self, split_seed: int) -> tuple[tuple[float, ...], int]:
        """(rhos, trials) of a split: the first one is replayed at length."""
        if self.protocol == "full" and split_seed == self.split_seeds[0]:
            return LONG_RHOS, 10
        return SHORT_RHOS, 5

    @property
    def shared(self) -> tuple[tuple[float, ...], int]:
        """(rhos, trials) that every split of the plan has: what the tables are about."""
        return self.grid(self.split_seeds[0]) if len(self.split_seeds) == 1 else (SHORT_RHOS, 5)


def problem(
    work: Path, pool_name: str, condition: str, split_seed: int, which: str = "test"
) -> ReplayProblem:
    """The problem of a pool under a condition, from DIR/problems or built there (encodes and trains oracles)."""
    condition = "clean" if condition in STREAM_CONDITIONS else condition
    folder = work / "problems" / pool_name / condition / f"seed{split_seed}"
    if not (folder / which / "meta.json").is_file():
        _build(folder, pool_name, condition, split_seed)
    return ReplayProblem.load(folder / which)


def severe_tasks(pool_name: str, tasks: Iterable[str]) -> tuple[str, ...]:
    """Tasks of another kind of work than the rest of a pool's, from `SEVERE_TASKS`.

    Raises:
        PoolError: nobody has said which tasks of this pool are another kind of work.
    """
    patterns = SEVERE_TASKS.get(pool_name, ())
    found = tuple(sorted({t for t in tasks if any(fnmatchcase(t, p) for p in patterns)}))
    if not found:
        raise PoolError(
            f"condition 'severe' on pool {pool_name!r}: which tasks are another kind of work cannot be read from their "
            f"names; name them in the pool's split.test_tasks. Its tasks: {', '.join(sorted(set(tasks))[:20])}"
        )
    return found


def _build(folder: Path, pool_name: str, condition: str, split_seed: int) -> None:
    from cabs_core.encoders import embed_prompts
    from cabs_core.oracles import build_problems, train_oracles
    from cabs_core.outcomes import load_outcomes, outcomes_under, split_under
    from cabs_core.pools import find_pool

    found = find_pool(pool_name)
    outcomes = load_outcomes(found)
    update: dict[str, Any] = {"split_seed": split_seed}
    if condition == "severe" and not found.pool.split.test_tasks:
        update["test_tasks"] = severe_tasks(pool_name, outcomes.tasks.tolist())
    split_settings = found.pool.split.model_copy(update=update)
    pool = found.pool.model_copy(update={"split": split_settings})
    split = split_under(outcomes, split_settings, CONDITIONS[condition])
    outcomes = outcomes_under(outcomes, split, CONDITIONS[condition], split_seed)
    embeddings, _ = embed_prompts(
        outcomes.prompts,
        pool.encoder,
        store=cabs_home() / "embeddings",
        fit_prompts=[p for p, part in zip(outcomes.prompts, split, strict=True) if part == "train"],
    )
    oracles = train_oracles(embeddings, outcomes, split, pool.oracle, features=pool.features)
    for name, built in build_problems(outcomes, split, embeddings, oracles, pool).items():
        built.save(folder / name)


def cell_path(work: Path, pool: str, condition: str, split_seed: int, policy: str, rho: float) -> Path:
    """File of one (condition, split, policy, rho)."""
    name = policy if policy in VARIANTS else asset_name(policy)
    return work / "cells" / pool / condition / f"seed{split_seed}" / name / f"{int(rho):04d}.npz"


def run(plan: Plan, work: Path, threads: int | None = None) -> None:
    """Replay whatever is not on disk yet, the short grid of all splits before the long one of the first."""
    passes = [SHORT_RHOS, LONG_RHOS] if plan.protocol == "full" else [SHORT_RHOS]
    for wanted, (pool, condition, seed) in product(
        passes, product(plan.pools, plan.conditions, plan.split_seeds)
    ):
        rhos, trials = plan.grid(seed)
        if wanted is LONG_RHOS and rhos is not LONG_RHOS:
            continue
        trials = trials if wanted is LONG_RHOS else 5
        todo = [
            (policy, rho)
            for policy in plan.policies
            for rho in wanted
            if _trials_of(cell_path(work, pool, condition, seed, policy, rho)) < trials
        ]
        if not todo:
            continue
        test = problem(work, pool, condition, seed)
        stream = condition if condition in STREAM_CONDITIONS else "none"
        for policy, rho in todo:
            name, options = VARIANTS.get(policy, (policy, SILENT.get(policy, {})))
            result = replay(
                test, name, rho=rho, trials=trials, threads=threads, options=options, condition=stream
            )
            _save(cell_path(work, pool, condition, seed, policy, rho), result, test)
        print(f"{pool} {condition} split {seed}: {len(todo)} cells of {trials} trials done", flush=True)


def _trials_of(path: Path) -> int:
    if not path.is_file():
        return 0
    with np.load(path, allow_pickle=False) as stored:
        return int(stored["utilities"].shape[0])


def _save(path: Path, result, test: ReplayProblem) -> None:
    queries = np.zeros(test.n)
    np.add.at(queries, result.order.ravel(), result.rewards.ravel())
    plays = np.bincount(result.order.ravel(), minlength=test.n)
    with atomic_path(path) as temporary, open(temporary, "wb") as handle:
        np.savez_compressed(
            handle,
            utilities=result.rewards.mean(axis=1),
            regrets=(result.best_rewards - result.rewards).mean(axis=1),
            queries=(queries / np.maximum(plays, 1)).astype(np.float32),
            costs=_per_query(result, test.costs, plays),
            scores=_per_query(result, test.scores, plays),
            uncertified=np.array(int(result.uncertified.sum())),
            seconds=np.array(float(result.seconds.sum())),
        )


def _per_query(result, values: np.ndarray, plays: np.ndarray) -> np.ndarray:
    """[n] means over trials of what the played arm cost or scored on every query."""
    total = np.zeros(len(values))
    np.add.at(total, result.order.ravel(), values[result.order, result.actions].ravel())
    return (total / np.maximum(plays, 1)).astype(np.float32)


# -- the table --------------------------------------------------------------------------------------------------


def _load(path: Path, trials: int) -> dict[str, np.ndarray] | None:
    if not path.is_file():
        return None
    with np.load(path, allow_pickle=False) as stored:
        cell = {k: stored[k] for k in stored.files}
    return cell if len(cell["utilities"]) >= min(trials, 5) else None


def regime_weights(rhos: Sequence[float]) -> dict[str, np.ndarray]:
    """Weights over rhos of each regime's mean, and of `mean`, the mean of the three."""
    names = [regime_of(r) for r in rhos]
    weights = {g: np.array([n == g for n in names], dtype=float) for g in REGIMES}
    weights = {g: w / w.sum() for g, w in weights.items()}
    weights["mean"] = sum(weights.values()) / len(weights)
    return weights


def collect(plan: Plan, work: Path, pool: str, condition: str) -> dict[str, dict[int, dict[str, np.ndarray]]]:
    """{policy: {split seed: {utilities [R, 5+], queries [R, n]}}} at the rhos that all splits share."""
    rhos, least = plan.shared
    found: dict[str, dict[int, dict[str, np.ndarray]]] = {}
    for policy, seed in product(plan.policies, plan.split_seeds):
        cells = [_load(cell_path(work, pool, condition, seed, policy, r), least) for r in rhos]
        if all(c is not None for c in cells):
            trials = min(len(c["utilities"]) for c in cells)
            found.setdefault(policy, {})[seed] = {
                "utilities": np.stack([c["utilities"][:trials] for c in cells]),
                "queries": np.stack([c["queries"] for c in cells]),
            }
    return found


def _errors(
    first: dict, second: dict | None, weights: np.ndarray, same_queries: bool
) -> tuple[np.ndarray, float]:
    """(per-split means, standard error): over trials and queries together (`metrics.two_way_error`), averaged over
    splits as independent (unless all splits test the same queries), and of the spread over splits where there are
    three or more."""
    means, variances = [], []
    for seed in sorted(first):
        u, q = weights @ first[seed]["utilities"], weights @ first[seed]["queries"]
        if second is not None:
            v = weights @ second[seed]["utilities"]
            trials = min(len(u), len(v))
            u, q = u[:trials] - v[:trials], q - weights @ second[seed]["queries"]
        means.append(u.mean())
        errors = float(standard_error(u)), float(standard_error(q))
        variances.append(two_way_error(*errors, len(u), len(q)).se ** 2)
    error = np.sqrt(np.mean(variances) / (1 if same_queries else len(means)))
    if len(means) > 2:
        error = max(error, np.std(means, ddof=1) / np.sqrt(len(means)))
    return np.array(means), float(error)


def against_fixed_models(plan: Plan, work: Path, pool: str, condition: str) -> dict[str, Any]:
    """{policy: figures} of `frontier_figures`, for policies whose cells hold costs and scores, at the shared rhos.

    Conditions on the stream are left out: under them the arms on offer change, and a fixed model with them.
    """
    rhos, least = plan.shared
    found: dict[str, dict[int, dict[str, np.ndarray]]] = {}
    for seed in plan.split_seeds if condition not in STREAM_CONDITIONS else ():
        folder = work / "problems" / pool / condition / f"seed{seed}" / "test"
        if not (folder / "meta.json").is_file():
            continue
        test = ReplayProblem.load(folder, verify=False)
        fixed = FixedModels.of(test, seed)
        for policy in plan.policies:
            cells = [_load(cell_path(work, pool, condition, seed, policy, r), least) for r in rhos]
            if all(c is not None and "costs" in c for c in cells):
                costs, scores = (np.stack([c[name] for c in cells]) for name in ("costs", "scores"))
                found.setdefault(policy, {})[seed] = sweep(costs, scores, fixed, seed)
    return {policy: combined(splits) for policy, splits in found.items()}


def table(plan: Plan, work: Path) -> dict[str, Any]:
    """All figures as JSON: per pool and condition each policy's regime values, and the differences with errors."""
    out: dict[str, Any] = {"values": {}, "fixed": {}, "differences": [], "margins": [], "costs": []}
    weights = regime_weights(plan.shared[0])
    for pool, condition in product(plan.pools, plan.conditions):
        found = collect(plan, work, pool, condition)
        values = {}
        for policy, splits in found.items():
            row: dict[str, Any] = {"splits": sorted(splits)}
            for regime, w in weights.items():
                means, error = _errors(splits, None, w, condition == "severe")
                row[regime], row[f"{regime}_se"] = float(means.mean()), error
            values[policy] = row
        out["values"].setdefault(pool, {})[condition] = values
        out["fixed"].setdefault(pool, {})[condition] = against_fixed_models(plan, work, pool, condition)
        clean = collect(plan, work, pool, "clean") if condition in SAME_QUERIES else {}
        for policy in found:
            common = sorted(set(found[policy]) & set(clean.get(policy, {})))
            if not common:
                continue
            pick = [{s: each[policy][s] for s in common} for each in (clean, found)]
            means, error = _errors(*pick, weights["mean"], same_queries=False)
            out["costs"].append(
                {"pool": pool, "condition": condition, "policy": policy, "cost": float(means.mean()), "se": error,
                 "per_split": [float(m) for m in means]}
            )  # fmt: skip
        for policy, reference in product(found, ("lin_ts", "lin_ts_score", "ridge", "kernel_ridge")):
            common = sorted(set(found[policy]) & set(found.get(reference, {})))
            if policy == reference or not common:
                continue
            pick = [{s: found[p][s] for s in common} for p in (policy, reference)]
            means, error = _errors(*pick, weights["mean"], condition == "severe")
            entry = {
                "pool": pool, "condition": condition, "policy": policy, "reference": reference,
                "difference": float(means.mean()), "se": error, "per_split": [float(m) for m in means],
            }  # fmt: skip
            out["differences"].append(entry)
            for p, r, c, least in MARGINS:
                if pool.startswith("openllm") and (p, r, c) == (policy, reference, condition):
                    out["margins"].append(entry | {"least": least, "holds": entry["difference"] >= least})
    return out


def show(figures: dict[str, Any]) -> Iterable[str]:
    """Lines of Markdown."""
    for pool, conditions in figures["values"].items():
        for condition, values in conditions.items():
            if not values:
                continue
            yield f"\n### {pool}, {condition}\n"
            yield "| policy | low | medium | high | mean | SE | splits |"
            yield "|---|---|---|---|---|---|---|"
            for policy, row in values.items():
                cells = " | ".join(f"{row[g]:.4f}" for g in (*REGIMES, "mean"))
                yield f"| {policy} | {cells} | {row['mean_se']:.4f} | {len(row['splits'])} |"
    yield from lines(figures["fixed"])
    if figures["costs"]:
        conditions = list(dict.fromkeys((c["pool"], c["condition"]) for c in figures["costs"]))
        found = {(c["pool"], c["condition"], c["policy"]): c for c in figures["costs"]}
        yield "\n### What a condition costs: clean minus stressed, mean utility (SE), paired by query and trial\n"
        several = len({pool for pool, _ in conditions}) > 1
        heads = [f"{pool}, {condition}" if several else condition for pool, condition in conditions]
        yield f"| policy | {' | '.join(heads)} |"
        yield "|---|" + "---|" * len(heads)
        for policy in dict.fromkeys(c["policy"] for c in figures["costs"]):
            row = [found.get((*place, policy)) for place in conditions]
            cells = ["" if c is None else f"{c['cost']:+.4f} ({c['se']:.4f})" for c in row]
            yield f"| {policy} | {' | '.join(cells)} |"
    if figures["margins"]:
        yield "\n### Margins (paired over splits, orders and queries)\n"
        yield "| policy - reference | condition | difference | SE | per split | at least | holds |"
        yield "|---|---|---|---|---|---|---|"
        for m in figures["margins"]:
            each = ", ".join(f"{x:+.4f}" for x in m["per_split"])
            yield (
                f"| {m['policy']} - {m['reference']} | {m['condition']} | {m['difference']:+.4f} | {m['se']:.4f} | "
                f"{each} | {m['least']:+.3f} | {'yes' if m['holds'] else 'no'} |"
            )


def main(
    json_path: str | None = None, quick: bool = False, argv: Sequence[str] | None = None
) -> dict[str, Any]:
    """Run what is missing and return the figures; see the module. quick: one split, the short protocol."""
    parser = argparse.ArgumentParser(
        description="Compare policies on real outcomes over splits and conditions."
    )
    parser.add_argument("--pool", nargs="+", default=["openllm_lb_v2_carrot"])
    parser.add_argument("--conditions", nargs="+", default=["clean"], choices=sorted(CONDITIONS))
    parser.add_argument("--split-seeds", nargs="+", type=int, default=[0] if quick else [0, 1, 2])
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--protocol", choices=("full", "short"), default="short" if quick else "full")
    parser.add_argument("--work", type=Path, default=cabs_home() / "study")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--table-only", action="store_true", help="Only read what is on disk")
    parser.add_argument("--json", dest="json_path", default=json_path)
    args = parser.parse_args(list(argv) if argv is not None else [])
    plan = Plan(
        tuple(args.pool), tuple(args.conditions), tuple(args.split_seeds), tuple(args.policies), args.protocol
    )
    if not args.table_only:
        run(plan, args.work, args.threads)
    figures = table(plan, args.work)
    print("\n".join(show(figures)))
    if args.json_path:
        write_text(args.json_path, json.dumps(figures, indent=1))
    return figures


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(argv=sys.argv[1:])
