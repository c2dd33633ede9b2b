"""A verdict of given figures."""

import math

from cabs_core.report.gap import Bounded
from cabs_core.report.verdict import Verdict


def around(value, half):
    return Bounded(value) if math.isnan(half) else Bounded(value, value - half, value + half)


def verdict_at(value, decision, router="hier_mix", model="gpt-x", **changed):
    """At what a right answer is worth, in USD; None: cost does not count. changed: fields of `Verdict`."""
    figures = {
        "utility": around(0.05, 0.04),
        "quality": around(0.1, 0.02),
        "saved": around(0.3, 0.1),
        "queries": 100,
        "independent": 100,
        "prompts_needed": 1234 if decision == "unsure" else None,
        "score": 0.8,
        "score_low": 0.7,
        "score_high": 0.9,
        "cost": 1.5,
        "model_score": 0.7,
        "model_cost": 2.0,
        "rho": None if value is None else 1 / value,
        "value_usd": value,
    }
    fields = {"decision": decision, "router": router, "compared": 3, "model": model}
    return Verdict(**figures | fields | changed)
