"""Names of all policies and presets. No heavy imports, so that pool files can be validated at load time.

A policy is written `name` or `name@preset`. Dagster names allow letters, digits and `_` only, so the same
policy is called `name__preset` in asset keys.
"""

from __future__ import annotations

import difflib

from cabs_core.errors import PolicyError

STATIC = ("random", "best_single", "oracle_best", "knn", "ridge", "carrot", "kernel")
BANDIT = ("epsilon_greedy", "square_cb", "lin_ucb", "lin_ts", "lin_ucb_full")
CABS = ("cabs_c_linear", "cabs_d_linear")
MIX = ("cabs_mix", "hier_mix")
NEURAL = ("neural_ucb", "neural_ucb_full", "cabs_c_neural", "cabs_d_neural")
FAMILIES = {"static": STATIC, "bandit": BANDIT, "cabs": CABS, "mix": MIX, "neural": NEURAL}
POLICY_NAMES = STATIC + BANDIT + CABS + MIX + NEURAL

_CABS_PRESETS = ("paper", "literal", "tuned", "published")
#: presets by policy, the default first
PRESETS: dict[str, tuple[str, ...]] = {
    "knn": ("default", "literal"),
    **dict.fromkeys(
        ("epsilon_greedy", "square_cb", "lin_ucb", "lin_ts", "lin_ucb_full"), ("default", "warm")
    ),
    **dict.fromkeys(("cabs_c_linear", "cabs_c_neural"), _CABS_PRESETS),
    **dict.fromkeys(("cabs_d_linear", "cabs_d_neural"), (*_CABS_PRESETS, "lin_ucb_expert")),
}


def split_name(name: str) -> tuple[str, str]:
    """`'cabs_d_linear@literal'` -> `('cabs_d_linear', 'literal')`; without a preset, the policy's default one.

    Raises:
        PolicyError: unknown policy or preset; the known ones are listed.
    """
    base, _, preset = str(name).partition("@")
    if base not in POLICY_NAMES:
        close = difflib.get_close_matches(base, POLICY_NAMES, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise PolicyError(f"unknown policy {name!r}.{hint} Known policies: {', '.join(POLICY_NAMES)}.")
    presets = PRESETS.get(base, ("default",))
    if "@" in str(name) and preset not in presets:
        raise PolicyError(f"policy {base!r} has no preset {preset!r}; it has: {', '.join(presets)}.")
    return base, preset or presets[0]


def check_policy_name(name: str) -> str:
    """Return `name` unchanged if it names a policy (and preset) that exists, else raise PolicyError."""
    split_name(name)
    return name


def asset_name(name: str) -> str:
    """Name of the policy in asset keys and folders: `cabs_d_linear@literal` -> `cabs_d_linear__literal`."""
    check_policy_name(name)
    return name.replace("@", "__")


def policy_name(asset: str) -> str:
    """Inverse of `asset_name`."""
    base, separator, preset = asset.partition("__")
    return check_policy_name(f"{base}@{preset}" if separator else base)


def all_policies() -> list[str]:
    """Every `name` and every `name@preset` that is not the policy's default, in registry order."""
    names = []
    for base in POLICY_NAMES:
        names.append(base)
        names.extend(f"{base}@{preset}" for preset in PRESETS.get(base, ("default",))[1:])
    return names
