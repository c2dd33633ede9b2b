"""Policies as classes: `LinUCB(arms=[...], dim=33, rho=300.0, alpha=2.0)` is `build_policy("lin_ucb", ...)`.

There is one class for every record of the catalog, made when it is asked for: a `SafePolicy` around the class
that implements the policy, with the record's description and the options as docstring and signature.
"""

import inspect
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from cabs_core.algorithms.policies.describe import policy_options, signature_text
from cabs_core.algorithms.policies.registry import load_policy, policy_class
from cabs_core.algorithms.policies.safe import SafePolicy
from cabs_core.base.catalog.policies import policies, split_name
from cabs_core.base.errors import PolicyError

_CAPITALS = {word.lower(): word for word in ("UCB", "TS", "CB", "KNN", "MF", "MIRT")}
_SHARED = {
    "dim": 0,
    "rho": 0.0,
    "offline": None,
    "horizon": None,
    "keys": None,
    "seed": 0,
    "binary_share": 1.0,
}


@cache
def class_names() -> Mapping[str, str]:
    """Return {name of the class: name of the policy} of all policies, such as `LinUCB`: `lin_ucb`."""
    return {
        "".join(_CAPITALS.get(part, part.capitalize()) for part in name.split("_")): name
        for name in policies()
    }


@cache
def class_of(name: str) -> type[SafePolicy]:
    """Return the class of a policy's name, such as `lin_ucb`. The first call for a name makes the class.

    Raises:
        PolicyError: the name is unknown, or has a preset or options, which are arguments of the class.
    """
    implementation = policy_class(name)
    record = policies()[split_name(name)[0]]
    if name != record.name:
        raise PolicyError(f"policy {name!r:.200}: presets and options are arguments of the class")
    options = policy_options(name)

    def init(self: SafePolicy, *, arms: Any, preset: str = "", **settings: Any) -> None:
        """Build the policy from the shared arguments (`_SHARED`) and the options in `settings`."""
        shared = {key: settings.pop(key, default) for key, default in _SHARED.items()}
        chosen = f"{name}@{preset}" if preset else name
        SafePolicy.__init__(self, implementation(chosen, arms=arms, options=settings, **shared))

    def load(cls: type[SafePolicy], folder: str | Path) -> SafePolicy:
        """Load the policy that `save` wrote.

        Raises:
            ProvenanceError: the folder holds no sound saved policy.
            PolicyError: the folder holds another policy.
        """
        policy = load_policy(folder)
        if policy.algorithm.base != name:
            raise PolicyError(f"{folder} holds {policy.name}, not {name}: use load_policy")
        return policy

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("arms", keyword)]
    parameters += [inspect.Parameter(key, keyword, default=value) for key, value in _SHARED.items()]
    parameters += [inspect.Parameter("preset", keyword, default=record.presets[0])]
    parameters += [inspect.Parameter(option.name, keyword, default=option.default) for option in options]
    lines = "\n".join(f"    {signature_text(option)}" for option in options) or "    none."
    sources = "; ".join(record.references)
    text = (
        f"{record.description[:1].upper()}{record.description[1:]}\n\nPresets: {', '.join(record.presets)}."
    )
    text += (
        "\n\nArgs:\n    arms, dim, rho, offline, horizon, seed, keys, binary_share: as for `build_policy`."
    )
    text += f"\n\nOptions:\n{lines}" + (f"\n\nSource: {sources}" if sources else "")
    title = next(key for key, value in class_names().items() if value == name)
    members = {
        "__init__": init,
        "load": classmethod(load),
        "__doc__": text,
        "__module__": "cabs_core.algorithms.policies",
        "__signature__": inspect.Signature(parameters),
    }
    return type(title, (SafePolicy,), members)
