"""Checks of outcomes and splits: the suites of `cabs_core.validation` as asset checks.

They run when the artifact is made and are kept in its record; an artifact that failed a blocking check is not
read by any later stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import dagster as dg

from cabs_core.validation.catalog import check_names
from cabs_dagster import partitions
from cabs_dagster.features import preview

Stage = Literal["outcomes", "splits"]


def data_check_specs(stage: Stage) -> list[dg.AssetCheckSpec]:
    """Specs of a stage's checks, known without any data."""
    with preview("partitioned asset checks"):
        return [
            dg.AssetCheckSpec(
                spec.name,
                asset=stage,
                partitions_def=partitions.pools,
                blocking=spec.blocking,
                description=spec.description,
            )
            for spec in check_names(stage)
        ]


def evaluate(stage: Stage, outcomes, pool, split=None) -> dict[str, Any]:
    """{"_checks": results, "_blocked": names of failed blocking checks} for the record of the artifact."""
    from cabs_core.validation import run_checks
    from cabs_dagster.specs import plain

    blocking = {spec.name for spec in check_names(stage) if spec.blocking}
    results = run_checks(stage, outcomes, splits=split, pool=pool)
    return {
        "_checks": [plain(result) for result in results],
        "_blocked": [
            f"{r.name}: {r.observed}, expected {r.expected}"
            for r in results
            if not r.passed and r.name in blocking
        ],
    }


def data_results(stage: Stage, summary: Mapping[str, Any], names: set[str]) -> Iterator[dg.AssetCheckResult]:
    """Results of the named checks from what `evaluate` gave, now or when the artifact was made."""
    for found in summary.get("_checks", []):
        if found["name"] not in names:
            continue
        yield dg.AssetCheckResult(
            asset_key=dg.AssetKey(stage),
            check_name=found["name"],
            passed=found["passed"],
            severity=dg.AssetCheckSeverity[found["severity"]],
            description=f"{found['observed']} (expected {found['expected']})",
            metadata={
                "examples": dg.MetadataValue.json(found["examples"][:5]),
                "details": dg.MetadataValue.json(found["metadata"]),
            },
        )
