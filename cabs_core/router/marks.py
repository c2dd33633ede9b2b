"""Which answers a router wants scored: marks, drawn with probabilities that are known.

With p(a) the probability of arm a at a decision, the mark has probability q(a) where a was played:

    uniform     q(a) = share;
    seldom      q(a) = min(1, c / sqrt(p(a))), c such that sum_a p(a) q(a) is the share, at every decision.

So the marked decisions are a fair sample of the requests by either rule. By `seldom` arms are more even among
them: an exploration is scored more often than what the policy likes, and the log tells more of other
policies. No q is below share / sqrt(K), so weights stay bounded. What either costs and brings is measured in
docs/measurements/logs.md, "Which answers to have scored".

Among the marked decisions arm a has probability p(a) q(a) / share. By it the score of a marked decision
teaches and is weighed in estimates (`evaluation.ope.data`). A score of a decision that was not marked came by
the will of somebody, with a probability that nobody knows: it teaches, and no estimate sees it.
"""

from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from cabs_core.base.errors import RouterError
from cabs_core.base.streams import stream_key
from cabs_core.data.events.log import EventLog

Rule = Literal["uniform", "seldom"]
RULES: tuple[str, ...] = get_args(Rule)
#: columns of the queue
QUEUE = ("id", "time", "model", "cost", "q", "prompt", "response_id", "call_id", "session", "caller")


class Mark(NamedTuple):
    """The mark of a decision.

    Attributes:
        marked: whether its score is wanted. q: probability of that, in (0, 1].
        pmf: `[K]` of the arm among the decisions that are marked.
    """

    marked: bool
    q: float
    pmf: np.ndarray


def check_share(share: float | None) -> None:
    """Raise RouterError for a share of decisions to be scored that is not in (0, 1], nor None."""
    good = share is None or (isinstance(share, int | float) and not isinstance(share, bool))
    if not good or (share is not None and not 0.0 < share <= 1.0):
        raise RouterError(f"score_share {share!r:.40}: expected a share of the decisions, above 0 up to 1")


def mark(pmf: np.ndarray, arm: int, share: float, rule: str, decision: str) -> Mark:
    """Draw the mark of a decision.

    Args:
        pmf: `[K]`, from which its arm was drawn. share: of the decisions to mark, in (0, 1].
        rule: one of `RULES`.
        decision: its id, which is random: from it comes the draw, so it can be checked later.
    """
    q, among = share, pmf
    if rule == "seldom":
        both = evened(pmf, share)
        q, among = min(float(both[arm] / pmf[arm]), 1.0), both / both.sum()
    draw = float(stream_key("score", decision)[0] >> np.uint64(11)) / 2.0**53
    return Mark(draw < q, q, among)


def evened(pmf: np.ndarray, share: float) -> np.ndarray:
    """p q = min(p, c sqrt(p)) `[K]`, of sum `share`: the probability of every arm to be played and marked."""
    roots, p = np.sqrt(pmf), np.sort(pmf)
    rest = share - np.concatenate([[0.0], np.cumsum(p)[:-1]])
    # c, were the smaller ones marked whenever they are played and none of the others
    levels = rest / np.maximum(np.cumsum(np.sqrt(p)[::-1])[::-1], 1e-300)
    fits = np.flatnonzero(levels <= np.sqrt(p))
    return np.minimum(pmf, levels[fits[0]] * roots) if len(fits) else pmf.copy()


def queue(log: EventLog, limit: int, *, caller: str | None = None) -> list[dict[str, Any]]:
    """The newest decisions whose score is wanted and has not come, at most `limit`.

    Args:
        caller: only those that it asked for; None: everybody's.

    Returns:
        rows of `QUEUE`: time in ISO 8601 (UTC), cost in USD (of the call, else as expected), q the
        probability of the mark; None where the log does not hold it, as prompts by default.
    """
    return [
        {name: getattr(row, name, None) for name in QUEUE}
        | {
            "time": datetime.fromtimestamp(row.ts, UTC).isoformat(timespec="seconds"),
            "model": row.arm,
            "cost": row.expected_cost if row.cost is None else row.cost,
        }
        for row in log.to_score(limit, caller=caller)
    ]
