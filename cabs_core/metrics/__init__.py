"""Metrics: from traces to the figures that claims rest on. Pure NumPy; no files, no policies.

    frontier     accuracy-cost frontier, non-decreasing convex hull, AIQ, cost at equal accuracy
    uncertainty  errors over trials and queries combined, many comparisons
    routing      arm shares, switching, effective number of arms, latency percentiles

Marts call the functions that SQL has no form of (`dbt_like_sql/functions.py`).
"""

from cabs_core.catalog import REGIMES, regime_of
from cabs_core.metrics.frontier import (
    aiq,
    cost_at_score,
    cost_saved,
    hull_score,
    non_decreasing_hull,
    pareto_mask,
)
from cabs_core.metrics.routing import arm_shares, effective_arms, latency_percentiles, switch_rate
from cabs_core.metrics.uncertainty import (
    TwoWayError,
    aiq_bootstrap_se,
    bootstrap_ratio,
    bootstrap_weights,
    crossed_error,
    holm,
    standard_error,
    two_way_error,
)

__all__ = [
    "REGIMES",
    "TwoWayError",
    "aiq",
    "aiq_bootstrap_se",
    "arm_shares",
    "bootstrap_ratio",
    "bootstrap_weights",
    "cost_at_score",
    "cost_saved",
    "crossed_error",
    "effective_arms",
    "holm",
    "hull_score",
    "latency_percentiles",
    "non_decreasing_hull",
    "pareto_mask",
    "regime_of",
    "standard_error",
    "switch_rate",
    "two_way_error",
]
