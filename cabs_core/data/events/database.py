"""The connection under an event log: SQLite (WAL) or PostgreSQL, one transaction at a time.

A PostgreSQL server that was restarted is connected again by itself. What was under way is done once more, so
work that is handed to `Database.transaction` must leave the same rows when its first run was committed after
all.

No message holds the URL of a database, its password or its host.
"""

import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from cabs_core.base.errors import LogError, RouterError

T = TypeVar("T")
#: run(sql, values) -> cursor; placeholders are ?
Run = Callable[..., Any]
#: seconds after a failed attempt to connect in which no other is made: callers fail at once
PAUSE = 0.25
#: seconds that connecting may take, where the URL does not say
CONNECT = 3
#: why connecting fails, as libpq words it
_REASONS = (
    "Connection refused",
    "Connection timed out",
    "timeout expired",
    "could not translate host name",
    "password authentication failed",
    "no pg_hba.conf entry",
    "is starting up",
    "is shutting down",
    "too many clients",
    "does not exist",
    "server closed the connection unexpectedly",
    "invalid integer value",
)
#: advisory lock of appending transactions in PostgreSQL: without it `seq` could become visible out of order
_APPEND_LOCK = 0x6361_6273
#: rows fetched at a time by `stream`
_ROWS = 5_000
#: bytes that a disk must have room for: some ten decisions
_ROOM = 64 << 10
#: pages of SQLite's write-ahead log after which an appending transaction moves them into the file itself
_PAGES = 10_000


def is_postgres(place: str | Path) -> bool:
    """Whether a log's place is the URL of a PostgreSQL database."""
    return str(place).startswith(("postgres://", "postgresql://"))


def log_name(place: str | Path) -> str:
    """A log's place for messages: the path of a file; of a database nothing but its kind."""
    return "the PostgreSQL log" if is_postgres(place) else str(place)


#: types that both drivers take as they are
_STORED = (float, int, bytes)


def _storable(value: Any) -> Any:
    """A value that both drivers take: numbers of numpy as Python's, text without NUL and lone surrogates."""
    if value is None or type(value) in _STORED:
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, str) and (not value.isascii() or "\x00" in value):
        return value.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")
    return value


class Database:
    """One connection; safe for threads, which wait for each other.

    Args:
        place: path of an SQLite file, ':memory:', or a PostgreSQL URL (extra [postgres]).
        read_only: an SQLite file that exists is read and never written.

    Raises:
        LogError: it cannot be opened. RouterError: the extra is absent.
    """

    def __init__(self, place: str | Path, *, read_only: bool = False):
        self.place, self.read_only = str(place), read_only
        self.dialect = "postgres" if is_postgres(place) else "sqlite"
        self.name = log_name(self.place)
        self._lock = threading.RLock()
        self._db: Any = None
        self._failed, self._why = -PAUSE, ""
        if self.dialect == "postgres":
            try:
                import psycopg2  # noqa: PLC0415  (of the extra postgres)
            except ImportError:
                raise RouterError(
                    "a log in PostgreSQL needs the extra: pip install 'cabs-routing[postgres]'"
                ) from None
            self._driver: Any = psycopg2
            self._errors: tuple[type[Exception], ...] = (psycopg2.Error,)
            self._settings = self._parsed()
        else:
            self._driver, self._errors = sqlite3, (sqlite3.Error,)
        self._open()

    def _parsed(self) -> dict[str, Any]:
        from psycopg2.extensions import parse_dsn  # noqa: PLC0415  (of the extra postgres)

        try:
            settings = dict(parse_dsn(self.place))
        except self._errors:  # its message may quote the password
            raise LogError(
                "the URL of the event log cannot be read: expected "
                "postgresql://user:password@host:port/database, with "
                "special characters of the password percent-encoded"
            ) from None
        return {
            "connect_timeout": CONNECT,
            "keepalives_idle": 30,
            "keepalives_interval": 10,
            "keepalives_count": 3,
            **settings,
        }

    def _open(self) -> None:
        try:
            if self.dialect == "postgres":
                if time.monotonic() - self._failed < PAUSE:
                    raise LogError(self._why)
                self._db = self._driver.connect(**self._settings)
                self._db.set_client_encoding("UTF8")  # also where the database was made without an encoding
                with self._db.cursor() as cursor:
                    # a client that was cut off must not keep the others waiting
                    cursor.execute("SET idle_in_transaction_session_timeout = '30s'")
                self._db.commit()
            elif self.read_only:
                uri = f"{Path(self.place).absolute().as_uri()}?mode=ro"
                self._db = sqlite3.connect(
                    uri, uri=True, timeout=30, check_same_thread=False, isolation_level=None
                )
                self._db.execute("SELECT seq FROM decisions LIMIT 1")  # another kind of file is noticed here
            else:
                if self.place != ":memory:":
                    Path(self.place).parent.mkdir(parents=True, exist_ok=True)
                    # of the owner alone; SQLite gives the files beside it the same rights
                    os.close(os.open(self.place, os.O_CREAT | os.O_RDWR, 0o600))
                self._db = sqlite3.connect(
                    self.place, timeout=30, check_same_thread=False, isolation_level=None
                )
                # of a new file: `compact` gives space back
                self._db.execute("PRAGMA auto_vacuum=INCREMENTAL")
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=NORMAL")
                self._db.execute(f"PRAGMA wal_autocheckpoint={_PAGES}")
        except (OSError, self._driver.Error) as error:
            self._failed = time.monotonic()
            self._why = self._failure("opened", error)
            raise LogError(self._why) from None

    def _failure(self, what: str, error: Exception) -> str:
        """That the log cannot be `what`, and why, without where a database is and how one gets in."""
        text = str(error).strip()
        if self.dialect == "sqlite":
            return f"the event log {self.name} cannot be {what}: {text}"
        # the driver's message of a failed connection quotes the URL, password and all: known reasons only
        message = getattr(getattr(error, "diag", None), "message_primary", None)
        why = message or next((reason for reason in _REASONS if reason in text), type(error).__name__)
        return f"the event log in PostgreSQL cannot be {what}: {why}"

    def transaction(self, work: Callable[[Run], T], *, append: bool = False) -> T:
        """work(run), committed as a whole or undone; done again once where the connection was closed.

        Args:
            append: it writes; such transactions happen one after the other, in all processes.

        Raises:
            LogError: the database cannot be reached, or refuses (a full disk, say).
        """
        with self._lock:
            for last in (False, True):
                if self._db is None:
                    self._open()
                try:
                    return self._once(work, append)
                except self._errors as error:
                    if self.dialect == "postgres" and self._db.closed:
                        self._db = None
                        if not last:
                            continue
                    raise LogError(self._failure("used", error)) from None
            raise AssertionError  # pragma: no cover (the loop returns or raises)

    def _once(self, work: Callable[[Run], T], append: bool) -> T:
        cursor = self._db.cursor()

        def run(sql: str, values: Iterable[Any] = ()) -> Any:
            plain = tuple(map(_storable, values))
            cursor.execute(sql if self.dialect == "sqlite" else sql.replace("?", "%s"), plain)
            return cursor

        try:
            if self.dialect == "sqlite":
                run("BEGIN IMMEDIATE" if append else "BEGIN")
            elif append:
                run("SELECT pg_advisory_xact_lock(?)", (_APPEND_LOCK,))
            result = work(run)
            self._db.commit()
            return result
        except BaseException:
            with suppress(*self._errors):
                self._db.rollback()
            raise
        finally:
            with suppress(*self._errors):
                cursor.close()

    def stream(self, sql: str, values: Iterable[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """Rows of a query, a few thousand in memory at a time.

        Other threads wait until the last one was taken.

        Raises:
            LogError: the database cannot be reached or read.
        """
        with self._lock:
            if self._db is None:
                self._open()
            cursor: Any = None
            try:
                if self.dialect == "sqlite":
                    cursor = self._db.cursor()
                    cursor.execute(sql, tuple(values))
                else:
                    cursor = self._db.cursor(name="cabs_stream")
                    cursor.itersize = _ROWS
                    cursor.execute(sql.replace("?", "%s"), tuple(values))
                while rows := cursor.fetchmany(_ROWS):
                    yield from rows
            except self._errors as error:
                raise LogError(self._failure("read", error)) from None
            finally:
                with suppress(*self._errors):
                    if cursor is not None:
                        cursor.close()
                    if self.dialect == "postgres":
                        self._db.rollback()

    def sync(self) -> None:
        """Move what SQLite's write-ahead log holds into the file, beside appending transactions, which else
        wait some 10 ms for it."""
        if self.dialect != "sqlite" or self.place == ":memory:":
            return
        uri = f"{Path(self.place).absolute().as_uri()}?mode=rw"
        try:
            with closing(sqlite3.connect(uri, uri=True)) as aside:
                aside.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.Error as error:
            raise LogError(self._failure("synced", error)) from None

    def check_disk(self) -> None:
        """Write and remove _ROOM bytes beside an SQLite file, whose pages may have room, not the disk.

        Raises:
            LogError: they cannot be written.
        """
        if self.dialect != "sqlite" or self.place == ":memory:":
            return
        try:
            with tempfile.TemporaryFile(dir=Path(self.place).absolute().parent) as file:
                file.write(bytes(_ROOM))
                file.flush()
        except OSError as error:
            raise LogError(self._failure("written", error)) from None

    def shrink(self, pages: int = 2_000) -> bool:
        """Give free pages of an SQLite file back, so many at most; whether there may be more."""
        if self.dialect != "sqlite" or self.place == ":memory:":
            return False
        with self._lock:
            try:
                (free,) = self._db.execute("PRAGMA freelist_count").fetchone()
                self._db.execute(f"PRAGMA incremental_vacuum({int(pages)})").fetchall()
                (still_free,) = self._db.execute("PRAGMA freelist_count").fetchone()
                return bool(0 < still_free < free)
            except sqlite3.Error as error:
                raise LogError(self._failure("made smaller", error)) from None

    def copy_to(self, path: str | Path) -> Path:
        """Write all of it into a new SQLite file."""
        if self.dialect != "sqlite":
            raise RouterError("a log in PostgreSQL is copied with pg_dump")
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        target = sqlite3.connect(path)
        with self._lock:
            try:
                self._db.backup(target)
                target.execute("PRAGMA journal_mode=DELETE")
                target.commit()
            finally:
                target.close()
        return Path(path)

    def read_from(self, path: str | Path) -> None:
        """Replace the (empty) database by a copy of an SQLite file."""
        source = sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        with self._lock:
            try:
                source.backup(self._db)
            finally:
                source.close()

    def close(self) -> None:
        """Close the connection; appended rows are committed already."""
        with self._lock:
            if self._db is not None:
                self._db.close()
