"""One count of a day's budget for all who share a log: its cost, and what calls under way may cost.

A call is reserved before it is made, in one transaction, while both together are below the budget. So the day
ends at most one call above it, whoever asks and from wherever, if none costs more than reserved.
"""

from collections.abc import Iterable

from cabs_core.data.events.database import Run
from cabs_core.data.events.log import EventLog

#: seconds that a reservation stands which nobody renews: the process that made it has ended
STANDS = 60.0


def reserve(log: EventLog, name: str, most: float, *, usd: float, day: int) -> tuple[bool, float]:
    """Reserve a call under a name of its own; (whether it may be made, what the day has cost so far in USD).

    Args:
        most: USD that it may cost. usd: the budget. day: UTC, counted from 1970.

    Raises:
        LogError: the log cannot be written.
    """

    def work(run: Run) -> tuple[bool, float]:
        now = log.clock(run)
        # one that stands longer than any can was made while a clock was ahead
        run("DELETE FROM reserved WHERE ends <= ? OR ends > ?", (now, now + 2.0 * STANDS))
        sql = "SELECT COALESCE(SUM(cost), 0) FROM tallies WHERE day = ?"
        spent = float(run(sql, (day,)).fetchone()[0])
        sql = "SELECT COALESCE(SUM(usd), 0) FROM reserved WHERE name <> ?"
        held = float(run(sql, (name,)).fetchone()[0])
        if spent + held >= usd:
            run("DELETE FROM reserved WHERE name = ?", (name,))
            return False, spent
        run(
            "INSERT INTO reserved (name, usd, ends) VALUES (?, ?, ?) ON CONFLICT (name) DO NOTHING",
            (name, most, now + STANDS),
        )
        return True, spent

    return log.database.transaction(work, append=True)


def release(log: EventLog, name: str) -> None:
    """A call has ended, and what it cost is in the log. Raises LogError: the log cannot be written."""
    log.database.transaction(lambda run: run("DELETE FROM reserved WHERE name = ?", (name,)), append=True)


def renew(log: EventLog, names: Iterable[str]) -> None:
    """Calls that go on. Raises LogError: the log cannot be written."""

    def work(run: Run) -> None:
        ends = log.clock(run) + STANDS
        for name in names:
            run("UPDATE reserved SET ends = ? WHERE name = ?", (ends, name))

    log.database.transaction(work, append=True)
