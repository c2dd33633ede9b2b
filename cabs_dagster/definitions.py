"""The code location: the chain, and what `dg scaffold defs` put into `defs/`."""

from pathlib import Path

import dagster as dg

from cabs_dagster.build import build_defs
from cabs_dagster.partitions import register_while_loading


def _scaffolded() -> dg.Definitions:
    """The folder `defs/` of a checkout; an installed wheel is no `dg` project, and has nothing there."""
    if not (Path(__file__).resolve().parents[1] / "pyproject.toml").is_file():
        return dg.Definitions()
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)


register_while_loading()
defs = dg.Definitions.merge(build_defs(), _scaffolded())
