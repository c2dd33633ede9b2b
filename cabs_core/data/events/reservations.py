"""Reservations of money: one count of a day's budget for all processes that share a log.

A call reserves its highest cost before it is made, in one transaction, while the day's cost and all
reservations together are below the budget. The day therefore ends at most one call above the budget, in
whichever process the calls are made, if no call costs more than was reserved for it.
"""

from collections.abc import Iterable

from cabs_core.data.events.database import Run
from cabs_core.data.events.log import EventLog

#: Seconds after which a reservation ends unless it is renewed; a process that has died renews none.
STANDS = 60.0


def reserve(log: EventLog, name: str, most: float, *, usd: float, day: int) -> tuple[bool, float]:
    """Reserve money for a call, unless the budget of the day is used up.

    A name that has a reservation keeps the reservation as it is. A refusal removes the reservation.

    Args:
        name: name of the reservation, different for each call.
        most: USD that the call may cost.
        usd: budget of the day, USD.
        day: UTC day, counted from 1970.

    Returns:
        (True if the call may be made, USD that the calls of the day have cost so far, reservations left out).

    Raises:
        LogError: the log cannot be written.
    """

    def work(run: Run) -> tuple[bool, float]:
        now = log.clock(run)
        # A reservation that ends later than any can was made while a clock was ahead.
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
    """Remove the reservation of a call that has ended and whose cost is in the log.

    Raises:
        LogError: the log cannot be written.
    """
    log.database.transaction(lambda run: run("DELETE FROM reserved WHERE name = ?", (name,)), append=True)


def renew(log: EventLog, names: Iterable[str]) -> None:
    """Extend the named reservations, whose calls are still under way, to `STANDS` seconds from now.

    Raises:
        LogError: the log cannot be written.
    """

    def work(run: Run) -> None:
        ends = log.clock(run) + STANDS
        for name in names:
            run("UPDATE reserved SET ends = ? WHERE name = ?", (ends, name))

    log.database.transaction(work, append=True)
