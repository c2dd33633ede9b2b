"""Tags of the runs of a chain, and which runs an instance has under way.

A run that a sensor or a schedule began has the tag `cabs/chain`. The tag holds the identity of the chain,
with which the run keys of its parts begin.
"""

import time
from datetime import UTC, datetime

import dagster as dg

from cabs_dagster.names import tag

#: words of the tags on runs of a chain; `names.tag` puts the location's name before them
POOL_TAG = "pool"
CHAIN_TAG = "chain"
#: seconds within which `next_part`, which looks every ten, has requested the part that follows another part
FOLLOWED_UP = 60.0
_UNDER_WAY = [dg.DagsterRunStatus(s) for s in ("QUEUED", "NOT_STARTED", "STARTING", "STARTED", "CANCELING")]


def under_way(instance: dg.DagsterInstance, chains: bool = False) -> set[str]:
    """Return the names of the pools of which a run is queued or under way.

    Args:
        chains: True counts only runs that belong to a chain that a sensor or a schedule began.
    """
    pools = set()
    for run in instance.get_runs(dg.RunsFilter(statuses=_UNDER_WAY)):
        if not chains or tag(CHAIN_TAG) in run.tags:
            partition = run.tags.get("dagster/partition", "")
            pools.add(run.tags.get(tag(POOL_TAG)) or partition.split("|")[0])
    return pools - {""}


def is_at_rest(instance: dg.DagsterInstance) -> bool:
    """Return True if no run at all is queued or under way and no part of a chain ended in the last minute.

    `FOLLOWED_UP` holds the minute. Between two parts of a chain no run of the chain is under way. Marts made
    then would be made again when the chain ends.
    """
    if instance.get_runs(dg.RunsFilter(statuses=_UNDER_WAY), limit=1):
        return False
    since = datetime.fromtimestamp(time.time() - FOLLOWED_UP, UTC)
    ended = instance.get_runs(dg.RunsFilter(updated_after=since))
    return not any(tag(CHAIN_TAG) in run.tags for run in ended)
