"""Plays of policies on the validation queries of each fold, whose train queries they were fitted on.

`report.pool_answer.cross_fitted_router` chooses the router of a fold by these plays. Decisions on the test
queries of other folds would be unfair: their policies were fitted on the judged fold, so its outcomes would
influence the choice.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.errors import CabsError
from cabs_core.evaluation.replay.engine import replay

#: number of orders over which decisions are averaged, because some policies learn while they play
TRIALS = 3
#: columns of the table of plays
COLUMNS = ("fold", "policy", "rho", "query_id", "model", "plays")


def validation_plays(
    folds: Iterable[tuple[ReplayProblem, Mapping[str, Mapping[str, Any]]]],
    policies: Sequence[str],
    rhos: Sequence[float],
    *,
    seed: int = 0,
    latency_weight: float = 0.0,
) -> pd.DataFrame:
    """Replay every policy at every rho over the validation queries of each fold, and count its plays.

    If a policy cannot be played at a rho, it has no rows at this and the later rhos of the fold.

    Args:
        folds: validation problem of each fold, and {policy: settings} that the fold's tuning chose.
        policies: names of policies.
        rhos: cost sensitivities, score units per USD.
        seed: seed of the orders, which do not depend on the name of the pool.
        latency_weight: units of score that a second is worth.

    Returns:
        One row, with `COLUMNS`, for each fold, policy, rho, query and model that was played there. `plays` is
        the number of orders, of `TRIALS`, in which the query got the model.
    """
    found = []
    for fold, (problem, options) in enumerate(folds):
        for policy in policies:
            for rho in rhos:
                try:
                    played = replay(
                        problem,
                        policy,
                        rho,
                        TRIALS,
                        seed,
                        pool=f"fold {fold}",
                        latency_weight=latency_weight,
                        options=options.get(policy),
                    )
                except CabsError:  # the fault of this policy, which the stage that plays it reports
                    break
                counts = np.zeros((problem.n, problem.K), dtype=np.int64)
                np.add.at(counts, (played.order.ravel(), played.actions.ravel()), 1)
                query, model = np.nonzero(counts)
                rows = {
                    "fold": fold,
                    "policy": policy,
                    "rho": float(rho),
                    "query_id": np.asarray(problem.query_ids)[query].astype(str),
                    "model": np.asarray(problem.arms)[model],
                    "plays": counts[query, model],
                }
                found.append(pd.DataFrame(rows))
    if found:
        return pd.concat(found, ignore_index=True)
    return pd.DataFrame(columns=list(COLUMNS))
