"""The verdict in words: what the cards of the first screen say, for the page, its script, JSON and Markdown."""

from __future__ import annotations

from typing import Any

from cabs_core.report.data import PoolData
from cabs_core.report.names import condition_text, label
from cabs_core.report.tables import error_text, percent_text
from cabs_core.report.verdict import MATTERS, Saving, Verdict, headline, summary


def money(value: float) -> str:
    """Dollars with three digits; `$0.0712`, `$12.3`, `−$4.00`."""
    digits = max(2, 2 - _magnitude(value)) if abs(value) < 100 else 0
    return ("−" if value < 0 else "") + f"${abs(value):,.{digits}f}"


def _magnitude(value: float) -> int:
    text = f"{abs(value):e}"
    return int(text.partition("e")[2]) if value else 0


def value_text(verdict: Verdict) -> str:
    """What one right answer is worth, and the rho that says the same."""
    if verdict.rho is None:
        return "all values tried"
    if verdict.value_usd is None:
        return "beyond price (cost does not count)"
    return money(verdict.value_usd)


def fields(verdict: Verdict) -> dict[str, str]:
    """Texts of the cards by the names that the page gives them."""
    v, keep = verdict, verdict.decision == "keep"
    router, model = label(v.router), v.model
    quality, other_quality = (v.model_score, v.score) if keep else (v.score, v.model_score)
    cost, other_cost = (v.model_cost, v.cost) if keep else (v.cost, v.model_cost)
    chosen, other = (model, router) if keep else (router, model)
    spread = "" if keep or v.score_low is None else f", 95 % interval {_range(v.score_low, v.score_high)}"
    return {
        "headline": headline(v, label),
        "value": value_text(v),
        "why": why(v),
        "quality": percent_text(quality, 1),
        "quality_note": f"mean score of {chosen}{spread}; {other}: {percent_text(other_quality, 1)}",
        "cost": money(cost),
        "cost_note": f"for 1,000 requests to {chosen}; {other}: {money(other_cost)}",
        "saving": saving_text(v.saving),
        "saving_note": saving_note(v),
    }


def why(v: Verdict) -> str:
    """The comparison that the decision rests on, in one or two sentences."""
    router, against = label(v.router), v.model if v.rho is not None else f"always asking {v.model}"
    compared = f", widened because {router} is the best of {v.compared} routers" if v.compared > 1 else ""
    where = "on average over all values tried" if v.rho is None else "at this value"
    verb = "gains" if v.difference > 0 else "loses"
    said = f"{router} {verb} {abs(v.difference):.3f} right answers a request against {against} {where}, its cost deducted"
    if v.low is None:
        said += "; with one query and one trial no error is known."
    else:
        low, high = (f"{x:+.3f}".replace("-", "−") for x in (v.low, v.high))
        said += f", on {v.queries:,} held-out queries (two-sided 95 % interval {low} to {high}{compared})."
    if v.decision == "keep":
        said += f" A gain of {MATTERS:g}, one right answer in a hundred, lies outside this interval."
    return said


def _range(low: float | None, high: float | None) -> str:
    return f"{percent_text(low, 1).removesuffix(' %')} to {percent_text(high, 1)}"


def saving_text(saving: Saving) -> str:
    """Share saved, or that the quality is not reached."""
    return "quality not reached" if saving.share is None else percent_text(saving.share)


def saving_note(v: Verdict) -> str:
    """What was saved against what, with the interval."""
    router = label(v.router)
    against = "the best single model at its most accurate" if v.rho is None else v.model
    if v.saving.share is None:
        return f"{router} does not reach the mean score of {against} at any value tried"
    text = f"of the cost of {against}, at equal quality, with {router}"
    if v.saving.high is None:
        return text
    low = "not always reached" if v.saving.low is None else percent_text(v.saving.low)
    return f"{text}; 95 % interval {low} to {percent_text(v.saving.high)}"


def usual(found: list[Verdict]) -> int:
    """Number of the case that the page begins with: of the values by rising worth, the middle one; 0 without any."""
    return 0 if len(found) < 2 else 1 + (len(found) - 2) // 2


def shown_case(found: list[Verdict]) -> Verdict:
    """The verdict that the page begins with."""
    return [found[0], *sorted(found[1:], key=lambda v: -(v.rho or 0.0))][usual(found)]


def case(verdict: Verdict) -> dict[str, Any]:
    """What the page's script needs to show a verdict."""
    v, keep = verdict, verdict.decision == "keep"
    return {
        "decision": v.decision,
        "value_text": value_text(v),
        "text": fields(v),
        "cost": v.model_cost if keep else v.cost,
        "other_cost": v.cost if keep else v.model_cost,
        "other": label(v.router) if keep else v.model,
        "switch": f"{label(v.router)} instead of {v.model}",
        "gain": v.gain,
        "gain_low": v.gain_low,
        "gain_high": v.gain_high,
    }


def as_good(data: PoolData, router: str) -> list[str]:
    """Other routers whose utility is not significantly below the best one's."""
    found = []
    for policy in data.ranked:
        pair = data.pair(policy, router)
        if (
            policy not in (router, "random", "best_single")
            and pair is not None
            and not bool(pair["significant"])
        ):
            found.append(policy)
    return found


def export_command(pool: str, found: list[Verdict]) -> str:
    """The command that writes the router of the first verdict; without one, what the pool deploys."""
    policy = f" --policy {found[0].router}" if found else ""
    return f"cabs export --pool {pool}{policy} --out {pool}-router"


def markdown(
    data: PoolData, found: list[Verdict], *, changes: list[str], banners: list[str], ranking: str,
    answer: dict[str, Any] | None = None,
) -> str:  # fmt: skip
    """The verdict for a pull request: headline, cards, the ranking, what changed."""
    lines = [f"## {data.info['title']}: {summary(found, label) if found else 'No verdict'}", ""]
    if answer:
        lines += [f"Goal ({answer['goal']}): {answer['sentence']}", ""]
    if data.info["synthetic"]:
        lines += ["**Synthetic data.** Generated prompts and outcomes, no claim about real models.", ""]
    if condition_text(data.info["condition"]):
        lines += [f"{condition_text(data.info['condition'])}.", ""]
    for banner in banners:
        lines += [f"> {banner}", ""]
    lines += [why(shown_case(found)), "", *_cases(found)] if found else [ranking, ""]
    lines += ["| policy | mean utility | rank |", "|---|---:|---:|"]
    for policy, r in data.board.head(10).iterrows():
        error = "" if r["utility_se"] != r["utility_se"] else f" ± {error_text(r['utility_se'])}"
        rank = "–" if r["rank"] != r["rank"] else int(r["rank"])
        lines.append(f"| {label(policy)} | {r['utility']:.3f}{error} | {rank} |")
    if changes:
        lines += ["", "Since the last report:", "", *(f"* {c}" for c in changes)]
    return "\n".join(lines) + "\n"


def use_row(v: Verdict) -> list[str]:
    """What to use at a value: value, router or model, its quality and USD per 1,000 requests, difference with interval."""
    keep = v.decision == "keep"
    use = {"deploy": label(v.router), "keep": v.model}.get(
        v.decision, f"{label(v.router)} or {v.model}: not enough data"
    )
    between = "" if v.low is None or v.high is None else f" ({v.low:+.3f} to {v.high:+.3f})"
    return [
        value_text(v), use, percent_text(v.model_score if keep else v.score, 1),
        money(v.model_cost if keep else v.cost), f"{v.difference:+.3f}{between}".replace("-", "−"),
    ]  # fmt: skip


def _cases(found: list[Verdict]) -> list[str]:
    v = shown_case(found)
    lines = [
        f"| one right answer worth {value_text(v)} | quality | per 1,000 requests | saved at equal quality |",
        "|---|---:|---:|---:|",
        f"| {label(v.router)} | {percent_text(v.score, 1)} | {money(v.cost)} | {saving_text(v.saving)} |",
        f"| {v.model} | {percent_text(v.model_score, 1)} | {money(v.model_cost)} | |",
        "",
    ]
    if len(found) > 1:
        lines += [
            "| one right answer is worth | use | quality | per 1,000 requests | router minus model (95 % interval) |",
            "|---|---|---:|---:|---|",
        ]
        lines += ["| " + " | ".join(use_row(x)) + " |" for x in found[1:]]
        lines.append("")
    return lines
