"""What each key has under way in a worker: requests, and bytes of large bodies.

One key takes no other's share.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import ParamSpec, TypeVar

from cabs_core.router.server import limits
from cabs_core.router.server.callers import Refused

P = ParamSpec("P")
T = TypeVar("T")


class _Share:
    """Bytes of a key's large bodies, and whose turn it is to ask for more."""

    def __init__(self) -> None:
        self.turn, self.freed = asyncio.Lock(), asyncio.Event()
        self.bytes, self.users = 0, 0


class Gate:
    """Counts by key, within an event loop.

    Attributes:
        requests: {key's name: requests under way}, of those that have any.
    """

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self._shares: dict[str, _Share] = {}
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="cabs-read")

    async def beside(self, size: int, work: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """work(*arguments, **keywords), whose time grows with `size` bytes: of large ones one at a time
        beside the loop."""
        if size <= limits.SMALL_BODY:
            return work(*arguments, **keywords)

        def on_thread() -> T | Refused:
            try:
                return work(*arguments, **keywords)
            except Refused as error:  # with its frames it would keep alive what was read
                return error.with_traceback(None)

        done = await asyncio.get_running_loop().run_in_executor(self._reader, on_thread)
        if isinstance(done, Refused):
            raise done
        return done

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

    @asynccontextmanager
    async def body(self, key: str, size: int, *, most: int | None = None) -> AsyncIterator[None]:
        """Room for a large body, before it is read, waited for in turn.

        Raises:
            Refused: there is none in time, or as many as `most` have room or wait for it.
        """
        share = self._shares.setdefault(key, _Share())
        if share.users == most:
            raise Refused(429, f"the key has {most} large answers under way", "rate_limit_error", 1)
        share.users += 1
        try:
            try:
                async with asyncio.timeout(limits.BODY_SECONDS), share.turn:
                    while share.bytes and share.bytes + size > limits.BODIES_BY_KEY:
                        share.freed.clear()
                        await share.freed.wait()
                    share.bytes += size
            except TimeoutError:
                mib = limits.BODIES_BY_KEY >> 20
                raise Refused(
                    429, f"the key's large requests under way hold {mib} MiB", "rate_limit_error", 1
                ) from None
            try:
                yield
            finally:
                share.bytes -= size
                share.freed.set()
        finally:
            share.users -= 1
            if not share.users:
                self._shares.pop(key, None)
