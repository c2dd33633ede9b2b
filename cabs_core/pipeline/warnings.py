"""Warnings of the checks of a pool's data, for its report."""

from typing import Any

from cabs_core.data.validation.catalog import CheckResult
from cabs_core.pipeline.artifacts.stages import POOL_STAGES
from cabs_core.pipeline.artifacts.store import ArtifactStore


def data_warnings(store: ArtifactStore, pool: str) -> list[str]:
    """Return the warnings about a pool's data that bear on the verdict, as sentences.

    The sentences are on failed checks that the pool file accepts or that have a text on their meaning
    (`CheckResult.means`), on several judges, on gaps and on queries that were left out.
    """
    warnings = []
    for stage in (stage for stage in POOL_STAGES.values() if stage.checks):
        record = store.record((stage.name, pool))
        rows: list[dict[str, Any]]
        if record:
            rows = record.summary.get("checks", [])
        else:
            rows = []
        results = [CheckResult(**row) for row in rows if not row["passed"]]
        warnings += [r.warning for r in results if r.accepted or r.means]
        if record:
            loading = record.summary.get("loading", {})
        else:
            loading = {}
        if loading.get("judges"):
            from cabs_core.data.outcomes.judges import judges_text  # noqa: PLC0415  (pandas: few pools)

            warnings.append(judges_text(loading["judges"]))
        gaps = loading.get("gaps", {})
        dropped = loading.get("queries_dropped")
        if gaps or dropped:
            from cabs_core.data.outcomes.gaps import (  # noqa: PLC0415  (pandas, scipy: few pools)
                gaps_text,
                left_out_because,
            )

            warnings += gaps_text(gaps)
        if gaps:
            warnings.append(
                "Verdict and goal rest on real answers; tables and figures below count predicted ones alike."
            )
        if dropped:
            warnings.append(
                f"{dropped:,} of {loading['queries_read']:,} queries are left out, because "
                f"{left_out_because(gaps)}; all figures are about the others."
            )
    return warnings
