"""Queries of the event log. `log` describes the tables and writes them."""

import json
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from cabs_core.base.units import SECONDS_PER_DAY
from cabs_core.data.events.database import Database, Run
from cabs_core.data.events.rows import (
    ANSWERLESS,
    COLUMNS,
    FROM,
    NAMED,
    REWARDS,
    SERVED,
    DayTotals,
    Logged,
    Reward,
    embedding_of,
    logged_of,
    name_of,
    reward_of,
)

#: Beginning of the name in `about` under which the encoder of a bundle stands; the bundle's id follows.
ENCODER = "encoder:"
#: Beginning of the name in `about` under which the arms of a bundle stand; the bundle's id follows.
ARMS = "arms:"
#: Query of the rewards that teach, with their decisions.
_LESSONS = f"""SELECT {", ".join(f"r.{c}" for c in REWARDS)}, {COLUMNS}
    FROM rewards r JOIN decisions d ON d.id = r.decision_id JOIN bodies b ON b.seq = d.seq
    WHERE r.teaches = 1 AND r.retracted = 0 AND d.retracted = 0"""


def _lesson(row: Sequence[Any]) -> tuple[Logged, Reward]:
    """Return the decision and the reward in a row of `_LESSONS`."""
    return logged_of(row[len(REWARDS) :]), reward_of(row[: len(REWARDS)])


#: A number in the reason of a failure, other than an HTTP status.
_NUMBER = re.compile(r"(?<!HTTP )(?<![\w.])\d+(?:\.\d+)?")


class EventReads:
    """Queries of an event log (`EventLog`). Each method raises LogError if the log cannot be read."""

    database: Database
    _id: str

    def _one(self, sql: str, values: Sequence[Any] = ()) -> tuple[Any, ...]:
        """Return the first row of a query, or an empty tuple if it has none."""
        rows = self._all(sql, values)
        if rows:
            return rows[0]
        return ()

    def _all(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a query."""
        rows: list[tuple[Any, ...]] = self.database.transaction(lambda run: run(sql, values).fetchall())
        return rows

    @property
    def id(self) -> str:
        """Random name of this log. A copy of the log has the same name."""
        if not self._id:
            self._id = str(self._one("SELECT value FROM about WHERE name = 'log'")[0])
        return self._id

    @property
    def revision(self) -> int:
        """Number of changes of what a learner may have read: retractions, and calls of scored decisions whose
        end came late. A state that was learnt at another number has to be learnt again.
        """
        return int(self._one("SELECT value FROM about WHERE name = 'revision'")[0])

    def encoders(self) -> dict[str, str]:
        """Return {id of a bundle: identity of its encoder} of the bundles that have opened this log."""
        rows = self._all("SELECT name, value FROM about WHERE name LIKE ?", (f"{ENCODER}%",))
        return {str(name).removeprefix(ENCODER): str(value) for name, value in rows}

    def arm_sets(self) -> list[tuple[float, str, list[str]]]:
        """Return (time of first use, bundle, arms) of the bundles that have opened this log, oldest first."""
        rows = self._all("SELECT name, value FROM about WHERE name LIKE ?", (f"{ARMS}%",))
        sets = [(json.loads(value), str(name).removeprefix(ARMS)) for name, value in rows]
        return sorted((float(known["ts"]), bundle, list(known["arms"])) for known, bundle in sets)

    def noted(self, name: str) -> str | None:
        """Return the text under a name in the table `about`, or None if the table has no such name."""
        row = self._one("SELECT value FROM about WHERE name = ?", (name,))
        if row:
            return str(row[0])
        return None

    def decision(self, *, caller: str | None = None, **where: str) -> Logged | None:
        """Return the newest decision with an id that was not taken back, or None if there is none.

        Of a session, a decision that failed, was refused or was never used is returned only if the session
        has no other one, since the conversation is where its last answer came from.

        Args:
            caller: key whose decisions are searched, since clients choose ids and two may choose one. None
                searches all decisions.
            where: one of id, response_id, call_id, session or kept, with its value. `kept` is the id of the
                decision whose model a later turn kept.
        """
        ((column, value),) = where.items()
        assert column in NAMED
        sql = f"SELECT {COLUMNS} FROM {FROM} WHERE d.{column} = ? AND d.retracted = 0"
        if caller is not None:
            sql += " AND d.caller = ?"
        values = (name_of(value),) if caller is None else (name_of(value), caller)
        newest = "ORDER BY d.seq DESC LIMIT 1"
        row: tuple[Any, ...] = ()
        if column == "session":
            answered = f"d.status NOT IN ({', '.join('?' * len(ANSWERLESS))})"
            row = self._one(f"{sql} AND {answered} {newest}", (*values, *ANSWERLESS))
        row = row or self._one(f"{sql} {newest}", values)
        if row:
            return logged_of(row)
        return None

    def scored_in(self, session: str, *, caller: str | None = None) -> list[Logged]:
        """Return the decisions of a session that have a score, in order, without those taken back.

        Args:
            session: hash of the conversation's name.
            caller: key whose decisions are returned. None returns decisions of all keys.
        """
        sql = f"""SELECT {COLUMNS} FROM {FROM} WHERE d.session = ? AND d.retracted = 0
            AND EXISTS (SELECT 1 FROM rewards r WHERE r.decision_id = d.id AND r.retracted = 0)"""
        values = [name_of(session)]
        if caller is not None:
            sql = f"{sql} AND d.caller = ?"
            values = [*values, caller]
        return [logged_of(row) for row in self._all(f"{sql} ORDER BY d.seq", values)]

    def turns_before(self, turn: Logged) -> list[Logged]:
        """Return the last 20 calls before a turn in its session, of the same caller, newest first."""
        caller = "d.caller = ?"
        values = [turn.caller]
        if turn.caller is None:
            caller = "d.caller IS NULL"
            values = []
        sql = (
            f"SELECT {COLUMNS} FROM {FROM} "
            f"WHERE d.session = ? AND d.seq < ? AND {caller} AND d.retracted = 0 "
            "ORDER BY d.seq DESC LIMIT 20"
        )
        return [logged_of(row) for row in self._all(sql, (turn.session, turn.seq, *values))]

    def decisions(self, after: int = 0) -> list[Logged]:
        """Return decisions and kept turns with numbers above `after`, in order, without those taken back."""
        sql = f"SELECT {COLUMNS} FROM {FROM} WHERE d.seq > ? AND d.retracted = 0 ORDER BY d.seq"
        return [logged_of(row) for row in self._all(sql, (after,))]

    def mean_cost(self, decision_id: str) -> float | None:
        """Return the mean cost in USD of the calls of a decision and of the turns that kept its model.

        Calls that failed, were refused or were never used are left out. Return None if no cost is known.
        """
        sql = (
            "SELECT AVG(cost) FROM decisions WHERE (id = ? OR kept = ?) AND retracted = 0 AND status NOT IN "
            f"({', '.join('?' * len(ANSWERLESS))})"
        )
        (mean,) = self._one(sql, (decision_id, decision_id, *ANSWERLESS))
        if mean is None:
            return None
        return float(mean)

    def played(self, after: int, bundles: list[str]) -> tuple[int, dict[str, int]]:
        """Count the models that some bundles drew since a decision.

        Args:
            after: number of that decision; later decisions count.
            bundles: ids of the bundles.

        Returns:
            (number of the newest decision of the log, or `after` if that is larger; {arm: number of draws}).
            Decisions whose rows were removed count, decisions that were taken back do not.
        """
        marks = ", ".join("?" * len(bundles))

        def work(run: Run) -> tuple[int, dict[str, int]]:
            newest = "SELECT COALESCE(MAX(seq), 0) FROM decisions"
            folded = "SELECT COALESCE(MAX(last), 0) FROM folded"
            last = max(int(run(sql).fetchone()[0]) for sql in (newest, folded))
            if last <= after:
                return max(last, after), {}
            sql = (
                "SELECT arm, COUNT(*) FROM decisions WHERE seq > ? AND seq <= ? AND kept IS NULL AND "
                f"retracted = 0 AND bundle IN ({marks}) GROUP BY arm"
            )
            counts = {str(arm): int(n) for arm, n in run(sql, (after, last, *bundles)).fetchall()}
            sql = f"SELECT arm, seqs FROM folded WHERE last > ? AND bundle IN ({marks})"
            for arm, packed in run(sql, (after, *bundles)).fetchall():
                gone = int((np.frombuffer(zlib.decompress(bytes(packed)), dtype="<i8") > after).sum())
                counts[arm] = counts.get(arm, 0) + gone
            return last, counts

        return self.database.transaction(work)

    def rewards(self, after: int = 0) -> list[Reward]:
        """Return rewards with numbers above `after`, in order, without those taken back."""
        sql = f"SELECT {', '.join(REWARDS)} FROM rewards WHERE seq > ? AND retracted = 0 ORDER BY seq"
        return [reward_of(row) for row in self._all(sql, (after,))]

    def lessons(
        self, after: int, limit: int, bundles: list[str]
    ) -> tuple[list[tuple[Logged, Reward]], int, int]:
        """Return the next rewards that teach, with their decisions, for decisions of some bundles.

        Args:
            after: number of a reward; later rewards are read.
            limit: most rewards that are looked at, of all bundles.
            bundles: ids of the bundles.

        Returns:
            (decisions with their rewards, in order; number of rewards that were looked at; number of the last
            reward that was looked at, or `after` if there is none).
        """
        marks = ", ".join("?" * len(bundles))

        def work(run: Run) -> tuple[list[tuple[Logged, Reward]], int, int]:
            sql = "SELECT seq FROM rewards WHERE seq > ? AND retracted = 0 ORDER BY seq LIMIT ?"
            numbers = [int(row[0]) for row in run(sql, (after, limit)).fetchall()]
            if not numbers:
                return [], 0, after
            sql = f"{_LESSONS} AND r.seq > ? AND r.seq <= ? AND d.bundle IN ({marks}) ORDER BY r.seq"
            rows = run(sql, (after, numbers[-1], *bundles)).fetchall()
            return list(map(_lesson, rows)), len(numbers), numbers[-1]

        return self.database.transaction(work)

    def scored(self) -> Iterator[tuple[Logged, Reward]]:
        """Yield every decision whose score teaches, with its reward, in order of decisions.

        The rows are read in parts, so that not all of them are in memory.
        """
        return map(_lesson, self.database.stream(f"{_LESSONS} ORDER BY d.seq"))

    def to_score(self, limit: int, *, caller: str | None = None) -> list[Logged]:
        """Return the newest decisions whose score is wanted and has not come, newest first.

        Decisions whose call failed, was refused or never began are left out. Calls that have not ended yet
        are included. The decisions are not ordered by how much they would teach, so that the first of them
        are a fair sample of all decisions whose score is wanted.

        Args:
            limit: most decisions that are returned.
            caller: key whose decisions are returned. None returns decisions of all keys.
        """
        sql = f"""SELECT {COLUMNS} FROM {FROM} WHERE d.marked = 1 AND d.retracted = 0
            AND d.status NOT IN ({", ".join("?" * len(ANSWERLESS))})
            AND NOT EXISTS (SELECT 1 FROM rewards r WHERE r.decision_id = d.id AND r.retracted = 0)"""
        values: tuple[Any, ...] = ANSWERLESS
        if caller is not None:
            sql = f"{sql} AND d.caller = ?"
            values = (*values, caller)
        return [logged_of(row) for row in self._all(f"{sql} ORDER BY d.seq DESC LIMIT {int(limit)}", values)]

    def outcomes(self, bundle: str) -> Iterator[tuple[Any, ...]]:
        """Yield (arm, status, ts, rho, is_draw, score, cost, weight) of a bundle's calls, in order.

        `is_draw` is false for a turn that kept its model. `score` and `cost` are those of the reward that
        teaches; None if there is none. `weight` is 1 / probability that this arm was played and its score
        wanted, and 0 if the score is not wanted.
        """
        sql = """SELECT d.arm, d.status, d.ts, d.rho, d.kept IS NULL, r.score, r.cost,
            CASE WHEN d.q IS NULL THEN 1.0 / d.p WHEN d.marked = 1 THEN 1.0 / (d.p * d.q) ELSE 0.0 END
            FROM decisions d
            LEFT JOIN rewards r ON r.decision_id = d.id AND r.teaches = 1 AND r.retracted = 0
            WHERE d.bundle = ? AND d.retracted = 0 ORDER BY d.seq"""
        return self.database.stream(sql, (bundle,))

    def recent_scores(self, bundle: str, arm: str, limit: int) -> list[tuple[str, float, np.ndarray, float]]:
        """Return (hash, length and embedding of the prompt, score) of a model's draws that teach.

        The newest reward is first.
        """
        sql = """SELECT d.prompt_hash, d.prompt_length, b.embedding, r.score FROM rewards r
            JOIN decisions d ON d.id = r.decision_id JOIN bodies b ON b.seq = d.seq
            WHERE d.bundle = ? AND d.arm = ? AND d.retracted = 0 AND r.teaches = 1 AND r.retracted = 0
            AND b.embedding IS NOT NULL ORDER BY r.seq DESC LIMIT ?"""
        return [
            (str(name), float(length), embedding_of(vector), float(score))
            for name, length, vector, score in self._all(sql, (bundle, arm, limit))
        ]

    def failures(self, bundle: str) -> list[tuple[str, str, int, float]]:
        """Return (arm, reason, number of calls, time of the last) of failures and refusals.

        The ten with the most calls are returned, in this order. Reasons that differ only in numbers other
        than an HTTP status count together, under the most frequent reason.
        """
        sql = """SELECT arm, COALESCE(reason, ''), COUNT(*), MAX(ts) FROM decisions
            WHERE bundle = ? AND retracted = 0 AND status IN ('error', 'timeout', 'refused')
            GROUP BY arm, COALESCE(reason, '') ORDER BY COUNT(*) DESC, arm"""
        merged: dict[tuple[str, str], tuple[str, str, int, float]] = {}
        for arm, reason, count, last in self._all(sql, (bundle,)):
            kind = (str(arm), _NUMBER.sub("N", str(reason)))
            _, words, calls, latest = merged.get(kind, (arm, reason, 0, 0.0))
            merged[kind] = (str(arm), str(words), calls + int(count), max(latest, float(last)))
        return sorted(merged.values(), key=lambda row: (-row[2], row[0]))[:10]

    def scored_prompts(self) -> set[str]:
        """Return the hashes of the prompts of all decisions whose score teaches."""
        sql = (
            "SELECT DISTINCT d.prompt_hash FROM decisions d JOIN rewards r ON r.decision_id = d.id "
            "WHERE r.teaches = 1 AND r.retracted = 0 AND d.retracted = 0"
        )
        return {row[0] for row in self._all(sql)}

    def last_reward(self) -> int:
        """Return the number of the newest reward that was not taken back, or 0 if there is none."""
        return int(self._one("SELECT COALESCE(MAX(seq), 0) FROM rewards WHERE retracted = 0")[0])

    def last_rho(self, bundle: str) -> float | None:
        """Return rho of the newest decision that a bundle drew, or None if there is none.

        Decisions that were taken back count, decisions whose rows were removed do not.
        """
        sql = "SELECT rho FROM decisions WHERE bundle = ? AND kept IS NULL ORDER BY seq DESC LIMIT 1"
        row = self._one(sql, (bundle,))
        if row:
            return float(row[0])
        return None

    def counts(self) -> list[tuple[str, str, int]]:
        """Return (arm, status, number of calls) in order of the arms, with calls whose rows were removed."""
        sql = (
            "SELECT arm, status, SUM(n) FROM tallies GROUP BY arm, status HAVING SUM(n) > 0 ORDER BY arm, "
            "status"
        )
        return [(arm, status, int(n)) for arm, status, n in self._all(sql)]

    def bundles(self) -> list[tuple[str, int, float | None]]:
        """Return (bundle, number of its calls, time of its newest row) of every bundle, the latest last.

        The calls include those whose rows were removed. The time is None if all rows of a bundle were
        removed.
        """

        def work(run: Run) -> list[tuple[str, int, float | None]]:
            counts = run("SELECT bundle, SUM(n) FROM tallies GROUP BY bundle HAVING SUM(n) > 0").fetchall()
            newest = dict(run("SELECT bundle, MAX(ts) FROM decisions GROUP BY bundle").fetchall())
            return sorted(
                ((str(name), int(n), newest.get(name)) for name, n in counts), key=lambda row: row[2] or 0.0
            )

        return self.database.transaction(work)

    def calls_since(self, bundle: str, ts: float) -> int:
        """Return the number of a bundle's calls after a time in seconds since 1970, without removed rows."""
        return int(self._one("SELECT COUNT(*) FROM decisions WHERE bundle = ? AND ts > ?", (bundle, ts))[0])

    def reward_count(self) -> int:
        """Return the number of rewards that were ever recorded, also of those taken back or removed."""
        return int(self._one("SELECT COALESCE(SUM(rewards), 0) FROM tallies")[0])

    def spent(self, since: float = 0.0) -> float:
        """Return the cost in USD of the calls decided on the UTC day of `since` or later.

        Args:
            since: time in seconds since 1970.
        """
        sql = "SELECT COALESCE(SUM(cost), 0) FROM tallies WHERE day >= ?"
        return float(self._one(sql, (int(since // SECONDS_PER_DAY),))[0])

    def totals(self, day: int) -> DayTotals:
        """Return the number and the cost of the calls of a UTC day that ended.

        Args:
            day: UTC day, counted from 1970.
        """
        marks = ", ".join("?" * len(SERVED))

        def work(run: Run) -> DayTotals:
            found: list[Any] = []
            for table in ("tallies", "named_tallies"):
                sql = f"""SELECT COALESCE(SUM(CASE WHEN status IN ({marks}) THEN n END), 0),
                    COALESCE(SUM(cost), 0) FROM {table}
                    WHERE day = ? AND status NOT IN ('decided', 'unused')"""
                found += run(sql, (*SERVED, day)).fetchone()
            calls, cost, named, named_cost = found
            routed_cost = max(float(cost) - float(named_cost), 0.0)
            return DayTotals(int(calls) - int(named), routed_cost, int(named), float(named_cost))

        return self.database.transaction(work)
