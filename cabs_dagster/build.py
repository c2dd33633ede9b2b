"""`build_defs` puts together all that the chain is in Dagster, with overrides."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import cabs_assets
import dagster as dg

from cabs_core.base.errors import CabsError
from cabs_dagster.executors import executor
from cabs_dagster.jobs import JOBS, progress_logger
from cabs_dagster.resources import ALERTS, CABS, TABLES, WEBHOOK, AlertResource, CabsResource
from cabs_dagster.schedules import SCHEDULES
from cabs_dagster.sensors import sensors
from cabs_dagster.specs import preview
from cabs_dagster.tables import CabsTables

_PLATFORMS: tuple[Literal["github", "gitlab"], ...] = ("github", "gitlab")


def assets() -> list[Any]:
    """All assets of the package `assets`, each linked to the source line that makes it."""
    loaded = dg.load_assets_from_package_module(cabs_assets, include_specs=True)
    made = [asset for asset in loaded if not isinstance(asset, dg.AssetSpec)]
    with preview("code references"):
        linked = _hosted(dg.with_source_code_references(made))
    return [*(asset for asset in loaded if isinstance(asset, dg.AssetSpec)), *linked]


def _hosted(linked: Sequence[Any]) -> Sequence[Any]:
    """Links to a code host instead of local files, when `CABS_SOURCE_URL` names the repository's page there.

    `CABS_SOURCE_BRANCH` is the branch or commit (default `main`). GitHub and GitLab; self-hosted ones are
    told apart by `CABS_SOURCE_PLATFORM` (`github` or `gitlab`).

    Raises:
        CabsError: the URL is of neither, and the platform is not given.
    """
    url = os.environ.get("CABS_SOURCE_URL", "").rstrip("/")
    if not url:
        return linked
    named = os.environ.get("CABS_SOURCE_PLATFORM")
    platform = next((p for p in _PLATFORMS if (p == named if named else p in url)), None)
    if platform is None:
        raise CabsError(
            f"CABS_SOURCE_URL is {url!r}, whose links have an unknown form: set CABS_SOURCE_PLATFORM to "
            "github or gitlab, or leave CABS_SOURCE_URL unset for links to local files"
        )
    branch = os.environ.get("CABS_SOURCE_BRANCH") or "main"
    return dg.link_code_references_to_git(linked, url, branch, _InRepository(), platform=platform)


class _InRepository(dg.FilePathMapping):
    """Where an asset's file lies in the repository, wherever the folder is installed."""

    def convert_to_source_control_path(self, local_path: Path) -> str:
        return "/".join(
            ("dbt_like_sql", *local_path.parts[-2:])
            if local_path.suffix == ".sql"
            else ("assets", local_path.name)
        )


def resources() -> dict[str, Any]:
    """Return the default resources."""
    cabs = CabsResource(artifacts_url="", device="auto")
    url = dg.EnvVar(WEBHOOK) if os.environ.get(WEBHOOK) else ""
    return {CABS: cabs, ALERTS: AlertResource(webhook_url=url), TABLES: CabsTables(cabs=cabs)}


def build_defs(**overrides: Any) -> dg.Definitions:
    """A fresh `Definitions`; each keyword (assets, resources, jobs, ...) replaces the default."""
    parts: dict[str, Any] = {
        "assets": assets(),
        "jobs": JOBS,
        "resources": resources(),
        "schedules": SCHEDULES,
        "executor": executor(),
        "loggers": {"console": dg.colored_console_logger, "progress": progress_logger},
    }
    parts |= overrides
    if "sensors" not in overrides:
        parts["sensors"] = sensors(parts["resources"][CABS], parts["resources"][ALERTS])
    return dg.Definitions(**parts)
