"""Policies: one module per family.

    from cabs_core.algorithms.policies import POLICIES, build_policy, load_policy, Request
    policy = build_policy("lin_ucb", arms=[...], dim=33, rho=300.0, alpha=2.0)
    policy = LinUCB(arms=[...], dim=33, rho=300.0, alpha=2.0)    # the same; help(LinUCB) has options, ranges
    decision = policy.decide(Request(context=x))                 # .arm .arm_name .probability .pmf
    policy.update(decision, score=1.0, cost=2e-4)                # now, later, or never
    policy.save(folder); policy = load_policy(folder)

What is built is a `SafePolicy` (`safe`) around an algorithm. A new family subclasses the algorithm,
`base.Policy`, the contract. A replay calls `decide` and `update` in every round, unless the family has loops
of its own (`rounds`). Its `PolicyRecord` goes into `cabs_core.base.catalog.builtin_policies`, or into another
package that names it as an entry point of `cabs.policies`. Random numbers come from `compiled.rng` by
(stream, round, index), with `self.keys` and `self.round`, so there is no generator to save and results do not
depend on which thread or process runs the lane.

Nothing heavy is imported before something is used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from cabs_core.base.catalog.policies import all_policies, split_name

if TYPE_CHECKING:
    from cabs_core.algorithms.policies.base import Policy as Policy
    from cabs_core.algorithms.policies.lanes import Offline as Offline
    from cabs_core.algorithms.policies.registry import POLICIES as POLICIES
    from cabs_core.algorithms.policies.registry import build_policy as build_policy
    from cabs_core.algorithms.policies.registry import load_policy as load_policy
    from cabs_core.algorithms.policies.registry import policy_class as policy_class
    from cabs_core.algorithms.policies.requests import Choice as Choice
    from cabs_core.algorithms.policies.requests import Decision as Decision
    from cabs_core.algorithms.policies.requests import Request as Request
    from cabs_core.algorithms.policies.safe import SafePolicy as SafePolicy

_LAZY = {
    "POLICIES": "registry",
    "build_policy": "registry",
    "load_policy": "registry",
    "policy_class": "registry",
    "Choice": "requests",
    "Decision": "requests",
    "Offline": "lanes",
    "Policy": "base",
    "Request": "requests",
    "SafePolicy": "safe",
}
__all__ = ["all_policies", "split_name", *sorted(_LAZY)]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"cabs_core.algorithms.policies.{_LAZY[name]}"), name)
    if name[:1].isupper():
        classes = importlib.import_module("cabs_core.algorithms.policies.classes")
        if name in classes.class_names():
            return classes.class_of(classes.class_names()[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    classes = importlib.import_module("cabs_core.algorithms.policies.classes")
    return sorted({*globals(), *__all__, *classes.class_names()})
