"""Removal from an event log: scores and decisions that are taken back, and old rows that nothing needs."""

import zlib
from functools import partial

import numpy as np

from cabs_core.base.errors import UnknownDecision
from cabs_core.data.events.database import Run
from cabs_core.data.events.log import EventLog
from cabs_core.data.events.rows import REWARDS, Reward, reward_of

#: rows that `compact` removes in one transaction, between which others may append
BATCH = 2_000


def retract(log: EventLog, decision_id: str, *, source: str | None = None, row: bool = False) -> list[Reward]:
    """Take scores of a decision (or of a turn that kept it) back, or the decision itself.

    What is learnt from the log and estimated by it is then that of a log which never held them. The rows
    stay, marked, until they are compacted; what the calls cost stays counted. It may be scored again.

    Args:
        source: only its scores. row: the decision as well, with the turns that kept its model.

    Returns:
        the rewards that were taken back.

    Raises:
        UnknownDecision: there is no such decision. LogError: the log cannot be written.
    """

    def work(run: Run) -> list[Reward]:
        sql = "SELECT id, kept FROM decisions WHERE id = ? AND retracted = 0"
        named = run(sql, (decision_id,)).fetchone()
        if named is None:
            raise UnknownDecision("id", decision_id)
        credited = named[1] or named[0]
        sql = f"SELECT {', '.join(REWARDS)} FROM rewards WHERE decision_id = ? AND retracted = 0"
        values = [credited]
        if named[1]:
            sql, values = f"{sql} AND turn = ?", [*values, decision_id]
        if source is not None:
            sql, values = f"{sql} AND source = ?", [*values, source]
        gone = [reward_of(columns) for columns in run(sql, values).fetchall()]
        for reward in gone:
            key = f"retracted:{reward.seq}:{reward.key}"
            run("UPDATE rewards SET retracted = 1, teaches = 0, key = ? WHERE seq = ?", (key, reward.seq))
        sql = "SELECT MIN(seq) FROM rewards WHERE decision_id = ? AND retracted = 0"
        (first,) = run(sql, (credited,)).fetchone()
        if first is not None:  # of a log that never held the others it would have been the first
            run("UPDATE rewards SET teaches = 1 WHERE seq = ?", (first,))
        if row:
            run("UPDATE decisions SET retracted = 1 WHERE id = ? OR kept = ?", (decision_id, decision_id))
        if gone or row:
            run("UPDATE about SET value = CAST(CAST(value AS INTEGER) + 1 AS TEXT) WHERE name = 'revision'")
        return gone

    return log.database.transaction(work, append=True)


def compact(log: EventLog, before: float) -> dict[str, int]:
    """Remove what neither learning nor estimates need of the time before `before` (seconds since 1970).

    Removed are decisions that were never scored, turns that kept a model, and what was taken back, unless
    their conversation went on since. Every scored decision stays whole. That a removed one was played stays
    known, so what is learnt from the log does not change. Others may append meanwhile.

    Returns:
        {'removed': decisions and turns, 'left': of all}.

    Raises:
        LogError: the log cannot be written.
    """
    removed = after = 0
    while True:
        n, after = log.database.transaction(partial(_fold, before=before, after=after), append=True)
        removed += n
        if n < BATCH:
            break
    while log.database.shrink():
        pass
    (remaining,) = log.database.transaction(lambda run: run("SELECT COUNT(*) FROM decisions").fetchone())
    return {"removed": removed, "left": int(remaining)}


def _fold(run: Run, before: float, after: int) -> tuple[int, int]:
    """Remove a batch of rows numbered above `after`; (how many, number of the last one)."""
    sql = """SELECT d.seq, d.bundle, d.arm, d.kept, d.retracted FROM decisions d
        WHERE d.seq > ? AND d.ts < ? AND (d.retracted = 1 OR d.kept IS NOT NULL OR NOT EXISTS (
            SELECT 1 FROM rewards r WHERE r.decision_id = d.id AND r.retracted = 0))
        AND NOT (d.session IS NOT NULL AND d.retracted = 0 AND EXISTS (
            SELECT 1 FROM decisions s WHERE s.session = d.session AND s.ts >= ?))
        ORDER BY d.seq LIMIT ?"""
    rows = run(sql, (after, before, before, BATCH)).fetchall()
    plays: dict[tuple[str, str], list[int]] = {}
    for seq, bundle, arm, kept, retracted in rows:
        if kept is None and not retracted:
            plays.setdefault((bundle, arm), []).append(int(seq))
    for (bundle, arm), seqs in plays.items():
        packed = zlib.compress(np.array(seqs, dtype="<i8").tobytes())
        run(
            "INSERT INTO folded (bundle, arm, last, seqs) VALUES (?, ?, ?, ?)",
            (bundle, arm, seqs[-1], packed),
        )
    numbers = [int(row[0]) for row in rows]
    for i in range(0, len(numbers), 500):
        part = numbers[i : i + 500]
        marks = ", ".join("?" * len(part))
        these = f"SELECT id FROM decisions WHERE seq IN ({marks})"
        run(f"DELETE FROM rewards WHERE decision_id IN ({these})", part)
        run(f"DELETE FROM bodies WHERE seq IN ({marks})", part)
        run(f"DELETE FROM decisions WHERE seq IN ({marks})", part)
    return len(rows), numbers[-1] if numbers else after
