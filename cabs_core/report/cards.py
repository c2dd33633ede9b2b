"""The verdict in words: what the first screen says, for the page, its script, JSON and Markdown."""

import math
from collections import Counter
from typing import Any

from cabs_core.base.catalog.roles import NO_ROUTERS
from cabs_core.base.errors import counted as number_of
from cabs_core.base.errors import held_out_queries
from cabs_core.base.units import money, percentage, percentages
from cabs_core.report.data import PoolData
from cabs_core.report.gap import MATTERS, SAVES, Bounded
from cabs_core.report.names import condition_text, label
from cabs_core.report.plots.page import tie
from cabs_core.report.scale import Scale
from cabs_core.report.tables import error_text, saving_span, saving_text, signed_text
from cabs_core.report.verdict import Verdict, headline, summary


def value_text(verdict: Verdict) -> str:
    """What one right answer is worth, and the rho that says the same."""
    if verdict.rho is None:
        return "all values tried"
    if verdict.against:
        return f"ρ = {verdict.rho:g}"
    if verdict.value_usd is None:
        return "beyond price (cost does not count)"
    return money(verdict.value_usd)


def fields(verdict: Verdict, pool: str) -> dict[str, str]:
    """Texts of the cards by the names that the page gives them."""
    v, keep = verdict, verdict.decision == "keep"
    router, model = label(v.router), v.model
    quality, other_quality = (v.model_score, v.score) if keep else (v.score, v.model_score)
    cost, other_cost = (v.model_cost, v.cost) if keep else (v.cost, v.model_cost)
    chosen, other = (model, router) if keep else (router, model)
    spread = ""
    if not keep and v.score_low is not None and v.score_high is not None:
        spread = f", 95 % interval {percentages(v.score_low, v.score_high, 1)}"
    return {
        "headline": headline(v),
        "value": value_text(v),
        "why": why(v),
        "quality_title": Scale(v.against).quality,
        "quality": percentage(quality, 1),
        "quality_note": f"mean score of {chosen}{spread}; {other}: {percentage(other_quality, 1)}",
        "cost": money(cost),
        "cost_note": f"for 1,000 requests to {chosen}; {other}: {money(other_cost)}",
        "against": f"{router} instead of {v.model}",
        "trade": ", ".join(filter(None, (_points(v.quality.value), saving_text(v.saved and v.saved.value)))),
        "trade_note": trade_note(v),
        "labels": v.labels.text if v.labels else "",
        "take": f"To try {router} all the same:" if keep else f"Take {router} along:",
        "export": export_command(pool, v),
    }


def why(v: Verdict) -> str:
    """The comparison that the decision rests on, in one or two sentences."""
    router, against = label(v.router), v.model if v.rho is not None else f"always asking {v.model}"
    compared = f", widened because {router} is the best of {v.compared} routers" if v.compared > 1 else ""
    where = "on average over all values tried" if v.rho is None else "at this value"
    u, counted = v.utility, Scale(v.against).counted
    change = f"{'gains' if u.value > 0 else 'loses'} {abs(u.value):.3f} {counted}"
    if f"{abs(u.value):.3f}" == "0.000":
        change = f"neither gains nor loses {counted}"
    text = f"{router} {change} a request against {against} {where}, its cost deducted"
    if u.low is None:
        text += "; with one query and one trial no error is known."
    else:
        queries = held_out_queries(v.queries, v.independent)
        text += f", on {queries} (two-sided 95 % interval {_signed(u)}{compared})."
    if v.decision == "keep":
        text += f" A gain of {MATTERS:g}, one in a hundred {counted}, lies outside this interval."
    elif v.decision == "deploy" and not u.above(0.0) and v.saved is not None and v.saved.low is not None:
        text += (
            f" But it answers as well as {v.model} ({_quality(v.quality)}, at most {100 * MATTERS:g} point "
            f"worse) and saves at least {percentage(v.saved.low)} of its cost."
        )
    if v.trained and v.over_trained is not None:
        text += (
            f" {v.model} is the best single model of these queries; the train prompts show {v.trained}, "
            f"against which {router} {'gains' if v.over_trained.value > 0 else 'loses'} "
            f"{abs(v.over_trained.value):.3f}"
            + (f" ({_signed(v.over_trained)})." if v.over_trained.low is not None else ".")
        )
    if v.carriers is not None:
        text += f" All the money rests on as few as {number_of(round(v.carriers), 'prompt')}: "
        text += "how much is saved cannot be told from these queries."
    if v.at_limit and v.prompts_needed is None:
        text += (
            f" It may save just {percentage(SAVES)} of the cost, the least that counts: were it so, no "
            "number of prompts would tell."
        )
    return text


def _signed(e: Bounded) -> str:
    return f"{signed_text(e.low or 0.0)} to {signed_text(e.high or 0.0)}"


def _points(difference: float) -> str:
    """A difference of quality in percentage points."""
    text = signed_text(100 * difference, 1)
    return "same quality" if text[1:] == "0.0" else f"{text} points"


def _quality(e: Bounded) -> str:
    """The same with its interval."""
    if e.low is None or e.high is None:
        return _points(e.value)
    low, high = (signed_text(100 * x, 1) for x in (e.low, e.high))
    return f"{_points(e.value)} of quality (95 % interval {low} to {high})".replace(
        "quality of quality", "quality"
    )


def trade_note(v: Verdict) -> str:
    """The same with intervals: what is gained, and what it costs."""
    if v.saved is None:
        cost = f"{v.model} costs nothing" if not v.model_cost > 0 else "cost not known without the replays"
    else:
        cost = saving_text(v.saved.value)
        if span := saving_span(v.saved.low, v.saved.high):
            cost += f" (95 % interval {span})"
    return f"{'would be ' if v.decision == 'keep' else ''}{_quality(v.quality)}; {cost}"


def cases(pool_verdicts: list[Verdict]) -> list[Verdict]:
    """The values by rising worth of a right answer; the mean over them where none is at hand."""
    return sorted(pool_verdicts[1:], key=lambda v: -(v.rho or 0.0)) or pool_verdicts[:1]


def shown_case(pool_verdicts: list[Verdict]) -> Verdict:
    """The verdict that the page begins with: the middle value."""
    shown = cases(pool_verdicts)
    return shown[usual(shown)]


def usual(shown: list[Verdict]) -> int:
    """Number of the case that the page begins with: the middle one of those with the most frequent decision.

    Of those in which a router is deployed, the ones in which it also saves for sure come first.
    """
    counts = Counter(v.decision for v in shown)
    cases = [i for i, v in enumerate(shown) if counts[v.decision] == max(counts.values())]
    saving = [i for i in cases if shown[i].decision == "deploy" and (s := shown[i].saved) and s.above(0.0)]
    cases = saving or cases
    return cases[(len(cases) - 1) // 2] if cases else 0


def case(verdict: Verdict, pool: str) -> dict[str, Any]:
    """What the page's script needs to show a verdict."""
    v, keep = verdict, verdict.decision == "keep"
    gain = v.gain or Bounded(math.nan)
    return {
        "decision": v.decision,
        "value_text": value_text(v),
        "text": {name: tie(text) for name, text in fields(v, pool).items()},
        "cost": v.model_cost if keep else v.cost,
        "other_cost": v.cost if keep else v.model_cost,
        "other": label(v.router) if keep else v.model,
        "switch": f"{label(v.router)} instead of {v.model}",
        "gain": None if v.gain is None else gain.value,
        "gain_low": gain.low,
        "gain_high": gain.high,
    }


def as_good(data: PoolData, router: str) -> list[str]:
    """Other routers whose utility is not significantly below the best one's."""
    alike = []
    for policy in data.ranked:
        pair = data.pair(policy, router)
        if policy not in (router, *NO_ROUTERS) and pair is not None and not bool(pair["significant"]):
            alike.append(policy)
    return alike


def export_command(pool: str, v: Verdict | None) -> str:
    """The command that writes the router of a verdict at its value; without one, what the pool deploys."""
    policy = "" if v is None else f" --policy {v.router}"
    rho = "" if v is None or v.rho is None else f" --rho {v.rho:g}"
    return f"cabs export --pool {pool}{policy}{rho} --out {pool}-router"


def markdown(
    data: PoolData,
    pool_verdicts: list[Verdict],
    *,
    changes: list[str],
    banners: list[str],
    ranking: str,
    answer: dict[str, Any] | None = None,
) -> str:
    """The verdict for a pull request: headline, cards, the ranking, what changed."""
    lines = [f"## {data.info['title']}: {summary(pool_verdicts) if pool_verdicts else 'No verdict'}", ""]
    if answer:
        lines += [f"Goal ({answer['goal']}): {answer['sentence']}", ""]
    if data.info["synthetic"]:
        lines += ["**Synthetic data.** Generated prompts and outcomes, no claim about real models.", ""]
    if condition_text(data.info["condition"]):
        lines += [f"{condition_text(data.info['condition'])}.", ""]
    for banner in banners:
        lines += [f"> {banner}", ""]
    if pool_verdicts:
        shown = fields(shown_case(pool_verdicts), data.pool)
        lines += [*(text + "\n" for text in (shown["why"], shown["labels"]) if text), *_cases(pool_verdicts)]
    else:
        lines += [ranking, ""]
    lines += ["| policy | mean utility | rank |", "|---|---:|---:|"]
    for policy, r in data.board.head(10).iterrows():
        error = "" if r["utility_se"] != r["utility_se"] else f" ± {error_text(r['utility_se'])}"
        rank = "–" if r["rank"] != r["rank"] else int(r["rank"])
        lines.append(f"| {label(policy)} | {r['utility']:.3f}{error} | {rank} |")
    if changes:
        lines += ["", "Since the last report:", "", *(f"* {c}" for c in changes)]
    return "\n".join(lines) + "\n"


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


def _cases(pool_verdicts: list[Verdict]) -> list[str]:
    v = shown_case(pool_verdicts)
    lines = [
        f"| {Scale(v.against).worth} {value_text(v)} | {Scale(v.against).quality.lower()} | per 1,000 "
        "requests | |",
        "|---|---:|---:|---|",
        f"| {label(v.router)} | {percentage(v.score, 1)} | {money(v.cost)} | "
        f"{saving_text(v.saved and v.saved.value)} |",
        f"| {v.model} | {percentage(v.model_score, 1)} | {money(v.model_cost)} | |",
        "",
    ]
    if len(pool_verdicts) > 1:
        lines += [
            f"| {Scale(v.against).worth} | use | {Scale(v.against).quality.lower()} | per 1,000 requests | "
            "router's cost (95 % interval) | router gains (95 % interval) |",
            "|---|---|---:|---:|---|---|",
        ]
        lines += ["| " + " | ".join(use_row(x)) + " |" for x in pool_verdicts[1:]]
        lines.append("")
    return lines
