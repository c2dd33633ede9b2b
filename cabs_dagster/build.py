"""`build_defs`: everything that the code location holds, with overrides for tests and other deployments."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from cabs_core.errors import CabsError
from cabs_dagster import code_versions, sqlite, step_resources
from cabs_dagster.executors import executor
from cabs_dagster.external import external_specs, with_settings
from cabs_dagster.features import preview
from cabs_dagster.jobs import JOBS
from cabs_dagster.resources import CabsResource
from cabs_dagster.retention import prune_traces
from cabs_dagster.schedules import schedules
from cabs_dagster.sensors import sensors

_PLATFORMS = ("github", "gitlab")


def assets() -> list:
    """All assets, each linked to the source line that makes it."""
    from assets.decision_latency import decision_latency
    from assets.marts import marts, sql_source_specs
    from assets.oracles import oracles
    from assets.outcomes import outcomes
    from assets.prompt_embeddings import prompt_embeddings
    from assets.replay import replay_families
    from assets.replay_problem import replay_problem
    from assets.report import leaderboard, report, report_marts
    from assets.splits import splits
    from assets.tuning import tuning

    pool_stages = [outcomes, splits, prompt_embeddings, oracles, replay_problem, tuning, decision_latency]
    chain = [with_settings(stage) for stage in (*pool_stages, *replay_families)]
    made = [*chain, marts, report, leaderboard]
    with preview("code references"):
        linked = _hosted(dg.with_source_code_references(made))
    return [*linked, *sql_source_specs, *external_specs(report_marts)]


def _hosted(linked: Sequence) -> Sequence:
    """Links to a code host instead of local files, when `CABS_SOURCE_URL` names the repository's page there.

    `CABS_SOURCE_BRANCH` is the branch or commit (default `main`). GitHub and GitLab; self-hosted ones are told
    apart by `CABS_SOURCE_PLATFORM` (`github` or `gitlab`).

    Raises:
        CabsError: the URL is of neither, and the platform is not given.
    """
    url = os.environ.get("CABS_SOURCE_URL", "").rstrip("/")
    if not url:
        return linked
    platform = os.environ.get("CABS_SOURCE_PLATFORM") or next((p for p in _PLATFORMS if p in url), None)
    if platform not in _PLATFORMS:
        raise CabsError(
            f"CABS_SOURCE_URL is {url!r}, whose links have an unknown form: set CABS_SOURCE_PLATFORM to github or "
            "gitlab, or leave CABS_SOURCE_URL unset for links to local files"
        )
    here = Path(__file__)
    mapping = dg.AnchorBasedFilePathMapping(
        local_file_anchor=here, file_anchor_path_in_repository=f"cabs_dagster/{here.name}"
    )
    return dg.link_code_references_to_git(
        linked, url, os.environ.get("CABS_SOURCE_BRANCH") or "main", mapping, platform=platform
    )


def build_defs(**overrides: Any) -> dg.Definitions:
    """A fresh `Definitions`; each keyword (assets, resources, jobs, ...) replaces the default of that name."""
    sqlite.install()
    step_resources.install()
    parts: dict[str, Any] = {
        "assets": assets(),
        "jobs": [*JOBS, prune_traces],
        "resources": {"cabs": CabsResource()},
        "sensors": sensors,
        "schedules": schedules,
        "executor": executor(),
    }
    code_versions.remember()
    return dg.Definitions(**(parts | overrides))
