"""Metrics: from traces to the figures that claims rest on. Pure NumPy; no files, no policies.

    frontier     accuracy-cost frontier, non-decreasing convex hull, AIQ, cost at equal accuracy
    routing      arm shares, switching, effective number of arms, latency percentiles

How sure they are says `cabs_core.base.statistics`. Marts call the functions that SQL has no form of
(`dbt_like_sql/functions.py`).
"""

from cabs_core.evaluation.metrics.frontier import (
    aiq,
    aiq_bootstrap_se,
    cost_at_score,
    cost_saved,
    hull_score,
    non_decreasing_hull,
    pareto_mask,
)
from cabs_core.evaluation.metrics.routing import arm_shares, effective_arms, latency_percentiles, switch_rate

__all__ = [
    "aiq",
    "aiq_bootstrap_se",
    "arm_shares",
    "cost_at_score",
    "cost_saved",
    "effective_arms",
    "hull_score",
    "latency_percentiles",
    "non_decreasing_hull",
    "pareto_mask",
    "switch_rate",
]
