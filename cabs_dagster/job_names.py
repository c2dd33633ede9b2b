"""Names of the jobs, and which job makes which kind of part of a pool's chain.

The module holds names and no definitions, so that assets, sensors, schedules and commands can name a job
without importing it. `names.named` puts the location's name before each of them.
"""

from collections.abc import Iterable
from typing import Any

from cabs_core.pipeline.artifacts.stages import POOL_STAGES
from cabs_core.pipeline.chain_order import Kind, kind_of
from cabs_dagster.names import named

#: the job that pays for calls
COLLECT = "collect_pool"
PREPARE = "prepare_pool"
REPLAY = "replay_pool"
RESULTS = "build_results"
AUDIT = "audit_pool"
DEPLOY = "deploy_pool"
EVALUATE = "evaluate_log"
JOIN = "join_models"
#: {kind of part: the job that makes it}
JOB_OF: dict[Kind, str] = {
    "collect": COLLECT,
    "stages": PREPARE,
    "replay": REPLAY,
    "estimates": EVALUATE,
    "results": RESULTS,
    "join": JOIN,
}
#: stages that may pay for calls: no other job, no schedule and no sensor runs them
COLLECTED = tuple(stage.name for stage in POOL_STAGES.values() if kind_of(stage) == "collect")
#: stages from the outcomes of a pool to its router
STAGES = tuple(stage.name for stage in POOL_STAGES.values() if kind_of(stage) == "stages")
#: the jobs that sensors may request, since none of them pays for calls
REQUESTED_BY_SENSORS = (PREPARE, REPLAY, EVALUATE, RESULTS, JOIN)


def jobs_for_sensors(all_jobs: Iterable[Any]) -> list[Any]:
    """Return the jobs among a location's jobs that its sensors may request (`REQUESTED_BY_SENSORS`)."""
    names = {named(name) for name in REQUESTED_BY_SENSORS}
    return [job for job in all_jobs if job.name in names]
