"""Sections of a pool file that stand alone: split, encoder, oracle, features, replay, router."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from cabs_core.base.catalog.conditions import CONDITIONS
from cabs_core.base.catalog.encoders import encoder_record
from cabs_core.data.pool_files.columns import LogColumns, Text
from cabs_core.data.pool_files.prices import MOST_USD
from cabs_core.data.pool_files.rhos import PAPER_GRID, rounded_rho
from cabs_core.data.pool_files.sessions import Sessions
from cabs_core.data.pool_files.strict import Strict


def _known_condition(name: str) -> str:
    if name not in CONDITIONS:
        raise ValueError(f"{name!r:.60} is no stress condition; expected one of {', '.join(CONDITIONS)}")
    return name


SEED = 2**63 - 1  #: what the random generators of numpy and torch both take
Score = Annotated[float, Field(ge=-1e9, le=1e9, allow_inf_nan=False)]
LogFormat = Literal["table", "litellm", "langfuse", "openai", "otel", "openinference", "vllm_sr", "helicone"]


MOST_FOLDS = 20


class Split(Strict):
    """Train / validation / test, always whole prompts: no prompt text stands in two splits."""

    #: by_prompt: a prompt stays in its part when the table grows; by_task: whole tasks go to test
    #: (distribution shift); default: the source's own split
    kind: Literal["random", "by_prompt", "by_task", "column", "default"] = "random"
    fractions: tuple[float, float, float] = (0.7, 0.1, 0.2)
    #: by_task: the tasks of the test split; empty: half of them
    test_tasks: tuple[Text, ...] = Field((), max_length=10_000)
    split_seed: int = Field(0, ge=0, le=SEED)
    #: random, by_prompt: into how many folds the prompts are split, each held out once while everything is
    #: fitted on the others; the test fraction is then 1 / folds. Left out: 5 up to 5,000 different prompts,
    #: else 1; the other kinds have one split
    folds: int | None = Field(None, ge=1, le=MOST_FOLDS)

    @field_validator("fractions")
    @classmethod
    def _sum_to_one(cls, value: tuple[float, float, float]) -> tuple[float, float, float]:
        if min(value) <= 0 or abs(sum(value) - 1) > 1e-9:
            raise ValueError(f"split.fractions must be three positive numbers with sum 1, got {value}")
        return value

    @property
    def drawn(self) -> bool:
        """Whether each prompt's part is drawn, anew when the table grows."""
        return self.kind == "random"

    @property
    def rotates(self) -> bool:
        """True if any prompt may be held out, so that folds can be made."""
        return self.kind in ("random", "by_prompt")


DEFAULT_ENCODER = "all-MiniLM-L6-v2"


class Encoder(Strict):
    """A text encoder: a name known to `cabs_core.data.encoders`, a Hugging Face id, or a local folder."""

    name: Text = DEFAULT_ENCODER
    #: transformer that `static` is distilled from; only there. Absent elsewhere, so it changes no other hash
    of: Text | None = Field(None, exclude_if=lambda value: value is None)
    revision: Text | None = None
    max_length: int = Field(256, ge=8, le=8192)  #: tokens; longer prompts are cut and counted
    normalize: bool = True  #: scale embeddings to unit length
    #: auto: bfloat16 where the hardware multiplies it natively, else float32
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"

    @model_validator(mode="after")
    def _distilled(self) -> Encoder:
        record = encoder_record(self.name)
        distilled = record is not None and record.distilled
        if self.of is not None and not distilled:
            raise ValueError(
                f"encoder.of is for name: static, and encoder.name is {self.name!r:.60}: remove encoder.of"
            )
        if distilled and self.dtype == "bfloat16":
            raise ValueError(
                f"encoder {self.name!r} is distilled in float32, so that every machine makes the same array: "
                "remove encoder.dtype"
            )
        if distilled and self.of is None:
            object.__setattr__(self, "of", DEFAULT_ENCODER)
        return self


class Oracle(Strict):
    """Surrogate-reward oracles, trained on the train split, stopped and selected on validation."""

    kind: Literal["auto", "network", "ridge"] = "auto"
    oracle_seed: int = Field(0, ge=0, le=SEED)
    #: passes over the train split, or over 16,384 random queries of a larger one
    max_epochs: int = Field(60, ge=1, le=1000)
    learning_rate: float = Field(1e-4, gt=0, le=0.1)  #: Adam; 1e-4 is the paper's
    hidden: int = Field(256, ge=8, le=4096)
    #: of the network's score heads; l1, which the paper also names, fits medians: on 0/1 scores it rounds
    loss: Literal["huber", "l1"] = "huber"
    #: where the network is trained; None: the run's device, which is recorded and makes nothing stale
    device: Literal["cpu", "cuda"] | None = None


class Features(Strict):
    """Contexts of the linear policies; the same for every policy of the pool."""

    #: pca: components of the embedding, which know no labels; head: components of the network's 128-d feature
    #: head, learned from the train labels; auto: the better on validation
    kind: Literal["pca", "head", "auto"] = "pca"
    dim: int = Field(32, ge=1, le=1024)  #: components; head: 128 keeps the whole head


class ReplayBase(Strict):
    """Cost sensitivities, and the random orders in which prompts come, of pools of every kind."""

    trials: int = Field(10, ge=1, le=1000)
    order_seed: int = Field(0, ge=0, le=SEED)
    #: instead of rhos: what one right answer is worth in USD; each value is the rho 1 / value
    answer_value_usd: tuple[Annotated[float, Field(gt=0)], ...] = Field((), max_length=1000, exclude=True)
    #: 1 / rho is the dollar value of one right answer; a list, `paper`, or `auto`, from the table's costs
    rhos: tuple[float, ...] = Field(None, validate_default=True)  # the validator puts the default

    @field_validator("rhos", mode="before")
    @classmethod
    def _one_way_to_say_it(cls, value: Any, info: ValidationInfo) -> Any:
        worth = info.data.get("answer_value_usd") or ()
        if worth and value is not None:
            raise ValueError(
                "replay has rhos and answer_value_usd; 1 / rho is the answer's value, so give one"
            )
        if worth:
            return tuple(1 / v for v in worth)
        if isinstance(value, str) and value != "paper":
            raise ValueError(
                f"expected a list of numbers, `paper` or (in a pool file) `auto`, found {value!r:.60}"
            )
        return PAPER_GRID if value is None or value == "paper" else value

    @field_validator("rhos")
    @classmethod
    def _valid_rhos(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not 0 < len(value) <= 1000:
            raise ValueError(f"replay.rhos holds {len(value)} values: expected 1 to 1000 cost sensitivities")
        rhos = [rounded_rho(r) for r in value]
        if len(set(rhos)) != len(rhos):
            raise ValueError("replay.rhos holds a value twice (they are rounded to six digits)")
        return tuple(sorted(rhos))


class LogReplay(ReplayBase):
    """The rhos of a log. It is not replayed, so no condition changes its stream and latency has no weight."""

    condition: ClassVar[str] = "none"
    latency_weight: ClassVar[float] = 0.0
    sessions: ClassVar[Sessions] = Sessions()
    rounds: ClassVar[None] = None


class Replay(ReplayBase):
    """Online replay over the test split."""

    #: rho_1 of the utility: weight of the latency in seconds
    latency_weight: float = Field(0.0, ge=0, le=1e6)
    #: stress condition, see cabs_core.base.catalog.conditions
    condition: Annotated[str, AfterValidator(_known_condition)] = "none"
    sessions: Sessions = Sessions()  #: conversations of the condition `sessions`
    rounds: int | None = Field(None, ge=2)  #: replay only the first rounds of every trial's order

    @model_validator(mode="after")
    def _sessions_are_played(self) -> Replay:
        if (
            "sessions" in self.model_fields_set
            and self.condition != "sessions"
            and self.sessions != Sessions()
        ):
            raise ValueError(
                f"replay.sessions is for condition sessions; the condition is {self.condition!r}"
            )
        return self


#: default of `router.margin`
MARGIN = 0.02


class LogFile(Strict):
    """A log of calls beside the pool file, and how it is written."""

    path: Text  #: an event log (SQLite), a table, or the log of another tool
    format: LogFormat = "table"
    columns: LogColumns = LogColumns()
    scores: Text | None = None
    rows: Text | None = None
    score_words: dict[Text, Score] | None = Field(None, max_length=1000)
    #: the worst and the best score that can be given; None: 0 and 1
    score_range: tuple[Score, Score] | None = None


class RouterBase(Strict):
    """What the asset `router` and `cabs export` make of a pool of any kind."""

    policy: Text | None = None  #: None: the best of `policies` on the validation split
    rho: Annotated[float, Field(ge=0, le=1e9)] | None = None  #: None: the middle one
    epsilon: float = Field(0.02, ge=0, le=1)  #: share of uniform exploration, which keeps the log evaluable
    #: a transformer serves with int8 weights; refused where utility on validation falls by more than .002
    int8: bool = False
    #: most utility a request that a challenger may lose to the deployed router and still be promoted
    margin: float = Field(MARGIN, gt=0, le=1)
    #: deployed_router trains its challenger on the log's decisions too, beside the train split
    learn_from_log: bool = False
    #: models that cost nothing; else 0 is a missing price
    free: tuple[Text, ...] = Field((), max_length=1000)


class LogRouter(RouterBase):
    """The router of a log: what needs every model's outcome on a prompt, a log cannot have."""

    log: ClassVar[None] = None
    add_models: ClassVar[bool] = False
    budgets: ClassVar[tuple[float, ...]] = ()


class Deployed(RouterBase):
    """The router of a pool whose models all answered its prompts."""

    #: traffic to evaluate on, beside the pool file: a path, or {path, format, columns, scores, score_range};
    #: None: the log of the deployed router
    log: LogFile | None = None
    #: a model that the pool gains joins the deployed router, with its answers to the train prompts
    add_models: bool = False
    #: USD a request: the asset shows what each would buy, rho moved by the pacer
    budgets: tuple[Annotated[float, Field(gt=0, le=MOST_USD)], ...] = Field((), max_length=50)

    @field_validator("log", mode="before")
    @classmethod
    def _path_alone(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value
