"""Resources of a step put together once.

Dagster makes two classes for every output of a step, so that code can write `context.resources.name`: the same two
each time. Here what was built last for the same resources is given again.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from dagster._core.definitions.scoped_resources_builder import Resources, ScopedResourcesBuilder

_build = ScopedResourcesBuilder.build
#: The resources of the run that asked last, and what was built of them: {names: built}.
_last: tuple[Mapping[str, object], dict[Any, Resources]] = ({}, {})


def install() -> None:
    """From now on, resources are put together this way. Calling it again does nothing."""
    ScopedResourcesBuilder.build = _build_once


def _build_once(self: ScopedResourcesBuilder, required_resource_keys: Set[str] | None) -> Resources:
    global _last
    resources, built = _last
    if resources is not self.resource_instance_dict:
        resources, built = _last = (self.resource_instance_dict, {})
    names = (self.contains_generator, frozenset(required_resource_keys or ()))
    if names not in built:
        built[names] = _build(self, required_resource_keys)
    return built[names]
