"""The chain as a component, for a code location of a team's own.

In `defs/routing/defs.yaml` of any `dg` project whose environment has this package:

    type: cabs_dagster.components.CabsPools
    attributes:
      pools: pools          # folder of pool files, beside this file
      name: routing         # before the names of jobs, sensors, schedules, resources, partitions, asset keys

Every setting is an attribute, so several such components can stand in one code location. A value that differs
between machines is read from the environment: `home: "{{ env.CABS_HOME }}"`.
"""

from pathlib import Path
from typing import Literal

import dagster as dg
from pydantic import Field

from cabs_core.base.errors import CabsError
from cabs_core.base.paths import Places, is_remote


class CabsPools(dg.Component, dg.Model, dg.Resolvable):
    """Component with the chain of every pool in a folder, from the pool files to routers and reports.

    Several components in one code location need a name each.
    """

    pools: str = Field(description="Folder of the pool files; beside the YAML file unless it is absolute.")
    home: str | None = Field(
        None,
        description="Folder of artifacts and caches, beside the YAML file unless it is absolute. Default: as "
        "the environment says. Components with different pools of the same name need a home each.",
    )
    artifacts: str | None = Field(
        None,
        description="Folder or object store of the artifacts, such as s3://bucket/prefix. Default: as the "
        "environment says, else in `home`.",
    )
    name: str = Field(
        "",
        description="A word before the names of jobs, sensors, schedules, resources and partition sets. "
        "Default: none.",
    )
    key_prefix: str | None = Field(
        None, description="Parts before every asset key, such as ml/routing. Default: `name`."
    )
    timezone: str | None = Field(
        None, description="Time zone of the schedules, such as Europe/Berlin. Default: UTC."
    )
    owners: list[str] = Field(
        ["team:routing"], description="Owners of the assets: team:NAME or e-mail addresses."
    )
    webhook_url: str = Field(
        "", description="Where the sensor of alerts sends a JSON POST with `text`. Default: to the log."
    )
    source_url: str = Field(
        "", description="Page of this package's repository, for source links. Default: local files."
    )
    source_branch: str = Field("main", description="Branch or commit of the source links.")
    source_platform: Literal["", "github", "gitlab"] = Field(
        "", description="What a self-hosted `source_url` runs. Default: as the URL says."
    )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the definitions of the chain, without an executor: that is the code location's own.

        Raises:
            CabsError: the folder of the pool files does not exist, or a name cannot be one in Dagster.
        """
        from cabs_dagster.build import build_defs, source_host  # noqa: PLC0415  (`dg` lists components quickly)
        from cabs_dagster.names import Location  # noqa: PLC0415
        from cabs_dagster.partitions import register_while_loading  # noqa: PLC0415

        pools = context.path / self.pools
        if not pools.is_dir():
            raise CabsError(
                f"{context.path / 'defs.yaml'}: `pools` is {self.pools!r}, but {pools} is no folder: make "
                "it, and put pool files into it"
            )
        if self.key_prefix is None:
            prefix = self.name
        else:
            prefix = self.key_prefix
        location = Location(
            name=self.name,
            prefix=tuple(part for part in prefix.split("/") if part),
            owners=tuple(self.owners),
            timezone=self.timezone,
            places=Places(
                home=_beside(context.path, self.home),
                pools=str(pools.resolve()),
                artifacts=_beside(context.path, self.artifacts),
            ),
        )
        source = source_host(self.source_url, self.source_branch, self.source_platform)
        with location.active():
            register_while_loading()
            return build_defs(webhook_url=self.webhook_url, source=source, executor=None, loggers=None)


def _beside(folder: Path, place: str | None) -> str:
    """Return the absolute path of a place in a folder, the place itself if it is a URL, or an empty text."""
    if not place or is_remote(place):
        return place or ""
    return str((folder / Path(place).expanduser()).resolve())
