"""What each key has under way in a worker: requests, and bytes of large bodies.

One key takes no other's share.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from typing import ParamSpec, TypeVar

from starlette.types import Receive

from cabs_server import limits
from cabs_server.callers import Refused

P = ParamSpec("P")
T = TypeVar("T")


class _Share:
    """Bytes of a key's large bodies and answers, and whose turn it is to have more.

    Attributes:
        bytes: that its requests have. busy: requests that have some and wait for none.
        growing: requests that have some and wait for more, and how much; they come first.
        waiting: requests that wait.
    """

    def __init__(self) -> None:
        self.turn, self.changed = asyncio.Lock(), asyncio.Event()
        self.bytes = self.busy = self.waiting = 0
        self.growing: dict[Room, int] = {}

    def full(self, more: int, room: Room) -> bool:
        """Whether a request has to wait for so many bytes.

        It never waits for requests that wait themselves, so that one of them always goes on: where there is
        no room, always the one that has most, for in turns all of them would grow beyond it.
        """
        over = self.bytes + more > limits.BYTES_BY_KEY
        if room not in self.growing:
            return bool(self.growing) or (over and self.busy > 0)
        return over and (self.busy > 0 or room is not max(self.growing, key=self.growing.__getitem__))


class Room:
    """What a request takes of its key's bytes, from its body on until its answer was sent.

    Args:
        gate: whose shares they are. receive: of ASGI.

    Attributes:
        read: whether the body has been read; where the client leaves after that, it waits no more.
    """

    def __init__(self, gate: Gate, key: str, receive: Receive):
        self._gate, self._shares, self._key, self._receive = gate, gate.shares, key, receive
        self._parts: dict[str, int] = {}
        self.read = False

    async def hold(self, part: str, size: int, most: int | None = None) -> None:
        """Have room for a part, its body say, of so many bytes, waited for in turn.

        Args:
            most: bytes that the part may grow to, of which it has the next step.

        Raises:
            Refused: there is none in time, or `limits.WAITING_BY_KEY` wait for it.
        """
        held = self._parts.get(part, 0)
        if size <= held:
            return
        more = (size if most is None else min(max(2 * size, limits.STEP), most)) - held
        share = self._shares.setdefault(self._key, _Share())
        if share.waiting >= limits.WAITING_BY_KEY:
            raise Refused(429, f"{share.waiting} large requests of the key wait", "rate_limit_error", 1)
        has = sum(self._parts.values())
        share.waiting += 1
        if has:
            share.busy, share.growing[self] = share.busy - 1, has
        share.changed.set()
        try:
            async with self._patience(), nullcontext() if has else share.turn:
                while share.full(more, self):
                    share.changed.clear()
                    await share.changed.wait()
                share.bytes += more
                self._parts[part] = held + more
        except TimeoutError:
            text = f"the key's large requests under way hold {limits.BYTES_BY_KEY >> 20} MiB"
            raise Refused(429, text, "rate_limit_error", 1) from None
        finally:
            share.waiting -= 1
            share.growing.pop(self, None)
            share.busy += sum(self._parts.values()) > 0
            self._tell(share)

    def close(self) -> None:
        """Give all of it back."""
        share = self._shares.get(self._key)
        if share is not None and (size := sum(self._parts.values())):
            self._parts.clear()
            if size > limits.STEP:
                self._gate.tidy()
            share.bytes, share.busy = share.bytes - size, share.busy - 1
            self._tell(share)

    def _tell(self, share: _Share) -> None:
        share.changed.set()
        if not share.bytes and not share.waiting:
            self._shares.pop(self._key, None)

    @asynccontextmanager
    async def _patience(self) -> AsyncIterator[None]:
        """TimeoutError after `limits.BODY_SECONDS`, or once the client has left."""
        async with asyncio.timeout(limits.BODY_SECONDS) as clock:

            async def watch() -> None:
                while (await self._receive())["type"] != "http.disconnect":
                    pass
                clock.reschedule(0.0)

            watching = asyncio.create_task(watch()) if self.read else None
            try:
                yield
            finally:
                if watching is not None:
                    watching.cancel()


class Gate:
    """Counts by key, within an event loop.

    Attributes:
        requests: {key's name: requests under way}, of those that have any.
        shares: {key's name: its bytes}, of which a `Room` takes some.
    """

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.shares: dict[str, _Share] = {}
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="cabs-read")
        self._tidying: Future[None] | None = None

    async def beside(self, size: int, work: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """work(*arguments, **keywords), beside the loop where `size` (bytes) is large, one at a time."""
        if size <= limits.SMALL_BODY:
            return work(*arguments, **keywords)

        def on_thread() -> T | Refused:
            try:
                return work(*arguments, **keywords)
            except Refused as error:  # with its frames it would keep alive what was read
                return error.with_traceback(None)

        done = await asyncio.get_running_loop().run_in_executor(self._reader, on_thread)
        try:
            if isinstance(done, Refused):
                raise done
            return done
        finally:  # else this frame and the exception, which refer to each other, would keep what was read
            del done

    def tidy(self) -> None:
        """Have memory that large requests leave go back to the system, once for all that have ended."""
        if self._tidying is None or self._tidying.done():
            with suppress(RuntimeError):  # the thread has ended
                self._tidying = self._reader.submit(limits.give_back_memory)

    def close(self) -> None:
        """End the thread."""
        self._reader.shutdown(wait=True)

    @contextmanager
    def request(self, key: str) -> Iterator[None]:
        """A request of a key, from its head to the end of its answer.

        Raises Refused: the key has too many.
        """
        if self.requests[key] >= limits.REQUESTS_BY_KEY:
            raise Refused(
                429,
                f"the key has {limits.REQUESTS_BY_KEY} requests under way at this worker",
                "rate_limit_error",
                1,
            )
        self.requests[key] += 1
        try:
            yield
        finally:
            self.requests[key] -= 1
            if not self.requests[key]:
                del self.requests[key]
