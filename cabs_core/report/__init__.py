"""Reports: one self-contained HTML page per pool, and a leaderboard over all pools.

`data` reads the marts' parquet, `evidence` the replays and the problem behind them, where they are at hand.
`verdict` decides, `cards` puts it in words, `charts` and `sections` show the rest. What a pool does not have
is not on its page.
"""

from cabs_core.base.paths import VERDICT
from cabs_core.report.build import ReportResult, build_leaderboard, build_report
from cabs_core.report.logged import build_logged_report

__all__ = ["VERDICT", "ReportResult", "build_leaderboard", "build_logged_report", "build_report"]
