"""`build_defs`: everything that the code location holds, with overrides for tests and other deployments."""

from __future__ import annotations

from typing import Any

import dagster as dg

from cabs_dagster import sqlite
from cabs_dagster.executors import executor
from cabs_dagster.features import preview
from cabs_dagster.jobs import JOBS
from cabs_dagster.resources import CabsResource
from cabs_dagster.retention import prune_traces
from cabs_dagster.schedules import schedules
from cabs_dagster.sensors import sensors


def assets() -> list:
    """All assets, each linked to the source line that makes it."""
    from assets.decision_latency import decision_latency
    from assets.marts import marts, sql_source_specs
    from assets.oracles import oracles
    from assets.outcomes import outcomes
    from assets.prompt_embeddings import prompt_embeddings
    from assets.replay import replay_families
    from assets.replay_problem import replay_problem
    from assets.report import leaderboard, report
    from assets.splits import splits
    from assets.tuning import tuning

    pool_stages = [outcomes, splits, prompt_embeddings, oracles, replay_problem, tuning, decision_latency]
    made = [*pool_stages, *replay_families, marts, report, leaderboard]
    with preview("code references"):
        return [*dg.with_source_code_references(made), *sql_source_specs]


def build_defs(**overrides: Any) -> dg.Definitions:
    """A fresh `Definitions`; each keyword (assets, resources, jobs, ...) replaces the default of that name."""
    sqlite.install()
    parts: dict[str, Any] = {
        "assets": assets(),
        "jobs": [*JOBS, prune_traces],
        "resources": {"cabs": CabsResource()},
        "sensors": sensors,
        "schedules": schedules,
        "executor": executor(),
    }
    return dg.Definitions(**(parts | overrides))
