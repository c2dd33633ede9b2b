"""What more prompts would say: how many it takes until the rule decides, and what the next ones do.

Both draw what may be true by what was found, and what will be found by what is true (`gap.Figures`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cabs_core.report.gap import Bounded, Gap

#: share of cases in which the prompts that are asked for bring an answer; the same where both are as good,
#: higher because the best of several that are as good looks better than it is; and the draws that tell
_ANSWERED, _ANSWERED_IF_EQUAL, _DRAWS = 0.92, 0.95, 2000
#: prompts beyond which nobody is told to collect
_MOST_PROMPTS = 10_000_000
#: the next prompts that the report speaks of
NEXT = 200
#: routers differ from the best model by about so much of utility and of quality, before anything is found
_USUAL = 0.04


@dataclass(frozen=True)
class Outlook:
    """What a number of further prompts would say.

    Attributes:
        decides, deploys: share of what may be true in which the rule then decides, and for a router.
        gain: mean utility a request that the deployed router then gains; 0 where none is deployed.
    """

    decides: float
    deploys: float
    gain: float


@dataclass(frozen=True)
class Labels:
    """What the labels of a table earn at one value of a right answer.

    Attributes:
        table_cost_usd: None: nobody has said.
        requests_until_earned_back: with the 95 % interval from ..._low to ..._high. None: never, no bound, or
            not known: `refused` says which.
        may_never_be: whether the interval of what is gained includes 0.
        cost_ratio_at_a_month: what the router and its table cost in a month, a share of what the model costs.
        next_prompts, next_scores: what is asked for next; next_cost_usd; next_decides: the probability that
            the rule decides with them. None: it has decided, or nothing is known.
        next_requests_until_earned_back: by what a router gains that they let deploy. None: not known.
        worth_it: whether they are.
        text: all this in words.
    """

    table_cost_usd: float | None
    requests_a_month: int | None
    requests_until_earned_back: float | None = None
    requests_until_earned_back_low: float | None = None
    requests_until_earned_back_high: float | None = None
    may_never_be: bool | None = None
    refused: str = ""
    cost_ratio_at_a_month: Bounded | None = None
    next_prompts: int = NEXT
    next_scores: int | None = None
    next_cost_usd: float | None = None
    next_decides: float | None = None
    next_requests_until_earned_back: float | None = None
    worth_it: bool | None = None
    text: str = ""


def prompts_needed(gap: Gap, compared: int) -> int | None:
    """How many more prompts, for the whole table, until the rule decides in eight of ten cases.

    Both may be as good, and then it has to decide, too. A difference near the limits of the rule takes ever
    more. None: not known, close to the limit of what is saved, or more than anybody collects.
    """
    figures = gap.figures
    if gap.close_to_limit or any(math.isnan(error.se) for error in figures.errors):
        return None
    spread, (first, noise) = _draws([gap], 2)
    truth, equal = figures.values + spread * first, figures.values.copy()
    equal[:2] = 0.0
    for times in np.geomspace(1.1, max(_MOST_PROMPTS / max(gap.asked, 1), 1.2), 120):
        decided = []
        for true in (truth, equal):
            later = true + spread * noise / math.sqrt(times)
            deploy, keep = figures.decided(later, float(times), compared)
            decided.append(float((deploy | keep).mean()))
        if decided[0] >= _ANSWERED and decided[1] >= _ANSWERED_IF_EQUAL:
            share = gap.independent / max(gap.queries, 1)
            return max(math.ceil(float(times - 1) * gap.asked * share), 1)
    return None


def outlook(gaps: Sequence[Gap], prompts: int, compared: int, kept: float) -> Outlook | None:
    """What so many more prompts, scored for the whole table, would say of the best of these routers.

    What is true lies about what was found, drawn towards no difference as far as the error allows
    (normal prior of `_USUAL`): the best of several looks better than it is. None: no error is known.

    Args:
        gaps: each router against the same model.
        kept: share of the held-out queries that are held out again: 1 where the data say which, else the
            share of the table that is (a random split is drawn anew).
    """
    figures = [gap.figures for gap in gaps]
    if any(math.isnan(error.se) for f in figures for error in f.errors):
        return None
    times = 1.0 + prompts / gaps[0].asked
    new = 1.0 - kept / times  # share of what is held out then that was not before
    spread, (first, noise, again) = _draws(gaps, 3)
    usual = np.concatenate([[_USUAL**2] * 2 + [math.inf] * (len(f.values) - 2) for f in figures])
    shrunk = 1.0 / (1.0 + spread**2 / usual)
    found = np.concatenate([f.values for f in figures])
    truth = shrunk * found + np.sqrt(shrunk) * spread * first
    later = new * (truth + spread * noise / math.sqrt(max(times - kept, 1e-12)))
    later += (1.0 - new) * (found + spread * again * math.sqrt((1.0 - kept) / kept))
    starts = np.cumsum([0, *(len(f.values) for f in figures)])
    best = later[:, starts[:-1]].argmax(axis=1)
    decides = deploys = gain = 0.0
    for r, (f, start, end) in enumerate(zip(figures, starts, starts[1:], strict=False)):
        deploy, keep = f.decided(later[:, start:end], times, compared)
        decides += float((best == r)[deploy | keep].sum()) / _DRAWS
        deploys += float((best == r)[deploy].sum()) / _DRAWS
        gain += float(truth[(best == r) & deploy, start].sum()) / _DRAWS
    return Outlook(decides, deploys, gain)


def _draws(gaps: Sequence[Gap], number: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """(standard errors `[F]` of all figures, draws `[draws, F]` of deviations, correlated alike)."""
    errors = [error for gap in gaps for error in gap.figures.errors]
    spread = np.array([max(error.se, error.unseen() / 2) for error in errors])
    with np.errstate(invalid="ignore"):
        alike = np.nan_to_num(np.corrcoef(np.concatenate([gap.figures.queries for gap in gaps])))
    np.fill_diagonal(alike, 1.0)
    root = np.linalg.cholesky(alike + 1e-9 * np.eye(len(alike))).T
    rng = np.random.default_rng(0)
    return spread, [rng.standard_normal((_DRAWS, len(spread))) @ root for _ in range(number)]
