"""Replay: policies play online over precomputed arrays of outcomes and predictions.

    problem = ReplayProblem.load(folder)
    result = replay(problem, "cabs_d_linear", rho=300.0, trials=10, seed=0)     # .actions .rewards
    result = replay(problem, "lin_ucb@warm", rho=300.0, condition="delayed_rewards", alpha=0.6)
    table = replay_many(problem, ["lin_ucb", "hier_mix"], rhos=[0, 300, 900])     # tidy, with errors

`engine` runs the lanes over the arrays of a `cabs_core.algorithms.problem`, `result` holds the traces,
`storage` their files. `compare` replays several policies with paired differences, `external` another
library's policy, `conditions` the stress conditions, `tuning` the choice of settings on the validation
problem, `latency` the time of single decisions, `policy_checks` what every policy promises, `compile_ahead`
the compilation before a first run.

`replay` is imported from `engine` at its first use: reports read stored traces by `storage`, and the engine
would make them import numba.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cabs_core.evaluation.replay.engine import replay

__all__ = ["replay"]


def __getattr__(name: str) -> Any:
    """Import and return `replay` at its first use; raise AttributeError for any other name."""
    if name != "replay":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cabs_core.evaluation.replay.engine import replay  # noqa: PLC0415  (numba takes seconds)

    return replay
