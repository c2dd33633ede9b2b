"""Properties of assets: group, owners, kinds and stage tag, and for stages also code version and partitions.

Beta and preview features of Dagster that the project uses are listed and silenced here, and nowhere else.
"""

import json
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import dagster as dg
from pydantic import Field

from cabs_core.base.catalog.policies import all_policies
from cabs_core.base.errors import CabsError
from cabs_core.base.hashing import stable_hash
from cabs_core.pipeline.artifacts.stages import POOL_STAGES, policy_code_version, stage_code_version
from cabs_dagster.names import current, key
from cabs_dagster.partitions import pools

STAGE_TAG = "cabs/stage"
#: values of `STAGE_TAG` on the runs of one job each, which pay for calls, promote a router, estimate from a
#: log or let models join a router
PAYS = "collect"
DEPLOYS = "deploy"
EVALUATES = "evaluate"
JOINS = "join"

#: feature: (lifecycle stage, why we use it)
USED: dict[str, tuple[str, str]] = {
    "partitioned asset checks": (
        "preview",
        "check results belong to one partition, not to the asset as a whole",
    ),
    "code references": ("beta", "links from an asset to the source line that makes it"),
    "observable sources": ("beta", "the UI compares what marts are made from with what there is now"),
    "freshness policies": ("beta", "the UI shows when outcomes or a report are older than their deadline"),
    "pool option of ops": ("beta", "one GPU step and one DuckDB writer at a time"),
}


class StageConfig(dg.Config):
    """Launchpad settings of one run. None of them changes a result."""

    force: bool = Field(
        False,
        description="Compute again although the artifact is there and nothing that it depends on changed.",
    )


class PoliciesConfig(StageConfig):
    """Launchpad settings of what is done policy by policy. Trials, seeds and rhos stand in the pool file."""

    policies: list[str] = Field(
        [], description="These policies only, such as cabs_d_linear@literal. Empty: all of the pool's."
    )


def common(stage: str, group: str, *kinds: str, path: str = "") -> dict[str, Any]:
    """Return the keyword arguments that `@asset` and `AssetSpec` share.

    Args:
        stage: value of the tag `STAGE_TAG`.
        path: path of the asset's key, `a/b` for nested keys. Default: the stage's name.
    """
    return {
        "key": key(path or stage),
        "group_name": group,
        "kinds": set(kinds),
        "owners": list(current().owners),
        "tags": {STAGE_TAG: stage},
    }


def stage(
    name: str,
    group: str,
    *kinds: str,
    after: Sequence[str] = (),
    where: dg.PartitionsDefinition | None = None,
) -> dict[str, Any]:
    """Return the keyword arguments of a pool stage's asset: dependencies, code version and partitions, too.

    Args:
        after: assets that the asset depends on beside the stage's inputs and the pool file.
        where: partitions of the asset, of which each is a pool. None means all pools.
    """
    if where is None:
        same_pool = None
    else:
        same_pool = dg.IdentityPartitionMapping()
    read = ("pool_file", *POOL_STAGES[name].inputs, *after)
    deps = [dg.AssetDep(key(asset), partition_mapping=same_pool) for asset in read]
    made = {"code_version": stage_code_version(name), "deps": deps, "partitions_def": where or pools()}
    return common(name, group, *kinds) | made


def replay_code_version() -> str:
    """Return the code version of the asset `replay`, which changes with the code of any policy."""
    return stable_hash([policy_code_version(policy) for policy in all_policies()], 12)


def ray_tags() -> dict[str, str]:
    """Return tags by which a Ray step requests `CABS_RAY_GPUS` GPUs. Empty if the variable is not set.

    Raises:
        CabsError: the variable is no number.
    """
    gpus = os.environ.get("CABS_RAY_GPUS", "")
    if not gpus:
        return {}
    try:
        number = float(gpus)
    except ValueError:
        raise CabsError(f"CABS_RAY_GPUS is {gpus!r:.60}; expected a number, such as 1 or 0.5") from None
    return {"dagster-ray/config": json.dumps({"num_gpus": number})}


#: stands in the description of an asset with partitions that has a freshness policy
FRESHNESS = " Its freshness is the asset's, not a pool's: one pool that was made again makes all look fresh."


@contextmanager
def without_preview_warnings(feature: str) -> Iterator[None]:
    """Silence Dagster's preview and beta warnings while the context lasts.

    Args:
        feature: a key of `USED`. The warnings of all features are silenced, whichever is named.

    Raises:
        KeyError: the feature is not listed.
    """
    if feature not in USED:
        raise KeyError(f"{feature!r} is not listed in cabs_dagster.specs.USED")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.PreviewWarning)
        warnings.simplefilter("ignore", dg.BetaWarning)
        yield
