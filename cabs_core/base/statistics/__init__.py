"""How sure a figure is. Pure NumPy; no files, no policies.

clusters     what an independent observation is: prompts with near-copies, conversations
uncertainty  errors, intervals, bounds, and what was not seen; many comparisons
costs        mean costs, which have no largest value
bootstrap    resampling, for what has no formula
people       what people would say, from a sample and an instrument's verdicts
"""

from cabs_core.base.statistics.bootstrap import bootstrap_interval, bootstrap_ratio, bootstrap_weights
from cabs_core.base.statistics.clusters import cluster_sums, clusters_of, independent
from cabs_core.base.statistics.costs import cost_error, cost_ratio_interval, tail_factor
from cabs_core.base.statistics.uncertainty import (
    UNKNOWN,
    Error,
    crossed_error,
    half_width,
    holm,
    mean_error,
    ratio_error,
    real_weights,
    seen_share,
    share_interval,
    standard_error,
    times_needed,
    two_way_error,
)

__all__ = [
    "UNKNOWN",
    "Error",
    "bootstrap_interval",
    "bootstrap_ratio",
    "bootstrap_weights",
    "cluster_sums",
    "clusters_of",
    "cost_error",
    "cost_ratio_interval",
    "crossed_error",
    "half_width",
    "holm",
    "independent",
    "mean_error",
    "ratio_error",
    "real_weights",
    "seen_share",
    "share_interval",
    "standard_error",
    "tail_factor",
    "times_needed",
    "two_way_error",
]
