"""Sensor `pool_files`: new and changed pool files become runs, invalid ones a message, once.

Each tick reads the pool folder, registers the partitions of valid pools, and asks for the next part of each
followed pool's chain (see `following.py`). Followed are the pools of the user's folder and those that the weekly
schedule re-runs; the shipped pools are left alone until somebody runs them.
"""

import json

import dagster as dg

from cabs_core.errors import CabsError
from cabs_core.paths import pools_dir
from cabs_dagster import partitions
from cabs_dagster.external import settings_observations
from cabs_dagster.following import active_work, chain_requests
from cabs_dagster.jobs import JOBS
from cabs_dagster.planning import Chain
from cabs_dagster.provenance import stable_hash
from cabs_dagster.registry import accept, active_pools, affected_stages, describe_change, followed
from cabs_dagster.reporting import markdown_table
from cabs_dagster.resources import CabsResource

_REMEMBERED_KEYS = 5000


@dg.sensor(
    name="pool_files",
    jobs=JOBS,
    minimum_interval_seconds=10,
    default_status=dg.DefaultSensorStatus.STOPPED,
    description="Watches the pool folder: registers new pools, launches what is missing of their chains, reports "
    "changed fields and invalid files once.",
)
def pool_files(context: dg.SensorEvaluationContext, cabs: CabsResource) -> dg.SensorResult:
    memory = json.loads(context.cursor) if context.cursor else {}
    reported: dict[str, str] = memory.get("reported", {})
    done: list[str] = memory.get("done", [])

    pools, errors = active_pools()
    messages = {str(error): f"invalid pool file left out: {error}" for error in errors}
    wanted = followed()
    chosen = [p for p in pools if p.path.parent == pools_dir() or p.pool.name in wanted]
    additions = [
        partition_set.build_add_request(keys)
        for partition_set, keys in zip(
            (partitions.pools, partitions.rhos),
            partitions.missing_partitions(context.instance, [p.pool for p in chosen]).values(),
        )
        if keys
    ]
    events: list[dg.AssetObservation | dg.AssetMaterialization | dg.AssetCheckEvaluation] = []
    requests: list[dg.RunRequest] = []
    active = active_work(context.instance)
    for pool_file in chosen:
        changes = accept(pool_file.pool)
        if changes:
            events.append(_observation(pool_file.pool.name, str(pool_file.path), changes))
            for change in changes:
                context.log.info(f"pool {pool_file.pool.name}: {describe_change(change)}")
            context.log.info(
                f"pool {pool_file.pool.name}: concerns {', '.join(affected_stages(changes)) or 'no stage'}"
            )
        try:
            chain = Chain(cabs.store(), pool_file)
            events.extend(settings_observations(context.instance, chain))
            requests.extend(chain_requests(chain, active, set(done)))
            blocked = {r for s in chain.overview() if s.state == "blocked" for r in s.reasons}
            messages |= {
                f"{pool_file.pool.name}: {r}": f"pool {pool_file.pool.name} is blocked: {r}" for r in blocked
            }
        except CabsError as error:  # a missing table, say: it concerns this pool alone
            messages[f"{pool_file.pool.name}: {error}"] = f"pool {pool_file.pool.name}: {error}"

    for identity, text in messages.items():
        if reported.get(stable_hash(identity)) is None:
            context.log.error(text)
    fresh = _distinct([r for r in requests if r.run_key not in set(done)])
    done = (done + [str(r.run_key) for r in fresh])[-_REMEMBERED_KEYS:]
    cursor = {"reported": {stable_hash(i): text[:200] for i, text in messages.items()}, "done": done}
    return dg.SensorResult(
        run_requests=fresh,
        dynamic_partitions_requests=additions,
        asset_events=events,
        cursor=json.dumps(cursor),
        skip_reason=None if fresh else _idle(messages, active),
    )


def _distinct(requests: list[dg.RunRequest]) -> list[dg.RunRequest]:
    """The first request of each key: several pools may ask for the marts at once."""
    found: dict[str, dg.RunRequest] = {}
    for request in requests:
        found.setdefault(str(request.tags["cabs/work"]), request)
    return list(found.values())


def _idle(messages: dict[str, str], active: set[str]) -> str:
    under_way = f"{len(active)} runs under way" if active else "nothing to do"
    return under_way + (
        f"; {len(messages)} known problems: {' | '.join(messages.values())}"[:1500] if messages else ""
    )


def _observation(pool: str, path: str, changes) -> dg.AssetObservation:
    rows = [[name, json.dumps(old), json.dumps(new)] for name, old, new in changes]
    return dg.AssetObservation(
        asset_key="outcomes",
        partition=pool,
        description=f"the pool file {path} changed",
        metadata={
            "changed settings": dg.MetadataValue.md(markdown_table(["setting", "was", "is"], rows)),
            "concerns": ", ".join(affected_stages(changes)) or "no stage",
            "pool file": dg.MetadataValue.path(path),
        },
    )
