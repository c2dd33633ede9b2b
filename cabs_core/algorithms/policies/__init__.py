"""Policies: one module for each small algorithm, a folder for `hier_mix` and one for the neural policies.

    policy = build_policy("lin_ucb", arms=[...], dim=33, rho=300.0, alpha=2.0)    # `registry`
    decision = policy.decide(Request(context=x))                 # .arm .arm_name .probability .pmf
    policy.update(decision, score=1.0, cost=2e-4)                # now, later, or never
    policy.save(folder); policy = load_policy(folder)

    from cabs_core.algorithms.policies import LinUCB             # a class for every policy (`classes`)
    policy = LinUCB(arms=[...], dim=33, rho=300.0, alpha=2.0)    # the same; help(LinUCB) has options, ranges

Both ways build a `SafePolicy` (`safe`) around an algorithm, a subclass of `policy.Policy`. The contract of an
algorithm is in four modules: `policy` (the class), `request` (inputs and outputs), `state` (saving and
checks) and `play` (replays). A replay calls `decide` and `update` in every round, unless the policy has a
loop of its own (`play.LoopPolicy`). The `PolicyRecord` of a policy goes into
`cabs_core.base.catalog.builtin_policies`, or into another package that names it as an entry point of
`cabs.policies`.

Random numbers are functions of (stream, round, index), by `compiled.rng` with `self.keys` and `self.round`.
So there is no generator to save, and results do not depend on the thread or process that plays a trial.
"""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """Return the class of a policy by its name, such as `LinUCB`, which is made at the first use."""
    if name[:1].isupper():
        classes = importlib.import_module("cabs_core.algorithms.policies.classes")
        if name in classes.class_names():
            return classes.class_of(classes.class_names()[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names of the module, with those of the policies' classes."""
    classes = importlib.import_module("cabs_core.algorithms.policies.classes")
    return sorted({*globals(), *classes.class_names()})
