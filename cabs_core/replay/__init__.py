"""Replay: policies play online over precomputed arrays of outcomes and predictions.

    problem = ReplayProblem.load(folder)
    result = replay(problem, "cabs_d_linear", rho=300.0, trials=10, seed=0)     # .actions .rewards .summary()
    result = replay(problem, "lin_ucb@warm", rho=300.0, condition="delayed_rewards", alpha=0.6)
    table = replay_many(problem, ["lin_ucb", "hier_mix"], rhos=[0, 300, 900])                   # tidy, with errors

`engine` runs the lanes over the arrays of a `cabs_core.problem`, `result` holds the traces, `storage` their files.
`compare` has several policies and paired differences, `external` the replay of another library's policy,
`conditions` the stress conditions, `tuning` the choice of settings on the validation problem, `latency` the time of
single decisions, `policy_checks` what every policy promises, `compile_ahead` the compilation before a first run.

`from cabs_core import replay` gives this package, which can be called: `replay(problem, ...)` is `engine.replay`.
"""

import importlib
import inspect
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cabs_core.problem.replay_problem import ReplayProblem
from cabs_core.replay.engine import ReplayCancelled, replay
from cabs_core.replay.result import ReplayResult

if TYPE_CHECKING:
    from cabs_core.replay.compare import PairedDifference, frontier, paired_difference, replay_many

__all__ = [
    "PairedDifference",
    "ReplayCancelled",
    "ReplayProblem",
    "ReplayResult",
    "frontier",
    "paired_difference",
    "replay",
    "replay_many",
]


class _Callable(ModuleType):
    """This package under the name that its main function has too."""

    __signature__ = inspect.signature(replay)

    def __call__(self, *args: Any, **settings: Any) -> ReplayResult:
        return replay(*args, **settings)


sys.modules[__name__].__class__ = _Callable


def __getattr__(name: str) -> Any:
    """Comparisons are for notebooks: no artifact depends on them, so they are imported when they are used."""
    if name in ("PairedDifference", "frontier", "paired_difference", "replay_many"):
        return getattr(importlib.import_module("cabs_core.replay.compare"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
