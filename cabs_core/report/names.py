"""Names and looks of policies, encoders and stress conditions in pages: labels, descriptions, colours."""

import itertools
from collections.abc import Iterable, Sequence

from cabs_core.base.catalog.conditions import CONDITIONS
from cabs_core.base.catalog.encoders import encoder_record
from cabs_core.base.catalog.policies import policies, policy_description, policy_label
from cabs_core.report.plots.theme import SHAPES, Style

#: labels of the cost regimes, where readers choose one
LEVEL_NAMES = {"overall": "Mean of the regimes", "low": "Low ρ", "medium": "Medium ρ", "high": "High ρ"}

#: dashes of the presets that several policies have, and dashes of other presets by their place
_DASHES = {"literal": "2 3", "tuned": "6 3", "warm": "10 3"}
_FURTHER_DASHES = ("8 3 2 3", "12 3 2 3 2 3")


def condition_name(condition: str | None) -> str:
    """Return the title of a stress condition, such as `delayed rewards`; empty if there is none.

    A name that the catalog does not have is returned as it is.
    """
    if not condition or condition == "none":
        return ""
    if condition in CONDITIONS:
        return CONDITIONS[condition].title
    return condition


def condition_text(condition: str | None) -> str:
    """Return a stress condition in a sentence, such as `Stress test, delayed rewards: rewards come ...`.

    Empty if there is no stress condition.
    """
    name = condition_name(condition)
    if not name:
        return ""
    if condition in CONDITIONS:
        description = CONDITIONS[str(condition)].description
    else:
        description = ""
    if not description:
        return f"Stress test, {name}"
    return f"Stress test, {name}: {description}"


#: function that returns the label of a policy: `CABS-D linear (literal)` for `cabs_d_linear@literal`
label = policy_label


def description_of(policy: str) -> str:
    """Return the description of a policy in the catalog, as one line without code marks.

    If the name has a preset, a sentence about the preset follows.

    Raises:
        PolicyError: the policy or the preset is unknown, or an option is malformed or stands twice.
    """
    text = policy_description(policy).removeprefix("Replay of ").replace("`", "")
    return text[:1].upper() + text[1:]


def encoder_label(encoder: str) -> str:
    """Return the short name of an encoder, such as `MiniLM`, or its full name if it has no short one."""
    record = encoder_record(encoder)
    if record is None or not record.label:
        return encoder
    return record.label


def style(policy: str) -> Style:
    """Return colour, dash and symbol of a policy.

    The catalog gives them. A policy without a style there gets one from the letters of its name, so that it
    looks the same on every page. Every preset but the default has dashes of its own, unless options follow
    the preset. Options change nothing.
    """
    base, _, preset = policy.partition("@")
    record = policies().get(base)
    number = sum(map(ord, base))
    drawn = (number % 10, "", number % len(SHAPES))
    if record is not None and record.style:
        drawn = record.style
    colour, dash, shape = drawn
    if record is not None and preset in record.presets[1:]:
        further = [name for name in record.presets[1:] if name not in _DASHES]
        dashes = _DASHES | dict(zip(further, itertools.cycle(_FURTHER_DASHES), strict=False))
        dash = dashes[preset]
    return Style(colour, dash, SHAPES[shape])


def policies_shown_first(names: Sequence[str], best: str, reference: str) -> set[str]:
    """Return the policies whose lines a plot shows at first. A reader can switch on the others.

    These are `best`, `reference` and the policies that the catalog marks as headlines, so far as `names` has
    them.
    """
    return {p for p in names if p in (best, reference) or (p in policies() and policies()[p].headline)}


def with_experts(names: Iterable[str]) -> list[str]:
    """Return the policies among `names` that mix other policies, each followed by the policies that it mixes.

    Policies that mix none are left out.
    """
    found = []
    for name in names:
        if name in policies() and policies()[name].experts:
            found += [name, *policies()[name].experts]
    return found
