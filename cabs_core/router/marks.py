"""Marks: they say which answers a router wants scored, and are drawn with known probabilities.

With p(a) the probability of arm a at a decision, the mark has probability q(a) if a was played:

    uniform     q(a) = share;
    seldom      q(a) = min(1, c / sqrt(p(a))), with c such that sum_a p(a) q(a) is the share, at every
    decision.

So the marked decisions are a fair sample of the requests by either rule. By `seldom` the arms are more even
among them: an exploration is scored more often than a favoured model, and the log tells more of other
policies. No q is below share / sqrt(K), so weights stay bounded. docs/measurements/logs.md, "Which answers to
have scored", has what either rule costs and brings.

Among the marked decisions arm a has probability p(a) q(a) / share. The score of a marked decision teaches and
is weighed in estimates by this probability (`evaluation.ope.data`). A score of a decision without mark was
given because somebody chose to, with a probability that nobody knows: the score teaches, and no estimate uses
it.
"""

from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from cabs_core.base.errors import RouterError
from cabs_core.base.streams import stream_key
from cabs_core.data.events.log import EventLog

Rule = Literal["uniform", "seldom"]
RULES: tuple[str, ...] = get_args(Rule)
#: Columns of the queue of decisions whose score is wanted.
QUEUE = ("id", "time", "model", "cost", "q", "prompt", "response_id", "call_id", "session", "caller")


class Mark(NamedTuple):
    """The mark of a decision.

    Attributes:
        marked: True if the score of the decision is wanted.
        q: probability of the mark, in (0, 1].
        pmf: probabilities of the arms among the marked decisions, `[K]`.
    """

    marked: bool
    q: float
    pmf: np.ndarray


def check_share(share: float | None) -> None:
    """Raise RouterError unless a share of decisions to be scored is None, or above 0 up to 1."""
    is_number = isinstance(share, int | float) and not isinstance(share, bool)
    if share is not None and not (is_number and 0.0 < share <= 1.0):
        raise RouterError(f"score_share {share!r:.40}: expected a share of the decisions, above 0 up to 1")


def draw_mark(pmf: np.ndarray, arm: int, share: float, rule: str, decision: str) -> Mark:
    """Draw the mark of a decision.

    Args:
        pmf: probabilities from which the arm was drawn, `[K]`.
        arm: index of the arm that was drawn.
        share: share of the decisions to mark, in (0, 1].
        rule: one of `RULES`.
        decision: random id of the decision. The draw derives from the id, so that it can be checked later.
    """
    q = share
    among_marked = pmf
    if rule == "seldom":
        both = played_and_marked(pmf, share)
        q = min(float(both[arm] / pmf[arm]), 1.0)
        among_marked = both / both.sum()
    number = float(stream_key("score", decision)[0] >> np.uint64(11)) / 2.0**53
    return Mark(number < q, q, among_marked)


def played_and_marked(pmf: np.ndarray, share: float) -> np.ndarray:
    """Return the probability of every arm to be played and marked by rule `seldom`, `[K]`, of sum `share`.

    The probability is p q = min(p, c sqrt(p)). The arms are sorted by p: those below some p are always
    marked, and c is the level at which the others fill the rest of the share.
    """
    roots = np.sqrt(pmf)
    p = np.sort(pmf)
    always_marked = np.concatenate([[0.0], np.cumsum(p)[:-1]])
    rest = share - always_marked
    levels = rest / np.maximum(np.cumsum(np.sqrt(p)[::-1])[::-1], 1e-300)
    fits = np.flatnonzero(levels <= np.sqrt(p))
    if not len(fits):  # the share is all: every arm is always marked
        return pmf.copy()
    both: np.ndarray = np.minimum(pmf, levels[fits[0]] * roots)
    return both


def queue(log: EventLog, limit: int, *, caller: str | None = None) -> list[dict[str, Any]]:
    """Return the newest decisions whose score is wanted and has not come, newest first.

    Decisions whose call failed, was refused or never began are left out.

    Args:
        log: event log of the router.
        limit: number of rows at most.
        caller: name of a client. Only decisions that it asked for are returned, or all if it is None.

    Returns:
        rows with the columns `QUEUE`: `time` in ISO 8601 (UTC), `cost` of the call in USD, or the expected
        cost if it is not known, and `q`, the probability of the mark. A value that the log does not hold is
        None, as prompts are by default.
    """
    rows = []
    for logged in log.to_score(limit, caller=caller):
        row = {name: getattr(logged, name, None) for name in QUEUE}
        row["time"] = datetime.fromtimestamp(logged.ts, UTC).isoformat(timespec="seconds")
        row["model"] = logged.arm
        if logged.cost is None:
            row["cost"] = logged.expected_cost
        else:
            row["cost"] = logged.cost
        rows.append(row)
    return rows
