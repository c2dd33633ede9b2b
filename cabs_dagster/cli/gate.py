"""The gate behind `cabs check`: evaluate all checks of a pool, collect the verdicts.

A failed non-blocking check leaves a Dagster run green, so that runs alone cannot be a gate.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

import dagster as dg

from cabs_core.base.errors import counted
from cabs_core.base.paths import deployed_folder
from cabs_core.data.pool_files import PoolFile
from cabs_core.pipeline.artifacts import ArtifactStore, Chain, Status
from cabs_core.pipeline.chain_order import JOINING, KINDS, Planner, Wanted
from cabs_core.report.verdicts import Case, CheckOutcome
from cabs_core.router.bundle import HEADER
from cabs_dagster import checks, job_names, names
from cabs_dagster.chain_runs import POOL_TAG
from cabs_dagster.cli.runner import QUIET, job
from cabs_dagster.due import planner_of
from cabs_dagster.failures import run_texts
from cabs_dagster.instance.recover import PROCESS_TAG, process_tag
from cabs_dagster.partitions import grid_key, register
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
    planner = planner_of(store, [pool_file])
    cases: list[Case] = []
    chain = planner.chains[pool.name]
    wanted = Wanted(tuple(r for r in tuple(rhos) or pool.replay.rhos if _replayed(chain, r)), alone=True)
    there = [asset for asset in checks.OF_POOLS if _there(chain, asset)]
    fault, waiting = _first_fault(planner, pool.name, [*there, *(["replay"] if wanted.rhos else [])])
    there = [asset for asset in there if asset not in waiting]
    if fault and fault.record is not None and fault.record.other_version:
        # its checks cannot read what another version wrote
        there = [asset for asset in there if asset != fault.target.stage]
    if fault:
        late = sum(len(checks.check_specs(a)) * (len(wanted.rhos) if a == "replay" else 1) for a in waiting)
        text = f"{fault.target.described} is {fault}: run it again" + (
            f"; {counted(late, 'check')} of what is made from it wait" if late else ""
        )
        if fault.state != "blocked":  # else its own check says so
            cases.append(Case(_place(fault.target.stage, pool.name), "up_to_date", "error", text))
    if ended := _ended_by_budget(chain):
        cases.append(Case(_place("answers", pool.name), "complete", "warning", ended))
    if there:
        register(instance, store, pool.name)
        notify(f"{pool.name}: {', '.join(there)}")
    for name, assets in _by_job(there).items():
        keys = {spec.key for asset in assets for spec in checks.check_specs(asset)}
        cases += _evaluate(instance, name, pool.name, keys)
    if "replay" in waiting:
        return cases
    others = [kind for kind in KINDS if kind != "replay"]
    old_of = {part.rho: part.due for part in planner.next_parts(pool.name, others, wanted)}
    for rho in wanted.rhos:
        partition = str(grid_key(pool.name, rho))
        if old := [f"{s.target.policy}: {s}" for s in old_of.get(rho, ())]:
            text = f"{'; '.join(old[:5])}: run it again"
            cases.append(Case(_place("replay", partition), "up_to_date", "error", text))
        notify(f"{pool.name}: {counted(len(pool.policies), 'replay')} at rho {rho:g}")
        keys = {spec.key for spec in checks.check_specs("replay")}
        cases += _evaluate(instance, job_names.REPLAY, partition, keys)
    if wanted.rhos and audit:
        notify(f"{pool.name}: one trial of a sample of replays again")
        key = dg.AssetCheckKey(names.key("replay_audit"), checks.REPRODUCIBLE)
        cases += _evaluate(instance, job_names.AUDIT, pool.name, {key}, {names.key("replay_audit")})
    if (wanted.rhos or pool.logged) and store.children(("marts",)):
        from cabs_assets.marts import models

        notify("SQL tests of the marts")
        keys = {spec.key for key, model in models().items() for spec in checks.sql_check_specs(key, model)}
        cases += _evaluate(instance, job_names.RESULTS, pool.name, keys)
    return cases


def _replayed(chain: Chain, rho: float) -> bool:
    """Return whether a policy of the pool has a replay at a rho."""
    return any(chain.store.record(target.parts) is not None for target in chain.replays([rho]))


def _there(chain: Chain, asset: str) -> bool:
    """Return whether an asset of the pool was made, so that its checks have something to read."""
    if asset == "deployed_router":
        return (deployed_folder(chain.pool.name) / HEADER).is_file() and _there(chain, "router")
    return chain.store.record((asset, chain.pool.name)) is not None


def _first_fault(planner: Planner, pool: str, there: Sequence[str]) -> tuple[Status | None, list[str]]:
    """Return the first stage that is there and out of date, and the assets whose checks wait for that stage.

    Args:
        there: the assets of the pool that were made.

    Returns:
        The status of the stage, or None if all stages are up to date, and the assets made from it.
    """
    parts = planner.next_parts(pool, (*JOINING, "replay", "results"), Wanted(pays=True, alone=True))
    for status in (status for part in parts for status in part.due):
        name = status.target.stage
        behind = set(planner.behind(pool, {name: []}))
        if "router" in behind:
            behind.add("deployed_router")
        waiting = [asset for asset in there if asset in behind - {name}]
        if waiting or status.state in ("stale", "blocked"):
            return status, waiting
    return None, []


def _ended_by_budget(chain: Chain) -> str:
    """Return a sentence about a collection that ended because its budget was spent, or an empty text."""
    record = chain.store.record(("answers", chain.pool.name)) if chain.pool.collected else None
    if record is None:
        return ""
    from cabs_core.pipeline.stages.answers import AnswersSummary

    answers = AnswersSummary.of(record)
    part = f"it stopped after {answers.prompts:,} of {answers.prompts_in_all:,} prompts: {answers.stopped}"
    return f"{part}; all that follows is about these prompts" if answers.by_budget else ""


def _by_job(assets: Iterable[str]) -> dict[str, list[str]]:
    """Return {job: the assets of the given ones whose checks the job has}."""
    jobs_of = {"deployed_router": job_names.DEPLOY} | dict.fromkeys(job_names.COLLECTED, job_names.COLLECT)
    by_job: dict[str, list[str]] = {}
    for asset in assets:
        by_job.setdefault(jobs_of.get(asset, job_names.PREPARE), []).append(asset)
    return by_job


def _evaluate(
    instance: dg.DagsterInstance,
    name: str,
    partition: str,
    keys: set[dg.AssetCheckKey],
    assets: Collection[dg.AssetKey] = (),
) -> list[Case]:
    """Evaluate checks in a run and return what each of them said.

    Args:
        name: the job that has the checks.
        assets: assets that the run makes, for checks that are evaluated only while their asset is made.
    """
    part = job(name).get_subset(asset_selection=set(assets), asset_check_selection=keys)
    tags = {names.tag(POOL_TAG): partition.split("|")[0], STAGE_TAG: "checks", PROCESS_TAG: process_tag()}
    result = part.execute_in_process(
        run_config=QUIET, instance=instance, partition_key=partition, raise_on_error=False, tags=tags
    )
    cases, seen = [], set()
    for check in result.get_asset_check_evaluations():
        seen.add(dg.AssetCheckKey(check.asset_key, check.check_name))
        outcome: CheckOutcome = "passed"
        if not check.passed:
            outcome = "error" if check.severity == dg.AssetCheckSeverity.ERROR else "warning"
        place = _place(names.path_of(check.asset_key), "" if name == job_names.RESULTS else partition)
        cases.append(Case(place, check.check_name, outcome, check.description or "", result.run_id))
    texts = [] if result.success else run_texts(result.all_events)
    for key in sorted(keys - seen):
        text = "; ".join(texts[:3]) or "it gave no result"
        place = _place(names.path_of(key.asset_key), partition)
        cases.append(Case(place, key.name, "broken", text, result.run_id))
    return cases


def _place(asset: str, partition: str) -> str:
    """Return words for an asset and its partition, such as `splits [demo]`."""
    return asset + (f" [{partition}]" if partition else "")
