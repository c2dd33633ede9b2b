"""Removal from an event log: retraction of scores and decisions, and removal of old rows."""

import zlib
from functools import partial

import numpy as np

from cabs_core.base.errors import UnknownDecision
from cabs_core.data.events.database import Run
from cabs_core.data.events.log import EventLog
from cabs_core.data.events.rows import REWARDS, Reward, revise, reward_of

#: Rows that `compact` removes in one transaction. Others may append between two transactions.
BATCH = 2_000


def scores_to_retract(log: EventLog, decision_id: str, *, source: str | None = None) -> list[Reward]:
    """Return the rewards that `retract` would take back.

    Args:
        decision_id, source: as of `retract`.

    Raises:
        UnknownDecision: as of `retract`.
        LogError: the log cannot be read.
    """
    _, rewards = log.database.transaction(partial(_find, decision_id=decision_id, source=source))
    return rewards


def _find(run: Run, decision_id: str, source: str | None) -> tuple[str, list[Reward]]:
    """Return (id of the decision to which scores of a decision or turn are credited, the scores themselves).

    Args:
        decision_id, source: as of `retract`.

    Raises:
        UnknownDecision: as of `retract`.
    """
    sql = "SELECT id, kept FROM decisions WHERE id = ? AND retracted = 0"
    named = run(sql, (decision_id,)).fetchone()
    if named is None:
        raise UnknownDecision("id", decision_id)
    credited = str(named[1] or named[0])
    sql = f"SELECT {', '.join(REWARDS)} FROM rewards WHERE decision_id = ? AND retracted = 0"
    values = [credited]
    if named[1]:
        sql = f"{sql} AND turn = ?"
        values = [*values, decision_id]
    if source is not None:
        sql = f"{sql} AND source = ?"
        values = [*values, source]
    return credited, [reward_of(columns) for columns in run(sql, values).fetchall()]


def retract(log: EventLog, decision_id: str, *, source: str | None = None, row: bool = False) -> list[Reward]:
    """Take back the scores of a decision or of a turn that kept its model, and on demand the decision itself.

    Learning and estimates then treat the log as if it had never held the rows that were taken back. These
    rows stay, marked, until they are compacted, and the cost of their calls still counts. A decision that was
    not taken back may be scored again.

    Args:
        decision_id: id of the decision or of the turn.
        source: source whose scores are taken back. None takes back the scores of all sources.
        row: True to take back the decision as well, with the turns that kept its model.

    Returns:
        The rewards that were taken back.

    Raises:
        UnknownDecision: the log has no such decision, or it was taken back before.
        LogError: the log cannot be written.
    """

    def work(run: Run) -> list[Reward]:
        credited, gone = _find(run, decision_id, source)
        for reward in gone:
            key = f"retracted:{reward.seq}:{reward.key}"
            run("UPDATE rewards SET retracted = 1, teaches = 0, key = ? WHERE seq = ?", (key, reward.seq))
        sql = "SELECT MIN(seq) FROM rewards WHERE decision_id = ? AND retracted = 0"
        (first,) = run(sql, (credited,)).fetchone()
        if first is not None:  # without the rewards that are gone, this one would have been the first
            run("UPDATE rewards SET teaches = 1 WHERE seq = ?", (first,))
        if row:
            run("UPDATE decisions SET retracted = 1 WHERE id = ? OR kept = ?", (decision_id, decision_id))
        if gone or row:
            revise(run)
        return gone

    return log.database.transaction(work, append=True)


def compact(log: EventLog, before: float) -> dict[str, int]:
    """Remove rows from before a time that neither learning nor estimates need.

    Rows that were taken back are removed. Decisions without a score and turns that kept a model are removed
    unless their conversation went on after that time. Scored decisions stay whole. The log remembers which
    models the removed decisions played, so the result of learning does not change. Other processes may append
    to the log meanwhile.

    Args:
        before: time in seconds since 1970.

    Returns:
        {'removed': number of decisions and turns that were removed, 'left': number of those that remain}.

    Raises:
        LogError: the log cannot be written.
    """
    removed = 0
    after = 0
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
    """Remove at most `BATCH` rows that `compact` may remove, and remember which models were drawn in them.

    The models of decisions that were taken back and of turns that kept a model are not remembered.

    Args:
        before: time in seconds since 1970; only earlier rows are removed.
        after: number of a row; only later rows are looked at.

    Returns:
        (number of removed rows, number of the last removed row, or `after` if there is none).
    """
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
