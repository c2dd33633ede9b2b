"""What every asset has: group, owner, kinds, stage tag, description, code version. One table, so none is forgotten."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import dagster as dg

from cabs_core.policies.names import FAMILIES, split_name
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


def policy_description(policy: str) -> str:
    """One sentence on a policy for the asset catalogue."""
    base, preset = split_name(policy)
    what = DESCRIPTIONS[base]
    return (
        what
        if preset in ("default", "paper") and "@" not in policy
        else f"{what} Preset `{preset}`: {PRESET_TEXT[preset]}."
    )


def family_of(policy: str) -> str:
    """The family that computes a policy."""
    base, _ = split_name(policy)
    return next(family for family, members in FAMILIES.items() if base in members)


def policy_spec(key: dg.AssetKey, policy: str, metadata: Mapping[str, Any], **more: Any) -> dg.AssetSpec:
    """Spec of one policy's replay."""
    base, preset = split_name(policy)
    values = common("replay")
    values["tags"] = {**values["tags"], "cabs/family": family_of(policy), "cabs/preset": preset}
    return dg.AssetSpec(
        key,
        description=policy_description(policy),
        code_version=policy_code_version(policy),
        metadata={"policy": policy, "base policy": base, **metadata},
        **values,
        **more,
    )


PRESET_TEXT = {
    "default": "as in the literature",
    "warm": "started from discounted sufficient statistics of the train split",
    "paper": "the paper's algorithm with the readings that make it work",
    "literal": "word for word with the published constants",
    "tuned": "our best settings, tuned on validation",
    "published": "the likeliest arm is played and models learn plain targets; other constants as printed",
    "lin_ucb_expert": "word for word, with LinUCB as the standard expert",
}
DESCRIPTIONS = {
    "random": "Replay of the uniformly random arm.",
    "best_single": "Replay of the one arm that did best on the train split at this rho.",
    "oracle_best": "Replay of the best arm of each query: an upper bound, not a router.",
    "knn": "Replay of the k-nearest-neighbour router fitted on the train split.",
    "ridge": "Replay of the ridge regression router fitted on the train split.",
    "carrot": "Replay of the CARROT router: accuracy and cost heads of the oracle.",
    "kernel": "Replay of the kernel router (Nystrom features, rotated labels, stacked).",
    "epsilon_greedy": "Replay of epsilon-greedy with disjoint ridge regressions.",
    "square_cb": "Replay of SquareCB: inverse gap weighting over a regression oracle.",
    "lin_ucb": "Replay of disjoint LinUCB; the reference of relative regret.",
    "lin_ts": "Replay of linear Thompson sampling.",
    "lin_ucb_full": "Replay of LinUCB's learner with the rewards of all arms observed.",
    "cabs_c_linear": "Replay of CABS-C: surrogate rewards on a feedback graph, linear learner.",
    "cabs_d_linear": "Replay of CABS-D: a decoupled mixture of a standard and a surrogate expert, linear.",
    "cabs_mix": "Replay of cabs_mix: decoupling moved from policies to predictions.",
    "hier_mix": "Replay of hier_mix: two hierarchical Bayesian linear models, one of them offline-informed.",
    "neural_ucb": "Replay of NeuralUCB: a small network, optimism from its last layer.",
    "neural_ucb_full": "Replay of NeuralUCB's learner with the rewards of all arms observed.",
    "cabs_c_neural": "Replay of CABS-C with a neural learner.",
    "cabs_d_neural": "Replay of CABS-D with neural experts.",
}


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
