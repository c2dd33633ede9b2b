"""One policy's replay as an artifact: load the problem once per process, replay, save, fingerprint the lanes."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from cabs_core.catalog import condition_that_changes
from cabs_core.pools import ModelPool
from cabs_dagster.making import Made, make
from cabs_dagster.planning import Chain
from cabs_dagster.stages import Target


@lru_cache(maxsize=4)
def load_problem(folder: str, content: str):
    """The replay problem in a folder; `content` is its hash, so that another problem is never mistaken for it."""
    from cabs_core.replay import ReplayProblem

    return ReplayProblem.load(Path(folder))


def lane_hashes(result) -> list[str]:
    """One hash a trial over order, actions, propensities and rewards, for telling whether a re-run is the same."""
    import numpy as np

    hashes = []
    for trial in range(len(result.actions)):
        digest = hashlib.sha256()
        for array, kind in (
            (result.order, "<i8"),
            (result.actions, "<i8"),
            (result.propensities, "<f8"),
            (result.rewards, "<f8"),
        ):
            digest.update(np.ascontiguousarray(array[trial], dtype=kind).tobytes())
        hashes.append(digest.hexdigest()[:32])
    return hashes


def tuned_options(tuning: Path, policy: str) -> dict[str, Any]:
    """Options that the tuning chose for a policy; empty when it was not tuned."""
    chosen = json.loads((tuning / "tuning.json").read_text(encoding="utf-8"))
    return dict(chosen.get(policy, {}).get("options", {}))


def kept_tuning(chain: Chain, target: Target) -> tuple[dict[str, Any], dict[str, float]]:
    """({policy: tuned entry, or {} when it has nothing to tune}, seconds) of what need not be tuned again.

    That is: the same validation problem, budget and tuning code, and a policy whose code is what it was.
    """
    record, status = chain.store.record(target.parts), chain.status(target)
    if record is None or record.inputs != status.inputs or record.code_version != target.code_version:
        return {}, {}
    old, new = record.config, target.config
    if any(old.get(k) != new.get(k) for k in {*old, *new} if not k.startswith("policy ")):
        return {}, {}
    folder = chain.store.verify_files(target.parts, record)
    chosen = json.loads((folder / "tuning.json").read_text(encoding="utf-8"))
    seconds = json.loads((folder / "timing.json").read_text(encoding="utf-8"))
    same = [p for p in chain.pool.policies if old.get(f"policy {p}") == new[f"policy {p}"]]
    return {p: chosen.get(p, {}) for p in same}, {p: seconds[p] for p in same if p in seconds}


def run_replay(
    pool: ModelPool,
    problem_root: Path,
    content: str,
    tuning: Path,
    rho: float,
    policy: str,
    trials,
    threads: int | None = None,
):
    """(result, problem) of a replay with the pool's settings.

    Args:
        trials: a number of trials or their numbers; threads: trials at once, default all processors.
    """
    from cabs_core.replay import replay

    problem = load_problem(str(problem_root / "test"), content)
    condition = pool.replay.condition if condition_that_changes(pool.replay.condition, "stream") else "none"
    replayed = replay(
        problem,
        policy,
        rho=rho,
        trials=trials,
        seed=pool.replay.order_seed,
        pool=pool.name,
        rounds=pool.replay.rounds,
        condition=condition,
        latency_weight=pool.replay.latency_weight,
        threads=threads,
        options=tuned_options(tuning, policy),
    )
    return replayed, problem


def replay_target(chain: Chain, target: Target, *, force: bool = False, run_id: str = "") -> Made:
    """Replay one policy at one rho, unless that is done."""
    from cabs_dagster.checks.traces import examine

    pool, rho, policy = chain.pool, target.rho or 0.0, target.policy or ""

    def build(folder: Path, inputs: dict[str, Path]) -> dict[str, Any]:
        import numpy as np

        from cabs_core.replay.storage import load_trace, save_replay_result

        record = chain.status(chain.stage("replay_problem")).record
        assert record is not None
        result, problem = run_replay(
            pool, inputs["replay_problem"], record.content, inputs["tuning"], rho, policy, pool.replay.trials
        )
        run = save_replay_result(result, problem, folder, pool=pool)
        findings = examine(load_trace(folder, run), problem, pool.replay.trials, pool.replay.rounds)
        rewards, best = result.rewards, result.best_rewards
        return {
            "rows": int(rewards.size),
            "utility": float(rewards.mean()),
            "regret per round": float((best - rewards).mean()),
            "standard error": float(rewards.mean(axis=1).std(ddof=1) / len(rewards) ** 0.5)
            if len(rewards) > 1
            else 0.0,
            "trials": len(rewards),
            "rounds": int(rewards.shape[1]),
            "random utility": random_utility(result, problem),
            "arms played": len(np.unique(result.actions)),
            "uncertified rounds": int(_total(result, "uncertified")),
            "_lanes": lane_hashes(result),
            "_trace": findings,
        }

    return make(chain, target, build, force=force, run_id=run_id)


def random_utility(result, problem) -> float:
    """Expected utility of uniformly random play on the rounds played: exact, no sampling."""
    from cabs_core.utility import clipped_utility

    utilities = clipped_utility(
        problem.scores, problem.costs, result.rho, problem.latencies, result.latency_weight
    )
    return float(utilities.mean(axis=1)[result.order].mean())


def _total(result, name: str) -> float:
    value = getattr(result, name, None)
    return 0 if value is None else sum(float(v) for v in value)
