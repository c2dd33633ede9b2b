"""The gate behind `cabs check`: evaluate all checks of a pool, and collect what they say.

A failed check that blocks nothing leaves a Dagster run green, so that runs alone cannot be a gate.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

import dagster as dg

from cabs_core.base.errors import CabsError, counted
from cabs_core.base.paths import deployed_folder
from cabs_core.data.pool_files import PoolFile
from cabs_core.pipeline.artifacts import ArtifactStore, Chain, Status
from cabs_core.pipeline.chain_order import JOINING, KINDS, Planner, Wanted
from cabs_core.pipeline.pages import Leaderboard, Report
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
from dbt_like_sql.artifacts import Marts, key_of
from dbt_like_sql.runner import list_models

_REPLAY = "replay"
#: checks of the gate itself: an artifact is made from what is there now; its files are those of its record
UP_TO_DATE = "up_to_date"
WHOLE = "whole"


def run_checks(
    pool_file: PoolFile,
    instance: dg.DagsterInstance,
    *,
    rhos: Iterable[float] = (),
    audit: bool = True,
    notify: Callable[[str], None] = lambda text: None,
) -> list[Case]:
    """Evaluate the checks of the present artifacts of a pool, in runs that the instance records.

    Replays and marts are not checked while a stage from which the replays are made is out of date. Files of
    marts, report and leaderboard are compared with their records.

    Args:
        rhos: rhos at which replays are checked and have to be there. Empty: all of the pool's, of which one
            without a replay is a warning.
        audit: True to play one trial of a sample of the replays again, too.
        notify: called with words on what is checked next.

    Raises:
        CabsError: the pool cannot be examined, because its table is missing, say.
    """
    gate = _Gate(pool_file, instance, tuple(rhos), notify)
    gate.check_stages()
    if _REPLAY not in gate.waiting:
        gate.check_replays()
        if gate.rhos and audit:
            gate.play_again()
        gate.check_marts()
    gate.check_pages()
    return gate.cases


class _Gate:
    """Evaluation of the checks of one pool.

    Attributes:
        rhos: the rhos at which a policy was replayed.
        unplayed: the other rhos that were asked for. A log has none.
        named: True if the caller named the rhos, so that none may be without a replay.
        fault: the first stage that is out of date; None if all are up to date.
        waiting: present assets that are made from that stage, so that their checks wait.
        cases: results of the checks so far.
    """

    def __init__(
        self,
        pool_file: PoolFile,
        instance: dg.DagsterInstance,
        rhos: tuple[float, ...],
        notify: Callable[[str], None],
    ):
        self.pool = pool_file.pool
        self.instance = instance
        self.notify = notify
        self.store = ArtifactStore()
        self.planner = planner_of(self.store, [pool_file])
        self.chain = self.planner.chains[self.pool.name]
        asked = () if self.pool.logged else rhos or self.pool.replay.rhos
        self.rhos = tuple(rho for rho in asked if _is_replayed(self.chain, rho))
        self.unplayed = tuple(rho for rho in asked if rho not in self.rhos)
        self.named = bool(rhos)
        self.made = [asset for asset in checks.POOL_ASSETS if _is_made(self.chain, asset)]
        replays = [_REPLAY] if self.rhos else []
        self.fault, self.waiting = _first_fault(self.planner, self.pool.name, [*self.made, *replays])
        self.cases: list[Case] = []

    def check_stages(self) -> None:
        """Evaluate the checks of the stages, and report a stage that is out of date or ended early."""
        checkable = [asset for asset in self.made if asset not in self.waiting]
        fault = self.fault
        if fault is not None:
            if fault.record is not None and fault.record.other_version:
                # its checks cannot read what another version wrote
                checkable = [asset for asset in checkable if asset != fault.target.stage]
            if fault.state != "blocked":  # else its own check says so
                self._report(fault.target.stage, UP_TO_DATE, "error", self._text_of(fault))
        ended = _ended_by_budget(self.chain)
        if ended:
            self._report("answers", "complete", "warning", ended)
        if checkable:
            register(self.instance, self.store, self.pool.name)
            self.notify(f"{self.pool.name}: {', '.join(checkable)}")
        for name, assets in _by_job(checkable).items():
            keys = {spec.key for asset in assets for spec in checks.check_specs(asset)}
            self.cases += _evaluate(self.instance, name, self.pool.name, keys)

    def check_replays(self) -> None:
        """Evaluate the checks of the replays at every rho, and report missing and outdated replays."""
        self._report_unplayed()
        wanted = Wanted(self.rhos, alone=True)
        others = [kind for kind in KINDS if kind != "replay"]
        parts = self.planner.next_parts(self.pool.name, others, wanted)
        due_at = {part.rho: part.due for part in parts}
        keys = {spec.key for spec in checks.check_specs(_REPLAY)}
        for rho in self.rhos:
            partition = str(grid_key(self.pool.name, rho))
            stale = [f"{status.target.policy}: {status}" for status in due_at.get(rho, ())]
            if stale:
                text = f"{'; '.join(stale[:5])}: run it again"
                self.cases.append(Case(_place(_REPLAY, partition), UP_TO_DATE, "error", text))
            self.notify(f"{self.pool.name}: {counted(len(self.pool.policies), 'replay')} at rho {rho:g}")
            self.cases += _evaluate(self.instance, job_names.REPLAY, partition, keys)

    def play_again(self) -> None:
        """Play one trial of a sample of the replays again, and compare."""
        self.notify(f"{self.pool.name}: one trial of a sample of replays again")
        audit = names.key("replay_audit")
        keys = {dg.AssetCheckKey(audit, checks.REPRODUCIBLE)}
        self.cases += _evaluate(self.instance, job_names.AUDIT, self.pool.name, keys, {audit})

    def check_marts(self) -> None:
        """Report damage of the marts and evaluate their SQL tests, if the pool is replayed or logged.

        The tests cover all pools in the marts. They run even if the marts are older than the pool's replays.
        Nothing happens if there are no marts.
        """
        if not (self.rhos or self.pool.logged) or not self.store.children(("marts",)):
            return
        from cabs_assets.marts import models

        self._report_damaged_marts()
        self.notify("SQL tests of the marts")
        keys = {spec.key for key, model in models().items() for spec in checks.sql_check_specs(key, model)}
        self.cases += _evaluate(self.instance, job_names.RESULTS, self.pool.name, keys)

    def check_pages(self) -> None:
        """Report damage of the pool's report and of the leaderboard, as far as they are there."""
        pages: dict[str, Report | Leaderboard] = {
            _place("report", self.pool.name): self.planner.report(self.pool.name),
            # its damage does not depend on what the pools' reports say
            "leaderboard": Leaderboard(self.store, self.planner.sql.marts, {}),
        }
        for place, page in pages.items():
            try:
                record = page.record()
                damage = page.faults(record) if record is not None else []
            except CabsError as error:  # the record itself was altered
                damage = [str(error)]
            self._report_damage(place, damage)

    def _report_unplayed(self) -> None:
        """Report every rho without a replay: as an error if the rhos were named, else as a warning.

        Without named rhos nothing is reported of a pool that was not replayed at any rho.
        """
        if not (self.named or self.rhos):
            return
        if self.named:
            outcome: CheckOutcome = "error"
        else:
            outcome = "warning"
        for rho in self.unplayed:
            text = f"not there: `cabs run --pool {self.pool.name} --rho {rho:g}` plays it"
            place = _place(_REPLAY, str(grid_key(self.pool.name, rho)))
            self.cases.append(Case(place, UP_TO_DATE, outcome, text))

    def _report_damaged_marts(self) -> None:
        """Report the files of the marts, and their database, that are not as they were written."""
        marts = Marts(self.store)
        for model in list_models():
            self._report_damage(key_of(model), marts.damage_of(model))
        if marts.database_fault:
            self._report_damage("database", [marts.database_fault])

    def _report_damage(self, place: str, damage: Iterable[str]) -> None:
        """Add an error for each sentence about files of an asset that are not those of its record."""
        for text in damage:
            again = f"{text}: `cabs run --pool {self.pool.name}` makes it again"
            self.cases.append(Case(place, WHOLE, "error", again))

    def _report(self, asset: str, check: str, outcome: CheckOutcome, text: str) -> None:
        """Add a case that the gate itself found."""
        self.cases.append(Case(_place(asset, self.pool.name), check, outcome, text))

    def _text_of(self, fault: Status) -> str:
        """Return a sentence about a stage that is out of date, and how many checks wait for it."""
        text = f"{fault.target.described} is {fault}: run it again"
        late = 0
        for asset in self.waiting:
            partitions = len(self.rhos) if asset == _REPLAY else 1
            late += len(checks.check_specs(asset)) * partitions
        if late:
            return f"{text}; {counted(late, 'check')} of what is made from it wait"
        return text


def _is_replayed(chain: Chain, rho: float) -> bool:
    """Return True if a policy of the pool has a replay at a rho."""
    return any(chain.store.record(target.parts) is not None for target in chain.replays([rho]))


def _is_made(chain: Chain, asset: str) -> bool:
    """Return True if an asset of the pool was made, so that its checks have something to read."""
    if asset == "deployed_router":
        return (deployed_folder(chain.pool.name) / HEADER).is_file() and _is_made(chain, "router")
    return chain.store.record((asset, chain.pool.name)) is not None


def _first_fault(planner: Planner, pool: str, made: Sequence[str]) -> tuple[Status | None, list[str]]:
    """Return the first stage that is out of date, and the assets whose checks wait for that stage.

    Args:
        made: the assets of the pool that were made.

    Returns:
        The status of the stage, and the assets made from it. A stage that was never made counts only if one
        of the given assets is made from it. Without such a stage, None and an empty list.
    """
    parts = planner.next_parts(pool, (*JOINING, "replay", "results"), Wanted(pays=True, alone=True))
    for status in (status for part in parts for status in part.due):
        name = status.target.stage
        behind = set(planner.behind(pool, {name: []}))
        if "router" in behind:
            behind.add("deployed_router")
        waiting = [asset for asset in made if asset in behind - {name}]
        if waiting or status.state in ("stale", "blocked"):
            return status, waiting
    return None, []


def _ended_by_budget(chain: Chain) -> str:
    """Return a sentence about a collection that ended because its budget was spent, or an empty text."""
    if chain.pool.collected:
        record = chain.store.record(("answers", chain.pool.name))
    else:
        record = None
    if record is None:
        return ""
    from cabs_core.pipeline.stages.answers import AnswersSummary

    answers = AnswersSummary.of(record)
    if not answers.by_budget:
        return ""
    part = f"it stopped after {answers.prompts:,} of {answers.prompts_in_all:,} prompts: {answers.stopped}"
    return f"{part}; all that follows is about these prompts"


def _by_job(assets: Iterable[str]) -> dict[str, list[str]]:
    """Return {job: those of the given assets whose checks the job has}."""
    jobs_of = {"deployed_router": job_names.DEPLOY}
    jobs_of |= dict.fromkeys(job_names.COLLECTED, job_names.COLLECT)
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
    """Evaluate checks in a run, and return a case for each, `broken` for a check without a result.

    Args:
        name: the job that has the checks.
        assets: assets that the run makes, for checks that are evaluated only while their asset is made.
    """
    part = job(name).get_subset(asset_selection=set(assets), asset_check_selection=keys)
    tags = {names.tag(POOL_TAG): partition.split("|")[0], STAGE_TAG: "checks", PROCESS_TAG: process_tag()}
    result = part.execute_in_process(
        run_config=QUIET, instance=instance, partition_key=partition, raise_on_error=False, tags=tags
    )
    cases = []
    evaluated = set()
    for check in result.get_asset_check_evaluations():
        evaluated.add(dg.AssetCheckKey(check.asset_key, check.check_name))
        place = _place(names.path_of(check.asset_key), "" if name == job_names.RESULTS else partition)
        cases.append(Case(place, check.check_name, _outcome(check), check.description or "", result.run_id))
    if result.success:
        texts = []
    else:
        texts = run_texts(result.all_events)
    for key in sorted(keys - evaluated):
        text = "; ".join(texts[:3]) or "it gave no result"
        place = _place(names.path_of(key.asset_key), partition)
        cases.append(Case(place, key.name, "broken", text, result.run_id))
    return cases


def _outcome(check: dg.AssetCheckEvaluation) -> CheckOutcome:
    """Return `passed`, or `error` or `warning` by the severity of a failed check."""
    if check.passed:
        return "passed"
    if check.severity == dg.AssetCheckSeverity.ERROR:
        return "error"
    return "warning"


def _place(asset: str, partition: str) -> str:
    """Return words for an asset and its partition, such as `splits [demo]`."""
    if partition:
        return f"{asset} [{partition}]"
    return asset
