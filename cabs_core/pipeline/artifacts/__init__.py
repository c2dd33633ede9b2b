"""Artifacts: what the chain makes, where it lies, what it was made from, and what is out of date.

    store = ArtifactStore()                          # $CABS_ARTIFACTS, or $CABS_HOME/artifacts
    chain = Chain(store, find_pool("demo"))
    chain.status(chain.stage("splits")).state        # fresh, stale, missing, waiting or blocked, `.reasons`

`stages` is the table of stages, `code_versions` follows imports, `provenance` holds records and the one rule
of freshness, `planner` the statuses, `materialize` makes an artifact: `make_artifact(chain, target)`. What a
stage does stands in `cabs_core.pipeline.stages`.
"""

from cabs_core.pipeline.artifacts.materialize import Made, Options, make_artifact
from cabs_core.pipeline.artifacts.planner import Chain, OlderData, Status
from cabs_core.pipeline.artifacts.stages import POOL_STAGES, Target
from cabs_core.pipeline.artifacts.store import ArtifactStore

__all__ = [
    "POOL_STAGES",
    "ArtifactStore",
    "Chain",
    "Made",
    "OlderData",
    "Options",
    "Status",
    "Target",
    "make_artifact",
]
