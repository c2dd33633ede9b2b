"""Checks `plausible` (WARN) and `reproducible` (ERROR) of every replay.

`plausible` looks at figures of the record and at those of related policies at the same (pool, rho); what is not
there is not compared, and the result says so. `reproducible` plays trial 0 again and compares hashes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import dagster as dg

from cabs_core.catalog import policy_record, split_name
from cabs_dagster import partitions
from cabs_dagster.features import preview
from cabs_dagster.planning import Chain
from cabs_dagster.provenance import Record
from cabs_dagster.stages import Target

PLAUSIBLE = "plausible"
REPRODUCIBLE = "reproducible"
#: Entry of a record's summary: the hash of trial 0 that `reproducible` found last.
_VERDICT = "_reproduced"
#: How much mean utility CABS-D may lie below its better expert before it is worth a look.
EXPERT_TOLERANCE = 0.02

#: decoupled policy: the policies that are its experts when run alone
EXPERTS = {
    "cabs_d_linear": ("lin_ts", "cabs_c_linear"),
    "cabs_d_neural": ("neural_ucb", "cabs_c_neural"),
}
#: full feedback: the bandit with the same learner and features
MATCHED = {"lin_ucb_full": "lin_ucb", "neural_ucb_full": "neural_ucb"}


def result_check_specs(key: dg.AssetKey) -> list[dg.AssetCheckSpec]:
    """Specs of both checks on one policy's replay."""
    with preview("partitioned asset checks"):
        return [
            dg.AssetCheckSpec(
                PLAUSIBLE,
                asset=key,
                partitions_def=partitions.pool_by_rho,
                description="Every solved round is certified; regret is below that of random play; more than one arm "
                "is played; CABS-D is not far below its better expert; full feedback is not below bandit feedback.",
            ),
            dg.AssetCheckSpec(
                REPRODUCIBLE,
                asset=key,
                partitions_def=partitions.pool_by_rho,
                blocking=True,
                description="Trial 0 played again gives the same order, actions, propensities and rewards, bit for bit.",
            ),
        ]


def plausible(chain: Chain, target: Target, record: Record) -> tuple[list[str], dict[str, Any]]:
    """(warnings, figures) of one replay."""
    figures = record.summary
    base, preset = split_name(target.policy or "")
    warnings: list[str] = []
    looked: dict[str, Any] = {"utility": figures["utility"], "random play (exact)": figures["random utility"]}
    uncertified = figures["uncertified rounds"]
    if uncertified:
        warnings.append(f"{uncertified} rounds were played from a solution without certificate")
    margin = 2 * figures["standard error"]
    if base != "random" and figures["utility"] + margin < figures["random utility"]:
        warnings.append(
            f"utility {figures['utility']:.4f} is below that of random play, {figures['random utility']:.4f}"
        )
    if policy_record(base).learns and figures["arms played"] == 1:
        warnings.append("every round of every trial played the same arm")

    def other(name: str) -> float | None:
        candidates = [name]
        if preset in policy_record(name).presets[1:]:
            candidates.insert(0, f"{name}@{preset}")
        for candidate in candidates:
            found = chain.store.record(Target("replay", chain.pool, target.rho, candidate).parts)
            if found is not None and found.inputs.get("replay_problem") == record.inputs.get(
                "replay_problem"
            ):
                looked[candidate] = found.summary["utility"]
                return found.summary["utility"]
        looked[name] = "not there, not compared"
        return None

    known = [u for u in map(other, EXPERTS.get(base, ())) if u is not None]
    if known and figures["utility"] < max(known) - EXPERT_TOLERANCE:
        warnings.append(
            f"utility {figures['utility']:.4f} is more than {EXPERT_TOLERANCE} below the better expert's, {max(known):.4f}"
        )
    if base in MATCHED:
        bandit = other(MATCHED[base])
        if bandit is not None and figures["utility"] + margin < bandit:
            warnings.append(
                f"with full feedback utility is {figures['utility']:.4f}, with bandit feedback {bandit:.4f}: "
                "the same learner does worse with more information"
            )
    return warnings, looked


def plausible_result(key: dg.AssetKey, chain: Chain, target: Target, record: Record) -> dg.AssetCheckResult:
    """Result of `plausible`."""
    warnings, looked = plausible(chain, target, record)
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=PLAUSIBLE,
        passed=not warnings,
        severity=dg.AssetCheckSeverity.WARN,
        description="; ".join(warnings) or "nothing odd",
        metadata=looked,
    )


def reproduced(record: Record) -> bool:
    """Whether the record holds that trial 0 was the same when it was played again."""
    return record.summary.get(_VERDICT) == record.summary["_lanes"][0]


def reproducible_result(
    key: dg.AssetKey, chain: Chain, target: Target, record: Record, *, kept: bool = False
) -> dg.AssetCheckResult:
    """Result of `reproducible`: plays one trial.

    Args:
        kept: take what the record holds from an earlier evaluation. The same artifact from the same inputs by the
            same code needs no second look when it is merely used again.
    """
    then, now = record.summary["_lanes"][0], record.summary.get(_VERDICT)
    if kept and now is not None:
        text = f"trial 0 {'was the same' if now == then else 'differed'} when played again; verdict kept"
    else:
        now = trial_again(chain, target)()
        keep_verdict(chain, target, record, now)
        text = f"trial 0 {'is the same' if now == then else 'differs'} when played again"
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=REPRODUCIBLE,
        passed=now == then,
        severity=dg.AssetCheckSeverity.ERROR,
        description=text,
        metadata={"hash then": then, "hash now": now, "made at": record.created},
    )


def trial_again(chain: Chain, target: Target, threads: int | None = None) -> Callable[[], str]:
    """What plays trial 0 again and returns its hash, the inputs verified before; may be called in a thread.

    Raises:
        ProvenanceError: an input is missing, out of date or altered.
    """
    from cabs_dagster.replaying import lane_hashes, run_replay

    inputs = chain.require(target)
    (problem, problem_record), (tuning, _) = inputs["replay_problem"], inputs["tuning"]

    def play() -> str:
        rho, policy = target.rho or 0.0, target.policy or ""
        again, _ = run_replay(chain.pool, problem, problem_record.content, tuning, rho, policy, [0], threads)
        return lane_hashes(again)[0]

    return play


def keep_verdict(chain: Chain, target: Target, record: Record, now: str) -> None:
    """Put trial 0's hash, as it is now, into the record."""
    if record.summary.get(_VERDICT) != now:
        summary = {**record.summary, _VERDICT: now}
        chain.store.rewrite_record(target.parts, replace(record, summary=summary))
