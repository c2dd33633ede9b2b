"""Correlation-aware contextual bandits with surrogate rewards for LLM routing.

The library behind the Dagster project: outcome tables, oracles, the exploration solver, policies, replay
and metrics. It never imports dagster.
"""

__version__ = "0.1.0"
