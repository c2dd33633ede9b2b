"""The code location: the chain, and what `dg scaffold defs` put into `defs/`."""

import os
from pathlib import Path

import dagster as dg

from cabs_dagster.build import build_defs, source_host
from cabs_dagster.partitions import register_while_loading


def _scaffolded() -> dg.Definitions:
    """The folder `defs/` of a checkout; an installed wheel is no `dg` project, and has nothing there."""
    if not (Path(__file__).resolve().parents[1] / "pyproject.toml").is_file():
        return dg.Definitions()
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)


def _built() -> dg.Definitions:
    """The chain as the environment configures it: `CABS_WEBHOOK_URL`, and `CABS_SOURCE_URL` with its branch
    and platform.
    """
    source = source_host(
        *(os.environ.get(f"CABS_SOURCE_{word}", "") for word in ("URL", "BRANCH", "PLATFORM"))
    )
    webhook = "CABS_WEBHOOK_URL"
    return build_defs(webhook_url=dg.EnvVar(webhook) if os.environ.get(webhook) else "", source=source)


register_while_loading()
defs = dg.Definitions.merge(_built(), _scaffolded())
