"""The event log: every decision before it is answered, every reward once, in SQLite (WAL) or PostgreSQL.

`decisions` and `rewards` hold all that happened, each numbered by `seq` in the order of the commits; `bodies`
holds of a decision what learning and explanations need and counting does not. What a router has learnt is a
function of its bundle and of this log (`learner`). A row changes when its call ends (`finish`) and when it is
taken back (`retention.retract`); it leaves only by `retention.compact`. `tallies` are sums kept with every
row, so that nobody counts a large table; `folded` are the plays of rows that were removed. `reserved` is what
calls under way may cost (`reservations`). `lease` says which process saves what was learnt; `about` holds the
log's own name, how often something was taken back, and the encoders of its bundles.

A decision that draws a model is one row. A later turn of its conversation that keeps the model is a row as
well, which names the decision in `kept`, and has no body: it is no draw, so no estimate and no learning sees
it.

Prompts are not kept unless asked for: their SHA-256 and their embedding are.
"""

from __future__ import annotations

import hashlib
import time
import uuid
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cabs_core.errors import RouterError, UnknownDecision
from cabs_core.paths import default_log, learned_folder
from cabs_core.router.database import Database, Run
from cabs_core.router.event_rows import (
    BODIES,
    COLUMNS,
    DECISIONS,
    ENDS,
    FROM,
    INDEXES,
    NAMED,
    REWARDS,
    SERVED,
    TABLES,
    TYPES,
    Logged,
    Reward,
    body_of,
    embedding_of,
    logged_of,
    name_of,
    reward_of,
    tally,
)
from cabs_core.units import SECONDS_PER_DAY

#: longest time that a lease is taken for, seconds
LONGEST_LEASE = 60.0
#: names in the table `about` beside `log` and `revision`: `encoder:` with the id of a bundle
_ENCODER = "encoder:"
#: what a server finds wrong with its budget, for `doctor`: JSON, a list of sentences
BUDGET = "budget"


class EventLog:
    """Appends and reads events; safe for threads, and for processes that open the same log.

    Args:
        place: path of an SQLite file, ':memory:', or a PostgreSQL URL (extra [postgres]).
        read_only: an SQLite file that exists is read and never written.

    Attributes:
        name: for messages; nothing of a database's URL is in it.

    Raises:
        LogError: it cannot be opened; of any method: it cannot be reached, read or written.

    Examples:
        >>> from cabs_core import EventLog
        >>> log = EventLog(":memory:")
        >>> log.decisions(), log.reward_count()
        ([], 0)
    """

    def __init__(self, place: str | Path = ":memory:", *, read_only: bool = False):
        self.place = str(place)
        self.database = Database(self.place, read_only=read_only)
        self.dialect, self.name = self.database.dialect, self.database.name
        self._id = ""
        if not read_only:
            self.database.transaction(self._create, append=True)

    def _create(self, run: Run) -> None:
        types = TYPES[self.dialect]
        for name, columns in TABLES.items():
            body = ", ".join(f"{c} {t.format(**types)}" for c, t in columns.items())
            run(f"CREATE TABLE IF NOT EXISTS {name} ({body})")
        for table, column in INDEXES:
            run(f"CREATE INDEX IF NOT EXISTS {table}_{column} ON {table}({column})")
        for name, value in (("log", uuid.uuid4().hex), ("revision", "0")):
            run("INSERT INTO about (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING", (name, value))

    @property
    def id(self) -> str:
        """Random name of this log; a copy has the same."""
        if not self._id:
            self._id = str(self._one("SELECT value FROM about WHERE name = 'log'")[0])
        return self._id

    @property
    def revision(self) -> int:
        """How often something was taken back; a state learnt under another number has to be learnt again."""
        return int(self._one("SELECT value FROM about WHERE name = 'revision'")[0])

    def _one(self, sql: str, values: Sequence[Any] = ()) -> tuple[Any, ...]:
        rows = self._all(sql, values)
        return rows[0] if rows else ()

    def _all(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self.database.transaction(lambda run: run(sql, values).fetchall())
        return rows

    def add_encoder(self, bundle: str, identity: str) -> None:
        """Remember which encoder (`Manifest.identity`) made the embeddings of a bundle's decisions."""
        sql = "INSERT INTO about (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING"
        self.database.transaction(lambda run: run(sql, (f"{_ENCODER}{bundle}", identity)), append=True)

    def encoders(self) -> dict[str, str]:
        """{id of a bundle: identity of its encoder}, of bundles that have opened this log."""
        rows = self._all("SELECT name, value FROM about WHERE name LIKE ?", (f"{_ENCODER}%",))
        return {str(name).removeprefix(_ENCODER): str(value) for name, value in rows}

    def checkpoints(self, bundle: str | Path) -> Path | None:
        """Folder of checkpoints learnt from this log: beside its file, or for a database beside the bundle.
        None: nowhere."""
        if self.dialect == "postgres":
            return learned_folder(default_log(bundle)) / self.id[:16]
        return None if self.place == ":memory:" else learned_folder(self.place)

    # -- decisions -------------------------------------------------------------------------------------------

    def add_decisions(self, rows: list[dict[str, Any]]) -> None:
        """Append decisions (columns of `decisions` and `bodies`; arrays as arrays). All of them or none.

        A row that names a decision in `kept` is a turn of its conversation and gets no body.
        """
        names = [name for name in DECISIONS if name not in ("seq", "retracted", *ENDS)]
        light = f"INSERT INTO decisions ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
        light += " ON CONFLICT (id) DO NOTHING RETURNING seq"
        heavy = f"INSERT INTO bodies ({', '.join(BODIES)}) VALUES ({', '.join('?' * len(BODIES))})"

        def work(run: Run) -> None:
            for row in rows:
                values = {**row, "status": row.get("status", "decided")}
                values |= {name: name_of(row[name]) for name in NAMED if row.get(name) is not None}
                added = run(light, [values.get(name) for name in names]).fetchall()
                if not added:  # done again after the connection was lost: it is there
                    continue
                if row.get("kept") is None:
                    run(heavy, [added[0][0], *body_of(row)])
                tally(run, values["ts"], values["bundle"], values["arm"], values["status"], n=1)

        self.database.transaction(work, append=True)

    def finish(self, decision_id: str, *, status: str, **facts: Any) -> None:
        """Record how the call of a decision ended; facts are of `ENDS`, what is None stays as it is."""
        if unknown := sorted(set(facts) - set(ENDS)):
            raise RouterError(
                f"the end of a call has no fact {unknown[0]!r}: expected some of {', '.join(ENDS)}"
            )
        given = {name: value for name, value in facts.items() if value is not None}
        if "response_id" in given:
            given["response_id"] = name_of(given["response_id"])
        sets = "".join(f", {name} = ?" for name in given)

        def work(run: Run) -> None:
            sql = "SELECT ts, bundle, arm, status, cost FROM decisions WHERE id = ?"
            rows = run(sql, (decision_id,)).fetchall()
            if not rows:
                return
            ts, bundle, arm, before, cost = rows[0]
            run(f"UPDATE decisions SET status = ?{sets} WHERE id = ?", (status, *given.values(), decision_id))
            new = given.get("cost", cost)
            if status != before or new != cost:
                tally(run, ts, bundle, arm, before, n=-1, cost=-(cost or 0.0))
                tally(run, ts, bundle, arm, status, n=1, cost=new or 0.0)

        self.database.transaction(work, append=True)

    def decision(self, *, caller: str | None = None, **where: str) -> Logged | None:
        """The newest decision with this id, response_id, call_id or session; None: there is none.

        Args:
            caller: only among those that it asked for: names that clients choose are theirs alone. None:
                everybody's.
        """
        ((column, value),) = where.items()
        assert column in NAMED
        sql = f"SELECT {COLUMNS} FROM {FROM} WHERE d.{column} = ? AND d.retracted = 0"
        if caller is not None:
            sql += " AND d.caller = ?"
        values = (name_of(value),) if caller is None else (name_of(value), caller)
        row = self._one(f"{sql} ORDER BY d.seq DESC LIMIT 1", values)
        return logged_of(row) if row else None

    def turns_before(self, turn: Logged, limit: int = 20) -> list[Logged]:
        """The attempts of a turn's session before it, of the same caller, newest first."""
        own, values = ("d.caller IS NULL", ()) if turn.caller is None else ("d.caller = ?", (turn.caller,))
        sql = (
            f"SELECT {COLUMNS} FROM {FROM} WHERE d.session = ? AND d.seq < ? AND {own} AND d.retracted = 0 "
            f"ORDER BY d.seq DESC LIMIT {int(limit)}"
        )
        return [logged_of(row) for row in self._all(sql, (turn.session, turn.seq, *values))]

    def decisions(self, after: int = 0, limit: int = -1) -> list[Logged]:
        """Decisions and kept turns numbered above `after`, in order, without those taken back."""
        extra = f" LIMIT {int(limit)}" if limit >= 0 else ""
        sql = f"SELECT {COLUMNS} FROM {FROM} WHERE d.seq > ? AND d.retracted = 0 ORDER BY d.seq{extra}"
        return [logged_of(row) for row in self._all(sql, (after,))]

    def mean_cost(self, decision_id: str) -> float | None:
        """Mean recorded cost, USD a call, of a decision and the turns that kept its model; None: none is
        known."""
        sql = "SELECT AVG(cost) FROM decisions WHERE (id = ? OR kept = ?) AND retracted = 0"
        (mean,) = self._one(sql, (decision_id, decision_id))
        return None if mean is None else float(mean)

    def played(self, after: int, bundles: list[str]) -> tuple[int, dict[str, int]]:
        """(number of the newest decision, {arm: times that copies of these bundles drew it after
        `after`})."""
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

    # -- rewards ---------------------------------------------------------------------------------------------

    def add_reward(
        self, decision_id: str, score: float, cost: float, source: str, key: str, *, turn: str | None = None
    ) -> str:
        """Append a reward: 'recorded', 'duplicate' (the same one is there), or 'conflict' (another score is).

        The first reward of a decision teaches; one from another source is kept beside it.

        Args:
            turn: the turn of the conversation that was scored, where it kept the decision's model.
        """

        key = name_of(key)

        def work(run: Run) -> str:
            recorded = run("SELECT decision_id, score FROM rewards WHERE key = ?", (key,)).fetchone()
            if recorded is not None:
                same = recorded[0] == decision_id and float(recorded[1]) == float(score)
                return "duplicate" if same else "conflict"
            sql = "SELECT 1 FROM rewards WHERE decision_id = ? AND retracted = 0 LIMIT 1"
            earlier = run(sql, (decision_id,)).fetchone()
            sql = "SELECT ts, bundle, arm, status FROM decisions WHERE id = ? AND retracted = 0"
            decided = run(sql, (decision_id,)).fetchone()
            if decided is None:
                raise UnknownDecision("id", decision_id)
            run(
                "INSERT INTO rewards (decision_id, ts, score, cost, source, key, teaches, turn) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    decision_id,
                    time.time(),
                    float(score),
                    float(cost),
                    source,
                    key,
                    int(earlier is None),
                    turn,
                ),
            )
            tally(run, *decided, rewards=1)
            return "recorded"

        return self.database.transaction(work, append=True)

    def rewards(self, after: int = 0, limit: int = -1) -> list[Reward]:
        """Rewards numbered above `after`, in order, without those taken back."""
        extra = f" LIMIT {int(limit)}" if limit >= 0 else ""
        sql = f"SELECT {', '.join(REWARDS)} FROM rewards WHERE seq > ? AND retracted = 0 ORDER BY seq{extra}"
        return [reward_of(row) for row in self._all(sql, (after,))]

    def lessons(
        self, after: int, limit: int, bundles: list[str]
    ) -> tuple[list[tuple[Logged, Reward]], int, int]:
        """What the next rewards after number `after` teach copies of these bundles.

        Returns:
            (decisions with their rewards, in order; how many rewards were looked at, at most `limit`; number
            of the last one).
        """
        marks = ", ".join("?" * len(bundles))

        def work(run: Run) -> tuple[list[tuple[Logged, Reward]], int, int]:
            sql = "SELECT seq FROM rewards WHERE seq > ? AND retracted = 0 ORDER BY seq LIMIT ?"
            numbers = [int(row[0]) for row in run(sql, (after, limit)).fetchall()]
            if not numbers:
                return [], 0, after
            sql = f"""SELECT {", ".join(f"r.{c}" for c in REWARDS)}, {COLUMNS}
                FROM rewards r JOIN decisions d ON d.id = r.decision_id JOIN bodies b ON b.seq = d.seq
                WHERE r.seq > ? AND r.seq <= ? AND r.teaches = 1 AND r.retracted = 0 AND d.retracted = 0
                AND d.bundle IN ({marks}) ORDER BY r.seq"""
            rows = run(sql, (after, numbers[-1], *bundles)).fetchall()
            width = len(REWARDS)
            pairs = [(logged_of(row[width:]), reward_of(row[:width])) for row in rows]
            return pairs, len(numbers), numbers[-1]

        return self.database.transaction(work)

    def scored(self) -> Iterator[tuple[Logged, Reward]]:
        """Every decision whose score teaches, with it, in order of the decisions; a part of them in memory at
        a time."""
        sql = f"""SELECT {", ".join(f"r.{c}" for c in REWARDS)}, {COLUMNS}
            FROM decisions d JOIN bodies b ON b.seq = d.seq JOIN rewards r ON r.decision_id = d.id
            WHERE r.teaches = 1 AND r.retracted = 0 AND d.retracted = 0 ORDER BY d.seq"""
        width = len(REWARDS)
        for row in self.database.stream(sql):
            yield logged_of(row[width:]), reward_of(row[:width])

    def outcomes(self, bundle: str) -> Iterator[tuple[Any, ...]]:
        """(arm, status, ts, rho, whether it was drawn, score, cost, p) of a bundle's calls, in order; a few
        in memory.

        score and cost are of the reward that teaches; None: there is none, or the turn kept its model.
        """
        sql = """SELECT d.arm, d.status, d.ts, d.rho, d.kept IS NULL, r.score, r.cost, d.p FROM decisions d
            LEFT JOIN rewards r ON r.decision_id = d.id AND r.teaches = 1 AND r.retracted = 0
            WHERE d.bundle = ? AND d.retracted = 0 ORDER BY d.seq"""
        return self.database.stream(sql, (bundle,))

    def recent_scores(self, bundle: str, arm: str, limit: int) -> list[tuple[str, float, np.ndarray, float]]:
        """(hash, length, embedding of the prompt, score) of a model's newest draws whose score teaches,
        newest score first."""
        sql = """SELECT d.prompt_hash, d.prompt_length, b.embedding, r.score FROM rewards r
            JOIN decisions d ON d.id = r.decision_id JOIN bodies b ON b.seq = d.seq
            WHERE d.bundle = ? AND d.arm = ? AND d.retracted = 0 AND r.teaches = 1 AND r.retracted = 0
            AND b.embedding IS NOT NULL ORDER BY r.seq DESC LIMIT ?"""
        return [
            (str(name), float(length), embedding_of(vector), float(score))
            for name, length, vector, score in self._all(sql, (bundle, arm, limit))
        ]

    def failures(self, bundle: str, limit: int = 10) -> list[tuple[str, str, int, float]]:
        """(arm, reason, calls, time of the last) of a bundle's failed and refused calls, the most frequent
        first."""
        sql = """SELECT arm, COALESCE(reason, ''), COUNT(*), MAX(ts) FROM decisions
            WHERE bundle = ? AND retracted = 0 AND status IN ('error', 'timeout', 'refused')
            GROUP BY arm, COALESCE(reason, '') ORDER BY COUNT(*) DESC, arm LIMIT ?"""
        return [(str(a), str(r), int(n), float(ts)) for a, r, n, ts in self._all(sql, (bundle, limit))]

    def scored_prompts(self) -> set[str]:
        """Hashes of the prompts of all decisions whose score was learnt."""
        sql = (
            "SELECT DISTINCT d.prompt_hash FROM decisions d JOIN rewards r ON r.decision_id = d.id "
            "WHERE r.teaches = 1 AND r.retracted = 0 AND d.retracted = 0"
        )
        return {row[0] for row in self._all(sql)}

    def last_reward(self) -> int:
        """Number of the newest reward; 0: none."""
        return int(self._one("SELECT COALESCE(MAX(seq), 0) FROM rewards WHERE retracted = 0")[0])

    # -- sums ------------------------------------------------------------------------------------------------

    def counts(self) -> list[tuple[str, str, int]]:
        """(arm, status, number of calls), in order of the arms' names, from the tallies: also what was
        compacted."""
        sql = (
            "SELECT arm, status, SUM(n) FROM tallies GROUP BY arm, status HAVING SUM(n) > 0 ORDER BY arm, "
            "status"
        )
        return [(arm, status, int(n)) for arm, status, n in self._all(sql)]

    def bundles(self) -> list[tuple[str, int, float | None]]:
        """(bundle, its calls, time of the newest that was not compacted) of every bundle, the latest last."""

        def work(run: Run) -> list[tuple[str, int, float | None]]:
            counts = run("SELECT bundle, SUM(n) FROM tallies GROUP BY bundle HAVING SUM(n) > 0").fetchall()
            newest = dict(run("SELECT bundle, MAX(ts) FROM decisions GROUP BY bundle").fetchall())
            return sorted(
                ((str(name), int(n), newest.get(name)) for name, n in counts), key=lambda row: row[2] or 0.0
            )

        return self.database.transaction(work)

    def calls_since(self, bundle: str, ts: float) -> int:
        """Number of a bundle's calls after a time, seconds since 1970."""
        return int(self._one("SELECT COUNT(*) FROM decisions WHERE bundle = ? AND ts > ?", (bundle, ts))[0])

    def reward_count(self) -> int:
        """Number of rewards that were recorded."""
        return int(self._one("SELECT COALESCE(SUM(rewards), 0) FROM tallies")[0])

    def spent(self, since: float = 0.0) -> float:
        """Recorded cost in USD of the calls decided since the (UTC) day of a time, seconds since 1970."""
        sql = "SELECT COALESCE(SUM(cost), 0) FROM tallies WHERE day >= ?"
        return float(self._one(sql, (int(since // SECONDS_PER_DAY),))[0])

    def totals(self, day: int) -> tuple[int, float]:
        """(requests that were served, what all calls cost in USD) of those decided on a UTC day, counted from
        1970."""
        marks = ", ".join("?" * len(SERVED))
        sql = (
            f"SELECT COALESCE(SUM(CASE WHEN status IN ({marks}) THEN n END), 0), COALESCE(SUM(cost), 0) FROM "
            "tallies WHERE day = ? AND status NOT IN ('decided', 'unused')"
        )
        requests, cost = self._one(sql, (*SERVED, day))
        return int(requests), float(cost)

    def last_rho(self, bundle: str) -> float | None:
        """rho of the newest decision that a bundle drew; None: there is none."""
        sql = "SELECT rho FROM decisions WHERE bundle = ? AND kept IS NULL ORDER BY seq DESC LIMIT 1"
        row = self._one(sql, (bundle,))
        return float(row[0]) if row else None

    # -- lease -----------------------------------------------------------------------------------------------

    def take_lease(self, holder: str, seconds: float, name: str = "learner") -> bool:
        """Take or renew the lease for so many seconds, LONGEST_LEASE at most; False while another holder's
        has not expired.

        One that ends later than any lease can was taken while a clock was ahead: it holds nobody off. Hosts
        that share a database ask its clock, not their own.
        """
        seconds = min(seconds, LONGEST_LEASE)

        def work(run: Run) -> bool:
            now = self.clock(run)
            row = run("SELECT holder, expires FROM lease WHERE name = ?", (name,)).fetchone()
            if row is not None and row[0] != holder and now < float(row[1]) <= now + LONGEST_LEASE:
                return False
            run("DELETE FROM lease WHERE name = ?", (name,))
            run("INSERT INTO lease (name, holder, expires) VALUES (?, ?, ?)", (name, holder, now + seconds))
            return True

        return self.database.transaction(work, append=True)

    def lease(self, name: str = "learner") -> tuple[str, float] | None:
        """(holder, seconds until it expires: below 0 where it has, above LONGEST_LEASE where a clock was
        ahead) or None."""

        def work(run: Run) -> tuple[str, float] | None:
            row = run("SELECT holder, expires FROM lease WHERE name = ?", (name,)).fetchone()
            return (str(row[0]), float(row[1]) - self.clock(run)) if row else None

        return self.database.transaction(work)

    def clock(self, run: Run) -> float:
        """Seconds since 1970 within a transaction, by the clock that all who share the log have."""
        if self.dialect == "sqlite":
            return time.time()
        return float(run("SELECT EXTRACT(EPOCH FROM clock_timestamp())").fetchone()[0])

    # -- whether it works, and what a server says of itself --------------------------------------------------

    def check(self) -> None:
        """Write something that changes nothing. Raises LogError: the log cannot be written now."""
        self.note("checked", f"{time.time():.0f}")
        self.database.check_disk()

    def note(self, name: str, value: str) -> None:
        """Keep a text under a name in `about`; it replaces the one before."""
        sql = (
            "INSERT INTO about (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = "
            "excluded.value"
        )
        self.database.transaction(lambda run: run(sql, (name, value)), append=True)

    def noted(self, name: str) -> str | None:
        """The text under a name in `about`; None: there is none."""
        row = self._one("SELECT value FROM about WHERE name = ?", (name,))
        return str(row[0]) if row else None

    # -- all of it -------------------------------------------------------------------------------------------

    def copy_to(self, path: str | Path) -> Path:
        """Write the whole log into a new SQLite file."""
        return self.database.copy_to(path)

    def read_from(self, path: str | Path) -> None:
        """Replace the (empty) log by a copy of an SQLite file."""
        self.database.read_from(path)
        self._id = ""

    def close(self) -> None:
        """Close the connection; all events are committed already."""
        self.database.close()


def prompt_hash(text: str) -> str:
    """SHA-256 (hex) of a prompt."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
