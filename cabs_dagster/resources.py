"""Resources: where artifacts lie and which device computes.

What belongs here: settings that differ between machines. What does not: settings that change results; those
stand in the pool file, so that they are part of every artifact's key.
"""

from __future__ import annotations

from typing import Literal

import dagster as dg
from pydantic import Field

from cabs_core.pools import find_pool
from cabs_dagster.planning import Chain
from cabs_dagster.storage import ArtifactStore


class CabsResource(dg.ConfigurableResource):
    """Artifact storage and compute device of this machine."""

    artifacts_url: str = Field(
        "",
        description="Folder or fsspec URL (s3://..., gs://...) of the artifacts. Empty: the environment variable "
        "CABS_ARTIFACTS, else $CABS_HOME/artifacts.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where embeddings and oracles are computed. auto: CUDA when there is one."
    )

    def store(self) -> ArtifactStore:
        """The artifact store."""
        return ArtifactStore(self.artifacts_url)

    def chain(self, pool: str) -> Chain:
        """The chain of a pool, its file read now."""
        return Chain(self.store(), find_pool(pool))
