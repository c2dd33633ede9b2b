"""How policies are written and drawn: labels, order, colours."""

from __future__ import annotations

from cabs_core.catalog import CONDITIONS, current_name, encoder_record, policy_description, policy_label
from cabs_core.plots.theme import SHAPES, Style

#: (colour number of the palette in style.css, dash pattern) by policy
_STYLE = {
    "hier_mix": (1, ""),
    "cabs_mix": (4, ""),
    "cabs_d_linear": (0, ""),
    "cabs_c_linear": (5, ""),
    "cabs_d_neural": (6, ""),
    "cabs_c_neural": (3, "6 3"),
    "lin_ucb": (8, ""),
    "lin_ts": (2, ""),
    "epsilon_greedy": (7, ""),
    "square_cb": (6, "6 3"),
    "neural_ucb": (7, "6 3"),
    "kernel_ridge": (3, ""),
    "ridge": (2, "6 3"),
    "carrot": (4, "6 3"),
    "knn": (5, "6 3"),
    "best_single": (9, "6 3"),
    "random": (8, "2 3"),
    "lin_ucb_full": (9, "2 3"),
    "neural_ucb_full": (0, "2 3"),
    "oracle_best": (9, "8 3 2 3"),
}
_HEADLINE = (
    "hier_mix", "cabs_mix", "cabs_d_linear", "cabs_c_linear", "cabs_d_neural", "cabs_c_neural", "lin_ucb", "lin_ts",
    "epsilon_greedy", "lin_ucb_full",
)  # fmt: skip
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
    base, _, preset = current_name(policy).partition("@")
    number = sum(map(ord, base))
    colour, dash = _STYLE.get(base, (number % 10, ""))
    shape = SHAPES[(list(_STYLE).index(base) if base in _STYLE else number) % len(SHAPES)]
    return Style(colour, {"literal": "2 3", "tuned": "6 3", "warm": "10 3"}.get(preset, dash), shape)


def headline(policies: list[str], best: str, reference: str) -> set[str]:
    """Those of `policies` that plots show from the start; readers switch on the others."""
    return {p for p in policies if p in _HEADLINE or p in (best, reference)}
