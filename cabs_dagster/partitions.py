"""Partitions of the chain, and what Dagster is told of a pool's file.

There are three dynamic sets: pools, pools with a log, and rhos. Replays have the product of pools and rhos.
Registering a pool also registers its rhos, and the pool's log if it has one. The product also has cells of a
pool at a rho of another pool; such a cell is finished with nothing to do. Pools with a log have a set of
their own because a backfill counts a partition without a materialization as failed: "Materialize all" of a
pool without a log is not to request estimates.
"""

import glob
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from cabs_core.base.errors import CabsError, PoolError
from cabs_core.base.hashing import stable_hash
from cabs_core.data.pool_files import PoolFile, parse_rho_key, rho_key
from cabs_core.data.pools.registry import active_pools, differences
from cabs_core.pipeline.artifacts import POOL_STAGES, ArtifactStore, Chain
from cabs_core.pipeline.artifacts.stages import REPLAY, pick
from cabs_core.pipeline.chain_order import Planner
from cabs_dagster.due import planner_of
from cabs_dagster.names import POOLS, POOLS_WITH_LOG, RHOS, key, named

#: tag of an event by which Dagster tells versions of an asset apart
DATA_VERSION_TAG = "dagster/data_version"


def pools() -> dg.DynamicPartitionsDefinition:
    """Return the partitions of the pools of the current location."""
    return dg.DynamicPartitionsDefinition(name=named(POOLS))


def pools_with_log() -> dg.DynamicPartitionsDefinition:
    """Return the partitions of the pools that have a log."""
    return dg.DynamicPartitionsDefinition(name=named(POOLS_WITH_LOG))


def pool_by_rho() -> dg.MultiPartitionsDefinition:
    """Return the partitions of the replays: pools by rhos."""
    rhos = dg.DynamicPartitionsDefinition(name=named(RHOS))
    return dg.MultiPartitionsDefinition({"pool": pools(), "rho": rhos})


def grid_key(pool: str, rho: float) -> dg.MultiPartitionKey:
    """Return the partition key of one pool at one rho."""
    return dg.MultiPartitionKey({"pool": pool, "rho": rho_key(rho)})


def split_key(partition: str | dg.MultiPartitionKey) -> tuple[str, float]:
    """Return (pool, rho) of a partition key of the replays."""
    pool, _, rho = str(partition).partition("|")
    return pool, parse_rho_key(rho)


def chosen(instance: dg.DagsterInstance, store: ArtifactStore, members: Iterable[PoolFile]) -> list[PoolFile]:
    """Return the pools that are to be partitions: the user's pools, and the shipped ones that are chosen.

    A shipped pool is chosen if it was run or is a partition, as other shipped pools would need downloads.
    `cabs run`, the job `pool_chain`, or the pool's name as a new partition in the UI chooses one.

    Args:
        members: the active pools.
    """
    names = {*instance.get_dynamic_partitions(named(POOLS)), *store.children(("outcomes",))}
    return [member for member in members if not member.shipped or member.pool.name in names]


def planner_in(instance: dg.DagsterInstance, store: ArtifactStore) -> Planner:
    """Return the planner over the active pools that are to be partitions of an instance, see `chosen`.

    A pool of the user counts even if the instance does not have its partition yet.
    """
    return planner_of(store, chosen(instance, store, active_pools()[0]))


def run_here(instance: dg.DagsterInstance, members: Iterable[PoolFile]) -> list[PoolFile]:
    """Return the given pools whose outcomes were materialized in this instance."""
    run = instance.get_materialized_partitions(key("outcomes"))
    return [member for member in members if member.pool.name in run]


def has_log(pool_file: PoolFile) -> bool:
    """Return True if the stage `off_policy` has a log to estimate from.

    A pool whose source is a log has one. For any other pool, the log of its router must exist and hold a
    score. A log in another format and a log that cannot be read count, too: the run that reads them says what
    is wrong.
    """
    if pool_file.pool.logged:
        return True
    place = pool_file.log_path
    if not place.exists():
        return bool(glob.glob(str(place)))
    from cabs_core.data.events.log import EventLog  # noqa: PLC0415  (pandas: a quick code location)
    from cabs_core.data.outcomes.from_logs import is_event_log  # noqa: PLC0415  (pandas, too)

    if not is_event_log(place):
        return True
    try:
        log = EventLog.existing(place)
    except CabsError:
        return True
    try:
        return next(log.scored(), None) is not None
    finally:
        log.close()


def follow(
    instance: dg.DagsterInstance, members: Iterable[PoolFile], errors: Iterable[PoolError] = ()
) -> bool:
    """Make the partitions of an instance equal to the given pools, with the rhos in numeric order.

    The instance is changed directly, and not by the requests of a sensor: Dagster refuses requests that
    delete a key and add it again elsewhere.

    Args:
        errors: errors of pool files that cannot be read. Partitions of pools with the names of these files
            stay, and then all rhos stay, too.

    Returns:
        True if a partition was added or deleted.
    """
    broken = {error.path.stem for error in errors if error.path is not None}
    members = list(members)
    changed = False
    sets = {
        named(POOLS): [member.pool.name for member in members],
        named(POOLS_WITH_LOG): [member.pool.name for member in members if has_log(member)],
    }
    for name, keys in sets.items():
        known = list(instance.get_dynamic_partitions(name))
        kept = [k for k in known if k in keys or k in broken]
        changed = _follow(instance, name, known, kept, keys) or changed
    before = {*instance.get_dynamic_partitions(named(POOLS))}
    known = list(instance.get_dynamic_partitions(named(RHOS)))
    kept = known if broken & before else []
    keys = sorted({*_rho_keys(members), *kept}, key=parse_rho_key)
    first = next((i for i, (old, new) in enumerate(zip(known, keys)) if old != new), len(keys))
    return _follow(instance, named(RHOS), known, known[:first], keys) or changed


def _rho_keys(members: Iterable[PoolFile]) -> set[str]:
    """Return the partition keys of the rhos at which these pools are replayed; a log is not replayed."""
    pools_of_tables = [member.pool for member in members if not member.pool.logged]
    return {rho_key(rho) for pool in pools_of_tables for rho in pool.replay.rhos}


def _follow(
    instance: dg.DagsterInstance, name: str, known: Sequence[str], kept: Sequence[str], keys: Sequence[str]
) -> bool:
    """Delete the keys of a set that are not kept, then add the missing ones; return True if the set changed.

    Deleted keys can be added again at the end, because Dagster shows keys in the order of their addition.
    """
    gone = [k for k in known if k not in kept]
    new = [k for k in keys if k not in kept]
    for partition in gone:
        instance.delete_dynamic_partition(name, partition)
    if new:
        instance.add_dynamic_partitions(name, new)
    return bool(gone or new)


def register(instance: dg.DagsterInstance, store: ArtifactStore, name: str = "") -> None:
    """Make the partitions of an instance equal to the active pools that `chosen` returns.

    Args:
        name: a pool that becomes a partition even if it is a shipped one that was never run. Empty for none.
    """
    members, errors = active_pools()
    if name and not instance.has_dynamic_partition(named(POOLS), name):
        instance.add_dynamic_partitions(named(POOLS), [name])
    follow(instance, chosen(instance, store, members), errors)


def register_while_loading() -> None:
    """Add the active pools that `chosen` returns, and their rhos, to this environment's instance.

    A code location calls this while it loads, so that `dg launch --partition` finds the pool of a new file in
    a fresh instance. Workers of runs load it too, several at once, so nothing is taken out here: the sensor
    `partitions_of_pools` does that, and puts the rhos in order. Without DAGSTER_HOME there is no instance. An
    instance that cannot be reached does not keep a code location from loading.
    """
    if not os.environ.get("DAGSTER_HOME"):
        return
    try:
        with dg.DagsterInstance.get() as instance:
            members = chosen(instance, ArtifactStore(), active_pools()[0])
            _add_missing(instance, named(POOLS), [member.pool.name for member in members])
            _add_missing(instance, named(POOLS_WITH_LOG), [m.pool.name for m in members if has_log(m)])
            _add_missing(instance, named(RHOS), sorted(_rho_keys(members), key=parse_rho_key))
    except Exception as error:
        logging.getLogger("dagster").warning(f"the pools could not be registered as partitions yet: {error}")


def _add_missing(instance: dg.DagsterInstance, name: str, keys: Sequence[str]) -> None:
    """Add the keys that a set of partitions does not have yet."""
    known = {*instance.get_dynamic_partitions(name)}
    missing = [key for key in keys if key not in known]
    if missing:
        instance.add_dynamic_partitions(name, missing)


def settings_of(pool_file: PoolFile) -> dict[str, Any]:
    """Return {setting: value} of what the stages of a pool read, and {name: hash} of its source's files.

    The files are the table, the scores of a log and the upstreams file, or else the files of a mirror
    (`PoolFile.external_files`). Files that scorers read are left out.

    Raises:
        PoolError: the table or the scores of a log do not exist.
    """
    values = {"policies": list(pool_file.pool.policies)} | pool_file.external_files()
    for stage in (*POOL_STAGES.values(), REPLAY):
        values |= pick(pool_file.pool, stage.settings)
    return values


def observe(
    instance: dg.DagsterInstance, planner: Planner, *, sources: bool = True, pending: bool = True
) -> dict[str, list[str]]:
    """Report to an instance the settings of pools and the data versions of the sources of marts and pages.

    Args:
        sources: True to report the sources, too. False if they are about to change.
        pending: True if due stages and replays change the versions, too, before they are made.

    Returns:
        {pool: what changed in its settings since the instance was told last, in words}.
    """
    events, changed = observations(instance, planner, sources=sources, pending=pending)
    for event in events:
        instance.report_runless_asset_event(event)
    return changed


def observations(
    instance: dg.DagsterInstance, planner: Planner, *, sources: bool = True, pending: bool = True
) -> tuple[list[dg.AssetObservation], dict[str, list[str]]]:
    """Return the observations that an instance does not know yet, and {pool: changed settings, in words}.

    The arguments are those of `observe`.
    """
    events = list[dg.AssetObservation]()
    settings = dict[str, list[str]]()
    known = _newest(instance, key("pool_file"), list(planner.chains))
    for chain in planner.chains.values():
        event, changed = _of_pool(planner, chain, known.get(chain.pool.name))
        if event is not None:
            events.append(event)
        if changed:
            settings[chain.pool.name] = changed
    if sources:
        events += _of_sources(instance, planner.versions(pending=pending))
    return events, settings


def _of_sources(
    instance: dg.DagsterInstance, versions: Mapping[tuple[str, str], str]
) -> Iterator[dg.AssetObservation]:
    """Yield an observation of each source of marts and pages whose data version the instance does not know.

    Args:
        versions: {(path of the asset, partition): data version}, see `Planner.versions`.
    """
    partitions_of = dict[str, list[str]]()
    for path, partition in versions:
        partitions_of.setdefault(path, []).append(partition)
    for path, names in partitions_of.items():
        asset = key(path)
        known = _newest(instance, asset, names)
        for partition in names:
            version = versions[path, partition]
            observed = known.get(partition)
            if observed is None or observed.tags.get(DATA_VERSION_TAG) != version:
                tags = {DATA_VERSION_TAG: version}
                yield dg.AssetObservation(asset, partition=partition or None, tags=tags)


def _of_pool(
    planner: Planner, chain: Chain, known: dg.AssetObservation | None
) -> tuple[dg.AssetObservation | None, list[str]]:
    """Return an observation of `pool_file` and what changed in the pool's settings, in words.

    The observation is None if the instance knows the pool as it is, or if the pool cannot be examined.

    Args:
        known: the newest observation of the pool in the instance, or None if there is none.
    """
    pool = chain.pool
    try:
        settings = settings_of(chain.pool_file)
        waits = planner.in_words(pool.name)
    except CabsError:  # a missing table, say: planning the chain reports it
        return None, []
    before = _observed_value(known, "settings")
    if before == settings and _observed_value(known, "due") == waits:
        return None, []
    if isinstance(before, dict):
        changed = differences(before, settings)
    else:
        changed = []
    if changed:
        files = chain.pool_file.external_files()  # a hash says nothing to people
        names = [text.partition(":")[0] for text in changed]
        changed = [f"{name} changed" if name in files else text for name, text in zip(names, changed)]
    metadata: dict[str, Any] = {
        "due": waits,
        "rhos": ", ".join(f"{rho:g}" for rho in pool.replay.rhos),
        "policies": ", ".join(pool.policies),
        "settings": dg.MetadataValue.json(settings),
        "pool file": dg.MetadataValue.path(str(chain.pool_file.path)),
    }
    if changed:
        rows = [dg.TableRecord({"changed setting": text}) for text in changed]
        metadata["changes"] = dg.MetadataValue.table(rows)
    event = dg.AssetObservation(
        key("pool_file"),
        partition=pool.name,
        description="; ".join(changed)[:500] or None,
        tags={DATA_VERSION_TAG: stable_hash(settings, 32)},
        metadata=metadata,
    )
    return event, changed


def _newest(
    instance: dg.DagsterInstance, asset: dg.AssetKey, partitions: Collection[str]
) -> dict[str, dg.AssetObservation]:
    """Return {partition: newest observation} of the partitions of an asset that were observed.

    The number of queries does not grow with the number of partitions: a tick asks for those of all pools.

    Args:
        partitions: keys of the partitions. An asset without partitions has the empty key alone.
    """
    if "" in partitions:
        records = instance.fetch_observations(asset, limit=1).records
    else:
        kind = dg.DagsterEventType.ASSET_OBSERVATION
        ids = list(instance.get_latest_storage_id_by_partition(asset, kind, {*partitions}).values())
        chosen = dg.AssetRecordsFilter(asset_key=asset, storage_ids=ids)
        records = instance.fetch_observations(chosen, limit=len(ids)).records if ids else []
    observed = [record.asset_observation for record in records]
    return {event.partition or "": event for event in observed if event is not None}


def _observed_value(observed: dg.AssetObservation | None, name: str) -> Any:
    """Return a value of an observation's metadata, or None if the observation or the value is missing."""
    value = observed.metadata.get(name) if observed else None
    if value is None:
        return None
    return value.value
