"""The gain of an option on the newest fifth of the prompts, beside its gain on the older ones."""

import math
from dataclasses import dataclass

import numpy as np

from cabs_core.evaluation.answer.compare import CROSS_FITTED, Pair, quality_of
from cabs_core.evaluation.answer.ladder import ROUTER, RULES
from cabs_core.evaluation.answer.table import Decisions, ScoredTable

#: share of the prompts that are the newest ones, and the largest share if many have the same time
_NEWEST = 0.2
_MOST = 0.4
#: fewest independent prompts of each part
_FEWEST = 20
#: error of the statement that newest and older prompts differ: less than `rule.LEVEL`, since both intervals
#: that it is made of are approximate
_ERROR = 0.04


@dataclass(frozen=True)
class Newest:
    """The difference of an option to today's model on the newest prompts and on the older ones.

    Attributes:
        rung: rung of the option.
        since: time of the oldest of the newest prompts, in seconds since 1970 (UTC).
        prompts, older_prompts: number of judged prompts of each part.
        difference, older_difference: mean score of the option less today's in each part.
        change: `difference` minus `older_difference`, with its two-sided 96 % interval from `low` to `high`.
    """

    rung: str
    since: float
    prompts: int
    older_prompts: int
    difference: float
    older_difference: float
    change: float
    low: float
    high: float

    @property
    def differs(self) -> bool:
        """True if the option's difference to today's has changed beyond noise: `low` to `high` excludes 0."""
        return self.low > 0 or self.high < 0


def newest_fifth(
    table: ScoredTable,
    times: np.ndarray,
    rung: str,
    played: Decisions,
) -> Newest | None:
    """Compare the newest fifth of the judged prompts with the older ones.

    The interval of the change is made of the intervals of both parts (Zou and Donner 2008, Statistics in
    Medicine 27(10)), so it needs no variance of its own where losses are rare. The errors of the rungs rules
    and router, which are made from prompts of the table, are widened by `CROSS_FITTED`.

    Args:
        table: scored answers.
        times: `[N]` time of each prompt in seconds since 1970; NaN if it is not known.
        rung: rung of the option.
        played: decisions of the option.

    Returns:
        None if no time is known, if either part has fewer than 20 independent prompts, or if equal times put
        more than 40 % of the prompts among the newest. Prompts without a time belong to neither part.
    """
    baseline = table.baseline()
    pair = Pair.of(table, played.weights, baseline)
    known = (pair.weight > 0) & ~np.isnan(times)
    if not known.any():
        return None
    ordered = np.sort(times[known])
    since = float(ordered[int((1.0 - _NEWEST) * len(ordered))])
    newest = known & (times >= since)
    if newest.sum() > _MOST * known.sum():
        return None
    samples = []
    for rows in (newest, known & ~newest):
        if len(np.unique(table.clusters[rows])) < _FEWEST:
            return None
        sample = quality_of(table, pair.only(rows), played.weights, baseline)
        samples.append(sample.widened(CROSS_FITTED) if rung in (RULES, ROUTER) else sample)
    new, old = samples
    new_low, new_high = new.interval(_ERROR / 2)
    old_low, old_high = old.interval(_ERROR / 2)
    change = new.mean - old.mean
    return Newest(
        rung=rung,
        since=since,
        prompts=int(newest.sum()),
        older_prompts=int((known & ~newest).sum()),
        difference=new.mean,
        older_difference=old.mean,
        change=change,
        low=change - math.hypot(new.mean - new_low, old_high - old.mean),
        high=change + math.hypot(new_high - new.mean, old.mean - old_low),
    )
