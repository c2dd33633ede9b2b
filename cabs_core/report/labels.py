"""Do labels earn their cost? When a table is earned back, and what the next scored prompts would decide.

What a router gains is the verdict's `gain`: worth of the right answers minus what they cost, USD per 1,000
requests, router minus single model, with the interval of the best of k. Requests until T dollars are earned
back are 1,000 T / gain, so that interval is theirs.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cabs_core.base.errors import counted, round_up
from cabs_core.base.units import money, percentage, percentages
from cabs_core.report.data import PoolData
from cabs_core.report.evidence import Evidence
from cabs_core.report.forecast import NEXT, Labels, Outlook, outlook
from cabs_core.report.gap import Bounded, decide
from cabs_core.report.names import label
from cabs_core.report.verdict import Verdict, gap_of, routers, spanned

#: more of them are not worth it that decide in fewer cases, or that take more months to be earned back
_LEAST_CHANCE, _MOST_MONTHS = 0.05, 12


@dataclass(frozen=True)
class TableCost:
    """What a table cost, and what more of it would.

    Attributes:
        usd: in all; usd_a_prompt: of one more prompt, for all models together; None: nobody has said.
        requests_a_month: of the traffic that it is for; None: nobody has said.
        drawn: whether the held-out prompts are drawn anew from a longer table.
    """

    usd: float | None
    usd_a_prompt: float | None
    requests_a_month: int | None
    drawn: bool


def table_cost(
    usd: float | None,
    requests_a_month: int | None,
    prompts: int,
    collection: Mapping[str, Any] | None,
    *,
    drawn: bool,
) -> TableCost:
    """What the pool's table cost.

    Args:
        usd: as the pool file says, None where it does not. prompts: of the table.
        collection: see `collected.collection_of`: what was paid is known, and one more prompt costs what one
            did so far, at today's prices.
        drawn: whether the split is drawn, so that a larger table is split anew.
    """
    usd_a_prompt = None if usd is None else usd / prompts
    if collection:
        answers, scores = collection["answers"], collection["scores"]
        usd = answers.paid + scores.paid
        kept = sum(row.get("usd today", row["usd"]) for row in answers.counts.values())
        usd_a_prompt = (kept + scores.paid) / max(answers.prompts, 1)
    return TableCost(usd, usd_a_prompt, requests_a_month, drawn)


def with_labels(
    decided: list[Verdict], data: PoolData, evidence: Evidence | None, table: TableCost
) -> list[Verdict]:
    """The verdicts, each at a value with what its labels earn."""
    if evidence is None:
        return decided
    names = routers(data)
    return [v if v.rho is None else replace(v, labels=_labels(v, names, evidence, table)) for v in decided]


def _labels(v: Verdict, names: list[str], evidence: Evidence, table: TableCost) -> Labels:
    labels = earned_back(v, table)
    if table.usd is not None and table.requests_a_month:
        labels = replace(labels, cost_ratio_at_a_month=_month(v, evidence, table))
    problem = evidence.problem
    a_prompt = problem.K if problem.observed is None else float((problem.observed > 0).sum(axis=1).mean())
    labels = replace(labels, next_scores=round(NEXT * a_prompt))
    if v.decision == "unsure":
        labels = next_ones(labels, v, _outlook(v, names, evidence, table), table)
    elif table.usd is not None:
        labels = replace(labels, worth_it=False)
    return replace(
        labels, text=" ".join(filter(None, (_earned(labels, v), month_text(labels, v), _next(labels, v))))
    )


def earned_back(v: Verdict, table: TableCost) -> Labels:
    """After how many requests the table is earned back, by a verdict's gain."""
    labels = Labels(table.usd, table.requests_a_month)
    if table.usd is None:
        return labels
    if v.against:
        return replace(
            labels, refused=f"what a comparison won with {v.against} is worth in dollars nobody has said"
        )
    if v.gain is None:
        return replace(labels, refused="where cost does not count, nothing is earned in dollars")
    low, high = v.gain.ends
    if math.isnan(low) or math.isnan(high):
        why = "with so few prompts no error is known"
        if v.carriers is not None:
            why = f"all the money rests on as few as {counted(round(v.carriers), 'prompt')}"
        return replace(labels, refused=why)

    def after(gain: float) -> float | None:
        return 1000 * table.usd / gain if gain > 0 and table.usd is not None else None

    return replace(
        labels,
        requests_until_earned_back=after(v.gain.value),
        requests_until_earned_back_low=after(high),
        requests_until_earned_back_high=after(low),
        may_never_be=low <= 0,
    )


def _month(v: Verdict, evidence: Evidence, table: TableCost) -> Bounded | None:
    """What router and table cost in a month, a share of what the model costs; None where that is free."""
    assert table.usd is not None and table.requests_a_month
    added = table.usd / table.requests_a_month
    saved = gap_of(evidence, v.router, v).saved(v.compared, added)
    if evidence.unknown:
        low, high = gap_of(evidence, v.router, v, "low"), gap_of(evidence, v.router, v, "high")
        saved = spanned(saved, low.saved(v.compared, added), high.saved(v.compared, added))
    if saved is None:
        return None
    return Bounded(
        1 - saved.value,
        None if saved.high is None else 1 - saved.high,
        None if saved.low is None else 1 - saved.low,
    )


def _outlook(v: Verdict, names: list[str], evidence: Evidence, table: TableCost) -> Outlook | None:
    """What the next prompts would say against the best single models of test and train, the less of both."""
    assert v.rho is not None
    there = [name for name in names if (name, v.rho) in evidence.folders]
    kept = evidence.problem.n / evidence.problem.asked if table.drawn else 1.0
    views = []
    for model in dict.fromkeys((v.model, v.trained or v.model)):
        gaps = [gap_of(evidence, name, replace(v, model=model)) for name in there]
        mine = gaps[there.index(v.router)]
        found = decide(mine.utility(v.compared), mine.quality(v.compared), mine.saved(v.compared))
        if evidence.unknown and found != "unsure":
            return None  # what is missing would be missing there, too
        if found == "unsure":
            views.append(outlook(gaps, NEXT, v.compared, min(kept, 1.0)))
    known = [view for view in views if view is not None]
    return min(known, key=lambda view: view.decides) if known and len(known) == len(views) else None


def next_ones(labels: Labels, v: Verdict, view: Outlook | None, table: TableCost) -> Labels:
    """What the next prompts cost, decide and earn."""
    cost = None if table.usd_a_prompt is None else NEXT * table.usd_a_prompt
    labels = replace(labels, next_cost_usd=cost)
    if view is None:
        return labels
    labels, after, worth = replace(labels, next_decides=view.decides), None, view.decides >= _LEAST_CHANCE
    if cost is not None and v.value_usd is not None and not v.against:
        after = cost / (view.gain * v.value_usd) if view.gain > 0 else None
        months = math.inf if after is None else after / (table.requests_a_month or math.inf)
        worth = worth and months <= _MOST_MONTHS
    return replace(labels, next_requests_until_earned_back=after, worth_it=worth)


# ---- in words


def _earned(x: Labels, v: Verdict) -> str:
    if x.table_cost_usd is None:
        return ""
    text, (low, high), router = f"The table cost {money(x.table_cost_usd)}", _ends(x), label(v.router)
    if x.refused:
        return f"{text}; when that is earned back cannot be told: {x.refused}."
    if x.requests_until_earned_back_low is None:
        return f"{text}, which {router} never earns back: its whole 95 % interval is a loss."
    if x.requests_until_earned_back is None:
        return (
            f"{text}; by these queries {router} never earns that back, at best (95 %) after {low} requests."
        )
    text += f"; {router} earns that back after about {_requests(x.requests_until_earned_back)} requests"
    if x.may_never_be:
        return f"{text}, or never, for it may gain nothing (95 % interval: {low} or more)."
    return f"{text} (95 % interval {low} to {high})."


def _ends(x: Labels) -> tuple[str, str]:
    low, high = x.requests_until_earned_back_low, x.requests_until_earned_back_high
    return ("" if low is None else _requests(low)), ("" if high is None else _requests(high))


def _requests(number: float) -> str:
    return f"{round_up(math.ceil(number)):,}"


def month_text(x: Labels, v: Verdict) -> str:
    """What router and table cost in a month beside the single model."""
    ratio = x.cost_ratio_at_a_month
    if ratio is None or x.requests_a_month is None:
        return ""
    low, high = ratio.low, ratio.high
    times = max(ratio.value, high or 0.0) >= 2.0
    text = f"In a month of {x.requests_a_month:,} requests router and table cost "
    text += f"{_times(ratio.value)} times" if times else percentage(ratio.value)
    if low is not None and high is not None:
        low = max(low, 0.0)
        text += f" (95 % interval {f'{_times(low)} to {_times(high)}' if times else percentages(low, high)})"
    return f"{text} {'' if times else 'of '}what {v.model} costs."


def _times(ratio: float) -> str:
    return f"{ratio:,.{int(ratio < 10)}f}"


def _next(x: Labels, v: Verdict) -> str:
    """What the next prompts would do, where nothing is decided."""
    if v.decision != "unsure":
        return "More scores are not worth their cost: it is decided." if x.worth_it is False else ""
    if x.next_decides is None:
        return ""
    what = f"{x.next_prompts} more prompts ({x.next_scores:,} more scores)"
    chance = f"with a probability of {percentage(x.next_decides)}"
    if x.next_decides < _LEAST_CHANCE:
        return f"{what} are not worth it: they decide it {chance}."
    text = f"{what} decide it {chance}"
    if x.next_cost_usd is not None:
        text = f"{what} cost about {money(x.next_cost_usd)} and decide it {chance}"
    if x.next_requests_until_earned_back is not None:
        text += f"; they are earned back after about {_requests(x.next_requests_until_earned_back)} requests"
    if x.worth_it is False:
        text += (
            ", and so are not worth it"
            if x.next_requests_until_earned_back is not None
            else "; they are not worth it"
        )
    if x.next_cost_usd is not None and v.prompts_needed is not None and v.prompts_needed > x.next_prompts:
        needed = x.next_cost_usd / x.next_prompts * v.prompts_needed
        text += (
            f". The {round_up(v.prompts_needed):,} that decide it in eight of ten cases cost {money(needed)}"
        )
    return f"{text}."
