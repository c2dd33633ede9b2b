"""The chain as a component, for a code location of a team's own.

In `defs/routing/defs.yaml` of any `dg` project whose environment has this package:

    type: cabs_dagster.components.CabsPools
    attributes:
      pools: pools          # folder of pool files, beside this file
      name: routing         # before the names of jobs, sensors, schedules, resources, partitions, asset keys
"""

import os
import sys
from pathlib import Path

import dagster as dg
from pydantic import Field

from cabs_core.base.errors import CabsError


class CabsPools(dg.Component, dg.Model, dg.Resolvable):
    """All from a folder of pool files to routers and reports. Once a code location."""

    pools: str = Field(description="Folder of the pool files; beside the YAML file unless it is absolute.")
    home: str | None = Field(
        None,
        description="Folder of artifacts and caches (CABS_HOME), beside the YAML file unless it is absolute. "
        "Default: as the environment says.",
    )
    artifacts: str | None = Field(
        None,
        description="Object store of the artifacts (CABS_ARTIFACTS), such as s3://bucket/prefix. Default: "
        "as the environment says, else in `home`.",
    )

    name: str | None = Field(
        None,
        description="A word before the names of jobs, sensors, schedules, resources and partition sets "
        "(CABS_NAME). Default: none.",
    )
    key_prefix: str | None = Field(
        None,
        description="Parts before every asset key, such as ml/routing (CABS_KEY_PREFIX). Default: `name`.",
    )
    timezone: str | None = Field(
        None, description="Time zone of the schedules, such as Europe/Berlin (CABS_TIMEZONE). Default: UTC."
    )
    owners: list[str] | None = Field(
        None,
        description="Owners of the assets: team:NAME or e-mail addresses (CABS_OWNERS). Default: "
        "team:routing.",
    )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The definitions of the chain, without an executor: that is the code location's own.

        The settings become those of this process, as steps and sensors read them; each process of the code
        location loads the component, so all have the same.

        Raises:
            CabsError: the folder does not exist, or the environment says something else than the YAML file.
        """
        pools = context.path / self.pools
        if not pools.is_dir():
            raise CabsError(
                f"{context.path / 'defs.yaml'}: `pools` is {self.pools!r}, but {pools} is no folder: make "
                "it, and put pool files into it"
            )
        _set("CABS_POOLS_DIR", str(pools.resolve()), "pools")
        if self.home is not None:
            _set("CABS_HOME", str((context.path / Path(self.home).expanduser()).resolve()), "home")
        if self.artifacts is not None:
            _set("CABS_ARTIFACTS", self.artifacts, "artifacts")
        named = {
            "name": ("CABS_NAME", self.name),
            "key_prefix": ("CABS_KEY_PREFIX", self.key_prefix),
            "timezone": ("CABS_TIMEZONE", self.timezone),
            "owners": ("CABS_OWNERS", ",".join(self.owners) if self.owners else None),
        }
        for field, (variable, value) in named.items():
            if value is None:
                continue
            if "cabs_dagster.names" in sys.modules and os.environ.get(variable) != value:
                raise CabsError(
                    f"CabsPools: `{field}` comes too late: something of this code location has imported "
                    "cabs_dagster before the component was loaded. Import it later, or set "
                    f"{variable}={value} in the environment"
                )
            _set(variable, value, field)
        from cabs_dagster.build import build_defs  # noqa: PLC0415  (it reads what was set above)
        from cabs_dagster.partitions import register_while_loading  # noqa: PLC0415  (so does this)

        register_while_loading()
        return build_defs(executor=None, loggers=None)


def _set(variable: str, value: str, field: str) -> None:
    present = os.environ.get(variable)
    if present and present != value:
        raise CabsError(
            f"CabsPools: `{field}` means {variable}={value}, but the environment says {present}: unset the "
            f"variable, or leave `{field}` out. A code location has one CabsPools"
        )
    os.environ[variable] = value
