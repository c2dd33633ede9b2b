"""Verdicts by the worth of an answer in words, and the answer of a pool in Markdown."""

from cabs_core.base.catalog.roles import NO_ROUTERS
from cabs_core.base.units import money, percentage
from cabs_core.report.answer_page import AnswerPage
from cabs_core.report.data import PoolData
from cabs_core.report.gap import Bounded
from cabs_core.report.names import condition_text, label
from cabs_core.report.tables import PageTable, error_text, saving_span, saving_text, signed_text
from cabs_core.report.verdict import Verdict


def value_text(verdict: Verdict) -> str:
    """What one right answer is worth, and the rho that says the same."""
    if verdict.rho is None:
        return "all values tried"
    if verdict.against:
        return f"ρ = {verdict.rho:g}"
    if verdict.value_usd is None:
        return "beyond price (cost does not count)"
    return money(verdict.value_usd)


def _signed(e: Bounded) -> str:
    return f"{signed_text(e.low or 0.0)} to {signed_text(e.high or 0.0)}"


def as_good(data: PoolData, router: str) -> list[str]:
    """Other routers whose utility is not significantly below the best one's."""
    alike = []
    for policy in data.ranked:
        pair = data.pair(policy, router)
        if policy not in (router, *NO_ROUTERS) and pair is not None and not bool(pair["significant"]):
            alike.append(policy)
    return alike


def markdown(
    data: PoolData,
    *,
    headline: str,
    first: AnswerPage | None,
    changes: list[str],
    banners: list[str],
    ranking: str,
) -> str:
    """Return the answer for a pull request: headline, the ladder, the ranking, what changed."""
    lines = [f"## {data.info['title']}: {headline}", ""]
    if first is not None and first.found.goal is not None:
        lines += [first.found.goal.text, ""]
    if data.info["synthetic"]:
        lines += ["**Synthetic data.** Generated prompts and outcomes, no claim about real models.", ""]
    if condition_text(data.info["condition"]):
        lines += [f"{condition_text(data.info['condition'])}.", ""]
    for banner in banners:
        lines += [f"> {banner}", ""]
    if first is None:
        lines += [ranking, ""]
    else:
        lines += [first.question, "", first.why, ""]
        if first.newest:
            lines += [first.newest, ""]
        if first.ladder is not None:
            lines += _markdown_table(first.ladder)
    lines += ["| policy | mean utility | rank |", "|---|---:|---:|"]
    for policy, r in data.board.head(10).iterrows():
        error = "" if r["utility_se"] != r["utility_se"] else f" ± {error_text(r['utility_se'])}"
        rank = "–" if r["rank"] != r["rank"] else int(r["rank"])
        lines.append(f"| {label(policy)} | {r['utility']:.3f}{error} | {rank} |")
    if changes:
        lines += ["", "Since the last report:", "", *(f"* {c}" for c in changes)]
    return "\n".join(lines) + "\n"


def _markdown_table(table: PageTable) -> list[str]:
    """The lines of a table of the page."""
    lines = [f"| {' | '.join(table.headers)} |", f"|{'---|' * len(table.headers)}"]
    lines += [f"| {' | '.join(cell.text for cell in row)} |" for row in table.rows]
    return [*lines, ""]


def use_row(v: Verdict) -> list[str]:
    """Value, router or model to use, its quality, USD per 1,000 requests, saved and gained by the router."""
    keep = v.decision == "keep"
    use = {"deploy": label(v.router), "keep": v.model}.get(
        v.decision, f"{label(v.router)} or {v.model}: not enough data"
    )
    between = "" if v.utility.low is None else f" ({_signed(v.utility)})"
    return [
        value_text(v),
        use,
        percentage(v.model_score if keep else v.score, 1),
        money(v.model_cost if keep else v.cost),
        _saved(v),
        signed_text(v.utility.value) + between,
    ]


def _saved(v: Verdict) -> str:
    """What the router costs beside the model, with its interval."""
    if v.saved is None:
        return "–"
    span = saving_span(v.saved.low, v.saved.high)
    return saving_text(v.saved.value) + (f" ({span})" if span else "")
