"""What every asset has: group, owner, kinds, stage tag, description, code version. One table, so none is forgotten."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import dagster as dg

from cabs_core.catalog import policy_description, policy_record, split_name
from cabs_dagster.stages import policy_code_version, stage_code_version

OWNERS = ["team:routing"]
STAGE_TAG = "cabs/stage"

#: stage: (group, kinds)
_STAGES: dict[str, tuple[str, set[str]]] = {
    "outcomes": ("data", {"python", "parquet"}),
    "splits": ("data", {"python", "parquet"}),
    "prompt_embeddings": ("data", {"python", "pytorch", "numpy"}),
    "oracles": ("oracles", {"python", "pytorch"}),
    "replay_problem": ("oracles", {"python", "numpy"}),
    "tuning": ("replay", {"python"}),
    "decision_latency": ("replay", {"python", "parquet"}),
    "replay": ("replay", {"python", "numba", "parquet"}),
    "marts": ("marts", {"sql", "duckdb", "parquet"}),
    "report": ("results", {"python", "html"}),
    "leaderboard": ("results", {"python", "html"}),
}


def common(stage: str) -> dict[str, Any]:
    """Keyword arguments that `@asset` and `AssetSpec` share."""
    group, kinds = _STAGES[stage]
    return {"group_name": group, "kinds": kinds, "owners": OWNERS, "tags": {STAGE_TAG: stage}}


def stage(name: str, **more: Any) -> dict[str, Any]:
    """Keyword arguments of a pool stage's asset."""
    return {**common(name), "code_version": stage_code_version(name), **more}


def policy_spec(key: dg.AssetKey, policy: str, metadata: Mapping[str, Any], **more: Any) -> dg.AssetSpec:
    """Spec of one policy's replay."""
    base, preset = split_name(policy)
    values = common("replay")
    values["tags"] = {**values["tags"], "cabs/family": policy_record(policy).family, "cabs/preset": preset}
    return dg.AssetSpec(
        key,
        description=policy_description(policy),
        code_version=policy_code_version(policy),
        metadata={"policy": policy, "base policy": base, **metadata},
        **values,
        **more,
    )


def ray_tags(stage: str) -> dict[str, str]:
    """Tags that make a Ray step ask for the machine's GPU when `CABS_RAY_GPUS` says how many a step needs."""
    gpus = os.environ.get("CABS_RAY_GPUS", "")
    return {"dagster-ray/config": json.dumps({"num_gpus": float(gpus)})} if gpus else {}


def plain(value: Any) -> Any:
    """Dataclasses, arrays and tuples as JSON-able values, for records."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
