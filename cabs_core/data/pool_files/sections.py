"""Sections of a pool file that need no other section: split, encoder, oracle, features, replay, router."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from cabs_core.base.catalog.conditions import CONDITIONS
from cabs_core.base.catalog.encoders import encoder_record
from cabs_core.base.catalog.log_formats import LOG_FORMATS
from cabs_core.data.pool_files.columns import LogColumns, Text
from cabs_core.data.pool_files.prices import MOST_USD
from cabs_core.data.pool_files.rhos import PAPER_GRID, rounded_rho
from cabs_core.data.pool_files.sessions import Sessions
from cabs_core.data.pool_files.strict import Strict


def _known_condition(name: str) -> str:
    """Return the name of a stress condition.

    Raises:
        ValueError: there is no such condition.
    """
    if name not in CONDITIONS:
        raise ValueError(f"{name!r:.60} is no stress condition; expected one of {', '.join(CONDITIONS)}")
    return name


def _known_format(name: str) -> str:
    """Return the name of a format of logs.

    Raises:
        ValueError: there is no such format.
    """
    known = ("table", *LOG_FORMATS)
    if name not in known:
        raise ValueError(f"{name!r:.60} is no format of logs; expected one of {', '.join(known)}")
    return name


#: largest seed that the random generators of numpy and torch both take
SEED = 2**63 - 1
Score = Annotated[float, Field(ge=-1e9, le=1e9, allow_inf_nan=False)]
#: `table`, or the tool whose log is read
LogFormat = Annotated[str, AfterValidator(_known_format)]


MOST_FOLDS = 20


class Split(Strict):
    """Settings of the split of prompts into train, validation and test. A prompt stands in one split only."""

    #: random: by chance. by_prompt: by a hash, so that a prompt stays in its split when the table grows.
    #: by_task: whole tasks go to test (distribution shift). column: by a column of the table. default: the
    #: source's own split
    kind: Literal["random", "by_prompt", "by_task", "column", "default"] = "random"
    fractions: tuple[float, float, float] = (0.7, 0.1, 0.2)  #: shares of train, validation and test
    #: tasks of the test split if the kind is by_task. If empty, half of the tasks are drawn
    test_tasks: tuple[Text, ...] = Field((), max_length=10_000)
    split_seed: int = Field(0, ge=0, le=SEED)
    #: number of folds of the kinds random and by_prompt; the other kinds have one split. Each fold is held
    #: out once while everything is fitted on the other folds, so the test fraction is 1 / folds. If left out,
    #: a table of up to 5,000 different prompts has 5 folds, and a larger one 1
    folds: int | None = Field(None, ge=1, le=MOST_FOLDS)

    @field_validator("fractions")
    @classmethod
    def _sum_to_one(cls, value: tuple[float, float, float]) -> tuple[float, float, float]:
        """Return the fractions; raise ValueError unless all are positive and their sum is 1."""
        if min(value) <= 0 or abs(sum(value) - 1) > 1e-9:
            raise ValueError(
                f"split.fractions is {list(value)}: expected three positive numbers with sum 1, such as "
                "[0.7, 0.1, 0.2]"
            )
        return value

    @property
    def rotates(self) -> bool:
        """True for `random` and `by_prompt`, where any prompt may be held out, so that folds can be made."""
        return self.kind in ("random", "by_prompt")


DEFAULT_ENCODER = "all-MiniLM-L6-v2"


class Encoder(Strict):
    """Settings of the text encoder."""

    #: name of an encoder of `cabs_core.data.encoders`, id of a Hugging Face model, or path of a local folder
    name: Text = DEFAULT_ENCODER
    #: transformer that the encoder `static` is distilled from. For other encoders the field is None, and
    #: dumps leave it out, so that the hashes of their settings do not depend on it
    of: Text | None = Field(None, exclude_if=lambda value: value is None)
    revision: Text | None = None  #: commit of the Hugging Face repository; None: the newest
    max_length: int = Field(
        256, ge=8, le=8192
    )  #: most tokens of a prompt; longer prompts are cut and counted
    normalize: bool = True  #: scale embeddings to unit length
    #: type of the numbers; auto: bfloat16 if the hardware multiplies it natively, else float32
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"

    @model_validator(mode="after")
    def _distilled(self) -> Encoder:
        """Fill in `of` for an encoder that is distilled from a transformer, by default `DEFAULT_ENCODER`.

        Raises:
            ValueError: `of` is given for another encoder, or `dtype` is bfloat16 for a distilled one.
        """
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
    """Settings of the surrogate-reward oracles.

    Oracles are trained on the train split. Training is stopped, and the kind selected, on the validation
    split.
    """

    kind: Literal["auto", "network", "ridge"] = "auto"  #: auto: the better one on the validation split
    oracle_seed: int = Field(0, ge=0, le=SEED)
    #: most passes over the train split, or over 16,384 random queries of a larger one
    max_epochs: int = Field(60, ge=1, le=1000)
    learning_rate: float = Field(1e-4, gt=0, le=0.1)  #: of Adam; the paper takes 1e-4
    hidden: int = Field(256, ge=8, le=4096)  #: width of the network's hidden layers
    #: loss of the network's score heads. l1, which the paper also names, fits medians, so that 0/1 scores are
    #: rounded
    loss: Literal["huber", "l1"] = "huber"
    #: where the network is trained. None: the run's device, which is recorded and makes no result stale
    device: Literal["cpu", "cuda"] | None = None


class Features(Strict):
    """Settings of the context vectors that all linear policies of the pool read.

    A context vector holds the first `dim` principal components, scaled, of the embedding (`pca`) or of the
    128 features that the oracle network learns (`head`), and a constant. `auto` takes the kind that is better
    on the validation split.
    """

    #: pca: components of the embedding, which no label influences. head: components of the network's 128-d
    #: feature head, learnt from the train labels. auto: the better one on the validation split
    kind: Literal["pca", "head", "auto"] = "pca"
    dim: int = Field(32, ge=1, le=1024)  #: number of components; 128 keeps the whole head


class ReplayBase(Strict):
    """Cost sensitivities and random orders of the prompts, for pools of every kind."""

    trials: int = Field(10, ge=1, le=1000)  #: number of random orders
    order_seed: int = Field(0, ge=0, le=SEED)
    #: values of one right answer in USD, instead of rhos. Each value is the rho 1 / value
    answer_value_usd: tuple[Annotated[float, Field(gt=0)], ...] = Field((), max_length=1000, exclude=True)
    #: cost sensitivities; 1 / rho is the value of one right answer in USD. A list, `paper`, or `auto`, which
    #: takes them from the table's costs
    rhos: tuple[float, ...] = Field(None, validate_default=True)  # the validator puts the default

    @field_validator("rhos", mode="before")
    @classmethod
    def _rhos_as_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        """Return the rhos of a list, of `paper` or of `answer_value_usd`; by default `PAPER_GRID`.

        Raises:
            ValueError: the pool file gives rhos and answer values, or another word than `paper`.
        """
        answer_values = info.data.get("answer_value_usd") or ()
        if answer_values and value is not None:
            raise ValueError(
                "replay has rhos and answer_value_usd; 1 / rho is the answer's value, so give one of them"
            )
        if answer_values:
            return tuple(1 / answer_value for answer_value in answer_values)
        if value is None or value == "paper":
            return PAPER_GRID
        if isinstance(value, str):
            raise ValueError(
                f"expected a list of numbers, `paper` or (in a pool file) `auto`, found {value!r:.60}"
            )
        return value

    @field_validator("rhos")
    @classmethod
    def _valid_rhos(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        """Return the rhos in ascending order, each rounded to six significant digits.

        Raises:
            ValueError: there are none or more than 1,000, a rho is neither 0 nor from 1e-6 to 1e9, or two are
                equal after rounding.
        """
        if not 0 < len(value) <= 1000:
            raise ValueError(f"replay.rhos holds {len(value)} values: expected 1 to 1000 cost sensitivities")
        rhos = [rounded_rho(rho) for rho in value]
        if len(set(rhos)) != len(rhos):
            raise ValueError(
                "replay.rhos holds a value twice (they are rounded to six digits): leave one of the two out"
            )
        return tuple(sorted(rhos))


class LogReplay(ReplayBase):
    """Section `replay` of a pool that is a log.

    A log is not replayed, so no stress condition changes its stream and latency has no weight.
    """

    condition: ClassVar[str] = "none"
    latency_weight: ClassVar[float] = 0.0
    sessions: ClassVar[Sessions] = Sessions()
    rounds: ClassVar[None] = None


class Replay(ReplayBase):
    """Settings of the online replay over the test split."""

    #: utility that one second of latency costs (rho_1 of the paper)
    latency_weight: float = Field(0.0, ge=0, le=1e6)
    #: name of a stress condition, see cabs_core.base.catalog.conditions
    condition: Annotated[str, AfterValidator(_known_condition)] = "none"
    sessions: Sessions = Sessions()  #: conversations of the condition `sessions`
    rounds: int | None = Field(None, ge=2)  #: number of rounds of each trial; None: all

    @model_validator(mode="after")
    def _sessions_are_played(self) -> Replay:
        """Return the section; raise ValueError if `sessions` is set under another condition."""
        if self.condition != "sessions" and self.sessions != Sessions():
            raise ValueError(
                f"replay.sessions is for condition sessions; the condition is {self.condition!r}. Leave "
                "replay.sessions out, or set the condition"
            )
        return self


#: default of `router.margin`
MARGIN = 0.02


class LogFile(Strict):
    """A log of calls beside the pool file, and how the log is written.

    The fields are those of a log source.
    """

    path: Text  #: an event log (SQLite), a table, or the log of another tool
    format: LogFormat = "table"  #: the tool that wrote the log
    columns: LogColumns = LogColumns()
    scores: Text | None = None  #: a file of scores that name a span, a run or a trace of the log
    rows: Text | None = None  #: dotted path to the rows in a JSON document, such as results.results
    #: {word: score in units of score_range}
    score_words: dict[Text, Score] | None = Field(None, max_length=1000)
    #: the worst and the best score that can be given; None: 0 and 1
    score_range: tuple[Score, Score] | None = None


class RouterBase(Strict):
    """Settings of the router that the asset `router` and `cabs export` make from a pool of any kind.

    The router plays `policy` at `rho`, and a share `epsilon` of its choices is uniformly random. With `int8`
    its text encoder runs with int8 weights. A later router replaces the deployed one if it surely loses less
    than `margin` of utility per request; `learn_from_log` trains it on the deployed router's log too. Models
    in `free` cost nothing.
    """

    policy: Text | None = None  #: None: the best of `policies` on the validation split
    #: cost sensitivity of the router; None: the middle one of replay.rhos
    rho: Annotated[float, Field(ge=0, le=1e9)] | None = None
    #: share of uniform exploration, so that the router's log allows off-policy estimates
    epsilon: float = Field(0.02, ge=0, le=1)
    #: True: the transformer serves with int8 weights. The router is refused if the utility on validation
    #: falls by more than .002
    int8: bool = False
    #: largest loss of utility per request, against the deployed router, with which a challenger is promoted
    margin: float = Field(MARGIN, gt=0, le=1)
    #: True: deployed_router trains its challenger on the log's decisions and on the train split
    learn_from_log: bool = False
    #: models that cost nothing. A cost of 0 of any other model is a missing price
    free: tuple[Text, ...] = Field((), max_length=1000)


class LogRouter(RouterBase):
    """Router settings of a log. Settings that need every model's outcome on a prompt have fixed values."""

    log: ClassVar[None] = None
    add_models: ClassVar[bool] = False
    budgets: ClassVar[tuple[float, ...]] = ()


class Deployed(RouterBase):
    """Router settings of a pool whose models all answered its prompts."""

    #: log of the traffic to evaluate on, beside the pool file: a path, or {path, format, columns, scores,
    #: score_range}. None: the log of the deployed router
    log: LogFile | None = None
    #: True: a model that the pool gains joins the deployed router, with its answers to the train prompts
    add_models: bool = False
    #: budgets in USD a request. The asset `router` replays the policy under each, with rho set by the pacer
    budgets: tuple[Annotated[float, Field(gt=0, le=MOST_USD)], ...] = Field((), max_length=50)

    @field_validator("log", mode="before")
    @classmethod
    def _path_as_log_file(cls, value: Any) -> Any:
        """Return {path: the value} if the pool file gives only the path of the log; else the value."""
        if isinstance(value, str):
            return {"path": value}
        return value
