"""Correlation-aware contextual bandits with surrogate rewards for LLM routing: the library.

    from cabs_core import build_policy, load_outcomes, replay, replay_many, paired_difference, ...

These names are the public interface (docs/api.md); everything below `cabs_core.*` that is not among them may change
between releases. Each is imported when it is first used: `import cabs_core` loads neither NumPy nor torch, and nothing
here ever imports dagster.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from cabs_core.chain.policy_checks import check_policy as check_policy
    from cabs_core.errors import CabsError as CabsError
    from cabs_core.logs import read_log as read_log
    from cabs_core.ope import evaluate as evaluate
    from cabs_core.oracles import problems_from_arrays as problems_from_arrays
    from cabs_core.outcomes import load_outcomes as load_outcomes
    from cabs_core.plots import plot_frontier as plot_frontier
    from cabs_core.plots import plot_regret as plot_regret
    from cabs_core.policies import Decision as Decision
    from cabs_core.policies import Policy as Policy
    from cabs_core.policies import Request as Request
    from cabs_core.policies import SafePolicy as SafePolicy
    from cabs_core.policies import build_policy as build_policy
    from cabs_core.policies import load_policy as load_policy
    from cabs_core.pools import find_pool as find_pool
    from cabs_core.problem import ReplayProblem as ReplayProblem
    from cabs_core.problem.synthetic import synthetic_problem as synthetic_problem
    from cabs_core.replay import ReplayResult as ReplayResult
    from cabs_core.replay import frontier as frontier
    from cabs_core.replay import paired_difference as paired_difference
    from cabs_core.replay import replay_many as replay_many
    from cabs_core.replay.engine import replay as replay
    from cabs_core.replay.tuning import tune as tune
    from cabs_core.router.events import EventLog as EventLog
    from cabs_core.router.router import Router as Router
    from cabs_core.solver import solve_exploration as solve_exploration

#: public name -> the module that holds it
_PUBLIC = {
    "CabsError": "cabs_core.errors",
    "Decision": "cabs_core.policies",
    "EventLog": "cabs_core.router.events",
    "Policy": "cabs_core.policies",
    "ReplayProblem": "cabs_core.problem",
    "ReplayResult": "cabs_core.replay",
    "Request": "cabs_core.policies",
    "Router": "cabs_core.router.router",
    "SafePolicy": "cabs_core.policies",
    "build_policy": "cabs_core.policies",
    "check_policy": "cabs_core.chain.policy_checks",
    "evaluate": "cabs_core.ope",
    "find_pool": "cabs_core.pools",
    "frontier": "cabs_core.replay",
    "load_outcomes": "cabs_core.outcomes",
    "load_policy": "cabs_core.policies",
    "paired_difference": "cabs_core.replay",
    "plot_frontier": "cabs_core.plots",
    "plot_regret": "cabs_core.plots",
    "problems_from_arrays": "cabs_core.oracles",
    "read_log": "cabs_core.logs",
    "replay_many": "cabs_core.replay",
    "solve_exploration": "cabs_core.solver",
    "synthetic_problem": "cabs_core.problem.synthetic",
    "tune": "cabs_core.replay.tuning",
}
#: the package `cabs_core.replay` bears the name of its function and can be called
__all__ = sorted([*_PUBLIC, "replay"])


def __getattr__(name: str) -> Any:
    if name == "replay":
        return importlib.import_module("cabs_core.replay")
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
