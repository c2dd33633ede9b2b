"""The store of answers: an SQLite file in which every call and its end are recorded.

A row of `sent` is written before a request leaves, and a row of `received` when it ends. A sent row without
an end is a call that was under way when a process died, and that may have been paid for. Rows of answers are
added and never replaced, so that nothing is paid twice. In WAL mode every committed row survives kill -9;
the last rows before a loss of power may be missing.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from cabs_core.base.errors import StorageError
from cabs_core.base.hashing import stable_hash
from cabs_core.base.paths import cabs_home
from cabs_core.data.endpoints.usage import Tokens

#: Final states of a call. Such a call is never made again.
FINAL = ("answered", "truncated", "refused", "rejected")
#: Final states whose answer scores 0 without being read.
WORTHLESS = ("refused", "rejected")
#: Condition of a query: the key of the call is in a JSON list.
_THESE = "key in (select value from json_each(?))"

_SCHEMA = """
create table if not exists sent (
    id integer primary key, key text not null, model text not null, at real not null, bound real not null
);
create table if not exists received (
    sent integer primary key, key text not null, model text not null, state text not null,
    final integer not null, text text, sha text, finish text, tokens text,
    estimated integer not null, usd real, seconds real, at real not null, note text
);
create unique index if not exists answers on received (key) where final = 1;
create index if not exists received_keys on received (key);
create index if not exists sent_keys on sent (key);
"""


@dataclass(frozen=True)
class StoredAnswer:
    """End of one call.

    Attributes:
        key: identity of the call by its content (`call_key`).
        model: the pool's name of the model.
        state: answered, truncated (by the limit of tokens), refused (by a filter, or by the model's own
            `refusal`), rejected (the model cannot take the call, because of a too long prompt, for example),
            or failed (there is no answer, and the call may be made again).
        text: text of the answer. None if there is none, or if only its hash was kept.
        sha: first 32 hex digits of the SHA-256 of the text.
        finish: finish reason in the provider's words.
        tokens: token counts.
        estimated: True if the upstream reported no counts and they are estimated from the texts.
        usd: cost of the call at the price of its day, USD.
        seconds: time from the request to the last byte.
        note: remark, such as the error of a failed call.
    """

    key: str
    model: str
    state: str
    text: str | None = None
    sha: str | None = None
    finish: str | None = None
    tokens: Tokens | None = None
    estimated: bool = False
    usd: float = 0.0
    seconds: float | None = None
    note: str | None = None

    @property
    def final(self) -> bool:
        """True for every state except failed. The answer is kept, and the call is never made again."""
        return self.state in FINAL


#: Columns of `StoredAnswer` in a query.
_COLUMNS = "key, model, state, text, sha, finish, tokens, estimated, usd, seconds, note"


def _answer(row: Sequence[Any]) -> StoredAnswer:
    """Return the answer in a row of `_COLUMNS`."""
    key, model, state, text, sha, finish, tokens, estimated, usd, seconds, note = row
    if tokens is None:
        counted = None
    else:
        counted = Tokens(**json.loads(tokens))
    return StoredAnswer(key, model, state, text, sha, finish, counted, bool(estimated), usd, seconds, note)


def call_key(url: str, model: str, messages: Sequence[dict[str, Any]], params: dict[str, Any]) -> str:
    """Return the identity of a call, 40 hex digits.

    Args:
        url: base URL of the API.
        model: the upstream's name of the model.
        messages: messages of the call.
        params: other fields of the request.
    """
    return stable_hash({"url": url, "model": model, "messages": list(messages), "params": params}, 40)


class AnswerStore:
    """Store of answers by the identity of the call (`call_key`). All pools of a CABS_HOME share one store."""

    def __init__(self, path: str | Path | None = None):
        """Open the store, or create it.

        Args:
            path: file of the store. The default is `answers/answers.sqlite` in CABS_HOME.

        Raises:
            StorageError: the file cannot be opened.
        """
        if path:
            self.path = Path(path)
        else:
            self.path = cabs_home() / "answers" / "answers.sqlite"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(f"{self.path}.lock")
        try:
            self._db = sqlite3.connect(self.path, timeout=60, isolation_level=None, check_same_thread=False)
            self._db.execute("pragma journal_mode = wal")
            self._db.execute("pragma synchronous = normal")
            self._db.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise StorageError(f"{self.path} cannot be opened as a store of answers: {error}") from None

    def __enter__(self) -> AnswerStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def asking(self, notify: Any = lambda text: None) -> Iterator[None]:
        """Hold the lock for asking models, so that two collections never pay for one answer.

        If another process holds the lock, wait until that process releases it. The `asking` of one store may
        be nested.

        Args:
            notify: called with a sentence if there is a wait.
        """
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            notify(f"another collection is asking (lock {self._lock.lock_file}): waiting for it to end")
            self._lock.acquire()
        try:
            yield
        finally:
            self._lock.release()

    def send(self, key: str, model: str, bound: float) -> int:
        """Record that a call is sent now, and return its number.

        Args:
            key: identity of the call (`call_key`).
            model: the pool's name of the model.
            bound: largest cost of the call, USD.
        """
        cursor = self._run(
            "insert into sent (key, model, at, bound) values (?, ?, ?, ?)", (key, model, time.time(), bound)
        )
        return int(cursor.lastrowid or 0)

    def receive(self, number: int, answer: StoredAnswer) -> None:
        """Record how a call ended.

        A second final answer with one key is not stored. Its call then counts in `spent` as one without an
        end.

        Args:
            number: number of the call, as `send` returned it.
        """
        tokens = answer.tokens
        row = {
            "sent": number,
            "key": answer.key,
            "model": answer.model,
            "state": answer.state,
            "final": int(answer.final),
            "text": answer.text,
            "sha": answer.sha,
            "finish": answer.finish,
            "tokens": None if tokens is None else json.dumps(asdict(tokens)),
            "estimated": int(answer.estimated),
            "usd": answer.usd,
            "seconds": answer.seconds,
            "at": time.time(),
            "note": answer.note,
        }
        marks = ", ".join("?" * len(row))
        self._run(f"insert or ignore into received ({', '.join(row)}) values ({marks})", [*row.values()])

    def _run(self, text: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Run one statement.

        Raises:
            StorageError: the statement failed.
        """
        try:
            return self._db.execute(text, values)
        except sqlite3.Error as error:
            raise StorageError(
                f"{self.path}: {error}. What was answered before is kept; make room and run it again"
            ) from None

    def get(self, keys: Sequence[str], texts: bool = True) -> dict[str, StoredAnswer]:
        """Return {key: final answer} of the calls with these keys that have a final answer.

        Args:
            texts: False to leave out the texts, which saves memory.
        """
        if texts:
            columns = _COLUMNS
        else:
            columns = _COLUMNS.replace("text,", "null,", 1)
        query = f"select {columns} from received where final = 1 and {_THESE}"
        return {row[0]: _answer(row) for row in self._run(query, (json.dumps(keys),))}

    def known(self, keys: Iterable[str]) -> set[str]:
        """Return the keys whose calls have a final answer."""
        return set(self.get(list(keys), texts=False))

    def spent(self, keys: Iterable[str]) -> tuple[float, float, int]:
        """Return the cost of all calls with these keys.

        Returns:
            (USD of the calls that ended, largest cost in USD of the calls without an end, number of calls
            without an end). Calls without an end are under way, or were so when a process died.
        """
        these = (json.dumps(list(keys)),)
        (paid,) = self._run(f"select total(usd) from received where {_THESE}", these).fetchone()
        unended = f"{_THESE} and id not in (select sent from received)"
        query = f"select total(bound), count(*) from sent where {unended}"
        return (float(paid), *self._run(query, these).fetchone())

    def forget_texts(self, keys: Sequence[str]) -> None:
        """Remove the texts of all answers to calls with these keys. The rest of each row stays."""
        self._run(f"update received set text = null where {_THESE}", (json.dumps(keys),))
