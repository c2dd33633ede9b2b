"""The model pool: which models are routed, on which data, and how policies are replayed.

A pool is one YAML file. It describes a table, a log, or prompts to collect, as the kind of its source says.
Each of the three has a model of pydantic, so that a field that means nothing for a kind cannot be written.
Every field is validated. An unknown field is an error, because a misspelt option that is silently ignored is
worse than a crash.
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

#: fields that decide which outcomes a pool has. No kind of pool has all of them
OUTCOME_FIELDS = (
    *("source", "models", "later_models", "tasks", "score_range", "missing"),
    *("prices", "cost_per_call", "rescale_mean_cost", "rescale_grand_mean_cost"),
)


def pool_class(kind: Any) -> type[TablePool] | type[LogPool] | type[PromptsPool]:
    """Return the pydantic model of pool files with this kind of source. An unknown kind counts as a table."""
    if kind == "logs":
        return LogPool
    if kind == "collect":
        return PromptsPool
    return TablePool


def source_class(kind: Any) -> type[Strict]:
    """Return the pydantic model of the section `source` of this kind.

    Kinds other than `logs` and `collect` are those of tables (`table_source_class`). An unknown kind has the
    model for sources of other packages, which refuses a kind that no package registers.
    """
    if kind == "logs":
        return LogSource
    if kind == "collect":
        return PromptSource
    return table_source_class(kind)


def kind_of_source(settings: Any) -> Any:
    """Return `source.kind` of a pool's settings, or None if the settings name no kind.

    Args:
        settings: a mapping from a file, or a pool.
    """
    if not isinstance(settings, Mapping):
        return getattr(getattr(settings, "source", None), "kind", None)
    source = settings.get("source")
    if isinstance(source, Mapping):
        return source.get("kind")
    return getattr(source, "kind", None)


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
    """Return nested mappings as one mapping with dotted names, such as {'replay.trials': 10}.

    An empty mapping counts as a value, and so does anything that is no mapping.

    Args:
        value: a mapping, or a value, which is returned as {prefix: value}.
        prefix: dotted name of `value`, with which all names of its fields begin.
    """
    if not isinstance(value, dict) or not value:
        return {prefix: value}
    fields: dict[str, Any] = {}
    for name, item in value.items():
        dotted_name = f"{prefix}.{name}" if prefix else str(name)
        fields |= flatten(item, dotted_name)
    return fields
