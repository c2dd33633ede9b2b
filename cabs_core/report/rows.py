"""A figure back to its rows: the rounds behind a policy's mean at one rho, with prompt and outcome.

rho is in score units per USD.
"""

import numpy as np
import pandas as pd

from cabs_core.algorithms.problem.gaps import Cells, real_values
from cabs_core.base.catalog.policies import split_name
from cabs_core.base.catalog.roles import ORACLE_BEST
from cabs_core.base.errors import ResultError, listed
from cabs_core.report.data import PoolData
from cabs_core.report.evidence import Evidence

#: {figure: (column of the rows whose mean it is, factor, column of mart_utility_by_rho, unit)}
FIGURES = {
    "quality": ("score", 1.0, "score", "mean score, 0 to 1"),
    "cost": ("cost", 1000.0, "cost_per_1000_calls", "USD per 1,000 requests"),
    "utility": ("utility", 1.0, "utility", "mean of clip(score - rho * cost, 0, 1)"),
}


def rows_of(evidence: Evidence, policy: str, rho: float) -> pd.DataFrame:
    """One row a round, in (trial, round) order.

    Columns: trial, round, query_id, model, propensity, score, cost (USD), utility, observed. Of a table with
    gaps, score, cost and utility are the doubly robust values whose means the marts show, and `observed` says
    whether the answer is real.

    Raises:
        ResultError: the policy was not replayed at that rho on the problem compared; what was is listed.
    """
    if (policy, rho) not in evidence.folders:
        policies = sorted({name for name, _ in evidence.folders})
        rhos = sorted(value for name, value in evidence.folders if name == policy)
        known = f"{policy} at rho {', '.join(f'{r:g}' for r in rhos)}" if rhos else listed(policies)
        raise ResultError(f"there is no replay of {policy} at rho {rho:g}; there are those of {known}")
    problem, trace = evidence.problem, evidence.trace(policy, rho)
    at = trace.order, trace.actions
    cells = real_values(problem, rho)
    if split_name(policy)[0] == ORACLE_BEST:  # looks at outcomes first: its means are of what it played
        cells = Cells(cells.utility, problem.scores, problem.costs)
    score, cost, utility = cells.score[at], cells.cost[at], cells.utility[at]
    if problem.observed is None or split_name(policy)[0] == ORACLE_BEST:
        utility = trace.rewards
    if trace.costs is not None:
        cost = trace.costs
    observed = np.ones(problem.scores.shape) if problem.observed is None else problem.observed > 0
    trials, rounds = trace.order.shape
    columns = {
        "trial": np.arange(trials).repeat(rounds),
        "round": np.tile(np.arange(rounds), trials),
        "query_id": problem.query_ids[trace.order].ravel(),
        "model": np.array(problem.arms)[trace.actions].ravel(),
        "propensity": trace.propensities.ravel(),
        "score": score.ravel(),
        "cost": cost.ravel(),
        "utility": utility.ravel(),
        "observed": observed[at].ravel().astype(float),
    }
    return pd.DataFrame(columns)


def figure_of(rows: pd.DataFrame, figure: str) -> float:
    """The figure, from its rows alone."""
    column, factor, _, _ = FIGURES[figure]
    return factor * float(rows[column].mean())


def figure_in_mart(data: PoolData, figure: str, policy: str, rho: float) -> float:
    """The same figure as mart_utility_by_rho has it."""
    mart = data.mart("utility_by_rho")
    row = mart[(mart["policy"] == policy) & (mart["rho"] == rho)].iloc[0]
    return float(row[FIGURES[figure][2]])
