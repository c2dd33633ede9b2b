"""Reports: one self-contained HTML page per pool, and a leaderboard over all pools.

    build_report(pool, artifacts_dir, folder=None) -> ReportResult   `reports/<pool>/index.html`, tables, PNGs
    build_leaderboard(artifacts_dir, folder=None) -> ReportResult    `reports/index.html`
    mart_fingerprints(artifacts_dir, pool=None) -> {mart: hash}      what a page depends on

    ReportResult(path, summary, markdown, images): `summary` is flat and JSON-safe (best_policy, utility, ...),
    `markdown` a few lines for an asset's metadata, `images` {name: PNG bytes}, each under 100 kB.

Every figure comes from the marts' parquet under `<artifacts_dir>/marts`; run those first. Marts that describe
optional stages (oracle diagnostics, tuning, encoders) may be empty: the page says so.
"""

from cabs_core.report.build import ReportResult, build_leaderboard, build_report
from cabs_core.report.data import mart_fingerprints

__all__ = ["ReportResult", "build_leaderboard", "build_report", "mart_fingerprints"]
