"""Limits of what one request, one key and one upstream may take of a worker; SECURITY.md prints the table.

The limits protect callers with keys from each other's mistakes. A proxy in front, such as nginx, keeps
strangers away.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import sys
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

from cabs_server.callers import LOCAL, Refused

P = ParamSpec("P")
T = TypeVar("T")
logger = logging.getLogger("cabs.serve")

#: seconds that a body may take to arrive
BODY_SECONDS = 60.0
#: objects and lists that any JSON body may have
FEWEST_VALUES = 1_000
#: bytes of a body for each further object or list
BYTES_A_VALUE = 16
#: objects and lists, and values of every kind, that a request may have, however large it is: a short value of
#: 4 bytes takes up to 80 in memory
OBJECTS = 100_000
VALUES = 500_000
#: most levels of nested values
DEPTH = 200
#: bytes of a body or answer beyond which a thread reads it
SMALL = 8 << 10
#: bytes of a body or answer beyond which it counts for its key
COUNTED = 64 << 10
#: bytes of such bodies, and of such answers, that a key may have in a worker; further ones wait unread
BYTES_BY_KEY = 32 << 20
#: most bytes of an upstream's whole answer, unpacked; an answer that comes packed or without its length
#: counts as this many bytes
ANSWER = 32 << 20
#: bytes of an event that a stream holds and reads; a longer one passes on in pieces, unread
EVENT = 512 << 10
#: bytes that are unpacked or written at a time
PIECE = 64 << 10
#: number of glibc's mallopt setting (malloc.h)
_MMAP_THRESHOLD = -3
#: seconds after which a thread that computes lets another one go on (Python's own: .005)
_SWITCH = 0.001


@dataclass(frozen=True)
class Limits:
    """The limits that are options of `cabs serve`.

    Attributes:
        body: most bytes of a body.
        requests_by_key: most requests of one key under way.
        requests: most requests of the process under way. A stream is under way until its end. `/healthz` and
            `/readyz` are not counted.
    """

    body: int = 20 << 20
    requests_by_key: int = 64
    requests: int = 512


class RequestSlots:
    """Counts of the requests under way, and of the bytes of large bodies and answers, of each key.

    An object is used from the event loop alone.

    Args:
        limits: most requests under way, of one key and of the process; None takes the defaults of `Limits`.
            The bytes of bodies and answers have the constant `BYTES_BY_KEY` as their limit instead.

    Attributes:
        under_way: {key: number of requests under way}.
        bodies: bytes of large bodies in memory, with the limit `BYTES_BY_KEY` a key.
        answers: bytes of large answers in memory, also with the limit `BYTES_BY_KEY` a key.
    """

    def __init__(self, limits: Limits | None = None):
        self.limits = limits or Limits()
        self.under_way: Counter[str] = Counter()
        self.bodies = KeyedBytes(BYTES_BY_KEY)
        self.answers = KeyedBytes(BYTES_BY_KEY)
        self._all_ended = asyncio.Event()
        self._all_ended.set()

    @contextmanager
    def request(self, key: str) -> Iterator[None]:
        """Count a request of a key as under way while the context lasts.

        Raises:
            Refused: the key or the process has its most requests under way. Callers without a key (`LOCAL`)
                have the limit of the process alone.
        """
        limits = self.limits
        if self.under_way.total() >= limits.requests:
            text = f"this worker has {limits.requests} requests under way"
            raise Refused(429, text, "rate_limit_error", 1)
        if key != LOCAL and self.under_way[key] >= limits.requests_by_key:
            text = f"the key has {limits.requests_by_key} requests under way at this worker"
            raise Refused(429, text, "rate_limit_error", 1)
        self.under_way[key] += 1
        self._all_ended.clear()
        try:
            yield
        finally:
            self.under_way[key] -= 1
            if not self.under_way[key]:
                del self.under_way[key]
            if not self.under_way:
                self._all_ended.set()

    async def wait_for_end(self, seconds: float) -> None:
        """Wait until no request is under way, at most `seconds`. The end of this time is no error."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._all_ended.wait()


class KeyedBytes:
    """Bytes of memory that each key has reserved.

    A request reserves its bytes once, so no request that holds bytes waits for others.

    Args:
        most: bytes that the requests of one key may have at once.

    Attributes:
        taken: {key: bytes that are reserved}.
    """

    def __init__(self, most: int):
        self.most = most
        self.taken: Counter[str] = Counter()
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def take(self, key: str, size: int) -> AsyncIterator[None]:
        """Wait until there is room, and reserve `size` bytes for a key while the context lasts.

        A key without reserved bytes may reserve more than `most`.

        Raises:
            Refused: there was no room within `BODY_SECONDS`.
        """
        try:
            async with asyncio.timeout(BODY_SECONDS), self._changed:
                await self._changed.wait_for(lambda: self._fits(key, size))
                self.taken[key] += size
        except TimeoutError:
            text = f"the key's large requests under way have {self.most >> 20} MiB"
            raise Refused(429, text, "rate_limit_error", 1) from None
        try:
            yield
        finally:
            self.taken[key] -= size
            if not self.taken[key]:
                del self.taken[key]
            async with self._changed:
                self._changed.notify_all()

    def _fits(self, key: str, size: int) -> bool:
        """Return True if a key may reserve `size` more bytes now."""
        return not self.taken[key] or self.taken[key] + size <= self.most


class FairWorker:
    """A thread that runs blocking work: one piece of each key in turn, and the pieces of one key in order."""

    def __init__(self, name: str):
        self._waiting: OrderedDict[str, deque[tuple[Future[Any], Callable[[], Any]]]] = OrderedDict()
        self._lock = threading.Lock()
        #: one True for each piece of work, and a False at the end
        self._tickets: SimpleQueue[bool] = SimpleQueue()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, key: str, work: Callable[[], T]) -> Future[T]:
        """Queue a piece of work and return its future. Raises RuntimeError after `close`."""
        future: Future[T] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the worker has been closed")
            self._waiting.setdefault(key, deque()).append((future, work))
            self._tickets.put(True)
        return future

    async def run(self, key: str, work: Callable[P, T], /, *arguments: P.args, **keywords: P.kwargs) -> T:
        """Return the result of a piece of work. Work that is cancelled before its turn is skipped."""
        return await asyncio.wrap_future(self.submit(key, lambda: work(*arguments, **keywords)))

    def wait_idle(self) -> None:
        """Block until all work that was submitted before is done. Raises RuntimeError after `close`."""
        with self._lock:
            keys = list(self._waiting)
        for future in [self.submit(key, bool) for key in (*keys, "")]:
            future.result()

    def close(self) -> None:
        """Finish the work that waits, and end the thread."""
        with self._lock:
            self._is_closed = True
            self._tickets.put(False)
        self._thread.join()

    def _run(self) -> None:
        """Do all work submitted before `close` is called, then return. The thread calls this method."""
        while self._tickets.get():
            self._do_next()

    def _do_next(self) -> None:
        """Do the first piece of work of the key whose turn it is. A cancelled piece is removed undone."""
        with self._lock:
            key, queue = self._waiting.popitem(last=False)
            future, work = queue.popleft()
            if queue:
                self._waiting[key] = queue  # behind the other keys
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)
            # The error refers to this frame, and the frame would refer to the future that holds the error.
            # The cycle would keep the body that was read in memory.
            del future


def prepare_process() -> None:
    """Have threads take turns more often, and have freed large blocks of memory go back to the system.

    By default glibc keeps ever larger freed blocks, so the memory of large bodies would stay in the process.
    """
    sys.setswitchinterval(_SWITCH)
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another libc has no such call
            ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 1 << 20)
