"""A router that people deploy: the policy that won a replay, with everything from a prompt's text to a
decision.

    from cabs_core.router import Router
    router = Router.load("router", log="router.events.sqlite")
    decision = router.route("prompt text")                   # .id .model .propensity .scores .costs
    router.feedback(decision.id, score=1.0, cost=2e-4)       # now, later, twice, or never

`build` makes bundles from a pool's artifacts, `checks` compares them with the replay and with each other,
`events` is the log, `learner` what follows from it, `promotion` replaces a bundle and takes it back, `server`
forwards traffic, `litellm` does so inside LiteLLM.
"""

from __future__ import annotations

import importlib
from typing import Any

_LAZY = {
    "Router": "router",
    "Routed": "router",
    "EventLog": "events",
    "Learner": "learner",
    "Manifest": "bundle",
    "read_manifest": "bundle",
    "Pacer": "pacer",
    "build_bundle": "build",
    "choose_policy": "build",
    "check_bundle_matches_replay": "checks",
    "measure_latency": "checks",
    "compare_with_champion": "checks",
    "promote": "promotion",
    "roll_back": "promotion",
}
__all__ = sorted(_LAZY)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"cabs_core.router.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
