"""The stages of the chain: what each reads, which settings matter to it, and which modules it runs.

What belongs here: the table of stages and the target that a stage makes for one partition. What does not: making
anything (see `assets`) or deciding what to make (see `planning.py`).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import dagster as dg

from cabs_core.catalog import asset_name, condition_that_changes, policy_record
from cabs_core.pools import ModelPool, rho_key
from cabs_core.pools.config import OUTCOME_FIELDS
from cabs_dagster.code_versions import code_version, module_file


@dataclass(frozen=True)
class Stage:
    """One step of the chain for one pool.

    Attributes:
        inputs: stages whose artifacts are read.
        settings: dotted fields of the pool file that matter, such as `replay.condition`.
        code: modules that it starts from; what they import counts too.
        stop: modules that are not followed (see `code_versions.closure`).
        volatile: files with wall-clock measurements, which are no part of the content.
    """

    name: str
    inputs: tuple[str, ...]
    settings: tuple[str, ...]
    code: tuple[str, ...]
    stop: tuple[str, ...] = ()
    volatile: tuple[str, ...] = ()


#: Modules that name every policy or every stage; following them would tie everything to everything.
REGISTRIES = (
    "cabs_core.catalog",
    "cabs_core.catalog.*",
    "cabs_core.policies",
    "cabs_core.policies.registry",
    "cabs_core.replay",
    "cabs_core.oracles",
    "cabs_core.outcomes",
    "cabs_core.pools",
    "cabs_core.pools.files",
    "cabs_core.pools.config",
)

#: Times of single decisions, one row each.
TIMES = "decisions.parquet"

POOL_STAGES: dict[str, Stage] = {
    stage.name: stage
    for stage in (
        Stage(
            "outcomes",
            (),
            OUTCOME_FIELDS,
            ("assets.outcomes", "cabs_core.outcomes", "cabs_core.outcomes.sources.synthetic"),
        ),
        Stage("splits", ("outcomes",), ("split", "shift"), ("assets.splits", "cabs_core.outcomes.splits")),
        Stage(
            "prompt_embeddings",
            ("outcomes",),
            ("encoder",),
            ("assets.prompt_embeddings", "cabs_core.encoders"),
        ),
        Stage(
            "oracles",
            ("outcomes", "splits", "prompt_embeddings"),
            ("oracle", "features", "labels"),
            ("assets.oracles", "cabs_core.oracles"),
        ),
        Stage(
            "replay_problem",
            ("outcomes", "splits", "prompt_embeddings", "oracles"),
            ("features", "labels"),
            ("assets.replay_problem", "cabs_core.oracles", "cabs_core.problem.replay_problem"),
        ),
        Stage(
            "tuning",
            ("replay_problem",),
            ("tuning_budget", "replay.rhos", "replay.order_seed"),
            ("assets.tuning", "cabs_core.replay.tuning"),
            stop=(*REGISTRIES, "cabs_core.replay.engine"),
            volatile=("timing.json",),
        ),
        Stage(
            "decision_latency",
            ("replay_problem", "tuning"),
            ("replay.rhos", "replay.order_seed", "replay.latency_weight"),
            ("assets.decision_latency", "cabs_core.replay.latency"),
            stop=REGISTRIES,
            volatile=(TIMES,),
        ),
    )
}
#: Stages that run every policy of the pool.
_OVER_POLICIES = ("tuning", "decision_latency")
REPLAY_SETTINGS = ("trials", "order_seed", "latency_weight", "condition", "rounds")
REPLAY_VOLATILE = ("run.parquet", "trials.parquet")


def pick(pool: ModelPool, settings: tuple[str, ...]) -> dict[str, Any]:
    """{dotted field: JSON value} of the pool's settings, nested models flattened to their leaves."""
    data = pool.model_dump(mode="json") | derived(pool)
    found: dict[str, Any] = {}
    for dotted in settings:
        value: Any = data
        for part in dotted.split("."):
            value = value[part]
        found |= flatten(value, dotted)
    return found


def derived(pool: ModelPool) -> dict[str, Any]:
    """Settings read off the stress condition: what it does to the splits, and what it does to offline labels."""
    condition = pool.replay.condition
    return {
        "shift": condition if condition_that_changes(condition, "splits") else "none",
        "labels": condition if condition_that_changes(condition, "labels") else "true",
    }


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one level with dotted names; empty mappings stay."""
    if isinstance(value, dict) and value:
        result: dict[str, Any] = {}
        for name, item in value.items():
            result |= flatten(item, f"{prefix}.{name}" if prefix else str(name))
        return result
    return {prefix: value}


@dataclass(frozen=True)
class Target:
    """One artifact that can be made: a stage of a pool, or one policy of a pool at one rho."""

    stage: str
    pool: ModelPool
    rho: float | None = None
    policy: str | None = None

    @property
    def name(self) -> str:
        """Name in the asset graph, such as `splits` or `replay/cabs_d_linear__literal`."""
        return self.stage if self.policy is None else f"replay/{asset_name(self.policy)}"

    @property
    def key(self) -> dg.AssetKey:
        """Asset key."""
        return dg.AssetKey(self.name.split("/"))

    @property
    def partition(self) -> str:
        """Dagster partition key."""
        return self.pool.name if self.rho is None else f"{self.pool.name}|{rho_key(self.rho)}"

    @property
    def parts(self) -> tuple[str, ...]:
        """Where the artifact lies in the store."""
        if self.policy is None:
            return (self.stage, self.pool.name)
        return ("replay", self.pool.name, rho_key(self.rho or 0.0), asset_name(self.policy))

    @property
    def config(self) -> dict[str, Any]:
        """The settings that matter to this artifact."""
        if self.stage in _OVER_POLICIES:
            # One line a policy, so that a changed or added policy is tuned anew and the others are kept.
            settings = pick(self.pool, POOL_STAGES[self.stage].settings)
            return settings | {f"policy {p}": _policy_version(p) for p in self.pool.policies}
        if self.policy is None:
            return pick(self.pool, POOL_STAGES[self.stage].settings)
        replay = pick(self.pool, tuple(f"replay.{name}" for name in REPLAY_SETTINGS))
        return replay | {"policy": self.policy, "rho": self.rho}

    @property
    def code_version(self) -> str:
        """Code version of what makes this artifact."""
        return policy_code_version(self.policy) if self.policy else stage_code_version(self.stage)

    @property
    def inputs(self) -> tuple[Target, ...]:
        """The artifacts that are read to make this one."""
        if self.policy is None:
            names = POOL_STAGES[self.stage].inputs
            if self.stage == "prompt_embeddings" and self.pool.encoder.name.startswith("tfidf"):
                names = (*names, "splits")  # fitted on the train split's prompts
            return tuple(Target(name, self.pool) for name in names)
        return (Target("replay_problem", self.pool), Target("tuning", self.pool))

    @property
    def volatile(self) -> tuple[str, ...]:
        """Files with wall-clock measurements."""
        return REPLAY_VOLATILE if self.policy else POOL_STAGES[self.stage].volatile


@cache
def stage_code_version(name: str) -> str:
    """Code version of a pool stage."""
    stage = POOL_STAGES[name]
    return code_version([m for m in stage.code if module_file(m)], stage.stop)


@cache
def policy_code_version(policy: str) -> str:
    """Code version of one policy's replay: the engine and the modules of this policy, not those of others."""
    return code_version(("assets.replay", *ENGINE, *policy_modules(policy)), REGISTRIES)


def _policy_version(policy: str) -> str:
    """Code version of a policy, and the grid that it is tuned over."""
    grid = json.dumps(policy_record(policy).tuning, sort_keys=True)
    return f"{policy_code_version(policy)} {hashlib.sha256(grid.encode()).hexdigest()[:12]}"


#: Modules that every replay runs.
ENGINE = ("cabs_core.replay.engine", "cabs_core.problem.replay_problem", "cabs_core.replay.storage")


def policy_modules(policy: str) -> tuple[str, ...]:
    """The module that implements a policy, as the registry names it."""
    module = policy_record(policy).path.partition(":")[0]
    return (module,) if module_file(module) else ()
