"""Reports: one self-contained HTML page per pool, and a leaderboard over all pools.

    build_report(pool, artifacts_dir, folder=None)      `reports/<pool>/index.html`, verdict, tables, PNGs
    build_logged_report(pool, artifacts_dir, folder)    the same of a pool whose source is a log
    build_leaderboard(artifacts_dir, folder=None)       `reports/index.html`

    Each gives a ReportResult(path, summary, markdown, images): `summary` is flat and JSON-safe (verdict,
    best_policy, utility, ...), `markdown` the verdict for a pull request, `images` {name: PNG bytes}, each
    under 100 kB.

`data` reads the marts' parquet under `<artifacts_dir>/marts`, which must have been built. `evidence` reads
the replays and the problem behind them, where they are at hand: single models, tasks, examples, calibration,
intervals of savings.
`verdict` decides, `cards` puts it in words, `charts` and `sections` show the rest. What a pool does not have
is not on its page.
"""

from cabs_core.base.paths import VERDICT
from cabs_core.report.build import ReportResult, build_leaderboard, build_report
from cabs_core.report.logged import build_logged_report

__all__ = ["VERDICT", "ReportResult", "build_leaderboard", "build_logged_report", "build_report"]
