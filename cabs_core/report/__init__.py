"""Reports: one self-contained HTML page for each pool, and a leaderboard over all pools.

`data` reads marts, and `evidence` the replays behind them if they are at hand. `pool_answer` makes the answer
of a pool, `answer_page` its first screen, `sections` and `charts` the tables and figures below it. `build`
writes the files. A page has no section for data that its pool does not have.
"""

from cabs_core.base.paths import VERDICT
from cabs_core.report.build import ReportResult, build_leaderboard, build_report
from cabs_core.report.logged import build_logged_report

__all__ = ["VERDICT", "ReportResult", "build_leaderboard", "build_logged_report", "build_report"]
