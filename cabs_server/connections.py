"""What calls to upstreams share in a process: addresses, connections, breakers, threads, spending."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, ParamSpec, TypeVar

import aiohttp

from cabs_core.data.endpoints.upstreams import Upstream, Upstreams
from cabs_server import limits
from cabs_server.breaker import Breaker
from cabs_server.cap import Cap
from cabs_server.gate import Gate
from cabs_server.metrics import Counters
from cabs_server.tracing import Tracer

#: seconds that an idle connection to an upstream is kept: less than servers do (uvicorn, so vLLM: 5 s), or a
#: request may be sent into one that is just being closed
IDLE = 4.0
P = ParamSpec("P")
T = TypeVar("T")
logger = logging.getLogger("cabs.serve")


class Line(NamedTuple):
    """Where a model is called, and what hears of its calls."""

    model: str
    upstream: Upstream
    breaker: Breaker


class Connections:
    """Made within an event loop. Blocking work runs on one thread beside the loop.

    Args:
        cap: of spending a day; None: there is none.

    Attributes:
        lines: {model: its line}, of the upstreams file, and of the one before for requests under way.
        embedders: the same of models of embeddings: asked by name, so breakers keep nobody away.
    """

    def __init__(
        self,
        upstreams: Upstreams,
        *,
        cap: Cap | None = None,
        tracer: Tracer | None = None,
        gate: Gate | None = None,
    ):
        self.upstreams, self.cap = upstreams, cap
        self.lines, self.embedders = (
            _lines(upstreams.models, upstreams),
            _lines(upstreams.embeddings, upstreams),
        )
        self.client = aiohttp.ClientSession(
            # as many as there are requests, which are bounded: none waits for another's
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE),
            # no cookies: those that an upstream sets for one caller must not go to another
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=limits.SMALL_BODY,
        )
        self.gate = gate or Gate()
        self.worker = ThreadPoolExecutor(1, thread_name_prefix="cabs-decide")
        self.counters = Counters()
        self.tracer = tracer or Tracer()

    def adopt(self, upstreams: Upstreams) -> None:
        """Go on with another file's endpoints; what did not change keeps its breaker.

        Requests under way end as they began.
        """
        if upstreams is self.upstreams:
            return
        before = {name: self.lines[name] for name in self.upstreams.models}
        fresh = _lines(upstreams.models, upstreams)
        if self.upstreams.breaker == upstreams.breaker:
            same = [n for n in fresh if n in before and before[n].upstream == fresh[n].upstream]
            fresh |= {name: before[name] for name in same}
        self.lines = before | fresh
        self.embedders = self.embedders | _lines(upstreams.embeddings, upstreams)
        self.upstreams = upstreams

    @property
    def breakers(self) -> dict[str, Breaker]:
        """{model: its breaker}, of the models that are asked now."""
        return {name: self.lines[name].breaker for name in self.upstreams.models}

    async def beside(self, call: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Run blocking work on the thread for it."""
        return await asyncio.get_running_loop().run_in_executor(
            self.worker, lambda: call(*arguments, **keywords)
        )

    def log(self, work: Callable[[], object]) -> None:
        """Have something logged. The answer does not wait for it; what comes after it on the thread does."""

        def safely() -> None:
            try:
                work()
            except Exception:  # the log's disk is full, say: the answer has gone out
                self.counters.add("unlogged_total")
                logger.exception("the end of a call could not be logged")

        self.worker.submit(safely)

    async def close(self) -> None:
        """Close the connections, and finish the blocking work that waits."""
        await self.client.close()
        self.worker.shutdown(wait=True)
        self.gate.close()


def _lines(models: Mapping[str, Upstream], upstreams: Upstreams) -> dict[str, Line]:
    options = upstreams.breaker.model_dump()
    return {name: Line(name, upstream, Breaker(**options)) for name, upstream in models.items()}
