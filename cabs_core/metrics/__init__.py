"""Metrics: from traces to the figures that claims rest on. Pure NumPy; no files, no policies.

    frontier     accuracy-cost frontier, non-decreasing convex hull, AIQ, cost at equal accuracy
    clusters     what an independent observation is: prompts with near-copies, conversations
    uncertainty  errors, intervals, bounds, and what was not seen; many comparisons
    routing      arm shares, switching, effective number of arms, latency percentiles

Marts call the functions that SQL has no form of (`dbt_like_sql/functions.py`).
"""

from cabs_core.catalog import REGIMES, regime_of
from cabs_core.metrics.clusters import cluster_sums, clusters_of, independent
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
    UNKNOWN,
    Error,
    aiq_bootstrap_se,
    bootstrap_ratio,
    bootstrap_weights,
    cost_bound,
    crossed_error,
    holm,
    mean_error,
    ratio_error,
    seen_share,
    share_interval,
    standard_error,
    tail_error,
    times_needed,
    too_heavy,
    two_way_error,
)

__all__ = [
    "REGIMES",
    "UNKNOWN",
    "Error",
    "aiq",
    "aiq_bootstrap_se",
    "arm_shares",
    "bootstrap_ratio",
    "bootstrap_weights",
    "cluster_sums",
    "clusters_of",
    "cost_at_score",
    "cost_bound",
    "cost_saved",
    "crossed_error",
    "effective_arms",
    "holm",
    "hull_score",
    "independent",
    "latency_percentiles",
    "mean_error",
    "non_decreasing_hull",
    "pareto_mask",
    "ratio_error",
    "regime_of",
    "seen_share",
    "share_interval",
    "standard_error",
    "switch_rate",
    "tail_error",
    "times_needed",
    "too_heavy",
    "two_way_error",
]
