"""How policies are written and drawn: labels, order, colours."""

from collections.abc import Iterable, Sequence

from cabs_core.base.catalog.conditions import CONDITIONS
from cabs_core.base.catalog.encoders import encoder_record
from cabs_core.base.catalog.policies import policies, policy_description, policy_label
from cabs_core.report.plots.theme import SHAPES, Style

#: labels of the cost regimes, where readers choose one
LEVEL_NAMES = {"overall": "Mean of the regimes", "low": "Low ρ", "medium": "Medium ρ", "high": "High ρ"}


def condition_name(condition: str | None) -> str:
    """`delayed_rewards` -> `delayed rewards`; empty for no stress condition."""
    if not condition or condition == "none":
        return ""
    return CONDITIONS[condition].title if condition in CONDITIONS else condition


def condition_text(condition: str | None) -> str:
    """`Stress test, delayed rewards: rewards come ...`; empty for no stress condition."""
    name = condition_name(condition)
    if not name:
        return ""
    says = CONDITIONS[str(condition)].description if condition in CONDITIONS else ""
    return f"Stress test, {name}: {says}" if says else f"Stress test, {name}"


#: `cabs_d_linear@literal` -> `CABS-D linear (literal)`
label = policy_label


def says(policy: str) -> str:
    """One line about a policy, from the catalog."""
    text = policy_description(policy).removeprefix("Replay of ").replace("`", "")
    return text[:1].upper() + text[1:]


def encoder_label(encoder: str) -> str:
    """`all-MiniLM-L6-v2` -> `MiniLM`; names without a short form stay."""
    record = encoder_record(encoder)
    return (record.label if record else "") or encoder


def style(policy: str) -> Style:
    """Colour, dash and symbol of a policy."""
    base, _, preset = policy.partition("@")
    number, record = sum(map(ord, base)), policies().get(base)
    colour, dash, shape = (record and record.style) or (number % 10, "", number % len(SHAPES))
    return Style(colour, {"literal": "2 3", "tuned": "6 3", "warm": "10 3"}.get(preset, dash), SHAPES[shape])


def headline(names: Sequence[str], best: str, reference: str) -> set[str]:
    """Those of the policies that plots show from the start; readers switch on the others."""
    return {p for p in names if p in (best, reference) or (p in policies() and policies()[p].headline)}


def with_experts(names: Iterable[str]) -> list[str]:
    """Those of the policies that mix other policies, each followed by its experts."""
    return [
        x for p in names if p in policies() and policies()[p].experts for x in (p, *policies()[p].experts)
    ]
