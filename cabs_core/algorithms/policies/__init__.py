"""Policies: one module per family.

    policy = build_policy("lin_ucb", arms=[...], dim=33, rho=300.0, alpha=2.0)    # `registry`
    decision = policy.decide(Request(context=x))                 # .arm .arm_name .probability .pmf
    policy.update(decision, score=1.0, cost=2e-4)                # now, later, or never
    policy.save(folder); policy = load_policy(folder)

    from cabs_core.algorithms.policies import LinUCB             # a class a policy (`classes`)
    policy = LinUCB(arms=[...], dim=33, rho=300.0, alpha=2.0)    # the same; help(LinUCB) has options, ranges

What is built is a `SafePolicy` (`safe`) around an algorithm. A new family subclasses the algorithm,
`base.Policy`, the contract. A replay calls `decide` and `update` in every round, unless the family has loops
of its own (`rounds`). Its `PolicyRecord` goes into `cabs_core.base.catalog.builtin_policies`, or into another
package that names it as an entry point of `cabs.policies`. Random numbers come from `compiled.rng` by
(stream, round, index), with `self.keys` and `self.round`, so there is no generator to save and results do not
depend on which thread or process runs the lane.
"""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    if name[:1].isupper():
        classes = importlib.import_module("cabs_core.algorithms.policies.classes")
        if name in classes.class_names():
            return classes.class_of(classes.class_names()[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    classes = importlib.import_module("cabs_core.algorithms.policies.classes")
    return sorted({*globals(), *classes.class_names()})
