"""What was asked and what came back: SQLite, rows are added, never changed: nothing is paid twice.

A row of `sent` is written before a request leaves, one of `received` when it ends. A sent row without an end
is a call that was under way when a process died: it may have been paid for. In WAL mode every committed row
survives kill -9; the last ones before a loss of power may be missing.
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

#: final states of a call: it is never made again
FINAL = ("answered", "truncated", "refused", "rejected")
#: of these, those that score 0 without being looked at
WORTHLESS = ("refused", "rejected")
#: calls whose keys are in a JSON list
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
    """The end of one call.

    Attributes:
        key: what was asked of whom, by content (`call_key`).
        state: answered, truncated (the limit of tokens), refused (by a filter, or by the model's own
            `refusal`), rejected (it cannot be asked, such as a prompt that is too long); failed: no answer.
        text: None where there is none, or only its hash was kept. sha: SHA-256 of the text, 32 hex digits.
        tokens: as the upstream counted them; estimated: it did not, and they are characters / 4.
        usd: what the call cost at the price of its day. seconds: from request to last byte.
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
        """Whether it is kept, so that the call is never made again."""
        return self.state in FINAL


_COLUMNS = "key, model, state, text, sha, finish, tokens, estimated, usd, seconds, note"


def _answer(row: Sequence[Any]) -> StoredAnswer:
    """From a row of `_COLUMNS`."""
    key, model, state, text, sha, finish, tokens, estimated, usd, seconds, note = row
    counted = None if tokens is None else Tokens(**json.loads(tokens))
    return StoredAnswer(key, model, state, text, sha, finish, counted, bool(estimated), usd, seconds, note)


def call_key(url: str, model: str, messages: Sequence[dict[str, Any]], params: dict[str, Any]) -> str:
    """Identity of a call: address, the upstream's name of the model, messages and parameters."""
    return stable_hash({"url": url, "model": model, "messages": list(messages), "params": params}, 40)


class AnswerStore:
    """Answers by the content of the call, shared by all pools of a CABS_HOME."""

    def __init__(self, path: str | Path | None = None):
        """Open or create it; `path`: the file, by default `answers/answers.sqlite` in CABS_HOME."""
        self.path = Path(path) if path else cabs_home() / "answers" / "answers.sqlite"
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
        """Hold the right to ask: one collection at a time, so that two never pay for one answer.

        It may be held twice here.
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
        """Note that a call leaves now; its number. bound: most that it can cost, USD."""
        cursor = self._run(
            "insert into sent (key, model, at, bound) values (?, ?, ?, ?)", (key, model, time.time(), bound)
        )
        return int(cursor.lastrowid or 0)

    def receive(self, number: int, answer: StoredAnswer) -> None:
        """Note how a call ended. Of two answers to one call the first is kept."""
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
        try:
            return self._db.execute(text, values)
        except sqlite3.Error as error:
            raise StorageError(
                f"{self.path}: {error}. What was answered before is kept; make room and run it again"
            ) from None

    def get(self, keys: Sequence[str], texts: bool = True) -> dict[str, StoredAnswer]:
        """{key: its answer} of the calls that need not be made again."""
        columns = _COLUMNS if texts else _COLUMNS.replace("text,", "null,", 1)
        query = f"select {columns} from received where final = 1 and {_THESE}"
        return {row[0]: _answer(row) for row in self._run(query, (json.dumps(keys),))}

    def known(self, keys: Iterable[str]) -> set[str]:
        """Those of the keys that have an answer."""
        return set(self.get(list(keys), texts=False))

    def spent(self, keys: Iterable[str]) -> tuple[float, float, int]:
        """(USD of the calls of these keys that ended, USD that others may have cost, number of those).

        The others were under way when a process died, or broke off.
        """
        these = (json.dumps(list(keys)),)
        (paid,) = self._run(f"select total(usd) from received where {_THESE}", these).fetchone()
        unended = f"{_THESE} and id not in (select sent from received)"
        query = f"select total(bound), count(*) from sent where {unended}"
        return (float(paid), *self._run(query, these).fetchone())

    def forget_texts(self, keys: Sequence[str]) -> None:
        """Keep only the hashes of these answers."""
        self._run(f"update received set text = null where {_THESE}", (json.dumps(keys),))
