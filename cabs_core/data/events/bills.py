"""What calls cost by the event log, and where the bill of a provider says otherwise.

`cabs doctor --invoice FILE` reads a CSV file with a line for each item: `day` (2026-11-25, or a time),
`model`, `usd`, and `tokens` where it has them. Items of the same day and model are added. Days are UTC, as in
the log.

The standard library reads the file: a machine that only serves has no other reader.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from cabs_core.base.errors import RouterError
from cabs_core.base.units import SECONDS_PER_DAY
from cabs_core.data.events.log import EventLog
from cabs_core.data.events.rows import SERVED

#: share by which a log may differ from a bill: providers round each item
TOLERANCE = 1e-3
#: USD below which two sums are equal
CENTS = 1e-6
_COLUMNS = ("day", "model", "usd", "tokens")
_EPOCH = date(1970, 1, 1)


@dataclass
class Sum:
    """Calls of a day and model. tokens: in and out, where known; unknown: answered calls without a cost."""

    usd: float = 0.0
    tokens: float = 0.0
    calls: int = 0
    estimated: int = 0
    unknown: int = 0

    def add(self, other: Sum) -> None:
        """Both together."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def all_calls(log: EventLog, bundle: str) -> dict[str, Any]:
    """Every call of a bundle: answered, kept turns, those that named a model; USD of all and of the parts.

    Sums of the log, so that rows that were compacted or taken back count.
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
        unknown = estimated = 0
        for named, count, cost, without, guessed, kept in run(sql, (bundle, *SERVED)).fetchall():
            unknown, estimated = unknown + int(without), estimated + int(guessed)
            if named or kept:
                part = parts["named" if named else "kept"]
                part[0], part[1] = part[0] + int(count), part[1] + float(cost)
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


def saved(log: EventLog, bundle: str, fallback: str) -> tuple[int, float, float]:
    """(answered calls that were routed, cost with failed attempts, expected cost of the fallback), USD.

    A turn that kept its model has no expectation of its own: the fallback's is what it cost, times the ratio
    that was expected when its model was drawn. Calls without one, or that named a model, are left out.
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


def by_day(log: EventLog) -> dict[tuple[int, str], Sum]:
    """{(day since 1970, model): its calls}, of all bundles; USD from sums that hold compacted rows too."""

    def work(run: Any) -> dict[tuple[int, str], Sum]:
        sums: dict[tuple[int, str], Sum] = defaultdict(Sum)
        sql = "SELECT day, arm, SUM(cost), SUM(n) FROM tallies GROUP BY day, arm"
        for day, arm, cost, calls in run(sql).fetchall():
            sums[int(day), str(arm)].add(Sum(usd=float(cost), calls=int(calls)))
        sql = """SELECT ts, arm, COALESCE(tokens_in, 0) + COALESCE(tokens_out, 0), COALESCE(estimated, 0),
            CASE WHEN cost IS NULL AND status IN ('answered', 'broken') THEN 1 ELSE 0 END FROM decisions"""
        for ts, arm, tokens, estimated, unknown in run(sql):
            key = int(float(ts) // SECONDS_PER_DAY), str(arm)
            sums[key].add(Sum(tokens=float(tokens), estimated=int(estimated), unknown=int(unknown)))
        return dict(sums)

    result: dict[tuple[int, str], Sum] = log.database.transaction(work)
    return result


def read_invoice(path: str | Path) -> dict[tuple[int, str], tuple[float, float | None]]:
    """{(day since 1970, model): (USD, tokens; None: the file has none)} of a bill.

    Raises:
        RouterError: it cannot be read, lacks a column, or a value is none; file, row and value are named.
    """
    path = Path(path)
    sums: dict[tuple[int, str], tuple[float, float | None]] = {}
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            names = [name.strip().lower() for name in next(reader, [])]
            missing = [name for name in _COLUMNS[:3] if names.count(name) != 1]
            if missing:
                raise RouterError(
                    f"{path}: expected one column {missing[0]!r}; columns are: {', '.join(names) or 'none'}. "
                    "A bill has day, model, usd and, if it counts them, tokens"
                )
            places = {name: names.index(name) for name in _COLUMNS if name in names}
            for row in reader:
                if not any(cell.strip() for cell in row):
                    continue
                at = f"{path}, line {reader.line_num}"
                cells = {name: row[i].strip() if i < len(row) else "" for name, i in places.items()}
                if not cells["model"]:
                    raise RouterError(f"{at}: model is empty")
                key = _day(cells["day"], at), cells["model"]
                usd, tokens = _number(cells["usd"], "usd", at), None
                if cells.get("tokens"):
                    tokens = _number(cells["tokens"], "tokens", at)
                    if tokens < 0:
                        raise RouterError(f"{at}: tokens is {cells['tokens']!r}; expected a number >= 0")
                before = sums.get(key, (0.0, None))
                together = (
                    None if tokens is None and before[1] is None else (tokens or 0.0) + (before[1] or 0.0)
                )
                sums[key] = before[0] + usd, together
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RouterError(f"{path} cannot be read as a CSV file in UTF-8: {error}") from None
    if not sums:
        raise RouterError(f"{path} has no rows")
    return sums


def _day(text: str, at: str) -> int:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise RouterError(
            f"{at}: day is {text!r:.60}; expected such as 2026-11-25 or 2026-11-25T00:00:00Z"
        ) from None
    if when.tzinfo is not None:
        when = when.astimezone(UTC)
    return (when.date() - _EPOCH).days


def _number(text: str, column: str, at: str) -> float:
    try:
        value = float(text.removeprefix("$").replace("_", "x"))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise RouterError(f"{at}: {column} is {text!r:.60}; expected a number such as 12.34")
    return value


def compare_invoice(
    log: EventLog, path: str | Path, names: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Where log and bill differ by more than TOLERANCE, by day and model.

    Args:
        names: {model of the log: what its provider calls it}, where these differ; equal names are one.

    Returns:
        JSON values: usd_log and usd_invoice of the bill's days; rows (every difference: day, model, usd_log,
        usd_invoice, tokens_log, tokens_invoice (None: the bill has none), calls, why), the largest first;
        matched: how many agree.

    Raises:
        RouterError: the bill cannot be read.
    """
    bill, logged = read_invoice(path), defaultdict[tuple[int, str], Sum](Sum)
    days = {day for day, _ in bill}
    first, last = min(days), max(days)
    for (day, arm), part in by_day(log).items():
        if first <= day <= last:
            logged[day, (names or {}).get(arm, arm)].add(part)
    rows: list[dict[str, Any]] = []
    matched = 0
    for day, model in sorted({*bill, *(k for k, s in logged.items() if s.usd or s.tokens)}):
        ours, theirs = logged.get((day, model), Sum()), bill.get((day, model))
        usd, tokens = theirs or (0.0, None)
        if _near(ours.usd, usd) and (tokens is None or _near(ours.tokens, tokens, least=0.5)):
            matched += 1
            continue
        rows.append(
            {
                "day": (_EPOCH + timedelta(days=day)).isoformat(),
                "model": model,
                "usd_log": ours.usd,
                "usd_invoice": usd,
                "tokens_log": ours.tokens,
                "tokens_invoice": tokens,
                "calls": ours.calls,
                "why": _why(ours, theirs, {m for d, m in bill if d == day}),
            }
        )
    rows.sort(key=lambda row: -abs(row["usd_log"] - row["usd_invoice"]))
    return {
        "file": str(path),
        "usd_log": sum(s.usd for s in logged.values()),
        "usd_invoice": sum(usd for usd, _ in bill.values()),
        "matched": matched,
        "rows": rows,
    }


def _near(a: float, b: float, least: float = CENTS) -> bool:
    return abs(a - b) <= max(TOLERANCE * max(abs(a), abs(b)), least)


def _why(ours: Sum, theirs: tuple[float, float | None] | None, billed: Iterable[str]) -> str:
    """What the log knows that may explain a difference."""
    if theirs is None:
        return f"the bill has no such model on that day; it has {', '.join(sorted(billed)) or 'none'}"
    if not ours.calls:
        return (
            "no call of it on that day: another program used the key, or the bill names the model otherwise"
        )
    known = [
        f"{count} of {ours.calls} calls {words}"
        for count, words in (
            (ours.unknown, "have no cost: is there a price?"),
            (ours.estimated, "were estimated"),
        )
        if count
    ]
    same = theirs[1] is not None and _near(ours.tokens, theirs[1], least=0.5)
    return "; ".join([*known, *(["tokens agree, so the price differs"] if same else [])])
