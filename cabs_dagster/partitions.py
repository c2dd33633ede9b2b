"""Partitions: pools (dynamic), rhos (dynamic, seeded with the default grid) and their product.

Rho is dynamic as well, because a pool file may name any whole rho from 0 to 9999 while the default grid has 21
values: whoever registers a pool registers its rhos. A cell of the product that a pool does not replay (a rho of
another pool) is refused with a message when somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable

import dagster as dg

from cabs_core.errors import PoolError
from cabs_core.pools import RHO_GRID, ModelPool
from cabs_dagster.stages import rho_key

POOLS = "pools"
RHOS = "rhos"

pools = dg.DynamicPartitionsDefinition(name=POOLS)
rhos = dg.DynamicPartitionsDefinition(name=RHOS)
pool_by_rho = dg.MultiPartitionsDefinition({"pool": pools, "rho": rhos})


def grid_key(pool: str, rho: float) -> dg.MultiPartitionKey:
    """Partition key of one pool at one rho."""
    return dg.MultiPartitionKey({"pool": pool, "rho": rho_key(rho)})


def split_key(key: str | dg.MultiPartitionKey) -> tuple[str, float]:
    """(pool, rho) of a partition key of the grid."""
    if isinstance(key, dg.MultiPartitionKey):
        parts = key.keys_by_dimension
        return parts["pool"], float(parts["rho"])
    pool, _, rho = key.partition("|")
    return pool, float(rho)


def missing_partitions(instance: dg.DagsterInstance, members: Iterable[ModelPool]) -> dict[str, list[str]]:
    """{name of the partition set: keys that have to be added} for these pools; the default grid is always in."""
    members = list(members)
    wanted = {
        POOLS: [pool.name for pool in members],
        RHOS: sorted({rho_key(r) for r in RHO_GRID} | {rho_key(r) for p in members for r in p.replay.rhos}),
    }
    return {
        name: [key for key in keys if key not in set(instance.get_dynamic_partitions(name))]
        for name, keys in wanted.items()
    }


def register(instance: dg.DagsterInstance, members: Iterable[ModelPool]) -> None:
    """Add the partitions of these pools to the instance."""
    for name, keys in missing_partitions(instance, members).items():
        if keys:
            instance.add_dynamic_partitions(name, keys)


def require_rho(pool: ModelPool, rho: float) -> None:
    """Refuse a rho that the pool does not replay.

    Raises:
        PoolError: the message lists the rhos of the pool.
    """
    if rho not in pool.replay.rhos:
        known = ", ".join(f"{r:g}" for r in pool.replay.rhos)
        raise PoolError(
            f"pool {pool.name!r} does not replay rho {rho:g}; its replay.rhos are {known}. Add it to the pool file."
        )
