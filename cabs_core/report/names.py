"""How policies are written and drawn: labels, order, colours."""

from __future__ import annotations

_LABELS = {
    "random": "Random",
    "best_single": "Best single model",
    "oracle_best": "Best arm per query",
    "knn": "kNN",
    "ridge": "Ridge",
    "carrot": "CARROT",
    "kernel": "Kernel",
    "epsilon_greedy": "ε-greedy",
    "square_cb": "SquareCB",
    "lin_ucb": "LinUCB",
    "lin_ts": "LinTS",
    "lin_ucb_full": "LinUCB, full feedback",
    "neural_ucb": "NeuralUCB",
    "neural_ucb_full": "NeuralUCB, full feedback",
    "cabs_c_linear": "CABS-C linear",
    "cabs_d_linear": "CABS-D linear",
    "cabs_c_neural": "CABS-C neural",
    "cabs_d_neural": "CABS-D neural",
    "cabs_mix": "CABS-mix",
    "hier_mix": "Hier-mix",
}
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
    "kernel": (3, ""),
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

#: stress condition -> (short name, what it does), in words
_CONDITIONS = {
    "task_shift": ("new tasks", "half of the tasks appear in the routed queries only, none of them offline"),
    "severe_shift": (
        "another kind of task",
        "the routed queries are tasks of another kind than all offline data",
    ),
    "corrupted_oracle": (
        "reversed offline labels",
        "offline labels were exchanged between the models so that the best looks worst, and so on",
    ),
    "noisy_oracle": (
        "noisy offline labels",
        "3 in 10 offline labels of every model were exchanged at random",
    ),
    "drift": (
        "drift",
        "the mix of tasks moves from one half of the tasks to the other in the course of every order",
    ),
    "arms_arrive": (
        "models arrive",
        "the third of the models that looks best offline can be played from the middle of every order on only",
    ),
    "arms_disappear": (
        "models disappear",
        "the third of the models that looks best offline cannot be played any more from the middle of every order on",
    ),
    "delayed_rewards": ("delayed rewards", "rewards come 1 to 200 rounds late, and 1 in 10 never"),
}


def condition_name(condition: str | None) -> str:
    """`delayed_rewards` -> `delayed rewards`; empty for no stress condition."""
    if not condition or condition == "none":
        return ""
    return _CONDITIONS.get(condition, (condition,))[0]


def condition_text(condition: str | None) -> str:
    """`Stress test, delayed rewards: rewards come ...`; empty for no stress condition."""
    name = condition_name(condition)
    if not name:
        return ""
    says = _CONDITIONS.get(str(condition), ("", ""))[1]
    return f"Stress test, {name}: {says}" if says else f"Stress test, {name}"


def label(policy: str) -> str:
    """`cabs_d_linear@literal` -> `CABS-D linear (literal)`."""
    base, _, preset = str(policy).partition("@")
    return _LABELS.get(base, base) + (f" ({preset})" if preset else "")


def encoder_label(encoder: str) -> str:
    """`all-MiniLM-L6-v2` -> `MiniLM`; names without a short form stay."""
    short = {
        "all-MiniLM-L6-v2": "MiniLM",
        "tfidf-svd": "TF-IDF + SVD",
        "microsoft/mdeberta-v3-base": "mDeBERTa",
    }
    return short.get(encoder, encoder)


def style(policy: str) -> tuple[int, str]:
    """(palette colour 0..9, SVG dash pattern)."""
    base, _, preset = str(policy).partition("@")
    colour, dash = _STYLE.get(base, (sum(map(ord, base)) % 10, ""))
    return colour, {"literal": "2 3", "tuned": "6 3", "warm": "10 3"}.get(preset, dash)


def headline(policies: list[str], best: str, reference: str) -> set[str]:
    """Those of `policies` that plots show from the start; readers switch on the others."""
    return {p for p in policies if p in _HEADLINE or p in (best, reference)}
