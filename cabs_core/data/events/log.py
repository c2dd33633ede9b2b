"""The event log: each decision before its request is answered, each reward once, in SQLite (WAL) or
PostgreSQL.

`decisions` and `rewards` hold all events, numbered by `seq` in the order of the commits. `bodies` holds the
parts of a decision that learning and explanations need and counting does not. A router's learnt state is a
function of its bundle and of this log (`learner`). A row changes when its call ends (`finish`) and when it is
taken back (`retention.retract`); only `retention.compact` removes rows. `tallies` are sums that are kept with
every row, so that no large table has to be counted; `named_tallies` are those of calls that no router
decided. `folded` holds which models the removed decisions played. `reserved` holds what calls under way may
cost (`reservations`). `lease` says which process saves the learnt state. `about` holds the log's name, the
number of its revisions, and the encoders of its bundles.

A decision that draws a model is one row. A later turn of its conversation that keeps the model is a row as
well, which names the decision in `kept` and has no body. Such a row is no draw, so estimates and learning
ignore it.

Prompts are stored only on request. Without it, the log has their SHA-256 and their embedding.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from cabs_core.base.errors import RouterError, UnknownDecision
from cabs_core.base.paths import default_log, learned_folder
from cabs_core.data.events.database import Database, Run, is_postgres
from cabs_core.data.events.reads import ARMS, ENCODER, EventReads
from cabs_core.data.events.rows import (
    BODIES,
    DECISIONS,
    ENDS,
    INDEXES,
    NAMED,
    TABLES,
    TYPES,
    body_of,
    name_of,
    revise,
    tally,
)

#: Longest time in seconds for which a lease is taken.
LONGEST_LEASE = 60.0
#: Name of the lease.
_LEASE = "learner"
#: Scores that a decision may have. The first one teaches, the others are stored only.
MOST_SCORES = 100
#: Name of the note with a server's problems with its budget: a list of sentences as JSON, for workers and
#: doctor.
BUDGET = "budget"
#: Name of the note with a server's problems with joining models, in the form of `BUDGET`.
JOINS = "joins"
#: Name of the note with a server's problem with a text that most prompts share, in the form of `BUDGET`.
SHARED_TEXT = "shared_text"

#: Columns of `decisions` that a new row has. The log adds the others.
_GIVEN = tuple(name for name in DECISIONS if name not in ("seq", "retracted"))
_ADD = (
    f"INSERT INTO decisions ({', '.join(_GIVEN)}) VALUES ({', '.join('?' * len(_GIVEN))}) "
    "ON CONFLICT (id) DO NOTHING RETURNING seq"
)
_ADD_BODY = f"INSERT INTO bodies ({', '.join(BODIES)}) VALUES ({', '.join('?' * len(BODIES))})"


class EventLog(EventReads):
    """A log that appends and reads events. Several threads, and several processes, may use one log.

    Args:
        place: path of an SQLite file, ':memory:', or a PostgreSQL URL (extra [postgres]).
        read_only: True to read an existing SQLite file and never to write to it.

    Attributes:
        name: name of the log for messages, without any part of a database's URL.

    Raises:
        LogError: the log cannot be opened. Each method raises LogError if the log cannot be reached, read or
            written.
        RouterError: the place is a PostgreSQL URL, and the extra is not installed.

    Examples:
        >>> from cabs_core import EventLog
        >>> log = EventLog(":memory:")
        >>> log.decisions(), log.reward_count()
        ([], 0)
    """

    def __init__(self, place: str | Path = ":memory:", *, read_only: bool = False):
        self.place = str(place)
        self.database = Database(self.place, read_only=read_only)
        self.dialect = self.database.dialect
        self.name = self.database.name
        self._id = ""
        if not read_only:
            self.database.transaction(self._create, append=True)

    @classmethod
    def existing(cls, place: str | Path, *, read_only: bool = True) -> EventLog:
        """Open the log at a place, without making a new SQLite file.

        In a PostgreSQL database, tables that do not exist yet are made.

        Args:
            read_only: True to never write to an SQLite file. A log in PostgreSQL is opened for writing
                always.

        Raises:
            RouterError: the place is no PostgreSQL URL, and there is no file.
            LogError: the log cannot be opened.
        """
        if not is_postgres(place) and not Path(place).is_file():
            raise RouterError(
                f"there is no log at {place}: route something first, or name the log with --log"
            )
        return cls(place, read_only=read_only and not is_postgres(place))

    def _create(self, run: Run) -> None:
        """Create the tables, indexes and names that the log does not have yet."""
        types = TYPES[self.dialect]
        for name, columns in TABLES.items():
            body = ", ".join(f"{c} {t.format(**types)}" for c, t in columns.items())
            run(f"CREATE TABLE IF NOT EXISTS {name} ({body})")
        for table, column in INDEXES:
            if "NOT NULL" in TABLES[table][column]:
                some = ""
            else:
                some = f"WHERE {column} IS NOT NULL"
            run(f"CREATE INDEX IF NOT EXISTS {table}_{column} ON {table}({column}) {some}")
        run("CREATE INDEX IF NOT EXISTS decisions_marked ON decisions(seq) WHERE marked = 1")
        for name, value in (("log", uuid.uuid4().hex), ("revision", "0")):
            run("INSERT INTO about (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING", (name, value))

    def add_bundle(self, bundle: str, identity: str, arms: Sequence[str]) -> None:
        """Record the encoder and the arms of a bundle, and the time of its first use.

        A bundle that is recorded already stays as it is.

        Args:
            bundle: id of the bundle.
            identity: identity of the encoder that made the embeddings of its decisions (`Manifest.identity`).
            arms: names of the models between which the bundle decides.
        """
        sql = "INSERT INTO about (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING"
        since = json.dumps({"ts": time.time(), "arms": list(arms)})

        def work(run: Run) -> None:
            run(sql, (f"{ENCODER}{bundle}", identity))
            run(sql, (f"{ARMS}{bundle}", since))

        self.database.transaction(work, append=True)

    def checkpoints(self, bundle: str | Path) -> Path | None:
        """Return the folder for checkpoints of the learnt state, or None for a log in memory.

        The folder lies next to the log's file, or, for a log in PostgreSQL, next to the default log of the
        bundle.
        """
        if self.dialect == "postgres":
            return learned_folder(default_log(bundle)) / self.id[:16]
        if self.place == ":memory:":
            return None
        return learned_folder(self.place)

    def add_decisions(self, rows: list[dict[str, Any]]) -> None:
        """Append decisions, all of them or none.

        A decision whose id is in the log already is skipped, since the transaction may be repeated after a
        lost connection.

        Args:
            rows: {column: value} of `decisions` and `bodies`, with arrays as arrays. A row with `kept` is a
                turn of a conversation and gets no body. A row whose call has ended has a status and facts of
                `ENDS`.
        """

        def work(run: Run) -> None:
            for row in rows:
                values = {**row, "status": row.get("status", "decided")}
                values |= {name: name_of(row[name]) for name in NAMED if row.get(name) is not None}
                added = run(_ADD, [values.get(name) for name in _GIVEN]).fetchall()
                if not added:  # the row is in the log already
                    continue
                if row.get("kept") is None:
                    run(_ADD_BODY, [added[0][0], *body_of(row)])
                facts = [values[name] for name in ("ts", "bundle", "arm", "status")]
                tally(run, *facts, mode=values["mode"], n=1, cost=values.get("cost") or 0.0)

        self.database.transaction(work, append=True)

    def finish(self, decision_id: str, *, status: str, **facts: Any) -> None:
        """Record how the call of a decision ended. Do nothing if the log has no such decision.

        The log gets another revision if a later turn of the decision was scored before, since learning from
        such a score reads the end of the decision's own call.

        Args:
            status: how the call ended, such as `answered` or `error`.
            facts: values of `ENDS`. A value of None leaves the column as it is.

        Raises:
            RouterError: a fact is none of `ENDS`.
        """
        check_ends(facts)
        given = {name: value for name, value in facts.items() if value is not None}
        if "response_id" in given:
            given["response_id"] = name_of(given["response_id"])
        sets = "".join(f", {name} = ?" for name in given)

        def work(run: Run) -> None:
            sql = """SELECT ts, bundle, arm, status, cost, mode, EXISTS (
                SELECT 1 FROM rewards r WHERE r.decision_id = d.id AND r.teaches = 1 AND r.turn IS NOT NULL)
                FROM decisions d WHERE id = ?"""
            rows = run(sql, (decision_id,)).fetchall()
            if not rows:
                return
            ts, bundle, arm, before, cost, mode, is_learnt = rows[0]
            run(f"UPDATE decisions SET status = ?{sets} WHERE id = ?", (status, *given.values(), decision_id))
            new = given.get("cost", cost)
            if status != before or new != cost:
                tally(run, ts, bundle, arm, before, mode=mode, n=-1, cost=-(cost or 0.0))
                tally(run, ts, bundle, arm, status, mode=mode, n=1, cost=new or 0.0)
                if is_learnt:
                    revise(run)

        self.database.transaction(work, append=True)

    def add_reward(
        self, decision_id: str, score: float, cost: float, source: str, key: str, *, turn: str | None = None
    ) -> str:
        """Append a reward. The first reward of a decision teaches; later ones are stored only.

        Args:
            score: score in [0, 1].
            cost: cost of the call in USD.
            source: who gives the score.
            key: unique key of the reward, by which a repeated request is recorded once.
            turn: id of the turn of the conversation that was scored, if it kept the decision's model.

        Returns:
            'recorded', 'duplicate' if the key has the same score for this decision already, or 'conflict' if
            the key has another score or decision.

        Raises:
            UnknownDecision: the log has no such decision, or it was taken back.
            RouterError: the decision has `MOST_SCORES` scores already.
        """

        key = name_of(key)

        def work(run: Run) -> str:
            recorded = run("SELECT decision_id, score FROM rewards WHERE key = ?", (key,)).fetchone()
            if recorded is not None:
                same = recorded[0] == decision_id and float(recorded[1]) == float(score)
                if same:
                    return "duplicate"
                return "conflict"
            sql = "SELECT COUNT(*) FROM rewards WHERE decision_id = ? AND retracted = 0"
            earlier = int(run(sql, (decision_id,)).fetchone()[0])
            if earlier >= MOST_SCORES:
                raise RouterError(f"decision {decision_id} has {earlier} scores, as many as one may have")
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
                    int(earlier == 0),
                    turn,
                ),
            )
            tally(run, *decided, rewards=1)
            return "recorded"

        return self.database.transaction(work, append=True)

    def take_lease(self, holder: str, seconds: float) -> bool:
        """Take or renew the lease, and return True unless another process holds it.

        A lease that ends later than any lease can was taken while a clock was ahead, and is ignored. Hosts
        that share a database use its clock, not their own.

        Args:
            seconds: time for which the lease is taken, at most LONGEST_LEASE.
        """
        seconds = min(seconds, LONGEST_LEASE)

        def work(run: Run) -> bool:
            now = self.clock(run)
            row = run("SELECT holder, expires FROM lease WHERE name = ?", (_LEASE,)).fetchone()
            if row is not None and row[0] != holder and now < float(row[1]) <= now + LONGEST_LEASE:
                return False
            run("DELETE FROM lease WHERE name = ?", (_LEASE,))
            run("INSERT INTO lease (name, holder, expires) VALUES (?, ?, ?)", (_LEASE, holder, now + seconds))
            return True

        return self.database.transaction(work, append=True)

    def lease(self) -> tuple[str, float] | None:
        """Return (holder, seconds until the lease expires), or None if nobody has taken the lease.

        The seconds are negative if the lease has expired, and above LONGEST_LEASE if it was taken while a
        clock was ahead.
        """

        def work(run: Run) -> tuple[str, float] | None:
            row = run("SELECT holder, expires FROM lease WHERE name = ?", (_LEASE,)).fetchone()
            if row:
                return (str(row[0]), float(row[1]) - self.clock(run))
            return None

        return self.database.transaction(work)

    def clock(self, run: Run) -> float:
        """Return the seconds since 1970 within a transaction, by the clock that all users share."""
        if self.dialect == "sqlite":
            return time.time()
        return float(run("SELECT EXTRACT(EPOCH FROM clock_timestamp())").fetchone()[0])

    def check(self) -> None:
        """Write a note that changes nothing, and test the free space of the disk.

        Raises:
            LogError: the log cannot be written now.
        """
        self.note("checked", f"{time.time():.0f}")
        self.database.check_disk()

    def note(self, name: str, value: str) -> None:
        """Store a text under a name in `about`, in place of the text that was there."""
        sql = (
            "INSERT INTO about (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = "
            "excluded.value"
        )
        self.database.transaction(lambda run: run(sql, (name, value)), append=True)

    def read_from(self, path: str | Path) -> None:
        """Replace the contents of this SQLite log, which should be empty, by a copy of an SQLite file."""
        self.database.read_from(path)
        self._id = ""

    def close(self) -> None:
        """Close the connection. All events are committed already; those of ':memory:' are lost."""
        self.database.close()


def check_ends(facts: Collection[str]) -> None:
    """Check the names of facts about the end of a call.

    Raises:
        RouterError: a name is none of `ENDS`.
    """
    unknown = sorted(set(facts) - set(ENDS))
    if unknown:
        raise RouterError(f"the end of a call has no fact {unknown[0]!r}: expected some of {', '.join(ENDS)}")
