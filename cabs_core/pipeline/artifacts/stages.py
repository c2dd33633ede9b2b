"""Stages of the chain: what each reads, which settings matter to it, and which modules it runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
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


class Stage:
    """A step of the chain for one pool. A subclass says what the step reads, and which modules it runs.

    The work itself is `build` of the module `cabs_core.pipeline.stages.<name>`. Subclasses stand here and not
    in those modules, because planning reads all of them, and the modules import packages that take seconds.

    Attributes:
        name: name of the stage, its asset and its module.
        only: kind of source whose pools have this stage in their chain. Empty: all pools.
        inputs: stages whose artifacts are read.
        settings: dotted fields of the pool file that matter, such as `replay.condition`.
        code: modules that the stage runs by name, which no import statement shows; `package.*` is all of a
            package.
        volatile: files with wall-clock measurements, which are no part of the content.
        over_policies: True if the stage runs every policy of the pool, so that each policy's code matters.
        chooses: True if the stage compares all policies, so that a run over some of them leaves it out.
        by_policy: True if a run over some policies makes the stage for these alone. The summary of the stage
            then has `parts`.
        pays: True if the stage may pay for calls of models or of a judge. Only a run that may pay makes it.
        goes_on: True if `outdated` of the summary may ask for the stage again though nothing changed.
        checks: True if the summary holds the results of checks of data.
        shown: when a report shows the stage's content beside the marts: always, with estimates from a log, or
            never (empty).
    """

    name: str
    only: str = ""
    inputs: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    volatile: tuple[str, ...] = ()
    over_policies: bool = False
    chooses: bool = False
    by_policy: bool = False
    pays: bool = False
    goes_on: bool = False
    checks: bool = False
    shown: Literal["", "always", "with estimates"] = ""

    def inputs_of(self, pool: ModelPool) -> tuple[str, ...]:
        """Return the stages that are read for this pool beside `inputs`."""
        return ()

    def settings_of(self, pool: ModelPool) -> tuple[str, ...]:
        """Return the settings that matter for this pool beside `settings`."""
        return ()

    def code_of(self, pool: ModelPool) -> tuple[str, ...]:
        """Return the modules that this pool names (of its source or encoder), whose code matters, too."""
        return ()

    def files(self, pool_file: PoolFile) -> dict[str, str]:
        """Return {name: SHA-256} of the files outside the project that are read."""
        return {}

    @property
    def module(self) -> str:
        """Name of the module that does the stage's work."""
        return f"cabs_core.pipeline.stages.{self.name}"

    def summary(self, record: Record) -> Summary:
        """Return the stage's summary in a record, of the class in its module, such as `SplitsSummary`."""
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
            *("collect", "columns", "config", "log", "messages", "policy_names"),
            *("pool", "prompts", "removed", "sections", "strict", "table"),
        )
    ),
    "cabs_core.algorithms.solver.reference",  # what the kernels are compared with; nothing is played by it
)

_DATA = ("outcomes", "splits", "prompt_embeddings")


class Answers(Stage):
    """Answers of a pool's models to its prompts.

    Paid answers are kept by content beside the artifacts, so that making the stage again asks nothing twice.
    """

    name = "answers"
    only = "collect"
    settings = ("source", "models", "tasks", "collect")
    pays = True
    goes_on = True
    shown = "always"

    def files(self, pool_file: PoolFile) -> dict[str, str]:
        """Return {name: SHA-256} of the table of prompts and of the upstreams file that `collect` names."""
        return pool_file.external_files()


class Scores(Stage):
    """Scores of the collected answers."""

    name = "scores"
    only = "collect"
    inputs = ("answers",)
    settings = ("collect",)
    code = ("cabs_core.data.collect.scorers.*",)
    pays = True
    shown = "always"

    def files(self, pool_file: PoolFile) -> dict[str, str]:
        """Return {place in the pool file: SHA-256} of the files that the scorers name, as far as they exist.

        These are JSON schemas, tables of labels and the files among the words of a command.
        """
        return pool_file.named_files("scores")


class Outcomes(Stage):
    """Table of scores and costs, from the pool's source or from collected answers."""

    name = "outcomes"
    settings = (*OUTCOME_FIELDS, "accept")
    code = ("cabs_core.data.outcomes.sources.*",)
    checks = True
    shown = "always"

    def inputs_of(self, pool: ModelPool) -> tuple[str, ...]:
        """Return `answers` and `scores` for a pool that collects its answers, and nothing for others."""
        if pool.collected:
            return ("answers", "scores")
        return ()

    def settings_of(self, pool: ModelPool) -> tuple[str, ...]:
        """Return `split` and `shift` if missing outcomes are predicted, and `split` for a pool that is a log.

        Their outcomes are made with the train split. Nothing is returned for other pools.
        """
        if pool.predicts:  # missing outcomes are predicted from the train prompts
            return ("split", "shift")
        if pool.logged:
            return ("split",)
        return ()

    def code_of(self, pool: ModelPool) -> tuple[str, ...]:
        """Return the module that reads the pool's kind of source."""
        return (sources()[pool.source.kind].module,)

    def files(self, pool_file: PoolFile) -> dict[str, str]:
        """Return {name: SHA-256} of the files that the source reads.

        Empty for a pool that collects its answers, since the stages before this one read its files.
        """
        if pool_file.pool.collected:
            return {}
        return pool_file.external_files()


class Splits(Stage):
    """Split of the queries into train, validation and test."""

    name = "splits"
    inputs = ("outcomes",)
    settings = ("split", "shift", "accept")
    checks = True
    shown = "always"


class PromptEmbeddings(Stage):
    """Vectors of the prompts."""

    name = "prompt_embeddings"
    inputs = ("outcomes",)
    settings = ("encoder",)
    code = ("cabs_core.data.encoders.tfidf",)

    def inputs_of(self, pool: ModelPool) -> tuple[str, ...]:
        """Return `splits` if the encoder is fitted on the train prompts, and nothing for other encoders."""
        encoder = encoder_record(pool.encoder.name)
        return ("splits",) if encoder and encoder.fitted else ()  # fitted on the train split's prompts

    def code_of(self, pool: ModelPool) -> tuple[str, ...]:
        """Return the module of the encoder's class.

        The tuple is empty if the encoder is not in the catalog, and its text is empty for a transformer.
        """
        encoder = encoder_record(pool.encoder.name)
        if encoder:
            return (encoder.module,)
        return ()


class Oracles(Stage):
    """Predictors of scores and costs, learned on the train split."""

    name = "oracles"
    inputs = _DATA
    settings = ("oracle", "features", "labels")


class ReplayProblem(Stage):
    """Arrays that a replay reads."""

    name = "replay_problem"
    inputs = (*_DATA, "oracles")
    settings = ("features", "labels")
    shown = "always"


class Tuning(Stage):
    """Settings of the policies, chosen on the validation split."""

    name = "tuning"
    inputs = ("replay_problem",)
    settings = ("tuning_budget", "replay.rhos", "replay.order_seed")
    volatile = ("timing.json",)
    over_policies = True
    by_policy = True


class Router(Stage):
    """Bundle that the pool would deploy."""

    name = "router"
    inputs = (*_DATA, "oracles", "replay_problem", "tuning")
    settings = ("router", "encoder", "replay.rhos", "replay.order_seed", "replay.latency_weight")
    code = ("cabs_core.data.encoders.tfidf",)
    volatile = ("decisions.parquet",)
    over_policies = True
    chooses = True
    shown = "with estimates"


class OffPolicy(Stage):
    """Estimates from a log, in the place of replays.

    A pool whose source is a table has replays instead, and estimates from its router's log only on request.
    """

    name = "off_policy"
    only = "logs"
    inputs = ("router", *_DATA, "oracles", "replay_problem", "tuning")
    settings = ("replay.rhos", "replay.order_seed")
    code = ("cabs_core.data.encoders.tfidf",)
    over_policies = True

    def files(self, pool_file: PoolFile) -> dict[str, str]:
        """Return {name: SHA-256} of the log and of its scores, for a pool whose source is a table.

        Empty for a pool whose source is a log, since the stage `outcomes` reads that log.
        """
        if pool_file.pool.logged:
            return {}
        return pool_file.log_files()


class Replay(Stage):
    """Replay of one policy at one rho, the unit of caching below the partition (pool, rho)."""

    name = "replay"
    inputs = ("replay_problem", "tuning")
    settings = (
        "replay.trials",
        "replay.order_seed",
        "replay.latency_weight",
        "replay.condition",
        "replay.sessions",
        "replay.rounds",
    )
    volatile = ("run.parquet", "trials.parquet")


_IN_ORDER: tuple[Stage, ...] = (
    Answers(),
    Scores(),
    Outcomes(),
    Splits(),
    PromptEmbeddings(),
    Oracles(),
    ReplayProblem(),
    Tuning(),
    Router(),
    OffPolicy(),
)
#: {name: stage}, in the order in which the stages of a pool are made
POOL_STAGES: dict[str, Stage] = {stage.name: stage for stage in _IN_ORDER}
REPLAY = Replay()
#: stages that a new model of a pool needs to join the deployed router: its answers, and which are held out
JOINED_BY = ("outcomes", "splits")


def pick(pool: ModelPool, settings: tuple[str, ...]) -> dict[str, Any]:
    """Return {dotted field: JSON value} of a pool's settings, nested models flattened to their leaves.

    Fields that pools of this kind do not have are left out: a log has no `replay.latency_weight`.

    Args:
        settings: dotted fields, such as `replay.trials`, or whole sections, such as `split`.
    """
    return dict(_picked(_Identity(pool), settings))


class _Identity:
    """A pool as a key of a cache, equal only to the key of the same object.

    To compare all settings of two pools would take longer than to read the settings that are asked for.
    """

    def __init__(self, pool: ModelPool):
        self.pool = pool

    def __hash__(self) -> int:
        return id(self.pool)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.pool is other.pool


@lru_cache(maxsize=64)
def _picked(key: _Identity, settings: tuple[str, ...]) -> dict[str, Any]:
    """Return the settings of a pool, which are read once because all its replays have the same."""
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
    """Return the settings `shift` and `labels`, which follow from the pool's stress condition.

    `shift` is the condition if it changes the splits, otherwise `none`. `labels` is the condition if it
    changes the offline labels, otherwise `true`.
    """
    condition = pool.replay.condition
    return {
        "shift": condition if condition_that_changes(condition, "splits") else "none",
        "labels": condition if condition_that_changes(condition, "labels") else "true",
    }


@dataclass(frozen=True)
class Target:
    """Artifact that can be made: a stage of a pool, or one policy of a pool at one rho.

    Attributes:
        stage: name of the stage, `replay` for a replay.
        rho, policy: rho in score units per USD and policy of a replay, None for any other stage.
    """

    stage: str
    pool: ModelPool
    rho: float | None = None
    policy: str | None = None

    @property
    def definition(self) -> Stage:
        """Stage that makes the artifact."""
        if self.policy:
            return REPLAY
        return POOL_STAGES[self.stage]

    @property
    def name(self) -> str:
        """Name in records and messages, such as `splits` or `replay/cabs_d_linear__literal`."""
        if self.policy is None:
            return self.stage
        return f"replay/{asset_name(self.policy)}"

    @property
    def partition(self) -> str:
        """Partition key: the pool, or `pool|rho`."""
        if self.rho is None:
            return self.pool.name
        return f"{self.pool.name}|{rho_key(self.rho)}"

    @property
    def described(self) -> str:
        """Words for messages, such as `splits of pool demo`."""
        return described(self.name, self.partition)

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """Place of the artifact in the store."""
        if self.policy is None:
            return (self.stage, self.pool.name)
        return ("replay", self.pool.name, rho_key(self.rho or 0.0), asset_name(self.policy))

    @property
    def config(self) -> dict[str, Any]:
        """{setting: value} of the settings that matter to this artifact.

        A replay has `policy` and `rho`, too. A stage that runs every policy has an entry `policy NAME` for
        each, which holds the version of the policy's code and a hash of its tuning grid.
        """
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
        """Code version of the modules that make this artifact."""
        if self.policy:
            return policy_code_version(self.policy)
        return stage_code_version(self.stage, *self.definition.code_of(self.pool))

    @property
    def inputs(self) -> tuple[Target, ...]:
        """Targets that are read to make this one."""
        stage = self.definition
        return tuple(Target(name, self.pool) for name in (*stage.inputs, *stage.inputs_of(self.pool)))


def stage_modules(name: str) -> tuple[str, ...]:
    """Return the modules from which a stage's code version starts."""
    return (POOL_STAGES[name].module, *POOL_STAGES[name].code)


def policy_modules(policy: str) -> tuple[str, ...]:
    """Return the modules from which the code version of a policy's replay starts: engine and policy."""
    return (REPLAY.module, policy_record(policy).path.partition(":")[0])


@cache
def stage_code_version(name: str, *chosen: str) -> str:
    """Return the code version of a pool stage.

    Args:
        chosen: modules of the pool's source or encoder, see `Stage.code_of`.
    """
    return code_version((*stage_modules(name), *filter(None, chosen)), COVERED)


@cache
def policy_code_version(policy: str) -> str:
    """Return the code version of a policy's replay, over the engine and this policy's own modules."""
    return code_version(
        policy_modules(policy),
        COVERED,
        extra=(*split_name(policy), *map(str, name_and_options(policy)[1].items())),
    )


def _tuned_version(policy: str) -> str:
    """Return the code version of a policy with a hash of the grid that it is tuned over."""
    return f"{policy_code_version(policy)} {stable_hash(policy_record(policy).tuning, 12)}"
