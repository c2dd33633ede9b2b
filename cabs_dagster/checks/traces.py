"""Check `trace` of every replay (ERROR): complete, actions in range, valid propensities, no NaN.

The trace is read back from disk right after it was written; the findings are kept in the record, so that reusing
an artifact costs nothing. `cabs check` reads the files again.
"""

from __future__ import annotations

from typing import Any

import dagster as dg

from cabs_dagster import partitions
from cabs_dagster.features import preview

TRACE = "trace"


def trace_check_spec(key: dg.AssetKey) -> dg.AssetCheckSpec:
    """Spec of the check on one policy's replay."""
    with preview("partitioned asset checks"):
        return dg.AssetCheckSpec(
            TRACE,
            asset=key,
            partitions_def=partitions.pool_by_rho,
            blocking=True,
            description="The trace read back from disk is complete, plays existing arms, has propensities in (0, 1] "
            "and holds no NaN; every trial visits each query at most once.",
        )


def examine(stored, problem, trials: int, rounds: int | None) -> dict[str, Any]:
    """{"problems": [text], figures} of a stored replay; an empty list means that the trace is sound."""
    import numpy as np

    problems = []
    expected = (trials, min(rounds or len(problem.query_ids), len(problem.query_ids)))
    if stored.actions.shape != expected:
        problems.append(f"holds {stored.actions.shape} (trials, rounds), expected {expected}")
    arms = len(problem.arms)
    outside = int(((stored.actions < 0) | (stored.actions >= arms)).sum())
    if outside:
        problems.append(f"{outside} actions outside 0..{arms - 1}")
    for name in ("propensities", "rewards"):
        bad = int((~np.isfinite(getattr(stored, name))).sum())
        if bad:
            problems.append(f"{bad} {name} are not finite")
    invalid = int(((stored.propensities <= 0) | (stored.propensities > 1 + 1e-6)).sum())
    if invalid:
        problems.append(f"{invalid} propensities outside (0, 1]")
    outside = int(((stored.rewards < 0) | (stored.rewards > 1)).sum())
    if outside:
        problems.append(f"{outside} rewards outside [0, 1]")
    visits = [np.bincount(row) for row in stored.order]
    repeated = sum(int((count - 1)[count > 1].sum()) for count in visits)
    if repeated:
        problems.append(f"{repeated} rounds repeat a query of the same trial")
    return {
        "problems": problems,
        "rounds": int(stored.actions.size),
        "smallest propensity": float(np.nanmin(stored.propensities)) if stored.propensities.size else 0.0,
    }


def trace_result(key: dg.AssetKey, findings: dict[str, Any]) -> dg.AssetCheckResult:
    """Result of the check from findings of `examine`."""
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=TRACE,
        passed=not findings["problems"],
        severity=dg.AssetCheckSeverity.ERROR,
        description="; ".join(findings["problems"]) or "sound",
        metadata={name: value for name, value in findings.items() if name != "problems"},
    )
