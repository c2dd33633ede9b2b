"""Definitions of the project's own code location: the chain, and what `dg scaffold defs` put into `defs/`."""

import os
from pathlib import Path

import dagster as dg

from cabs_dagster.build import build_defs, source_host
from cabs_dagster.partitions import register_while_loading

#: names that `defs/` holds before anybody adds anything
_EMPTY = {"__init__.py", "__pycache__"}


def scaffolded_definitions(package: Path) -> dg.Definitions:
    """Return the definitions in the folder `defs/` of a checkout.

    The definitions are empty for an installed wheel, which is no `dg` project. They are also empty if nobody
    added anything to `defs/`, because a look at the component types of all installed packages would cost
    every run half a second.

    Args:
        package: folder of the package in which `defs/` lies.
    """
    is_checkout = (package.parent / "pyproject.toml").is_file()
    if not is_checkout or _EMPTY.issuperset(os.listdir(package / "defs")):
        return dg.Definitions()
    return dg.load_from_defs_folder(path_within_project=package)


def _built() -> dg.Definitions:
    """Return the definitions of the chain as the environment configures them.

    The variables are CABS_WEBHOOK_URL, CABS_SOURCE_URL, CABS_SOURCE_BRANCH and CABS_SOURCE_PLATFORM.
    """
    source = source_host(
        *(os.environ.get(f"CABS_SOURCE_{word}", "") for word in ("URL", "BRANCH", "PLATFORM"))
    )
    webhook = "CABS_WEBHOOK_URL"
    return build_defs(webhook_url=dg.EnvVar(webhook) if os.environ.get(webhook) else "", source=source)


register_while_loading()
defs = dg.Definitions.merge(_built(), scaffolded_definitions(Path(__file__).resolve().parent))
