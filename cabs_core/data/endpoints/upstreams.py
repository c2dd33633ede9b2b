"""The upstreams file: a YAML file that says where and how each model is called.

    models:
      gpt-4o: {url: https://api.openai.com/v1, model: gpt-4o-2024-08-06, key_env: OPENAI_API_KEY,
               price: {input: 2.5, cached: 1.25, output: 10}, context: 128000}
      local:  {url: http://127.0.0.1:8000/v1, free: true, input: [text], tools: false}

The keys are the router's names of the models. `model` is the provider's name; by default it is the router's
name. API keys come from environment variables and never stand in the file. `docs/upstreams.md` describes all
fields, and `cabs serve --check` checks a file.
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
from cabs_core.data.endpoints.body_fields import MESSAGES
from cabs_core.data.endpoints.output_limits import OUTPUT_FIELDS, OutputLimits, output_fields_of
from cabs_core.data.endpoints.request import MEDIUMS, ChatRequest, Medium
from cabs_core.data.endpoints.usage import Bill, Tokens, tokens_of
from cabs_core.data.pool_files.plain_yaml import not_yaml
from cabs_core.data.pool_files.prices import CallPrice
from cabs_core.data.pool_files.strict import Strict

Dialect = Literal["chat", "completions", "responses", "messages"]
#: Tokens that an answer is assumed to have at most if neither request nor file gives a limit.
MOST_OUTPUT = 4_096.0
Kind = Literal["text"] | Medium
#: Fields of a model that joins a running router. Each says in its own way how good the model is.
JOIN_FIELDS = ("scored", "like")
#: Fields of a request that `params`, `drop` and `rename` may not change.
_FIELDS_OF_REQUEST = frozenset({"model", *MESSAGES, "stream", "stream_options"})


class Upstream(Strict):
    """Endpoint of one model: address, key, price and limits."""

    url: str = Field(
        description="Base URL of the API; /chat/completions, /responses, ... are called below it"
    )
    model: str | None = Field(None, description="The provider's name of the model; default: the router's")
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
    def _check_url(cls, value: str) -> str:
        """Return the URL without a slash at the end.

        Refuse schemes other than http and https, and URLs with a user or password.
        """
        if not value.startswith(("http://", "https://")) or "@" in value.split("/")[2]:
            raise ValueError("expected http:// or https:// without user and password (see key_env)")
        return value.rstrip("/")

    @field_validator("params", "drop", "rename")
    @classmethod
    def _check_fields(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse changes of fields that the request must decide itself, such as its messages."""
        if info.field_name == "rename":
            names = {*value, *value.values()}
        else:
            names = set(value)
        taken = sorted(names & _FIELDS_OF_REQUEST)
        if taken:
            raise ValueError(f"{taken[0]} belongs to the request: it cannot be set, dropped or renamed here")
        return value

    @model_validator(mode="after")
    def _check_alternatives(self) -> Upstream:
        """Refuse a model with both `price` and `free`, or with both fields by which it could join."""
        if self.free and self.price is not None:
            raise ValueError("give price or free, not both")
        if all(getattr(self, name) for name in JOIN_FIELDS):
            raise ValueError(f"give {' or '.join(JOIN_FIELDS)}, not both")
        return self

    @property
    def joins_by(self) -> str | None:
        """Name of the field by which the model joins a running router: `scored` or `like`, or None."""
        return next((name for name in JOIN_FIELDS if getattr(self, name)), None)

    @property
    def account(self) -> tuple[str, str | None]:
        """(URL, environment variable of the key). Models with one account share their provider's state."""
        return self.url, self.key_env

    def bill(self, usage: Any, estimate: Callable[[], Tokens] | None = None) -> Bill:
        """Return cost and counts of a call.

        Args:
            usage: usage block of the reply.
            estimate: function that returns the counts if the usage block has no sound ones. None gives such a
                call an empty bill.
        """
        tokens = tokens_of(usage)
        is_estimated = False
        if tokens is None and estimate is not None:
            tokens = estimate()
            is_estimated = True
        if tokens is None:
            return Bill()
        if self.free:
            return Bill(0.0, tokens, is_estimated=is_estimated)
        return Bill(
            tokens.cost(self.price),
            tokens,
            is_estimated=is_estimated,
            unpriced=tokens.unpriced(self.price),
        )

    def usd_of_tokens(self, tokens_in: float, tokens_out: float) -> float:
        """Cost in USD of a call with these numbers of tokens; 0 if the model is free or has no price."""
        if self.free:
            return 0.0
        return Tokens(tokens_in, tokens_out).cost(self.price) or 0.0

    def most_usd(self, request: ChatRequest) -> float:
        """Return the largest cost in USD that a call is assumed to have; 0 without a price.

        The input counts twice its estimated tokens. Each answer counts the most tokens that the request
        allows, thoughts included, or `MOST_OUTPUT` if it gives no limit. Both have the price of the dearest
        tier and kind of token. If the price has searches, each answer counts `ChatRequest.most_searches` of
        them.
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
        searches = answers * request.most_searches * (self.price.per_search or 0.0)
        return tokens + searches

    def sent_limit(self, request: ChatRequest) -> float | None:
        """Return the most tokens of an answer, thoughts included, by the limits that are sent to this model.

        Return None if no limit of the answer itself is sent. A limit in `params` replaces the limit of the
        request, and `drop` may leave out the limit of the request.
        """
        limit = self._set_limits.tokens
        if limit is None and request.output.field not in self.drop:
            limit = request.output.tokens
        if limit is None:
            return None
        return self._most_output(request, limit)

    def _most_output(self, request: ChatRequest, limit: float) -> float:
        """Return the most tokens of an answer, thoughts included, if the answer itself has at most `limit`.

        Thoughts are limited by the request or by `params`, and the larger of the two sums counts.
        """
        return max(request.output.most(limit), self._set_limits.most(limit))

    @cached_property
    def _set_limits(self) -> OutputLimits:
        """Limits that `params` set in every request to this model."""
        return OutputLimits.read(self.params)

    def body(self, body: Mapping[str, Any], name: str, limit_field: str | None = None) -> dict[str, Any]:
        """Return the body of a request as this model takes it: fields renamed and dropped, `params` set.

        Args:
            body: body of the client's request.
            name: the router's name of the model.
            limit_field: the one limit of output tokens that is sent, since money is reserved by it. None
                sends all of them. If `params` has a limit, none of the request's limits is sent.
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
        """Return the headers of a call: the API key, and Anthropic's version in the messages dialect."""
        if dialect == "messages":
            headers = {"anthropic-version": "2023-06-01"}
        else:
            headers = {}
        key = secret(self.key_env) if self.key_env else None
        if not key:
            return headers
        auth = self.auth or ("x-api-key" if dialect == "messages" else "bearer")
        if auth == "x-api-key":
            return {**headers, "x-api-key": key}
        return {**headers, "authorization": f"Bearer {key}"}

    def lacks(self, request: ChatRequest) -> str | None:
        """Return in words why the model cannot take a request, or None if it can."""
        abilities = request.abilities
        if request.dialect not in self.speaks:
            return f"does not speak {request.dialect}"
        for kind in MEDIUMS:
            if kind in abilities and kind not in self.input:
                return f"takes no {kind}"
        if "tools" in abilities and not self.tools:
            return "takes no tools"
        if "json_schema" in abilities and not self.json_schema:
            return "takes no JSON schema"
        tokens = request.tokens + (request.output.tokens or 0.0)
        if self.context is not None and tokens > self.context:
            return f"reads {self.context} tokens, the request has about {tokens:.0f}"
        return None


class BreakerSettings(Strict):
    """Settings of the breaker, which keeps a model out for a while after several failures."""

    failures: int = Field(3, ge=1, le=1000, description="Least number of failures in the window")
    window: float = Field(60.0, gt=0, le=3600, description="Seconds")
    cooldown: float = Field(
        10.0, ge=0, le=300, description="Seconds before a trial call; they double with each trial that fails"
    )


class Upstreams(Strict):
    """Content of an upstreams file.

    Attributes:
        models: {name of the router's model: its endpoint}.
        embeddings: {name: endpoint} of the models that answer /v1/embeddings.
        attempts: most models that are tried for one request, each with a decision of its own. None tries all.
        deadline: seconds for a request with all its attempts. A stream has to begin within them.
        breaker: settings of the breaker that keeps a failing model out.
    """

    models: dict[str, Upstream]
    embeddings: dict[str, Upstream] = Field(default_factory=dict)
    attempts: int | None = Field(None, ge=1, le=100)
    deadline: float = Field(120.0, gt=0, le=SECONDS_PER_DAY)
    breaker: BreakerSettings = BreakerSettings()

    @field_validator("embeddings")
    @classmethod
    def _check_embeddings(cls, value: dict[str, Upstream]) -> dict[str, Upstream]:
        """Refuse a model of embeddings that is to join the router."""
        for name, upstream in value.items():
            if upstream.joins_by is not None:
                raise ValueError(f"{name}.{upstream.joins_by}: no router chooses a model of embeddings")
        return value


def load_upstreams(path: str | Path) -> Upstreams:
    """Read an upstreams file, without a check against the environment or a router.

    Raises:
        RouterError: the file cannot be read, is no YAML or has invalid fields.
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
    """Read an upstreams file, and check that it has all models of a router and that their keys are set.

    Args:
        arms: names of the router's models.

    Raises:
        RouterError: the file cannot be read or is invalid, a model has no endpoint, or the environment
            variable of an API key is not set.
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
