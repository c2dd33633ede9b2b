"""Beta and preview features of Dagster that the project uses: listed here, silenced here, nowhere else.

Using one elsewhere shows Dagster's own warning, which the tests turn into a failure.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

#: feature: (lifecycle stage, why we use it)
USED: dict[str, tuple[str, str]] = {
    "partitioned asset checks": (
        "preview",
        "check results belong to one (pool, rho), not to the asset as a whole",
    ),
    "code references": (
        "beta",
        "links from an asset to the source line that makes it, local or on a code host",
    ),
    "freshness policies": ("beta", "the UI shows when a report is older than its deadline"),
    "pool option of ops": ("beta", "one GPU step and one DuckDB writer at a time"),
}


@contextmanager
def preview(feature: str) -> Iterator[None]:
    """Silence the lifecycle warning of one listed feature."""
    if feature not in USED:
        raise KeyError(f"{feature!r} is not listed in cabs_dagster.features.USED")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.PreviewWarning)
        warnings.simplefilter("ignore", dg.BetaWarning)
        yield
