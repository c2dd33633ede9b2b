"""Partitions: pools and rhos, both dynamic, and their product; and what Dagster knows of a pool's file.

Registering a pool also registers its rhos. Dagster's product has cells of a pool at a rho of another pool, too. Nothing
here asks for them; a person may: such a replay is kept, and no part of the pool's means.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import dagster as dg

from cabs_core.artifacts import POOL_STAGES, Chain
from cabs_core.artifacts.stages import REPLAY, pick
from cabs_core.errors import CabsError
from cabs_core.hashing import stable_hash
from cabs_core.pool_files import ModelPool, PoolFile, parse_rho_key, rho_key
from cabs_core.pools.registry import differences

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
    pool, _, rho = str(key).partition("|")
    return pool, parse_rho_key(rho)


def missing_partitions(instance: dg.DagsterInstance, members: Iterable[ModelPool]) -> dict[str, list[str]]:
    """{name of the partition set: keys that have to be added} for these pools."""
    members = list(members)
    wanted = {
        POOLS: [pool.name for pool in members],
        RHOS: sorted({rho_key(rho) for pool in members if not pool.logged for rho in pool.replay.rhos}),
    }
    known = {name: set(instance.get_dynamic_partitions(name)) for name in wanted}
    return {name: [key for key in keys if key not in known[name]] for name, keys in wanted.items()}


def register(instance: dg.DagsterInstance, members: Iterable[ModelPool]) -> None:
    """Add the partitions of these pools to the instance."""
    for name, keys in missing_partitions(instance, members).items():
        if keys:
            instance.add_dynamic_partitions(name, keys)


def additions(
    instance: dg.DagsterInstance, members: Iterable[ModelPool]
) -> list[dg.AddDynamicPartitionsRequest]:
    """Requests of a sensor that add the partitions of these pools; none where the instance knows them."""
    definitions = {POOLS: pools, RHOS: rhos}
    missing = missing_partitions(instance, members)
    return [definitions[name].build_add_request(keys) for name, keys in missing.items() if keys]


def run_here(instance: dg.DagsterInstance, members: Iterable[PoolFile]) -> list[PoolFile]:
    """Those of the pools that have been run in this instance.

    The shipped ones are partitions, too, so that they can be chosen in the UI; nobody has asked for their downloads.
    """
    run = instance.get_materialized_partitions(dg.AssetKey("outcomes"))
    return [member for member in members if member.pool.name in run]


def settings_of(pool_file: PoolFile) -> dict[str, Any]:
    """What the stages of a pool read: its settings, and hashes of the files that it names.

    Raises:
        PoolError: a file that it names is not there.
    """
    values = {"policies": list(pool_file.pool.policies)} | pool_file.external_files()
    for stage in (*POOL_STAGES.values(), REPLAY):
        values |= pick(pool_file.pool, stage.settings)
    return values


def observe(instance: dg.DagsterInstance, chain: Chain) -> list[str]:
    """Tell the instance what a pool's file says now; returns what changed since it was told last, in words."""
    found = observation(instance, chain)
    if found is None:
        return []
    event, changes = found
    instance.report_runless_asset_event(event)
    return changes


def observation(instance: dg.DagsterInstance, chain: Chain) -> tuple[dg.AssetObservation, list[str]] | None:
    """An observation of the asset `pool_file` and what changed; None when the instance knows it as it is."""
    try:
        settings = settings_of(chain.pool_file)
    except CabsError:  # a missing table, say: planning the chain reports it
        return None
    known = _last_settings(instance, chain.pool.name)
    if known == settings:
        return None
    changes = [] if known is None else differences(known, settings)
    metadata: dict[str, Any] = {
        "settings": dg.MetadataValue.json(settings),
        "pool file": dg.MetadataValue.path(str(chain.pool_file.path)),
    }
    if changes:
        rows = [dg.TableRecord({"changed setting": text}) for text in changes]
        metadata["changes"] = dg.MetadataValue.table(rows)
    event = dg.AssetObservation(
        "pool_file",
        partition=chain.pool.name,
        description="; ".join(changes)[:500] or None,
        tags={"dagster/data_version": stable_hash(settings, 32)},
        metadata=metadata,
    )
    return event, changes


def _last_settings(instance: dg.DagsterInstance, pool: str) -> dict[str, Any] | None:
    wanted = dg.AssetRecordsFilter(asset_key=dg.AssetKey("pool_file"), asset_partitions=[pool])
    records = instance.fetch_observations(wanted, limit=1).records
    observed = records[0].asset_observation if records else None
    value = observed.metadata.get("settings") if observed else None
    return value.data if isinstance(value, dg.JsonMetadataValue) and isinstance(value.data, dict) else None
