"""Assembling the pages from marts, charts, tables and sentences."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from cabs_core.atomic import write_bytes, write_text
from cabs_core.paths import safe_name
from cabs_core.report import charts, findings, png, sections, stages, svg
from cabs_core.report.data import PoolData, read_mart
from cabs_core.report.names import condition_name, condition_text, label
from cabs_core.report.tables import Table, estimate, number, words

TEMPLATES = Path(__file__).parent / "templates"


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
) -> ReportResult:
    """Write the page of one pool: `index.html`, with its tables as CSV and LaTeX and its plots as PNG beside it.

    Args:
        folder: where to write; default `<artifacts_dir>/reports/<pool>`.
        leaderboard_link: address of the leaderboard as seen from the page; empty for none.

    Raises:
        ResultError: a mart has not been built, or holds nothing of this pool.
    """
    data = PoolData(safe_name(pool, "pool name"), Path(artifacts_dir))
    folder = Path(folder or Path(artifacts_dir) / "reports" / pool)
    _ = data.info  # an unknown pool is reported before anything else
    figures = [
        c
        for c in (
            charts.overview(data),
            charts.frontiers(data),
            charts.regret_curves(data),
            charts.utility_by_rho(data),
        )
        if c
    ]
    tables = _tables(data)
    text = {
        "opening": findings.opening(data), "rq1": findings.rq1(data), "rq2": findings.rq2(data),
        "rq3": findings.rq3(data), "rq4": findings.rq4(data), "encoders": findings.encoders(data),
    }  # fmt: skip
    page = _environment().get_template("report.html.j2").render(
        info=data.info, text=text, tables=tables, figures={"regret": None} | {c.key: (c, svg.render(c)) for c in figures},
        stress=condition_name(data.info["condition"]), provenance=_provenance(data), commands=_commands(data), leaderboard_link=leaderboard_link, **_assets(),
    )  # fmt: skip
    _write_tables(folder, tables)
    path = write_text(folder / "index.html", page)
    images = {c.key: png.render(c) for c in figures}
    for name, image in images.items():
        write_bytes(folder / f"{name}.png", image)
    return ReportResult(path, _summary(data), _markdown(data, text["opening"], tables["utility"]), images)


def build_leaderboard(
    artifacts_dir: str | Path, folder: str | Path | None = None, *, report_link: str = "{pool}/index.html"
) -> ReportResult:
    """Write the page over all pools: every pool's winner, and every policy's utility and rank in every pool.

    Args:
        folder: where to write `index.html`; default `<artifacts_dir>/reports`.
        report_link: address of a pool's page as seen from this one.

    Raises:
        ResultError: the marts have not been built.
    """
    artifacts_dir = Path(artifacts_dir)
    board = read_mart(artifacts_dir, "mart_policy_leaderboard")
    pools = read_mart(artifacts_dir, "stg_pools")
    cards = []
    for info in pools.to_dict("records"):
        data = PoolData(info["pool"], artifacts_dir)
        ranked = bool(data.ranked)
        cards.append(
            {
                "info": info,
                "opening": findings.opening(data) if ranked else f"No ranking: {data.unranked_text()}",
                "winner": label(data.best) if ranked else "–",
                "stress": condition_name(info["condition"]),
                "link": report_link.format(pool=info["pool"]),
            }
        )
    shown = {
        p["pool"]: p["pool"] + _remarks("synthetic" if p["synthetic"] else "", condition_name(p["condition"]))
        for p in pools.to_dict("records")
    }
    table = _across_pools(board, shown)
    page = (
        _environment()
        .get_template("leaderboard.html.j2")
        .render(cards=cards, tables={table.key: table}, **_assets())
    )
    folder = Path(folder or artifacts_dir / "reports")
    _write_tables(folder, {table.key: table})
    path = write_text(folder / "index.html", page)
    lines = [f"* **{c['info']['title']}**: {c['winner']}" for c in cards]
    summary = {"pools": len(cards), "policies": int(board["policy"].nunique()) if len(board) else 0}
    return ReportResult(path, summary, "\n".join(lines) or "No replays yet.", {})


def _remarks(*remarks: str) -> str:
    said = ", ".join(r for r in remarks if r)
    return f" ({said})" if said else ""


def _tables(data: PoolData) -> dict[str, Table | None]:
    """Every table by its key; None where the pool has nothing to show."""
    return {
        "utility": sections.utility(data),
        "coupled": sections.coupled(data),
        "presets": sections.presets(data),
        "efficiency": sections.efficiency(data),
        "latency": sections.latency(data),
        "arms": sections.arms(data),
        "encoders": sections.encoders(data),
        "solver": sections.solver(data),
        "oracles": stages.oracle_heads(data),
        "oracle_arms": stages.oracle_arms(data),
        "tuning": stages.tuning(data),
    }


def _across_pools(board: pd.DataFrame, pools: dict[str, str]) -> Table:
    ranks = board[board["rank"].notna()].groupby("policy")["rank"].agg(["mean", "count"])
    order = ranks.sort_values(["count", "mean"], ascending=[False, True]).index.tolist()
    order += [p for p in board["policy"].unique() if p not in order]
    by = board.set_index(["policy", "pool"])
    rows = []
    for policy in order:
        row = [words(label(policy)), number(ranks["mean"].get(policy), 1)]
        for pool in pools:
            if (policy, pool) not in by.index:
                row.append(number(None))
                continue
            r = by.loc[(policy, pool)]
            row.append(estimate(r["utility"], r["utility_se"], bold=r["rank"] == 1))
        rows.append(row)
    return Table(
        "leaderboard", "Overall utility of every policy in every pool", ["Policy", "Mean rank", *pools.values()], rows,
        note="Bold: best real router of the pool. Mean rank over the policy's pools, in each at the cost "
        "sensitivities that all its policies have; upper bounds have no rank.",
    )  # fmt: skip


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


def _summary(data: PoolData) -> dict[str, Any]:
    line = data.board.loc[data.best]
    summary: dict[str, Any] = {
        "best_policy": data.best,
        "utility": float(line["utility"]),
        "utility_se": _float(line["utility_se"]),
        "accuracy": float(line["score"]),
        "cost_per_1000_calls_usd": float(line["cost_per_1000_calls"]),
        "versus_reference": _float(line["versus_reference"]),
        "versus_reference_significant": bool(line["versus_reference_significant"])
        if line["versus_reference_significant"] is not None
        else False,
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


def _markdown(data: PoolData, opening: str, table: Table) -> str:
    head = "**Synthetic data.** " if data.info["synthetic"] else ""
    shown = [i for i, h in enumerate(table.headers) if i == 0 or h in ("Low", "Medium", "High", "Overall")]
    shown = shown[:5]
    lines = [
        "| " + " | ".join(table.headers[i] for i in shown) + " |",
        "|" + "|".join("---" if i == 0 else "---:" for i in shown) + "|",
    ]
    for row in table.rows:
        cells = [row[i] for i in shown]
        lines.append("| " + " | ".join(f"**{c.text}**" if c.bold else c.text for c in cells) + " |")
    return f"{head}{opening}\n\n" + "\n".join(lines)


def _write_tables(folder: Path, tables: dict[str, Table | None]) -> None:
    target = folder / "tables"
    if target.is_dir():
        shutil.rmtree(target)  # a table that is gone from the page must not stay beside it
    for table in filter(None, tables.values()):
        write_text(target / f"{table.key}.csv", table.csv())
        write_text(target / f"{table.key}.tex", table.latex())


def _environment():
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["tie"] = _tie
    return environment


def _tie(text: str) -> str:
    """No line break between a number and its percent sign or error."""
    return text.replace(" %", "\u00a0%").replace(" ± ", "\u00a0±\u00a0")


def _assets() -> dict[str, Any]:
    from markupsafe import Markup

    return {
        "style": Markup((TEMPLATES / "style.css").read_text(encoding="utf-8")),
        "script": Markup((TEMPLATES / "page.js").read_text(encoding="utf-8")),
    }
