"""Checks of outcomes and splits, as Great Expectations suites, and the profile page of a pool.

    run_checks('outcomes', outcomes, pool=pool) -> list[CheckResult]
    run_checks('splits', outcomes, splits=splits, pool=pool) -> list[CheckResult]
    check_names(stage) -> list[CheckSpec]     static: name, severity, blocking, description; imports nothing heavy
    cabs_core.validation.profile.write_profile(outcomes, splits, pool, path)

One result per check, in the order of `check_names`. A check that breaks is a failed result with the error in its
metadata, never an exception.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from cabs_core.validation.catalog import CHECKS, CheckResult, CheckSpec, Stage, check_names

if TYPE_CHECKING:
    import numpy as np

    from cabs_core.outcomes import Outcomes
    from cabs_core.pool_files import ModelPool


def run_checks(
    stage: Stage,
    outcomes: Outcomes,
    splits: np.ndarray | None = None,
    pool: ModelPool | None = None,
    embeddings: np.ndarray | None = None,
    only: Collection[str] | None = None,
) -> list[CheckResult]:
    """Run the checks of a stage; see `cabs_core.validation.run.run_checks`."""
    from cabs_core.validation.run import run_checks as run  # noqa: PLC0415  (the names of checks are read without what runs them)

    return run(stage, outcomes, splits=splits, pool=pool, embeddings=embeddings, only=only)


__all__ = ["CHECKS", "CheckResult", "CheckSpec", "check_names", "run_checks"]
