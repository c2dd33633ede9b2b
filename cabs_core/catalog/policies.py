"""What follows from the records of the policies: names, families, labels, a table for SQL.

A policy is written `name` or `name@preset`. Dagster names allow letters, digits and `_` only, so the same
policy is called `name__preset` in asset keys. Nothing heavy is imported here: pool files are validated with it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache
from typing import Any

from cabs_core.catalog.builtin_policies import BUILT_IN
from cabs_core.catalog.plugins import records
from cabs_core.catalog.policy_record import PRESET_TEXT, PolicyRecord
from cabs_core.errors import PolicyError


@cache
def policies() -> Mapping[str, PolicyRecord]:
    """{name: record} of every policy: built-in ones in the order of reports, then plug-ins (`cabs.policies`)."""
    return records("cabs.policies", BUILT_IN)


@cache
def families() -> Mapping[str, tuple[str, ...]]:
    """{family: names of its policies}."""
    found: dict[str, tuple[str, ...]] = {}
    for record in policies().values():
        found[record.family] = (*found.get(record.family, ()), record.name)
    return found


@cache
def _aliases() -> Mapping[str, str]:
    return {alias: record.name for record in policies().values() for alias in record.aliases}


def current_name(name: str) -> str:
    """The name with an alias replaced: `kernel` -> `kernel_ridge`; any other text, with its preset, as it is.

    A predictor that has a policy's name has the same aliases.
    """
    base, separator, preset = str(name).partition("@")
    return f"{_aliases().get(base, base)}{separator}{preset}"


def policy_record(name: str) -> PolicyRecord:
    """Record of `name` or `name@preset`. Raises PolicyError for unknown names."""
    return policies()[split_name(name)[0]]


def split_name(name: str) -> tuple[str, str]:
    """`'cabs_d_linear@literal'` -> `('cabs_d_linear', 'literal')`; without a preset, the policy's default one.

    Raises:
        PolicyError: unknown policy or preset; the known ones are listed.
    """
    base, _, preset = current_name(name).partition("@")
    known = policies()
    if base not in known:
        close = difflib.get_close_matches(base, known, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise PolicyError(f"unknown policy {name!r}.{hint} Known policies: {', '.join(known)}.")
    presets = known[base].presets
    if "@" in str(name) and preset not in presets:
        raise PolicyError(f"policy {base!r} has no preset {preset!r}; it has: {', '.join(presets)}.")
    return base, preset or presets[0]


def check_policy_name(name: str) -> str:
    """The name of a policy (and preset) that exists, with an alias replaced; raises PolicyError otherwise."""
    split_name(name)
    return current_name(name)


def asset_name(name: str) -> str:
    """Name of the policy in asset keys and folders: `cabs_d_linear@literal` -> `cabs_d_linear__literal`."""
    return check_policy_name(name).replace("@", "__")


def all_policies() -> list[str]:
    """Every `name` and every `name@preset` that is not the policy's default, in the order of the records."""
    return [
        f"{record.name}@{preset}" if i else record.name
        for record in policies().values()
        for i, preset in enumerate(record.presets)
    ]


def random_key(name: str) -> str:
    """The text that a policy's random streams are keyed by: its name, or the one it had before it was renamed."""
    record = policy_record(name)
    _, separator, preset = str(name).partition("@")
    return f"{record.random_key or record.name}{separator}{preset}"


def policy_label(name: str) -> str:
    """`cabs_d_linear@literal` -> `CABS-D linear (literal)`; names that are not in the catalog stay as they are."""
    base, _, preset = current_name(name).partition("@")
    record = policies().get(base)
    return (record.title if record else base) + (f" ({preset})" if preset else "")


def policy_description(name: str) -> str:
    """One sentence on a policy (and its preset, where the name says it) for the asset catalogue."""
    base, preset = split_name(name)
    text = f"Replay of {policies()[base].description}"
    if "@" not in name:
        return text
    return f"{text} Preset `{preset}`: {PRESET_TEXT.get(preset, 'see the policy')}."


def policy_table() -> list[dict[str, Any]]:
    """One row per policy and preset, for the SQL source `catalog.policies`; aliases too, for old results."""
    return [
        {
            "base_policy": name,
            "preset": preset,
            "family": record.family,
            "kind": record.kind,
            "start": record.starts_from(preset),
            "title": policy_label(f"{record.name}@{preset}" if i else record.name),
        }
        for record in policies().values()
        for name in (record.name, *record.aliases)
        for i, preset in enumerate(record.presets)
    ]
