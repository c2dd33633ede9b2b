"""Retention: delete the traces of old replays, and set aside the artifacts of retired pools.

`rounds.parquet` is nearly all of a replay's size. Without it all goes on: the record says that the trace was
pruned, the check `trace` answers from what it found when the trace was written, and a report plays the few
replays again whose rounds it shows. Pools with predicted answers keep their traces, for every estimate of
theirs is taken over rounds.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from cabs_core.base.errors import PoolError
from cabs_core.base.units import SECONDS_PER_DAY
from cabs_core.data.pools.find import find_pool
from cabs_core.data.pools.registry import edit_retired, retired
from cabs_core.pipeline.artifacts.planner import Chain
from cabs_core.pipeline.artifacts.stages import POOL_STAGES
from cabs_core.pipeline.artifacts.store import ArtifactStore

TRACE_FILE = "rounds.parquet"
#: Folders of the store that belong to one pool each.
_POOL_FOLDERS = (*POOL_STAGES, "replay", "reports")


@dataclass(frozen=True)
class Prunable:
    """Trace that is old enough to be deleted.

    Attributes:
        parts: place of the replay in the store. bytes: size of the trace.
        created: when the replay was made, UTC, ISO 8601.
    """

    parts: tuple[str, ...]
    bytes: int
    created: str


def prunable(
    store: ArtifactStore, older_than_days: float, keep_pools: tuple[str, ...] = ()
) -> Iterator[Prunable]:
    """Yield the traces that are at least `older_than_days` days old, traces of retired pools included.

    Pools in `keep_pools` keep their traces, and so do pools with predicted answers unless they are retired.
    """
    now = datetime.now(UTC)
    for prefix in (("replay",), ("retired", "replay")):
        for pool in store.children(prefix):
            if pool in keep_pools or (prefix == ("replay",) and _needs_rounds(pool)):
                continue
            for rho in store.children((*prefix, pool)):
                for policy in store.children((*prefix, pool, rho)):
                    parts = (*prefix, pool, rho, policy)
                    record = store.record(parts)
                    if record is None or TRACE_FILE not in record.files or TRACE_FILE in record.pruned:
                        continue
                    age = (now - datetime.fromisoformat(record.created)).total_seconds() / SECONDS_PER_DAY
                    if age >= older_than_days:
                        yield Prunable(parts, int(record.files[TRACE_FILE]["bytes"]), record.created)


def _needs_rounds(pool: str) -> bool:
    """Return whether estimates of a pool need the rounds of replays, as they do where answers are predicted.

    False if the pool has no valid file.
    """
    try:
        return find_pool(pool).pool.predicts
    except PoolError:
        return False


def prune(store: ArtifactStore, trace: Prunable) -> None:
    """Delete one trace after noting in the record that it is gone.

    Nothing happens if the trace is gone already or the replay was made again since it was listed.
    """
    record = store.record(trace.parts)
    if record is not None and record.created == trace.created and TRACE_FILE not in record.pruned:
        kept = replace(record, pruned=(*record.pruned, TRACE_FILE))
        store.rewrite_record(trace.parts, kept, delete=(TRACE_FILE,))


def remove_replays_of_other_versions(chain: Chain) -> list[str]:
    """Remove a pool's replays that another version of the project made and that its pool file does not name.

    No run would make them again, and the SQL models read all replays that are there.

    Returns:
        The removed replays in words.
    """
    store = chain.store
    pool = chain.pool.name
    named = {target.parts for target in chain.replays()}
    removed = []
    for rho in store.children(("replay", pool)):
        for policy in store.children(("replay", pool, rho)):
            parts = ("replay", pool, rho, policy)
            if parts in named:
                continue
            record = store.record(parts)
            if record is not None and record.other_version:
                store.delete(parts)
                removed.append(record.described)
    return removed


def retire_pool(name: str, store: ArtifactStore, *, delete: bool = False) -> None:
    """Retire a pool: runs, marts and reports leave it out. Its artifacts are moved to `retired/`, or deleted.

    Deleting also takes those that were moved there before.

    Raises:
        PoolError: the pool has neither a valid file nor artifacts.
    """
    places = [(folder, name) for folder in _POOL_FOLDERS]
    aside = [("retired", folder, name) for folder in _POOL_FOLDERS]
    if not any(store.children(place) for place in (*places, *aside)):
        find_pool(name)
    with edit_retired() as names:
        names.add(name)
    if delete:
        for place in (*places, *aside):
            store.delete(place)
        return
    for place, target in zip(places, aside, strict=True):
        store.move(place, target)


def restore_pool(name: str, store: ArtifactStore) -> None:
    """Take a retired pool back, with the artifacts that were set aside.

    Raises:
        PoolError: the pool is not retired, or has no valid file.
    """
    if name not in retired():
        raise PoolError(
            f"pool {name!r} is not retired; retired are: {', '.join(sorted(retired())) or 'none'}"
        )
    find_pool(name)
    for folder in _POOL_FOLDERS:
        store.move(("retired", folder, name), (folder, name))
    with edit_retired() as names:
        names.discard(name)
