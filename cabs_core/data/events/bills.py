"""Costs of calls in the event log: sums of a bundle's calls, and their comparison with the fallback model."""

from __future__ import annotations

from typing import Any

from cabs_core.data.events.log import EventLog
from cabs_core.data.events.rows import SERVED


def all_calls(log: EventLog, bundle: str) -> dict[str, Any]:
    """Return the number and the cost of a bundle's calls.

    Returns:
        calls: number of served calls.
        usd: cost of all calls, USD.
        failed_usd: cost of the calls that served no request, USD.
        unknown: number of served calls without a cost.
        estimated: number of served calls with an estimated cost.
        named: {calls, usd} of the served calls whose model the client named.
        kept: {calls, usd} of the other served calls that kept the model of an earlier call of their
            conversation.

        All values count calls that were taken back. The first three values also count calls whose rows were
        removed from the log.
    """
    marks = ", ".join("?" * len(SERVED))

    def work(run: Any) -> dict[str, Any]:
        sql = f"""SELECT COALESCE(SUM(CASE WHEN status IN ({marks}) THEN n END), 0), COALESCE(SUM(cost), 0),
            COALESCE(SUM(CASE WHEN status NOT IN ({marks}) THEN cost END), 0) FROM tallies WHERE bundle = ?"""
        answered, usd, failed = run(sql, (*SERVED, *SERVED, bundle)).fetchone()
        sql = f"""SELECT mode = 'named', COUNT(*), COALESCE(SUM(cost), 0),
            SUM(CASE WHEN cost IS NULL THEN 1 ELSE 0 END),
            SUM(CASE WHEN estimated = 1 THEN 1 ELSE 0 END), kept IS NOT NULL
            FROM decisions WHERE bundle = ? AND status IN ({marks})
            GROUP BY mode = 'named', kept IS NOT NULL"""
        parts = {"kept": [0, 0.0], "named": [0, 0.0]}
        unknown = 0
        estimated = 0
        for named, count, cost, without_cost, with_estimate, kept in run(sql, (bundle, *SERVED)).fetchall():
            unknown += int(without_cost)
            estimated += int(with_estimate)
            if named or kept:
                part = parts["named" if named else "kept"]
                part[0] += int(count)
                part[1] += float(cost)
        return {
            "calls": int(answered),
            "usd": float(usd),
            "failed_usd": float(failed),
            "unknown": unknown,
            "estimated": estimated,
            **{name: {"calls": int(n), "usd": cost} for name, (n, cost) in parts.items()},
        }

    result: dict[str, Any] = log.database.transaction(work)
    return result


def unpriced_calls(log: EventLog, bundle: str) -> list[tuple[str, str, int, float]]:
    """Return the calls of a bundle whose replies name charges that their cost does not contain.

    Returns:
        (model, the charges in words such as `tier flex, 3 searches`, number of calls, their cost in USD).
    """
    sql = """SELECT arm, unpriced, COUNT(*), COALESCE(SUM(cost), 0) FROM decisions
        WHERE bundle = ? AND unpriced IS NOT NULL GROUP BY arm, unpriced ORDER BY arm, unpriced"""
    rows = log.database.transaction(lambda run: run(sql, (bundle,)).fetchall())
    return [(str(arm), str(words), int(calls), float(usd)) for arm, words, calls, usd in rows]


def costs_of_calls(log: EventLog, bundle: str) -> list[tuple[float, float | None]]:
    """Return (cost, expected cost) in USD of each answered call of a bundle that has a cost.

    The expected cost is the one that the router predicted for the chosen model before the call. It is None if
    the router predicted none. Calls that were taken back are among the calls.
    """
    sql = """SELECT cost, expected_cost FROM decisions
        WHERE bundle = ? AND status = 'answered' AND cost IS NOT NULL"""
    rows = log.database.transaction(lambda run: run(sql, (bundle,)).fetchall())
    return [(float(cost), None if expected is None else float(expected)) for cost, expected in rows]


def saved(log: EventLog, bundle: str, fallback: str) -> tuple[int, float, float]:
    """Compare the cost of a bundle's routed calls with the cost that was expected of its fallback model.

    A call that kept the model of its conversation has no expectation of its own. The fallback's cost is then
    the cost of the call, times the ratio that was expected when the model was drawn. Calls without a cost or
    an expectation, calls that were taken back and calls whose model the client named are left out.

    Returns:
        (answered calls, their cost with failed attempts in USD, expected cost of the fallback in USD).
    """
    sql = """SELECT COUNT(CASE WHEN status = 'answered' THEN 1 END), COALESCE(SUM(cost), 0),
        COALESCE(SUM(CASE WHEN status = 'answered' THEN fixed END), 0) FROM (
            SELECT d.status, d.cost, CASE
                WHEN d.fixed_cost IS NOT NULL THEN d.fixed_cost
                WHEN d.kept IS NULL THEN NULL
                WHEN d.arm = ? THEN d.cost
                WHEN k.expected_cost > 0 THEN d.cost * k.fixed_cost / k.expected_cost END AS fixed
            FROM decisions d LEFT JOIN decisions k ON k.id = d.kept AND k.id <> d.id
            WHERE d.bundle = ? AND d.retracted = 0 AND d.cost IS NOT NULL AND d.mode <> 'named') AS routed
        WHERE fixed IS NOT NULL"""
    count, cost, fixed = log.database.transaction(lambda run: run(sql, (fallback, bundle)).fetchone())
    return int(count), float(cost), float(fixed)
