"""A router that people deploy: the policy that won a replay, from a prompt's text to a decision.

    from cabs_core.router import Router
    router = Router.load("router", log="router.events.sqlite")
    decision = router.route("prompt text")                   # .id .model .propensity .scores .costs
    router.feedback(decision.id, score=1.0, cost=2e-4)       # now, later, twice, or never

`build` makes bundles from a pool's artifacts, `checks` compares them with the replay and with each other,
`learner` is what follows from the log (`data.events`), `promotion` replaces a bundle and takes it back,
`policies_on_log` and `compare_on_log` say what others would have earned. What listens is `cabs_server`.
"""

import importlib
from typing import Any

_LAZY = {
    "Router": "cabs_core.router.router",
    "Routed": "cabs_core.router.router",
    "EventLog": "cabs_core.data.events.log",
    "Learner": "cabs_core.router.learner",
    "Manifest": "cabs_core.router.bundle",
    "read_manifest": "cabs_core.router.bundle",
    "Pacer": "cabs_core.router.pacer",
    "build_bundle": "cabs_core.router.build",
    "choose_policy": "cabs_core.router.build",
    "check_bundle_matches_replay": "cabs_core.router.checks",
    "measure_latency": "cabs_core.router.checks",
    "compare_with_champion": "cabs_core.router.checks",
    "promote": "cabs_core.router.promotion",
    "roll_back": "cabs_core.router.promotion",
}
__all__ = sorted(_LAZY)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
