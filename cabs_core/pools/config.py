"""The model pool: what is routed, on which data, and how it is replayed.

A pool is one YAML file. Every field is validated here; unknown fields are errors, because a misspelt option
that is silently ignored is worse than a crash.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from cabs_core.catalog import CONDITIONS
from cabs_core.paths import safe_name

RHO_GRID = tuple(float(r) for r in range(0, 1001, 50))
DEFAULT_POLICIES = (
    "random", "best_single", "oracle_best", "knn", "ridge", "carrot", "kernel",
    "epsilon_greedy", "square_cb", "lin_ucb", "lin_ts", "lin_ucb_full",
    "cabs_c_linear", "cabs_d_linear", "cabs_mix", "hier_mix",
    "cabs_c_linear@literal", "cabs_d_linear@literal", "cabs_c_linear@tuned", "cabs_d_linear@tuned",
)  # fmt: skip


def _known_condition(name: str) -> str:
    if name not in CONDITIONS:
        raise ValueError(f"{name!r} is no stress condition; expected one of {', '.join(CONDITIONS)}")
    return name


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Columns(_Strict):
    """Which columns of the user's table hold what. Tidy: one row per (query, model). Wide: one row per query."""

    prompt: str = "prompt"
    query_id: str | None = Field(
        "query_id", description="None or an absent column: derived from the prompt text"
    )
    task: str | None = Field("task", description="An absent column means one task named 'all'")
    model: str = Field("model", description="Tidy tables only")
    score: str = Field("score", description="Tidy: a column. Wide: a pattern with {model}, e.g. '{model}'")
    cost: str | None = Field(
        "cost", description="Tidy: a column. Wide: a pattern with {model}. None: from prices"
    )
    input_tokens: str | None = "n_input_tokens"
    output_tokens: str | None = "n_output_tokens"
    latency: str | None = Field(None, description="Seconds per call, >= 0")
    split: str | None = Field(None, description="Used by split kind 'column': train, validation or test")


class Price(_Strict):
    """USD per one million tokens."""

    input: float = Field(ge=0)
    output: float = Field(ge=0)


class Source(_Strict):
    """Where the outcomes come from."""

    kind: Literal["file", "synthetic", "routerbench", "sprout", "openllm_v2"]
    path: str | None = Field(
        None, description="file: the table, relative to CABS_DATA_DIR or to the pool file"
    )
    layout: Literal["tidy", "wide"] = "tidy"
    columns: Columns = Columns()
    mirror: str | None = Field(
        None, description="Remote sources: a local folder with the files, read instead"
    )
    published_order: bool = Field(False, description="openllm_v2: keep the misaligned published row order")
    queries: int = Field(1500, ge=50, le=200_000, description="synthetic: number of prompts")
    seed: int = Field(7, ge=0, description="synthetic: seed of the generator")

    @model_validator(mode="after")
    def _file_needs_path(self) -> Source:
        if self.kind == "file" and not self.path:
            raise ValueError(
                "source.kind 'file' needs source.path, the table to read (.parquet, .csv or .jsonl)"
            )
        return self


class Split(_Strict):
    """Train / validation / test, always whole prompts: no prompt text stands in two splits."""

    kind: Literal["random", "by_task", "column", "default"] = Field(
        "random",
        description="by_task: whole tasks go to test (distribution shift); default: the source's own split",
    )
    fractions: tuple[float, float, float] = (0.7, 0.1, 0.2)
    test_tasks: tuple[str, ...] = Field(
        (), description="by_task: the tasks of the test split; empty: half of them"
    )
    split_seed: int = Field(0, ge=0)

    @field_validator("fractions")
    @classmethod
    def _sum_to_one(cls, value: tuple[float, float, float]) -> tuple[float, float, float]:
        if min(value) <= 0 or abs(sum(value) - 1) > 1e-9:
            raise ValueError(f"split.fractions must be three positive numbers with sum 1, got {value}")
        return value


class Encoder(_Strict):
    """A text encoder: a name known to `cabs_core.encoders`, a Hugging Face id, or a local folder."""

    name: str = "all-MiniLM-L6-v2"
    revision: str | None = None
    max_length: int = Field(256, ge=8, le=8192, description="Tokens; longer prompts are cut and counted")
    normalize: bool = Field(True, description="Scale embeddings to unit length")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="auto: bfloat16 where the hardware multiplies it natively, else float32"
    )


class Oracle(_Strict):
    """Surrogate-reward oracles, trained on the train split, stopped and selected on validation."""

    kind: Literal["auto", "network", "ridge"] = "auto"
    oracle_seed: int = Field(0, ge=0)
    max_epochs: int = Field(60, ge=1, le=1000)
    learning_rate: float = Field(1e-4, gt=0, le=0.1, description="Adam; 1e-4 is the paper's")
    hidden: int = Field(256, ge=8, le=4096)
    loss: Literal["huber", "l1"] = Field(
        "huber",
        description="Of the network's score heads; l1, which the paper also names, fits medians: on 0/1 scores it "
        "rounds. Early stopping and the choice of models go by squared error either way",
    )


class Features(_Strict):
    """Contexts of the linear policies; the same for every policy of the pool."""

    kind: Literal["pca", "head", "auto"] = Field(
        "pca",
        description="pca: components of the embedding, which know no labels; head: components of the network's "
        "128-d feature head, learned from the train labels; auto: the better on validation",
    )
    dim: int = Field(32, ge=1, le=1024, description="Components; head: 128 keeps the whole head")


class Replay(_Strict):
    """Online replay over the test split."""

    trials: int = Field(10, ge=1, le=1000)
    order_seed: int = Field(0, ge=0)
    rhos: tuple[float, ...] = RHO_GRID
    latency_weight: float = Field(
        0.0, ge=0, description="rho_1 of the utility: weight of the latency in seconds"
    )
    condition: Annotated[str, AfterValidator(_known_condition)] = Field(
        "none", description="Stress condition, see cabs_core.catalog.conditions"
    )
    rounds: int | None = Field(None, ge=2, description="Replay only the first rounds of every trial's order")

    @field_validator("rhos")
    @classmethod
    def _valid_rhos(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not value:
            raise ValueError("replay.rhos is empty: name at least one cost sensitivity")
        bad = [r for r in value if not 0 <= r <= 9999 or r != int(r)]
        if bad:
            raise ValueError(f"replay.rhos holds {bad}: expected whole numbers from 0 to 9999")
        if len(set(value)) != len(value):
            raise ValueError("replay.rhos holds a value twice")
        return tuple(sorted(value))


class ModelPool(_Strict):
    """One model pool file. See the README for an example of ten lines."""

    name: str
    title: str = ""
    description: str = ""
    synthetic: bool = Field(False, description="Generated data: said on every page that shows its results")
    source: Source
    models: dict[str, str] | tuple[str, ...] = Field(
        (), description="Models to use (default all): a list, or a mapping {name shown: name in the source}"
    )
    tasks: tuple[str, ...] = Field((), description="Keep only these tasks (default all)")
    prices: dict[str, Price] = Field({}, description="Cost = tokens x price; used when columns.cost is null")
    rescale_mean_cost: dict[str, Annotated[float, Field(gt=0)]] = Field(
        {}, description="Multiply each model's costs so that their mean is this (USD)"
    )
    rescale_grand_mean_cost: float | None = Field(
        None,
        gt=0,
        description="Multiply all costs by one factor so that the mean over queries and models is this",
    )
    missing: Literal["drop_queries", "error"] = "drop_queries"
    split: Split = Split()
    encoder: Encoder = Encoder()
    oracle: Oracle = Oracle()
    features: Features = Features()
    replay: Replay = Replay()
    policies: tuple[str, ...] = DEFAULT_POLICIES
    reference_policy: str = Field("lin_ucb", description="Relative cumulative regret is measured against it")
    tuning_budget: int = Field(
        12, ge=0, le=1000, description="Validation configurations tried per policy; 0: none"
    )
    paper_benchmark: Literal["routerbench", "sprout", "openllm"] | None = Field(
        None, description="Show the paper's figures for this benchmark beside ours"
    )

    @field_validator("name")
    @classmethod
    def _safe(cls, value: str) -> str:
        return safe_name(value, "pool name")

    @model_validator(mode="after")
    def _consistent(self) -> ModelPool:
        if not self.policies:
            raise ValueError("policies is empty: name at least one policy")
        twice = sorted({p for p in self.policies if self.policies.count(p) > 1})
        if twice:
            raise ValueError(f"policies names {twice} more than once")
        if self.source.kind == "file" and self.source.columns.cost is None and not self.prices:
            raise ValueError("source.columns.cost is null, so prices must name a price for every model")
        if self.replay.condition == "severe_shift" and not self.split.test_tasks:
            raise ValueError(
                "replay.condition 'severe_shift' needs split.test_tasks, the tasks of the test split"
            )
        if self.rescale_mean_cost and self.rescale_grand_mean_cost is not None:
            raise ValueError("give rescale_mean_cost or rescale_grand_mean_cost, not both")
        names = self.arm_names()
        if names is not None:
            if len(names) < 2:
                raise ValueError("models names fewer than two models: there is nothing to route between")
            if len(set(names)) != len(names):
                raise ValueError("models names a model more than once")
            if isinstance(self.models, dict) and len(set(self.models.values())) != len(names):
                raise ValueError("models maps two names to one model of the source")
            long = [name for name in names if not 0 < len(name.strip()) <= 200 or not name.isprintable()]
            if long:
                raise ValueError(f"models holds {long[0]!r:.80}: expected 1 to 200 printable characters")
            for field in ("prices", "rescale_mean_cost"):
                unknown = sorted(set(getattr(self, field)) - set(names))
                if unknown:
                    raise ValueError(
                        f"{field} names models that are not in the pool: {unknown}; pool has {names}"
                    )
        return self

    def arm_names(self) -> list[str] | None:
        """Names shown for the arms, in pool order; None when the pool takes every model of its source."""
        if not self.models:
            return None
        return list(self.models)

    def source_names(self) -> dict[str, str] | None:
        """{name shown: name in the source}, or None when the pool takes every model of its source."""
        if not self.models:
            return None
        return dict(self.models) if isinstance(self.models, dict) else {m: m for m in self.models}

    def content_hash(self, *sections: str) -> str:
        """SHA-256 (hex, 16 characters) of the pool's settings, or of the named top-level fields alone.

        Stages hash only the fields they read, so that changing one setting refreshes what depends on it.
        """
        data: dict[str, Any] = self.model_dump(mode="json", include=set(sections) if sections else None)
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]
