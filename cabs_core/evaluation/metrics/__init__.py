"""Figures of replays, as functions of NumPy arrays.

    frontier     accuracy-cost frontier, non-decreasing convex hull, AIQ, cost at equal accuracy
    routing      arm shares, switching, effective number of arms, latency percentiles

Standard errors are in `cabs_core.base.statistics`. The marts call these functions
(`dbt_like_sql/functions.py`).
"""
