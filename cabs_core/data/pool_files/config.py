"""The model pool: what is routed, on which data, and how it is replayed.

A pool is one YAML file. It describes a table, a log, or prompts to collect, as the kind of its source says:
three models of pydantic, so that a field that means nothing for a kind cannot be written. Every field is
validated; an unknown field is an error, because a misspelt option that is silently ignored is worse than a
crash.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import Discriminator, Tag, TypeAdapter

from cabs_core.data.pool_files.log import LogPool, LogSource
from cabs_core.data.pool_files.prompts import PromptSource, PromptsPool
from cabs_core.data.pool_files.strict import Strict
from cabs_core.data.pool_files.table import TablePool, table_source_class

ModelPool: TypeAlias = TablePool | LogPool | PromptsPool

#: fields that say which outcomes a pool has; no kind of pool has all of them
OUTCOME_FIELDS = (
    *("source", "models", "later_models", "tasks", "score_range", "missing"),
    *("prices", "cost_per_call", "rescale_mean_cost", "rescale_grand_mean_cost"),
)


def pool_class(kind: Any) -> type[TablePool] | type[LogPool] | type[PromptsPool]:
    """Return the model of a pool file by the kind of its source."""
    if kind == "logs":
        return LogPool
    if kind == "collect":
        return PromptsPool
    return TablePool


def source_class(kind: Any) -> type[Strict]:
    """Return the model of `source` in a pool file by its kind."""
    if kind == "logs":
        return LogSource
    if kind == "collect":
        return PromptSource
    return table_source_class(kind)


def kind_of_source(settings: Any) -> Any:
    """Return `source.kind` of a pool's settings, or None if they have none."""
    if not isinstance(settings, Mapping):
        return getattr(getattr(settings, "source", None), "kind", None)
    source = settings.get("source")
    return source.get("kind") if isinstance(source, Mapping) else getattr(source, "kind", None)


_POOL: TypeAdapter[ModelPool] = TypeAdapter(
    Annotated[
        Annotated[TablePool, Tag("TablePool")]
        | Annotated[LogPool, Tag("LogPool")]
        | Annotated[PromptsPool, Tag("PromptsPool")],
        Discriminator(lambda settings: pool_class(kind_of_source(settings)).__name__),
    ]
)


def pool_from(settings: Mapping[str, Any]) -> ModelPool:
    """Return the pool that these settings describe.

    Raises:
        pydantic.ValidationError: a field is unknown, missing or wrong. Each place begins with the name of
            the pool's class.
        PoolError: the pool's name cannot be used.
    """
    return _POOL.validate_python(settings)


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one level with dotted names; empty mappings stay."""
    if not isinstance(value, dict) or not value:
        return {prefix: value}
    fields: dict[str, Any] = {}
    for name, item in value.items():
        fields |= flatten(item, f"{prefix}.{name}" if prefix else str(name))
    return fields
