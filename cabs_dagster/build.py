"""`build_defs` returns all Dagster definitions of the chain. The caller may replace any kind of them."""

import importlib
import inspect
import pkgutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import cabs_assets
import dagster as dg

from cabs_core.base.errors import CabsError
from cabs_dagster.executors import executor
from cabs_dagster.jobs import jobs
from cabs_dagster.names import Declared, current, named
from cabs_dagster.progress import progress_logger
from cabs_dagster.resources import ALERTS, CABS, TABLES, AlertResource, CabsResource
from cabs_dagster.schedules import schedules
from cabs_dagster.sensors import sensors
from cabs_dagster.specs import without_preview_warnings
from cabs_dagster.tables import CabsTables

#: metadata with the links of an asset to its source
REFERENCES = "dagster/code_references"
_PLATFORMS: tuple[Literal["github", "gitlab"], ...] = ("github", "gitlab")


@dataclass(frozen=True)
class SourceHost:
    """Page of the repository on GitHub or GitLab, with the branch or commit that links lead to."""

    url: str
    branch: str
    platform: Literal["github", "gitlab"]


def assets(source: SourceHost | None = None) -> list[Any]:
    """Return all assets of the package `assets`, each linked to the function that makes it, if there is one.

    Args:
        source: the code host that the links lead to. None means that they lead to local files.
    """
    made = [_linked(declared) for declared in _declared()]
    if source is None:
        return made
    with without_preview_warnings("code references"):
        return list(
            dg.link_code_references_to_git(
                made, source.url, source.branch, _InRepository(), platform=source.platform
            )
        )


def _declared() -> list[Declared]:
    """Return the assets and specs that the modules of the package `assets` declare, each once."""
    found: dict[int, Declared] = {}
    for module in pkgutil.iter_modules(cabs_assets.__path__):
        for value in vars(importlib.import_module(f"{cabs_assets.__name__}.{module.name}")).values():
            if isinstance(value, Declared):
                found[id(value)] = value  # a module may import what another one declares
    return list(found.values())


def _linked(declared: Declared) -> Any:
    """Return Dagster's definition of a declared asset, with a link to the function that makes the asset.

    A declaration without a function, such as an external asset's, gets no link.
    """
    made = declared.define()
    if declared.function is None:
        return made
    with without_preview_warnings("code references"):
        step = dg.LocalFileCodeReference(
            file_path=str(Path(inspect.getfile(declared.function)).resolve()),
            line_number=declared.function.__code__.co_firstlineno,
        )
        return made.map_asset_specs(lambda spec: _with_reference(spec, step))


def _with_reference(spec: dg.AssetSpec, step: dg.LocalFileCodeReference) -> dg.AssetSpec:
    """Return a spec with a link to the source of its step after the links that it has."""
    known = spec.metadata.get(REFERENCES)
    if isinstance(known, dg.CodeReferencesMetadataValue):
        others = known.code_references
    else:
        others = []
    links = dg.CodeReferencesMetadataValue(code_references=[*others, step])
    return spec.merge_attributes(metadata={REFERENCES: links})


def source_host(url: str, branch: str = "", platform: str = "") -> SourceHost | None:
    """Return the code host of a URL, or None if the URL is empty.

    Args:
        branch: a branch or commit. Empty means main.
        platform: `github` or `gitlab`, for self-hosted ones. Empty means the one that the URL names.

    Raises:
        CabsError: the platform is neither, or is empty and the URL names neither.
    """
    url = url.rstrip("/")
    if not url:
        return None
    for known in _PLATFORMS:
        if known == platform or (not platform and known in url):
            return SourceHost(url, branch or "main", known)
    raise CabsError(
        f"the source URL is {url!r}, whose links have an unknown form: set the source platform to github or "
        "gitlab, or leave the source URL out for links to local files"
    )


class _InRepository(dg.FilePathMapping):
    """Mapping from a local file to its path in the repository, wherever the package is installed."""

    def convert_to_source_control_path(self, local_path: Path) -> str:
        """Return `dbt_like_sql/FOLDER/FILE` for a file of SQL, and `assets/FILE` for any other file."""
        return "/".join(
            ("dbt_like_sql", *local_path.parts[-2:])
            if local_path.suffix == ".sql"
            else ("assets", local_path.name)
        )


def resources(webhook_url: str | dg.EnvVar = "") -> dict[str, Any]:
    """Return the resources of the current location (`names.current`), by their names there.

    The resources are the artifact store with the compute device, the receiver of alerts, and the IO manager
    of tables.

    Args:
        webhook_url: URL to which alerts are sent. Empty means that alerts are written to the log.
    """
    location = current()
    places = location.places
    cabs = CabsResource(home=places.home, pools=places.pools, artifacts_url=places.artifacts, device="auto")
    return {
        named(CABS): cabs,
        named(ALERTS): AlertResource(webhook_url=webhook_url),
        named(TABLES): CabsTables(cabs=cabs, prefix=list(location.prefix)),
    }


def build_defs(
    *, webhook_url: str | dg.EnvVar = "", source: SourceHost | None = None, **overrides: Any
) -> dg.Definitions:
    """Return fresh `Definitions` of the current location.

    Args:
        webhook_url, source: see `resources` and `assets`.
        overrides: arguments of `Definitions` (assets, resources, jobs, ...), each in place of the default.
            Other resources must have the names of the default ones, unless sensors are given too: the default
            sensors use them.
    """
    all_jobs = jobs()
    parts: dict[str, Any] = {
        "assets": assets(source),
        "jobs": all_jobs,
        "resources": resources(webhook_url),
        "schedules": schedules(),
        "loggers": {"console": dg.colored_console_logger, "progress": progress_logger},
    }
    parts |= overrides
    if "executor" not in overrides:
        parts["executor"] = executor()
    if "sensors" not in overrides:
        held = parts["resources"]
        parts["sensors"] = sensors(held[named(CABS)], held[named(ALERTS)], all_jobs)
    return dg.Definitions(**parts)
