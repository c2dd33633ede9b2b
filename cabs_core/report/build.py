"""Writing of the pages of a pool and of the leaderboard, with the files beside them.

The contents of a pool's page are those of `page.PoolPage`. `logged` writes the page of a log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cabs_core.base.atomic import write_bytes, write_text
from cabs_core.base.drawing import drawing_process
from cabs_core.base.paths import VERDICT, safe_name
from cabs_core.report import cards, findings, leaderboard
from cabs_core.report.answer_page import AnswerPage
from cabs_core.report.changes import changes, previous_facts
from cabs_core.report.collected import collection_of
from cabs_core.report.data import PoolData
from cabs_core.report.evidence import Evidence, load_evidence
from cabs_core.report.made_from import files_of
from cabs_core.report.page import PoolPage
from cabs_core.report.plots.page import bundle_ahead, render_page
from cabs_core.report.pool_answer import GoalAnswer, PoolAnswer
from cabs_core.report.tables import missing, write_tables

if TYPE_CHECKING:
    from cabs_core.evaluation.replay.storage import StoredTrace

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class ReportResult:
    """A page that was written.

    Attributes:
        path: file of the page.
        summary: main figures of the page, as plain values without nesting.
        markdown: the answer in Markdown, for a pull request.
        images: {name: PNG of at most 100 kB}.
    """

    path: Path
    summary: dict[str, Any]
    markdown: str
    images: dict[str, bytes]


@drawing_process()
def build_report(
    pool: str,
    artifacts_dir: str | Path,
    folder: str | Path | None = None,
    *,
    profile_link: str = "",
    previous: str | Path | None = None,
    problem: str | Path | None = None,
    outcomes: str | Path | None = None,
    collection: Mapping[str, Any] | None = None,
    warnings: Sequence[str] = (),
    answered: Callable[[Evidence], PoolAnswer] | None = None,
    older_data: str = "",
    again: Callable[[str, float], StoredTrace] | None = None,
) -> ReportResult:
    """Write `index.html`, and beside it `verdict.json`, `verdict.md`, the tables as CSV and the plots as PNG.

    Args:
        pool: name of the pool.
        artifacts_dir: folder with the marts and replays.
        folder: folder to write to; default `<artifacts_dir>/reports/<pool>`.
        profile_link: address of the profile page as seen from the page; empty for none.
        previous: `verdict.json` of the last report; default the one in `folder`.
        problem, outcomes: folders of the replayed problem and of the outcome table, if they are elsewhere
            than in `artifacts_dir`. Without these files the page has no sections on single queries and
            prompts.
        collection: facts about a pool whose answers were collected, see `collected.collection_of`.
        warnings: sentences of the data checks, for the first screen.
        answered: function that makes the answer, with the answer to the goal, from the replays. None if the
            outcome table is not at hand.
        older_data: sentence that says since when the marts are older than the data, and why. The page then
            has no answer. Empty if the marts are of the data at hand.
        again: function that replays a policy at a rho, for replays whose rounds were deleted to save space.

    Raises:
        ResultError: a mart has not been built or holds no replay of this pool, or no policy has a rank.
    """
    artifacts_dir = Path(artifacts_dir)
    data = PoolData(safe_name(pool, "pool name"), artifacts_dir)
    folder = Path(folder or artifacts_dir / "reports" / pool)
    # read first, so that an unknown pool or a pool without a ranking is an error before work is done
    _ = data.info
    _ = data.best
    bundle_ahead()
    evidence = None
    if not older_data:
        evidence = load_evidence(
            data,
            problem=None if problem is None else Path(problem),
            outcomes=None if outcomes is None else Path(outcomes),
            again=again,
        )
    first = None
    if evidence is not None and answered is not None:
        rhos = tuple(sorted(data.compared))
        first = AnswerPage(answered(evidence), pool, findings.best_policy(data), rhos, data.scale)
    headline = _headline(data, first, older_data)
    facts = _facts(data, headline)
    before = previous_facts(Path(previous or folder / VERDICT), facts)
    links = [("All pools", "../index.html")]
    if profile_link:
        links.append(("Profile of the data", profile_link))
    page = PoolPage(
        data=data,
        evidence=evidence,
        origin=collection_of(collection, data.scale),
        changes=changes(before, facts),
        links=links,
        warnings=warnings,
        older_data=older_data,
        first_screen=first,
    )
    drawn = {key: figure for key, figure in page.figures.items() if figure}
    for figure in drawn.values():
        figure.draw_png_ahead()
    html = render_page("report.html.j2", TEMPLATES, files_of=files_of, figures=page.figures, page=page)
    write_tables(folder, page.tables)
    path = write_text(folder / "index.html", html)
    note = cards.markdown(
        data,
        changes=page.changes or [],
        banners=page.banners,
        ranking=page.text["ranking"],
        first=first,
        headline=headline,
    )
    write_text(folder / "verdict.md", note)
    write_text(folder / VERDICT, _verdict_json(page, facts, before))
    images = {key: figure.png for key, figure in drawn.items()}
    for name, image in images.items():
        write_bytes(folder / f"{name}.png", image)
    summary = _summary(data, headline, page.goal)
    if first is not None and not first.found.answer.today_is_assumed:
        summary["why"] = first.why
    if first is not None and first.newest:
        summary["newest"] = first.newest
    return ReportResult(path, summary, note, images)


def build_leaderboard(
    artifacts_dir: str | Path, folder: str | Path | None = None, headlines: Mapping[str, str] | None = None
) -> ReportResult:
    """Write the page over all pools, with its tables: the answer of every pool, the ranks of every policy.

    Args:
        artifacts_dir: folder with the marts.
        folder: folder to write `index.html` to; default `<artifacts_dir>/reports`.
        headlines: {pool: headline of its report}, so that both pages give one answer.

    Raises:
        ResultError: the marts have not been built.
    """
    artifacts_dir = Path(artifacts_dir)
    pools, tables = leaderboard.tables(artifacts_dir, headlines)
    page = render_page("leaderboard.html.j2", TEMPLATES, files_of=files_of, pools=len(pools), tables=tables)
    folder = Path(folder or artifacts_dir / "reports")
    write_tables(folder, tables)
    path = write_text(folder / "index.html", page)
    lines = [f"* **{title}**: {winner}" for title, winner in pools]
    board = tables["leaderboard"]
    summary = {"pools": len(pools), "policies": len(board.rows) if board else 0}
    return ReportResult(path, summary, "\n".join(lines) or "No replays yet.", {})


def _headline(data: PoolData, first: AnswerPage | None, older_data: str) -> str:
    """Return the answer in one line, for the page, `cabs run` and the leaderboard.

    Without an answer page the line names the best policy. If `older_data` says that the figures are of older
    data, the line is that there is no answer.
    """
    if older_data:
        return "No answer on older data"
    if first is None:
        return findings.best_policy(data)
    return first.headline


def _facts(data: PoolData, headline: str) -> dict[str, Any]:
    """Return the facts that `verdict.json` keeps, so that the next report can say what changed since."""
    best = data.routers[0] if data.routers else data.best
    line = data.board.loc[best]
    return {
        "headline": headline,
        "router": best,
        "utility": float(line["utility"]),
        "score": float(line["score"]),
        "cost": float(line["cost_per_1000_calls"]),
        "queries": int(data.info["queries"]),
        "trials": int(data.info["trials"]),
        "rhos": int(line["rhos"]),
        "models": [str(a) for a in data.info["arm_names"]],
        "policies": sorted(str(p) for p in data.board.index),
        "problem": str(data.info["problem_hash"]),
    }


def _verdict_json(page: PoolPage, facts: dict[str, Any], before: dict[str, Any] | None) -> str:
    """Return the text of `verdict.json`.

    Args:
        facts: facts of this report.
        before: facts of an earlier report that differ; None if there is none.
    """
    data = page.data
    ranking = []
    for policy, row in data.board.iterrows():
        ranking.append(
            {
                "rank": None if missing(row["rank"]) else int(row["rank"]),
                "policy": policy,
                "utility": float(row["utility"]),
                "utility_se": _float(row["utility_se"]),
                "score": float(row["score"]),
                "usd_per_1000_requests": float(row["cost_per_1000_calls"]),
            }
        )
    content = {
        "format": 1,
        "pool": data.pool,
        "title": data.info["title"],
        "synthetic": bool(data.info["synthetic"]),
        "condition": data.info["condition"] or "none",
        "headline": facts["headline"],
        "why": "" if page.first_screen is None else page.first_screen.why,
        "older_data": page.older_data or None,
        "answer": None if page.first_screen is None else page.first_screen.found.to_dict(),
        "goal": None if page.goal is None else asdict(page.goal),
        "best_that_learns": findings.best_that_learns(data),
        "within_noise": cards.as_good(data) if data.routers else [],
        "warnings": page.banners,
        "ranking": ranking,
        "export_command": None if page.first_screen is None else page.first_screen.export,
        "facts": facts,
        "previous": before,
    }
    return json.dumps(content, indent=1, ensure_ascii=False, default=lambda scalar: scalar.item()) + "\n"


def _summary(data: PoolData, headline: str, goal: GoalAnswer | None) -> dict[str, Any]:
    """Return the main figures of a page as plain values without nesting."""
    line = data.board.loc[data.best]
    summary: dict[str, Any] = {
        "verdict": headline,
        "best_policy": data.best,
        "utility": float(line["utility"]),
        "utility_se": _float(line["utility_se"]),
        "accuracy": float(line["score"]),
        "cost_per_1000_calls_usd": float(line["cost_per_1000_calls"]),
        "versus_reference": _float(line["versus_reference"]),
        "versus_reference_significant": bool(line["versus_reference_significant"]),
        "reference_policy": data.reference,
        "policies": len(data.board),
        "queries": int(data.info["queries"]),
        "trials": int(data.info["trials"]),
        "synthetic": bool(data.info["synthetic"]),
        "condition": data.info["condition"] or "none",
    }
    if goal is not None:
        summary["goal"] = goal.text
    if data.missing_rhos:
        summary["missing"] = data.missing_text()
    if len(data.ranked) > 1:
        pair = data.pair(data.best, data.ranked[1])
        summary["runner_up"] = data.ranked[1]
        if pair is None:
            summary["lead_over_runner_up"] = None
        else:
            summary["lead_over_runner_up"] = _float(pair["difference"])
    return summary


def _float(value: Any) -> float | None:
    """Return a number for JSON, or None if the value is None or NaN."""
    if missing(value):
        return None
    return float(value)
