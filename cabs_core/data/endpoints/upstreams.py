"""Where each model is called: a YAML file. API keys come from the environment and are never in it.

    models:
      gpt-4o: {url: https://api.openai.com/v1, model: gpt-4o-2024-08-06, key_env: OPENAI_API_KEY,
               price: {input: 2.5, cached: 1.25, output: 10}, context: 128000}
      local:  {url: http://127.0.0.1:8000/v1, free: true, input: [text], tools: false}

The names are the router's models; `model` is what the upstream calls it (default: the same).
`docs/upstreams.md` has every field; `cabs serve --check` checks a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from cabs_core.base.errors import RouterError, first_fault
from cabs_core.base.secret import secret
from cabs_core.base.units import PRICED_TOKENS, SECONDS_PER_DAY
from cabs_core.data.endpoints.output_limits import OUTPUT_FIELDS, OutputLimits, output_fields_of
from cabs_core.data.endpoints.request import MEDIUMS, MESSAGES, ChatRequest, Medium
from cabs_core.data.endpoints.usage import Bill, Tokens, tokens_of
from cabs_core.data.pool_files.plain_yaml import not_yaml
from cabs_core.data.pool_files.prices import CallPrice
from cabs_core.data.pool_files.strict import Strict

Dialect = Literal["chat", "completions", "responses", "messages"]
#: tokens that a model is taken to write at most, where the request does not say
MOST_OUTPUT = 4_096.0
Kind = Literal["text"] | Medium
#: the fields that say how good a model is that joins a router
STARTS = ("scored", "like")

_REQUESTS = frozenset({"model", *MESSAGES, "stream", "stream_options"})


class Upstream(Strict):
    """One model's endpoint."""

    url: str = Field(
        description="Base URL of the API; /chat/completions, /responses, ... are called below it"
    )
    model: str | None = Field(None, description="The upstream's name of the model; default: the router's")
    key_env: str | None = Field(None, description="Environment variable that holds the API key")
    auth: Literal["bearer", "x-api-key"] | None = Field(
        None, description="How the key is sent; default: x-api-key for messages, bearer for the others"
    )
    timeout: float = Field(60.0, gt=0, le=3600, description="Seconds to the first byte, and between bytes")
    price: CallPrice | None = Field(
        None,
        description="USD per one million tokens: input, output, cached, cache_write, "
        "cache_write_1h, audio_input, audio_output, reasoning; and above, tiers, per_search",
    )
    free: bool = Field(False, description="Calls cost nothing")
    speaks: tuple[Dialect, ...] = Field(
        ("chat",), min_length=1, description="Dialects of its API: chat, completions, responses, messages"
    )
    context: int | None = Field(
        None, gt=0, description="Longest request, tokens in and out; longer ones go to other models"
    )
    input: tuple[Kind, ...] = Field(
        ("text", *MEDIUMS),
        min_length=1,
        description=f"What it reads: text, {', '.join(MEDIUMS)}",
    )
    tools: bool = Field(True, description="It takes requests with tools")
    json_schema: bool = Field(True, description="It takes requests for an answer by a JSON schema")
    params: dict[str, Any] = Field(
        default_factory=dict,
        description=(
            "Set in every request to it, such as reasoning_effort: two efforts of one model are two models"
        ),
    )
    drop: tuple[str, ...] = Field((), description="Fields of a request that it refuses: they are left out")
    rename: dict[str, str] = Field(
        default_factory=dict,
        description="Fields of a request that it calls otherwise: {max_tokens: max_completion_tokens}",
    )
    stream_usage: bool = Field(
        True, description="Ask it for token counts in streams (stream_options.include_usage)"
    )
    scored: str | None = Field(
        None,
        min_length=1,
        description="It joins the router: table of its scored prompts, a path from the folder of this file",
    )
    like: str | None = Field(
        None, min_length=1, description="It joins the router: about as good as this model of the router"
    )

    @field_validator("url")
    @classmethod
    def _http(cls, value: str) -> str:
        if not value.startswith(("http://", "https://")) or "@" in value.split("/")[2]:
            raise ValueError("expected http:// or https:// without user and password (see key_env)")
        return value.rstrip("/")

    @field_validator("params", "drop", "rename")
    @classmethod
    def _fields(cls, value: Any, info: ValidationInfo) -> Any:
        names = {*value, *value.values()} if info.field_name == "rename" else set(value)
        if taken := sorted(names & _REQUESTS):
            raise ValueError(f"{taken[0]} belongs to the request: it cannot be set, dropped or renamed here")
        return value

    @model_validator(mode="after")
    def _one_price(self) -> Upstream:
        if self.free and self.price is not None:
            raise ValueError("give price or free, not both")
        if all(getattr(self, name) for name in STARTS):
            raise ValueError(f"give {' or '.join(STARTS)}, not both")
        return self

    @property
    def start(self) -> str | None:
        """Return the field by which the model joins a running router, `scored` or `like`, else None."""
        return next((name for name in STARTS if getattr(self, name)), None)

    @property
    def place(self) -> tuple[str, str | None]:
        """Address and key: models of one place know what was said to any of them."""
        return self.url, self.key_env

    def bill(self, usage: Any, estimate: Callable[[], Tokens] | None = None) -> Bill:
        """The bill of a call.

        Args:
            usage: as reported. estimate: counts where there are no sound ones; None: there is no bill.
        """
        counted, guessed = tokens_of(usage), False
        if counted is None and estimate is not None:
            counted, guessed = estimate(), True
        if counted is None:
            return Bill()
        if self.free:
            return Bill(0.0, counted, guessed)
        return Bill(counted.cost(self.price), counted, guessed, counted.unpriced(self.price))

    def usd(self, tokens_in: float, tokens_out: float) -> float:
        """What a call of so many tokens costs; 0 without a price."""
        return 0.0 if self.free else Tokens(tokens_in, tokens_out).cost(self.price) or 0.0

    def most_usd(self, request: ChatRequest) -> float:
        """Return the most that a call is taken to cost, USD. Return 0 if it is free or has no price.

        The call is taken to have twice the tokens that are estimated. Each answer has as many tokens as the
        request allows, thoughts included, else `MOST_OUTPUT`, at the dearest tier of the price, and as many
        web searches as `ChatRequest.searches` says if the price has searches.
        """
        if self.free or self.price is None:
            return 0.0
        answers = max(request.output.answers, self._set_limits.answers)
        limit = self.sent_limit(request)
        if limit is None:
            limit = self._most_output(request, MOST_OUTPUT)
        output = answers * limit
        into, out = self.price.dearest(2.0 * request.tokens)
        tokens = (2.0 * request.tokens * into + output * out) / PRICED_TOKENS
        searches = answers * request.searches * (self.price.per_search or 0.0)
        return tokens + searches

    def sent_limit(self, request: ChatRequest) -> float | None:
        """Return the most tokens of an answer that this model is told, thoughts included.

        Return None if it is told no limit of the answer itself.
        """
        own = self._set_limits
        limit = own.tokens
        if limit is None and request.output.field not in self.drop:
            limit = request.output.tokens
        return None if limit is None else self._most_output(request, limit)

    def _most_output(self, request: ChatRequest, limit: float) -> float:
        """Return the most tokens of an answer whose own limit is `limit`, by request and `params`."""
        return max(request.output.most(limit), self._set_limits.most(limit))

    @cached_property
    def _set_limits(self) -> OutputLimits:
        """Limits that `params` set in every request."""
        return OutputLimits.read(self.params)

    def body(self, body: Mapping[str, Any], name: str, limit_field: str | None = None) -> dict[str, Any]:
        """Return a request as this model takes it: fields are renamed and dropped, and `params` are set.

        Args:
            name: the router's name of the model. limit_field: the one field of `output_fields_of` that is
                sent, for the budget is reserved by it; None sends all of them.
        """
        left_out = set(self.drop)
        if not self.params.keys().isdisjoint(OUTPUT_FIELDS):
            left_out.update(output_fields_of(body))
        elif limit_field is not None:
            left_out.update(name for name in output_fields_of(body) if name != limit_field)
        sent = {
            self.rename.get(field, field): value for field, value in body.items() if field not in left_out
        }
        return {**sent, **self.params, "model": self.model or name}

    def headers(self, dialect: str) -> dict[str, str]:
        """Headers that carry the key, and the version of the dialect where it has one."""
        headers = {"anthropic-version": "2023-06-01"} if dialect == "messages" else {}
        if not (key := secret(self.key_env) if self.key_env else None):
            return headers
        if (self.auth or ("x-api-key" if dialect == "messages" else "bearer")) == "x-api-key":
            return {**headers, "x-api-key": key}
        return {**headers, "authorization": f"Bearer {key}"}

    def lacks(self, request: ChatRequest) -> str | None:
        """Why it cannot take a request, in words; None: it can."""
        abilities, tokens = request.abilities, request.tokens + (request.output.tokens or 0.0)
        if request.dialect not in self.speaks:
            return f"does not speak {request.dialect}"
        for kind in MEDIUMS:
            if kind in abilities and kind not in self.input:
                return f"takes no {kind}"
        if "tools" in abilities and not self.tools:
            return "takes no tools"
        if "json_schema" in abilities and not self.json_schema:
            return "takes no JSON schema"
        if self.context is not None and tokens > self.context:
            return f"reads {self.context} tokens, the request has about {tokens:.0f}"
        return None


class BreakerSettings(Strict):
    """When a model is left alone; see `breaker`."""

    failures: int = Field(3, ge=1, le=1000, description="Least number of failures in the window")
    window: float = Field(60.0, gt=0, le=3600, description="Seconds")
    cooldown: float = Field(
        10.0, ge=0, le=300, description="Seconds before a trial; doubles with each that fails"
    )


class Upstreams(Strict):
    """The upstreams file.

    Attributes:
        models: {the router's model: its endpoint}. embeddings: {name: endpoint} of models for /v1/embeddings.
        attempts: most models tried for a request, each as a decision of its own; None: all.
        deadline: seconds for a request, over all its attempts; of a stream: until it begins.
        breaker: when a model that fails is left alone.
    """

    models: dict[str, Upstream]
    embeddings: dict[str, Upstream] = Field(default_factory=dict)
    attempts: int | None = Field(None, ge=1, le=100)
    deadline: float = Field(120.0, gt=0, le=SECONDS_PER_DAY)
    breaker: BreakerSettings = BreakerSettings()

    @field_validator("embeddings")
    @classmethod
    def _not_chosen(cls, value: dict[str, Upstream]) -> dict[str, Upstream]:
        for name, upstream in value.items():
            if upstream.start is not None:
                raise ValueError(f"{name}.{upstream.start}: no router chooses a model of embeddings")
        return value


def load_upstreams(path: str | Path) -> Upstreams:
    """Read the file.

    Raises:
        RouterError: it cannot be read or is invalid.
    """
    path = Path(path)
    text = ""
    try:
        text = path.read_text(encoding="utf-8-sig")
        data = yaml.safe_load(text)
        if not isinstance(data, dict):
            raise RouterError(f"{path}: expected a mapping with `models` at the top, found {data!r:.100}")
        return Upstreams.model_validate(data)
    except FileNotFoundError:
        raise RouterError(f"upstreams file {path} does not exist") from None
    except UnicodeDecodeError as error:
        raise RouterError(f"{path} is not YAML: byte {error.start} is not UTF-8") from None
    except OSError as error:
        raise RouterError(f"{path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        wrong = not_yaml(error, text)
        raise RouterError(f"{path}, line {wrong.line}: not YAML: {wrong}") from None
    except ValidationError as error:
        fault, value = first_fault(error, "(top level)")
        raise RouterError(f"{path}: {fault} (found {value!r:.100})") from None


def read_upstreams(path: str | Path, arms: Sequence[str]) -> Upstreams:
    """Read and check the file for a router's models.

    Raises:
        RouterError: the file cannot be read or is invalid, or an endpoint or API key is absent.
    """
    path = Path(path)
    upstreams = load_upstreams(path)
    missing = [arm for arm in arms if arm not in upstreams.models]
    if missing:
        raise RouterError(
            f"{path}: models lacks {missing[0]!r}, which the router chooses; it has {list(upstreams.models)}"
        )
    for part, models in (("models", upstreams.models), ("embeddings", upstreams.embeddings)):
        for name, upstream in models.items():
            if upstream.key_env and not secret(upstream.key_env):
                raise RouterError(
                    f"{path}: {part}.{name} needs {upstream.key_env}, which is not set in the environment"
                )
    return upstreams
