"""The page of a log.

A log has one answer for each prompt, so nothing can be replayed. The page gives the answer by off-policy
estimates, and estimates of what every policy would have earned on held-out decisions.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from cabs_core.base.atomic import write_bytes, write_text
from cabs_core.base.errors import ResultError
from cabs_core.base.paths import VERDICT
from cabs_core.base.units import money, percentage
from cabs_core.base.utility import middle_rho
from cabs_core.data.logs.receipt import Receipt
from cabs_core.data.outcomes import Outcomes
from cabs_core.report import stages
from cabs_core.report.answer_page import AnswerPage
from cabs_core.report.ask_again import ASK_AGAIN, prompts_to_ask, write_prompts
from cabs_core.report.build import TEMPLATES, ReportResult
from cabs_core.report.data import PoolData
from cabs_core.report.made_from import files_of
from cabs_core.report.names import description_of, label, style
from cabs_core.report.plots.charts import intervals
from cabs_core.report.plots.figure import Figure, FigureTable
from cabs_core.report.plots.page import render_page
from cabs_core.report.pool_answer import PoolAnswer
from cabs_core.report.tables import (
    PageTable,
    TableCell,
    missing,
    number,
    percent,
    saving,
    signed_text,
    table_of,
    words,
    write_tables,
)


def build_logged_report(
    pool: str,
    artifacts_dir: str | Path,
    folder: str | Path,
    *,
    title: str,
    description: str,
    policy: str = "",
    rho: float | None = None,
    bundle: str = "",
    outcomes: str | Path,
    answered: Callable[[], PoolAnswer],
    older_data: str = "",
) -> ReportResult:
    """Write the page of a log with its tables, its plot and `verdict.json`.

    If the log alone cannot tell, the file `ASK_AGAIN` lists prompts that every model should answer.

    Args:
        pool: name of the pool.
        artifacts_dir: folder with the marts.
        folder: folder to write to.
        title, description: title and description of the pool.
        policy: name of the policy of the pool's router; empty if the pool has no router.
        rho: cost sensitivity of the router, score per USD. If None, the middle rho that was estimated. The
            figures are those at the nearest rho that was estimated.
        bundle: hash of the router's bundle; empty if the pool has no router.
        outcomes: folder of the outcome table, whose rows are the log's decisions.
        answered: function that makes the answer, with the answer to the pool's goal.
        older_data: sentence that says since when the estimates are older than the data, and why. The page
            then has no answer. Empty if the estimates are of the data at hand.

    Raises:
        ResultError: there are no estimates of this pool.
    """
    folder = Path(folder)
    data = PoolData(pool, Path(artifacts_dir))
    mart = data.mart("off_policy")
    if mart.empty:
        raise ResultError(f"no estimates of pool {pool!r} are in the marts: run `cabs run --pool {pool}`")
    rhos = sorted(mart["rho"].unique())
    served_rho = float(middle_rho(rhos) if rho is None else rho)
    rho = min(rhos, key=lambda r: abs(r - served_rho))
    estimates = {name: rows for (name, row_rho), rows in data.estimates.items() if row_rho == rho}
    shown = mart[(mart["rho"] == rho) & (mart["outcome"] == "utility") & (mart["estimator"] == "dr")]
    table = Outcomes.load(outcomes)
    if older_data:
        first = None
    else:
        first = AnswerPage(answered(), pool)
    tables: dict[str, PageTable | None] = {
        "ladder": None if first is None else first.ladder,
        "by_task": None if first is None else first.tasks,
        "more": None if first is None else first.more_data_table,
        "money": _money(estimates, rho),
        "logged": stages.logged(data),
        "models": _models(table),
        "receipt": _receipt(table),
        "missing": _missing(table, shown),
    }
    figure = _differences(shown, rho) if len(shown) else None
    lead, why, figures = _lead(estimates.get(policy, {}), policy or None, rho)
    router = f"{lead}. {why}"
    answer: dict[str, Any] = {"answer": None, "goal": None}
    again = None
    if first is None:
        lead = "No answer on older data"
        why = older_data
        figures = {}
    else:
        lead = first.headline
        why = first.why
        goal = first.found.goal
        answer = {"answer": first.found.to_dict(), "goal": None if goal is None else asdict(goal)}
        again = prompts_to_ask(first.found)
    banners = _banners(mart, table)
    page = render_page(
        "logged.html.j2",
        TEMPLATES,
        files_of=files_of,
        title=title,
        description=description,
        links=[("All pools", "../index.html")],
        first=first,
        goal=None if first is None else first.found.goal,
        lead=lead,
        why=why,
        again="" if again is None else again.text,
        router="" if first is None else router,
        banners=banners,
        tables=tables,
        figures={"differences": figure},
        glossary=[(label(p), description_of(p)) for p in dict.fromkeys(mart["policy"])],
        provenance=[
            ("Log", Path(table.report["origin"]).name),
            ("Outcomes (hash)", table.content_hash()),
            ("Router (bundle)", bundle or "–"),
            ("Held-out decisions", f"{int(mart['decisions'].iloc[0]):,}"),
            ("Propensities", "estimated" if bool(mart["assumed"].iloc[0]) else "from the log"),
        ],
    )
    write_tables(folder, tables)
    if again is not None and first is not None:
        write_prompts(again, first.found, folder)
    path = write_text(folder / "index.html", page)
    summary = {"verdict": lead, "why": why, **figures, "decisions": int(mart["decisions"].iloc[0])}
    content = {"format": 1, "pool": pool, "title": title, "logged": True, **summary, **answer}
    content["headline"] = lead
    content |= {"ask_again": None if again is None else {"file": ASK_AGAIN, "prompts": again.by_task}}
    content |= {"older_data": older_data or None, "warnings": banners}
    said = [lead, why, *([again.text] if again is not None else []), *banners]
    if first is not None and first.newest:
        summary["newest"] = first.newest
    if first is not None and first.found.goal is not None:
        summary["goal"] = first.found.goal.text
    write_text(folder / VERDICT, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    images = {"differences": figure.png} if figure else {}
    for name, image in images.items():
        write_bytes(folder / f"{name}.png", image)
    return ReportResult(path, summary, "\n\n".join([f"**{said[0]}**", *said[1:]]), images)


def _lead(estimates: Mapping[str, Any], policy: str | None, rho: float) -> tuple[str, str, dict[str, Any]]:
    """Return the headline about the pool's router, the reason for it, and its figures.

    The headline says that the router earns more than what was played, less, or about as much. If the estimate
    of its utility has no interval, or there is no estimate, the headline says that the log cannot tell. If
    the pool has no router, the headline says so, and there are no figures.

    Args:
        estimates: {estimator and outcome: row} of the router at this rho, {"refused": row} if the router
            cannot be estimated, or empty if it was not evaluated.
        policy: name of the router's policy; None if the pool has no router.
    """
    if policy is None:
        return "The pool has no router", "The checks of the asset router say why.", {}
    r = estimates.get("dr utility")
    if r is None:
        if "refused" in estimates:
            why = estimates["refused"].refused
        else:
            why = "it was not evaluated at this rho"
        return (
            f"The log cannot tell what {label(policy)} earns",
            f"At ρ = {rho:g}: {why}.",
            {"policy": policy},
        )
    figures = {"policy": policy, "rho": rho, "utility": float(r.value), "difference": float(r.difference)}
    if not missing(r.no_interval):
        return (
            f"Whether {label(policy)} earns more than what was played cannot be told",
            f"Estimated utility {r.value:.3f} a request at ρ = {rho:g}, {signed_text(r.difference)} against "
            f"what was played, without an interval: {r.no_interval}.",
            figures,
        )
    verb = "is within noise of"
    if r.difference_low > 0:
        verb = "earns more than"
    elif r.difference_high < 0:
        verb = "earns less than"
    figures |= {
        "utility_low": float(r.low),
        "utility_high": float(r.high),
        "difference_low": float(r.difference_low),
        "difference_high": float(r.difference_high),
    }
    gap = f"{signed_text(r.difference)} ({signed_text(r.difference_low)} to {signed_text(r.difference_high)})"
    why = (
        f"Estimated utility {r.value:.3f} ({r.low:.3f} to {r.high:.3f}) a request at ρ = {rho:g}; against "
        f"what was played {gap}. 95 % intervals; the log is worth {r.n_eff:.0f} decisions of this policy."
    )
    if r.manski_width:
        figures |= {"manski_width": float(r.manski_width)}
        why += (
            f" It never plays {percentage(r.manski_width, 1)} of what this policy plays: "
            f"{r.manski_width:.3f} of each interval's width is for that, whatever it would earn."
        )
    if "dr score" in estimates and "dr cost" in estimates:
        quality = estimates["dr score"]
        cost = estimates["dr cost"]
        figures |= {"score": float(quality.value), "cost": float(cost.value)}
        why += (
            f" Its answers would score {quality.value:.3f} on average (played: "
            f"{quality.value - quality.difference:.3f}) and cost {money(1000 * cost.value)} per 1,000 "
            f"requests (played: {money(1000 * (cost.value - cost.difference))})."
        )
    return f"{label(policy)} {verb} what was played", why, figures


def _money(estimates: Mapping[str, Mapping[str, Any]], rho: float) -> PageTable | None:
    """Table of the estimated quality and cost of policies beside those of the log's choices.

    A policy without both estimates is left out. None if no policy is left.
    """
    rows = []
    for policy, by_name in estimates.items():
        if "dr score" in by_name and "dr cost" in by_name:
            rows.append((policy, by_name["dr score"], by_name["dr cost"]))
    columns: dict[str, Callable[[Any], TableCell]] = {
        "Policy": lambda r: words(label(r[0])),
        "Quality": lambda r: percent(r[1].value, 1),
        "Points against played, 95 %": lambda r: _range(r[1], lambda v: signed_text(100 * v, 1)),
        "USD per 1,000 requests": lambda r: TableCell(money(1000 * r[2].value), 1000 * float(r[2].value)),
        "USD against played, 95 %": lambda r: _range(r[2], lambda v: money(1000 * v)),
        "Cost": lambda r: saving(_share(-r[2].difference, r[2].value - r[2].difference)),
    }
    return table_of(
        "money",
        f"Quality and dollars, estimated, ρ = {rho:g}",
        rows,
        columns,
        "Doubly robust estimates of the mean score and the mean cost of a request, and their differences to "
        "what was played. Cost: beside what was paid.",
    )


def _range(row: Any, text: Callable[[float], str]) -> TableCell:
    """Cell with the interval of a difference to the log's choices; an en dash if it has no interval."""
    if missing(row.difference_low):
        return TableCell("–")
    return TableCell(f"{text(row.difference_low)} to {text(row.difference_high)}")


def _share(part: float, whole: float) -> float | None:
    """Return `part` as a share of `whole`, or None if the whole is not positive."""
    if whole > 0:
        return part / whole
    return None


def _banners(mart: pd.DataFrame, table: Outcomes) -> list[str]:
    """Return sentences on the limits of the page's claims, of at most three kinds.

    The kinds are propensities that were estimated, policies that cannot be estimated at some rho, and
    decisions that were left out because they have no score or are of models that are not in the pool.

    Args:
        mart: rows of `mart_off_policy`.
        table: outcome table of the log.
    """
    sentences = []
    if bool(mart["assumed"].iloc[0]):
        sentences.append(
            "The log has no propensities: they were estimated, and every figure rests on that model. Log the "
            "probability with which a model is drawn, and explore a little, to know."
        )
    refused = mart[mart["refused"].notna()]["policy"].nunique()
    if refused:
        sentences.append(
            f"{refused} of {mart['policy'].nunique()} policies cannot be estimated at every ρ: see the table."
        )
    without = int(table.report.get("without_score", 0))
    if without:
        share = without / (without + len(table))
        sentences.append(
            f"{without:,} of {without + len(table):,} decisions have no score (or are of models that are not "
            "in the pool) and were left out. If whether a score is given depends on how good the answer was, "
            "every figure is wrong, too high or too low: were all missing scores 0, or all 1, a mean score "
            f"could be {percentage(share)} lower or higher. The table of bounds says where."
        )
    return sentences


def bounds(value: float, share: float, low: float = 0.0) -> tuple[float, float]:
    """Return the lowest and the highest mean of values of at most 1, whatever the missing ones are and why.

    Args:
        value: mean of the known values.
        share: share of the values that are missing.
        low: lowest possible value.

    Source: Manski 1990.
    """
    return (1 - share) * value + share * low, (1 - share) * value + share


def _missing(table: Outcomes, shown: pd.DataFrame) -> PageTable | None:
    """Table of worst-case bounds for two kinds of figures, whatever the scores are that the log lacks.

    The figures are the mean score of every model, and the estimated utility of every policy minus that of the
    log's choices. None if no decision lacks a score.

    Args:
        shown: doubly robust estimates of utility at one rho.
    """
    without = int(table.report.get("without_score", 0))
    if not without or table.answered is None:
        return None
    unscored = table.report.get("unscored", {})
    counts = table.answered.sum(axis=0)
    scores, _ = table.means
    rows = []
    for arm, count, score in zip(table.arms, counts, scores, strict=True):
        without_score = unscored.get(arm, 0)
        rows.append((f"mean score of {arm}", without_score / (without_score + count), score, 0.0))
    share = without / (without + len(table))
    for row in shown.itertuples():
        rows.append((f"{label(row.policy)} minus what was played", share, row.difference, -1.0))
    columns = {
        "Figure": lambda r: words(r[0]),
        "No score": lambda r: percent(r[1]),
        "As estimated": lambda r: number(r[2]),
        "At least": lambda r: number(bounds(float(r[2]), r[1], r[3])[0]),
        "At most": lambda r: number(bounds(float(r[2]), r[1], r[3])[1]),
    }
    return table_of(
        "missing",
        "If missing scores depend on how good the answers were",
        rows,
        columns,
        "Worst-case bounds (Manski): every missing score 0, or every one 1; for a difference, against it or "
        "for it. They hold whatever made scores missing, and allow for nothing else: the intervals above "
        "come on top. Where a bound does not exclude 0, feedback that everybody gives, or a judge on a "
        "random sample, is needed to know.",
    )


def _receipt(table: Outcomes) -> PageTable | None:
    """Table of the records of the log that were kept, and of those left out, with the reason.

    None if the outcome table has no receipt.
    """
    if "receipt" not in table.report:
        return None
    receipt = Receipt(**table.report["receipt"]).without(table.report.get("merged_models", {}))
    rows = [("calls kept", receipt.kept), ("of them with a score", receipt.scored)]
    for reason, count in sorted(receipt.left_out.items(), key=lambda entry: -entry[1]):
        rows.append((f"left out: {reason}", count))
    notes = [text for text in receipt.lines()[1:] if not text.startswith("left out")]
    return table_of(
        "receipt",
        f"What was read: {receipt.records:,} records of a log of format {receipt.format}",
        rows,
        {"Records": lambda r: words(r[0]), "Number": lambda r: number(r[1], 0)},
        " ".join(f"{text.rstrip('.')}." for text in notes),
    )


def _differences(shown: pd.DataFrame, rho: float) -> Figure:
    """Figure of the estimated utility of every policy minus that of the log's choices.

    Args:
        shown: doubly robust estimates of utility at one rho.
    """
    rows = shown.sort_values("difference", ascending=False)
    frame = pd.DataFrame(
        {
            "name": [label(p) for p in rows["policy"]],
            "value": rows["difference"].to_numpy(),
            "low": rows["difference_low"].fillna(rows["difference"]).to_numpy(),
            "high": rows["difference_high"].fillna(rows["difference"]).to_numpy(),
            "text": [signed_text(v) for v in rows["difference"]],
            "style": [style(p) for p in rows["policy"]],
            "hollow": rows["difference_low"].isna().to_numpy(),
        }
    )
    return Figure(
        key="differences",
        title=f"Estimated utility minus what was played, ρ = {rho:g}",
        caption="Doubly robust estimates with 95 % intervals (errors over prompts); hollow: an estimate "
        "without one. Right of 0: better than what the log's own "
        "choices earned. The policies as they start, before they learn from traffic.",
        alt=f"Dot plot of the estimated difference to the log for {len(frame)} policies. Highest: "
        f"{frame['name'].iloc[0]} at {signed_text(frame['value'].iloc[0])}; lowest: "
        f"{frame['name'].iloc[-1]} at {signed_text(frame['value'].iloc[-1])}.",
        chart=alt.layer(
            alt.Chart(pd.DataFrame({"zero": [0.0]})).mark_rule(color="var(--fg)").encode(x="zero:Q"),
            intervals(frame, x_title="utility minus the log's"),
        ).properties(height=25 * len(frame)),
        table=FigureTable(
            ["Policy", "Difference", "95 % from", "to"],
            [_difference_row(row) for row in frame.itertuples(index=False)],
        ),
    )


def _difference_row(row: Any) -> list[str]:
    """Return the texts of a row of the figure's table; en dashes if the estimate has no interval."""
    if row.hollow:
        return [row.name, signed_text(row.value), "–", "–"]
    return [row.name, signed_text(row.value), signed_text(row.low), signed_text(row.high)]


def _models(table: Outcomes) -> PageTable | None:
    """Table of the mean score and cost of the models that the log asked, the most asked first."""
    assert table.answered is not None
    counts = table.answered.sum(axis=0)
    scores, costs = table.means
    columns = {
        "Model": lambda j: words(table.arms[j]),
        "Decisions": lambda j: number(counts[j], 0),
        "Share": lambda j: percent(counts[j] / counts.sum()),
        "Mean score": lambda j: number(scores[j]),
        "USD per 1,000 calls": lambda j: number(1000 * costs[j], 4),
    }
    return table_of(
        "models",
        "What was played",
        (-counts).argsort(kind="stable"),
        columns,
        "Over all scored decisions. Models were asked different prompts, so means cannot be compared.",
    )
