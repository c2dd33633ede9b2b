"""The gate behind `cabs check`: evaluate all checks of a pool, collect the verdicts.

A failed non-blocking check leaves a Dagster run green, so that runs alone cannot be a gate.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import dagster as dg

from cabs_core.artifacts import ArtifactStore, Chain
from cabs_core.pool_files import PoolFile
from cabs_core.report.verdicts import Case, Outcome
from cabs_dagster import checks, jobs
from cabs_dagster.cli.runner import QUIET, job
from cabs_dagster.failures import run_texts
from cabs_dagster.instance.recover import PROCESS_TAG, process_tag
from cabs_dagster.partitions import grid_key, register
from cabs_dagster.sensors import POOL_TAG
from cabs_dagster.specs import STAGE_TAG


def run_checks(
    pool_file: PoolFile,
    instance: dg.DagsterInstance,
    *,
    rhos: Iterable[float] = (),
    audit: bool = True,
    notify: Callable[[str], None] = lambda text: None,
) -> list[Case]:
    """Evaluate the checks of everything that is there of a pool, recorded in the instance.

    Args:
        audit: play one trial of a sample of the replays again, too.
    """
    pool, store = pool_file.pool, ArtifactStore()
    chain, cases = Chain(store, pool_file), []
    checked = ("outcomes", "splits", "router")
    there = [stage for stage in checked if store.record((stage, pool.name)) is not None]
    if there:
        register(instance, store, pool.name)
        notify(f"{pool.name}: {', '.join(there)}")
        keys = {spec.key for stage in there for spec in checks.check_specs(stage)}
        cases += _evaluate(instance, jobs.PREPARE, pool.name, keys)
    replayed = False
    for rho in tuple(rhos) or pool.replay.rhos:
        statuses = [chain.status(target) for target in chain.replays([rho])]
        if not any(status.record for status in statuses):
            continue
        replayed, partition = True, str(grid_key(pool.name, rho))
        old = [f"{s.target.policy}: {s}" for s in statuses if s.state != "fresh"]
        if old:
            text = f"{'; '.join(old[:5])}: run it again"
            cases.append(Case(_place("replay", partition), "up_to_date", "error", text))
        notify(f"{pool.name}: {len(statuses)} replays at rho {rho:g}")
        keys = {spec.key for spec in checks.check_specs("replay")}
        cases += _evaluate(instance, jobs.REPLAY, partition, keys)
    if replayed and audit:
        notify(f"{pool.name}: one trial of a sample of replays again")
        key = dg.AssetCheckKey(dg.AssetKey("replay_audit"), checks.REPRODUCIBLE)
        cases += _evaluate(instance, jobs.AUDIT, pool.name, {key}, {dg.AssetKey("replay_audit")})
    if (replayed or pool.logged) and store.children(("marts",)):
        from cabs_assets.marts import MODELS

        notify("SQL tests of the marts")
        keys = {spec.key for key, model in MODELS.items() for spec in checks.sql_check_specs(key, model)}
        cases += _evaluate(instance, jobs.RESULTS, pool.name, keys)
    return cases


def _evaluate(
    instance: dg.DagsterInstance,
    name: str,
    partition: str,
    keys: set[dg.AssetCheckKey],
    assets: Collection[dg.AssetKey] = (),
) -> list[Case]:
    """Launch a run of these checks (and of the assets that make them) and collect what they said."""
    part = job(name).get_subset(asset_selection=set(assets), asset_check_selection=keys)
    tags = {POOL_TAG: partition.split("|")[0], STAGE_TAG: "checks", PROCESS_TAG: process_tag()}
    result = part.execute_in_process(
        run_config=QUIET, instance=instance, partition_key=partition, raise_on_error=False, tags=tags
    )
    cases, seen = [], set()
    for found in result.get_asset_check_evaluations():
        seen.add(dg.AssetCheckKey(found.asset_key, found.check_name))
        outcome: Outcome = "passed"
        if not found.passed:
            outcome = "error" if found.severity == dg.AssetCheckSeverity.ERROR else "warning"
        place = _place(found.asset_key.to_user_string(), "" if name == jobs.RESULTS else partition)
        cases.append(Case(place, found.check_name, outcome, found.description or "", result.run_id))
    texts = [] if result.success else run_texts(result.all_events)
    for key in sorted(keys - seen):
        text = "; ".join(texts[:3]) or "it gave no result"
        place = _place(key.asset_key.to_user_string(), partition)
        cases.append(Case(place, key.name, "broken", text, result.run_id))
    return cases


def _place(asset: str, partition: str) -> str:
    return asset + (f" [{partition}]" if partition else "")
