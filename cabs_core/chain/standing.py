"""Whether what is shown of a pool is of the data, settings and code at hand: else it yields no verdict."""

from __future__ import annotations

from cabs_core.artifacts import Chain, OlderData
from cabs_core.artifacts.store import ArtifactStore
from cabs_core.errors import ProvenanceError
from cabs_core.pools.registry import active_pools

#: begins what is said of a pool whose report yields no verdict now
WITHHELD = "No verdict: "


def older_data(chain: Chain) -> OlderData | None:
    """Why the figures in a pool's marts and report are of older data; None where they are up to date.

    Policies and rhos that were not played yet are not missed here: a report of a part says that it is one.
    """
    if chain.pool.logged:
        return chain.older_data([chain.stage("off_policy")])
    played = chain.over(chain.tuned)
    return played.older_data([played.stage("replay_problem"), played.stage("tuning"), *played.replays()])


def verdicts(store: ArtifactStore) -> dict[str, str]:
    """{pool: verdict of its report, or why it has none now}, of all that have a report or outcomes."""
    chains = {found.pool.name: Chain(store, found) for found in active_pools()[0]}
    verdicts = {}
    for pool in store.children(("outcomes",)):
        if pool not in chains:
            verdicts[pool] = f"{WITHHELD}there is no pool file of this name"
        elif older_data(chains[pool]):
            verdicts[pool] = f"{WITHHELD}its figures are of older data"
        elif verdict := _of_report(store, pool):
            verdicts[pool] = verdict
    return verdicts


def _of_report(store: ArtifactStore, pool: str) -> str:
    try:
        record = store.record(("reports", pool))
    except ProvenanceError:  # a damaged page is made again
        return ""
    return str(record.summary.get("verdict", "")) if record else ""
