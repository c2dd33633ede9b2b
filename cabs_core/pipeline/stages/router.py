"""Stage `router`: the bundle that the pool would deploy, compared with its replay, and timed.

The times of single `decide` and `update` calls of the pool's policies that can decide online are stored
beside it. For a table with several folds, so are the plays of the policies that can be exported, on the
validation queries of each fold. A pool that cannot be deployed (a model has no price, say) gets the reason
instead of a bundle, and its replays go on.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.catalog.policies import is_deployable
from cabs_core.base.catalog.roles import NO_ROUTERS
from cabs_core.base.errors import EncoderError, PolicyError, RouterError
from cabs_core.base.threads import one_torch_thread
from cabs_core.base.utility import middle_rho
from cabs_core.data.inputs import FoldData, folds_of, plain, tuned_options
from cabs_core.evaluation.metrics.routing import latency_percentiles
from cabs_core.evaluation.replay import latency as online_calls
from cabs_core.evaluation.replay.held_out import validation_plays
from cabs_core.pipeline.stages.replay_problem import fold_problems
from cabs_core.pipeline.stages.router_summary import VALIDATION_PLAYS, RouterSummary
from cabs_core.router.budget import BudgetReplay, replay_budgets
from cabs_core.router.build import BUNDLE, ChosenPolicy, build_bundle, bundle_size
from cabs_core.router.bundle import read_manifest
from cabs_core.router.checks import Match, check_bundle_matches_replay, measure_latency

if TYPE_CHECKING:
    from cabs_core.data.pool_files import ModelPool
    from cabs_core.pipeline.artifacts import Chain, Options, Target

TIMES = "decisions.parquet"
#: decisions of the replay that the bundle must repeat
ROUNDS = 5_000
#: prompts that are embedded again one at a time
TEXTS = 50
#: most decisions, from the text on, that are timed; decisions before them that are not timed; and seconds
#: after which no further decision is timed, because 200 decisions of a transformer take six seconds
DECISIONS = 200
WARMUP = 10
TIMING_SECONDS = 1.5


def build(
    chain: Chain, target: Target, folder: Path, inputs: dict[str, Path], options: Options
) -> RouterSummary:
    """Make the bundle, time it, and compare it with the replay on the test prompts; return the summary.

    The bundle has the policy that the pool file names, or else the best one on validation. If there can be no
    bundle, the summary has the reason.
    """
    pool = chain.pool
    timed = _time_policies(pool, inputs, folder / TIMES)
    _play_validation(pool, inputs, folder / VALIDATION_PLAYS)
    try:
        choice = build_bundle(folder / BUNDLE, pool, inputs)
        with one_torch_thread():
            latency = measure_latency(
                folder / BUNDLE,
                test_prompts(inputs),
                decisions=DECISIONS,
                warmup=WARMUP,
                most_seconds=TIMING_SECONDS,
            )
    except (RouterError, EncoderError, PolicyError) as error:  # an encoder that no router can run here, say
        shutil.rmtree(folder / BUNDLE, ignore_errors=True)
        return replace(timed, not_made=str(error))
    manifest = read_manifest(folder / BUNDLE)
    return replace(
        timed,
        not_played=plain(choice.failed) or None,
        policy=choice.policy,
        rho=choice.rho,
        models=len(manifest.arms),
        bundle=manifest.id,
        named=bool(pool.router.policy),
        predicted=pool.logged,
        gain=choice.lead,
        megabytes=bundle_size(folder / BUNDLE) / 1e6,
        latency=vars(latency),
        same=plain(match(folder / BUNDLE, inputs)),
        card=(folder / BUNDLE / "README.md").read_text(encoding="utf-8"),
        budgets=_budgets(pool, inputs, choice, manifest.provenance["spending"]),
    )


def test_prompts(inputs: Mapping[str, Path]) -> list[str]:
    """Return the texts of the first fold's test split, in the order of its test problem."""
    data = FoldData.read(inputs)
    return data.table.take(np.flatnonzero(data.splits[0] == "test")).prompts


def match(bundle: Path, inputs: dict[str, Path]) -> Match:
    """Compare the bundle's decisions on the first fold's test prompts with the replay's.

    At most `ROUNDS` decisions are compared, and `TEXTS` prompts are embedded again.
    """
    problem = ReplayProblem.load(inputs["replay_problem"] / "test")
    with one_torch_thread():
        return check_bundle_matches_replay(
            bundle, problem, prompts=test_prompts(inputs), rounds=ROUNDS, text_rounds=TEXTS
        )


def examine_again(chain: Chain) -> RouterSummary:
    """Return the summary of the stored router, with a new comparison of its decisions with the replay's.

    Nothing is stored. The summary is returned as it was stored if there is no bundle.
    """
    target = chain.stage("router")
    folder = chain.verified(target)
    then = RouterSummary.of(chain.made(target))
    if then.not_made:
        return then
    return replace(then, same=plain(match(folder / BUNDLE, chain.require(target))))


def _play_validation(pool: ModelPool, inputs: dict[str, Path], path: Path) -> None:
    """Write the plays of the policies that can be exported, on the validation queries of each fold.

    A pool with a single split gets no file, nor does a log, whose policies the stage `off_policy` plays.
    """
    folds = folds_of(inputs["replay_problem"])
    if folds == 1 or pool.logged:
        return
    tuned = [tuned_options(inputs, fold) for fold in range(folds)]
    plays = validation_plays(
        zip(fold_problems(inputs["replay_problem"], "validation"), tuned, strict=True),
        [policy for policy in pool.policies if is_deployable(policy) and policy not in NO_ROUTERS],
        pool.replay.rhos,
        seed=pool.replay.order_seed,
        latency_weight=pool.replay.latency_weight,
    )
    plays.to_parquet(path, index=False)


def _budgets(
    pool: ModelPool, inputs: dict[str, Path], choice: ChosenPolicy, curve: dict[str, list[float]] | None
) -> list[dict[str, Any]] | str:
    """Return a row for each of the pool's budgets with what it buys on the test split.

    In place of the rows stands the reason if the policy cannot keep to a budget, and "" without budgets.

    Args:
        curve: what the policy spends on validation at each rho, as `replay_budgets` takes it. A budget is
            then played from the rho that fits it; None plays it from the rho of `choice`.
    """
    if not pool.router.budgets:
        return ""
    problem = ReplayProblem.load(inputs["replay_problem"] / "test")
    ends = (min(pool.replay.rhos), max(pool.replay.rhos))
    try:
        settings = BudgetReplay(
            rhos=ends,
            start=min(max(choice.rho, ends[0]), ends[1]),
            seed=pool.replay.order_seed,
            pool=pool.name,
            options=tuned_options(inputs).get(choice.policy, {}),
        )
        return replay_budgets(problem, choice.policy, pool.router.budgets, settings, curve=curve)
    except RouterError as error:
        return str(error)


def _time_policies(pool: ModelPool, inputs: dict[str, Path], path: Path) -> RouterSummary:
    """Time single calls of the policies that can decide online, and write the times to `path`.

    The policies are timed at the pool's middle rho.

    Returns:
        a summary with the times, and the reason for each policy that could not be timed. Its fields on the
        router are empty.
    """
    problem = ReplayProblem.load(inputs["replay_problem"] / "test")
    rho = middle_rho(pool.replay.rhos)
    tuned = tuned_options(inputs)
    times = []
    failed: dict[str, str] = {}
    for policy in filter(online_calls.serves_online, pool.policies):
        try:
            timed = online_calls.time_decisions(
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
    online_calls.save_times(times, pool.name, path)
    rows = [
        {"policy": t.policy}
        | {
            f"{call}_{p}_us": latency_percentiles(getattr(t, f"{call}_us"))[p]
            for call in ("decide", "update")
            for p in ("p50", "p99")
        }
        for t in times
    ]
    return RouterSummary(rows=sum(len(t.decide_us) for t in times), decisions=rows, not_timed=failed)
