"""Where each model is called: a YAML file. API keys come from the environment and are never in it.

    models:
      gpt-4o: {url: https://api.openai.com/v1, model: gpt-4o-2024-08-06, key_env: OPENAI_API_KEY,
               price: {input: 2.5, output: 10}}
      local:  {url: http://127.0.0.1:8000/v1, free: true}

The names are the router's models; `model` is what the upstream calls it (default: the same).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from cabs_core.errors import RouterError
from cabs_core.pool_files.config import Price


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Upstream(_Strict):
    """One model's endpoint."""

    url: str = Field(description="Base URL of an OpenAI-compatible API; /chat/completions is called below it")
    model: str | None = Field(None, description="The upstream's name of the model; default: the router's")
    key_env: str | None = Field(None, description="Environment variable that holds the API key")
    timeout: float = Field(60.0, gt=0, le=3600, description="Seconds to the first byte, and between bytes")
    price: Price | None = Field(
        None, description="USD per one million tokens, for the cost of a call by its usage"
    )
    free: bool = Field(False, description="Calls cost nothing")

    @field_validator("url")
    @classmethod
    def _http(cls, value: str) -> str:
        if not value.startswith(("http://", "https://")) or "@" in value.split("/")[2]:
            raise ValueError("expected http:// or https:// without user and password (see key_env)")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _one_price(self) -> Upstream:
        if self.free and self.price is not None:
            raise ValueError("give price or free, not both")
        return self

    def key(self) -> str | None:
        """The API key, from the environment."""
        return os.environ.get(self.key_env) if self.key_env else None

    def cost(self, usage: Mapping[str, Any] | None) -> float | None:
        """USD of a call by its token counts; None where they or the price are unknown."""
        if self.free:
            return 0.0
        if self.price is None or not isinstance(usage, Mapping):
            return None
        try:
            tokens = float(usage["prompt_tokens"]), float(usage.get("completion_tokens") or 0)
        except (KeyError, TypeError, ValueError):
            return None
        return (tokens[0] * self.price.input + tokens[1] * self.price.output) / 1e6


class Upstreams(_Strict):
    """The upstreams file.

    Attributes:
        models: {the router's model: its endpoint}.
        attempts: most models tried for a request, each as a decision of its own.
        cooldown: seconds for which a model that failed is not chosen.
    """

    models: dict[str, Upstream]
    attempts: int = Field(2, ge=1, le=10)
    cooldown: float = Field(10.0, ge=0)


def load_upstreams(path: str | Path) -> Upstreams:
    """Read the file.

    Raises:
        RouterError: it cannot be read or is invalid.
    """
    path = Path(path)
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        return Upstreams.model_validate(data)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RouterError(f"{path} cannot be read as YAML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(p) for p in first["loc"]) or "(top level)"
        raise RouterError(f"{path}: {place}: {first['msg']} (found {first.get('input')!r:.100})") from None


def read_upstreams(path: str | Path, arms: Sequence[str]) -> Upstreams:
    """Read and check the file for a router's models.

    Raises:
        RouterError: the file cannot be read or is invalid, a model has no endpoint, or an API key is not in the
            environment.
    """
    found = load_upstreams(path)
    missing = [arm for arm in arms if arm not in found.models]
    if missing:
        raise RouterError(
            f"{path}: models lacks {missing[0]!r}, which the router chooses; it has {list(found.models)}"
        )
    for name, upstream in found.models.items():
        if upstream.key_env and not upstream.key():
            raise RouterError(
                f"{path}: models.{name}.key_env is {upstream.key_env}, which is not set in the environment"
            )
    return found
