"""What follows from the records of the policies: names, families, labels, a table for SQL.

A policy is written `name` or `name@preset`, with options of its own `name@option=value` or
`name@preset@option=value`. In folders it is `name__preset` and `name__option-value`. Nothing heavy is
imported here: pool files are validated with it.
"""

import difflib
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from cabs_core.base.catalog.builtin_policies import BUILT_IN
from cabs_core.base.catalog.plugins import records
from cabs_core.base.catalog.policy_record import PRESET_TEXT, PolicyRecord
from cabs_core.base.errors import PolicyError

#: an option and its value in a policy's name: a number, or a word
_OPTION = re.compile(r"([a-z][a-z0-9_]*)=(-?[0-9.]+(?:e-?[0-9]+)?|[A-Za-z][A-Za-z0-9_-]*)")
_WORDS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None}


@cache
def policies() -> Mapping[str, PolicyRecord]:
    """{name: record} of every policy: built-in ones as in reports, then plug-ins (`cabs.policies`)."""
    return records("cabs.policies", BUILT_IN)


@cache
def families() -> Mapping[str, tuple[str, ...]]:
    """{family: names of its policies}."""
    by_family: dict[str, tuple[str, ...]] = {}
    for record in policies().values():
        by_family[record.family] = (*by_family.get(record.family, ()), record.name)
    return by_family


def canonical_name(name: str) -> str:
    """One text for equal options: `lin_ucb@beta=1@alpha=2.0` -> `lin_ucb@alpha=2@beta=1`; others stay."""
    return with_options(*name_and_options(name))


def name_and_options(name: str) -> tuple[str, dict[str, Any]]:
    """`'lin_ucb@warm@alpha=2'` -> `('lin_ucb@warm', {'alpha': 2})`. What cannot be read stays in the name."""
    plain: list[str] = []
    options: dict[str, Any] = {}
    for part in str(name).split("@"):
        option = _OPTION.fullmatch(part)
        if option and plain and option[1] not in options:
            options[option[1]] = _value(option[2])
        else:
            plain.append(part)
    return "@".join(plain), options


def with_options(name: str, options: Mapping[str, Any]) -> str:
    """`('lin_ucb', {'alpha': 2.0})` -> `'lin_ucb@alpha=2'`: one text for equal options."""
    return "@".join([name, *(f"{key}={_option_text(options[key])}" for key in sorted(options))])


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return _WORDS.get(text, text)


def _option_text(value: Any) -> str:
    for word, meant in _WORDS.items():
        if value is meant:
            return word
    if isinstance(value, float):
        value = int(value) if value.is_integer() and abs(value) < 1e15 else repr(value).replace("+", "")
    return str(value)


def policy_record(name: str) -> PolicyRecord:
    """Record of a name, with or without preset and options. Raises PolicyError for unknown names."""
    return policies()[split_name(name)[0]]


def split_name(name: str) -> tuple[str, str]:
    """`'cabs_d_linear@literal'` -> `('cabs_d_linear', 'literal')`; without one, the default.

    Options in the name are left out (`name_and_options`); whether they exist says its class.

    Raises:
        PolicyError: unknown policy or preset; the known ones are listed.
    """
    plain, _ = name_and_options(name)
    if "=" in plain:
        raise PolicyError(
            f"policy {name!r:.200}: expected name@option=value or name@preset@option=value, each option "
            "once, the value a number or a word of letters, digits, _ and -, such as lin_ucb@alpha=2"
        )
    base, _, preset = plain.partition("@")
    known = policies()
    if base not in known:
        close = difflib.get_close_matches(base, known, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise PolicyError(f"unknown policy {name!r}.{hint} Known policies: {', '.join(known)}.")
    presets = known[base].presets
    if "@" in plain and preset not in presets:
        raise PolicyError(f"policy {base!r} has no preset {preset!r}; it has: {', '.join(presets)}.")
    return base, preset or presets[0]


def check_policy_name(name: str) -> str:
    """The canonical name of a policy (and preset) that exists; raises PolicyError otherwise."""
    split_name(name)
    return canonical_name(name)


def asset_name(name: str) -> str:
    """Name of the policy in folders: `cabs_d_linear@literal` -> `cabs_d_linear__literal`.

    Options have `-` for `=`, which DuckDB would read as a column of a partitioned table.
    """
    return check_policy_name(name).replace("@", "__").replace("=", "-")


def all_policies() -> list[str]:
    """Every `name` and every `name@preset` that is not the policy's default, in the order of the records."""
    return [
        f"{record.name}@{preset}" if i else record.name
        for record in policies().values()
        for i, preset in enumerate(record.presets)
    ]


def random_key(name: str) -> str:
    """The text that a policy's random streams are keyed by: its name and preset.

    Without options: what differs between two values of an option is then the option alone.
    """
    return name_and_options(name)[0]


def policy_label(name: str) -> str:
    """`cabs_d_linear@literal` -> `CABS-D linear (literal)`; names outside the catalog stay as they are."""
    plain, options = name_and_options(name)
    base, _, preset = plain.partition("@")
    record = policies().get(base)
    notes = [*filter(None, [preset]), *(f"{key} {_option_text(value)}" for key, value in options.items())]
    return (record.title if record else base) + (f" ({', '.join(notes)})" if notes else "")


def policy_description(name: str) -> str:
    """One sentence on a policy (and its preset, where the name says it) for the asset catalogue."""
    base, preset = split_name(name)
    text = f"Replay of {policies()[base].description}"
    if "@" not in name_and_options(name)[0]:
        return text
    return f"{text} Preset `{preset}`: {PRESET_TEXT.get(preset, 'see the policy')}."


def policy_table() -> list[dict[str, Any]]:
    """One row per policy and preset, for the SQL source `catalog.policies`."""
    return [
        {
            "base_policy": record.name,
            "preset": preset,
            "family": record.family,
            "kind": record.kind,
            "start": record.starts_from(preset),
            "title": policy_label(f"{record.name}@{preset}" if i else record.name),
        }
        for record in policies().values()
        for i, preset in enumerate(record.presets)
    ]
