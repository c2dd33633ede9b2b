"""Metrics: from traces to the figures that claims rest on. Pure NumPy; no files, no policies.

    frontier     accuracy-cost frontier, non-decreasing convex hull, AIQ, cost at equal accuracy
    routing      arm shares, switching, effective number of arms, latency percentiles

How sure they are says `cabs_core.base.statistics`. Marts call the functions that SQL has no form of
(`dbt_like_sql/functions.py`).
"""
