"""Stage `router`: the bundle that the pool would deploy, compared with its replay and timed from the prompt's
text.

The times of single `decide` and `update` calls of all the pool's policies are stored beside it. A pool that
cannot be deployed (a model has no price, say) gets the reason instead of a bundle, and its replays go on.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cabs_core.errors import EncoderError, PolicyError, RouterError
from cabs_core.inputs import outcomes_of, plain, split_of, tuned_options
from cabs_core.metrics import latency_percentiles
from cabs_core.problem.replay_problem import ReplayProblem
from cabs_core.replay import latency
from cabs_core.router.budget import replay_budgets
from cabs_core.router.build import BUNDLE, ChosenPolicy, build_bundle, bundle_size
from cabs_core.router.bundle import read_manifest
from cabs_core.router.checks import Match, check_bundle_matches_replay, measure_latency
from cabs_core.threads import one_torch_thread

if TYPE_CHECKING:
    from cabs_core.artifacts import Chain, Options, Target
    from cabs_core.pool_files import ModelPool

TIMES = "decisions.parquet"
#: decisions of the replay that the bundle must repeat, prompts that are embedded again one at a time, whole
#: decisions that are timed
ROUNDS, TEXTS, DECISIONS, WARMUP = 5_000, 50, 200, 10


def build(
    chain: Chain, target: Target, folder: Path, inputs: dict[str, Path], options: Options
) -> dict[str, Any]:
    """Choose on validation, write the bundle, compare it with the replay on the test prompts, time it."""
    pool = chain.pool
    summary = _time_policies(pool, inputs, folder / TIMES)
    try:
        choice = build_bundle(folder / BUNDLE, pool, inputs)
        with one_torch_thread():
            timed = measure_latency(folder / BUNDLE, test_prompts(inputs), decisions=DECISIONS, warmup=WARMUP)
    except (RouterError, EncoderError, PolicyError) as error:  # an encoder that no router can run here, say
        shutil.rmtree(folder / BUNDLE, ignore_errors=True)
        return {"not made": str(error), **summary}
    manifest = read_manifest(folder / BUNDLE)
    gain = f"utility minus the best model's, on validation{', predicted' if pool.logged else ''}"
    return {
        **({"not played": choice.failed} if choice.failed else {}),
        "policy": choice.policy,
        "rho": choice.rho,
        "models": len(manifest.arms),
        "bundle": manifest.id,
        "chosen": "named in the pool" if pool.router.policy else "best on validation",
        gain: choice.evidence()["mean"],
        "megabytes": bundle_size(folder / BUNDLE) / 1e6,
        "milliseconds from text": timed.to_dict(),
        "_match": plain(match(folder / BUNDLE, inputs)),
        "_card": (folder / BUNDLE / "README.md").read_text(encoding="utf-8"),
        **_budgets(pool, inputs, choice, manifest.provenance["spending"]),
        **summary,
    }


def test_prompts(inputs: dict[str, Path]) -> list[str]:
    """Texts of the test split, in the order of the test problem."""
    table = outcomes_of(inputs)
    return [table.prompts[i] for i in np.flatnonzero(split_of(inputs) == "test")]


def match(bundle: Path, inputs: dict[str, Path]) -> Match:
    """The bundle's decisions on the test prompts beside the replay's."""
    problem = ReplayProblem.load(inputs["replay_problem"] / "test")
    with one_torch_thread():
        return check_bundle_matches_replay(
            bundle, problem, prompts=test_prompts(inputs), rounds=ROUNDS, text_rounds=TEXTS
        )


def examine_again(chain: Chain) -> dict[str, Any]:
    """Summary of a router that is there, its decisions compared with the replay's once more.

    Raises:
        ProvenanceError: there is none, or a file or an input was altered.
    """
    target = chain.stage("router")
    folder = chain.verified(target)
    record = chain.store.record(target.parts)
    assert record is not None
    again: Any = {} if "not made" in record.summary else match(folder / BUNDLE, chain.require(target))
    return {**record.summary, **({"_match": plain(again)} if again else {})}


def _budgets(
    pool: ModelPool, inputs: dict[str, Path], choice: ChosenPolicy, curve: dict[str, list[float]] | None
) -> dict[str, Any]:
    """What each of the pool's budgets buys on the test split, or why the policy cannot keep to a budget."""
    if not pool.router.budgets:
        return {}
    problem = ReplayProblem.load(inputs["replay_problem"] / "test")
    ends = (min(pool.replay.rhos), max(pool.replay.rhos))
    try:
        rows = replay_budgets(
            problem,
            choice.policy,
            pool.router.budgets,
            rhos=ends,
            start=min(max(choice.rho, ends[0]), ends[1]),
            curve=curve,
            seed=pool.replay.order_seed,
            pool=pool.name,
            options=tuned_options(inputs).get(choice.policy, {}),
        )
    except RouterError as error:
        return {"budgets": str(error)}
    return {"_budgets": rows}


def _time_policies(pool: ModelPool, inputs: dict[str, Path], path: Path) -> dict[str, Any]:
    """Times of single online calls of every policy at the pool's middle rho, written to `path`; rows for
    display.
    """
    problem = ReplayProblem.load(inputs["replay_problem"] / "test")
    rho, tuned = latency.typical_rho(pool.replay.rhos), tuned_options(inputs)
    times, failed = [], {}
    for policy in filter(latency.serves_online, pool.policies):
        try:
            timed = latency.time_decisions(
                problem,
                policy,
                rho,
                seed=pool.replay.order_seed,
                pool=pool.name,
                latency_weight=pool.replay.latency_weight,
                options=tuned.get(policy, {}),
            )
        except PolicyError as error:  # its own fault: the others are timed all the same
            failed[policy] = str(error)
            continue
        times.append(timed)
    latency.save_times(times, pool.name, path)
    rows = []
    for t in times:
        decide, update = latency_percentiles(t.decide_us), latency_percentiles(t.update_us)
        rows.append(
            {
                "policy": t.policy,
                "decide_p50_us": decide["p50"],
                "decide_p99_us": decide["p99"],
                "update_p50_us": update["p50"],
                "update_p99_us": update["p99"],
            }
        )
    return {
        "rows": sum(len(t.decide_us) for t in times),
        "_rows": rows,
        **({"not timed": failed} if failed else {}),
    }
