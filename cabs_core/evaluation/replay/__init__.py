"""Replay: policies play online over precomputed arrays of outcomes and predictions.

    problem = ReplayProblem.load(folder)
    result = replay(problem, "cabs_d_linear", rho=300.0, trials=10, seed=0)     # .actions .rewards
    result = replay(problem, "lin_ucb@warm", rho=300.0, condition="delayed_rewards", alpha=0.6)
    table = replay_many(problem, ["lin_ucb", "hier_mix"], rhos=[0, 300, 900])     # tidy, with errors

`engine` runs the lanes over the arrays of a `cabs_core.algorithms.problem`, `result` holds the traces,
`storage` their files. `compare` has several policies and paired differences, `external` the replay of another
library's policy, `conditions` the stress conditions, `tuning` the choice of settings on the validation
problem, `latency` the time of single decisions, `policy_checks` what every policy promises, `compile_ahead`
the compilation before a first run.

The names below are imported at their first use. Reports read stored traces by `storage`, and the engine would
make them import numba.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cabs_core.algorithms.problem.replay_problem import ReplayProblem
    from cabs_core.evaluation.replay.engine import ReplayCancelled, replay
    from cabs_core.evaluation.replay.result import ReplayResult

__all__ = ["ReplayCancelled", "ReplayProblem", "ReplayResult", "replay"]

#: {public name: the module that holds it}
_MODULES = {
    "ReplayCancelled": "cabs_core.evaluation.replay.engine",
    "ReplayProblem": "cabs_core.algorithms.problem.replay_problem",
    "ReplayResult": "cabs_core.evaluation.replay.result",
    "replay": "cabs_core.evaluation.replay.engine",
}


def __getattr__(name: str) -> Any:
    """Return a public name from its module, which is imported then."""
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names of the package with the public ones."""
    return sorted({*globals(), *__all__})
