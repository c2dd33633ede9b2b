"""Asset checks: on outcomes, on traces, on results across policies, on marts.

A check can be evaluated together with the asset, from what was just computed, or later on its own, from the files.
"""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg

from cabs_dagster.checks.results import PLAUSIBLE, REPRODUCIBLE, plausible_result, reproducible_result
from cabs_dagster.checks.traces import TRACE, examine, trace_result
from cabs_dagster.planning import Chain
from cabs_dagster.provenance import Record
from cabs_dagster.stages import Target

REPLAY_CHECKS = (TRACE, PLAUSIBLE, REPRODUCIBLE)


def check_results(
    key: dg.AssetKey, chain: Chain, target: Target, record: Record, names: set[str], *, kept: bool = True
) -> Iterator[dg.AssetCheckResult]:
    """Results of the named checks of a replay that is there.

    Args:
        kept: take the verdict of `reproducible` that the record holds; one that was just made holds none.
    """
    if TRACE in names:
        yield trace_result(key, record.summary["_trace"])
    if PLAUSIBLE in names:
        yield plausible_result(key, chain, target, record)
    if REPRODUCIBLE in names:
        yield reproducible_result(key, chain, target, record, kept=kept)


def recheck(
    key: dg.AssetKey, chain: Chain, target: Target, names: set[str], *, kept: bool = False
) -> Iterator[dg.AssetCheckResult]:
    """Results of the named checks from the files on disk; nothing when the policy was not replayed yet.

    Args:
        kept: take the verdict of `reproducible` that the record holds.

    Raises:
        ProvenanceError: a file was altered or is missing, or an input of the replay is out of date.
    """
    record = chain.store.record(target.parts)
    if record is None:
        return
    folder = chain.store.verify_files(target.parts, record)
    if TRACE in names:
        if record.pruned:
            yield trace_result(
                key, {**record.summary["_trace"], "source": "the record; the trace itself was pruned"}
            )
        else:
            from cabs_core.replay.storage import load_trace
            from cabs_dagster.replaying import load_problem

            root, problem_record = chain.require(target)["replay_problem"]
            problem = load_problem(str(root / "test"), problem_record.content)
            replay = chain.pool.replay
            findings = examine(load_trace(folder), problem, replay.trials, replay.rounds)
            yield trace_result(key, {**findings, "source": "the files"})
    yield from check_results(key, chain, target, record, names - {TRACE}, kept=kept)
