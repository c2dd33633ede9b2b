"""The check `reproducible` of many replays at once, for `cabs run`: their trials are played on all processors.

In a step, each policy plays its one trial on one processor, one policy after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import dagster as dg
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus

from cabs_dagster.checks.results import REPRODUCIBLE, keep_verdict, reproduced, trial_again
from cabs_dagster.planning import Chain
from cabs_dagster.provenance import Record
from cabs_dagster.stages import Target

Due = list[tuple[Target, Record]]


def due_again(
    instance: dg.DagsterInstance, chain: Chain, rhos: tuple[float, ...], policies: tuple[str, ...]
) -> Due:
    """Finished replays that were not found the same yet, or of which the instance does not know that.

    It knows when the last result of the check is about the partition's last materialization, and passed.
    """
    checks = [dg.AssetCheckKey(target.key, REPRODUCIBLE) for target in chain.replays(rhos[:1], policies)]
    partitions = [target.partition for target in chain.replays(rhos, policies[:1])]
    infos = instance.event_log_storage.get_asset_check_partition_info(checks, partition_keys=partitions)
    known = {
        (info.check_key.asset_key, info.partition_key)
        for info in infos
        if info.is_current and info.latest_execution_status == AssetCheckExecutionRecordStatus.SUCCEEDED
    }
    statuses = [chain.status(target) for target in chain.replays(rhos, policies)]
    return [
        (status.target, status.record)
        for status in statuses
        if status.state == "fresh"
        and status.record is not None
        and not (reproduced(status.record) and (status.target.key, status.target.partition) in known)
    ]


def play_again(chain: Chain, due: Due) -> Iterator[tuple[Due, list[str]]]:
    """Play trial 0 of each replay that was not found the same yet, and keep in its record what came out.

    Yields:
        For each rho: the replays whose records now hold a verdict, and a text for each that could not be played.

    Raises:
        ProvenanceError: an input is missing, out of date or altered.
    """
    from cabs_core.replay.engine import default_threads
    from cabs_core.threads import one_blas_thread

    # BLAS is limited around all of them: each replay limits it too, and would lift that under the others.
    with one_blas_thread(), ThreadPoolExecutor(default_threads()) as threads:
        try:
            hashes = {
                target.parts: threads.submit(trial_again(chain, target, threads=1))
                for target, record in due
                if not reproduced(record)
            }
            for rho in dict.fromkeys(target.rho for target, _ in due):
                played, problems = [], []
                for target, record in due:
                    if target.rho != rho:
                        continue
                    try:
                        if target.parts in hashes:
                            keep_verdict(chain, target, record, hashes[target.parts].result())
                        played.append((target, record))
                    except Exception as error:
                        problems.append(f"{target.name} at rho {rho:g}: {error}")
                yield played, problems
        finally:  # whoever leaves early gives up what has not begun
            threads.shutdown(wait=True, cancel_futures=True)
