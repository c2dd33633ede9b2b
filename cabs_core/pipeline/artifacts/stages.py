"""The stages of the chain: what each reads, which settings matter to it, and which modules it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from typing import Any, Literal

from cabs_core.base.catalog.conditions import condition_that_changes
from cabs_core.base.catalog.encoders import encoder_record
from cabs_core.base.catalog.policies import asset_name, name_and_options, policy_record, split_name
from cabs_core.base.catalog.sources import sources
from cabs_core.base.hashing import stable_hash
from cabs_core.data.pool_files import ModelPool, PoolFile, flatten, rho_key
from cabs_core.data.pool_files.config import OUTCOME_FIELDS
from cabs_core.pipeline.artifacts.code_versions import code_version
from cabs_core.pipeline.artifacts.provenance import Record, described
from cabs_core.pipeline.artifacts.results import Summary


@dataclass(frozen=True)
class Stage:
    """One step of the chain for one pool. Its work is `build` of the module
    `cabs_core.pipeline.stages.<name>`.

    Attributes:
        only: kind of source whose pools have this stage; empty: all pools.
        inputs: stages whose artifacts are read; inputs_of: further ones of a pool.
        settings: dotted fields of the pool file that matter, such as `replay.condition`; settings_of: further
            ones of a pool.
        code: modules that it runs by name, which no import statement shows; `package.*` is all of a package.
            code_of: those that a pool names.
        files: {name: SHA-256} of the files outside the project that it reads.
        volatile: files with wall-clock measurements, which are no part of the content.
        over_policies: it runs every policy of the pool, so that each one's code matters.
        chooses: it compares all policies, so that a run over some of them leaves it out.
        by_policy: it is made policy by policy, as a run over some of them asks, and its summary has `parts`.
        pays: it may pay for calls (of models, of a judge), so it is made where that is asked for and nowhere
            else.
        goes_on: an artifact may be made again though nothing changed: `outdated` of its summary says why.
        checks: its summary holds the results of checks of data.
        shown: when a report shows what it holds, beside the marts: always, or with estimates from a log.
    """

    name: str
    inputs: tuple[str, ...]
    settings: tuple[str, ...]
    code: tuple[str, ...] = ()
    volatile: tuple[str, ...] = ()
    over_policies: bool = False
    only: str = ""
    pays: bool = False
    goes_on: bool = False
    chooses: bool = False
    by_policy: bool = False
    checks: bool = False
    shown: Literal["", "always", "with estimates"] = ""
    inputs_of: Callable[[ModelPool], tuple[str, ...]] = lambda pool: ()
    settings_of: Callable[[ModelPool], tuple[str, ...]] = lambda pool: ()
    code_of: Callable[[ModelPool], tuple[str, ...]] = lambda pool: ()
    files: Callable[[PoolFile], dict[str, str]] = lambda pool_file: {}

    @property
    def module(self) -> str:
        """The module that does the stage's work."""
        return f"cabs_core.pipeline.stages.{self.name}"

    def summary(self, record: Record) -> Summary:
        """What the stage found, as its module's class: `PromptEmbeddingsSummary` of `prompt_embeddings`."""
        kind = f"{self.name.title().replace('_', '')}Summary"
        summary: Summary = getattr(import_module(self.module), kind).of(record)
        return summary


#: Modules left out of code versions, because the key holds their effect as settings or as a policy's own
#: entry.
COVERED = (
    "cabs_core.base.catalog.*",
    "cabs_core.algorithms.policies.registry",
    "cabs_core.data.pool_files.read",
    *(
        f"cabs_core.data.pool_files.{name}"
        for name in (
            *("collect", "columns", "config", "log", "policy_names", "pool"),
            *("prompts", "removed", "sections", "strict", "table"),
        )
    ),
    "cabs_core.algorithms.solver.reference",  # what the kernels are compared with; nothing is played by it
)

_DATA = ("outcomes", "splits", "prompt_embeddings")


def _split_settings(pool: ModelPool) -> tuple[str, ...]:
    """What is missing of a table is predicted from the train prompts."""
    return ("split", "shift") if pool.predicts else ("split",) if pool.logged else ()


def _splits_of_fitted(pool: ModelPool) -> tuple[str, ...]:
    """An encoder that is fitted is fitted on the train split's prompts."""
    encoder = encoder_record(pool.encoder.name)
    return ("splits",) if encoder and encoder.fitted else ()


def _encoder_code(pool: ModelPool) -> tuple[str, ...]:
    encoder = encoder_record(pool.encoder.name)
    return (encoder.module,) if encoder else ()


POOL_STAGES: dict[str, Stage] = {
    stage.name: stage
    for stage in (
        # Answers that were paid for are kept by content beside the artifacts, so making these again asks
        # nothing twice.
        Stage(
            "answers",
            (),
            ("source", "models", "tasks", "collect"),
            only="collect",
            pays=True,
            goes_on=True,
            shown="always",
            files=PoolFile.external_files,
        ),
        Stage(
            "scores",
            ("answers",),
            ("collect",),
            ("cabs_core.data.collect.scorers.*",),
            only="collect",
            pays=True,
            shown="always",
            files=lambda pool_file: pool_file.named_files("scores"),
        ),
        Stage(
            "outcomes",
            (),
            (*OUTCOME_FIELDS, "accept"),
            ("cabs_core.data.outcomes.sources.*",),
            checks=True,
            shown="always",
            inputs_of=lambda pool: ("answers", "scores") if pool.collected else (),
            settings_of=_split_settings,
            code_of=lambda pool: (sources()[pool.source.kind].module,),
            files=lambda pool_file: {} if pool_file.pool.collected else pool_file.external_files(),
        ),
        Stage("splits", ("outcomes",), ("split", "shift", "accept"), checks=True, shown="always"),
        Stage(
            "prompt_embeddings",
            ("outcomes",),
            ("encoder",),
            ("cabs_core.data.encoders.tfidf",),
            inputs_of=_splits_of_fitted,
            code_of=_encoder_code,
        ),
        Stage("oracles", _DATA, ("oracle", "features", "labels")),
        Stage("replay_problem", (*_DATA, "oracles"), ("features", "labels"), shown="always"),
        Stage(
            "tuning",
            ("replay_problem",),
            ("tuning_budget", "replay.rhos", "replay.order_seed"),
            volatile=("timing.json",),
            over_policies=True,
            by_policy=True,
        ),
        Stage(
            "router",
            (*_DATA, "oracles", "replay_problem", "tuning"),
            ("router", "encoder", "replay.rhos", "replay.order_seed", "replay.latency_weight"),
            ("cabs_core.data.encoders.tfidf",),
            volatile=("decisions.parquet",),
            over_policies=True,
            chooses=True,
            shown="with estimates",
        ),
        # A table's policies are replayed. Estimates from the log of its router are made on request.
        Stage(
            "off_policy",
            ("router", *_DATA, "oracles", "replay_problem", "tuning"),
            ("replay.rhos", "replay.order_seed"),
            ("cabs_core.data.encoders.tfidf",),
            over_policies=True,
            only="logs",
            files=lambda pool_file: {} if pool_file.pool.logged else pool_file.log_files(),
        ),
    )
}
#: what a model that a pool gained needs to join the deployed router: its answers, and which are held out
JOINED_BY = ("outcomes", "splits")
#: A replay of one policy at one rho, the unit of caching below the partition (pool, rho).
REPLAY = Stage(
    "replay",
    ("replay_problem", "tuning"),
    tuple(
        f"replay.{name}"
        for name in ("trials", "order_seed", "latency_weight", "condition", "sessions", "rounds")
    ),
    volatile=("run.parquet", "trials.parquet"),
)


def pick(pool: ModelPool, settings: tuple[str, ...]) -> dict[str, Any]:
    """Return {dotted field: JSON value} of a pool's settings, nested models flattened to their leaves.

    Fields that pools of this kind do not have are left out: a log has no `replay.latency_weight`.

    Args:
        settings: dotted fields, such as `replay.trials`, or whole sections, such as `split`.
    """
    return dict(_picked(_Identity(pool), settings))


class _Identity:
    """A pool as a key of a cache, equal to itself alone.

    Comparing all settings of pools would take longer than reading those that are asked for.
    """

    def __init__(self, pool: ModelPool):
        self.pool = pool

    def __hash__(self) -> int:
        return id(self.pool)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.pool is other.pool


@lru_cache(maxsize=64)
def _picked(key: _Identity, settings: tuple[str, ...]) -> dict[str, Any]:
    """Return the settings of a pool. All replays of a pool have the same, so they are read once."""
    pool = key.pool
    data = pool.model_dump(mode="json") | _derived(pool)
    picked: dict[str, Any] = {}
    for dotted in settings:
        section: Any = data
        *sections, field = dotted.split(".")
        for name in sections:
            section = section[name]
        if field in section:
            picked |= flatten(section[field], dotted)
    return picked


def _derived(pool: ModelPool) -> dict[str, Any]:
    """Settings read off the stress condition: what it does to the splits and to offline labels."""
    condition = pool.replay.condition
    return {
        "shift": condition if condition_that_changes(condition, "splits") else "none",
        "labels": condition if condition_that_changes(condition, "labels") else "true",
    }


@dataclass(frozen=True)
class Target:
    """One artifact that can be made: a stage of a pool, or one policy of a pool at one rho."""

    stage: str
    pool: ModelPool
    rho: float | None = None
    policy: str | None = None

    @property
    def definition(self) -> Stage:
        """Its row in the table of stages."""
        return REPLAY if self.policy else POOL_STAGES[self.stage]

    @property
    def name(self) -> str:
        """Name in records and messages, such as `splits` or `replay/cabs_d_linear__literal`."""
        return self.stage if self.policy is None else f"replay/{asset_name(self.policy)}"

    @property
    def partition(self) -> str:
        """Partition key: the pool, or `pool|rho`."""
        return self.pool.name if self.rho is None else f"{self.pool.name}|{rho_key(self.rho)}"

    @property
    def described(self) -> str:
        """Words for messages."""
        return described(self.name, self.partition)

    @property
    def parts(self) -> tuple[str, ...]:
        """Where the artifact lies in the store."""
        if self.policy is None:
            return (self.stage, self.pool.name)
        return ("replay", self.pool.name, rho_key(self.rho or 0.0), asset_name(self.policy))

    @property
    def config(self) -> dict[str, Any]:
        """The settings that matter to this artifact."""
        stage = self.definition
        settings = pick(self.pool, (*stage.settings, *stage.settings_of(self.pool)))
        if self.policy is not None:
            return settings | {"policy": self.policy, "rho": self.rho}
        if stage.over_policies:
            # One entry per policy, so that a changed or added policy is tuned anew and the others are kept.
            settings |= {f"policy {p}": _tuned_version(p) for p in self.pool.policies}
        return settings

    @property
    def code_version(self) -> str:
        """Code version of what makes this artifact."""
        if self.policy:
            return policy_code_version(self.policy)
        return stage_code_version(self.stage, *self.definition.code_of(self.pool))

    @property
    def inputs(self) -> tuple[Target, ...]:
        """The artifacts that are read to make this one."""
        stage = self.definition
        return tuple(Target(name, self.pool) for name in (*stage.inputs, *stage.inputs_of(self.pool)))


def stage_modules(name: str) -> tuple[str, ...]:
    """Modules from which a stage's code version starts."""
    return (POOL_STAGES[name].module, *POOL_STAGES[name].code)


def policy_modules(policy: str) -> tuple[str, ...]:
    """Modules from which the code version of a policy's replay starts: the engine, the policy's own."""
    return (REPLAY.module, policy_record(policy).path.partition(":")[0])


@cache
def stage_code_version(name: str, *chosen: str) -> str:
    """Code version of a pool stage; `chosen`: modules of the pool's source, encoder or own scores."""
    return code_version((*stage_modules(name), *filter(None, chosen)), COVERED)


@cache
def policy_code_version(policy: str) -> str:
    """Code version of one policy's replay: the engine and the modules of this policy, not those of others."""
    return code_version(
        policy_modules(policy),
        COVERED,
        extra=(*split_name(policy), *map(str, name_and_options(policy)[1].items())),
    )


def _tuned_version(policy: str) -> str:
    """Code version of a policy, and the grid that it is tuned over."""
    return f"{policy_code_version(policy)} {stable_hash(policy_record(policy).tuning, 12)}"
