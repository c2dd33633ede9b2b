"""Functions for notebooks: several policies at several rhos, and paired differences with standard errors."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.errors import DataError, PolicyError
from cabs_core.base.statistics.costs import DEAREST, MOST_OF_THE_MONEY, dearest_share
from cabs_core.base.statistics.uncertainty import crossed_error, ratio_error, standard_error
from cabs_core.base.units import percentage
from cabs_core.evaluation.metrics.frontier import pareto_mask
from cabs_core.evaluation.replay.engine import replay, rho_grid
from cabs_core.evaluation.replay.result import ReplayResult

MEASURES = ("utility", "score", "cost", "regret")
_COLUMNS = ("policy", "rho", "trials", "rounds", *(f"{m}{end}" for m in MEASURES for end in ("", "_se")))


def replay_many(
    problem: ReplayProblem,
    policies: Sequence[Any] | Mapping[str, Any],
    rhos: float | Iterable[float] = (300.0,),
    *,
    trials: int = 10,
    seed: int = 0,
    **settings: Any,
) -> pd.DataFrame:
    """Replay policies at several rhos, all on the same orders of queries.

    Args:
        problem: the arrays.
        policies: names, pairs of a name and options, or objects with `predict` and `learn`. A mapping
            gives them labels of your own.
        rhos: cost sensitivities, 0 or more, in score units per USD, or a single one.
        trials, seed: as in `replay`.
        settings: other keywords of `replay`, such as `condition` or `threads`.

    Returns:
        One row a policy and rho: policy, rho, trials, rounds, and mean utility, score, cost (USD a query) and
        regret with their standard errors over trials and queries together (`utility_se` and so on; NaN with
        one round).

    Raises:
        PolicyError: a policy, option or label is unknown or named twice, or a rho is out of range.

    Examples:
        >>> from cabs_core import replay_many, synthetic_problem
        >>> problem = synthetic_problem(n=100, K=3, d=4)
        >>> policies = {"LinUCB": "lin_ucb", "bolder": ("lin_ucb", {"alpha": 2.0})}
        >>> found = replay_many(problem, policies, [0, 300], trials=2)
        >>> found[["policy", "rho"]].values.tolist()
        [['LinUCB', 0.0], ['LinUCB', 300.0], ['bolder', 0.0], ['bolder', 300.0]]
    """
    rows = []
    grid = rho_grid("replay_many", rhos)
    for label, policy, options in _labelled(policies):
        for rho in grid:
            result = replay(problem, policy, rho=rho, trials=trials, seed=seed, options=options, **settings)
            row: dict[str, Any] = {
                "policy": label,
                "rho": rho,
                "trials": result.trials,
                "rounds": result.rounds,
            }
            for measure in MEASURES:
                values = result.per_round(measure)
                row[measure] = float(values.mean())
                row[f"{measure}_se"] = crossed_error(result.order, values, result.clusters).value
            rows.append(row)
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def _labelled(policies: Sequence[Any] | Mapping[str, Any]) -> list[tuple[str, Any, dict[str, Any]]]:
    """Return label, policy (name or object) and options of each policy; a default label lists the options.

    Raises:
        PolicyError: a label occurs twice, or the argument holds no policies.
    """
    if isinstance(policies, str):
        policies = [policies]
    if not isinstance(policies, Iterable):
        raise PolicyError(
            f"replay_many: policies is {policies!r:.80}, expected a list of policies, or a mapping "
            "{label: policy}"
        )
    items = policies.items() if isinstance(policies, Mapping) else ((None, item) for item in policies)
    labelled = []
    for label, item in items:
        policy = item
        options: dict[str, Any] = {}
        if isinstance(item, tuple | list) and len(item) == 2 and isinstance(item[1], Mapping):
            policy = item[0]
            options = dict(item[1])
        if isinstance(policy, str):
            name = policy
        else:
            name = getattr(policy, "name", type(policy).__name__)
        text = ", ".join(f"{key}={value}" for key, value in options.items())
        default = f"{name} ({text})" if text else str(name)
        labelled.append((label or default, policy, options))
    twice = {label for label, _, _ in labelled if [name for name, _, _ in labelled].count(label) > 1}
    if twice:
        raise PolicyError(
            f"replay_many: {sorted(twice)[0]!r} is named twice; give a mapping {{label: policy}} with labels "
            "of your own"
        )
    return labelled


@dataclass(frozen=True)
class PairedDifference:
    """Mean difference of two policies, a - b, over the same queries in the same trials.

    Attributes:
        measure: utility, score, cost or regret.
        value: the mean difference.
        se_trials: standard error over trials. It is 0 for two static policies, and NaN with one trial.
        se_queries: standard error over independent queries, which are clusters of prompts or conversations.
        se: standard error over trials and queries together; NaN with fewer than two independent queries.
        low, high: 95 % interval by Student's t; NaN if too few queries are independent, or if `unknown` is
            not empty.
        p_value: p-value of the two-sided test that there is no difference; NaN where `low` is.
        queries: number of queries that were played.
        independent: number of clusters of these queries.
        unknown: reason why a difference in cost has no interval; empty if it has one.
    """

    measure: str
    value: float
    se_trials: float
    se_queries: float
    se: float
    low: float
    high: float
    p_value: float
    queries: int
    independent: int
    unknown: str = ""

    def __str__(self) -> str:
        interval = f"95 % {self.low:+.4f} to {self.high:+.4f}"
        if math.isnan(self.low):
            interval = f"no interval: {self.unknown or 'too few queries are independent'}"
        dependence = ""
        if self.independent != self.queries:
            dependence = f", {self.independent} of {self.queries} queries independent"
        return f"{self.measure} {self.value:+.4f} ± {self.se:.4f} ({interval}{dependence})"


def paired_difference(a: ReplayResult, b: ReplayResult, measure: str = "utility") -> PairedDifference:
    """Return the mean difference a - b, with its standard error over trials and queries together.

    Static policies play alike in every trial, so an error over trials alone would be 0. The error is paired,
    and it holds for this split of the data.

    Args:
        a, b: replays of the same problem with the same trials, seed and rho.
        measure: utility, score, cost or regret.

    Raises:
        DataError: an argument is no result of a replay, or the two did not play the same queries in the same
            order, or played at different rhos and the measure is utility or regret.

    Examples:
        >>> from cabs_core import paired_difference, synthetic_problem
        >>> from cabs_core.evaluation.replay import replay
        >>> problem = synthetic_problem(n=200, K=3, d=4)
        >>> a, b = (replay(problem, name, rho=300.0, trials=2) for name in ("best_single", "ridge"))
        >>> found = paired_difference(a, b)
        >>> found.se_trials < 1e-12 < found.se_queries == found.se, found.independent
        (True, 200)
    """
    for result in (a, b):
        if not isinstance(result, ReplayResult):
            raise DataError(f"paired_difference takes results of `replay`, not {type(result).__name__}")
    if a.order.shape != b.order.shape or not np.array_equal(a.order, b.order) or a.pool != b.pool:
        raise DataError(
            f"{a.policy} and {b.policy} are not paired: replay both on one problem with the same trials and "
            "seed"
        )
    if a.rho != b.rho and measure in ("utility", "regret"):
        raise DataError(
            f"{a.policy} is at rho {a.rho:g}, {b.policy} at {b.rho:g}: their {measure} is not comparable"
        )
    ours = a.per_round(measure)
    theirs = b.per_round(measure)
    gaps = ours - theirs
    order = a.order
    clusters = a.clusters
    if clusters is None:
        count = int(order.max()) + 1
    else:
        count = len(clusters)
    plays = np.bincount(order.ravel(), minlength=count)
    if clusters is None:
        members = np.arange(count)
    else:
        members = clusters
    over_queries = ratio_error(np.bincount(order.ravel(), gaps.ravel(), count), plays, clusters)
    error = crossed_error(order, gaps, clusters)
    value = float(gaps.mean())
    se = error.value
    low, high = error.interval(value)
    p_value = error.p_value(value)
    independent = len(np.unique(members[plays > 0]))
    if independent < 2:  # the trials of one prompt tell nothing of other prompts, however alike they are
        se = low = high = p_value = math.nan
    unknown = ""
    if measure == "cost" and gaps.any():
        paid = np.bincount(order.ravel(), (ours + theirs).ravel(), count)
        if dearest_share(paid, clusters) > MOST_OF_THE_MONEY:
            low = high = p_value = math.nan
            unknown = (
                f"the {DEAREST} dearest prompts or conversations hold more than "
                f"{percentage(MOST_OF_THE_MONEY)} of the money"
            )
    return PairedDifference(
        measure=measure,
        value=value,
        se_trials=float(standard_error(gaps.mean(axis=1))),
        se_queries=over_queries.value,
        se=se,
        low=low,
        high=high,
        p_value=p_value,
        queries=int((plays > 0).sum()),
        independent=independent,
        unknown=unknown,
    )


def frontier(table: pd.DataFrame) -> pd.DataFrame:
    """Mark the policies and rhos whose mean cost and score no other policy and rho beats.

    Args:
        table: columns policy, rho, cost and score, such as `replay_many` returns.

    Returns:
        These columns sorted by cost, and `on_frontier`, which is True if no other row is at least as cheap
        and as good, and better in one of both.

    Raises:
        DataError: a column is missing, the table is empty, or a cost or score is no finite number or a cost
            is below 0.

    Examples:
        >>> import pandas as pd
        >>> from cabs_core import frontier
        >>> costs, scores = [1.0, 2.0, 3.0], [0.5, 0.4, 0.9]
        >>> table = pd.DataFrame({"policy": ["a", "b", "c"], "rho": 0.0, "cost": costs, "score": scores})
        >>> frontier(table).on_frontier.tolist()
        [True, False, True]
    """
    columns = ["policy", "rho", "cost", "score"]
    if not isinstance(table, pd.DataFrame):
        raise DataError(f"frontier takes a table such as `replay_many` returns, not {type(table).__name__}")
    missing = [name for name in columns if name not in table]
    if missing or not len(table):
        raise DataError(
            f"frontier: expected rows with columns {columns}; missing are {missing or 'the rows'}"
        )
    for name, least in (("cost", 0.0), ("score", -np.inf)):
        values = pd.to_numeric(table[name], errors="coerce").to_numpy(dtype=np.float64)
        bad = np.flatnonzero(~(np.isfinite(values) & (values >= least)))
        if len(bad):
            row = table.iloc[bad[0]]
            at_least = " of at least 0" if name == "cost" else ""
            raise DataError(
                f"frontier: {name} of policy {row['policy']!r:.80} at rho {row['rho']} is {row[name]!r:.80}, "
                f"expected a finite number{at_least}: leave the row out"
            )
    points = table[columns].sort_values(["cost", "score"], ignore_index=True)
    points["on_frontier"] = pareto_mask(points["cost"], points["score"])
    return points
