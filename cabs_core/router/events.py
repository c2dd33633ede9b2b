"""The event log: every decision before it is answered, every reward once, in SQLite (WAL) or PostgreSQL.

Two tables hold all that happened: `decisions` and `rewards`, each numbered by `seq` in the order of the commits. No row
is ever removed, and only the end of a call is filled in later (`finish`). What a router has learnt is a function of its
bundle and of this log (`learner`). `lease` says which process saves what was learnt; `about` holds the log's own name
and the encoders of its bundles.

Prompts are not kept unless asked for: their SHA-256 and their embedding are.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cabs_core.errors import RouterError

#: column -> type, {serial} and {blob} differ between the two databases
_DECISIONS = {
    "seq": "{serial}", "id": "TEXT NOT NULL UNIQUE", "ts": "{real} NOT NULL", "bundle": "TEXT NOT NULL",
    "arm": "TEXT NOT NULL", "p": "{real} NOT NULL", "pmf": "TEXT NOT NULL", "target": "TEXT NOT NULL",
    "available": "TEXT", "rho": "{real} NOT NULL", "mode": "TEXT NOT NULL", "expected_cost": "{real}",
    "prompt_hash": "TEXT NOT NULL", "prompt_length": "{real} NOT NULL", "prompt": "TEXT", "embedding": "{blob}",
    "decision": "TEXT NOT NULL", "call_id": "TEXT", "response_id": "TEXT", "cost": "{real}", "latency": "{real}",
    "status": "TEXT NOT NULL DEFAULT 'decided'",
}  # fmt: skip
_REWARDS = {
    "seq": "{serial}", "decision_id": "TEXT NOT NULL REFERENCES decisions(id)", "ts": "{real} NOT NULL",
    "score": "{real} NOT NULL", "cost": "{real} NOT NULL", "source": "TEXT NOT NULL",
    "key": "TEXT NOT NULL UNIQUE", "teaches": "INTEGER NOT NULL",
}  # fmt: skip
#: names in the table `about`: `log`, and `encoder:` with the id of a bundle
_ENCODER = "encoder:"
_ABOUT = {"name": "TEXT PRIMARY KEY", "value": "TEXT NOT NULL"}
_LEASE = {"name": "TEXT PRIMARY KEY", "holder": "TEXT NOT NULL", "expires": "{real} NOT NULL"}
_TYPES = {
    "sqlite": {"serial": "INTEGER PRIMARY KEY AUTOINCREMENT", "real": "REAL", "blob": "BLOB"},
    "postgres": {"serial": "BIGSERIAL PRIMARY KEY", "real": "DOUBLE PRECISION", "blob": "BYTEA"},
}
_INSERT = [name for name in _DECISIONS if name not in ("seq", "response_id", "cost", "latency")]
_APPEND = f"INSERT INTO decisions ({', '.join(_INSERT)}) VALUES ({', '.join('?' * len(_INSERT))})"
#: advisory lock of appending transactions in PostgreSQL: without it `seq` could become visible out of order
_APPEND_LOCK = 0x6361_6273


@dataclass(frozen=True)
class Logged:
    """A decision as it stands in the log; arrays are decoded, `decision` is JSON text for `Decision.from_dict`."""

    seq: int
    id: str
    ts: float
    bundle: str
    arm: str
    p: float
    pmf: np.ndarray
    target: np.ndarray
    available: np.ndarray | None
    rho: float
    mode: str
    expected_cost: float | None
    prompt_hash: str
    prompt_length: float
    prompt: str | None
    embedding: np.ndarray | None
    decision: str
    call_id: str | None
    response_id: str | None
    cost: float | None
    latency: float | None
    status: str


@dataclass(frozen=True)
class Reward:
    """A reward as it stands in the log. teaches: the first of its decision; later ones are kept and not learnt."""

    seq: int
    decision_id: str
    ts: float
    score: float
    cost: float
    source: str
    key: str
    teaches: bool


class EventLog:
    """Appends and reads events; safe for threads, and for processes that open the same log.

    Args:
        place: path of an SQLite file, ':memory:', or a PostgreSQL URL (extra [postgres]).
        read_only: an SQLite file that exists is read and never written.

    Raises:
        RouterError: it cannot be opened.
    """

    def __init__(self, place: str | Path = ":memory:", *, read_only: bool = False):
        self.place = str(place)
        self.dialect = "postgres" if self.place.startswith(("postgres://", "postgresql://")) else "sqlite"
        self._lock = threading.RLock()
        self._connect(read_only)
        if not read_only:
            self._create()

    def _connect(self, read_only: bool) -> None:
        if self.dialect == "postgres":
            try:
                import psycopg2  # noqa: PLC0415  (of the extra postgres)
            except ImportError:
                raise RouterError(
                    "a log in PostgreSQL needs the extra: pip install 'cabs-routing[postgres]'"
                ) from None
            self.errors: tuple[type[Exception], ...] = (psycopg2.Error,)
            try:
                self._db = psycopg2.connect(self.place)
            except psycopg2.Error as error:
                raise RouterError(f"the event log cannot be opened: {str(error).strip()}") from None
            return
        self.errors = (sqlite3.Error,)
        try:
            if read_only:
                uri = f"{Path(self.place).absolute().as_uri()}?mode=ro"
                self._db = sqlite3.connect(
                    uri, uri=True, timeout=30, check_same_thread=False, isolation_level=None
                )
                self._db.execute("SELECT seq FROM decisions LIMIT 1")  # another kind of file is noticed here
            else:
                if self.place != ":memory:":
                    Path(self.place).parent.mkdir(parents=True, exist_ok=True)
                self._db = sqlite3.connect(
                    self.place, timeout=30, check_same_thread=False, isolation_level=None
                )
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=NORMAL")
        except (sqlite3.Error, OSError) as error:
            raise RouterError(f"the event log {self.place} cannot be opened: {error}") from None

    def _create(self) -> None:
        types = _TYPES[self.dialect]
        with self._transaction(append=True) as run:
            tables = {"decisions": _DECISIONS, "rewards": _REWARDS, "lease": _LEASE, "about": _ABOUT}
            for name, columns in tables.items():
                body = ", ".join(f"{c} {t.format(**types)}" for c, t in columns.items())
                run(f"CREATE TABLE IF NOT EXISTS {name} ({body})")
            for table, column in (
                ("decisions", "call_id"), ("decisions", "response_id"), ("rewards", "decision_id"),
            ):  # fmt: skip
                run(f"CREATE INDEX IF NOT EXISTS {table}_{column} ON {table}({column})")
            run(
                "INSERT INTO about (name, value) VALUES ('log', ?) ON CONFLICT (name) DO NOTHING",
                (uuid.uuid4().hex,),
            )

    @property
    def id(self) -> str:
        """Random name of this log; a copy has the same."""
        with self._transaction() as run:
            return str(run("SELECT value FROM about WHERE name = 'log'").fetchone()[0])

    def add_encoder(self, bundle: str, identity: str) -> None:
        """Remember which encoder (`Manifest.identity`) made the embeddings of a bundle's decisions."""
        with self._transaction(append=True) as run:
            run(
                "INSERT INTO about (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING",
                (f"{_ENCODER}{bundle}", identity),
            )

    def encoders(self) -> dict[str, str]:
        """{id of a bundle: identity of its encoder}, of bundles that have opened this log."""
        with self._transaction() as run:
            rows = run("SELECT name, value FROM about WHERE name <> 'log'").fetchall()
        return {str(name).removeprefix(_ENCODER): str(value) for name, value in rows}

    @contextmanager
    def _transaction(self, *, append: bool = False) -> Iterator[Any]:
        """Yields run(sql, values) -> rows; commits at the end, or undoes everything."""
        with self._lock:
            cursor = self._db.cursor()

            def run(sql: str, values: Iterable[Any] = ()) -> Any:
                cursor.execute(sql if self.dialect == "sqlite" else sql.replace("?", "%s"), tuple(values))
                return cursor

            try:
                if self.dialect == "sqlite":
                    run("BEGIN IMMEDIATE" if append else "BEGIN")
                elif append:
                    run("SELECT pg_advisory_xact_lock(?)", (_APPEND_LOCK,))
                yield run
                self._db.commit()
            except BaseException:
                self._db.rollback()
                raise
            finally:
                cursor.close()

    # -- decisions --------------------------------------------------------------------------------------------

    def add_decisions(self, rows: list[dict[str, Any]]) -> None:
        """Append decisions (columns of the table but seq; arrays as arrays). All of them or none."""
        with self._transaction(append=True) as run:
            for row in rows:
                values = {
                    **row,
                    "pmf": json.dumps(np.asarray(row["pmf"]).tolist()),
                    "target": json.dumps(np.asarray(row["target"]).tolist()),
                    "available": None if row.get("available") is None
                    else json.dumps([int(x) for x in row["available"]]),
                    "embedding": None if row.get("embedding") is None
                    else np.ascontiguousarray(row["embedding"], dtype="<f4").tobytes(),
                    "status": row.get("status", "decided"),
                }  # fmt: skip
                run(_APPEND, [values.get(name) for name in _INSERT])

    def finish(
        self,
        decision_id: str,
        *,
        status: str,
        cost: float | None = None,
        latency: float | None = None,
        response_id: str | None = None,
    ) -> None:
        """Record how the call of a decision ended; what is None stays as it is."""
        with self._transaction(append=True) as run:
            run(
                "UPDATE decisions SET status = ?, cost = COALESCE(?, cost), latency = COALESCE(?, latency), "
                "response_id = COALESCE(?, response_id) WHERE id = ?",
                (status, cost, latency, response_id, decision_id),
            )

    def decision(self, **where: str) -> Logged | None:
        """The newest decision with this id, response_id or call_id; None: there is none."""
        ((column, value),) = where.items()
        assert column in ("id", "response_id", "call_id")
        rows = self._decisions(f"WHERE {column} = ? ORDER BY seq DESC LIMIT 1", (value,))
        return rows[0] if rows else None

    def decisions(self, after: int = 0, limit: int = -1) -> list[Logged]:
        """Decisions numbered above `after`, in order."""
        extra = f" LIMIT {int(limit)}" if limit >= 0 else ""
        return self._decisions(f"WHERE seq > ? ORDER BY seq{extra}", (after,))

    def played(self, after: int, bundles: list[str]) -> tuple[int, list[str]]:
        """(number of the newest decision, arms that copies of these bundles played after `after`)."""
        with self._transaction() as run:
            rows = run(
                "SELECT seq, arm, bundle FROM decisions WHERE seq > ? ORDER BY seq", (after,)
            ).fetchall()
        return int(rows[-1][0]) if rows else after, [arm for _, arm, bundle in rows if bundle in bundles]

    def _decisions(self, tail: str, values: tuple[Any, ...]) -> list[Logged]:
        with self._transaction() as run:
            rows = run(f"SELECT {', '.join(_DECISIONS)} FROM decisions {tail}", values).fetchall()
        found = []
        for row in rows:
            item = dict(zip(_DECISIONS, row, strict=True))
            item["pmf"], item["target"] = (np.array(json.loads(item[k])) for k in ("pmf", "target"))
            if item["available"] is not None:
                item["available"] = np.array(json.loads(item["available"]), dtype=np.bool_)
            if item["embedding"] is not None:
                item["embedding"] = np.frombuffer(bytes(item["embedding"]), dtype="<f4").astype(np.float32)
            found.append(Logged(**item))
        return found

    # -- rewards ----------------------------------------------------------------------------------------------

    def add_reward(self, decision_id: str, score: float, cost: float, source: str, key: str) -> str:
        """Append a reward: 'recorded', 'duplicate' (the same one is there), or 'conflict' (another score is).

        The first reward of a decision teaches; one from another source is kept beside it.
        """
        with self._transaction(append=True) as run:
            known = run("SELECT decision_id, score FROM rewards WHERE key = ?", (key,)).fetchone()
            if known is not None:
                same = known[0] == decision_id and float(known[1]) == float(score)
                return "duplicate" if same else "conflict"
            earlier = run("SELECT 1 FROM rewards WHERE decision_id = ? LIMIT 1", (decision_id,)).fetchone()
            run(
                "INSERT INTO rewards (decision_id, ts, score, cost, source, key, teaches) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (decision_id, time.time(), float(score), float(cost), source, key, int(earlier is None)),
            )
            return "recorded"

    def rewards(self, after: int = 0, limit: int = -1) -> list[Reward]:
        """Rewards numbered above `after`, in order."""
        extra = f" LIMIT {int(limit)}" if limit >= 0 else ""
        with self._transaction() as run:
            sql = f"SELECT {', '.join(_REWARDS)} FROM rewards WHERE seq > ? ORDER BY seq{extra}"
            rows = run(sql, (after,)).fetchall()
        return [Reward(*(*row[:-1], bool(row[-1]))) for row in rows]

    def scored_prompts(self) -> set[str]:
        """Hashes of the prompts of all decisions whose score was learnt."""
        with self._transaction() as run:
            sql = "SELECT DISTINCT d.prompt_hash FROM decisions d JOIN rewards r ON r.decision_id = d.id WHERE r.teaches = 1"
            return {row[0] for row in run(sql).fetchall()}

    def counts(self) -> list[tuple[str, str, int]]:
        """(arm, status, number of decisions), in order of the arms' names."""
        with self._transaction() as run:
            sql = "SELECT arm, status, COUNT(*) FROM decisions GROUP BY arm, status ORDER BY arm, status"
            return [(arm, status, int(n)) for arm, status, n in run(sql).fetchall()]

    def reward_count(self) -> int:
        """Number of rewards; their own numbers may have gaps."""
        with self._transaction() as run:
            return int(run("SELECT COUNT(*) FROM rewards").fetchone()[0])

    def last_reward(self) -> int:
        """Number of the newest reward; 0: none."""
        with self._transaction() as run:
            return int(run("SELECT COALESCE(MAX(seq), 0) FROM rewards").fetchone()[0])

    # -- lease ------------------------------------------------------------------------------------------------

    def take_lease(self, holder: str, seconds: float, name: str = "learner") -> bool:
        """Take or renew the lease for so many seconds; False while another holder's has not expired."""
        now = time.time()
        with self._transaction(append=True) as run:
            row = run("SELECT holder, expires FROM lease WHERE name = ?", (name,)).fetchone()
            if row is not None and row[0] != holder and float(row[1]) > now:
                return False
            run("DELETE FROM lease WHERE name = ?", (name,))
            run("INSERT INTO lease (name, holder, expires) VALUES (?, ?, ?)", (name, holder, now + seconds))
            return True

    def lease(self, name: str = "learner") -> tuple[str, float] | None:
        """(holder, when it expires) or None."""
        with self._transaction() as run:
            row = run("SELECT holder, expires FROM lease WHERE name = ?", (name,)).fetchone()
        return None if row is None else (row[0], float(row[1]))

    # -- all of it --------------------------------------------------------------------------------------------

    def copy_to(self, path: str | Path) -> Path:
        """Write the whole log into a new SQLite file."""
        with self._lock:
            if self.dialect != "sqlite":
                raise RouterError("a log in PostgreSQL is copied with pg_dump")
            target = sqlite3.connect(path)
            try:
                self._db.backup(target)
                target.execute("PRAGMA journal_mode=DELETE")
                target.commit()
            finally:
                target.close()
        return Path(path)

    def read_from(self, path: str | Path) -> None:
        """Replace the (empty) log by a copy of an SQLite file."""
        source = sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        with self._lock:
            try:
                source.backup(self._db)
            finally:
                source.close()

    def close(self) -> None:
        """Close the connection; all events are committed already."""
        with self._lock:
            self._db.close()


def prompt_hash(text: str) -> str:
    """SHA-256 (hex) of a prompt."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
