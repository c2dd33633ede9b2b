"""`build_defs` puts together everything that the chain is in Dagster, with overrides for tests and deployments."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dagster as dg
from cabs_assets import data, marts, oracles, replay, results, router, theory

from cabs_core.errors import CabsError
from cabs_dagster.executors import executor
from cabs_dagster.jobs import JOBS, progress_logger
from cabs_dagster.resources import resources
from cabs_dagster.schedules import SCHEDULES
from cabs_dagster.sensors import SENSORS
from cabs_dagster.specs import preview

_PLATFORMS = ("github", "gitlab")


def assets() -> list:
    """All assets, each linked to the source line that makes it."""
    made = [
        data.answers, data.scores, data.outcomes, data.splits, data.prompt_embeddings, oracles.oracles, oracles.replay_problem, oracles.tuning,
        router.router, router.deployed_router, router.off_policy, replay.replay, replay.replay_audit, marts.marts,
        results.report, results.leaderboard, theory.theory,
    ]  # fmt: skip
    with preview("code references"):
        linked = _hosted(dg.with_source_code_references(made))
    return [data.pool_file, *marts.source_specs, *linked]


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
    branch = os.environ.get("CABS_SOURCE_BRANCH") or "main"
    return dg.link_code_references_to_git(linked, url, branch, _InRepository(), platform=platform)


class _InRepository(dg.FilePathMapping):
    """Where an asset's file lies in the repository, wherever and under whichever name the folder is installed."""

    def convert_to_source_control_path(self, local_path: Path) -> str:
        return f"assets/{local_path.name}"


def build_defs(**overrides: Any) -> dg.Definitions:
    """A fresh `Definitions`; each keyword (assets, resources, jobs, ...) replaces the default of that name."""
    parts: dict[str, Any] = {
        "assets": assets(),
        "jobs": JOBS,
        "resources": resources(),
        "sensors": SENSORS,
        "schedules": SCHEDULES,
        "executor": executor(),
        "loggers": {"console": dg.colored_console_logger, "progress": progress_logger},
    }
    return dg.Definitions(**(parts | overrides))
