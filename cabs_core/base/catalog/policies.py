"""Names, families, labels and a table for SQL, which follow from the records of the policies.

A policy is written `name` or `name@preset`, and with options `name@option=value` or
`name@preset@option=value`. In names of folders these are `name__preset` and `name__option-value`. Pool files
are validated with this module, so it imports no policy.
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

#: an option in a policy's name, with a number or a word as value
_OPTION = re.compile(r"([a-z][a-z0-9_]*)=(-?[0-9.]+(?:e-?[0-9]+)?|[A-Za-z][A-Za-z0-9_-]*)")
_WORDS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None}


@cache
def policies() -> Mapping[str, PolicyRecord]:
    """Return `{name: record}`: built-in policies in the order of reports, then those of other packages."""
    return records("cabs.policies", BUILT_IN)


@cache
def families() -> Mapping[str, tuple[str, ...]]:
    """Return `{family: names of its policies}`."""
    by_family: dict[str, tuple[str, ...]] = {}
    for record in policies().values():
        by_family[record.family] = (*by_family.get(record.family, ()), record.name)
    return by_family


def canonical_name(name: str) -> str:
    """Return the name with its options sorted and their values in one form.

    Names with equal options become equal: `lin_ucb@beta=1@alpha=2.0` becomes `lin_ucb@alpha=2@beta=1`. The
    name is not checked.
    """
    return with_options(*name_and_options(name))


def name_and_options(name: str) -> tuple[str, dict[str, Any]]:
    """Split options from a name: `('lin_ucb@warm', {'alpha': 2})` for `'lin_ucb@warm@alpha=2'`.

    Parts that are no option, or repeat one, stay in the name.
    """
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
    """Append options to a name: `'lin_ucb@alpha=2'` for `('lin_ucb', {'alpha': 2.0})`.

    Options are sorted, and whole numbers below 1e15 have no decimals, so that equal options give equal names.
    An int and a float that are equal and at least 1e15 give two names.
    """
    return "@".join([name, *(f"{key}={_option_text(options[key])}" for key in sorted(options))])


def _value(text: str) -> Any:
    """Read the value of an option: a whole number, a number, true, false, null or a word."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return _WORDS.get(text, text)


def _option_text(value: Any) -> str:
    """Write the value of an option as text.

    Whole numbers below 1e15 have no decimals: 2 and 2.0 are both `2`. True, False and None are `true`,
    `false` and `null`.
    """
    for word, meant in _WORDS.items():
        if value is meant:
            return word
    if isinstance(value, float):
        if value.is_integer() and abs(value) < 1e15:
            value = int(value)
        else:
            value = repr(value).replace("+", "")
    return str(value)


def policy_record(name: str) -> PolicyRecord:
    """Return the record of the policy that a name means, with or without preset and options.

    Raises:
        PolicyError: as in `split_name`.
    """
    return policies()[split_name(name)[0]]


def is_deployable(name: str) -> bool:
    """Return True if a policy can decide from a text alone, and learn from the answer of one model.

    A policy with feedback `full` cannot. Every policy that needs outcomes before it plays has that feedback,
    which `check_policy` tests.

    Raises:
        PolicyError: as in `split_name`.
    """
    return policy_record(name).feedback != "full"


def split_name(name: str) -> tuple[str, str]:
    """Split a name into policy and preset: `('cabs_d_linear', 'literal')` for `'cabs_d_linear@literal'`.

    A name without preset gets the default preset. Options are left out; their form is checked, but not
    their names and values.

    Raises:
        PolicyError: the policy or the preset is unknown (the message lists the known ones), or an option is
            malformed or stands twice.
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
    """Return the canonical name of a policy, checked as by `split_name`.

    Raises:
        PolicyError: the policy or the preset is unknown, or an option is malformed or stands twice.
    """
    split_name(name)
    return canonical_name(name)


def asset_name(name: str) -> str:
    """Name of the policy in paths: `cabs_d_linear__literal` for `cabs_d_linear@literal`.

    The name is made canonical first (`canonical_name`). Options have `-` in place of `=`, which DuckDB would
    read as a column of a partitioned table.

    Raises:
        PolicyError: as in `split_name`.
    """
    return check_policy_name(name).replace("@", "__").replace("=", "-")


def all_policies() -> list[str]:
    """List every policy with its default preset as `name`, and with each other preset as `name@preset`."""
    return [
        f"{record.name}@{preset}" if i else record.name
        for record in policies().values()
        for i, preset in enumerate(record.presets)
    ]


def random_key(name: str) -> str:
    """Text that keys a policy's random streams: its name and preset without options.

    Two values of an option thus have the same random numbers and differ in the option alone.
    """
    return name_and_options(name)[0]


def policy_label(name: str) -> str:
    """Name of a policy in reports: `CABS-D linear (literal)` for `cabs_d_linear@literal`.

    A policy outside the catalog keeps its name as title: `other (warm)` for `other@warm`. Options follow the
    preset in the brackets: `LinUCB (warm, alpha 2)`. The name is not checked.
    """
    plain, options = name_and_options(name)
    base, _, preset = plain.partition("@")
    record = policies().get(base)
    title = record.title if record else base
    notes = [preset] if preset else []
    notes += [f"{key} {_option_text(value)}" for key, value in options.items()]
    if notes:
        return f"{title} ({', '.join(notes)})"
    return title


def policy_description(name: str) -> str:
    """Describe a policy for the asset catalogue, with its preset if the name has one, without its options.

    Raises:
        PolicyError: as in `split_name`.
    """
    base, preset = split_name(name)
    text = f"Replay of {policies()[base].description}"
    if "@" not in name_and_options(name)[0]:
        return text
    return f"{text} Preset `{preset}`: {PRESET_TEXT.get(preset, 'see the policy')}."


def policy_table() -> list[dict[str, Any]]:
    """Return one row for each policy and preset, for the SQL source `catalog.policies`.

    A row has the family, the kind, the start and the title.
    """
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
