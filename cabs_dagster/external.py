"""External assets that make Dagster's staleness agree with the planner: pool settings, and a pool's part of the marts.

* `settings/<stage>`, partitioned by pool: the settings of the pool file that a stage reads (for `outcomes` with the
  content of the table). A changed setting colours the stage that reads it, and what follows it, in the UI.
* `pool_results`, partitioned by pool: the rows of one pool in all marts. A report depends on them, not on the marts
  as a whole, so that a new pool leaves the reports of the others fresh.

Nobody materialises these; their data versions are observed by `cabs run`, `cabs ui`, the sensor and the marts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dagster as dg
from dagster import DagsterInstance

from cabs_core.errors import CabsError
from cabs_dagster import partitions, specs
from cabs_dagster.planning import Chain
from cabs_dagster.provenance import stable_hash
from cabs_dagster.stages import _OVER_POLICIES, POOL_STAGES, REPLAY_SETTINGS, pick
from cabs_dagster.storage import ArtifactStore

_VERSION = "dagster/data_version"
POOL_RESULTS = dg.AssetKey("pool_results")
_READERS = {
    "outcomes": "which source, models, tasks and prices, and the content of the table",
    "splits": "fractions, seed and shift of the split",
    "prompt_embeddings": "the encoder and its revision",
    "oracles": "kind and training of the oracles, features, labels",
    "replay_problem": "features and labels",
    "tuning": "budget, rhos, order seed and the list of policies",
    "decision_latency": "rhos, order seed, latency weight and the list of policies",
    "replay": "trials, order seed, rounds, stress condition, latency weight",
}


def settings_key(stage: str) -> dg.AssetKey:
    """Asset key of the settings that a stage reads; `replay` for all policies."""
    return dg.AssetKey(["settings", stage])


def external_specs(marts: list[dg.AssetKey]) -> list[dg.AssetSpec]:
    """Specs of all of them; `pool_results` follows the marts."""
    common: dict[str, Any] = {
        "owners": specs.OWNERS,
        "partitions_def": partitions.pools,
        "code_version": "1",
    }
    settings = [
        dg.AssetSpec(
            settings_key(stage),
            description=f"What `{stage}` reads of the pool file: {text}. Observed when the file changes.",
            group_name="pools",
            kinds={"yaml"},
            tags={specs.STAGE_TAG: "settings"},
            **common,
        )
        for stage, text in _READERS.items()
    ]
    results = dg.AssetSpec(
        POOL_RESULTS,
        deps=marts,
        description="The rows of one pool in all marts: what its report shows. Observed when the marts are built.",
        group_name="marts",
        kinds={"parquet"},
        tags={specs.STAGE_TAG: "marts"},
        **common,
    )
    return [*settings, results]


def with_settings(assets: dg.AssetsDefinition) -> dg.AssetsDefinition:
    """The assets, each with the settings that it reads among its dependencies."""

    def add(spec: dg.AssetSpec) -> dg.AssetSpec:
        name = spec.key.path[0]
        if name not in _READERS:
            return spec
        return spec.replace_attributes(deps=[*spec.deps, settings_key(name)])

    return assets.map_asset_specs(add)


def settings_versions(chain: Chain) -> dict[str, tuple[str, dict[str, Any]]]:
    """{stage: (data version, settings)} of a pool.

    Raises:
        CabsError: the pool's table is missing.
    """
    pool = chain.pool
    found = {}
    for name, stage in POOL_STAGES.items():
        values = pick(pool, stage.settings) | chain.external_inputs(chain.stage(name))
        if name in _OVER_POLICIES:
            values["policies"] = list(pool.policies)
        found[name] = values
    found["replay"] = pick(pool, tuple(f"replay.{name}" for name in REPLAY_SETTINGS))
    return {name: (stable_hash(values, 32), values) for name, values in found.items()}


def settings_observations(instance: DagsterInstance, chain: Chain) -> list[dg.AssetObservation]:
    """Observations of the settings that the instance knows otherwise, or not at all."""
    try:
        versions = settings_versions(chain)
    except CabsError:  # said by whoever plans the chain
        return []
    return [
        _observation(
            settings_key(name), chain.pool.name, version, {"settings": dg.MetadataValue.json(values)}
        )
        for name, (version, values) in versions.items()
        if _known(instance, settings_key(name), chain.pool.name) != version
    ]


def results_observations(instance: DagsterInstance, store: ArtifactStore) -> Iterator[dg.AssetObservation]:
    """Observations of every pool's part of the marts that the instance knows otherwise, or not at all."""
    from cabs_dagster.pages import mart_inputs

    for pool in store.children(("replay",)):
        try:
            inputs = mart_inputs(store, pool)
        except CabsError:  # there are no marts yet
            return
        version = stable_hash(inputs, 32)
        if _known(instance, POOL_RESULTS, pool) != version:
            metadata = {"rows of each mart (hashes)": dg.MetadataValue.json(inputs)}
            yield _observation(POOL_RESULTS, pool, version, metadata)


def observe(instance: DagsterInstance, *chains: Chain) -> None:
    """Write the observations of these pools' settings to the instance."""
    for chain in chains:
        for event in settings_observations(instance, chain):
            instance.report_runless_asset_event(event)


def _observation(key: dg.AssetKey, pool: str, version: str, metadata: dict[str, Any]) -> dg.AssetObservation:
    return dg.AssetObservation(key, partition=pool, tags={_VERSION: version}, metadata=metadata)


def _known(instance: DagsterInstance, key: dg.AssetKey, pool: str) -> str | None:
    """Data version of the last observation of a partition."""
    record = instance.get_latest_data_version_record(key, is_source=True, partition_key=pool)
    event = record.event_log_entry.dagster_event if record else None
    if event is None or event.event_specific_data is None:
        return None
    return event.event_specific_data.asset_observation.tags.get(_VERSION)
