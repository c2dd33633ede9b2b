"""The connection under an event log: SQLite (WAL) or PostgreSQL, one transaction at a time.

After a restart of a PostgreSQL server, the connection is opened again. The transaction under way is then
repeated once. Its first run may have been committed after all, so a repeated run must leave the same rows.

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
#: run(sql, values) -> cursor. Placeholders are question marks.
Run = Callable[..., Any]
#: Seconds after a failed attempt to connect in which no other attempt is made, and callers fail at once.
PAUSE = 0.25
#: Seconds that connecting may take if the URL gives no limit.
CONNECT = 3
#: Reasons of a failed connection, in the words of libpq.
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
#: Advisory lock of appending transactions in PostgreSQL. Without it, numbers could appear out of order.
_APPEND_LOCK = 0x6361_6273
#: Rows that `stream` fetches at a time.
_ROWS = 5_000
#: Bytes that must be free on the disk, enough for some ten decisions.
_ROOM = 64 << 10
#: Pages of SQLite's write-ahead log after which a transaction moves them into the file itself.
_PAGES = 10_000


def is_postgres(place: str | Path) -> bool:
    """Return True if the place of a log is the URL of a PostgreSQL database."""
    return str(place).startswith(("postgres://", "postgresql://"))


def log_name(place: str | Path) -> str:
    """Return the name of a log for messages: the path of a file, or words without the URL for a database."""
    if is_postgres(place):
        return "the PostgreSQL log"
    return str(place)


#: Types that both drivers take as they are.
_STORED = (float, int, bytes)


def _storable(value: Any) -> Any:
    """Return a value in a form that both drivers take.

    Numbers and texts of NumPy become Python's, and NUL and lone surrogates in a text are written as escapes.
    Any other value is returned as it is.
    """
    if value is None or type(value) in _STORED:
        return value
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str) and (not value.isascii() or "\x00" in value):
        return value.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")
    return value


class Database:
    """One connection to the database of a log. Several threads may use it, and wait for each other.

    Args:
        place: path of an SQLite file, ':memory:', or a PostgreSQL URL (extra [postgres]).
        read_only: True to read an existing SQLite file and never to write to it. The argument has no effect
            on a database of PostgreSQL.

    Raises:
        LogError: the database cannot be opened.
        RouterError: the extra for PostgreSQL is not installed.
    """

    def __init__(self, place: str | Path, *, read_only: bool = False):
        self.place = str(place)
        self.read_only = read_only
        if is_postgres(place):
            self.dialect = "postgres"
        else:
            self.dialect = "sqlite"
        self.name = log_name(self.place)
        self._lock = threading.RLock()
        self._db: Any = None
        self._failed = -PAUSE
        self._why = ""
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
            self._driver = sqlite3
            self._errors = (sqlite3.Error,)
        self._open()

    def _parsed(self) -> dict[str, Any]:
        """Return the settings in the URL of a database, with time limits that the URL does not give.

        Raises:
            LogError: the URL cannot be read.
        """
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
        """Open the connection.

        Raises:
            LogError: the database cannot be opened, or an attempt to reach PostgreSQL failed less than
                `PAUSE` seconds ago.
        """
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
                # for a new file, so that `shrink` can give space back
                self._db.execute("PRAGMA auto_vacuum=INCREMENTAL")
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=NORMAL")
                self._db.execute(f"PRAGMA wal_autocheckpoint={_PAGES}")
        except (OSError, self._driver.Error) as error:
            self._failed = time.monotonic()
            self._why = self._failure("opened", error)
            raise LogError(self._why) from None

    def _failure(self, what: str, error: Exception) -> str:
        """Return a message that something could not be done with the log, without the address of a database.

        Args:
            what: participle of the action, such as `opened`.
        """
        text = str(error).strip()
        if self.dialect == "sqlite":
            return f"the event log {self.name} cannot be {what}: {text}"
        # the driver's message of a failed connection quotes the URL, password and all: known reasons only
        message = getattr(getattr(error, "diag", None), "message_primary", None)
        why = message or next((reason for reason in _REASONS if reason in text), type(error).__name__)
        return f"the event log in PostgreSQL cannot be {what}: {why}"

    def transaction(self, work: Callable[[Run], T], *, append: bool = False) -> T:
        """Run work in a transaction that is committed as a whole or undone, and return its result.

        The work is repeated once if PostgreSQL had closed the connection.

        Args:
            work: function that is called with `run`, a function of an SQL text and its values.
            append: True for work that writes. Such transactions follow each other in all processes.

        Raises:
            LogError: the database cannot be reached, or refuses the work, because of a full disk, for
                example.
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
        """Run work in one transaction, without a second attempt."""
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
        """Yield the rows of a query, with a few thousand in memory at a time.

        Other threads wait until the last row was taken. Nothing is repeated if PostgreSQL closes the
        connection: the next call opens it again.

        Raises:
            LogError: the database cannot be reached or read.
        """
        with self._lock:
            if self._db is None:
                self._open()
            db = self._db
            cursor: Any = None
            try:
                if self.dialect == "sqlite":
                    cursor = db.cursor()
                    cursor.execute(sql, tuple(values))
                else:
                    cursor = db.cursor(name="cabs_stream")
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
                    with suppress(*self._errors):
                        db.rollback()
                    if db.closed:  # the next call opens the connection again
                        self._db = None

    def sync(self) -> None:
        """Move SQLite's write-ahead log into the file, on a connection of its own. Elsewhere, do nothing.

        Appending transactions would otherwise wait some 10 ms for this work.

        Raises:
            LogError: the work failed.
        """
        if self.dialect != "sqlite" or self.place == ":memory:":
            return
        uri = f"{Path(self.place).absolute().as_uri()}?mode=rw"
        try:
            with closing(sqlite3.connect(uri, uri=True)) as aside:
                aside.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.Error as error:
            raise LogError(self._failure("synced", error)) from None

    def check_disk(self) -> None:
        """Write and remove some bytes next to an SQLite file. Elsewhere, do nothing.

        The file itself may have free pages although the disk is full.

        Raises:
            LogError: the bytes cannot be written.
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
        """Give free pages of an SQLite file back to the disk, and return True if another call can give more.

        Return False if no free page is left, if no page could be given back (the file was made without
        `auto_vacuum`), and without an SQLite file.

        Args:
            pages: most pages that are given back.

        Raises:
            LogError: the file cannot be changed.
        """
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
        """Copy the database into an SQLite file, and return the path of the file.

        A new file is readable by its owner alone. A database that is in the file already is overwritten.

        Raises:
            RouterError: the log is in PostgreSQL.
        """
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
        """Replace the contents of this SQLite database, which should be empty, by those of an SQLite file."""
        source = sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        with self._lock:
            try:
                source.backup(self._db)
            finally:
                source.close()

    def close(self) -> None:
        """Close the connection. Appended rows are committed already; those of ':memory:' are lost."""
        with self._lock:
            if self._db is not None:
                self._db.close()
