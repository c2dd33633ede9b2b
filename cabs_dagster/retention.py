"""Trace retention: delete the round-by-round traces of old replays, keep their summaries.

`rounds.parquet` is nearly all of a replay's size. Without it everything but round-level marts still works: the
record says that the trace was pruned, and the check `trace` answers from what it found when the trace was written.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import dagster as dg
from pydantic import Field

from cabs_dagster.resources import CabsResource
from cabs_dagster.storage import ArtifactStore

TRACE_FILE = "rounds.parquet"


@dataclass(frozen=True)
class Prunable:
    """A trace that is old enough to go."""

    parts: tuple[str, ...]
    bytes: int
    age_days: float


def prunable(
    store: ArtifactStore, older_than_days: float, keep_pools: tuple[str, ...] = ()
) -> Iterator[Prunable]:
    """Traces older than so many days, those of kept pools aside. Pools that were retired count too."""
    now = datetime.now(UTC)
    for prefix in (("replay",), ("retired", "replay")):
        for pool in store.children(prefix):
            if pool in keep_pools:
                continue
            for rho in store.children((*prefix, pool)):
                for policy in store.children((*prefix, pool, rho)):
                    parts = (*prefix, pool, rho, policy)
                    record = store.record(parts)
                    if record is None or TRACE_FILE not in record.files or TRACE_FILE in record.pruned:
                        continue
                    age = (now - datetime.fromisoformat(record.created)).total_seconds() / 86400
                    if age >= older_than_days:
                        yield Prunable(parts, int(record.files[TRACE_FILE]["bytes"]), age)


def prune(store: ArtifactStore, trace: Prunable) -> None:
    """Delete one trace: the record first says that it is gone, then it goes."""
    record = store.record(trace.parts)
    if record is not None:
        kept = replace(record, pruned=(*record.pruned, TRACE_FILE))
        store.rewrite_record(trace.parts, kept, delete=(TRACE_FILE,))


class RetentionConfig(dg.Config):
    """Launchpad settings of `prune_traces`."""

    older_than_days: float = Field(30.0, ge=0, description="Delete traces that are at least this old.")
    keep_pools: list[str] = Field([], description="Pools whose traces are kept whatever their age.")
    dry_run: bool = Field(True, description="Only say what would be deleted. Set to false to delete.")


@dg.op(description="Deletes old traces; summaries, marts and reports stay.")
def prune_old_traces(context, config: RetentionConfig, cabs: CabsResource) -> None:
    store = cabs.store()
    found = list(prunable(store, config.older_than_days, tuple(config.keep_pools)))
    size = sum(trace.bytes for trace in found) / 1e6
    if not config.dry_run:
        for trace in found:
            prune(store, trace)
    verb = "would be deleted" if config.dry_run else "deleted"
    context.log.info(f"{len(found)} traces ({size:.1f} MB) {verb}")
    context.add_output_metadata({"traces": len(found), "megabytes": size, "deleted": not config.dry_run})


@dg.job(
    description="Trace retention: deletes round-by-round traces of old replays.",
    tags={"cabs/stage": "retention"},
)
def prune_traces() -> None:
    prune_old_traces()
