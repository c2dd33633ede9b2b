"""Assembling the pages from marts, evidence, figures, tables and sentences."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from cabs_core.atomic import write_bytes, write_text
from cabs_core.paths import safe_name
from cabs_core.plots import render_page
from cabs_core.pools.standing import VERDICT
from cabs_core.report import cards, charts, findings, leaderboard, sections, stages
from cabs_core.report.changes import changes, previous_facts
from cabs_core.report.collected import collection_of, compared_with
from cabs_core.report.data import PoolData
from cabs_core.report.evidence import Evidence, examples, load_evidence
from cabs_core.report.made_from import files_of
from cabs_core.report.names import condition_name, condition_text, label, says
from cabs_core.report.tables import Table, write_tables
from cabs_core.report.verdict import Verdict, routers, verdicts
from cabs_core.report.verdict import summary as verdict_summary

if TYPE_CHECKING:
    from cabs_core.replay.storage import StoredTrace

TEMPLATES = Path(__file__).parent / "templates"
#: Requests a month that the page starts with.
REQUESTS = 100_000
_LONGEST_PROMPT = 600


@dataclass(frozen=True)
class ReportResult:
    """Where the page is, and what of it fits into an asset's metadata."""

    path: Path
    summary: dict[str, Any]
    markdown: str
    images: dict[str, bytes]


def build_report(
    pool: str,
    artifacts_dir: str | Path,
    folder: str | Path | None = None,
    *,
    leaderboard_link: str = "../index.html",
    profile_link: str = "",
    previous: str | Path | None = None,
    problem: str | Path | None = None,
    outcomes: str | Path | None = None,
    collection: Mapping[str, Any] | None = None,
    warnings: Sequence[str] = (),
    answer: dict[str, Any] | None = None,
    older_data: str = "",
    again: Callable[[str, float], StoredTrace] | None = None,
) -> ReportResult:
    """Write the page of one pool: `index.html`, and beside it `verdict.json`, `verdict.md`, its tables as CSV and
    LaTeX and its plots as PNG.

    Args:
        folder: where to write; default `<artifacts_dir>/reports/<pool>`.
        leaderboard_link, profile_link: addresses as seen from the page; empty for none.
        previous: the last report's `verdict.json`; default the one in `folder`.
        problem, outcomes: folders of the replayed problem and the outcome table, if not where the store has them.
            Without them, or without the replays, the page lacks what needs single queries and prompts.
        collection: of a pool whose answers were collected, see `collected.collection_of`.
        warnings: of the data checks, for the first screen. answer: to the pool's goal (`router.goals.Answer`).
        again: plays (policy, rho) again, whose rounds were pruned.
        older_data: since when and why the marts are not of the data at hand: then there is no verdict. Empty: they are.

    Raises:
        ResultError: a mart has not been built, or holds nothing of this pool.
    """
    artifacts_dir = Path(artifacts_dir)
    data = PoolData(safe_name(pool, "pool name"), artifacts_dir)
    folder = Path(folder or artifacts_dir / "reports" / pool)
    _ = data.info, data.best  # an unknown pool, or one without a ranking, is reported before anything else
    evidence = None if older_data else load_evidence(
        pool, artifacts_dir, str(data.info["problem_hash"]), rhos=data.compared,
        problem=None if problem is None else Path(problem), outcomes=None if outcomes is None else Path(outcomes),
        settings=data.settings.get("replay"), again=again,
    )  # fmt: skip
    found = [] if older_data else verdicts(data, evidence)
    if against := compared_with(collection):
        found = [replace(v, against=against, value_usd=None, gain=None) for v in found]
    figures = charts.figures(data, evidence)
    origin = collection_of(collection, evidence, found)
    more = {table.key: table for make in sections.BEHIND if (table := make(data))}
    tables = _tables(data, evidence, found) | origin.tables | more
    facts = _facts(data, found)
    before = previous_facts(Path(previous or folder / VERDICT), facts)
    changed = changes(before, facts)
    text = {
        "ranking": findings.ranking(data), "rq1": findings.rq1(data), "rq2": findings.rq2(data), "rq3": findings.rq3(data),
        "rq4": findings.rq4(data), "encoders": findings.encoders(data), "paper": bool(data.info["paper_benchmark"]),
    }  # fmt: skip
    banners = [
        *([older_data] if older_data else []),
        *warnings,
        *origin.banners,
        *sections.banners(data, evidence),
    ]
    cases = [cards.case(v, data.pool) for v in cards.cases(found)]
    first = cards.usual(cards.cases(found))
    chosen = _examples(evidence, found)
    shown = {key: figure for key, figure in figures.items() if figure}
    page = render_page(
        "report.html.j2", TEMPLATES, files_of=files_of, info=data.info, text=text, tables=tables, figures={**dict.fromkeys(figures), **shown},
        stress=condition_name(data.info["condition"]),
        condition=condition_text(data.info["condition"]), provenance=_provenance(data), commands=_commands(data),
        links=[(t, a) for t, a in (("All pools", leaderboard_link), ("Profile of the data", profile_link)) if a],
        banners=banners, cases=cases, first=first, summary=facts["headline"], worth=cards.worth_words(found), answer=answer, older_data=older_data, cases_json=_script_json(cases), requests=REQUESTS, month_bill=_month(cases, first),
        winner=label(found[0].router) if found else "", as_good=[label(p) for p in cards.as_good(data, found[0].router)] if found else [],
        examples=chosen, shown_rho=_shown_rho(evidence, found),
        origin=origin, glossary=[(label(p), says(p)) for p in data.board.index], changes=changed, more=list(more.values()), sections=_contents(tables, more, figures, text, chosen),
    )  # fmt: skip
    write_tables(folder, tables)
    path = write_text(folder / "index.html", page)
    note = cards.markdown(
        data, found, changes=changed or [], banners=banners, ranking=str(text["ranking"]), answer=answer
    )
    write_text(folder / "verdict.md", note)
    write_text(folder / VERDICT, _verdict_json(data, found, facts, before, banners, answer, older_data))
    images = {key: figure.png for key, figure in shown.items()}
    for name, image in images.items():
        write_bytes(folder / f"{name}.png", image)
    return ReportResult(path, _summary(data, found), note, images)


def build_leaderboard(
    artifacts_dir: str | Path, folder: str | Path | None = None, said: Mapping[str, str] | None = None
) -> ReportResult:
    """Write the page over all pools: every pool's verdict, and every policy's rank, gap closed and savings in each.

    Args:
        folder: where to write `index.html`; default `<artifacts_dir>/reports`.
        said: {pool: the verdict of its report}, so that both say the same.

    Raises:
        ResultError: the marts have not been built.
    """
    artifacts_dir = Path(artifacts_dir)
    pools, tables = leaderboard.tables(artifacts_dir, said)
    page = render_page("leaderboard.html.j2", TEMPLATES, files_of=files_of, pools=len(pools), tables=tables)
    folder = Path(folder or artifacts_dir / "reports")
    write_tables(folder, tables)
    path = write_text(folder / "index.html", page)
    lines = [f"* **{title}**: {winner}" for title, winner in pools]
    summary = {"pools": len(pools), "policies": len(tables["leaderboard"].rows) if pools else 0}
    return ReportResult(path, summary, "\n".join(lines) or "No replays yet.", {})


def _tables(data: PoolData, evidence: Evidence | None, found: list[Verdict]) -> dict[str, Table | None]:
    """Every table by its key; None where the pool has nothing to show."""
    names = routers(data)
    return {
        "by_value": sections.by_value(found),
        "budgets": sections.budgets(evidence, names[0]) if evidence and names else None,
        "utility": sections.utility(data),
        "coupled": sections.coupled(data),
        "presets": sections.presets(data),
        "efficiency": sections.efficiency(data),
        "arms": sections.arms(data),
        "encoders": sections.encoders(data),
        "tuning": stages.tuning(data),
        "logged": stages.logged(data),
        "tasks": sections.tasks(evidence, names[0], _middle_rho(evidence, names[0]))
        if evidence and names
        else None,
        "propensities": sections.propensities(evidence) if evidence else None,
    }


def _middle_rho(evidence: Evidence, policy: str) -> float:
    """The middle one of the rhos at which a policy was replayed."""
    rhos = sorted(rho for name, rho in evidence.folders if name == policy)
    return rhos[len(rhos) // 2]


def _shown_rho(evidence: Evidence | None, found: list[Verdict]) -> str:
    return f"{_middle_rho(evidence, found[0].router):g}" if evidence and found else ""


def _examples(evidence: Evidence | None, found: list[Verdict]) -> list[tuple[str, list[dict[str, str]], str]]:
    if evidence is None or not found or not evidence.prompts:
        return []
    router = found[0].router
    frame = examples(evidence, router, _middle_rho(evidence, router))
    groups = []
    for title, hit, kind in (
        ("Right, and cheaper than the mean", True, "hit"),
        ("Missed, though another model was right", False, "miss"),
    ):
        rows = []
        for e in frame[frame["hit"] == hit].itertuples():
            prompt = e.prompt if len(e.prompt) <= _LONGEST_PROMPT else e.prompt[: _LONGEST_PROMPT - 1] + "…"
            others = sorted(
                ((s, m) for m, s in e.scores.items() if m != e.model), key=lambda pair: (-pair[0], pair[1])
            )
            rows.append(
                {"task": e.task, "prompt": prompt, "model": e.model, "score": f"{e.score:g}", "cost": cards.money(e.cost),
                 "others": "Others: " + ", ".join(f"{m} {s:g}" for s, m in others) + "."}
            )  # fmt: skip
        groups.append((title, rows, kind))
    return groups if any(rows for _, rows, _ in groups) else []


def _contents(
    tables: Mapping[str, Any],
    more: Mapping[str, Any],
    figures: Mapping[str, Any],
    text: Mapping[str, Any],
    chosen: list[Any],
) -> list[tuple[str, str]]:
    """(id, title) of the sections that the page has."""
    candidates = [
        ("collected", "Collection", tables["collection"]), ("frontier", "Quality against cost", True), ("saving", "Savings", figures["savings"]), ("tasks", "By task", tables["tasks"]),
        ("examples", "Examples", chosen), ("utility", "Every policy", True), ("learning", "Learning", True),
        ("trust", "Traces", figures["calibration"] or tables["propensities"]), ("arms", "Models played", tables["arms"]),
        ("logged", "Logged traffic", tables["logged"]),
        ("paper", "The paper's questions", tables["coupled"] or tables["presets"] or text["paper"]),
        ("robustness", "Encoders", tables["encoders"]),
        ("inside", "Speed, oracles, tuning", more or tables["tuning"]),
        ("changes", "Changes", True), ("words", "Words", True), ("provenance", "Provenance", True),
    ]  # fmt: skip
    return [(key, title) for key, title, there in candidates if there]


def _month(cases: list[dict[str, Any]], first: int) -> str:
    return cards.money(cases[first]["cost"] * REQUESTS / 1000) if cases else ""


def _script_json(value: Any) -> Any:
    """JSON for a script element."""
    return Markup(json.dumps(value, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c"))


def _facts(data: PoolData, found: list[Verdict]) -> dict[str, Any]:
    """What the next report is compared with."""
    line = data.board.loc[found[0].router if found else data.best]
    return {
        "headline": verdict_summary(found) if found else "No verdict",
        "router": found[0].router if found else data.best,
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


def _verdict_json(
    data: PoolData,
    found: list[Verdict],
    facts: dict[str, Any],
    before: dict[str, Any] | None,
    banners: list[str],
    answer: dict[str, Any] | None,
    older_data: str,
) -> str:
    ranking = [
        {"rank": None if r["rank"] != r["rank"] else int(r["rank"]), "policy": policy, "utility": float(r["utility"]),
         "utility_se": _float(r["utility_se"]), "score": float(r["score"]), "usd_per_1000_requests": float(r["cost_per_1000_calls"])}
        for policy, r in data.board.iterrows()
    ]  # fmt: skip
    content = {
        "format": 1,
        "pool": data.pool,
        "title": data.info["title"],
        "synthetic": bool(data.info["synthetic"]),
        "condition": data.info["condition"] or "none",
        "headline": facts["headline"],
        "older_data": older_data or None,
        "goal": answer,
        "overall": found[0].to_dict() if found else None,
        "by_value": [v.to_dict() for v in found[1:]],
        "within_noise": cards.as_good(data, found[0].router) if found else [],
        "warnings": banners,
        "ranking": ranking,
        "export_command": None
        if older_data
        else cards.export_command(data.pool, cards.shown_case(found) if found else None),
        "facts": facts,
        "previous": before,
    }
    return json.dumps(content, indent=1, ensure_ascii=False, default=_plain) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} in a verdict")


def _provenance(data: PoolData) -> list[tuple[str, str]]:
    row = data.mart("provenance").iloc[0]
    versions = json.loads(row["versions"] or "{}")
    entries = [
        ("Replays compared", f"{row['runs']} ({row['policies']} policies × {row['rhos']} values of ρ)"),
        ("Replays set aside as outdated", str(row["outdated_runs"])),
        ("Rounds × trials", f"{row['rounds']:,} × {row['trials']}"),
        ("Encoder", row["encoder"]),
        ("Stress condition", _condition(row["condition"])),
        ("Weight of latency (ρ₁)", f"{data.info['latency_weight']:g}"),
        ("Replay problem (hash)", row["problem_hash"]),
        ("Query orders (hash)", row["order_hash"]),
        ("Pool settings (hash)", row["pool_hash"]),
        (
            "Seeds: split / oracle / order",
            f"{_whole(row['split_seed'])} / {_whole(row['oracle_seed'])} / {_whole(row['order_seed'])}",
        ),
        ("Replayed (UTC)", f"{row['oldest_run']} to {row['newest_run']}"),
        ("Python", row["python"]),
        ("Packages", ", ".join(f"{k} {v}" for k, v in versions.items())),
    ]
    return [(k, "–" if v is None or v != v else str(v)) for k, v in entries]


def _condition(name: Any) -> str:
    text = condition_text(name)
    return f"{name} ({text})" if text else "none"


def _whole(value: Any) -> str:
    return "–" if value is None or value != value else str(int(value))


def _commands(data: PoolData) -> list[str]:
    return [
        f"cabs pool show {data.pool}",
        f"cabs run --pool {data.pool}",
        f"cabs check --pool {data.pool}",
        f"cabs report --pool {data.pool} --open",
    ]


def _summary(data: PoolData, found: list[Verdict]) -> dict[str, Any]:
    line = data.board.loc[data.best]
    summary: dict[str, Any] = {
        "verdict": verdict_summary(found) if found else "No verdict",
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
    if data.missing:
        summary["missing"] = data.missing_text()
    if len(data.ranked) > 1:
        pair = data.pair(data.best, data.ranked[1])
        summary["runner_up"] = data.ranked[1]
        summary["lead_over_runner_up"] = None if pair is None else _float(pair["difference"])
    return summary


def _float(value: Any) -> float | None:
    return None if value is None or value != value else float(value)
