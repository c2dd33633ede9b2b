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
    tally,
)

#: longest time that a lease is taken for, seconds
LONGEST_LEASE = 60.0
_LEASE = "learner"
#: scores that a decision may have; the first teaches, the others are kept beside it
MOST_SCORES = 100
#: problems that a server finds with its budget, with models of the upstreams file that join, and with a text
#: that most prompts share, for its workers and `doctor`: JSON, a list of sentences
BUDGET = "budget"
JOINS = "joins"
SHARED_TEXT = "shared_text"

#: columns that a row brings
_GIVEN = tuple(name for name in DECISIONS if name not in ("seq", "retracted"))
_ADD = (
    f"INSERT INTO decisions ({', '.join(_GIVEN)}) VALUES ({', '.join('?' * len(_GIVEN))}) "
    "ON CONFLICT (id) DO NOTHING RETURNING seq"
)
_ADD_BODY = f"INSERT INTO bodies ({', '.join(BODIES)}) VALUES ({', '.join('?' * len(BODIES))})"


class EventLog(EventReads):
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

    @classmethod
    def existing(cls, place: str | Path, *, read_only: bool = True) -> EventLog:
        """The log at a place, which must be there; read_only: an SQLite file is not written.

        Raises:
            RouterError: there is none.
        """
        if not is_postgres(place) and not Path(place).is_file():
            raise RouterError(
                f"there is no log at {place}: route something first, or name the log with --log"
            )
        return cls(place, read_only=read_only and not is_postgres(place))

    def _create(self, run: Run) -> None:
        types = TYPES[self.dialect]
        for name, columns in TABLES.items():
            body = ", ".join(f"{c} {t.format(**types)}" for c, t in columns.items())
            run(f"CREATE TABLE IF NOT EXISTS {name} ({body})")
        for table, column in INDEXES:
            some = "" if "NOT NULL" in TABLES[table][column] else f"WHERE {column} IS NOT NULL"
            run(f"CREATE INDEX IF NOT EXISTS {table}_{column} ON {table}({column}) {some}")
        run("CREATE INDEX IF NOT EXISTS decisions_marked ON decisions(seq) WHERE marked = 1")
        for name, value in (("log", uuid.uuid4().hex), ("revision", "0")):
            run("INSERT INTO about (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING", (name, value))

    def add_bundle(self, bundle: str, identity: str, arms: Sequence[str]) -> None:
        """Remember of a bundle which encoder (`Manifest.identity`) made the embeddings of its decisions,
        between which arms they are, and since when."""
        sql = "INSERT INTO about (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING"
        since = json.dumps({"ts": time.time(), "arms": list(arms)})

        def work(run: Run) -> None:
            run(sql, (f"{ENCODER}{bundle}", identity))
            run(sql, (f"{ARMS}{bundle}", since))

        self.database.transaction(work, append=True)

    def checkpoints(self, bundle: str | Path) -> Path | None:
        """Folder of checkpoints of this log: beside its file, of a database beside the bundle, or None."""
        if self.dialect == "postgres":
            return learned_folder(default_log(bundle)) / self.id[:16]
        return None if self.place == ":memory:" else learned_folder(self.place)

    def add_decisions(self, rows: list[dict[str, Any]]) -> None:
        """Append decisions (columns of `decisions` and `bodies`; arrays as arrays). All of them or none.

        A row that names a decision in `kept` is a turn of its conversation and gets no body. One whose call
        has ended has its status and facts of `ENDS`.
        """

        def work(run: Run) -> None:
            for row in rows:
                values = {**row, "status": row.get("status", "decided")}
                values |= {name: name_of(row[name]) for name in NAMED if row.get(name) is not None}
                added = run(_ADD, [values.get(name) for name in _GIVEN]).fetchall()
                if not added:  # done again after the connection was lost: it is there
                    continue
                if row.get("kept") is None:
                    run(_ADD_BODY, [added[0][0], *body_of(row)])
                facts = [values[name] for name in ("ts", "bundle", "arm", "status")]
                tally(run, *facts, n=1, cost=values.get("cost") or 0.0)

        self.database.transaction(work, append=True)

    def finish(self, decision_id: str, *, status: str, **facts: Any) -> None:
        """Record how the call of a decision ended; facts are of `ENDS`, what is None stays as it is.

        Raises:
            RouterError: another fact than those of `ENDS`.
        """
        check_ends(facts)
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

    def add_reward(
        self, decision_id: str, score: float, cost: float, source: str, key: str, *, turn: str | None = None
    ) -> str:
        """Append a reward: 'recorded', 'duplicate' (the same one is there), or 'conflict' (another score is).

        The first reward of a decision teaches; one from another source is kept beside it.

        Args:
            score: in [0, 1]; cost: of the call, USD.
            turn: the turn of the conversation that was scored, where it kept the decision's model.
        """

        key = name_of(key)

        def work(run: Run) -> str:
            recorded = run("SELECT decision_id, score FROM rewards WHERE key = ?", (key,)).fetchone()
            if recorded is not None:
                same = recorded[0] == decision_id and float(recorded[1]) == float(score)
                return "duplicate" if same else "conflict"
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
        """Take or renew the lease for so many seconds, LONGEST_LEASE at most; False while another's holds.

        One that ends later than any lease can was taken while a clock was ahead: it holds nobody off. Hosts
        that share a database ask its clock, not their own.
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
        """(holder, seconds until it expires: below 0 if it has, above LONGEST_LEASE by a clock) or None."""

        def work(run: Run) -> tuple[str, float] | None:
            row = run("SELECT holder, expires FROM lease WHERE name = ?", (_LEASE,)).fetchone()
            return (str(row[0]), float(row[1]) - self.clock(run)) if row else None

        return self.database.transaction(work)

    def clock(self, run: Run) -> float:
        """Seconds since 1970 within a transaction, by the clock that all who share the log have."""
        if self.dialect == "sqlite":
            return time.time()
        return float(run("SELECT EXTRACT(EPOCH FROM clock_timestamp())").fetchone()[0])

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

    def read_from(self, path: str | Path) -> None:
        """Replace the (empty) log by a copy of an SQLite file."""
        self.database.read_from(path)
        self._id = ""

    def close(self) -> None:
        """Close the connection; all events are committed already."""
        self.database.close()


def check_ends(facts: Collection[str]) -> None:
    """RouterError for another fact of a call's end than those of `ENDS`."""
    if unknown := sorted(set(facts) - set(ENDS)):
        raise RouterError(f"the end of a call has no fact {unknown[0]!r}: expected some of {', '.join(ENDS)}")
