"""Everything that the calls of one process share: endpoints, connections, breakers, threads and limits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import aiohttp

from cabs_core.data.endpoints.upstreams import Upstream, Upstreams
from cabs_server import limits
from cabs_server.breaker import Breaker
from cabs_server.cap import Cap
from cabs_server.limits import FairWorker, RequestSlots
from cabs_server.metrics import Counters
from cabs_server.redaction import Secrets
from cabs_server.refusals import Refusals
from cabs_server.tracing import Tracer

#: seconds that an idle connection to an upstream is kept: less than servers do (uvicorn, so vLLM: 5 s), or a
#: request may be sent into one that is just being closed
IDLE = 4.0
#: seconds that requests have to end once the server has cancelled them
ENDING = 5.0
logger = logging.getLogger("cabs.serve")


class UpstreamState(NamedTuple):
    """The endpoint of a model, with the breaker that counts how the model's calls end."""

    model: str
    upstream: Upstream
    breaker: Breaker


@dataclass
class CallSettings:
    """Settings of calls to upstreams.

    Attributes:
        cap: limit of a day's cost, or None. tracer: maker of the spans of calls.
        has_keys: True if the server has at least two keys, so that no breaker opens by the doubts of one key.
        echo: True if the server calls no upstream and answers by itself with the name of the chosen model.
        fail_closed: True to answer 503 if the router itself fails, instead of calling the fallback model.
    """

    cap: Cap | None = None
    tracer: Tracer = field(default_factory=Tracer)
    has_keys: bool = False
    echo: bool = False
    fail_closed: bool = False


class Connections:
    """The shared state of all calls in a process. An object must be made within the event loop.

    Blocking work runs on two threads. Each thread takes one piece of work of each caller in turn.

    Attributes:
        states: {model: endpoint and breaker} of the upstreams file, and of the file before, which requests
            under way may still use.
        embedders: {model: endpoint and breaker} of models of embeddings, also those of earlier files. Clients
            name these models, so their breakers keep no request away.
        worker: thread of decisions and of the log. reader: thread that reads large bodies and answers.
        secrets: keys of the upstreams, which are replaced in everything that is sent or logged.
        refusals: kinds of requests that models refuse by rules of their own.
    """

    def __init__(
        self, upstreams: Upstreams, settings: CallSettings | None = None, slots: RequestSlots | None = None
    ):
        self.settings = settings or CallSettings()
        self.upstreams = upstreams
        self.cap = self.settings.cap
        self.tracer = self.settings.tracer
        self.slots = slots or RequestSlots()
        self.states = self._states_of(upstreams.models, upstreams)
        self.embedders = self._states_of(upstreams.embeddings, upstreams)
        self.secrets = Secrets.of(upstreams)
        self.refusals = Refusals()
        self.client = aiohttp.ClientSession(
            # as many as there are requests, which are bounded: none waits for another's
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE),
            # no cookies: those that an upstream sets for one caller must not go to another
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=limits.PIECE,
            auto_decompress=False,  # `unpacking` does so piece by piece
        )
        self.worker = FairWorker("cabs-decide")
        self.reader = FairWorker("cabs-read")
        self.counters = Counters()
        #: held while a large chunk of a stream waits for its turn
        self.large_chunks = asyncio.Lock()

    def _states_of(self, models: Mapping[str, Upstream], upstreams: Upstreams) -> dict[str, UpstreamState]:
        """Return {model: endpoint and a new breaker}, with the breaker settings of the file."""
        options = upstreams.breaker.model_dump()
        has_keys = self.settings.has_keys
        return {
            name: UpstreamState(name, upstream, Breaker(**options, has_keys=has_keys))
            for name, upstream in models.items()
        }

    def adopt(self, upstreams: Upstreams) -> None:
        """Use the endpoints of a changed upstreams file from now on.

        The endpoint of a model keeps its breaker if neither the endpoint nor the breaker settings of the file
        changed; models of embeddings get new breakers. Requests under way end with the old endpoints. Nothing
        happens if `upstreams` is the object that is used already.
        """
        if upstreams is self.upstreams:
            return
        before = {name: self.states[name] for name in self.upstreams.models}
        fresh = self._states_of(upstreams.models, upstreams)
        if self.upstreams.breaker == upstreams.breaker:
            same = [n for n in fresh if n in before and before[n].upstream == fresh[n].upstream]
            fresh |= {name: before[name] for name in same}
        self.states = before | fresh
        self.embedders = self.embedders | self._states_of(upstreams.embeddings, upstreams)
        self.secrets = Secrets.of(upstreams)
        self.upstreams = upstreams

    @property
    def breakers(self) -> dict[str, Breaker]:
        """{model: breaker} of the models in the present upstreams file, without models of embeddings."""
        return {name: self.states[name].breaker for name in self.upstreams.models}

    def log(self, key: str, work: Callable[[], object]) -> None:
        """Queue work that writes to the log after the other work of the caller `key`.

        No answer waits for the work. An error in the work is counted and logged.
        """

        def safely() -> None:
            try:
                work()
            except Exception:  # for example a full disk, after the answer was sent
                self.counters.add("unlogged_total")
                logger.exception("the end of a call could not be logged")

        self.worker.submit(key, safely)

    async def close(self) -> None:
        """Close the connections, and finish the blocking work that waits.

        Requests that the server has cancelled have `ENDING` seconds to end first. If the connection of a
        stream were closed before the stream is cancelled, the row of the stream would say that the upstream
        broke off.
        """
        await self.slots.wait_for_end(ENDING)
        await self.client.close()
        self.worker.close()
        self.reader.close()
